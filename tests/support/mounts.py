"""Mounts for tests: what is mounted according to the system, and a context manager that always unmounts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkafs.mounting.mount import check_fuse, libfuse
from kafkafs.mounting.mountpoint import MountError
from tests.support.waiting import wait_for

KAFKAFS = (str(Path(sys.executable).with_name("kafkafs")),)

written: list[Path] = []  # the log directories of writable mounts that have ended: conftest checks them after each test


def _cannot_mount() -> str:
    """Why this machine cannot mount, as `kafkafs mount` says it; empty if it can."""
    try:
        check_fuse()
        libfuse()
    except MountError as error:
        return str(error)
    return ""


CANNOT_MOUNT = _cannot_mount()
requires_fuse = pytest.mark.skipif(
    bool(CANNOT_MOUNT) and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason=f"nothing can be mounted: {CANNOT_MOUNT}",
)


def kafkafs_mounts() -> list[Path]:
    found = []
    for line in Path("/proc/mounts").read_bytes().splitlines():
        _, mountpoint, kind, *_ = line.split(b" ")
        if kind in (b"fuse.kafkafs", b"fuse.kafkafs-noop"):
            # /proc/mounts writes blanks and backslashes in octal, and all other bytes as they are
            octal = re.compile(rb"\\([0-7]{3})")
            found.append(Path(os.fsdecode(octal.sub(lambda digits: bytes([int(digits[1], 8)]), mountpoint))))
    return found


def detach(mountpoint: Path) -> None:
    """Unmounts, whatever still uses it."""
    tool = shutil.which("fusermount") or shutil.which("fusermount3") or "fusermount3"
    subprocess.run([tool, "-u", "-z", str(mountpoint)], check=False, capture_output=True)


def end_serving(mountpoint: Path, process: subprocess.Popen[bytes]) -> None:
    """Unmounts, and kills the serving process, if that has not been done."""
    if mountpoint in kafkafs_mounts():
        detach(mountpoint)
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_mounted(mountpoint: Path, process: subprocess.Popen[bytes], messages: Path) -> None:
    """Returns once the process serves the mountpoint. AssertionError with its messages if it ends before."""

    def is_mounted() -> bool:
        assert process.poll() is None, f"{process.args!r}: exit {process.returncode}\n{messages.read_text()[-4000:]}"
        return mountpoint in kafkafs_mounts()

    wait_for(f"{mountpoint} is mounted", is_mounted, seconds=300)


def run_kafkafs(*arguments: str | Path, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
    """`kafkafs ARGUMENTS…` as a process of its own; with `check`, a failure shows its output."""
    result = subprocess.run([*KAFKAFS, *map(str, arguments)], capture_output=True, timeout=timeout, check=False)
    if check and result.returncode != 0:
        raise AssertionError(f"kafkafs {arguments}: exit {result.returncode}\n{result.stderr.decode()}")
    return result


def status_when(mountpoint: Path, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """@status.json as soon as it satisfies a condition: on a busy machine it may be some seconds old."""
    deadline = time.monotonic() + 120
    while True:
        status: dict[str, Any] = json.loads((mountpoint / "@status.json").read_bytes())
        if holds(status):
            return status
        assert time.monotonic() < deadline, f"waited in vain for {what}: {status}"
        time.sleep(0.02)


class Mounted:
    """A mounted tree: `path` is the mountpoint, `process` the serving one (foreground)."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def mounted(
    log_dir: Path,
    mountpoint: Path,
    *options: str,
    write: bool = False,
    cache_home: Path | None = None,
    runner: Sequence[str] = (),
) -> Iterator[Mounted]:
    """`kafkafs mount -f` as a child; yields when it is mounted; unmounts at the end and requires exit code 0.

    `cache_home` is where its view index goes (XDG_CACHE_HOME), by default next to the mountpoint. `runner`: a command
    that runs the one that follows it.
    """
    mountpoint.mkdir(parents=True, exist_ok=True)
    mode = ["--write"] if write else []
    command = [*runner, *KAFKAFS, "mount", str(log_dir), str(mountpoint), "-f", *mode, *options]
    messages = mountpoint.with_name(mountpoint.name + ".messages")
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache_home or mountpoint.with_name(mountpoint.name + ".cache"))}
    with messages.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        wait_mounted(mountpoint, process, messages)
        yield Mounted(mountpoint, process)
        umount = run_kafkafs("umount", mountpoint)
        assert process.wait(timeout=120) == 0, messages.read_text()
        assert umount.returncode == 0
        if write:
            written.append(log_dir)
    finally:
        end_serving(mountpoint, process)
