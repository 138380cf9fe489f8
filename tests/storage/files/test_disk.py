"""Copies and second names of files: what is copied, and how where the kernel cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.files.disk import RealDisk


@pytest.mark.parametrize("error", [None, errno.EXDEV, errno.ENOSYS])
def test_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None) -> None:
    """Within the kernel; through memory where it refuses, for example between two file systems."""

    def refuses(*_: int) -> int:
        assert error is not None
        raise OSError(error, os.strerror(error))

    if error is not None:
        monkeypatch.setattr(os, "copy_file_range", refuses)
    data = os.urandom(20 << 20)
    (tmp_path / "source").write_bytes(data)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        disk = RealDisk()
        assert disk.copy(fd, tmp_path / "whole", len(data)) == len(data)
        assert disk.copy(fd, tmp_path / "part", 9_000_001) == 9_000_001
        assert disk.copy(fd, tmp_path / "nothing", 0) == 0
        assert disk.copy(fd, tmp_path / "short", len(data) + 1) == len(data)
    finally:
        os.close(fd)
    assert (tmp_path / "whole").read_bytes() == data
    assert (tmp_path / "part").read_bytes() == data[:9_000_001]
    assert (tmp_path / "nothing").read_bytes() == b""


def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "source").write_bytes(b"data")
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="full"):
            RealDisk().copy(fd, tmp_path / "target", 4)
    finally:
        os.close(fd)


def test_link(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data")
    RealDisk().link(tmp_path / "source", tmp_path / "second")
    assert (tmp_path / "second").samefile(tmp_path / "source")


def test_an_error_of_a_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = RealDisk().open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        file.write_at(0, b"x")
    file.close()
    assert caught.value.filename == str(tmp_path / "file")
