"""The errno of each system call that reaches a mount, after the cases of pjdfstest: kafkafs/CONTRACT.md, "Errors".

In a mount of our own directory, in one of a stopped broker's (a guest's), and in a read-only one. What the kernel
decides by itself, whatever is mounted, is not here.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from pathlib import Path

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


EROFS, EPERM, ENOENT, EEXIST = errno.EROFS, errno.EPERM, errno.ENOENT, errno.EEXIST
EINVAL, ENOTEMPTY, ENOTSUP = errno.EINVAL, errno.ENOTEMPTY, errno.ENOTSUP
REFUSED = (EPERM, EPERM, EROFS)
ACCEPTED = (OK, OK, ENOENT)  # there is no @append in a read-only mount
LONG, LONGEST_TOPIC = "n" * 256, "n" * 249

# A call below the mountpoint, and its answer: one errno for all mounts, or one for each.
CASES = {
    # open(2)
    "open a view to read": (opening(VIEW, os.O_RDONLY), OK),
    "open a view to write": (opening(VIEW, os.O_WRONLY), EROFS),
    "open a view with O_TRUNC": (opening(VIEW, os.O_RDONLY | os.O_TRUNC), EROFS),
    "open a segment to write": (opening(SEGMENT, os.O_RDWR), EROFS),
    "open @help to write": (opening("@help", os.O_WRONLY), EROFS),
    "open with O_CREAT what exists": (opening(VIEW, os.O_RDONLY | os.O_CREAT), OK),
    "open with O_CREAT|O_EXCL what exists": (opening(VIEW, os.O_RDWR | os.O_CREAT | os.O_EXCL), EEXIST),
    "create a file in the root": (opening("file", os.O_WRONLY | os.O_CREAT), REFUSED),
    "create a file in a topic": (opening("t/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL), REFUSED),
    "create a range": (opening("t/0/offsets/x-y.txt", os.O_WRONLY | os.O_CREAT), REFUSED),
    "create a segment": (opening("t/0/segments/x.log", os.O_WRONLY | os.O_CREAT), REFUSED),
    "create a committed offset": (opening("@groups/9", os.O_WRONLY | os.O_CREAT), REFUSED),
    "open a directory": (opening("t", os.O_RDONLY), OK),
    "open @append to write": (opening(APPEND, os.O_WRONLY), ACCEPTED),
    # names
    "a name that is not there": (on("t/0/nothing", os.stat), ENOENT),
    "a topic that is not there": (on("no-such-topic/0", os.stat), ENOENT),
    "a partition that is not there": (on("t/7/messages.txt", os.stat), ENOENT),
    "a name of 255 bytes": (on("n" * 255, os.stat), ENOENT),
    "a name of 256 bytes": (on(LONG, os.stat), errno.ENAMETOOLONG),
    "a name of 256 bytes in a directory": (on(f"t/0/offsets/{LONG}", os.stat), errno.ENAMETOOLONG),
    "create a name of 256 bytes": (opening(LONG, os.O_WRONLY | os.O_CREAT), errno.ENAMETOOLONG),
    "mkdir of a name of 256 bytes": (on(LONG, os.mkdir), errno.ENAMETOOLONG),
    "bytes that are not UTF-8": (lambda root: os.open(os.fsencode(root) + b"/t/\xff", os.O_PATH), ENOENT),
    # mkdir, rmdir
    "mkdir of a topic": (on("made", os.mkdir), (OK, EPERM, EROFS)),
    "mkdir of what exists": (on("t", os.mkdir), EEXIST),
    "mkdir of a bad name": (on("a b", os.mkdir), (EINVAL, EPERM, EROFS)),
    "mkdir of a name with @": (on("@mine", os.mkdir), (EINVAL, EPERM, EROFS)),
    "mkdir of a topic of 249 letters": (on(LONGEST_TOPIC, os.mkdir), (OK, EPERM, EROFS)),
    "mkdir of a topic of 250 letters": (on(LONGEST_TOPIC + "n", os.mkdir), (EINVAL, EPERM, EROFS)),
    "mkdir of a name that collides": (on("with.dot", os.mkdir), (EINVAL, EPERM, EROFS)),
    "mkdir of the cluster's metadata": (on("__cluster_metadata", os.mkdir), REFUSED),
    "mkdir of __consumer_offsets": (on("__consumer_offsets", os.mkdir), REFUSED),
    "mkdir of a partition": (on("t/1", os.mkdir), REFUSED),
    "mkdir in a partition": (on("t/0/x", os.mkdir), REFUSED),
    "mkdir of a group": (on("@groups/new", os.mkdir), REFUSED),
    "rmdir of a topic with messages": (on("t", os.rmdir), (ENOTEMPTY, EPERM, EROFS)),
    "rmdir of an empty topic": (on("empty", os.rmdir), (OK, EPERM, EROFS)),
    "rmdir of a partition": (on("t/0", os.rmdir), REFUSED),
    "rmdir of offsets": (on("t/0/offsets", os.rmdir), REFUSED),
    # unlink, rename, link and whatever makes files of other kinds
    "unlink of a view": (on(VIEW, os.unlink), REFUSED),
    "unlink of @append": (on(APPEND, os.unlink), REFUSED),
    "rename of a view": (between(os.rename, VIEW, "t/0/other"), REFUSED),
    "rename of a topic": (between(os.rename, "t", "other"), REFUSED),
    "link": (between(os.link, VIEW, "t/0/other"), REFUSED),
    "symlink": (on("t/link", lambda path: Path(path).symlink_to("0")), REFUSED),
    "mkfifo": (on("t/fifo", os.mkfifo), REFUSED),
    "mknod": (on("t/device", os.mknod, 0o600 | stat.S_IFCHR, os.makedev(1, 3)), REFUSED),
    # attributes
    "truncate of a view": (on(VIEW, os.truncate, 0), EROFS),
    "truncate of @append": (on(APPEND, os.truncate, 0), ACCEPTED),
    "chmod of a view": (on(VIEW, os.chmod, 0o600), EROFS),
    "chmod of a topic": (on("t", os.chmod, 0o700), EROFS),
    "chmod of @append": (on(APPEND, os.chmod, 0o600), ACCEPTED),
    "chown of a view": (on(VIEW, os.chown, 1, 1), EROFS),
    "chown of @append": (on(APPEND, os.chown, 1, 1), ACCEPTED),
    "utimens of a view": (on(VIEW, os.utime), EROFS),
    "utimens of the root": (on("", os.utime), EROFS),
    "utimens of @append": (on(APPEND, os.utime), ACCEPTED),
    "getxattr": (on(VIEW, os.getxattr, "user.kafka.topic"), ENOTSUP),
    "getxattr of a directory": (on("t", os.getxattr, "user.x"), ENOTSUP),
    "setxattr of a view": (on(VIEW, os.setxattr, "user.x", b"y"), EROFS),
    "setxattr of @append": (on(APPEND, os.setxattr, "user.x", b"y"), (ENOTSUP, ENOTSUP, ENOENT)),
    "removexattr of a view": (on(VIEW, os.removexattr, "user.kafka.topic"), EROFS),
    # reading
    "read behind the end": (opening(VIEW, os.O_RDONLY, lambda fd: os.pread(fd, 1, 10**6)), OK),
    "a shared map of a growing file": (opening(VIEW, os.O_RDONLY, shared_map), errno.ENODEV),
    "a private map of a growing file": (opening(VIEW, os.O_RDONLY, private_map), OK),
    "a shared map of a sealed range": (opening("t/0/offsets/0-0.txt", os.O_RDONLY, shared_map), OK),
    "ioctl": (opening(VIEW, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, 0x5401, bytes(64))), errno.ENOTTY),
    "fallocate": (opening(APPEND, os.O_WRONLY, allocate), (errno.EOPNOTSUPP, errno.EOPNOTSUPP, ENOENT)),
    "fsync of a view": (opening(VIEW, os.O_RDONLY, os.fsync), OK),
    "fsync of a directory": (opening("t", os.O_RDONLY, os.fsync), OK),
}


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


@pytest.fixture(scope="module", params=MODES)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def root(mode, tmp_path_factory):
    """The mountpoint. The read-only mount is of a directory of our own."""
    path = tmp_path_factory.mktemp(mode)
    log_dir = (brokers if mode == "guest" else own)(path / "logs")
    with mounted(log_dir, path / "mnt", write=mode != "read-only") as mount, killed_after(mount.process):
        yield mount.path


@pytest.mark.parametrize("case", CASES)
def test_errno(root, mode, case):
    call, answer = CASES[case]
    try:
        call(root)
        number = OK
    except OSError as error:
        number = error.errno
    expected = answer if isinstance(answer, int) else answer[MODES.index(mode)]
    assert errno.errorcode.get(number, number) == errno.errorcode.get(expected, expected)
    assert (root / VIEW).read_bytes() == b"one\ntwo\n"


def test_modes(root, mode):
    writable = mode != "read-only"
    modes = dict.fromkeys(("t", "t/0", "t/0/offsets", "@groups"), 0o555)
    modes |= dict.fromkeys(("@help", "@status.json", VIEW, SEGMENT, "t/0/offsets/0-0.txt", "t/0/@info.json"), 0o444)
    modes |= {"": 0o755 if writable else 0o555, "t/@config": 0o644 if writable else 0o444}
    if writable:
        modes |= {APPEND: 0o222, "t/@append.jsonl": 0o222}
    assert {path: stat.S_IMODE((root / path).stat().st_mode) for path in modes} == modes
    assert os.statvfs(root).f_namemax == 255
    assert bool(os.statvfs(root).f_flag & os.ST_RDONLY) == (not writable)
