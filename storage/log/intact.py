"""Walks a .log around its damage: where it breaks off, why, and where whole batches continue after that.

For tools that look at everything that is left (verify, salvage). Readers work differently (scanning.py): they use an
index where the log confirms it, and never search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from storage.format.batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, MAX_MAGIC, MAX_RELATIVE_OFFSET, BatchTable, scan
from storage.format.decoder import verify_crcs
from storage.log.batch_search import Budget, Undecided, intact_batch
from storage.log.checked_windows import Visit
from storage.log.segment import Segment
from storage.log.segment_check import check_segment, never_written
from storage.types import MAX_OFFSET

_HEAD_BYTES: Final = 17  # up to the magic
_LEAST_LENGTH: Final = 14


class Fault(Enum):
    """Why no sound batch begins at a position."""

    CRC = "batch fails its CRC"
    CUT_OFF = "batch is cut off"
    LENGTH = "batch has an impossible length"
    ZEROS = "zeros where a batch should begin"
    GARBAGE = "bytes that are not a batch"
    ORDER = "offsets do not ascend"
    RANGE = "offset does not fit the segment"


@dataclass(frozen=True, slots=True)
class Break:
    """Bytes from `position` to `end` that are not sound batches; `offset` was expected there.

    ORDER: the batch at `position` is whole and counts (`end` is `position`), but its offset, or that of the one before
    it, is wrong. `intact_behind`: whole batches follow at `end`. `undecided`: nobody has looked at all that is behind
    it, because too much of that looks like batches.
    """

    fault: Fault
    position: int
    end: int
    offset: int
    expected: object
    found: object
    intact_behind: bool
    undecided: bool = False

    @property
    def behind(self) -> str:
        """What is known of the bytes behind, for a person; "" where there is nothing to tell."""
        if self.undecided:
            return "; too much behind it looks like batches for all of it to be checked, and nothing of it is taken"
        return f"; intact again from position {self.end}" if self.intact_behind else ""


@dataclass(frozen=True, slots=True)
class Walk:
    """The walk over a segment: its breaks in order, and the offset after the last sound batch."""

    breaks: tuple[Break, ...]
    next_offset: int


def walk(
    segment: Segment,
    visit: Visit,
    passed: Callable[[Break, int], None],
    end_offset: int = MAX_OFFSET,
    *,
    look: Visit | None = None,
    threads: int = 1,
) -> Walk:
    """Calls `visit` with all whole batches of a segment, as `check_segment` does, also with those after its breaks.

    `passed`: called with each break when the walk reaches it, and the offset at which it continues. `end_offset`: where
    the next segment begins; what looks like a batch after a break but lies beyond that is not one. `look`, `threads`:
    see WindowPlan.
    """
    base_offset, size = segment.base_offset, segment.size
    breaks: list[Break] = []
    highest = min(base_offset + MAX_RELATIVE_OFFSET, end_offset - 1)
    position, expected, greatest = 0, base_offset, base_offset
    budget, undecided = Budget(size), False
    while position < size:
        check = check_segment(
            segment.log, base_offset, size, visit, start=position, next_offset=expected, look=look, threads=threads
        )
        greatest = max(greatest, check.next_offset)
        if not check.invalid_bytes:
            break
        found = _diagnosed(segment, check.end, check.next_offset)
        behind: int | None = check.end
        if found.fault is Fault.ZEROS and end_offset == MAX_OFFSET and never_written(segment.log, check.end):
            behind = None  # an unfinished append follows, which was never part of the log
        elif found.fault is not Fault.ORDER:
            behind = _claimed_end(segment, check.end, base_offset, highest)
            try:
                if behind is None:
                    behind = intact_batch(segment, check.end + 1, size, base_offset, highest, budget=budget)
            except Undecided:
                undecided = True
        batch = None if behind is None or behind >= size else segment.batch_at(behind, size, any_offset=True)
        end, offset = size, check.next_offset
        if behind is not None and batch is not None:
            base, last = int(batch.base_offset[0]), int(batch.last_offset[0])
            end, offset = behind, last if base < 0 else min(base, last)
        there = batch is not None
        broken = Break(found.fault, check.end, end, check.next_offset, found.expected, found.found, there, undecided)
        breaks.append(broken)
        passed(broken, offset)
        position, expected = end, offset
    return Walk(tuple(breaks), greatest)


def _claimed_end(segment: Segment, position: int, lowest: int, highest: int) -> int | None:
    """Where the batch at `position` ends by its own length, if that is the end of the file or a batch begins there.

    A batch that is damaged inside may hold bytes that look like batches: copies of other logs, for example.
    """
    size = segment.size
    length = _length(segment.log.read(position, min(BATCH_HEADER_SIZE, size - position)))
    if length is None or not _LEAST_LENGTH <= length <= size - position - LOG_OVERHEAD:
        return None
    end = position + LOG_OVERHEAD + length
    if end == size:
        return end
    batch = segment.batch_at(end, size, any_offset=True)
    return end if batch is not None and lowest <= int(batch.last_offset[0]) <= highest else None


def _length(head: memoryview) -> int | None:
    return None if len(head) < LOG_OVERHEAD else int.from_bytes(head[8:12], "big", signed=True)


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    fault: Fault
    expected: object = None
    found: object = None


def _diagnosed(segment: Segment, position: int, next_offset: int) -> _Diagnosis:
    """Why there is no sound batch at `position`, where one with offsets from `next_offset` on should begin."""
    base_offset = segment.base_offset
    left = segment.size - position
    head = segment.log.read(position, min(BATCH_HEADER_SIZE, left))
    if not any(head):
        return _Diagnosis(Fault.ZEROS, "a batch", f"{left} bytes")
    length = _length(head)
    if length is None or len(head) < _HEAD_BYTES:
        return _Diagnosis(Fault.CUT_OFF, f"{BATCH_HEADER_SIZE} bytes of header", f"{left} bytes")
    if head[16] > MAX_MAGIC:
        return _Diagnosis(Fault.GARBAGE, "magic 0, 1 or 2", head[16])
    if length == 0:
        return _Diagnosis(Fault.ZEROS, "a length", 0)
    if length < _LEAST_LENGTH:
        return _Diagnosis(Fault.LENGTH, f"{_LEAST_LENGTH} or more", length)
    if length > left - LOG_OVERHEAD:
        return _Diagnosis(Fault.CUT_OFF, f"{length + LOG_OVERHEAD} bytes", f"{left} bytes")
    if not segment.is_believable(position, length + LOG_OVERHEAD):
        return _Diagnosis(Fault.CRC)
    data = segment.log.read(position, length + LOG_OVERHEAD)
    table = BatchTable.empty(1)
    scan(data, position, table)
    if table.rows != 1:
        return _Diagnosis(Fault.LENGTH, "room for a batch header", length)
    damage = verify_crcs(data, table, 0, 1, position)
    if damage is not None:
        return _Diagnosis(Fault.CRC, f"{damage.error.expected:#010x}", f"{damage.error.found:#010x}")
    base, last = int(table.base_offset[0]), int(table.last_offset[0])
    lowest = last if base < 0 else min(base, last)
    if not base_offset <= lowest <= last <= base_offset + MAX_RELATIVE_OFFSET:
        return _Diagnosis(Fault.RANGE, f"{base_offset} to {base_offset + MAX_RELATIVE_OFFSET}", f"{lowest} to {last}")
    return _Diagnosis(Fault.ORDER, f"an offset from {next_offset} on", lowest)
