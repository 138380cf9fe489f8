"""`-o modes=below`: other users of a mount may do what they may do below, and the kernel sees to it."""

import errno
import os
import stat

import pytest

pytest.importorskip("tests.support.libfuse", reason="libfuse is not installed", exc_type=ImportError)

from kafkafs.mounting.modes_below import ModesBelow
from kafkafs.tree.node import NodeKind
from storage.log.log_dir import LogDir
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.mounts import mounted, requires_fuse
from tests.support.other_users import errno_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")

OWNER, MEMBER, STRANGER = 4001, 4002, 4003  # the second is in the owner's group


@pytest.fixture
def log_dir(tmp_path):
    """A directory of OWNER, of which its group may read all but the partition t/1, and others nothing."""
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:-1]:
        if above.stat().st_mode & 0o077 == 0:
            above.chmod(0o711)
    topics = {"t": [Partition([Batch(many(3)), ROLL, Batch(many(2))]), [b"secret"]], "u": [[b"a"]]}
    log_dir = build_log_dir(tmp_path / "logs", topics, broker=False).path
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, OWNER, OWNER)
        path.chmod(0o750 if path.is_dir() else 0o640)
    for log in (log_dir / "t-1").glob("*.log"):
        log.chmod(0o600)
    return log_dir


@requires_fuse
def test_others_may_do_what_they_may_below(log_dir, tmp_path):
    mnt = tmp_path / "mnt"
    messages = mnt / "t" / "0" / "messages.txt"
    with mounted(log_dir, mnt, "-o", "allow_other,modes=below"):
        owner, member, stranger = (OWNER, OWNER), (MEMBER, OWNER), (STRANGER, STRANGER)
        status = messages.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (OWNER, OWNER, 0o440)
        assert errno_as(*member, messages.read_bytes) == 0
        for name in ("t/1/messages.txt", "t/1/offsets/0-0.jsonl", "t/latest.txt", "t/1/@info.json", "t/@config"):
            assert errno_as(*owner, (mnt / name).read_bytes) == 0, name
            assert errno_as(*member, (mnt / name).read_bytes) == errno.EACCES, name
        for name in ("u/0/messages.txt", "@status.json", ""):
            assert errno_as(*stranger, (mnt / name).stat) == (errno.EACCES if name else 0), name
        assert errno_as(*stranger, lambda: list(mnt.iterdir())) == errno.EACCES
        # A change below counts at once.
        (log_dir / "u-0" / f"{0:020}.log").chmod(0o600)
        assert errno_as(*member, (mnt / "u" / "0" / "messages.txt").read_bytes) == errno.EACCES


@requires_fuse
def test_writing_takes_the_right_to_write_below(log_dir, tmp_path):
    mnt = tmp_path / "mnt"

    def append():
        with (mnt / "u" / "0" / "@append").open("wb") as file:
            file.write(b"more\n")

    with mounted(log_dir, mnt, "-o", "allow_other,modes=below", write=True):
        assert errno_as(MEMBER, OWNER, append) == errno.EACCES
        assert errno_as(MEMBER, OWNER, (mnt / "new").mkdir) == errno.EACCES
        assert errno_as(OWNER, OWNER, append) == 0
        for path in (log_dir / "u-0", log_dir):
            path.chmod(0o770)
        for log in (log_dir / "u-0").glob("*.log"):
            log.chmod(0o660)
        assert errno_as(MEMBER, OWNER, append) == 0
        assert errno_as(MEMBER, OWNER, (mnt / "new").mkdir) == 0
        assert (mnt / "u" / "0" / "messages.txt").read_bytes() == b"a\nmore\nmore\n"


def test_owners_that_differ_permit_nothing(log_dir):
    below = ModesBelow(LogDir.open_read_only(log_dir))

    def modes():
        files, directories = ("t/0/messages.txt", "t/latest.txt", "u/0/messages.txt"), ("t/0", "t/keys", "gone/0")
        shown = [below.of(f"/{path}", NodeKind.FILE).mode for path in files]
        return shown + [below.of(f"/{path}", NodeKind.DIRECTORY).mode for path in directories]

    assert modes() == [0o640, 0o600, 0o640, 0o750, 0o750, 0]
    os.chown(log_dir / "t-0" / f"{3:020}.log", STRANGER, OWNER)
    assert modes() == [0, 0, 0o640, 0, 0, 0]
