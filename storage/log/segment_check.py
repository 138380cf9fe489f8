"""Checks a segment batch by batch, as recovery does: up to the first batch that is not sound.

Source: LogSegment.recover. A sound batch is whole, has a right CRC, and its offsets continue the segment. (Kafka
compares offsets only where it adds an index entry, and then empties the segment; we cut it there.)
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from storage.files.log_file import LogFile
from storage.format.batches import LENGTH, MAGIC_AT, MAX_MAGIC, MAX_RELATIVE_OFFSET, BatchTable
from storage.log.checked_windows import Visit, WindowPlan, checked_windows
from storage.types import MAX_OFFSET


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """Sound batches end at the position `end`, with offsets below `next_offset`; `size` is the file's. `overflows`: the
    next batch would be sound too if its offsets were not too far above the base."""

    end: int
    next_offset: int
    size: int
    overflows: bool = False

    @property
    def invalid_bytes(self) -> int:
        """Bytes after the last sound batch."""
        return self.size - self.end


def check_segment(
    log: LogFile,
    base_offset: int,
    size: int,
    visit: Visit,
    *,
    start: int = 0,
    next_offset: int | None = None,
    any_span: bool = False,
    look: Visit | None = None,
    threads: int = 1,
) -> SegmentCheck:
    """Checks the batches of a .log of `size` bytes from the position `start` on, where offsets from `next_offset` on
    are expected; `visit` is called with the sound ones, a range of them at a time, in order. `any_span`: offsets may be
    further above the base than a segment can index. `look`, `threads`: see WindowPlan."""
    position = start
    expected = base_offset if next_offset is None else next_offset
    # The offset after the last one must be an offset too.
    highest = min(MAX_OFFSET if any_span else base_offset + MAX_RELATIVE_OFFSET, MAX_OFFSET - 1)
    plan = WindowPlan(log, size, base_offset, highest, look, threads)
    with closing(checked_windows(plan, start)) as windows:
        for window in windows:
            table = window.table
            ascending = _ascending(table, window.rows, expected)
            # These offsets ascend.
            sound = int(table.last_offset[:ascending].searchsorted(highest, side="right"))
            if sound:
                visit(window.data, table, sound, window.origin)
                position = int(table.end[sound - 1])
                expected = int(table.last_offset[sound - 1]) + 1
            if sound < table.rows:
                return SegmentCheck(position, expected, size, overflows=sound < ascending)
    return SegmentCheck(position, expected, size)


def ignore_batches(_data: memoryview, _table: BatchTable, _rows: int, _origin: int) -> None:
    """A visit that ignores the batches."""


def check_readable(log: LogFile, base_offset: int, size: int) -> SegmentCheck:
    """As `check_segment`, but a batch of an undefined magic, which no reader can read, is not sound either."""
    ends = []

    def look(_data: memoryview, table: BatchTable, rows: int, _origin: int) -> None:
        position = int(table.position[0])
        # Such a batch is alone in its window (checked_windows).
        if rows == 1 and log.read(position + MAGIC_AT, 1)[0] > MAX_MAGIC:
            ends.append(SegmentCheck(position, int(table.base_offset[0]), size))

    check = check_segment(log, base_offset, size, look)
    return ends[0] if ends else check


def never_written(log: LogFile, position: int) -> bool:
    """Whether the batch at `position` has a length of zero: nothing from there on was ever part of the log.

    The space was preallocated, or an append whose first batch gets its length last was not finished.
    """
    return not any(log.read(position + LENGTH.start, LENGTH.stop - LENGTH.start))


def _ascending(table: BatchTable, rows: int, next_offset: int) -> int:
    """How many of the first `rows` batches have ascending offsets, from `next_offset` on."""
    last = table.last_offset[:rows]
    if not rows or last[0] < next_offset:
        return 0
    falls = last[1:] <= last[:-1]
    return int(falls.argmax()) + 1 if falls.any() else rows
