"""Where the messages of a log's last segment end.

A log may be appended to while it is read, may have been cut off by a crash, and may be preallocated with zeros. So its
end is measured: from a batch that is known to be good, whole batches with right CRCs are counted, up to the first
that is not. The bytes after them are the tail: torn, garbage, zeros, or still being written. The end is measured again
whenever the file changes. Readers report damage before the point where measuring began.

A batch with a right CRC was written, and a broker serves it, whatever its offset: far above the segment's base, where
no index entry reaches, or below the offsets before it, where readers fail.

Bad bytes are damage, and not the tail, if a valid batch follows them, because a log is only ever written at its end; or
if they are below the recovery point, because they were once whole and synced. Such bytes count, and readers fail there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from storage.format.batches import BATCH_HEADER_SIZE
from storage.log.intact import Budget, Undecided, intact_batch
from storage.log.segment import Segment
from storage.log.segment_check import CheckedWindow, checked_windows
from storage.types import MAX_OFFSET

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
        """The leader epoch of that batch; -1 if there is none, as before format v2."""
        header = self.last_header
        return int.from_bytes(header[12:16], "big", signed=True) if header[16:17] == b"\x02" else -1


def measure(segment: Segment, size: int, recovery_point: int = 0) -> Tail:
    """The valid end of a segment of `size` bytes, measured for the first time: from its last good index entry on."""
    start = segment.floor(MAX_OFFSET, size) if size else 0
    return extend(segment, Tail(start, segment.base_offset), size, recovery_point)


def extend(segment: Segment, known: Tail, size: int, recovery_point: int = 0) -> Tail:
    """The valid end now that the file has `size` bytes, given that it was sound up to `known.end`."""
    tail = known
    while tail.end < size:
        following: Tail | None = tail
        for window in checked_windows(segment.log, size, tail.end):
            following = tail = _behind(window, window.rows, tail)
            if window.rows < window.table.rows:
                following = _behind_bad_batch(segment, window, tail, size, recovery_point)
                break
        else:
            if tail.end < size:
                following = _at_intact_batch(segment, tail, size)
        if following is None:
            break
        tail = following
    return tail


def still_holds(segment: Segment, tail: Tail) -> bool:
    """False if the last known batch has changed: the file was truncated, and perhaps written to since."""
    if tail.last_position < 0:
        return True
    header = segment.log.read(tail.last_position, len(tail.last_header))
    return bytes(header) == tail.last_header


def _behind(window: CheckedWindow, rows: int, tail: Tail) -> Tail:
    """The tail after the first `rows` batches of a window that begins at the end of `tail`."""
    if rows == 0:
        return tail
    table, start = window.table, int(window.table.position[rows - 1]) - window.origin
    size = int(table.size[rows - 1])
    header = bytes(window.data[start : start + min(size, BATCH_HEADER_SIZE)])
    greatest = int(table.last_offset[:rows].max())
    return Tail(window.origin + start + size, max(tail.next_offset, greatest + 1), window.origin + start, header)


def _behind_bad_batch(
    segment: Segment, window: CheckedWindow, tail: Tail, size: int, recovery_point: int
) -> Tail | None:
    """The tail after the batch whose CRC is wrong, if that batch is damage; None if the tail begins there."""
    behind = _behind(window, window.rows + 1, tail)
    if behind.end < size and segment.batch_at(behind.end, size) is not None:
        return tail._replace(end=behind.end)
    # The header may be wrong: its offset is trusted only if it can be that of a synced batch.
    if tail.next_offset < behind.next_offset <= recovery_point:
        return behind
    return None


def _at_intact_batch(segment: Segment, tail: Tail, size: int) -> Tail | None:
    """The tail at the next intact batch after bytes that are not a batch; None if there is none, so that they are the
    tail."""
    end = min(size, tail.end + _SEARCHED_BYTES)
    try:
        position = intact_batch(segment, tail.end + 1, end, tail.next_offset, budget=Budget(end - tail.end))
    except Undecided:
        return None
    return None if position is None else tail._replace(end=position)
