"""Several who have one view open, each from the positions it began with for them; and looks that fail half-way."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafkafs.reading.state import Processes
from kafkafs.tree.tree import Tree, TreeOptions
from storage.errors import SegmentGone
from storage.files.log_file import LogFile
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.live_log import LiveLog
from tests.support.reference_views import PATH, content, opened, read_all, size_of, tree_of


class Asking:
    """Who asks is whom the test says: a thread, and its parents."""

    def __init__(self):
        self.who = 1
        self.parents = {}

    def thread(self):
        return self.who

    def kin(self):
        who = self.who
        while who is not None:
            yield (who,)
            who = self.parents.get(who)


@pytest.fixture
def live(tmp_path):
    live = LiveLog(tmp_path / "log")
    live.write_segments(50, 50)
    live.roll()
    return live


@pytest.fixture
def asking():
    return Asking()


@pytest.fixture
def tree(live, asking):
    return Tree(LogDir.open_read_only(live.path.parent), TreeOptions(index_bytes=0), callers=asking)


@pytest.mark.parametrize("ext", ["txt", "jsonl", "log"])
def test_each_is_told_the_size_of_what_he_has_open(live, tree, asking, ext):
    path = f"/t/0/messages.{ext}"
    asking.who = 10
    follower = opened(tree, path)
    before = read_all(follower)
    live.retain()
    live.write(3)
    fresh = content(tree_of(live.path.parent), path)
    asking.who = 20
    assert size_of(tree, path) == len(fresh)
    other = opened(tree, path)
    assert read_all(other) == fresh
    assert other.size == size_of(tree, path) == len(fresh)
    asking.who = 10
    assert size_of(tree, path) == follower.size > len(before)
    assert follower.read(len(before), 1 << 20) == fresh[-(follower.size - len(before)) :]
    with pytest.raises(SegmentGone):
        follower.read(0, 10)
    asking.who = 30  # somebody who has nothing open
    assert size_of(tree, path) == len(fresh)
    follower.close()
    asking.who = 10
    assert size_of(tree, path) == len(fresh)


def test_one_who_got_an_open_file_from_a_parent(live, tree, asking):
    asking.parents = {12: 11, 11: 10, 22: 21}
    asking.who = 10
    follower = opened(tree)
    live.retain()

    def size_for(who):
        asking.who = who
        return size_of(tree)

    assert (size_for(12), size_for(22)) == (follower.size, len(live.text()))
    asking.who = 11
    fresh = opened(tree)  # of his own, which counts more than his parent's
    assert size_for(11) == size_for(12) == fresh.size == len(live.text())
    assert size_for(10) == follower.size


@pytest.mark.parametrize(
    ("name", "first", "last"), [("100+3", 104, 106), ("100-105", 104, 105), ("100-", 104, 109), ("", 104, 109)]
)
def test_what_was_deleted_before_a_reader_saw_it_is_not_shown(live, tree, name, first, last):
    """Opened at the log end; then messages come in one batch, and some of these are deleted: their bytes stay."""
    (live.path.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 100\n")
    handle = opened(tree, f"/t/0/offsets/{name}.txt" if name else PATH)
    assert handle.size == 0
    live.write(10)
    (live.path.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 104\n")
    assert read_all(handle) == live.text(lambda offset, _: first <= offset <= last)


def test_the_page_cache_is_for_one_content_at_a_time(live, asking):
    options = TreeOptions(index_bytes=0, clamp=True)
    tree = Tree(LogDir.open_read_only(live.path.parent), options, callers=asking)
    path = "/t/0/offsets/40-60.txt"
    first = opened(tree, path)
    assert not first.direct_io
    live.retain()
    # The kernel would end the reading of the first at the size that the path shows.
    with pytest.raises(SegmentGone, match="Close the file first"):
        opened(tree, path)
    assert tree.lookup(path).attributes().size == first.size  # whoever has it open is told of that
    first.close()
    third = opened(tree, path)
    assert (third.direct_io, third.keep_cache) == (False, False)
    assert read_all(third) == live.text(lambda offset, _: offset <= 60)
    fourth = opened(tree, path)
    assert (fourth.direct_io, fourth.keep_cache) == (False, True)


def between(tree, monkeypatch, what):
    """Makes `what` happen behind the next look at the log, before what was seen is made use of; the look."""
    log = tree.log_dir.log(TopicPartition("t", 0))
    real, left, taken = log.snapshot, [what], []

    def snapshot():
        seen = real()
        if left:
            taken.append(seen)
            left.pop()()
        return seen

    monkeypatch.setattr(log, "snapshot", snapshot)
    return taken


@pytest.mark.parametrize("ext", ["txt", "log"])
def test_a_count_goes_on_where_it_stood_when_another_reader_was_faster(live, tree, monkeypatch, ext):
    """They share what is measured. One finds it further than the log he saw, and looks again."""
    path = f"/t/0/offsets/100+200.{ext}"
    counting, other = opened(tree, path), opened(tree, f"/t/0/messages.{ext}")
    for _ in range(12):
        live.write(20)

        def others_read():
            live.write(5)
            assert other.size > 0
            assert other.read(other.size - 10, 100)

        with monkeypatch.context() as patch:
            taken = between(tree, patch, others_read)
            assert size_of(tree, path) > 0
            assert len(taken) == 1
    if ext == "txt":
        assert read_all(counting) == live.text(lambda offset, _: 100 <= offset < 300)
    else:
        assert read_all(counting) == content(tree_of(live.path.parent), path)


def test_a_look_that_fails_changes_nothing(live, tree, monkeypatch):
    paths = [PATH, "/t/0/offsets/90+60.txt", "/t/0/offsets/95-.txt", "/t/0/time/2020--.txt"]
    handles = [opened(tree, path) for path in paths]
    for _ in range(3):
        live.write(10)
        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "read", failing)
            for handle, path in zip(handles, paths, strict=True):
                with pytest.raises(OSError, match="the disk failed"):
                    handle.size  # noqa: B018 - to look is what fails
                with pytest.raises(OSError, match="the disk failed"):
                    size_of(tree, path)
    for handle, path in zip(handles, paths, strict=True):
        assert read_all(handle) == content(tree_of(live.path.parent), path)


def failing(*_arguments, **_more):
    raise OSError("the disk failed")


def test_whom_a_thread_belongs_to():
    with ThreadPoolExecutor(1) as pool:
        (own,), process, parents, *_ = pool.submit(lambda: list(Processes(threading.get_native_id).kin())).result()
    assert own != threading.get_native_id() in process
    assert os.getppid() in parents
    for unknown in (0, 2**30):
        assert list(Processes(lambda unknown=unknown: unknown).kin()) == [(unknown,)]
