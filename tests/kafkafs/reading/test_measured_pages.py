"""Measuring does not fill the page cache with what nobody reads."""

import pytest

from kafkafs.reading.measured_pages import MeasuredPages
from storage.log.read_only_log import ReadOnlyLog
from storage.types import TopicPartition
from tests.support.live_log import LiveLog
from tests.support.page_cache import cached_bytes, uncached
from tests.support.reference_views import PATH, content, tree_of

SEGMENTS, SEGMENT_BYTES = 3, 12 << 20
LITTLE = 5 << 20  # what a reader of a few bytes has rendered, and pages that are in use when they are to be dropped


@pytest.fixture
def live(tmp_path):
    """Sealed segments that are not in the page cache, and an active one."""
    live = LiveLog(tmp_path / "log", key_of=lambda offset: b"k%d" % (offset % 5000))
    for _ in range(SEGMENTS):
        live.append(*(b"%d" % n + bytes(1200) for n in range(SEGMENT_BYTES // 1200)), batch=200)
        live.roll()
    live.write(10)
    for base in live.segments:
        uncached(live.log(base))
    return live


def tree(live, **options):
    return tree_of(live.path.parent, workers=0, **options)


def sealed_bytes(live):
    return [cached_bytes(live.log(base)) for base in live.segments[:-1]]


def test_what_was_only_measured_is_dropped(live):
    handle = tree(live).lookup(PATH).open()
    size = handle.size
    handle.read(0, 1000)
    handle.read(size - 1000, 1000)
    handle.close()
    first, middle, last = sealed_bytes(live)
    assert middle < LITTLE
    assert max(first, last) < SEGMENT_BYTES // 2


def test_what_was_read_stays(live):
    content(tree(live), PATH)
    assert min(sealed_bytes(live)) > SEGMENT_BYTES - LITTLE


def test_what_was_there_before_stays(live):
    before = live.log(live.segments[1]).read_bytes()
    handle = tree(live).lookup(PATH).open()
    handle.close()
    first, middle, last = sealed_bytes(live)
    assert middle >= len(before)
    assert max(first, last) < LITTLE


def test_a_reader_finds_what_was_measured_for_it(live):
    handle = tree(live).lookup(PATH).open()
    assert min(sealed_bytes(live)) > SEGMENT_BYTES - LITTLE
    handle.close()


def test_more_than_a_bound_does_not_wait_for_the_end(live):
    pages = MeasuredPages(most_bytes=SEGMENT_BYTES * 3 // 2)
    snapshot = ReadOnlyLog(TopicPartition("t", 0), live.path).snapshot()
    for number, segment in enumerate(snapshot.segments[:2]):
        with pages.measuring(segment, 0, segment.size):
            assert segment.log.read(0, segment.size)
        assert (sealed_bytes(live)[number] < LITTLE) == (number == 1)
    assert max(sealed_bytes(live)) < LITTLE


def test_what_was_searched_for_a_key_is_dropped(live):
    assert content(tree(live), "/t/0/keys/k7.txt")
    assert max(sealed_bytes(live)) < SEGMENT_BYTES // 2


def test_the_end_of_the_mount_drops_the_rest(live):
    served = tree(live)
    assert served.lookup(PATH).attributes().size
    served.stop()
    assert max(sealed_bytes(live)) < LITTLE
