"""The whole of a segment looked at, batch by batch, as recovery does: up to the first batch that is not sound.

Source: LogSegment.recover. Sound is a whole batch with a right CRC whose offsets continue the segment. (Kafka compares
offsets only where it adds an index entry, and then empties the segment; we cut it there.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from storage.files.log_file import LogFile
from storage.format.batches import LENGTH, LOG_OVERHEAD, BatchTable, Scan, ScanStop, scan
from storage.format.decoder import verify_crcs
from storage.log import buffers

_ROWS: Final = 65_536
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_MAGIC_AT: Final = 16

# Given bytes, headers with positions in the file, how many of those rows are meant, and the first byte's file position.
Visit = Callable[[memoryview, BatchTable, int, int], None]


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """Sound batches end at the position `end`, with offsets below `next_offset`; `size` is the file's. `overflows`: but
    for its offsets, too far above the base, the next batch would be sound too."""

    end: int
    next_offset: int
    size: int
    overflows: bool = False

    @property
    def invalid_bytes(self) -> int:
        """Bytes behind the last sound batch."""
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
    window: int = buffers.WINDOW_BYTES,
) -> SegmentCheck:
    """Looks at the batches of a .log of `size` bytes from the position `start` on, where offsets from `next_offset` on
    are expected; `visit` is given the sound ones, a range of them at a time, in order. `any_span`: offsets may lie
    further above the base than a segment can index. `window`: bytes read at a time."""
    position = start
    overflows = False
    expected = base_offset if next_offset is None else next_offset
    buffer = buffers.take(min(window, max(size - position, buffers.WINDOW_BYTES)))
    table = BatchTable.empty(_ROWS)
    try:
        while position < size:
            data = log.read(position, min(len(buffer), size - position), buffer)
            if not len(data):
                break
            table.clear()
            outcome = scan(data, position, table)
            if outcome.stop is ScanStop.UNSUPPORTED and not table.rows:
                data, outcome = _with_known_magic(data, position, table)
            damage = verify_crcs(data, table, 0, table.rows, position) if table.rows else None
            rows = table.rows if damage is None else damage.row
            ascending = _ascending(table, rows, expected)
            limit = None if any_span else base_offset + MAX_RELATIVE_OFFSET
            sound = ascending if limit is None else int((table.last_offset[:ascending] <= limit).sum())
            if sound:
                visit(data, table, sound, position)
                position = int(table.end[sound - 1])
                expected = int(table.last_offset[sound - 1]) + 1
            if sound < table.rows:
                overflows = sound < ascending
                break
            if not table.rows:
                wanted = _wanted(data, size - position)
                if outcome.stop is not ScanStop.END or wanted <= len(data):
                    break
                buffers.give(buffer)
                buffer = buffers.take(wanted)
    finally:
        buffers.give(buffer)
    return SegmentCheck(position, expected, size, overflows)


def ignore_batches(_data: memoryview, _table: BatchTable, _rows: int, _origin: int) -> None:
    """A visit that takes no interest in the batches themselves."""


def never_written(log: LogFile, position: int) -> bool:
    """Whether the batch at `position` has a length of zero: what is there, and behind it, never was in the log.

    The space was preallocated, or an append was not finished whose first batch gets its length last.
    """
    return not any(log.read(position + LENGTH.start, LENGTH.stop - LENGTH.start))


def _ascending(table: BatchTable, rows: int, next_offset: int) -> int:
    """How many of the first `rows` batches have ascending offsets, from `next_offset` on."""
    first = np.flatnonzero(np.diff(table.last_offset[:rows], prepend=next_offset - 1) <= 0)
    return int(first[0]) if len(first) else rows


def _with_known_magic(data: memoryview, position: int, table: BatchTable) -> tuple[memoryview, Scan]:
    """One batch of a magic that nobody has defined, read as v2, as Kafka does: the magic lies outside the CRC."""
    if len(data) <= _MAGIC_AT or data[_MAGIC_AT] in (0, 1, 2):
        return data, scan(data, position, table)
    copy = bytearray(data)
    copy[_MAGIC_AT] = 2
    outcome = scan(copy, position, table)
    # Only the first batch was meant: the others may be of any magic again.
    table.rows = min(table.rows, 1)
    return memoryview(copy), outcome


def _wanted(data: memoryview, left: int) -> int:
    """Bytes that the batch at the start of `data` claims to have, 0 if more than there are."""
    if len(data) < LOG_OVERHEAD:
        return 0
    length = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
    return length if length <= left else 0
