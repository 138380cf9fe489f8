"""Opening, naming, locking and copying files of a log directory, which may come from a stranger."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidTopic, LogLocked, SegmentGone
from storage.files import log_file, names, partition_metadata
from storage.files.dir_lock import DirLock, holder
from storage.files.disk import RealDisk, replace_file
from storage.files.log_file import FileIdentity, LogFile, open_quietly, paths_in, read_existing, read_whole
from storage.files.names import DirKind, FileKind, FileState, MetadataSnapshotName, SegmentFileName
from storage.files.opening import is_directory, links_of_ours, make_directory, open_file, real_place
from storage.files.partition_metadata import DirIdentity
from storage.types import MAX_OFFSET, TopicPartition
from tests.support.fixtures import FIXTURES, requires_fixtures

# A log directory from a stranger: what its names lead to is not opened unless it is a regular file of its owner.

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
_STRANGER = 54321


def _raised(path, flags=os.O_RDONLY):
    try:
        os.close(open_file(path, flags))
    except OSError as error:
        return error.errno if error.filename in (str(path), str(path.parent)) else None
    return None


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_a_link_to_a_file_is_not_followed(tmp_path, flags):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dir").mkdir()
    for target in ("../secret", tmp_path / "secret", "missing", "link"):
        link = tmp_path / "dir" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert _raised(link, flags) == errno.ELOOP
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "dir" / "missing").exists()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, flags):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    assert _raised(tmp_path / "fifo", flags) == errno.EINVAL
    assert _raised(tmp_path / "dir", flags) == (errno.EISDIR if flags & os.O_RDWR else errno.EINVAL)
    with pytest.raises(OSError, match="not a regular file"):
        read_whole(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        LogFile(tmp_path / "fifo").read(0, 10)


@as_root
def test_a_device_is_refused(tmp_path):
    os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    assert _raised(tmp_path / "zero") == errno.EINVAL


def test_a_linked_directory_is_read_if_an_operator_moved_it_there(tmp_path):
    moved, log_dir = tmp_path / "volume" / "orders-0", tmp_path / "log"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    log_dir.mkdir()
    (log_dir / "orders-0").symlink_to(moved)
    (log_dir / "other-0").symlink_to(moved)
    assert read_existing(log_dir / "orders-0" / "file") == b"here"
    assert [path.name for path in paths_in(log_dir / "orders-0")] == ["file"]
    assert is_directory(log_dir / "orders-0")
    assert not is_directory(log_dir / "other-0")
    assert _raised(log_dir / "other-0" / "file") == errno.ELOOP
    with pytest.raises(OSError, match="only one to a directory of the same name"):
        paths_in(log_dir / "other-0")


@as_root
def test_a_linked_directory_of_another_owner_is_not_read(tmp_path):
    moved = tmp_path / "volume" / "orders-0"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    link = tmp_path / "orders-0"
    link.symlink_to(moved)
    os.lchown(link, _STRANGER, _STRANGER)
    assert _raised(link / "file") == errno.ELOOP


def test_nothing_is_changed_through_a_linked_directory(tmp_path):
    moved, link = tmp_path / "volume" / "orders-0", tmp_path / "orders-0"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    link.symlink_to(moved)
    disk = RealDisk()
    for change in (
        lambda: disk.open(link / "file"),
        lambda: disk.open(link / "new", create=True),
        lambda: disk.unlink(link / "file"),
        lambda: disk.rename(link / "file", link / "renamed"),
        lambda: disk.rename(link / "file", tmp_path / "renamed"),
        lambda: disk.mkdir(link / "new"),
        lambda: disk.set_mtime(link / "file", 0),
        lambda: disk.link(link / "file", tmp_path / "second"),
        lambda: replace_file(disk, link / "file", b"new"),
    ):
        with pytest.raises(OSError, match="symbolic link") as caught:
            change()
        assert caught.value.errno == errno.ELOOP
    assert [(path.name, path.read_text()) for path in moved.iterdir()] == [("file", "here")]


@pytest.mark.parametrize("plant", ["symbolic", "hard"])
def test_a_temporary_file_that_was_there_is_not_written_to(tmp_path, plant):
    victim, temporary = tmp_path / "victim", tmp_path / "checkpoint.tmp"
    victim.write_text("precious")
    if plant == "hard":
        temporary.hardlink_to(victim)
    else:
        temporary.symlink_to(victim)
    replace_file(RealDisk(), tmp_path / "checkpoint", b"0\n")
    assert victim.read_text() == "precious"
    assert (tmp_path / "checkpoint").read_bytes() == b"0\n"
    assert not (tmp_path / "checkpoint").is_symlink()


@as_root
def test_a_hard_link_to_another_users_file_shows_nothing_that_the_owner_could_not_read(tmp_path):
    directory, secret = tmp_path / "dir", tmp_path / "secret"
    directory.mkdir()
    secret.write_text("secret")
    os.chown(directory, _STRANGER, _STRANGER)
    (directory / "file").hardlink_to(secret)
    for mode, reading in ((0o600, errno.EACCES), (0o640, errno.EACCES), (0o644, None)):
        secret.chmod(mode)
        assert _raised(directory / "file") == reading
        assert _raised(directory / "file", os.O_RDWR) == errno.EACCES
    secret.chmod(0o640)
    os.chown(secret, 0, _STRANGER)  # readable to the owner's group
    assert _raised(directory / "file") is None


@as_root
def test_what_root_makes_belongs_to_the_directorys_owner(tmp_path):
    disk = RealDisk()
    for mode, file_mode in ((0o700, 0o600), (0o750, 0o640), (0o755, 0o644)):
        directory = tmp_path / f"{mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        os.chown(directory, _STRANGER, _STRANGER + 1)
        disk.open(directory / "file", create=True).close()
        replace_file(disk, directory / "checkpoint", b"")
        disk.mkdir(directory / "t-0")
        for name, wanted in (("file", file_mode), ("checkpoint", file_mode)):
            status = (directory / name).stat()
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (_STRANGER, _STRANGER + 1, wanted)
        assert (directory / "t-0").stat().st_uid == _STRANGER
        disk.open(directory / "file").close()  # it can be written to afterwards, too


def test_links_of_ours_lead_to_files_that_are_checked_themselves(tmp_path):
    shadow, log_dir = tmp_path / "shadow", tmp_path / "log"
    shadow.mkdir()
    log_dir.mkdir()
    (log_dir / "file").write_text("here")
    (log_dir / "linked").symlink_to("file")
    for name in ("file", "linked"):
        (shadow / name).symlink_to(log_dir / name)
    with links_of_ours(shadow):
        assert bytes(LogFile(shadow / "file").read(0, 10)) == b"here"
        assert _raised(log_dir / "linked") == errno.ELOOP
        with pytest.raises(OSError, match="symbolic link"):
            os.close(open_quietly(shadow / "linked"))
    assert _raised(shadow / "file") == errno.ELOOP


def test_a_person_may_name_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert real_place(tmp_path / "link") == tmp_path / "real"
    assert real_place(tmp_path / "link" / "below") == tmp_path / "real" / "below"
    assert real_place(Path("relative/log")) == Path("relative/log")


# A LogFile is one inode: read wherever Kafka has renamed it to, and never another file of its name.

_CONTENT = bytes(range(256)) * 20


@pytest.fixture
def path(tmp_path):
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(_CONTENT)
    return path


def test_read(path):
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


def test_read_each(path):
    file = LogFile(path)
    positions = [300, 0, len(_CONTENT) - 4, len(_CONTENT) + 4]
    assert file.read_each(positions, 10) == [_CONTENT[at : at + 10] for at in positions]
    path.unlink()
    with pytest.raises(SegmentGone):
        file.read_each([0], 10)


def test_short_preads_are_completed(path, monkeypatch):
    """The kernel may give less than was asked for, at most 2 GiB at a time."""
    real = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real[0](fd, min(size, 100), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real[1](fd, [buffers[0][:100]], at))
    file = LogFile(path)
    assert file.read(10, 1000) == _CONTENT[10:1010]
    assert file.read(10, 1000, bytearray(1000)) == _CONTENT[10:1010]
    assert file.read(len(_CONTENT) - 150, 1000, bytearray(1000)) == _CONTENT[-150:]


def test_renamed_to_deleted_and_replaced(path):
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


def test_another_file_of_the_name_is_not_read(path):
    file = LogFile(path)
    other = path.with_name("other")
    other.write_bytes(b"another file, under the same name")
    other.rename(path)
    with pytest.raises(SegmentGone):
        file.read(0, 4)


def test_swap_becomes_live_then_deleted(path):
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


def test_directory_gone(path):
    file = LogFile(path)
    path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(SegmentGone):
        file.read(0, 4)


def test_a_fixed_file_is_read_only_as_it_was(path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = LogFile(path)
    os.utime(path, ns=(1_600_000_000_500_000_000,) * 2)
    told = []
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
def test_whole_seconds_prove_nothing_of_a_file_that_was_written_just_now(path, ns, proof):
    second = int(time.time())
    os.utime(path, ns=(second * 1_000_000_000 + ns,) * 2)
    file = LogFile(path)
    file.fix(path.stat())
    assert file.is_as_fixed(path.stat()) == proof
    assert file.read(0, 4) == _CONTENT[:4]


def test_no_descriptor_is_kept(path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = LogFile(path)
    for _ in range(20):
        file.read(0, 100)
    with pytest.raises(SegmentGone):
        LogFile(path, FileIdentity(0, 0)).read(0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_access_time_is_left_alone(path):
    os.utime(path, (1_000_000_000, 1_500_000_000))
    LogFile(path).read(0, 100)
    os.close(open_quietly(path))
    with open(path, "rb", opener=open_quietly) as file:
        file.read()
    assert path.stat().st_atime == 1_000_000_000


def test_other_owners_files_are_read_all_the_same(path, monkeypatch):
    """Only a file's owner may use O_NOATIME; everybody else gets EPERM for it."""
    real = os.open
    flags_seen = []

    def refuse(place, flags, mode, *, dir_fd):
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


# What tells a partition's directory from a later one of the same name.


def test_a_directory_is_itself(tmp_path):
    first = DirIdentity.of(tmp_path)
    (tmp_path / "file").touch()
    assert DirIdentity.of(tmp_path) == first
    assert first.may_be(DirIdentity.of(tmp_path))


def test_birth_is_what_the_system_says(tmp_path):
    said = int(subprocess.run(["stat", "-c", "%W", tmp_path], capture_output=True, check=True).stdout)
    born_ns = DirIdentity.of(tmp_path).born_ns
    assert (born_ns is None) == (said == 0)
    assert born_ns is None or born_ns // 1_000_000_000 == said


def test_without_birth_times(tmp_path, monkeypatch):
    monkeypatch.setattr(partition_metadata, "_statx", lambda: None)
    assert DirIdentity.of(tmp_path).born_ns is None
    assert DirIdentity.of(tmp_path).may_be(DirIdentity.of(tmp_path))


@pytest.mark.parametrize("changed", ["device", "inode", "born_ns", "topic_id"])
def test_each_of_the_facts_tells(changed):
    one = DirIdentity(1, 2, 3, "id")
    other = one._replace(**{changed: "another" if changed == "topic_id" else 9})
    assert not one.may_be(other)
    assert one.may_be_seen_elsewhere_as(other) == (changed in ("device", "inode"))
    if changed in ("born_ns", "topic_id"):
        assert one.may_be(one._replace(**{changed: None}))


def test_a_topic_id_that_comes_later(tmp_path):
    before = DirIdentity.of(tmp_path)
    assert before.topic_id is None
    topic_id = partition_metadata.random_id()
    (tmp_path / names.PARTITION_METADATA).write_bytes(partition_metadata.encode(topic_id))
    now = DirIdentity.of(tmp_path)
    assert before.may_be(now)
    assert before.with_known(now).topic_id == topic_id
    assert now.with_known(before).topic_id == topic_id


def test_an_id_that_does_not_read_tells_nothing(tmp_path):
    (tmp_path / names.PARTITION_METADATA).write_bytes(b"rubbish")
    assert DirIdentity.of(tmp_path).topic_id is None


def test_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        DirIdentity.of(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        DirIdentity.of(tmp_path / "file" / "none")


def test_nothing_is_changed(tmp_path):
    metadata = tmp_path / names.PARTITION_METADATA
    metadata.write_bytes(partition_metadata.encode(partition_metadata.random_id()))
    os.utime(metadata, ns=(1, 1))
    os.utime(tmp_path, ns=(1, 1))
    DirIdentity.of(tmp_path)
    assert {path.stat().st_atime_ns for path in (metadata, tmp_path)} == {1}
    assert {path.stat().st_mtime_ns for path in (metadata, tmp_path)} == {1}


# `.lock` against other processes and against a second opening in the same one.

_HOLD = """
import sys
from pathlib import Path
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
lock = DirLock(RealDisk(), Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""

_PROBE = """
import sys
from pathlib import Path
from storage.files.dir_lock import holder
print(holder(Path(sys.argv[1])))
"""


def _hold_elsewhere(directory):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_another_process_is_refused_and_named(tmp_path):
    with _hold_elsewhere(tmp_path) as process:
        assert holder(tmp_path) == process.pid
        with pytest.raises(LogLocked, match=f"process {process.pid}"):
            DirLock(RealDisk(), tmp_path)
        process.communicate("")
    lock = DirLock(RealDisk(), tmp_path)
    assert holder(tmp_path) == os.getpid()
    lock.release()


def test_a_killed_holder_leaves_a_file_but_no_lock(tmp_path):
    with _hold_elsewhere(tmp_path) as process:
        process.kill()
    assert (tmp_path / ".lock").exists()
    assert holder(tmp_path) is None
    DirLock(RealDisk(), tmp_path).release()


def test_the_same_process_is_refused_and_keeps_its_lock(tmp_path):
    lock = DirLock(RealDisk(), tmp_path)
    with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
        DirLock(RealDisk(), tmp_path)
    seen = subprocess.run([sys.executable, "-c", _PROBE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == str(os.getpid())
    lock.release()


def test_release_removes_the_file_and_may_be_repeated(tmp_path):
    lock = DirLock(RealDisk(), tmp_path)
    lock.release()
    assert not (tmp_path / ".lock").exists()
    lock.release()
    again = DirLock(RealDisk(), tmp_path)
    lock.release()  # must not take away the lock of the new owner
    assert holder(tmp_path) == os.getpid()
    again.release()


def test_a_file_unlinked_while_we_waited_is_not_mistaken_for_the_lock(tmp_path):
    lock = DirLock(RealDisk(), tmp_path)
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").touch()
    lock.release()
    assert (tmp_path / ".lock").exists(), "a file that is not ours must stay"


# Copies and second names of files: what is copied, and how where the kernel cannot.


@pytest.mark.parametrize("error", [None, errno.EXDEV, errno.ENOSYS])
def test_copy(tmp_path, monkeypatch, error):
    """Within the kernel; through memory where it refuses, for example between two file systems."""

    def refuses(*_):
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


def test_other_errors_are_raised(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "source").write_bytes(b"data")
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="full"):
            RealDisk().copy(fd, tmp_path / "target", 4)
    finally:
        os.close(fd)


def test_an_error_of_a_write_names_the_file(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = RealDisk().open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        file.write_at(0, b"x")
    file.close()
    assert caught.value.filename == str(tmp_path / "file")


# File and directory names, built and parsed.


@given(st.integers(0, MAX_OFFSET), st.sampled_from(FileKind), st.sampled_from(FileState))
def test_segment_file_round_trip(offset, kind, state):
    name = names.segment_file(offset, kind, state)
    assert name.index(".") == 20
    assert names.parse_segment_file(name) == SegmentFileName(offset, kind, state)
    assert not names.is_misnamed(name)


@pytest.mark.parametrize(
    ("name", "misnamed"),
    [
        ("5.log", True),
        ("00000000000000000005.log ", False),
        ("00000000000000000005.logs", False),
        ("0000000000000000000\uff15.log", True),
        ("-0000000000000000005.log", True),
        ("99999999999999999999.index", True),  # above 2^63 - 1
        ("abc.timeindex.deleted", True),
        ("00000000000000000005.log.swap.swap", False),
        ("leader-epoch-checkpoint", False),
        ("partition.metadata", False),
        ("00000000000000000000-0000000000.checkpoint", False),
        (".log", True),
        ("", False),
    ],
)
def test_no_segment_file(name, misnamed):
    assert names.parse_segment_file(name) is None
    assert names.is_misnamed(name) == misnamed


def test_metadata_snapshots():
    name = "00000000000000000120-0000000003.checkpoint"
    assert names.parse_metadata_snapshot(name) == MetadataSnapshotName(120, 3)
    assert names.parse_metadata_snapshot(name + ".part") is None
    assert names.parse_metadata_snapshot("bootstrap.checkpoint") is None
    assert MetadataSnapshotName(99, 9) < MetadataSnapshotName(100, 1)


HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "kind", "partition"),
    [
        ("t-0", DirKind.PARTITION, TopicPartition("t", 0)),
        ("a-b.c_d-12", DirKind.PARTITION, TopicPartition("a-b.c_d", 12)),
        ("t--1", DirKind.PARTITION, TopicPartition("t-", 1)),
        ("my-delete-0", DirKind.PARTITION, TopicPartition("my-delete", 0)),
        ("t-2147483647", DirKind.PARTITION, TopicPartition("t", 2**31 - 1)),
        ("__consumer_offsets-49", DirKind.PARTITION, TopicPartition("__consumer_offsets", 49)),
        (f"t-3.{HEX}-delete", DirKind.DELETED, TopicPartition("t", 3)),
        (f"a.b-3.{HEX}-stray", DirKind.STRAY, TopicPartition("a.b", 3)),
        (f"t-3.{HEX}-future", DirKind.FUTURE, TopicPartition("t", 3)),
        ("__cluster_metadata-0", DirKind.CLUSTER_METADATA, TopicPartition("__cluster_metadata", 0)),
        ("remote-log-index-cache", DirKind.REMOTE_INDEX_CACHE, None),
        ("lost+found", DirKind.UNPARSABLE, None),
        (".snapshot", DirKind.UNPARSABLE, None),
        ("t", DirKind.UNPARSABLE, None),
        ("t-", DirKind.UNPARSABLE, None),
        ("-0", DirKind.UNPARSABLE, None),
        ("t-x", DirKind.UNPARSABLE, None),
        ("t-1_0", DirKind.UNPARSABLE, None),
        ("t-2147483648", DirKind.UNPARSABLE, None),
        ("t-007", DirKind.UNPARSABLE, None),  # to a broker the same as t-7
        ("t-+7", DirKind.UNPARSABLE, None),
        ("t-3-delete", DirKind.UNPARSABLE, None),
        ("t-3.-delete", DirKind.UNPARSABLE, None),
        ("a b-0", DirKind.UNPARSABLE, None),
        ("@help-0", DirKind.UNPARSABLE, None),
        (f"{'t' * 250}-0", DirKind.UNPARSABLE, None),
        ("", DirKind.UNPARSABLE, None),
    ],
)
def test_directories(name, kind, partition):
    parsed = names.parse_dir(name)
    assert (parsed.name, parsed.kind, parsed.partition) == (name, kind, partition)
    assert bool(parsed.reason) == (kind is DirKind.UNPARSABLE)


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_partition_directory_round_trip(topic, partition):
    if topic in (".", "..", names.CLUSTER_METADATA_TOPIC):
        return
    parsed = names.parse_dir(TopicPartition(topic, partition).dir_name)
    assert (parsed.kind, parsed.partition) == (DirKind.PARTITION, TopicPartition(topic, partition))


def test_deleted_directory_names_fit():
    short = names.deleted_dir(TopicPartition("t", 3), HEX)
    assert short == f"t-3.{HEX}-delete"
    long = names.deleted_dir(TopicPartition("x" * 249, 2**31 - 1))
    assert len(long) == 255
    parsed = names.parse_dir(long)
    assert parsed.kind is DirKind.DELETED
    assert parsed.partition is not None
    assert parsed.partition.partition == 2**31 - 1
    assert names.deleted_dir(TopicPartition("t", 3)) != names.deleted_dir(TopicPartition("t", 3))


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "empty"),
        (".", "not allowed"),
        ("..", "not allowed"),
        ("x" * 250, "at most 249"),
        ("a b", "ASCII letters"),
        ("a/b", "ASCII letters"),
        ("é", "ASCII letters"),
        ("@a", "ASCII letters"),
        ("a\n", "ASCII letters"),
    ],
)
def test_invalid_topics(topic, why):
    with pytest.raises(InvalidTopic, match=why):
        names.check_topic_name(topic)


def test_colliding_topics():
    names.check_topic_is_new("a.c", ["a.b", "a_bc"])
    with pytest.raises(InvalidTopic, match=r"collides with topic 'a\.b'"):
        names.check_topic_is_new("a_b", ["x", "a.b"])
    with pytest.raises(InvalidTopic, match="exists already"):
        names.check_topic_is_new("a.b", ["a.b"])
    with pytest.raises(InvalidTopic, match="invalid"):
        names.check_topic_is_new("a b", [])


@requires_fixtures
def test_every_name_that_a_broker_wrote():
    ours = {
        names.LEADER_EPOCH_CHECKPOINT,
        names.PARTITION_METADATA,
        names.META_PROPERTIES,
        names.CLEAN_SHUTDOWN,
        names.RECOVERY_POINT_CHECKPOINT,
        names.LOG_START_CHECKPOINT,
        names.REPLICATION_CHECKPOINT,
        names.CLEANER_CHECKPOINT,
        "bootstrap.checkpoint",
        "quorum-state",
    }
    files = 0
    for log_dir in (*FIXTURES.glob("*/log"), FIXTURES / "recovery" / "before", FIXTURES / "recovery" / "after"):
        for path in log_dir.iterdir():
            if path.is_dir() and path.name != names.REMOTE_INDEX_CACHE:
                kinds = (DirKind.PARTITION, DirKind.DELETED, DirKind.CLUSTER_METADATA)
                assert names.parse_dir(path.name).kind in kinds, path
        for path in log_dir.rglob("*"):
            if path.is_file() and path.parent.name != names.REMOTE_INDEX_CACHE:
                parsed = names.parse_segment_file(path.name)
                snapshot = names.parse_metadata_snapshot(path.name)
                assert [path.name in ours, parsed is not None, snapshot is not None].count(True) == 1, path
                if parsed is not None:
                    assert names.segment_file(parsed.offset, parsed.kind, parsed.state) == path.name
                files += 1
    assert files > 1000


@as_root
def test_a_directory_gets_the_owner_of_the_one_that_it_was_made_in(tmp_path, monkeypatch):
    """The owner of the directory may replace it, and what root has made in it, between any two steps."""
    directory, other = tmp_path / "log", tmp_path / "other"
    for place in (directory, other):
        place.mkdir()
    os.chown(directory, _STRANGER, _STRANGER)
    made = Path.stat

    def replaced(path, *, follow_symlinks=True):
        if path == directory and not (tmp_path / "away").exists():
            directory.rename(tmp_path / "away")
            directory.symlink_to(other)
        return made(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", replaced)
    make_directory(directory / "t-0")
    monkeypatch.undo()
    (owned,) = (path for path in (directory / "t-0", tmp_path / "away" / "t-0") if path.exists())
    assert (owned.stat().st_uid, owned.stat().st_gid) == (_STRANGER, _STRANGER)


@as_root
def test_no_file_is_given_away_in_the_place_of_a_new_directory(tmp_path, monkeypatch):
    directory, secret = tmp_path / "log", tmp_path / "secret"
    directory.mkdir()
    secret.touch()
    os.chown(directory, _STRANGER, _STRANGER)
    make = os.mkdir

    def replaced(path, mode=0o777, *, dir_fd=None):
        make(path, mode, dir_fd=dir_fd)
        os.rmdir(path, dir_fd=dir_fd)
        os.link(secret, path, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", replaced)
    with pytest.raises(OSError, match="Not a directory"):
        make_directory(directory / "t-0")
    assert secret.stat().st_uid == 0
