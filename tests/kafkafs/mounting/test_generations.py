"""Other messages under the same names, inode numbers included, than the mount has shown before: a topic deleted and
made again, while nobody looks or while a reader has the file open."""

import errno
import os
import shutil
from contextlib import ExitStack

import pytest

from storage.files import names, partition_metadata
from storage.format.block import Record
from tests.support.builders import AUTOMATIC, ROLL, Batch, Partition, build_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.reference_views import txt
from tests.support.serving_processes import fails_with, watched
from tests.support.waiting import wait_for

pytestmark = requires_fuse

SEGMENT = 2000  # messages of a segment
RANGE, RAW, FILE = "offsets/0-1999.txt", "offsets/0-1999.log", f"segments/{0:020d}.log"
VIEWS = {
    "messages.txt": slice(None),
    RANGE: slice(2000),
    "offsets/1500-3500.txt": slice(1500, 3501),
    "offsets/last-100.txt": slice(-100, None),
    "time/2020--.txt": slice(None),
}


def renamed(built, target):
    """The topic is deleted and made again with these messages."""
    shutil.rmtree(target)
    shutil.copytree(built.path, target, copy_function=shutil.copyfile)


def same_inodes(built, target):
    """The same on a file system that gives out the same inode numbers, and tells no time of birth."""
    for path in target.iterdir():
        if not (built.path / path.name).exists():
            path.unlink()
    for path in built.path.iterdir():
        place = target / path.name
        with place.open("r+b" if place.exists() else "wb") as file:
            file.truncate(0)
            file.write(path.read_bytes())
    # What was removed and made shows in the directories' times.
    for directory in (target, target.parent):
        (directory / "x.tmp").touch()
        (directory / "x.tmp").unlink()


class Generations:
    """Topic `t`, made again and again with other messages of the same sizes."""

    def __init__(self, path, way):
        self.path = path
        self.way = way
        self.number = 0
        shutil.copytree(self.build(3 * SEGMENT).path.parent, path / "logs")

    def build(self, messages):
        """The next generation, beside the log directory."""
        items = []
        for start in range(0, messages, 500):
            if start and start % SEGMENT == 0:
                items.append(ROLL)
            numbers = range(start, start + 500)
            values = [b"generation %d message %06d %s" % (self.number, number, b"x" * 900) for number in numbers]
            items.append(Batch([Record(None, value, (), AUTOMATIC) for value in values]))
        metadata = partition_metadata.encode(partition_metadata.random_id())
        spec = Partition(items, extra={names.PARTITION_METADATA: metadata})
        self.built = build_log_dir(self.path / f"generation-{self.number}", {"t": [spec]})["t", 0]
        self.number += 1
        return self.built

    def make_again(self, messages):
        self.way(self.build(messages), self.path / "logs/t-0")

    def expected(self, view):
        return txt(self.built.records[VIEWS[view]]) if view in VIEWS else self.built.log(0).read_bytes()


@pytest.fixture(params=[renamed, same_inodes])
def generations(request, tmp_path):
    return Generations(tmp_path, request.param)


@pytest.fixture
def directory(generations):
    with watched(generations.path / "logs", generations.path / "mnt") as mount:
        yield mount.path / "t/0"


def test_a_topic_made_again_while_nobody_looks(directory, generations):
    for number in range(4):
        files = sorted(generations.built.path.glob("*.log"))
        for _ in range(2):  # so that the page cache may keep what it has
            for view in VIEWS:
                assert (directory / view).read_bytes() == generations.expected(view), (number, view)
                assert (directory / view).stat().st_size == len(generations.expected(view))
            for path in files:
                assert (directory / "segments" / path.name).read_bytes() == path.read_bytes()
            assert (directory / "messages.log").read_bytes() == b"".join(path.read_bytes() for path in files)
        generations.make_again(SEGMENT * (3 + number % 2))


def read_on(fd):
    """All that can be read of an open file, and the error that it ended with."""
    data = b""
    while True:
        try:
            part = os.pread(fd, 1 << 16, len(data))
        except OSError as error:
            return data, error.errno
        if not part:
            return data, None
        data += part


def check_own(fd, own):
    """A reader is given its own generation, which may be in the page cache, or an error: never the end of the file."""
    data, number = read_on(fd)
    assert data == own[: len(data)]
    assert number in (errno.ESTALE, errno.ERANGE) or (number, len(data)) == (None, len(own))


@pytest.mark.parametrize("messages", [SEGMENT, 4 * SEGMENT])
def test_a_reader_is_given_its_own_generation_or_an_error(directory, generations, messages):
    with ExitStack() as stack:
        readers = {}
        for view in ("messages.txt", RANGE, RAW):
            file = stack.enter_context((directory / view).open("rb", buffering=0))
            readers[view] = file, generations.expected(view)
            assert (directory / view).read_bytes() == generations.expected(view)
            assert file.read(4096) == generations.expected(view)[:4096]
        generations.make_again(messages)
        assert (directory / "messages.txt").read_bytes() == generations.expected("messages.txt")
        for view, (file, own) in readers.items():
            if messages > SEGMENT or view != RAW:
                assert (directory / view).read_bytes() == generations.expected(view) != own, view
            check_own(file.fileno(), own)
        # The growing view is not in the page cache.
        assert read_on(readers["messages.txt"][0].fileno())[1] == errno.ESTALE
    if messages > SEGMENT:
        for view in ("messages.txt", RANGE, RANGE):
            assert (directory / view).read_bytes() == generations.expected(view)


def test_no_smaller_size_is_shown_than_a_reader_through_the_page_cache_was_promised(directory, generations):
    """The kernel would end its reading there, as if all was well."""
    for view in (RANGE, RAW, FILE):
        path, own = directory / view, generations.expected(view)
        wait_for("the new generation is shown", lambda path=path: is_shown(path))
        assert path.read_bytes() == own
        with path.open("rb", buffering=0) as file:
            assert file.read(4096) == own[:4096]
            generations.make_again(500)
            for look in (path.stat, path.read_bytes):
                with fails_with(errno.ERANGE):
                    look()
            check_own(file.fileno(), own)
            assert (directory / "messages.txt").read_bytes() == generations.expected("messages.txt")
        wait_for("the kernel tells the mount of a close(2) later", lambda path=path: is_shown(path))
        assert path.read_bytes() == generations.expected(view)
        assert path.stat().st_size == len(generations.expected(view))
        generations.make_again(3 * SEGMENT)


def is_shown(path):
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
        for _ in range(2):
            topic.mkdir()
            assert view.read_bytes() == b""
            topic.rmdir()
            with pytest.raises(FileNotFoundError):
                view.stat()
        topic.mkdir()
        with view.open("rb", buffering=0) as held:
            assert held.read() == b""
            topic.rmdir()
            topic.mkdir()
            (topic / "0/@append").write_bytes(b"new\n")
            assert view.read_bytes() == b"new\n"
            assert view.stat().st_size == 4
            check_own(held.fileno(), b"")
