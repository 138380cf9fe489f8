"""A LogFile is one inode: read wherever Kafka has renamed it to, and never another file of its name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from storage.errors import SegmentGone
from storage.files import log_file
from storage.files.log_file import FileIdentity, LogFile, open_quietly

_CONTENT = bytes(range(256)) * 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(_CONTENT)
    return path


def test_read(path: Path) -> None:
    file = LogFile(path)
    assert file.read(3, 10) == _CONTENT[3:13]
    assert file.read(len(_CONTENT) - 4, 10) == _CONTENT[-4:]
    assert file.read(len(_CONTENT) + 4, 10) == b""
    assert file.read(0, 0) == b""
    buffer = bytearray(16)
    part = file.read(256, 10, buffer)
    assert part == _CONTENT[:10]
    assert buffer == _CONTENT[:10] + bytes(6)
    assert file.read(len(_CONTENT) - 4, 10, buffer) == _CONTENT[-4:]


def test_read_each(path: Path) -> None:
    file = LogFile(path)
    positions = [300, 0, len(_CONTENT) - 4, len(_CONTENT) + 4]
    assert file.read_each(positions, 10) == [_CONTENT[at : at + 10] for at in positions]
    path.unlink()
    with pytest.raises(SegmentGone):
        file.read_each([0], 10)


def test_short_preads_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may give less than was asked for, at most 2 GiB at a time."""
    real = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real[0](fd, min(size, 100), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real[1](fd, [buffers[0][:100]], at))
    file = LogFile(path)
    assert file.read(10, 1000) == _CONTENT[10:1010]
    assert file.read(10, 1000, bytearray(1000)) == _CONTENT[10:1010]
    assert file.read(len(_CONTENT) - 150, 1000, bytearray(1000)) == _CONTENT[-150:]


def test_renamed_to_deleted_and_replaced(path: Path) -> None:
    file = LogFile(path)
    deleted = path.with_name(path.name + ".deleted")
    path.rename(deleted)
    assert file.read(0, 4) == _CONTENT[:4]
    assert file.path == deleted
    again = LogFile(deleted, file.identity)
    path.write_bytes(b"another")
    assert file.read(0, 4) == again.read(0, 4) == _CONTENT[:4]
    assert file.stat().st_size == len(_CONTENT)
    deleted.unlink()
    for gone in (file.read, lambda *_: file.stat()):
        with pytest.raises(SegmentGone):
            gone(0, 4)


def test_another_file_of_the_name_is_not_read(path: Path) -> None:
    file = LogFile(path)
    other = path.with_name("other")
    other.write_bytes(b"another file, under the same name")
    other.rename(path)
    with pytest.raises(SegmentGone):
        file.read(0, 4)


def test_swap_becomes_live_then_deleted(path: Path) -> None:
    swap = path.with_name(path.name + ".swap")
    path.rename(swap)
    file = LogFile(swap)
    swap.rename(path)
    assert file.read(0, 4) == _CONTENT[:4]
    assert file.path == path
    path.rename(path.with_name(path.name + ".deleted"))
    assert file.read(0, 4) == _CONTENT[:4]
    # Two renames between two reads.
    from_swap = LogFile(path.with_name(path.name + ".deleted"))
    skipped = LogFile(swap, from_swap.identity)
    assert skipped.read(0, 4) == _CONTENT[:4]


def test_directory_gone(path: Path) -> None:
    file = LogFile(path)
    path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(SegmentGone):
        file.read(0, 4)


def test_a_fixed_file_is_read_only_as_it_was(path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = LogFile(path)
    os.utime(path, ns=(1_600_000_000_500_000_000,) * 2)
    told: list[bool] = []
    file.fix(path.stat(), lambda: told.append(True))
    assert file.is_as_fixed(path.stat())
    assert file.read(0, 4) == _CONTENT[:4]
    renamed = path.rename(path.with_name(path.name + ".deleted"))
    assert file.read(0, 4) == _CONTENT[:4]
    with renamed.open("r+b") as content:
        content.write(b"others")
    assert renamed.stat().st_ino == file.identity.inode
    assert not file.is_as_fixed(renamed.stat())
    with pytest.raises(SegmentGone, match="written over"):
        file.read(0, 4)
    with pytest.raises(SegmentGone, match="written over"):
        file.stat()
    assert told == [True, True]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("ns", "proof"), [(0, False), (1, True)])
def test_whole_seconds_prove_nothing_of_a_file_that_was_written_just_now(path: Path, ns: int, proof: bool) -> None:
    second = int(time.time())
    os.utime(path, ns=(second * 1_000_000_000 + ns,) * 2)
    file = LogFile(path)
    file.fix(path.stat())
    assert file.is_as_fixed(path.stat()) == proof
    assert file.read(0, 4) == _CONTENT[:4]


def test_no_descriptor_is_kept(path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = LogFile(path)
    for _ in range(20):
        file.read(0, 100)
    with pytest.raises(SegmentGone):
        LogFile(path, FileIdentity(0, 0)).read(0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_access_time_is_left_alone(path: Path) -> None:
    os.utime(path, (1_000_000_000, 1_500_000_000))
    LogFile(path).read(0, 100)
    os.close(open_quietly(path))
    with open(path, "rb", opener=open_quietly) as file:
        file.read()
    assert path.stat().st_atime == 1_000_000_000


def test_other_owners_files_are_read_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file's owner may use O_NOATIME; everybody else gets EPERM for it."""
    real = os.open
    flags_seen = []

    def refuse(place: str, flags: int, mode: int, *, dir_fd: int | None) -> int:
        if not flags & os.O_PATH:
            flags_seen.append(flags)
        if flags & os.O_NOATIME:
            raise PermissionError(1, "Operation not permitted", place)
        return real(place, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(log_file.os, "open", refuse)
    file = LogFile(path)
    assert file.read(0, 4) == _CONTENT[:4]
    assert file.read(4, 4) == _CONTENT[4:8]
    os.close(open_quietly(path))
    # A LogFile tries it once only.
    assert [bool(flags & os.O_NOATIME) for flags in flags_seen] == [True, False, False, True, False]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(tmp_path / "missing.log")
