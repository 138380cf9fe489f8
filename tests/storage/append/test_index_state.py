"""The index arithmetic against a plain transcription of Kafka's, and against the indexes that brokers wrote."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.append.active_segment import IndexState
from storage.format.batches import BatchTable, Column, scan
from storage.types import TimestampOffset
from tests.support.fixtures import FIXTURES, requires_fixtures


def _table(batches: list[tuple[int, int]]) -> BatchTable:
    """Batches of (size, max timestamp), one offset each."""
    table = BatchTable.empty(len(batches))
    table.rows = len(batches)
    position = 0
    for row, (size, timestamp) in enumerate(batches):
        for column, value in (
            (Column.POSITION, position),
            (Column.SIZE, size),
            (Column.LAST_OFFSET, row),
            (Column.MAX_TIMESTAMP, timestamp),
        ):
            table.data[column, row] = value
        position += size
    return table


def _expected(batches: list[tuple[int, int]], interval: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """LogSegment.append, line by line."""
    offsets, times = [], []
    largest, position, since, last_entry = (-1, 0), 0, 0, -1
    for offset, (size, timestamp) in enumerate(batches):
        if timestamp > largest[0]:
            largest = (timestamp, offset)
        if since > interval:
            offsets.append((offset, position))
            if largest[0] > last_entry:
                times.append(largest)
                last_entry = largest[0]
            since = 0
        since += size
        position += size
    return offsets, times


@given(
    batches=st.lists(st.tuples(st.integers(61, 300), st.integers(-1, 50)), max_size=60),
    interval=st.integers(0, 400),
    cut=st.integers(0, 60),
)
def test_entries_do_not_depend_on_how_batches_arrive(batches: list[tuple[int, int]], interval: int, cut: int) -> None:
    state = IndexState(interval, 0)
    table = _table(batches)
    cut = min(cut, len(batches))
    parts = [state.advance(table, 0, cut), state.advance(table, cut)]
    offsets = [pair for part in parts for pair in zip(part.offsets.tolist(), part.positions.tolist(), strict=True)]
    times = [pair for part in parts for pair in zip(part.timestamps.tolist(), part.time_offsets.tolist(), strict=True)]
    assert (offsets, times) == _expected(batches, interval)


@given(
    batches=st.lists(st.tuples(st.integers(61, 300), st.integers(-1, 50)), max_size=60),
    interval=st.integers(0, 400),
)
def test_batch_by_batch_the_entries_are_the_same(batches: list[tuple[int, int]], interval: int) -> None:
    state = IndexState(interval, 0)
    offsets, times, position = [], [], 0
    for offset, (size, timestamp) in enumerate(batches):
        entries = state.advance_batch(size, offset, timestamp)
        offsets += [(offset, position)] if entries else []
        times += [(state.largest.timestamp, state.largest.offset)] if entries > 1 else []
        position += size
    assert (offsets, times) == _expected(batches, interval)


def test_reopening_keeps_the_largest_timestamp_and_counts_bytes_anew() -> None:
    state = IndexState(0, 100, TimestampOffset(50, 120))
    assert state.final_time_entry() is None
    entries = state.advance(_table([(100, 40), (100, 60)]))
    assert entries.offsets.tolist() == [1], "the first batch after reopening has no entry"
    assert entries.timestamps.tolist() == [60]
    assert state.largest == TimestampOffset(60, 1)


@requires_fixtures
def test_indexes_of_a_broker_come_out_again() -> None:
    logs = sorted((FIXTURES / "codecs" / "log").glob("c-*/*.log"))
    assert len(logs) >= 10
    for log in logs:
        data = log.read_bytes()
        table = BatchTable.empty(len(data) // 61 + 1)
        scan(data, 0, table)
        base = int(log.stem)
        state = IndexState(4096, base)
        entries = state.advance(table)
        final = state.final_time_entry()
        pairs = list(zip(entries.timestamps.tolist(), entries.time_offsets.tolist(), strict=True))
        pairs += [(final.timestamp, final.offset)] if final else []
        offset_index = np.stack((entries.offsets - base, entries.positions), axis=1).astype(">i4").tobytes()
        time_index = b"".join(
            timestamp.to_bytes(8, "big") + (offset - base).to_bytes(4, "big") for timestamp, offset in pairs
        )
        assert offset_index == log.with_suffix(".index").read_bytes()
        assert time_index == log.with_suffix(".timeindex").read_bytes()
