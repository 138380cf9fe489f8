"""Views that are open while their log grows, rolls, loses old messages, is compacted or truncated."""

import contextlib

import pytest

from storage.errors import LogTruncated, SegmentGone
from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import PATH, content, opened, read_all, scanned_bytes, size_of, tree_of


@pytest.fixture(params=[Codec.NONE, Codec.LZ4])
def live(tmp_path, request):
    return LiveLog(tmp_path / "log", request.param)


@pytest.fixture
def tree(live):
    return tree_of(live.path.parent)


class Tail:
    """`tail -f`: stats, and reads on where it stopped when the size has changed."""

    def __init__(self, tree, path=PATH):
        self._tree, self._path = tree, path
        self.handle = opened(tree, path)
        self.data = read_all(self.handle)

    def poll(self):
        size = size_of(self._tree, self._path)
        fresh = b""
        while len(self.data) + len(fresh) < size:
            fresh += self.handle.read(len(self.data) + len(fresh), 65_536)
        self.data += fresh
        return fresh


def test_a_batch_that_is_being_written_does_not_show(live, tree):
    live.write(20)
    tail = Tail(tree)
    path = live.log(0)
    live.write(10)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert tail.poll() == b""
    with path.open("ab") as file:
        file.write(whole[-5:])
    assert tail.poll() == live.text(lambda offset, _: offset >= 20)


@pytest.mark.parametrize(
    ("name", "is_sealed"),
    [
        ("messages", False),
        ("offsets/3-15", True),
        ("offsets/3-25", False),
        ("offsets/last-3", False),
        # A straggler may come to any time range, however far the log has gone past it.
        (f"time/{START_MS}--{START_MS + 9_500}", False),
    ],
)
def test_growing_views_are_read_past_the_page_cache(live, tree, name, is_sealed):
    live.write_segments(20, 20)
    first, again = opened(tree, f"/t/0/{name}.txt"), opened(tree, f"/t/0/{name}.txt")
    assert (first.direct_io, again.direct_io) == (not is_sealed, not is_sealed)
    assert (first.keep_cache, again.keep_cache) == (False, is_sealed)


def test_tail_over_a_compaction_prints_each_message_once(live, tree):
    live.write_segments(50, 13)
    tail = Tail(tree)
    before = tail.data
    live.write(20)  # seen by nobody before it is compacted
    live.roll()
    live.write(5)
    live.compact(lambda offset: offset % 5 == 0)
    assert tail.poll() == live.text(lambda offset, _: offset >= 63)
    assert tail.data[: len(before)] == before
    with pytest.raises(SegmentGone):
        tail.handle.read(0, 10)
    tail.handle.close()
    assert content(tree, PATH) == live.text()


def test_a_sealed_range_is_what_it_was_when_it_was_opened_or_an_error(live, tree):
    live.write_segments(40, 40)
    path = "/t/0/offsets/10-30.txt"
    handle = opened(tree, path)
    assert not handle.direct_io
    own = read_all(handle)
    live.truncate(25)
    live.write(30, size=200)
    live.roll()
    live.write(5)
    beside = opened(tree, path)
    assert beside.direct_io
    assert read_all(beside) == live.text(lambda offset, _: 10 <= offset <= 30) != own
    with pytest.raises(LogTruncated):
        handle.read(len(own), 10)
    for position in (0, len(own) // 2):
        with contextlib.suppress(LogTruncated):
            assert handle.read(position, 10) == own[position : position + 10]
    handle.close()
    again = opened(tree, path)
    assert (again.direct_io, again.keep_cache) == (False, False)
    assert read_all(again) == read_all(beside)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("offsets/25-", lambda offset, _: offset >= 25),
        ("offsets/25-44", lambda offset, _: 25 <= offset <= 44),
        ("offsets/27+40", lambda offset, _: 27 <= offset < 67),
        (f"time/{START_MS + 25_000}--", lambda _, stamp: stamp >= START_MS + 25_000),
        (f"time/{START_MS + 25_000}--{START_MS + 47_500}", lambda _, stamp: 25_000 <= stamp - START_MS < 47_500),
        (f"time/until-{START_MS + 62_000}", lambda _, stamp: stamp < START_MS + 62_000),
    ],
)
@pytest.mark.parametrize("indexed", [False, True])
def test_ranges_grow_until_they_are_complete(live, tree, name, wanted, indexed):
    live.write(30)
    tail = Tail(tree, f"/t/0/{name}.txt")
    for count in (3, 9, 1, 20):
        live.write(count, batch=4)
        if indexed:
            content(tree, PATH)
        tail.poll()
        assert tail.data == live.text(wanted)
        if count == 9:
            live.roll()
    live.roll()
    live.write(60)
    tail.poll()
    assert tail.data == live.text(wanted) == content(tree_of(live.path.parent), f"/t/0/{name}.txt")
    tail.handle.close()
    assert content(tree, f"/t/0/{name}.txt") == live.text(wanted)


def test_what_lies_outside_of_a_passed_time_range_is_measured_once_for_all(live, tree):
    live.write(600, size=2_000)  # several pieces
    live.append(b"from the future", timestamps=[START_MS + 10**9])
    paths = [f"/t/0/time/{START_MS + second}--{START_MS + second + 900}.txt" for second in range(0, 20_000, 1000)]

    def scanned():
        for path in paths:
            content(tree, path)
        return scanned_bytes(tree)

    before, size = scanned(), live.log(0).stat().st_size
    live.write(100)
    added = live.log(0).stat().st_size - size
    assert added <= scanned() - before < 3 * added
