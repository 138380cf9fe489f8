"""Where the messages of a log's last segment end.

A log may be appended to while it is read, may have been cut off by a crash, and may be preallocated with zeros. So its
end is measured: from a batch that is known to be good, whole batches with right CRCs are counted, up to the first that
is not. What follows is the tail: torn, garbage, zeros, or still being written. It is measured again whenever the file
changes. Damage before the point where measuring began is reported by readers.

A batch with a right CRC was written, and a broker serves it, whatever its offset: far above the segment's base, where
no index entry reaches, or below the offsets before it, where readers fail.

Bad bytes are damage and not the tail if a valid batch follows them, because a log is only ever written at its end; or
if they are below the recovery point, because then they were whole and synced once. Such bytes count, and readers fail
there. But a length of zero is neither: it is preallocated space.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from storage.format.batches import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MOST_BATCH_BYTES,
    BatchTable,
    ScanOutcome,
    ScanStop,
    header_of,
    scan,
)
from storage.format.decoder import verify_crcs
from storage.log.intact import Budget, Undecided, intact_batch
from storage.log.segment import Segment, give, take
from storage.types import MAX_OFFSET

_ROWS: Final = 4096
_V2_HEAD: Final = struct.Struct(
    ">q"  # base offset
    "i"  # length
    "4x"  # leader epoch
    "b"  # magic
    "6x"  # CRC-32C, attributes
    "i"  # last offset delta
)
_SEARCHED_BYTES: Final = 4 << 20  # after bytes that are not a batch


class Tail(NamedTuple):
    """The valid end of a segment.

    `end`: the position after the last whole valid batch; `next_offset`: the greatest offset + 1, or the segment's base
    offset. `last_position` and `last_header`: that batch's header, which shows whether the file was rewritten; -1 and
    empty when there is no batch.
    """

    end: int
    next_offset: int
    last_position: int = -1
    last_header: bytes = b""

    @property
    def epoch(self) -> int:
        """The leader epoch of that batch; -1 where there is none, as before format v2."""
        header = self.last_header
        return int.from_bytes(header[12:16], "big", signed=True) if header[16:17] == b"\x02" else -1


def measure(segment: Segment, size: int, recovery_point: int = 0) -> Tail:
    """The valid end of a segment of `size` bytes, measured for the first time: from its last good index entry on."""
    start = segment.floor(MAX_OFFSET, size) if size else 0
    return extend(segment, Tail(start, segment.base_offset), size, recovery_point)


def extend(segment: Segment, known: Tail, size: int, recovery_point: int = 0) -> Tail:
    """The valid end now that the file has `size` bytes, given that it was sound up to `known.end`."""
    tail = known
    if known.end >= size:
        return known
    buffer, needed = take(), 0
    rows_of_window = BatchTable.empty(_ROWS)
    try:
        while tail.end < size:
            if needed > MOST_BATCH_BYTES:
                data = segment.log.read(tail.end, BATCH_HEADER_SIZE)
                table, outcome = header_of(data, tail.end, needed), ScanOutcome(0, ScanStop.END)
            else:
                data, table = segment.log.read(tail.end, min(len(buffer), size - tail.end), buffer), rows_of_window
                if not len(data):
                    break
                table.clear()
                outcome = scan(data, tail.end, table)
            needed = 0
            damage = verify_crcs(data, table, 0, table.rows, tail.end) if table.rows else None
            good = table.rows if damage is None else damage.row
            if good:
                tail = _behind(data, table, good, tail)
            if good < table.rows:
                passed = _behind_bad_batch(segment, data, table, good, tail, size, recovery_point)
                if passed is None:
                    break
                tail = passed
                continue
            if table.rows == 0 or outcome.stop in (ScanStop.CORRUPT, ScanStop.UNSUPPORTED):
                needed = _size_of_a_larger_batch(segment, tail, size, len(data))
                if needed:
                    if needed <= MOST_BATCH_BYTES:
                        give(buffer)
                        buffer = take(needed)
                    continue
                following = _behind_unknown_batch(segment, tail, size) or _at_intact_batch(segment, tail, size)
                if following is None:
                    break
                tail = following
    finally:
        give(buffer)
    return tail


def still_holds(segment: Segment, tail: Tail) -> bool:
    """False when the last known batch is not where it was: the file was truncated, and perhaps written to since."""
    if tail.last_position < 0:
        return True
    header = segment.log.read(tail.last_position, len(tail.last_header))
    return bytes(header) == tail.last_header


def _behind(data: memoryview, table: BatchTable, rows: int, tail: Tail) -> Tail:
    """The tail after the first `rows` batches of a window that begins at the end of `tail`."""
    position, origin = int(table.position[rows - 1]), int(table.position[0])
    size = int(table.size[rows - 1])
    header = bytes(data[position - origin : position - origin + min(size, BATCH_HEADER_SIZE)])
    greatest = int(table.last_offset[:rows].max())
    return Tail(position + size, max(tail.next_offset, greatest + 1), position, header)


def _behind_bad_batch(
    segment: Segment, data: memoryview, table: BatchTable, row: int, tail: Tail, size: int, recovery_point: int
) -> Tail | None:
    """The tail after the batch in `row`, whose CRC is wrong, if it is damage; None if the tail begins there."""
    behind = _behind(data, table, row + 1, tail)
    if behind.end < size and segment.batch_at(behind.end, size) is not None:
        return tail._replace(end=behind.end)
    # The header may be wrong: its offset is trusted only if it can be that of a synced batch.
    if tail.next_offset < behind.next_offset <= recovery_point:
        return behind
    return None


def _at_intact_batch(segment: Segment, tail: Tail, size: int) -> Tail | None:
    """The tail at the next intact batch after bytes that are not one; None if there is none: then they are the tail."""
    end = min(size, tail.end + _SEARCHED_BYTES)
    try:
        position = intact_batch(segment, tail.end + 1, end, tail.next_offset, budget=Budget(end - tail.end))
    except Undecided:
        return None
    return None if position is None else tail._replace(end=position)


def _size_of_a_larger_batch(segment: Segment, tail: Tail, size: int, read: int) -> int:
    """How large a buffer the batch at the tail's end needs, where it is larger than the `read` bytes; 0 otherwise."""
    claimed = segment.batch_size(segment.log.read(tail.end, min(BATCH_HEADER_SIZE, size - tail.end)))
    if claimed is None or not read < claimed <= size - tail.end:
        return 0
    return claimed if segment.is_believable(tail.end, claimed) else 0


def _behind_unknown_batch(segment: Segment, tail: Tail, size: int) -> Tail | None:
    """The tail after a batch of an unknown magic, if its CRC is right: then it was written that way. It belongs to the
    log, and readers fail at it."""
    head = segment.log.read(tail.end, min(BATCH_HEADER_SIZE, size - tail.end))
    if len(head) < BATCH_HEADER_SIZE:
        return None
    base, length, magic, delta = _V2_HEAD.unpack_from(head)
    whole = length + LOG_OVERHEAD
    if magic in (0, 1, 2) or not BATCH_HEADER_SIZE <= whole <= size - tail.end:
        return None
    if not tail.next_offset <= base or not 0 <= delta < MAX_OFFSET - base:
        return None
    if not segment.has_right_crc(tail.end, whole):
        return None
    return Tail(tail.end + whole, base + delta + 1, tail.end, bytes(head))
