"""A .log walked around its damage: where it breaks off, why, and where whole batches go on behind that.

For those who look at all that is left (verify, salvage). Readers go another way (scanning.py): they trust an index where
it is borne out, and never search.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from storage.files.log_file import LogFile
from storage.format import header_kernel
from storage.format.batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, BatchTable, scan
from storage.format.decoder import verify_crcs
from storage.log.segment_check import Visit, check_segment
from storage.types import MAX_OFFSET

_STEP: Final = 1 << 20
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_HEAD_BYTES: Final = 17  # up to the magic
_LEAST_LENGTH: Final = 14
_MAX_MAGIC: Final = 2


class Fault(Enum):
    """Why no sound batch begins at a position."""

    CRC = "batch fails its CRC"
    CUT_OFF = "batch is cut off"
    LENGTH = "batch has an impossible length"
    ZEROS = "zeros where a batch should begin"
    GARBAGE = "bytes that are no batch"
    ORDER = "offsets do not ascend"
    RANGE = "offset does not fit the segment"


@dataclass(frozen=True, slots=True)
class Break:
    """Bytes from `position` to `end` that are no sound batches; `offset` was expected there.

    ORDER: the batch at `position` is whole and counts (`end` is `position`), but its offset, or that of the one before
    it, is wrong. `intact_behind`: whole batches follow at `end`.
    """

    fault: Fault
    position: int
    end: int
    offset: int
    expected: object
    found: object
    intact_behind: bool


@dataclass(frozen=True, slots=True)
class Walk:
    """All of a segment: its breaks in order, and the offset behind the last sound batch."""

    breaks: tuple[Break, ...]
    next_offset: int


def walk(log: LogFile, base_offset: int, size: int, visit: Visit, end_offset: int = MAX_OFFSET) -> Walk:
    """Gives `visit` all whole batches of a .log of `size` bytes, as `check_segment` does, behind its breaks too.

    `end_offset`: where the next segment begins; what looks like a batch behind a break and lies beyond is none.
    """
    breaks: list[Break] = []
    highest = min(base_offset + _MAX_RELATIVE_OFFSET, end_offset - 1)
    position, expected, greatest = 0, base_offset, base_offset
    while position < size:
        check = check_segment(log, base_offset, size, visit, start=position, next_offset=expected)
        greatest = max(greatest, check.next_offset)
        if not check.invalid_bytes:
            break
        found = _diagnosed(log, base_offset, check.end, size, check.next_offset)
        behind: int | None = check.end
        if found.fault is not Fault.ORDER:
            behind = _claimed_end(log, check.end, size, base_offset, highest)
            if behind is None:
                behind = intact_batch(log, check.end + 1, size, base_offset, highest)
        batch = None if behind is None or behind >= size else _batch_at(log, behind, size)
        end = size if batch is None else int(batch.position[0])
        breaks.append(
            Break(found.fault, check.end, end, check.next_offset, found.expected, found.found, batch is not None)
        )
        if batch is None:
            break
        base, last = int(batch.base_offset[0]), int(batch.last_offset[0])
        position, expected = end, last if base < 0 else min(base, last)
    return Walk(tuple(breaks), greatest)


def intact_batch(
    log: LogFile, position: int, size: int, lowest: int = 0, highest: int = MAX_OFFSET - 1
) -> int | None:
    """The position of the first whole batch with a right CRC at `position` or behind it; None where there is none.

    Its offset must lie within `lowest` to `highest`, both included.
    """
    while position < size:
        data = log.read(position, min(_STEP + BATCH_HEADER_SIZE, size - position))
        at = header_kernel.search(data, 0, size - position, lowest, highest)
        while at >= 0:
            if _batch_at(log, position + at, size) is not None:
                return position + at
            at = header_kernel.search(data, at + 1, size - position, lowest, highest)
        if len(data) <= _STEP:
            return None
        position += _STEP
    return None


def _batch_at(log: LogFile, position: int, size: int) -> BatchTable | None:
    """The whole batch with a right CRC at `position`; None where there is none."""
    head = log.read(position, min(BATCH_HEADER_SIZE, size - position))
    length = _length(head)
    if length is None or not _LEAST_LENGTH <= length <= size - position - LOG_OVERHEAD:
        return None
    data = log.read(position, length + LOG_OVERHEAD)
    table = BatchTable.empty(1)
    scan(data, position, table)
    if table.rows != 1 or verify_crcs(data, table, 0, 1, position) is not None:
        return None
    return table


def _claimed_end(log: LogFile, position: int, size: int, lowest: int, highest: int) -> int | None:
    """Where the batch at `position` ends by its own length, if that is the end of the file or a batch begins there.

    A batch that is damaged inside may hold what looks like batches: copies of other logs, say.
    """
    length = _length(log.read(position, min(BATCH_HEADER_SIZE, size - position)))
    if length is None or not _LEAST_LENGTH <= length <= size - position - LOG_OVERHEAD:
        return None
    end = position + LOG_OVERHEAD + length
    if end == size:
        return end
    batch = _batch_at(log, end, size)
    return end if batch is not None and lowest <= int(batch.last_offset[0]) <= highest else None


def _length(head: memoryview) -> int | None:
    return None if len(head) < LOG_OVERHEAD else int.from_bytes(head[8:12], "big", signed=True)


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    fault: Fault
    expected: object = None
    found: object = None


def _diagnosed(log: LogFile, base_offset: int, position: int, size: int, next_offset: int) -> _Diagnosis:
    """Why there is no sound batch at `position`, where one with offsets from `next_offset` on should begin."""
    left = size - position
    head = log.read(position, min(BATCH_HEADER_SIZE, left))
    if not any(head):
        return _Diagnosis(Fault.ZEROS, "a batch", f"{left} bytes")
    length = _length(head)
    if length is None or len(head) < _HEAD_BYTES:
        return _Diagnosis(Fault.CUT_OFF, f"{BATCH_HEADER_SIZE} bytes of header", f"{left} bytes")
    if head[16] > _MAX_MAGIC:
        return _Diagnosis(Fault.GARBAGE, "magic 0, 1 or 2", head[16])
    if length < _LEAST_LENGTH:
        return _Diagnosis(Fault.LENGTH, f"{_LEAST_LENGTH} or more", length)
    if length > left - LOG_OVERHEAD:
        return _Diagnosis(Fault.CUT_OFF, f"{length + LOG_OVERHEAD} bytes", f"{left} bytes")
    data = log.read(position, length + LOG_OVERHEAD)
    table = BatchTable.empty(1)
    scan(data, position, table)
    if table.rows != 1:
        return _Diagnosis(Fault.LENGTH, "room for a batch header", length)
    damage = verify_crcs(data, table, 0, 1, position)
    if damage is not None:
        return _Diagnosis(Fault.CRC, f"{damage.error.expected:#010x}", f"{damage.error.found:#010x}")
    base, last = int(table.base_offset[0]), int(table.last_offset[0])
    lowest = last if base < 0 else min(base, last)
    if not base_offset <= lowest <= last <= base_offset + _MAX_RELATIVE_OFFSET:
        return _Diagnosis(Fault.RANGE, f"{base_offset} to {base_offset + _MAX_RELATIVE_OFFSET}", f"{lowest} to {last}")
    return _Diagnosis(Fault.ORDER, f"an offset from {next_offset} on", lowest)
