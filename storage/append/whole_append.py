"""Batches appended all or none where they do not fit one segment: as new segments that become visible together.

1. they are built under `.cleaned` names and synced              → recovery removes them: the log ends where it did
2. from the last on they are renamed to `.swap`; directory synced → as 1 while a `.cleaned` is left; then they are the
                                                                   log, to readers and to recovery
3. they get their names, from the first on; directory synced      → recovery renames what is left of `.swap`

The first of them replaces the active segment, which has no messages: the log was rolled, or is new. The steps are the
cleaner's (storage.append.swap), so that a broker also finishes or undoes them as a whole. Nothing here locks: the
PartitionLog that owns the directory holds its lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage.append import swap
from storage.append.active_segment import ActiveSegment
from storage.append.append_values import WholeAppend
from storage.append.rolling_rules import (
    RollLimits,
    rows_that_fit,
)
from storage.append.swap import CleanedSegment
from storage.files.disk_protocol import Disk
from storage.format.batches import BatchTable
from storage.log.segment import Segment


def fits(whole: WholeAppend, active: ActiveSegment, limits: RollLimits, now_ms: int) -> bool:
    """Whether the active segment accepts all of it before it has to roll."""
    table = whole.table
    rows = rows_that_fit(table, 0, active.fill, limits, now_ms)
    return rows == table.rows and active.rows_until_full(table, 0, rows, limits) == rows


def build(
    disk: Disk, directory: Path, whole: WholeAppend, limits: RollLimits, interval_bytes: int, now_ms: int
) -> list[CleanedSegment]:
    """Step 1. After an OSError its files are removed, as far as possible."""
    built: list[CleanedSegment] = []
    table = whole.table
    chunks = _Chunks(whole)
    row = 0
    try:
        while row < table.rows:
            segment = CleanedSegment(disk, directory, int(table.base_offset[row]), interval_bytes=interval_bytes)
            built.append(segment)
            stop = segment.rows_until_full(table, row, limits, now_ms)
            for data, first, last in chunks.take(row, stop):
                segment.append(data, table.slice(first, last).copy())
            segment.finish([], now_ms * 1_000_000)
            row = stop
    except BaseException:
        for segment in built:
            segment.close()
            swap.remove_cleaned(disk, directory, segment.base_offset)
        raise
    return built


def put_in_place(disk: Disk, directory: Path, built: list[CleanedSegment]) -> list[Segment]:
    """Steps 2 and 3: the new segments, ascending."""
    for segment in reversed(built):
        swap.make_ready(disk, directory, segment.base_offset)
    placed = [swap.put_in_place(disk, directory, segment.base_offset, ())[0] for segment in built]
    placed[-1].sealed = False
    return placed


class _Chunks:
    """The bytes of a WholeAppend, read in order and cut where a segment ends."""

    def __init__(self, whole: WholeAppend) -> None:
        self._table: BatchTable = whole.table
        self._chunks = iter(whole.chunks)
        self._rest = memoryview(b"")

    def take(self, row: int, stop: int) -> Iterator[tuple[memoryview, int, int]]:
        """The bytes of the rows `row` to `stop`, with the rows that each part holds."""
        ends = self._table.size[row:stop].cumsum()
        done = taken = 0
        while row + done < stop:
            if not len(self._rest):
                self._rest = next(self._chunks)
            fit = int(ends.searchsorted(taken + len(self._rest), side="right"))
            size = int(ends[fit - 1]) - taken
            yield self._rest[:size], row + done, row + fit
            self._rest = self._rest[size:]
            taken += size
            done = fit
