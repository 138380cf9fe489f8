"""Checks a segment batch by batch, as recovery does: up to the first batch that is not sound.

Source: LogSegment.recover. A sound batch is whole, has a right CRC, and its offsets continue the segment. Kafka
compares offsets only when it adds an index entry: recovery passes `any_order`, so that it removes nothing that Kafka
keeps. A mount stops at offsets that go back, and passes over batches that repeat earlier ones, as readers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.files.log_file import LogFile
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_MAGIC,
    MAX_RELATIVE_OFFSET,
    MOST_BATCH_BYTES,
    BatchTable,
    ScanOutcome,
    ScanStop,
    header_of,
    scan,
)
from storage.format.decoder import LEAST_MESSAGE, verify_crcs
from storage.log.segment import BELIEVED_BYTES, has_right_crc
from storage.types import MAX_OFFSET

# Large, so that numpy is called rarely per byte.
WINDOW_BYTES: Final = 8 << 20
_FEW_ROWS: Final = 4096
_ROWS: Final = 65_536

# Arguments: bytes, headers with positions in the file, how many of those rows count, the first byte's file position.
Visit = Callable[[memoryview, BatchTable, int, int], None]
# Whether the batch in a row repeats an earlier batch (Segment.repeats).
Repeats = Callable[[BatchTable, int], bool]


@dataclass(slots=True)
class CheckedWindow:
    """Whole batches: their headers in `table`; `data` has their bytes, from the file position `origin` on, or only the
    header of a batch above MOST_BATCH_BYTES (`bytes_of` reads it). The first `rows` CRCs are right; that of a batch
    after them is wrong."""

    data: memoryview
    table: BatchTable
    origin: int
    rows: int

    @property
    def end(self) -> int:
        """The position in the file where the last batch ends."""
        return int(self.table.position[-1] + self.table.size[-1])

    def part(self, first: int, last: int) -> CheckedWindow:
        """The window of the rows from `first` to `last` (excluded)."""
        table = self.table.slice(first, last).copy()  # kernels need its columns in one piece
        return CheckedWindow(self.data, table, self.origin, min(self.rows, last) - first)


def checked_windows(log: LogFile, size: int, start: int) -> Iterator[CheckedWindow]:
    """Yield the first `size` bytes of a .log from the position `start` on, in large windows of whole batches, in order,
    up to where no whole batch begins. Their CRCs have been checked.

    A window stays valid until the next one is requested. Errors of LogFile.read.
    """
    buffer = _WindowBuffer(log, size)
    position = start
    while position < size:
        window = buffer.window(position)
        if window is None:
            return
        position = window.end
        yield window


class _WindowBuffer:
    """The memory for windows, reused."""

    __slots__ = ("_bytes", "_log", "_size", "_table")

    def __init__(self, log: LogFile, size: int) -> None:
        self._log = log
        self._size = size
        self._bytes = memoryview(b"")
        self._table = BatchTable.empty(0)

    def window(self, position: int) -> CheckedWindow | None:
        """The checked batches from `position` on; only the first if it is larger than a window; None if none begins
        there."""
        window_bytes = min(WINDOW_BYTES, self._size - position)
        while True:
            data = self._read(position, window_bytes)
            outcome = self._scan(data, position)
            if outcome.stop is ScanStop.UNSUPPORTED and not self._table.rows:
                data, outcome = _with_known_magic(data, position, self._table)
            if self._table.rows:
                return self._checked(data, position)
            was_cut = len(data) < min(window_bytes, self._size - position)
            window_bytes = _claimed(data, self._size - position)
            if outcome.stop is not ScanStop.END or window_bytes <= len(data) or was_cut:
                return None
            if window_bytes > BELIEVED_BYTES and not has_right_crc(self._log, position, window_bytes):
                return None
            if window_bytes > MOST_BATCH_BYTES:
                return _large(self._log, position, window_bytes)

    def _read(self, position: int, size: int) -> memoryview:
        size = min(size, self._size - position)
        if len(self._bytes) < size:
            # numpy requests huge pages: otherwise a window costs thousands of page faults.
            self._bytes = np.empty(size, np.uint8).data
        return self._log.read(position, size, self._bytes)

    def _scan(self, data: memoryview, position: int) -> ScanOutcome:
        """Put the headers of `data` into the table, which grows only for many batches: usually they are few, and all
        columns take as much memory as the bytes."""
        rows = 1 + len(data) // LEAST_MESSAGE
        if self._table.capacity < min(rows, _FEW_ROWS):
            self._table = BatchTable.empty(min(rows, _FEW_ROWS))
        self._table.clear()
        outcome = scan(data, position, self._table)
        if outcome.stop is ScanStop.FULL and self._table.capacity < _ROWS:
            self._table = BatchTable.empty(_ROWS)
            outcome = scan(data, position, self._table)
        return outcome

    def _checked(self, data: memoryview, origin: int) -> CheckedWindow:
        damage = verify_crcs(data, self._table, 0, self._table.rows, origin)
        return CheckedWindow(data, self._table, origin, self._table.rows if damage is None else damage.row)


def _large(log: LogFile, position: int, size: int) -> CheckedWindow:
    """The window of a batch whose CRC is right, with only its header in memory."""
    data = log.read(position, BATCH_HEADER_SIZE)
    return CheckedWindow(data, header_of(data, position, size), position, 1)


def _with_known_magic(data: memoryview, position: int, table: BatchTable) -> tuple[memoryview, ScanOutcome]:
    """Read a batch of an undefined magic as v2, as Kafka does: the CRC does not cover the magic. But a magic from 128
    on, a signed byte in Kafka, is that of an old message, whose CRC is elsewhere."""
    if len(data) <= MAGIC_AT or not MAX_MAGIC < data[MAGIC_AT] < 128:
        return data, scan(data, position, table)
    copy = bytearray(data)
    copy[MAGIC_AT] = 2
    outcome = scan(copy, position, table)
    # Only the first batch was changed: the others may again have any magic.
    table.rows = min(table.rows, 1)
    return memoryview(copy), outcome


def _claimed(data: memoryview, left: int) -> int:
    """The bytes that the batch at the start of `data` claims to have, 0 if more than `left`."""
    if len(data) < LOG_OVERHEAD:
        return 0
    length = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
    return length if length <= left else 0


class SegmentCheck(NamedTuple):
    """Sound batches end at the position `end`, with offsets below `next_offset`; `size` is the file's.

    `last_offset`: that of the last sound batch. `overflows`: the next batch would be sound too if it did not reach
    `end_offset`. `falls`: how many sound batches have a last offset that is not above the previous one's. `copies`: how
    many batches were passed over. `unreadable`: the position of the first sound batch that readers refuse: it begins
    before the previous one ends, or its magic is undefined. No CRC covers either, and recovery keeps it.
    """

    end: int
    next_offset: int
    size: int
    last_offset: int = -1
    overflows: bool = False
    falls: int = 0
    copies: int = 0
    unreadable: int | None = None

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
    end_offset: int = MAX_OFFSET,
    any_order: bool = False,
    repeats: Repeats | None = None,
) -> SegmentCheck:
    """Check the batches of a .log of `size` bytes from the position `start` on, where offsets from `next_offset` on are
    expected; call `visit` with the sound ones, a range of them at a time, in order. `end_offset`: a batch that reaches
    it is not sound. `any_order`: a batch of the segment is sound even if its offset is below the expected one.
    `repeats`: batches that repeat earlier ones are passed over."""
    position = start
    expected = base_offset if next_offset is None else next_offset
    before = expected - 1  # the last offset of the previous batch
    # The offset after the last offset must be valid too.
    highest = min(end_offset, MAX_OFFSET) - 1
    falls, copies, unreadable = 0, 0, None
    for window, is_copy in _without_copies(checked_windows(log, size, start), repeats, before):
        if is_copy:
            position, copies = window.end, copies + 1
            continue
        table = window.table
        last_offsets = table.last_offset[: window.rows]
        previous = np.append(before, last_offsets[:-1])
        rises = last_offsets > previous
        all_rise = bool(rises.all())
        if all_rise:
            in_order = window.rows
            sound = int(last_offsets.searchsorted(highest, side="right"))
        else:
            in_order = _rows_until(last_offsets < base_offset) if any_order else _rows_until(~rises)
            sound = _rows_until(last_offsets[:in_order] > highest)
        if sound:
            visit(window.data, table, sound, window.origin)
            falls += 0 if all_rise else sound - int(rises[:sound].sum())
            if unreadable is None:
                is_unknown = has_undefined_magic(log, table, sound)
                unreadable = int(table.position[0]) if is_unknown else _overlap(table, previous, sound)
            position = int(table.end[sound - 1])
            before = int(last_offsets[sound - 1])
            expected = before + 1 if all_rise else max(expected, int(last_offsets[:sound].max()) + 1)
        if sound < table.rows:
            return SegmentCheck(position, expected, size, before, sound < in_order, falls, copies, unreadable)
    return SegmentCheck(position, expected, size, before, falls=falls, copies=copies, unreadable=unreadable)


def _without_copies(
    windows: Iterator[CheckedWindow], repeats: Repeats | None, last_offset: int
) -> Iterator[tuple[CheckedWindow, bool]]:
    """The windows, divided where a batch repeats an earlier one; and whether a window is only such a batch. Without
    `repeats` as they are. `last_offset`: the last one before the windows."""
    for window in windows:
        if repeats is None:
            yield window, False
            continue
        table, start = window.table, 0
        last_offsets = table.last_offset[: window.rows]
        greatest = np.maximum.accumulate(np.append(last_offset, last_offsets))
        for row in np.flatnonzero(last_offsets <= greatest[:-1]).tolist():
            if not repeats(table, row):
                break
            if start < row:
                yield window.part(start, row), False
            yield window.part(row, row + 1), True
            start = row + 1
        if not start:
            yield window, False
        elif start < table.rows:
            yield window.part(start, table.rows), False
        last_offset = int(greatest[-1])


def _overlap(table: BatchTable, previous: npt.NDArray[np.int64], rows: int) -> int | None:
    """The position of the first batch that begins before the previous one ends. `previous`: the last offset of the
    batch before each."""
    begins = table.base_offset[:rows]
    too_early = begins <= previous[:rows]
    if too_early.any():
        too_early &= begins >= 0  # -1: unknown, of a compressed set
    row = _rows_until(too_early)
    return int(table.position[row]) if row < rows else None


def has_undefined_magic(log: LogFile, table: BatchTable, rows: int) -> bool:
    """Whether the first `rows` batches of a window are one of an undefined magic, which no reader can read: it is alone
    in its window (checked_windows)."""
    return rows == 1 and log.read(int(table.position[0]) + MAGIC_AT, 1)[0] > MAX_MAGIC


def ignore_batches(_data: memoryview, _table: BatchTable, _rows: int, _origin: int) -> None:
    """A visit that ignores the batches."""


def check_readable(log: LogFile, base_offset: int, size: int) -> SegmentCheck:
    """`check_segment` that also refuses a batch of an undefined magic, which no reader can read, and a batch too far
    above the base for the indexes."""
    ends = []

    def visit(_data: memoryview, table: BatchTable, rows: int, _origin: int) -> None:
        if has_undefined_magic(log, table, rows):
            ends.append(SegmentCheck(int(table.position[0]), int(table.base_offset[0]), size))

    check = check_segment(log, base_offset, size, visit, end_offset=base_offset + MAX_RELATIVE_OFFSET + 1)
    return ends[0] if ends else check


def _rows_until(stops: npt.NDArray[np.bool_]) -> int:
    """The number of rows before the first that is true."""
    return int(stops.argmax()) if stops.any() else len(stops)
