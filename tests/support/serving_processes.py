"""Serving processes for tests: a hanging server is killed, and nothing stays mounted."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fixtures import ROOT
from tests.support.mounts import Mounted, end_serving, mounted, wait_mounted

# A server that takes longer is killed; on a busy machine, one may serve all tests of a module.
PATIENCE_S = 1200


@dataclass(frozen=True)
class Served:
    """A mounted tree and the process that serves it; `messages` is the file of its stderr."""

    path: Path
    process: subprocess.Popen[bytes]
    messages: Path


@contextmanager
def killed_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kills the server of a mount if a test takes too long: a read whose server hangs cannot be interrupted."""
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def served_fake(mountpoint: Path, *, fails: bool = False) -> Iterator[Served]:
    """Serves the tree of fake_tree.py, which must end with exit code 0; with `fails` by itself, with 1."""
    mountpoint.mkdir()
    messages = mountpoint.with_suffix(".messages")
    with messages.open("wb") as log:
        command = [sys.executable, "-m", "tests.kafkafs.mounting.fake_tree", str(mountpoint)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_mounted(mountpoint, process, messages)
        with killed_after(process):
            yield Served(mountpoint, process, messages)
        if not fails:
            subprocess.run(["fusermount", "-u", str(mountpoint)], check=True)
        assert process.wait(timeout=120) == fails, messages.read_text()
    finally:
        end_serving(mountpoint, process)


@contextmanager
def watched(log_dir: Path, mountpoint: Path, *options: str) -> Iterator[Mounted]:
    """`mounted`, read-only, with a server that is killed when the test takes too long."""
    with mounted(log_dir, mountpoint, *options) as mount, killed_after(mount.process):
        yield mount


@contextmanager
def fails_with(number: int) -> Iterator[None]:
    """The body must fail with this errno."""
    with pytest.raises(OSError, match=r".") as caught:
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]
