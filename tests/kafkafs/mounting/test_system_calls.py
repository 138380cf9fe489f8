"""System calls that a file system must answer, and the errno of each, after the cases of pjdfstest.

In a mount of our own directory, in one of a stopped broker's (a guest's), and in a read-only one. The table that users
rely on is in kafkafs/CONTRACT.md, "Errors".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, build_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.owned_dirs import HastyDisk, append
from tests.support.serving_processes import killed_after

pytestmark = requires_fuse

MODES = ("own", "guest", "read-only")
VIEW = "t/0/messages.txt"
SEGMENT = "t/0/segments/00000000000000000000.log"
APPEND = "t/0/@append"
OK = 0

Call = Callable[[Path], object]


class Case(NamedTuple):
    """A call below the mountpoint, and what it is answered: one errno for all mounts, or one for each."""

    name: str
    call: Call
    answer: int | tuple[int, int, int]

    def in_mode(self, mode):
        return self.answer if isinstance(self.answer, int) else self.answer[MODES.index(mode)]


def opening(path, flags, then=lambda _: None):
    """open(2), and what is done with the descriptor."""

    def call(root):
        fd = os.open(root / path, flags, 0o644)
        try:
            return then(fd)
        finally:
            os.close(fd)

    return call


def on(path, what, *arguments):
    """A call with a path."""
    return lambda root: what(f"{root}/{path}", *arguments)


def between(what, source, target):
    """A call with two paths of the tree."""
    return lambda root: what(f"{root}/{source}", f"{root}/{target}")


def outside(what, source):
    """A call from the tree to the directory that holds the mountpoint."""
    return lambda root: what(f"{root}/{source}", f"{root.parent}/elsewhere")


def bind_socket(path):
    """Through a descriptor of its directory: an address has room for 107 bytes, and temporary paths are longer."""
    directory = os.open(Path(path).parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(f"/proc/self/fd/{directory}/{Path(path).name}")
    finally:
        os.close(directory)


def allocate(fd):
    """fallocate(2). posix_fallocate(3) writes zeros where that is refused, and zeros are a line here."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(100)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def shared_map(fd):
    mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_READ).close()


def private_map(fd):
    with mmap.mmap(fd, 7, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        assert mapped[:] == b"one\ntwo"


def looped(path):
    """Through two symbolic links outside of the tree, which lead to each other."""

    def call(root):
        links = [root.parent / "loop-a", root.parent / "loop-b"]
        try:
            links[0].symlink_to(links[1])
            links[1].symlink_to(links[0])
            os.stat(links[0] / path)  # noqa: PTH116
        finally:
            for link in links:
                link.unlink(missing_ok=True)

    return call


def linked(root):
    """A symbolic link outside of the tree leads into it."""
    link = root.parent / "link"
    link.symlink_to(root / VIEW)
    try:
        assert link.read_bytes() == b"one\ntwo\n"
    finally:
        link.unlink()


EROFS, EPERM, ENOENT, EEXIST = errno.EROFS, errno.EPERM, errno.ENOENT, errno.EEXIST
EINVAL, EISDIR, ENOTDIR, ENOTEMPTY = errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY
REFUSED = (EPERM, EPERM, EROFS)
LONG, LONGEST_TOPIC = "n" * 256, "n" * 249

CASES = [
    # open(2)
    Case("open a view to read", opening(VIEW, os.O_RDONLY), OK),
    Case("open a view to write", opening(VIEW, os.O_WRONLY), EROFS),
    Case("open a view to read and write", opening(VIEW, os.O_RDWR), EROFS),
    Case("open a view with O_TRUNC", opening(VIEW, os.O_WRONLY | os.O_TRUNC), EROFS),
    Case("open a view with O_APPEND", opening(VIEW, os.O_WRONLY | os.O_APPEND), EROFS),
    Case("open a segment to write", opening(SEGMENT, os.O_RDWR), EROFS),
    Case("open @help to write", opening("@help", os.O_WRONLY), EROFS),
    Case("open with O_CREAT what exists", opening(VIEW, os.O_RDONLY | os.O_CREAT), OK),
    Case("open with O_CREAT|O_EXCL what exists", opening(VIEW, os.O_RDWR | os.O_CREAT | os.O_EXCL), EEXIST),
    Case("create a file in the root", opening("file", os.O_WRONLY | os.O_CREAT), REFUSED),
    Case("create a file in a topic", opening("t/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL), REFUSED),
    Case("create a file in a partition", opening("t/0/file", os.O_WRONLY | os.O_CREAT), REFUSED),
    Case("create a range", opening("t/0/offsets/x-y.txt", os.O_WRONLY | os.O_CREAT), REFUSED),
    Case("create a segment", opening("t/0/segments/x.log", os.O_WRONLY | os.O_CREAT), REFUSED),
    Case("open a directory to read", opening("t", os.O_RDONLY), OK),
    Case("open a directory to write", opening("t", os.O_WRONLY), EISDIR),
    Case("open a directory with O_CREAT", opening("t", os.O_RDONLY | os.O_CREAT), EISDIR),
    Case("read a directory", opening("t", os.O_RDONLY, lambda fd: os.read(fd, 1)), EISDIR),
    Case("open a file with O_DIRECTORY", opening(VIEW, os.O_RDONLY | os.O_DIRECTORY), ENOTDIR),
    Case("open a directory with O_DIRECTORY", opening("t/0/offsets", os.O_RDONLY | os.O_DIRECTORY), OK),
    Case("open @append to write", opening(APPEND, os.O_WRONLY), (OK, OK, ENOENT)),
    Case("open @append with O_CREAT|O_EXCL", opening(APPEND, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
         (EEXIST, EEXIST, EROFS)),
    Case("write to what is open to read", opening(VIEW, os.O_RDONLY, lambda fd: os.write(fd, b"x")), errno.EBADF),
    Case("read what is open to write", opening(APPEND, os.O_WRONLY, lambda fd: os.read(fd, 1)),
         (errno.EBADF, errno.EBADF, ENOENT)),
    # names
    Case("a name that is not there", on("t/0/nothing", os.stat), ENOENT),
    Case("a topic that is not there", on("no-such-topic/0", os.stat), ENOENT),
    Case("a partition that is not there", on("t/7/messages.txt", os.stat), ENOENT),
    Case("an empty name", lambda _: os.listdir(""), ENOENT),  # noqa: PTH208 - a Path is never empty
    Case("a name of 255 bytes", on("n" * 255, os.stat), ENOENT),
    Case("a name of 256 bytes", on(LONG, os.stat), errno.ENAMETOOLONG),
    Case("a name of 256 bytes in a directory", on(f"t/0/offsets/{LONG}", os.stat), errno.ENAMETOOLONG),
    Case("a directory of 256 bytes", on(f"{LONG}/0", os.stat), errno.ENAMETOOLONG),
    Case("open a name of 256 bytes", opening(f"t/{LONG}", os.O_RDONLY), errno.ENAMETOOLONG),
    Case("create a name of 256 bytes", opening(LONG, os.O_WRONLY | os.O_CREAT), errno.ENAMETOOLONG),
    Case("mkdir of a name of 256 bytes", on(LONG, os.mkdir), errno.ENAMETOOLONG),
    Case("a path of 4096 bytes", on("t/../" * 900, os.stat), errno.ENAMETOOLONG),
    Case("a file as a directory", on(f"{VIEW}/x", os.stat), ENOTDIR),
    Case("a file with a slash behind it", on(f"{VIEW}/", os.stat), ENOTDIR),
    Case("chdir to a file", on(VIEW, lambda path: os.close(os.open(path, os.O_PATH | os.O_DIRECTORY))), ENOTDIR),
    Case("a loop of symbolic links", looped("t"), errno.ELOOP),
    Case("a symbolic link into the tree", linked, OK),
    Case("readlink of a file", on(VIEW, os.readlink), EINVAL),
    Case("bytes that are not UTF-8", lambda root: os.open(os.fsencode(root) + b"/t/\xff", os.O_PATH), ENOENT),
    # mkdir, rmdir
    Case("mkdir of a topic", on("made", os.mkdir), (OK, EPERM, EROFS)),
    Case("mkdir of what exists", on("t", os.mkdir), EEXIST),
    Case("mkdir of a file that exists", on("@help", os.mkdir), EEXIST),
    Case("mkdir of a bad name", on("a b", os.mkdir), (EINVAL, EPERM, EROFS)),
    Case("mkdir of a name with @", on("@mine", os.mkdir), (EINVAL, EPERM, EROFS)),
    Case("mkdir of a topic of 249 letters", on(LONGEST_TOPIC, os.mkdir), (OK, EPERM, EROFS)),
    Case("mkdir of a topic of 250 letters", on(LONGEST_TOPIC + "n", os.mkdir), (EINVAL, EPERM, EROFS)),
    Case("mkdir of a name that collides", on("with.dot", os.mkdir), (EINVAL, EPERM, EROFS)),
    Case("mkdir of the cluster's metadata", on("__cluster_metadata", os.mkdir), REFUSED),
    Case("mkdir of __consumer_offsets", on("__consumer_offsets", os.mkdir), REFUSED),
    Case("mkdir of __transaction_state", on("__transaction_state", os.mkdir), REFUSED),
    Case("mkdir of a partition", on("t/1", os.mkdir), REFUSED),
    Case("mkdir in a partition", on("t/0/x", os.mkdir), REFUSED),
    Case("mkdir below what is not there", on("nothing/x", os.mkdir), ENOENT),
    Case("mkdir below a file", on(f"{VIEW}/x", os.mkdir), ENOTDIR),
    Case("rmdir of a topic with messages", on("t", os.rmdir), (ENOTEMPTY, EPERM, EROFS)),
    Case("rmdir of an empty topic", on("empty", os.rmdir), (OK, EPERM, EROFS)),
    Case("rmdir of a partition", on("t/0", os.rmdir), REFUSED),
    Case("rmdir of offsets", on("t/0/offsets", os.rmdir), REFUSED),
    Case("rmdir of a file", on(VIEW, os.rmdir), (ENOTDIR, ENOTDIR, EROFS)),
    Case("rmdir of nothing", on("nothing", os.rmdir), (ENOENT, ENOENT, EROFS)),
    Case("rmdir of .", on("t/.", os.rmdir), EINVAL),
    Case("rmdir of ..", on("t/..", os.rmdir), ENOTEMPTY),
    Case("rmdir of the mountpoint", lambda root: root.rmdir(), errno.EBUSY),
    # unlink, rename, link and whatever makes files of other kinds
    Case("unlink of a view", on(VIEW, os.unlink), REFUSED),
    Case("unlink of a segment", on(SEGMENT, os.unlink), REFUSED),
    Case("unlink of @append", on(APPEND, os.unlink), REFUSED),
    Case("unlink of a directory", on("t", os.unlink), (EISDIR, EISDIR, EROFS)),
    Case("unlink of nothing", on("t/0/nothing", os.unlink), (ENOENT, ENOENT, EROFS)),
    Case("rename of a view", between(os.rename, VIEW, "t/0/other"), REFUSED),
    Case("rename of a topic", between(os.rename, "t", "other"), REFUSED),
    Case("rename to what exists", between(os.rename, VIEW, "t/0/messages.jsonl"), REFUSED),
    Case("rename of nothing", between(os.rename, "t/0/nothing", "t/0/other"), (ENOENT, ENOENT, EROFS)),
    Case("rename of a file to a directory", between(os.rename, VIEW, "t/0/offsets"), (EISDIR, EISDIR, EROFS)),
    Case("rename of a directory to a file", between(os.rename, "t/0/offsets", VIEW), (ENOTDIR, ENOTDIR, EROFS)),
    Case("rename of a directory into itself", between(os.rename, "t", "t/0/t"), (EINVAL, EINVAL, EROFS)),
    Case("rename out of the tree", outside(os.rename, VIEW), errno.EXDEV),
    Case("link", between(os.link, VIEW, "t/0/other"), REFUSED),
    Case("link of a directory", between(os.link, "t", "other"), REFUSED),
    Case("link out of the tree", outside(os.link, VIEW), errno.EXDEV),
    Case("symlink", on("t/link", lambda path: Path(path).symlink_to("0")), REFUSED),
    Case("symlink to what exists", on(VIEW, lambda path: Path(path).symlink_to("0")), EEXIST),
    Case("mkfifo", on("t/fifo", os.mkfifo), REFUSED),
    Case("mkfifo of what exists", on(VIEW, os.mkfifo), EEXIST),
    Case("mknod", on("t/device", os.mknod, 0o600 | stat.S_IFCHR, os.makedev(1, 3)), REFUSED),
    Case("bind of a socket", on("t/socket", bind_socket), REFUSED),
    # attributes
    Case("truncate of a view", on(VIEW, os.truncate, 0), EROFS),
    Case("truncate of a segment", on(SEGMENT, os.truncate, 0), EROFS),
    Case("truncate of a directory", on("t", os.truncate, 0), EISDIR),
    Case("truncate of @append", on(APPEND, os.truncate, 0), (OK, OK, ENOENT)),
    Case("truncate to less than nothing", on(APPEND, os.truncate, -1), EINVAL),
    Case("ftruncate of what is open to read", opening(VIEW, os.O_RDONLY, lambda fd: os.ftruncate(fd, 0)), EINVAL),
    Case("chmod of a view", on(VIEW, os.chmod, 0o600), EROFS),
    Case("chmod of a topic", on("t", os.chmod, 0o700), EROFS),
    Case("chmod of @append", on(APPEND, os.chmod, 0o600), (OK, OK, ENOENT)),
    Case("chown of a view", on(VIEW, os.chown, 1, 1), EROFS),
    Case("chown of @append", on(APPEND, os.chown, 1, 1), (OK, OK, ENOENT)),
    Case("utimens of a view", on(VIEW, os.utime), EROFS),
    Case("utimens of the root", on("", os.utime), EROFS),
    Case("utimens of @append", on(APPEND, os.utime), (OK, OK, ENOENT)),
    Case("getxattr", on(VIEW, os.getxattr, "user.kafka.topic"), errno.ENOTSUP),
    Case("getxattr of a directory", on("t", os.getxattr, "user.x"), errno.ENOTSUP),
    Case("getxattr of another namespace", on(APPEND, os.getxattr, "trusted.x"), (errno.ENOTSUP, errno.ENOTSUP, ENOENT)),
    Case("setxattr of a view", on(VIEW, os.setxattr, "user.x", b"y"), EROFS),
    Case("setxattr of @append", on(APPEND, os.setxattr, "user.x", b"y"), (errno.ENOTSUP, errno.ENOTSUP, ENOENT)),
    Case("removexattr of a view", on(VIEW, os.removexattr, "user.kafka.topic"), EROFS),
    # reading
    Case("read behind the end", opening(VIEW, os.O_RDONLY, lambda fd: os.pread(fd, 1, 10**6)), OK),
    Case("pread before the beginning", opening(VIEW, os.O_RDONLY, lambda fd: os.pread(fd, 1, -1)), EINVAL),
    Case("lseek before the beginning", opening(VIEW, os.O_RDONLY, lambda fd: os.lseek(fd, -1, os.SEEK_SET)), EINVAL),
    Case("a shared map of a growing file", opening(VIEW, os.O_RDONLY, shared_map), errno.ENODEV),
    Case("a private map of a growing file", opening(VIEW, os.O_RDONLY, private_map), OK),
    Case("a shared map of a sealed range", opening("t/0/offsets/0-0.txt", os.O_RDONLY, shared_map), OK),
    Case("ioctl", opening(VIEW, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, 0x5401, bytes(64))), errno.ENOTTY),
    Case("fallocate of @append", opening(APPEND, os.O_WRONLY, allocate), (errno.EOPNOTSUPP, errno.EOPNOTSUPP, ENOENT)),
    Case("fsync of a view", opening(VIEW, os.O_RDONLY, os.fsync), OK),
    Case("fsync of a directory", opening("t", os.O_RDONLY, os.fsync), OK),
]  # fmt: skip


def own(path):
    owned = OwnedDir.open(path, Opening(create=True), disk=HastyDisk())
    for topic in ("t", "empty", "with_dot"):
        owned.create_topic(topic, 1)
    log = owned.log(TopicPartition("t", 0))
    append(log, [b"one"])
    log.roll()
    append(log, [b"two"])
    owned.close()
    return path


def brokers(path):
    return build_log_dir(path, {"t": [[b"one", ROLL, b"two"]], "empty": [[]], "with_dot": [[]]}).path


@pytest.fixture(scope="module")
def mounts(tmp_path_factory):
    """By mode. The read-only one is of a directory of our own."""
    paths = {mode: tmp_path_factory.mktemp(mode) for mode in MODES}
    made = {mode: (brokers if mode == "guest" else own)(path / "logs") for mode, path in paths.items()}
    with (
        mounted(made["own"], paths["own"] / "mnt", write=True) as first,
        mounted(made["guest"], paths["guest"] / "mnt", write=True) as second,
        mounted(made["read-only"], paths["read-only"] / "mnt") as third,
        killed_after(first.process),
        killed_after(second.process),
        killed_after(third.process),
    ):
        yield dict(zip(MODES, (first, second, third), strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_errno(mounts, case, mode):
    root = mounts[mode].path
    try:
        case.call(root)
        found = OK
    except OSError as error:
        if not error.errno:
            raise
        found = error.errno
    wanted = case.in_mode(mode)
    assert errno.errorcode.get(found, "OK") == errno.errorcode.get(wanted, "OK")
    assert (root / VIEW).read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("mode", MODES)
def test_modes(mounts, mode):
    writable = mode != "read-only"
    modes = {
        "": 0o755 if writable else 0o555,
        "t": 0o555,
        "t/0": 0o555,
        "t/0/offsets": 0o555,
        "@groups": 0o555,
        "@help": 0o444,
        "@status.json": 0o444,
        "t/@config": 0o644 if writable else 0o444,
        VIEW: 0o444,
        SEGMENT: 0o444,
        "t/0/offsets/0-0.txt": 0o444,
        "t/0/@info.json": 0o444,
    }
    if writable:
        modes |= {APPEND: 0o222, "t/@append.jsonl": 0o222}
    root = mounts[mode].path
    found = {path: stat.S_IMODE((root / path).stat().st_mode) for path in modes}
    assert found == modes
    assert os.statvfs(root).f_namemax == 255
    assert bool(os.statvfs(root).f_flag & os.ST_RDONLY) == (not writable)
