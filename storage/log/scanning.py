"""Headers of a span of a segment, window by window: the way that all reading of batches goes.

The bytes are read once, headers become rows of a BatchTable, and nothing is copied. What is no batch is reported and
stepped over, to the next place where the index, checked against the log, says that one begins.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from storage.errors import CorruptBatch, StorageError, UnsupportedFormat
from storage.format.batches import BATCH_HEADER_SIZE, BatchTable, ScanStop, scan
from storage.log import buffers
from storage.log.buffers import WINDOW_BYTES
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

_ROWS: Final = 4096
_LOOK_BYTES: Final = 64 << 10  # between two index entries there is rarely more
_HEAD_BYTES: Final = 17  # up to the magic, which a batch's size is not believed without; no batch is as small
_ADVICE: Final = "`kafkafs verify` tells more, `kafkafs salvage` copies what is intact"


@dataclass(frozen=True, slots=True)
class SpanDamage:
    """Bytes from `position` (included) to `end` (excluded) that are no batches; reading goes on at `end`."""

    position: int
    end: int
    error: StorageError


@dataclass(frozen=True, slots=True)
class Window:
    """Whole batches of a segment: their headers in `table`, their bytes in `buffer`, whose first byte has the file
    position `origin`. Where `damage` is set the table is empty. Valid until the next window is taken."""

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
) -> Generator[Window, None, None]:
    """The batches that begin in [start_position, end_position) of a segment, in windows of about `window` bytes.

    `start_position` must be where a batch begins (`find_batch`); `end_position` may be anywhere, and is the segment's
    end by default. A batch larger than the window is a window of its own. Only headers are looked at; offsets that do
    not ascend are damage, like lengths that no batch has. SegmentGone when the file goes, or shrinks, meanwhile.
    """
    limit = snapshot.end_position(segment)
    end = limit if end_position is None else min(end_position, limit)
    position = start_position
    last_offset, end_offset = segment.base_offset - 1, _end_offset(snapshot, segment)
    is_known = start_position == 0  # whether `last_offset` is that of the batch before: errors name what follows it
    table = BatchTable.empty(min(_ROWS, 1 + min(window, max(end - position, 0)) // BATCH_HEADER_SIZE))
    buffer = buffers.take(window)
    needed = 0  # for a batch that is larger than a window, or reaches over the end
    try:
        while position < end:
            data = segment.read(position, max(min(window, end - position), needed), buffer)
            start = needed = 0
            while True:
                table.clear()
                outcome = scan(data, position, table, start)
                damage = None
                good = ascending_rows(table, table.rows, last_offset, end_offset)
                if good < table.rows:
                    if not is_known:
                        is_known, last_offset = True, _last_offset_before(snapshot, segment, position)
                    good = _wrong_row(table, good, last_offset, end_offset)
                    before = int(table.last_offset[good - 1]) if good else last_offset
                    damage = _wrong_offset(segment, table, good, limit, before)
                    table.rows = good
                if table.rows:
                    is_known, last_offset = True, int(table.last_offset[-1])
                    yield Window(data, position, table)
                start = outcome.next_start
                if damage is not None or outcome.stop is not ScanStop.FULL:
                    break
            if damage is None and outcome.stop is ScanStop.END and start == 0:
                claimed = (segment.batch_size(data) or 0) if len(data) >= _HEAD_BYTES else _HEAD_BYTES
                if len(data) < claimed <= limit - position and segment.is_believable(position, claimed):
                    needed = claimed
                    if needed > len(buffer):
                        buffers.give(buffer)
                        buffer = buffers.take(needed)
                    continue
                if not is_known:
                    is_known, last_offset = True, _last_offset_before(snapshot, segment, position)
                damage = _no_batch(segment, position, limit, last_offset, end_offset)
            elif damage is None and outcome.stop in (ScanStop.CORRUPT, ScanStop.UNSUPPORTED):
                if not is_known:
                    is_known, last_offset = True, _last_offset_before(snapshot, segment, position + start)
                damage = _no_batch(segment, position + start, limit, last_offset, end_offset)
            if damage is None:
                position += start
                continue
            table.clear()
            yield Window(data, position, table, damage)
            position = damage.end
    finally:
        buffers.give(buffer)


def _last_offset_before(snapshot: LogSnapshot, segment: Segment, position: int) -> int:
    """The last offset before a position, for a scan that began there and met damage at once."""
    last = segment.base_offset - 1
    start = segment.floor_position(position, snapshot.end_position(segment))
    for window in scan_batches(snapshot, segment, start, position, window=_LOOK_BYTES):
        if window.table.rows:
            last = int(window.table.last_offset[-1])
    return last


def ascending_rows(table: BatchTable, rows: int, last_offset: int, end_offset: int) -> int:
    """How many of the first `rows` batches have offsets that ascend, above `last_offset` and below `end_offset`."""
    if not rows:
        return 0
    # A compressed message set tells only its last offset; its base offset is -1.
    base, last = table.base_offset[:rows], table.last_offset[:rows]
    if last[0] <= last_offset or 0 <= base[0] <= last_offset:
        return 0
    wrong = (last[1:] <= last[:-1]) | (base[1:] <= last[:-1]) & (base[1:] >= 0)
    good = int(wrong.argmax()) + 1 if wrong.any() else rows
    return good if last[good - 1] < end_offset else int(last[:good].searchsorted(end_offset))


def _end_offset(snapshot: LogSnapshot, segment: Segment) -> int:
    """All offsets of the segment lie below this one."""
    later = snapshot.segment_index(segment.base_offset) + 1
    return snapshot.segments[later].base_offset if later < len(snapshot.segments) else snapshot.log_end_offset


def _wrong_row(table: BatchTable, row: int, last_offset: int, end_offset: int) -> int:
    """Which batch has the wrong offset, where that of `row` does not fit those before: this one, or the one before it.

    Base offsets lie outside of the CRC. One that is too high makes those behind it look too low: they outvote it.
    """
    if row == 0 or row + 1 >= table.rows or int(table.last_offset[row]) >= end_offset:
        return row
    base, last = table.base_offset.tolist(), table.last_offset.tolist()
    two_before = last[row - 2] if row > 1 else last_offset
    if not two_before < base[row] or not last[row] < last[row + 1]:
        return row
    outvoted = last[row + 1] <= last[row - 1]
    out_of_line = base[row - 1] != two_before + 1 and base[row + 1] == last[row] + 1
    return row - 1 if outvoted or out_of_line else row


def _wrong_offset(segment: Segment, table: BatchTable, row: int, limit: int, last_offset: int) -> SpanDamage:
    position = int(table.position[row])
    error = CorruptBatch(
        "offsets do not ascend",
        path=segment.log.path,
        position=position,
        offset=last_offset + 1,
        expected=f"a last offset above {last_offset}",
        found=int(table.last_offset[row]),
        advice=_ADVICE,
    )
    batch = segment.batch_at(position, limit, any_offset=True)
    if batch is not None:
        return SpanDamage(position, int(batch.end[0]), error)
    return SpanDamage(position, _resume(segment, position, limit, last_offset), error)


def _no_batch(segment: Segment, position: int, limit: int, last_offset: int, end_offset: int) -> SpanDamage:
    """What is wrong at a position where a batch should begin, and where reading can go on."""
    head = segment.log.read(position, min(BATCH_HEADER_SIZE, limit - position))
    length = int.from_bytes(head[8:12], "big", signed=True)
    claimed = int.from_bytes(head[:8], "big", signed=True)
    magic = head[16] if len(head) > 16 else None
    end = _resume(segment, position, limit, last_offset)
    error: StorageError
    if magic is not None and magic > 2:
        # The header's length may well be right: then only this batch is lost to us.
        behind = position + 12 + length
        if position < behind < end and segment.batch_at(behind, limit) is not None:
            end = behind
        error = UnsupportedFormat(
            "record batch has an unknown format version",
            path=segment.log.path,
            position=position,
            # Readers go by it: what is none of this place would make them pass over the damage.
            offset=claimed if last_offset < claimed < end_offset else last_offset + 1,
            expected="magic 0, 1 or 2",
            found=magic,
            advice=_ADVICE,
        )
    else:
        error = CorruptBatch(
            "no record batch begins here",
            path=segment.log.path,
            position=position,
            offset=last_offset + 1,
            expected=f"a length from 14 to {limit - position - 12}",
            found=length if len(head) >= 12 else f"{len(head)} bytes",
            advice=_ADVICE,
        )
    return SpanDamage(position, end, error)


def _resume(segment: Segment, position: int, limit: int, last_offset: int) -> int:
    behind = segment.resume_after(position, last_offset, limit)
    return limit if behind is None else behind
