"""Counting over time against a plain dictionary."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log.histogram import MOST_BUCKETS, WIDTHS, HistogramCounter, TooManyBuckets

END_OF_9999 = 253_402_300_799_999
TIMES = st.one_of(
    st.integers(-1, 10**5),
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.integers(1_700_000_000_000, 1_800_000_000_000),
    st.integers(-(2**63), 2**63 - 1),
)
BLOCKS = st.lists(st.lists(st.tuples(TIMES, st.integers(0, 2**40)), min_size=1, max_size=20), max_size=8)


def counted(blocks, width_ms=None):
    counter = HistogramCounter(width_ms)
    for block in blocks:
        times, sizes = np.array(block, np.int64).T
        counter.add_messages(times)
        counter.add_bytes(times, sizes)
    return counter


def plain(blocks, width_ms):
    messages, sizes = Counter(), Counter()
    for time, size in (pair for block in blocks for pair in block):
        slot = time // width_ms * width_ms if 0 <= time <= END_OF_9999 else -1
        messages[slot] += 1
        sizes[slot] += size
    return +messages, +sizes


def as_counters(histogram):
    messages, sizes = (
        Counter({-1: undated, **dict(zip(histogram.starts_ms.tolist(), column.tolist(), strict=True))})
        for undated, column in (
            (histogram.undated_messages, histogram.messages), (histogram.undated_bytes, histogram.size_bytes)
        )
    )  # fmt: skip
    return +messages, +sizes


@given(BLOCKS, st.sampled_from([1, 3, 40]))
def test_against_plain_counting(blocks, most):
    histogram = counted(blocks).histogram(most)
    assert len(histogram.messages) <= most
    assert histogram.width_ms in WIDTHS or histogram.width_ms % WIDTHS[-1] == 0
    assert as_counters(histogram) == plain(blocks, histogram.width_ms)


@given(BLOCKS, st.integers(10**9, 10**13))
def test_a_given_width_is_kept(blocks, width_ms):
    histogram = counted(blocks, width_ms).histogram(3)
    assert histogram.width_ms == width_ms
    assert as_counters(histogram) == plain(blocks, width_ms)


def test_a_width_for_too_many_buckets_is_refused():
    with pytest.raises(TooManyBuckets, match=f"at most {MOST_BUCKETS}"):
        counted([[(0, 1), (MOST_BUCKETS, 1)]], 1)


def test_seconds_of_a_day_are_seconds():
    """Widths widen only as far as it takes."""
    histogram = counted([[(second * 1000, 1)] for second in range(0, 86_400, 10)]).histogram(100)
    assert (histogram.width_ms, len(histogram.messages)) == (15 * 60_000, 96)
