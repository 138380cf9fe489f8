"""Other messages under the same names, inode numbers included, than the mount has shown before: a topic deleted and
made again, a log cut and written on, while nobody looks or while a reader has the file open."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.files import names, partition_metadata
from storage.format.block import Record
from tests.support.builders import AUTOMATIC, ROLL, Batch, BuiltPartition, Partition, build_log_dir
from tests.support.mounted_logs import txt
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import fails_with, watched
from tests.support.waiting import wait_for

pytestmark = requires_fuse

SEGMENT = 2000  # messages of a segment
VIEWS = ("messages.txt", "offsets/0-1999.txt", "offsets/1500-3500.txt", "offsets/last-100.txt", "time/2020--.txt")
CHUNK = 4096


class Generations:
    """Topic `t`, made again and again with other messages of the same sizes."""

    def __init__(self, path):
        self.path = path
        self.log_dir = path / "logs"
        self.partition = self.build(0)
        shutil.copytree(self.partition.path.parent, self.log_dir)

    def build(self, number, messages=3 * SEGMENT):
        """Another generation, beside the log directory."""
        items = []
        for start in range(0, messages, 500):
            if start and start % SEGMENT == 0:
                items.append(ROLL)
            values = [b"generation %d message %06d %s" % (number, n, b"x" * 900) for n in range(start, start + 500)]
            items.append(Batch([Record(None, value, (), AUTOMATIC) for value in values]))
        metadata = partition_metadata.encode(partition_metadata.random_id())
        spec = Partition(items, extra={names.PARTITION_METADATA: metadata})
        return build_log_dir(self.path / f"generation-{number}", {"t": [spec]})["t", 0]

    def make_again(self, made):
        """Deletes the topic and makes it again with these messages."""
        shutil.rmtree(self.log_dir / "t-0")
        shutil.copytree(made.path, self.log_dir / "t-0", copy_function=shutil.copyfile)
        self.partition = made

    def make_again_with_the_same_inodes(self, made):
        """As `make_again` on a file system that gives out the same inode numbers, and tells no time of birth."""
        target = self.log_dir / "t-0"
        wanted = {path.name for path in made.path.iterdir()}
        for path in target.iterdir():
            if path.name not in wanted:
                path.unlink()
        for path in made.path.iterdir():
            place = target / path.name
            with place.open("r+b" if place.exists() else "wb") as file:
                file.truncate(0)
                file.write(path.read_bytes())
        # What was removed and made shows in the directories' times.
        (target / "x.tmp").touch()
        (target / "x.tmp").unlink()
        (self.log_dir / "x.tmp").touch()
        (self.log_dir / "x.tmp").unlink()
        self.partition = made

    def expected(self, view):
        records = self.partition.records
        if view.endswith(".log"):
            return self.partition.log(0).read_bytes()
        if view.startswith("offsets/last-"):
            return txt(records[-100:])
        if view.startswith("offsets/"):
            first, last = Path(view).stem.split("-")
            return txt(records[int(first) : int(last) + 1])
        return txt(records)


WAYS = {"made again": Generations.make_again, "same inodes": Generations.make_again_with_the_same_inodes}
Way = Callable[[Generations, BuiltPartition], None]


@pytest.fixture
def generations(tmp_path):
    return Generations(tmp_path)


@pytest.fixture
def mount(generations):
    with watched(generations.log_dir, generations.path / "mnt") as mounted_:
        yield mounted_


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_topic_made_again_while_nobody_looks(mount, generations, way):
    partition = mount.path / "t/0"
    for number in range(1, 5):
        for _ in range(2):  # so that the page cache may keep what it has
            for view in VIEWS:
                assert (partition / view).read_bytes() == generations.expected(view), (number, view)
                assert (partition / view).stat().st_size == len(generations.expected(view))
            for path in generations.partition.path.glob("*.log"):
                assert (partition / "segments" / path.name).read_bytes() == path.read_bytes()
            assert (partition / "messages.log").read_bytes() == b"".join(
                path.read_bytes() for path in sorted(generations.partition.path.glob("*.log"))
            )
        # Shorter ones and longer ones.
        way(generations, generations.build(number, SEGMENT * (3 + number % 2)))


def read_on(fd, known):
    """The rest of an open file, and the error that it ended with."""
    data = known
    while True:
        try:
            part = os.pread(fd, 1 << 16, len(data))
        except OSError as error:
            return data, error.errno
        if not part:
            return data, None
        data += part


@pytest.mark.parametrize("messages", [SEGMENT, 4 * SEGMENT])
@pytest.mark.parametrize("view", ["messages.txt", "offsets/0-1999.txt", "offsets/0-1999.log"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_reader_is_given_its_own_generation_or_an_error(mount, generations, way, view, messages):
    path = mount.path / "t/0" / view
    own = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    try:
        start = os.pread(fd, CHUNK, 0)
        assert start == own[: len(start)]
        way(generations, generations.build(1, messages))
        fresh = path.read_bytes()
        assert fresh != own
        if view == "messages.txt":
            assert fresh == generations.expected(view)
        data, failed = read_on(fd, start)
        assert data == own[: len(data)]
        if len(data) < len(own):
            assert failed in (errno.ENOENT, errno.ERANGE)
    finally:
        os.close(fd)
    if messages > SEGMENT:
        assert (mount.path / "t/0/messages.txt").read_bytes() == generations.expected("messages.txt")
        for _ in range(2):
            expected = generations.expected("offsets/0-1999.txt")
            assert (mount.path / "t/0/offsets/0-1999.txt").read_bytes() == expected


@pytest.mark.parametrize("view", ["offsets/0-1999.txt", "offsets/0-1999.log", f"segments/{0:020d}.log"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_smaller_size_is_shown_than_a_reader_through_the_page_cache_was_promised(mount, generations, way, view):
    """The kernel would end its reading there, as if all was well."""
    path = mount.path / "t/0" / view
    own = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    try:
        start = os.pread(fd, CHUNK, 0)
        way(generations, generations.build(1, 500))
        for look in (path.stat, path.read_bytes):
            with fails_with(errno.ERANGE):
                look()
        data, failed = read_on(fd, start)
        assert data == own[: len(data)]
        if len(data) < len(own):
            assert failed in (errno.ENOENT, errno.ERANGE)
        assert (mount.path / "t/0/messages.txt").read_bytes() == generations.expected("messages.txt")
    finally:
        os.close(fd)
    wait_for("the kernel tells the mount of a close(2) later", lambda: _is_shown(path))
    fresh = path.read_bytes()
    assert fresh == generations.expected(view)
    assert path.stat().st_size == len(fresh)


def _is_shown(path):
    """False while the path may not be looked at."""
    try:
        path.stat()
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        return False
    return True


def test_a_topic_of_ours_removed_and_made_again(tmp_path):
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", write=True) as mount:
        topic = mount.path / "t"
        view = topic / "0/messages.txt"
        for number in range(3):
            topic.mkdir()
            assert view.read_bytes() == b""
            if number < 2:
                topic.rmdir()
                with pytest.raises(FileNotFoundError):
                    view.stat()
        held = view.open("rb", buffering=0)
        assert held.read() == b""
        topic.rmdir()
        topic.mkdir()
        (topic / "0/@append").write_bytes(b"new\n")
        assert view.read_bytes() == b"new\n"
        assert view.stat().st_size == 4
        with held:  # of the topic before: an error, or its own end of file
            try:
                assert held.read() == b""
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.ERANGE)  # noqa: PT017
