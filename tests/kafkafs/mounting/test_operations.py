"""The adapter between FUSE and a tree, on a real mount: names, errors, many readers, the end."""

import errno
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("tests.support.libfuse", reason="libfuse is not installed", exc_type=ImportError)

from kafkafs.mounting.inodes import inode
from kafkafs.mounting.operations import Operations, Serving, Traffic
from kafkafs.tree.tree import Tree
from storage.errors import PartitionUnavailable
from tests.kafkafs.mounting.fake_tree import CONTENT, FAILURES
from tests.support.faults import FaultyDisk
from tests.support.mounts import requires_fuse
from tests.support.owned_dirs import opened
from tests.support.serving_processes import fails_with, served_fake

pytestmark = requires_fuse

EXPECTED = b"".join(value + b"\n" for value in CONTENT)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with served_fake(tmp_path_factory.mktemp("fake") / "mnt") as served:
        yield served


@pytest.fixture
def mnt(served):
    return served.path


def test_listing_tells_types_and_inodes(mnt):
    with os.scandir(mnt / "t") as entries:
        listed = {entry.name: (entry.is_dir(follow_symlinks=False), entry.inode()) for entry in entries}
    assert (listed["0"], listed["@config"]) == ((True, inode("/t/0")), (False, inode("/t/@config")))
    assert (mnt / "t/0").stat().st_ino == inode("/t/0")
    found = subprocess.run(["find", mnt / "t/0/segments", "-name", "file-*"], capture_output=True, check=True)
    assert found.stdout.count(b"\n") == 5_000
    # The name that is not UTF-8 is left out.
    assert not [path for path in (mnt / "t/0/segments").iterdir() if not path.name.isprintable()]


@pytest.mark.parametrize("name", FAILURES)
def test_failures_reach_the_reader_and_the_mount_goes_on(mnt, name):
    with (mnt / name).open("rb", buffering=0) as file, fails_with(FAILURES[name][1]):
        file.read(100)
    with fails_with(errno.EIO):
        (mnt / "lookup-bug").stat()
    assert (mnt / "t/0/messages.txt").read_bytes() == EXPECTED


def test_more_readers_than_threads_are_kept(served):
    """More threads than keep their Python state, and then fewer again."""
    with ThreadPoolExecutor(100) as pool:
        for _ in range(3):
            contents = list(pool.map(lambda _: (served.path / "t/0/messages.txt").read_bytes(), range(200)))
            assert contents.count(EXPECTED) == 200
    assert served.process.poll() is None


def test_an_error_of_libfuse_is_no_clean_end(tmp_path):
    with served_fake(tmp_path / "mnt", fails=True) as served:
        with fails_with(errno.ECONNABORTED):
            (served.path / "disconnecting").open("rb")
        served.process.wait(timeout=120)
    assert "short read" in served.messages.read_text()


def test_a_line_that_cannot_be_appended_at_the_unmount_is_a_failure(tmp_path):
    """The kernel may not have told of a close(2) before, and close(2) has returned long ago."""
    opened(tmp_path / "logs").close()
    disk = FaultyDisk(tmp_path / "logs")
    owned = opened(tmp_path / "logs", disk=disk)
    owned.create_topic("t", 1)
    tree = Tree(owned.log_dir, owned=owned)
    serving = Serving(tmp_path, tmp_path, 0, 0)
    operations = Operations(tree, serving, Traffic(), start=lambda: None, stop=lambda: None, writable=tree)
    info = SimpleNamespace(flags=os.O_WRONLY)
    operations.open("/t/@append", info)
    operations.write_from(info.fh, b"half a line")
    assert operations.failure is None
    disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write") else None
    operations.destroy("/")
    assert isinstance(operations.failure, PartitionUnavailable)
    disk.fail = lambda _what, _path: None
    owned.close()
