"""Headers of a span of a segment, window by window. All readers of batches use this module.

The bytes are read once, headers become rows of a BatchTable, and nothing is copied. Bytes that are not a batch are
reported and skipped, up to the next batch that the index knows and the log confirms.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from storage.errors import CorruptBatch, StorageError, TierUnavailable, UnsupportedFormat
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    MOST_BATCH_BYTES,
    BatchTable,
    ScanStop,
    claimed_times,
    claimed_times_in,
    header_of,
    scan,
)
from storage.format.decoder import verify_crcs
from storage.log.segment import LOOKUP_BYTES, WINDOW_BYTES, Segment, give, take
from storage.log.snapshot import LogSnapshot
from storage.log.tiered_file import unavailable

_ROWS: Final = 4096
_HEAD_BYTES: Final = 17  # up to the magic, without which a batch's size is not trusted; every batch is larger
_ADVICE: Final = "`kafkafs verify` shows more, `kafkafs salvage` copies what is intact"


class SpanDamage(NamedTuple):
    """Bytes from `position` (included) to `end` (excluded) that are not batches; reading continues at `end`.

    `times`: the two timestamps in the header of a batch that begins there, even if the batch is damaged; None if no
    batch begins there.
    """

    position: int
    end: int
    error: StorageError
    times: tuple[int, int] | None = None


class Window(NamedTuple):
    """Whole batches of a segment: their headers in `table`, their bytes in `buffer`, whose first byte has the file
    position `origin`. A batch above MOST_BATCH_BYTES is alone in its window: `buffer` has only its header, and its CRC
    is right (`bytes_of` reads it). If `damage` is set, the table is empty. Valid until the next window is taken."""

    buffer: memoryview
    origin: int
    table: BatchTable
    damage: SpanDamage | None = None


def scan_batches(
    snapshot: LogSnapshot,
    segment: Segment,
    start_position: int,
    end_position: int | None = None,
    *,
    window: int = WINDOW_BYTES,
    at_copy: bool = False,
) -> Generator[Window, None, None]:
    """Yield the batches that begin in [start_position, end_position) of a segment, in windows of about `window` bytes.

    A batch must begin at `start_position` (`find_batch`); `end_position` may be anywhere, and is the segment's end by
    default. A batch larger than the window is a window by itself. Only headers are checked; offsets that do not ascend
    are damage, as are impossible lengths. SegmentGone if the file is removed, or becomes shorter, meanwhile.

    A batch that is in the segment twice is yielded once. `at_copy`: also if `start_position` may be that of a second
    copy, which positions that were looked up (`Segment.floor`) are not.
    """
    return _BatchScan(snapshot, segment, start_position, end_position, at_copy).windows(window)


def scan_sound_batches(
    snapshot: LogSnapshot, segment: Segment, start_position: int, *, window: int = WINDOW_BYTES
) -> Generator[Window, None, None]:
    """`scan_batches` up to the segment's end, without empty windows. Damage is raised: CorruptBatch and the like."""
    with closing(scan_batches(snapshot, segment, start_position, window=window)) as windows:
        for scanned in windows:
            if scanned.damage is not None:
                raise scanned.damage.error
            yield scanned


class _BatchScan:
    """A scan: its position in the segment, and the last offset so far."""

    __slots__ = (
        "_at_copy",
        "_end",
        "_end_offset",
        "_last_batch",
        "_last_offset",
        "_limit",
        "_offset_before_last",
        "_position",
        "_segment",
        "_snapshot",
    )

    def __init__(self, snapshot: LogSnapshot, segment: Segment, start: int, end: int | None, at_copy: bool) -> None:
        self._snapshot = snapshot
        self._segment = segment
        self._limit = snapshot.end_position(segment)
        self._end = self._limit if end is None else min(end, self._limit)
        self._end_offset = _end_offset(snapshot, segment)
        self._position = start
        self._at_copy = at_copy
        # None if the scan did not begin with the segment: looked up when an error has to name the next offset.
        self._last_offset = segment.base_offset - 1 if start == 0 else None
        # The position of the last batch in a window so far, and the last offset before that batch.
        self._last_batch: int | None = None
        self._offset_before_last = segment.base_offset - 1

    def windows(self, window: int) -> Generator[Window, None, None]:
        segment, end = self._segment, self._end
        rows = 1 + min(window, max(end - self._position, 0)) // BATCH_HEADER_SIZE
        table = BatchTable.empty(min(_ROWS, rows))
        # Bytes are read in growing steps if most of them may be a hole.
        is_long = min(window, end - self._position) > LOOKUP_BYTES
        step = LOOKUP_BYTES if is_long and segment.log.has_holes() else window
        buffer = take(window)
        needed = 0  # the size of a batch that is larger than a window, or extends beyond the end
        try:
            while self._position < end:
                position = self._position
                try:
                    data = segment.read(position, max(min(step, end - position), needed), buffer)
                except TierUnavailable as error:
                    table.clear()
                    yield Window(memoryview(b""), position, table, self._unavailable(position, error))
                    return
                step = min(2 * step, window)
                start, stop, damage = 0, ScanStop.FULL, None
                while damage is None and stop is ScanStop.FULL:
                    table.clear()
                    start, stop = scan(data, position, table, start)
                    damage, repeated = self._check_offsets(data, position, table)
                    if table.rows:
                        yield Window(data, position, table)
                    if repeated is not None:
                        start, stop = repeated - position, ScanStop.FULL
                needed = self._size_of_a_larger_batch(data) if stop is ScanStop.END and start == 0 else 0
                if needed > MOST_BATCH_BYTES and damage is None:
                    yield from self._large(position, needed)
                    needed = 0
                    continue
                if needed and damage is None:
                    if needed > len(buffer):
                        give(buffer)
                        buffer = take(needed)
                    continue
                if damage is None and (start == 0 or stop is not ScanStop.END):
                    damage = self._no_batch(position + start)
                self._position = position + start
                if damage is not None:
                    table.clear()
                    yield Window(data, position, table, damage)
                    self._position = damage.end
        finally:
            give(buffer)

    def _large(self, position: int, size: int) -> Iterator[Window]:
        """The window of a large batch, whose CRC is right: its header alone."""
        data = self._segment.read(position, BATCH_HEADER_SIZE)
        table = header_of(data, position, size)
        damage, repeated = self._check_offsets(data, position, table)
        if repeated is None:
            yield Window(data, position, table, damage)
        self._position = position + size if damage is None else damage.end

    def _check_offsets(self, data: memoryview, origin: int, table: BatchTable) -> tuple[SpanDamage | None, int | None]:
        """Keep the rows before the first row whose offset is wrong; return the damage of that row, or, if the row
        repeats an earlier batch, the position after it."""
        known = self._last_offset
        least = self._segment.base_offset - 1 if known is None else known
        good = ascending_rows(table, table.rows, least, self._end_offset)
        if self._at_copy and known is None and good and self._segment.repeats(table, 0):
            good = 0
        if table.rows and not good and self._is_last_batch_corrupt():
            # The last offset came from the header of a damaged batch at the end of the previous window.
            self._last_offset = least = self._offset_before_last
            good = ascending_rows(table, table.rows, least, self._end_offset)
        damage = repeated = None
        if good < table.rows and self._segment.repeats(table, good):
            repeated = int(table.end[good])
            table.rows = good
        elif good < table.rows:
            before = self._offset_before(self._position)
            good = _wrong_row(data, origin, table, good, before, self._end_offset)
            last_offset = int(table.last_offset[good - 1]) if good else before
            damage = self._wrong_offset(data, origin, table, good, last_offset)
            table.rows = good
        if good:
            self._last_batch = int(table.position[good - 1])
            self._offset_before_last = int(table.last_offset[good - 2]) if good > 1 else least
            self._last_offset = int(table.last_offset[good - 1])
        return damage, repeated

    def _is_last_batch_corrupt(self) -> bool:
        position = self._last_batch
        return position is not None and self._segment.batch_at(position, self._limit, any_offset=True) is None

    def _size_of_a_larger_batch(self, data: memoryview) -> int:
        """The bytes to read for the batch that begins with `data` and is longer; 0 if no batch begins so."""
        claimed = (self._segment.batch_size(data) or 0) if len(data) >= _HEAD_BYTES else _HEAD_BYTES
        fits = len(data) < claimed <= self._limit - self._position
        return claimed if fits and self._segment.is_believable(self._position, claimed) else 0

    def _offset_before(self, position: int) -> int:
        """The last offset before a position that the scan has reached."""
        if self._last_offset is None:
            self._last_offset = _last_offset_before(self._snapshot, self._segment, position)
        return self._last_offset

    def _wrong_offset(self, data: memoryview, origin: int, table: BatchTable, row: int, last_offset: int) -> SpanDamage:
        """The damage of the batch in a row, whose offset does not follow `last_offset`."""
        position, end, times = int(table.position[row]), int(table.end[row]), claimed_times(table, row)
        corrupt = verify_crcs(data, table, row, row + 1, origin)
        if corrupt is None:
            expected, found = f"a last offset above {last_offset}", int(table.last_offset[row])
            error = self._error(CorruptBatch, "offsets do not ascend", position, last_offset + 1, expected, found)
            return SpanDamage(position, end, error, times)
        wrong = corrupt.error
        error = self._error(CorruptBatch, wrong.what, position, last_offset + 1, wrong.expected, wrong.found)
        return SpanDamage(position, self._resume(position, end, last_offset), error, times)

    def _no_batch(self, position: int) -> SpanDamage:
        """The damage at a position where a batch should begin, up to where reading can continue."""
        segment, limit, last_offset = self._segment, self._limit, self._offset_before(position)
        head = segment.log.read(position, min(BATCH_HEADER_SIZE, limit - position))
        length = int.from_bytes(head[8:12], "big", signed=True)
        claimed = int.from_bytes(head[:8], "big", signed=True)
        magic = head[16] if len(head) > 16 else None
        end = self._resume(position, position + 12 + length, last_offset)
        times = claimed_times_in(head)
        if magic is not None and magic > 2:
            what, expected = "record batch has an unknown format version", "magic 0, 1 or 2"
            # Readers use this offset: an offset of another segment would make them skip the damage.
            offset = claimed if last_offset < claimed < self._end_offset else last_offset + 1
            return SpanDamage(position, end, self._error(UnsupportedFormat, what, position, offset, expected, magic))
        expected = f"a length from 14 to {limit - position - 12}"
        found = length if len(head) >= 12 else f"{len(head)} bytes"
        error = self._error(CorruptBatch, "no record batch begins here", position, last_offset + 1, expected, found)
        return SpanDamage(position, end, error, times)

    def _unavailable(self, position: int, error: TierUnavailable) -> SpanDamage:
        """The rest of the segment as damage, because a tier cannot deliver it and nothing else shows where batches
        begin."""
        first = self._offset_before(position) + 1 if position else self._segment.base_offset
        kind = self._segment.remote_kind
        return SpanDamage(position, self._limit, unavailable(first, self._end_offset, error.found, error.path, kind))

    def _error(
        self, kind: type[StorageError], what: str, position: int, offset: int, expected: object, found: object
    ) -> StorageError:
        path = self._segment.log.path
        return kind(what, path=path, position=position, offset=offset, expected=expected, found=found, advice=_ADVICE)

    def _resume(self, position: int, claimed: int, last_offset: int) -> int:
        """Where reading can continue after the batch at `position`: at `claimed`, its end by its own length, if a batch
        begins there and the index knows of none before; otherwise at the next batch that the index knows."""
        behind = self._segment.resume_after(position, last_offset, self._limit)
        end = self._limit if behind is None else behind
        is_batch = position < claimed < end and self._segment.batch_at(claimed, self._limit) is not None
        return claimed if is_batch else end


def _last_offset_before(snapshot: LogSnapshot, segment: Segment, position: int) -> int:
    """The last offset before a position, for a scan that began at this position and met damage at once."""
    last, _ = _last_offset(snapshot, segment, position)
    return last


def last_offset_before(snapshot: LogSnapshot, segment: Segment, position: int) -> int | None:
    """The last offset before a position; the segment's base - 1 if there is no batch; None if damage hides it."""
    last, damaged = _last_offset(snapshot, segment, position)
    return None if damaged else last


def _last_offset(snapshot: LogSnapshot, segment: Segment, position: int) -> tuple[int, bool]:
    """The last readable offset before a position, and whether damage follows it."""
    last, damaged = segment.base_offset - 1, False
    start = segment.floor_position(position, snapshot.end_position(segment))
    for window in scan_batches(snapshot, segment, start, position, window=LOOKUP_BYTES):
        damaged = window.damage is not None
        if window.table.rows:
            last = int(window.table.last_offset[-1])
    return last, damaged


def ascending_rows(table: BatchTable, rows: int, last_offset: int, end_offset: int) -> int:
    """How many of the first `rows` batches have offsets that ascend, above `last_offset` and below `end_offset`."""
    if not rows:
        return 0
    # A compressed message set has only its last offset; its base offset is -1.
    base, last = table.base_offset[:rows], table.last_offset[:rows]
    if last[0] <= last_offset or 0 <= base[0] <= last_offset:
        return 0
    wrong = (last[1:] <= last[:-1]) | (base[1:] <= last[:-1]) & (base[1:] >= 0)
    good = int(wrong.argmax()) + 1 if wrong.any() else rows
    return good if last[good - 1] < end_offset else int(last[:good].searchsorted(end_offset))


def _end_offset(snapshot: LogSnapshot, segment: Segment) -> int:
    """All offsets of the segment lie below this one."""
    later = snapshot.segment_index(segment.base_offset) + 1
    if later < len(snapshot.segments):
        return snapshot.segments[later].base_offset
    return max(snapshot.log_end_offset, snapshot.last_batch_end)


def _wrong_row(data: memoryview, origin: int, table: BatchTable, row: int, last_offset: int, end_offset: int) -> int:
    """The row of the batch with the wrong offset, if the offset of `row` does not follow: `row`, or the one before.

    Damage in the previous batch's header may have raised its last offset: then its CRC is wrong. But no CRC covers base
    offsets. A base offset that is too high makes the following batches look too low: they outvote it.
    """
    if row == 0 or int(table.last_offset[row]) >= end_offset:
        return row
    if verify_crcs(data, table, row - 1, row, origin) is not None:
        return row - 1
    base, last = table.base_offset.tolist(), table.last_offset.tolist()
    two_before = last[row - 2] if row > 1 else last_offset
    if row + 1 >= table.rows:
        width = last[row - 1] - base[row - 1] + 1
        fits_between = base[row - 1] != two_before + 1 == base[row] - width
        return row - 1 if fits_between else row
    if not two_before < base[row] or not last[row] < last[row + 1]:
        return row
    outvoted = last[row + 1] <= last[row - 1]
    out_of_line = base[row - 1] != two_before + 1 and base[row + 1] == last[row] + 1
    return row - 1 if outvoted or out_of_line else row
