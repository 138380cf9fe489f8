"""When a segment rolls: one batch by itself is judged as it is among others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.append.rolling_rules import RollLimits, SegmentFill, batch_fits, rows_that_fit
from storage.format.batches import BatchTable, Column

EDGES = st.sampled_from([-1, 0, 1, 99, 100, 101, 2**31 - 1, 2**31, 2**31 + 100])


@given(
    size=st.integers(61, 200),
    last_offset=EDGES,
    max_timestamp=EDGES,
    fill=st.builds(
        SegmentFill,
        base_offset=st.sampled_from([0, 1, 100]),
        size_bytes=st.sampled_from([0, 0, 61, 100, 139, 140]),
        first_timestamp=st.sampled_from([-1, 0, 1, 100]),
        created_ms=st.sampled_from([0, 100]),
        offset_entries=st.sampled_from([0, 5, 12]),
        time_entries=st.sampled_from([0, 5, 7]),
    ),
    limits=st.builds(
        RollLimits,
        segment_bytes=st.sampled_from([61, 150, 200, 300]),
        segment_ms=EDGES,
        offset_entries=st.just(12),
        time_entries=st.just(7),
    ),
    now_ms=EDGES,
)
def test_a_batch_by_itself_is_judged_as_among_others(
    size: int, last_offset: int, max_timestamp: int, fill: SegmentFill, limits: RollLimits, now_ms: int
) -> None:
    table = BatchTable.empty(2)
    table.rows = 1
    for column, value in (
        (Column.SIZE, size),
        (Column.LAST_OFFSET, last_offset),
        (Column.MAX_TIMESTAMP, max_timestamp),
    ):
        table.data[column, 0] = value
    fits = batch_fits(size, last_offset, max_timestamp, fill, limits, now_ms)
    assert int(fits) == rows_that_fit(table, 0, fill, limits, now_ms)
