"""A writable mount of a stopped broker's directory, and what a mount that may not write shows and says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.files import names
from storage.verify.verify import verify_log_dir
from tests.support.builders import build_log_dir
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with

pytestmark = requires_fuse


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return build_log_dir(tmp_path / "logs", {"t": [[b"one", b"two"]], "__consumer_offsets": [[b"x"]]}).path


def test_a_stopped_brokers_directory(log_dir: Path, tmp_path: Path) -> None:
    before = (log_dir / names.CLEAN_SHUTDOWN).read_bytes()
    with mounted(log_dir, tmp_path / "mnt", read_only=False) as mount:
        assert not (log_dir / names.CLEAN_SHUTDOWN).exists()
        with fails_with(errno.EPERM):
            (mount.path / "new").mkdir()
        with fails_with(errno.EPERM):
            (mount.path / "t").rmdir()
        with fails_with(errno.EINVAL):  # how many partitions it has is not known here
            os.open(mount.path / "t" / "@append", os.O_WRONLY)
        with fails_with(errno.EPERM):
            os.open(mount.path / "__consumer_offsets" / "0" / "@append", os.O_WRONLY)
        (mount.path / "t" / "0" / "@append").write_bytes(b"three\n")
        assert (mount.path / "t" / "0" / "messages.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert (log_dir / names.CLEAN_SHUTDOWN).read_bytes() == before
    assert verify_log_dir(log_dir) == []


def test_what_cannot_be_mounted_to_write(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    result = run_kafkafs("mount", tmp_path / "nix", tmp_path / "mnt", check=False)
    assert (result.returncode, b"no such log directory" in result.stderr) == (4, True)
    result = run_kafkafs("mount", log_dir, tmp_path / "mnt", "--create", "--read-only", check=False)
    assert result.returncode == 2
    (log_dir / ".lock").mkdir()
    result = run_kafkafs("mount", log_dir, tmp_path / "mnt", check=False)
    assert (result.returncode, b"--read-only" in result.stderr) == (4, True)
