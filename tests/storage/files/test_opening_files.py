"""Opening, reading, locking and copying files of a log directory, which may come from a stranger."""

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.errors import LogLocked, SegmentGone
from storage.files import log_file, names, partition_metadata
from storage.files.dir_identity import DirIdentity
from storage.files.dir_lock import DirLock, holder
from storage.files.disk import RealDisk, replace_file
from storage.files.listing import paths_in
from storage.files.log_file import FileIdentity, LogFile, open_quietly
from storage.files.opening import is_directory, links_of_ours, make_directory, open_below, open_file, real_place
from storage.files.small_files import read_existing, read_whole

# A log directory from a stranger: what its names lead to is not opened unless it is a regular file of its owner.

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
STRANGER = 54321


def refused(path, flags=os.O_RDONLY):
    """The errno with which a file is not opened, None if it is."""
    try:
        os.close(open_file(path, flags))
    except OSError as error:
        return error.errno if error.filename in (str(path), str(path.parent)) else -1
    return None


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_a_link_to_a_file_is_not_followed(tmp_path, flags):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dir").mkdir()
    for target in ("../secret", tmp_path / "secret", "missing", "link"):
        link = tmp_path / "dir" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert refused(link, flags) == errno.ELOOP
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "dir" / "missing").exists()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, flags):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    assert refused(tmp_path / "fifo", flags) == errno.EINVAL
    assert refused(tmp_path / "dir", flags) == (errno.EISDIR if flags & os.O_RDWR else errno.EINVAL)
    for read in (lambda: read_whole(tmp_path / "fifo"), lambda: LogFile(tmp_path / "fifo").read(0, 10)):
        with pytest.raises(OSError, match="not a regular file"):
            read()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        assert refused(tmp_path / "zero") == errno.EINVAL


@pytest.fixture
def moved(tmp_path):
    """A partition's directory that an operator has moved to another volume; orders-0 is a link to it."""
    directory = tmp_path / "volume" / "orders-0"
    directory.mkdir(parents=True)
    (directory / "file").write_text("here")
    (tmp_path / "orders-0").symlink_to(directory)
    return directory


def test_a_linked_directory_is_read_if_an_operator_moved_it_there(tmp_path, moved):
    (tmp_path / "other-0").symlink_to(moved)
    assert read_existing(tmp_path / "orders-0" / "file") == b"here"
    assert [path.name for path in paths_in(tmp_path / "orders-0")] == ["file"]
    assert is_directory(tmp_path / "orders-0")
    assert not is_directory(tmp_path / "other-0")
    assert refused(tmp_path / "other-0" / "file") == errno.ELOOP
    with pytest.raises(OSError, match="only one to a directory of the same name"):
        paths_in(tmp_path / "other-0")
    if os.geteuid() == 0:
        os.lchown(tmp_path / "orders-0", STRANGER, STRANGER)
        assert refused(tmp_path / "orders-0" / "file") == errno.ELOOP


def test_nothing_is_changed_through_a_linked_directory(tmp_path, moved):
    link, disk = tmp_path / "orders-0", RealDisk()
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


@pytest.mark.parametrize("plant", [Path.hardlink_to, Path.symlink_to])
def test_a_temporary_file_that_was_there_is_not_written_to(tmp_path, plant):
    victim, temporary = tmp_path / "victim", tmp_path / "checkpoint.tmp"
    victim.write_text("precious")
    plant(temporary, victim)
    replace_file(RealDisk(), tmp_path / "checkpoint", b"0\n")
    assert victim.read_text() == "precious"
    assert (tmp_path / "checkpoint").read_bytes() == b"0\n"
    assert not (tmp_path / "checkpoint").is_symlink()


def test_nothing_below_a_named_directory_leads_elsewhere(tmp_path):
    root = tmp_path / "tier"
    (root / "dir").mkdir(parents=True)
    (root / "dir" / "file").write_text("here")
    (root / "link").symlink_to("dir")
    (root / "dir" / "link").symlink_to("file")
    os.mkfifo(root / "dir" / "fifo")

    def error_of(name):
        try:
            os.close(open_below(root, name, os.O_RDONLY))
        except OSError as error:
            return error.errno
        return None

    assert error_of("dir/file") is None
    found = {name: error_of(name) for name in ("link/file", "dir/link", "dir/fifo", "dir", "../tier/dir/file", "none")}
    assert found == {
        "link/file": errno.ENOTDIR, "dir/link": errno.ELOOP, "dir/fifo": errno.EINVAL, "dir": errno.EINVAL,
        "../tier/dir/file": errno.EINVAL, "none": errno.ENOENT,
    }  # fmt: skip


@as_root
def test_a_hard_link_to_another_users_file_shows_nothing_that_the_owner_could_not_read(tmp_path):
    directory, secret = tmp_path / "dir", tmp_path / "secret"
    directory.mkdir()
    secret.write_text("secret")
    os.chown(directory, STRANGER, STRANGER)
    (directory / "file").hardlink_to(secret)
    for mode, reading in ((0o600, errno.EACCES), (0o640, errno.EACCES), (0o644, None)):
        secret.chmod(mode)
        assert refused(directory / "file") == reading
        assert refused(directory / "file", os.O_RDWR) == errno.EACCES
    secret.chmod(0o640)
    with pytest.raises(PermissionError, match="may not read it"):
        open_below(tmp_path, "dir/file", os.O_RDONLY)
    os.chown(secret, 0, STRANGER)  # readable to the owner's group
    assert refused(directory / "file") is None


@as_root
def test_what_root_makes_belongs_to_the_directorys_owner(tmp_path):
    disk = RealDisk()
    for mode, file_mode in ((0o700, 0o600), (0o750, 0o640), (0o755, 0o644)):
        directory = tmp_path / f"{mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        os.chown(directory, STRANGER, STRANGER + 1)
        disk.open(directory / "file", create=True).close()
        replace_file(disk, directory / "checkpoint", b"")
        disk.mkdir(directory / "t-0")
        for name in ("file", "checkpoint"):
            status = (directory / name).stat()
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (STRANGER, STRANGER + 1, file_mode)
        assert (directory / "t-0").stat().st_uid == STRANGER
        disk.open(directory / "file").close()  # it can be written to afterwards, too


@as_root
def test_a_directory_gets_the_owner_of_the_one_that_it_was_made_in(tmp_path, monkeypatch):
    """The owner of the directory may replace it, and what root has made in it, between any two steps."""
    directory, other = tmp_path / "log", tmp_path / "other"
    for place in (directory, other):
        place.mkdir()
    os.chown(directory, STRANGER, STRANGER)
    status_of = Path.stat

    def replaced(path, *, follow_symlinks=True):
        if path == directory and not (tmp_path / "away").exists():
            directory.rename(tmp_path / "away")
            directory.symlink_to(other)
        return status_of(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", replaced)
    make_directory(directory / "t-0")
    monkeypatch.undo()
    (owned,) = (path for path in (directory / "t-0", tmp_path / "away" / "t-0") if path.exists())
    assert (owned.stat().st_uid, owned.stat().st_gid) == (STRANGER, STRANGER)


@as_root
def test_no_file_is_given_away_in_the_place_of_a_new_directory(tmp_path, monkeypatch):
    directory, secret = tmp_path / "log", tmp_path / "secret"
    directory.mkdir()
    secret.touch()
    os.chown(directory, STRANGER, STRANGER)
    make = os.mkdir

    def replaced(path, mode=0o777, *, dir_fd=None):
        make(path, mode, dir_fd=dir_fd)
        os.rmdir(path, dir_fd=dir_fd)
        os.link(secret, path, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", replaced)
    with pytest.raises(OSError, match="Not a directory"):
        make_directory(directory / "t-0")
    assert secret.stat().st_uid == 0


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
        assert refused(log_dir / "linked") == errno.ELOOP
        with pytest.raises(OSError, match="symbolic link"):
            os.close(open_quietly(shadow / "linked"))
    assert refused(shadow / "file") == errno.ELOOP


def test_a_person_may_name_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert real_place(tmp_path / "link") == tmp_path / "real"
    assert real_place(tmp_path / "link" / "below") == tmp_path / "real" / "below"
    assert real_place(Path("relative/log")) == Path("relative/log")


# A LogFile is one inode: read wherever Kafka has renamed it to, and never another file of its name.

CONTENT = bytes(range(256)) * 20


@pytest.fixture
def path(tmp_path):
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(CONTENT)
    return path


def is_gone(file):
    for use in (lambda: file.read(0, 4), lambda: file.read_each([0], 4)):
        with pytest.raises(SegmentGone):
            use()
    return True


@pytest.mark.parametrize("most", [None, 100])
def test_read(path, monkeypatch, most):
    """Also where the kernel gives less than was asked for, as it does above 2 GiB."""
    pread, preadv = os.pread, os.preadv
    if most:
        monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, most), at))
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:most]], at))
    file, end = LogFile(path), len(CONTENT)
    for position, size in ((3, 10), (10, 1000), (end - 4, 10), (end - 150, 1000), (end + 4, 10), (0, 0)):
        expected = CONTENT[position : position + size]
        assert file.read(position, size) == expected
        buffer = bytearray(size + 6)
        assert file.read(position, size, buffer) == expected
        assert buffer == expected + bytes(len(buffer) - len(expected))
    positions = [300, 0, end - 4, end + 4]
    assert file.read_each(positions, 10) == [CONTENT[at : at + 10] for at in positions]


def test_a_file_is_followed_through_its_names(path):
    """From swap to live to deleted, also by two steps between two reads; another file of the name is not it."""
    swap, deleted = (path.with_name(path.name + suffix) for suffix in (".swap", ".deleted"))
    path.rename(swap)
    file, skipping = LogFile(swap), LogFile(swap)
    swap.rename(path)
    assert file.read(0, 4) == CONTENT[:4]
    assert file.path == path
    path.rename(deleted)
    path.write_bytes(b"another")
    assert file.read(0, 4) == skipping.read(0, 4) == CONTENT[:4]
    assert file.path == deleted
    assert file.stat().st_size == len(CONTENT)
    assert LogFile(deleted, file.identity).read(0, 4) == CONTENT[:4]
    deleted.unlink()
    assert is_gone(file)
    with pytest.raises(SegmentGone):
        file.stat()


def test_another_file_of_the_name_is_not_read(path):
    file = LogFile(path)
    other = path.with_name("other")
    other.write_bytes(b"another file, under the same name")
    other.rename(path)
    assert is_gone(file)
    file = LogFile(path)
    path.parent.rename(path.parent.with_name("elsewhere"))
    assert is_gone(file)


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_fixed_file_is_read_only_as_it_was(path):
    before = open_descriptors()
    file = LogFile(path)
    os.utime(path, ns=(1_600_000_000_500_000_000,) * 2)
    told = []
    file.fix(path.stat(), lambda: told.append(True))
    assert file.is_as_fixed(path.stat())
    assert file.read(0, 4) == CONTENT[:4]
    renamed = path.rename(path.with_name(path.name + ".deleted"))
    assert file.read(0, 4) == CONTENT[:4]
    with renamed.open("r+b") as content:
        content.write(b"others")
    assert renamed.stat().st_ino == file.identity.inode
    assert not file.is_as_fixed(renamed.stat())
    for use in (lambda: file.read(0, 4), file.stat):
        with pytest.raises(SegmentGone, match="written over"):
            use()
    assert told == [True, True]
    assert open_descriptors() == before


@pytest.mark.parametrize(("ns", "proof"), [(0, False), (1, True)])
def test_whole_seconds_prove_nothing_of_a_file_that_was_written_just_now(path, ns, proof):
    second = int(time.time())
    os.utime(path, ns=(second * 1_000_000_000 + ns,) * 2)
    file = LogFile(path)
    file.fix(path.stat())
    assert file.is_as_fixed(path.stat()) == proof
    assert file.read(0, 4) == CONTENT[:4]


def test_no_descriptor_is_kept_and_the_access_time_is_left_alone(path):
    os.utime(path, (1_000_000_000, 1_500_000_000))
    before = open_descriptors()
    file = LogFile(path)
    for _ in range(20):
        file.read(0, 100)
    assert is_gone(LogFile(path, FileIdentity(0, 0)))
    assert open_descriptors() == before
    os.close(open_quietly(path))
    with open(path, "rb", opener=open_quietly) as content:
        content.read()
    assert path.stat().st_atime == 1_000_000_000


def test_other_owners_files_are_read_all_the_same(path, monkeypatch):
    """Only a file's owner may use O_NOATIME; everybody else gets EPERM for it."""
    real = os.open
    flags_seen = []

    def refuse(place, flags, mode=0o777, *, dir_fd=None):
        if not flags & os.O_PATH:
            flags_seen.append(flags)
        if flags & os.O_NOATIME:
            raise PermissionError(1, "Operation not permitted", place)
        return real(place, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(log_file.os, "open", refuse)
    file = LogFile(path)
    assert file.read(0, 4) == CONTENT[:4]
    assert file.read(4, 4) == CONTENT[4:8]
    os.close(open_quietly(path))
    # A LogFile tries it once only.
    assert [bool(flags & os.O_NOATIME) for flags in flags_seen] == [True, False, False, True, False]


# What tells a partition's directory from a later one of the same name.


def test_a_directory_is_itself(tmp_path):
    first = DirIdentity.of(tmp_path)
    (tmp_path / "file").touch()
    assert DirIdentity.of(tmp_path) == first
    shown = int(subprocess.run(["stat", "-c", "%W", tmp_path], capture_output=True, check=True).stdout)
    assert (0 if first.born_ns is None else first.born_ns // 1_000_000_000) == shown  # when it was made
    assert DirIdentity.of(Path("/proc/self")).born_ns is None  # of a file system that keeps no such times
    for place, error in (("none", FileNotFoundError), ("file/none", NotADirectoryError)):
        with pytest.raises(error):
            DirIdentity.of(tmp_path / place)
    # Its topic's id may come later.
    metadata = tmp_path / names.PARTITION_METADATA
    metadata.write_bytes(b"rubbish")  # which tells nothing
    assert DirIdentity.of(tmp_path).topic_id is None
    topic_id = partition_metadata.random_id()
    metadata.write_bytes(partition_metadata.encode(topic_id))
    for place in (metadata, tmp_path):
        os.utime(place, ns=(1, 1))
    now = DirIdentity.of(tmp_path)
    assert now == first._replace(topic_id=topic_id) == first.with_known(now) == now.with_known(first)
    assert first.with_known(now._replace(born_ns=None)).born_ns == first.born_ns
    times = {(place.stat().st_atime_ns, place.stat().st_mtime_ns) for place in (metadata, tmp_path)}
    assert times == {(1, 1)}  # looking changes nothing


def test_each_of_the_facts_tells():
    one = DirIdentity(1, 2, 3, "id")
    assert one.may_be(one)
    for changed in ("device", "inode", "born_ns", "topic_id"):
        other = one._replace(**{changed: "another" if changed == "topic_id" else 9})
        assert not one.may_be(other)
        assert one.may_be_seen_elsewhere_as(other) == (changed in ("device", "inode"))
        if changed in ("born_ns", "topic_id"):
            assert one.may_be(one._replace(**{changed: None}))


# `.lock` against other processes and against a second opening in the same one.

HOLD = """
import sys
from pathlib import Path
from storage.files.dir_lock import DirLock, holder
from storage.files.disk import RealDisk
print(holder(Path(sys.argv[1])), flush=True)
lock = DirLock(RealDisk(), Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def hold_elsewhere(directory):
    command = [sys.executable, "-c", HOLD, str(directory)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    return process, process.stdout.readline().strip(), process.stdout.readline().strip()


def test_another_process_is_refused_and_named(tmp_path):
    process, found, locked = hold_elsewhere(tmp_path)
    with process:
        assert (found, locked) == ("None", "locked")
        assert holder(tmp_path) == process.pid
        with pytest.raises(LogLocked, match=f"process {process.pid}"):
            DirLock(RealDisk(), tmp_path)
        process.kill()
    assert (tmp_path / ".lock").exists()
    assert holder(tmp_path) is None  # a killed holder leaves a file, but no lock
    lock = DirLock(RealDisk(), tmp_path)
    assert holder(tmp_path) == os.getpid()
    with pytest.raises(LogLocked, match=f"process {os.getpid()}"):  # which does not lose the lock
        DirLock(RealDisk(), tmp_path)
    process, found, locked = hold_elsewhere(tmp_path)
    assert (found, locked) == (str(os.getpid()), "")
    assert f"process {os.getpid()}" in process.communicate()[1]
    lock.release()


def test_release_removes_the_file_and_may_be_repeated(tmp_path):
    lock = DirLock(RealDisk(), tmp_path)
    lock.release()
    assert not (tmp_path / ".lock").exists()
    lock.release()
    again = DirLock(RealDisk(), tmp_path)
    lock.release()  # must not take away the lock of the new owner
    assert holder(tmp_path) == os.getpid()
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").touch()
    again.release()
    assert (tmp_path / ".lock").exists(), "a file that is not ours must stay"


# Copies: what is copied, and how where the kernel cannot.


@pytest.mark.parametrize("error", [None, errno.EXDEV, errno.ENOSYS, errno.ENOSPC])
def test_copy(tmp_path, monkeypatch, error):
    """Within the kernel; through memory where it refuses, for example between two file systems."""

    def refuses(*_):
        raise OSError(error, os.strerror(error))

    if error is not None:
        monkeypatch.setattr(os, "copy_file_range", refuses)
    data = os.urandom(20 << 20)
    (tmp_path / "source").write_bytes(data)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        disk = RealDisk()
        if error == errno.ENOSPC:
            with pytest.raises(OSError, match="No space left"):
                disk.copy(fd, tmp_path / "target", 4)
            return
        for size in (len(data), 9_000_001, 0, len(data) + 1):
            assert disk.copy(fd, tmp_path / "target", size) == min(size, len(data))
            assert (tmp_path / "target").read_bytes() == data[:size]
            (tmp_path / "target").unlink()
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
