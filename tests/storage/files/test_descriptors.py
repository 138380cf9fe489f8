"""Held files: few descriptors for many files, no error lost with one, and no other file taken for the one that was."""

import errno
import fcntl
import os
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from storage.files import descriptors
from storage.files.descriptors import HeldFiles, open_fd, raise_limit, sync_path, wait_for_room
from storage.files.disk import RealDisk
from tests.support.faults import FaultyDisk


@pytest.fixture(autouse=True)
def own_files(monkeypatch):
    """Not those that tests before have left open."""
    monkeypatch.setattr(descriptors, "held_files", HeldFiles())


@contextmanager
def soft_limit(descriptors_allowed):
    """The process may have so many, or fewer, until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def hold_some(held, disk, directory, count):
    return [held.hold(disk, directory / f"{number:03d}", create=True) for number in range(count)]


def has_descriptor(path):
    return str(path) in open_paths()


def open_paths():
    """What this process's descriptors are of."""
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the descriptor by which it is listed
            found.add(str(link.readlink()))
    return found


def test_no_more_descriptors_than_the_limit(tmp_path):
    held = HeldFiles(lambda: 10)
    files = hold_some(held, RealDisk(), tmp_path, 50)
    for turn in range(3):
        for number, file in enumerate(files):
            assert file.write_at(file.size(), b"%d,%d;" % (number, turn)) == file.size()
            assert len(held) <= 10
    for number, file in enumerate(files):
        assert file.path.read_bytes() == b"".join(b"%d,%d;" % (number, turn) for turn in range(3))
        file.sync()
        file.close()
        file.close()
    assert len(held) == 0
    assert not any(has_descriptor(file.path) for file in files)


def test_what_is_used_keeps_its_descriptor(tmp_path):
    held = HeldFiles(lambda: 8)
    files = hold_some(held, RealDisk(), tmp_path, 8)
    busy = files[3]
    for file in hold_some(held, RealDisk(), tmp_path / "..", 40):
        busy.write_at(0, b"x")
        assert has_descriptor(busy.path)
        file.close()
        file.path.unlink()
    for file in files:
        file.close()


def test_one_in_use_is_passed_over(tmp_path):
    held = HeldFiles(lambda: 2)
    used, other = hold_some(held, RealDisk(), tmp_path, 2)
    with used.lock:
        more = [held.hold(RealDisk(), tmp_path / name, create=True) for name in ("a", "b", "c")]
        assert has_descriptor(used.path)
    for file in (used, other, *more):
        file.close()


def let_go(held, *files):
    """Have the descriptors of these files closed."""
    while any(has_descriptor(file.path) for file in files):
        assert held.give_back()


def test_a_descriptor_goes_with_all_that_was_written_synced(tmp_path):
    disk = FaultyDisk(tmp_path)
    held = HeldFiles(lambda: 1)
    written = held.hold(disk, tmp_path / "written", create=True)
    written.write_at(0, b"kept")
    other = held.hold(disk, tmp_path / "other", create=True)
    let_go(held, written)
    assert disk.operations.count("sync written") == 1
    written.sync()  # nothing is left to be synced
    assert disk.operations.count("sync written") == 1
    let_go(held, other)
    assert "sync other" not in disk.operations  # nobody wrote to it
    written.close()
    other.close()


def test_what_is_lost_with_a_descriptor_is_told(tmp_path):
    """The kernel tells a failed write-back once: the error is kept for the file's next user, and for who syncs it."""
    disk = FaultyDisk(tmp_path)
    file = descriptors.hold(disk, tmp_path / "file", create=True)
    file.write_at(0, b"lost")
    disk.fail = lambda what, _path: errno.EIO if what == "sync file" else None
    let_go(descriptors.held_files, file)
    disk.fail = lambda _what, _path: None
    for use in (
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        lambda: file.truncate(4),  # to the same
        *(file.sync, file.size, file.fileno) * 2,
        lambda: sync_path(disk, file.path),
    ):
        with pytest.raises(OSError, match="Input/output") as caught:
            use()
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(file.path))
    file.close()
    with pytest.raises(OSError, match="Input/output"):
        sync_path(disk, file.path)
    # Who begins anew has looked at what is there.
    descriptors.hold(disk, file.path).close()
    sync_path(disk, file.path)


@pytest.mark.parametrize("other", ["another inode", "another size", "another time", "none"])
def test_another_file_is_not_taken_for_it(tmp_path, other):
    held = HeldFiles(lambda: 1)
    file = held.hold(RealDisk(), tmp_path / "file", create=True)
    file.write_at(0, b"mine")
    let_go(held, file)
    if other == "another size":
        file.path.write_bytes(b"another's")
    elif other == "another time":
        os.utime(file.path, ns=(0, 0))
    else:
        file.path.rename(tmp_path / "moved")
        if other == "another inode":
            file.path.write_bytes(b"size")
    expected = "No such file" if other == "none" else "no longer the file"
    with pytest.raises(OSError, match=expected) as caught:
        file.write_at(4, b"more")
    assert caught.value.errno == (errno.ENOENT if other == "none" else errno.ESTALE)
    assert all(path.read_bytes() in (b"another's", b"size", b"mine") for path in tmp_path.iterdir())
    file.close()
    assert not has_descriptor(file.path)


def test_what_undoes_a_write_needs_no_descriptor(tmp_path):
    held = HeldFiles(lambda: 1)
    file = held.hold(RealDisk(), tmp_path / "file", create=True)
    file.write_at(0, b"kept")
    let_go(held, file)
    with soft_limit(3):
        with pytest.raises(OSError, match="Too many open files"):
            file.write_at(4, b"more")
        file.truncate(4)
    file.write_at(4, b"more")
    assert file.path.read_bytes() == b"keptmore"
    file.close()


def test_a_missing_descriptor_is_taken_from_those_held(tmp_path):
    files = hold_some(descriptors, RealDisk(), tmp_path, 20)
    lowest = min(file.fileno() for file in files)
    with soft_limit(lowest + 20):
        opened = [open_fd(tmp_path, os.O_RDONLY) for _ in range(10)]
    for fd in opened:
        os.close(fd)
    for file in files:
        file.write_at(0, b"x")
        file.close()


def test_the_limit_is_raised(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(64):
        assert descriptors.half_the_limit() == 32
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_high_descriptor_is_waited_for():
    """select(2) takes none from 1024 on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("a process may have no descriptor above 1024 here")
    reading, writing = os.pipe()
    with soft_limit(2048):
        high = fcntl.fcntl(writing, fcntl.F_DUPFD, 1500)
        wait_for_room(high)
    for fd in (reading, writing, high):
        os.close(fd)
