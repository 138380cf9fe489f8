"""A read-only mount leaves the log directory bit for bit as it was, and works where nothing may be written at all."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.mounted_logs import sample, state_of, txt
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

pytestmark = requires_fuse


@pytest.fixture
def built(tmp_path):
    return sample(tmp_path / "logs")


def walk(mnt):
    """Looks at everything: names, attributes, extended attributes, contents in every format."""
    subprocess.run(f"tar cf - {shlex.quote(str(mnt))} | cat >/dev/null", shell=True, check=True, timeout=240)
    subprocess.run(["find", str(mnt), "-type", "f", "-exec", "md5sum", "{}", "+"], check=True, capture_output=True)
    for folder, _, files in os.walk(mnt):
        for name in (".", *files):
            for attribute in os.listxattr(Path(folder, name)):
                os.getxattr(Path(folder, name), attribute)
    for partition in mnt.glob("*/[0-9]*"):
        for kind in ("txt", "jsonl", "log"):
            (partition / "time" / f"2000--.{kind}").read_bytes()
            (partition / "offsets" / f"last-7.{kind}").read_bytes()


def try_to_write(mnt):
    for attempt in (
        lambda: (mnt / "t/0/messages.txt").write_bytes(b"x"),
        lambda: (mnt / "t/0/segments/new").write_bytes(b"x"),
        lambda: (mnt / "new").mkdir(),
        lambda: (mnt / "t").rmdir(),
        lambda: (mnt / "t/@config").write_text("retention.ms=1\n"),
        lambda: (mnt / "@groups/g").mkdir(),
        lambda: os.utime(mnt / "t/0/messages.txt"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            attempt()


def test_nothing_changes(built, tmp_path):
    before = state_of(built.path)
    with watched(built.path, tmp_path / "mnt") as mount:
        walk(mount.path)
        try_to_write(mount.path)
        assert not (mount.path / "t/0/@append").exists()
        assert not (mount.path / "t/@append.jsonl").exists()
    assert state_of(built.path) == before


def test_on_a_read_only_filesystem(built, tmp_path):
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    bind = subprocess.run(["mount", "--bind", built.path, read_only], capture_output=True, check=False)
    if bind.returncode != 0:
        pytest.skip(f"cannot make a read-only filesystem here: {bind.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", read_only], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (read_only / "file").touch()
        with watched(read_only, tmp_path / "mnt") as mount:
            assert (mount.path / "t/0/messages.txt").read_bytes() == txt(built["t", 0].records)
            walk(mount.path)
    finally:
        subprocess.run(["umount", read_only], check=True)


def test_in_directories_that_nobody_may_write(built, tmp_path):
    """Modes alone; they say little to root."""
    paths = [built.path, *built.path.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = state_of(built.path)
        with watched(built.path, tmp_path / "mnt") as mount:
            walk(mount.path)
        assert state_of(built.path) == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
