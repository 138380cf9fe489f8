"""Walks a .log around its damage: where and why sound batches end, and where whole batches continue after that.

For tools that look at all remains of a log (verify, salvage). Readers work differently (scanning.py): they use an index
if the log confirms it, and never search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from storage.format import decode_kernel
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    LENGTH,
    LOG_OVERHEAD,
    MAX_MAGIC,
    MOST_BATCH_BYTES,
    BatchTable,
    header_of,
    scan,
)
from storage.format.decoder import verify_crcs
from storage.log.segment import Segment
from storage.log.segment_check import Visit, check_segment
from storage.types import MAX_OFFSET

# The search for a whole batch with a right CRC among unknown bytes. Every position may look like a header, and each
# header may claim all bytes that follow, so a search has a budget of bytes to check.

_STEP: Final = 1 << 20
_ROUNDS: Final = 32
_LOOK_BYTES: Final = 4096  # what an attempt costs besides the bytes that it reads


class Undecided(Exception):
    """The search was given up: too many bytes look like batches to check them all."""


class Budget:
    """The number of bytes that searches may read to check possible batches: `size` bytes some 32 times."""

    def __init__(self, size: int) -> None:
        self._left = _ROUNDS * (size + _STEP)

    def spend(self, count: int) -> None:
        """Subtract from the budget. Undecided if it is used up."""
        self._left -= count + _LOOK_BYTES
        if self._left < 0:
            raise Undecided


def intact_batch(
    segment: Segment,
    position: int,
    end: int,
    lowest: int = 0,
    highest: int = MAX_OFFSET - 1,
    *,
    budget: Budget | None = None,
) -> int | None:
    """The position of the first whole batch with a right CRC from `position` up to `end`; None if there is none.

    Its offset must be from `lowest` to `highest`, both included. Undecided if the budget is used up.
    """
    budget = budget or Budget(MAX_OFFSET)
    for start, size in _headers(segment, position, end, lowest, highest):
        budget.spend(size)
        if segment.batch_at(start, end, any_offset=True) is not None:
            return start
    return None


def _headers(segment: Segment, position: int, end: int, lowest: int, highest: int) -> Iterator[tuple[int, int]]:
    """The possible batches, in order: the position of each, and how many bytes it claims."""
    while position < end:
        # A batch has no length of zero, so it begins at most this far within a hole.
        position = max(position, segment.log.skip_hole(position) - LOG_OVERHEAD)
        if position >= end:
            return
        data = segment.log.read(position, min(_STEP + BATCH_HEADER_SIZE, end - position))
        at = decode_kernel.search(data, 0, end - position, lowest, highest)
        while 0 <= at < _STEP:
            yield position + at, LOG_OVERHEAD + int.from_bytes(data[at + LENGTH.start : at + LENGTH.stop], "big")
            at = decode_kernel.search(data, at + 1, end - position, lowest, highest)
        if len(data) <= _STEP:
            return
        position += _STEP


_HEAD_BYTES: Final = 17  # up to the magic
_LEAST_LENGTH: Final = 14


class BreakReason(Enum):
    """The reason why no sound batch begins at a position."""

    CRC = "batch fails its CRC"
    CUT_OFF = "batch is cut off"
    LENGTH = "batch has an impossible length"
    ZEROS = "zeros where a batch should begin"
    GARBAGE = "bytes that are not a batch"
    ORDER = "offsets do not ascend"
    TWICE = "batch is in the segment twice"
    RANGE = "offset does not fit the segment"


COUNTED: Final = (BreakReason.ORDER, BreakReason.TWICE)  # a sound batch is there


class Break(NamedTuple):
    """Bytes from `position` to `end` that are not sound batches; `offset` was expected there.

    ORDER: the batch at `position` is whole and counts (`end` is `position`), but its offset, or that of the previous
    batch, is wrong. TWICE: likewise, and an earlier batch is the same. `intact_behind`: whole batches follow at `end`.
    `undecided`: too many of the bytes after it look like batches to check them all.
    """

    fault: BreakReason
    position: int
    end: int
    offset: int
    expected: object
    found: object
    intact_behind: bool
    undecided: bool = False

    @property
    def behind(self) -> str:
        """A sentence about the bytes after the break; "" if nothing is known of them."""
        if self.undecided:
            return "; too much behind it looks like batches for all of it to be checked, and nothing of it is taken"
        return f"; intact again from position {self.end}" if self.intact_behind else ""


class Walk(NamedTuple):
    """The walk over a segment: its breaks in order, and the offset after the last sound batch."""

    breaks: tuple[Break, ...]
    next_offset: int


def walk(
    segment: Segment,
    visit: Visit,
    passed: Callable[[Break, int], None],
    end_offset: int = MAX_OFFSET,
) -> Walk:
    """Call `visit` with all whole batches of a segment, as `check_segment` does, also with those after its breaks.

    `passed`: called with each break when the walk reaches it, and the offset at which it continues. `end_offset`: where
    the next segment begins; after a break, a possible batch beyond that does not count.
    """
    base_offset, size = segment.base_offset, segment.size
    breaks: list[Break] = []
    highest = end_offset - 1
    position, expected, greatest = 0, base_offset, base_offset
    budget, undecided = Budget(size), False
    while position < size:
        check = check_segment(segment.log, base_offset, size, visit, start=position, next_offset=expected)
        greatest = max(greatest, check.next_offset)
        if not check.invalid_bytes:
            break
        diagnosis = _diagnosed(segment, check.end, check.next_offset)
        behind: int | None = check.end
        if diagnosis.fault not in COUNTED:
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
        is_followed = batch is not None
        broken = Break(
            diagnosis.fault,
            check.end,
            end,
            check.next_offset,
            diagnosis.expected,
            diagnosis.found,
            is_followed,
            undecided,
        )
        breaks.append(broken)
        passed(broken, offset)
        position, expected = end, offset
    return Walk(tuple(breaks), greatest)


def _claimed_end(segment: Segment, position: int, lowest: int, highest: int) -> int | None:
    """The end of the batch at `position` by its own length, if the file ends there or a batch begins there.

    A damaged batch may contain bytes that look like batches: copies of other logs, for example.
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


class _Diagnosis(NamedTuple):
    fault: BreakReason
    expected: object = None
    found: object = None


def _diagnosed(segment: Segment, position: int, next_offset: int) -> _Diagnosis:
    """The reason why no sound batch is at `position`, where a batch with offsets from `next_offset` on should begin."""
    base_offset = segment.base_offset
    left = segment.size - position
    head = segment.log.read(position, min(BATCH_HEADER_SIZE, left))
    if not any(head):
        return _Diagnosis(BreakReason.ZEROS, "a batch", f"{left} bytes")
    length = _length(head)
    if length is None or len(head) < _HEAD_BYTES:
        return _Diagnosis(BreakReason.CUT_OFF, f"{BATCH_HEADER_SIZE} bytes of header", f"{left} bytes")
    if head[16] > MAX_MAGIC:
        return _Diagnosis(BreakReason.GARBAGE, "magic 0, 1 or 2", head[16])
    if length == 0:
        return _Diagnosis(BreakReason.ZEROS, "a length", 0)
    if length < _LEAST_LENGTH:
        return _Diagnosis(BreakReason.LENGTH, f"{_LEAST_LENGTH} or more", length)
    if length > left - LOG_OVERHEAD:
        return _Diagnosis(BreakReason.CUT_OFF, f"{length + LOG_OVERHEAD} bytes", f"{left} bytes")
    if not segment.is_believable(position, length + LOG_OVERHEAD):
        return _Diagnosis(BreakReason.CRC)
    if length + LOG_OVERHEAD > MOST_BATCH_BYTES:
        data, table = head, header_of(head, position, length + LOG_OVERHEAD)
    else:
        data, table = segment.log.read(position, length + LOG_OVERHEAD), BatchTable.empty(1)
        scan(data, position, table)
    if table.rows != 1:
        return _Diagnosis(BreakReason.LENGTH, "room for a batch header", length)
    damage = verify_crcs(data, table, 0, 1, position)
    if damage is not None:
        return _Diagnosis(BreakReason.CRC, damage.error.expected, damage.error.found)
    base, last = int(table.base_offset[0]), int(table.last_offset[0])
    lowest = last if base < 0 else min(base, last)
    if not base_offset <= lowest <= last < MAX_OFFSET:
        return _Diagnosis(BreakReason.RANGE, f"{base_offset} to {MAX_OFFSET - 1}", f"{lowest} to {last}")
    fault = BreakReason.TWICE if segment.repeats(table, 0) else BreakReason.ORDER
    return _Diagnosis(fault, f"an offset from {next_offset} on", lowest)
