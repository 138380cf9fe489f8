"""The greatest timestamp of a segment: from its time index if the log confirms it, otherwise from its headers.

A time index entry (t, o) means: t is the greatest timestamp up to offset o. The last entry should have the greatest
timestamp of all, but an index that has lost its end, or is not complete yet, may lack it. So the batches after that
entry's batch are read too: next to none if timestamps ascend, as they usually do. Source: Kafka's
LogSegment.maxTimestampSoFar, largestTimestamp.

If damage hides batches, the result is only the greatest of the readable ones. Before skipping a segment because
everything in it is older, call `may_reach`, which assumes that hidden messages lie between their neighbours in time.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from storage.errors import StorageError
from storage.format.batches import times_of
from storage.log.scanning import scan_batches
from storage.log.segment import LOOKUP_BYTES, Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, TimestampOffset

if TYPE_CHECKING:
    from storage.format.batches import BatchTable


class _Found(NamedTuple):
    """The greatest timestamp, and the position in the .log up to which it is known: a growing segment is read on from
    it.

    `unborne`: the greatest timestamp that the time index, or the header of a damaged batch, names and the log does not
    confirm, -1 if there is none. `damaged_at`: the file's ctime (ns) if there was damage, None otherwise; a damaged
    file that was changed since is read again.
    """

    greatest: TimestampOffset
    end: int
    unborne: int
    damaged_at: int | None


_lock = Lock()
_found: WeakKeyDictionary[Segment, _Found] = WeakKeyDictionary()


def greatest_timestamp(snapshot: LogSnapshot, segment: Segment) -> TimestampOffset:
    """The greatest timestamp in a segment and the last offset of the first batch that has it.

    (-1, base offset) if the segment has no messages with a timestamp. Damage is skipped.
    """
    return _find(snapshot, segment).greatest


def may_reach(snapshot: LogSnapshot, segment: Segment, timestamp: int) -> bool:
    """Whether a segment holds a message with this timestamp or a later one, or may have held one in damaged bytes.

    Assumes that damage hides nothing later than the time index, the damaged batch's header and the batches around show.
    """
    times = _find(snapshot, segment)
    if max(times.greatest.timestamp, times.unborne) >= timestamp:
        return True
    if times.damaged_at is None:
        return False
    before, behind = times_before(snapshot, segment), first_times_behind(snapshot, segment)
    return behind is None or behind[1] >= timestamp or (before is not None and before[1] >= timestamp)


def retention_timestamp_ms(snapshot: LogSnapshot, segment: Segment) -> int:
    """The greatest timestamp, or the file's mtime if messages carry none: Kafka's time for looking up times and for
    removing segments (LogSegment.largestTimestamp)."""
    greatest = greatest_timestamp(snapshot, segment).timestamp
    return greatest if greatest >= 0 else segment.mtime_ms()


def position_for_timestamp(snapshot: LogSnapshot, segment: Segment, timestamp: int) -> int:
    """The beginning of a batch before which no message of the segment has this timestamp or a later one."""
    end = snapshot.end_position(segment)
    entry = segment.time_index(end).floor(timestamp)
    if entry.timestamp < 0:
        return 0
    position = _position_of(snapshot, segment, entry, segment.floor(entry.offset, end))
    return 0 if position is None else position


def times_before(snapshot: LogSnapshot, segment: Segment) -> tuple[int, int] | None:
    """The greatest timestamp (twice) of the nearest earlier segment that has any; None if no segment has."""
    slot = snapshot.segment_index(segment.base_offset)
    for earlier in reversed(snapshot.segments[:slot]):
        timestamp = greatest_timestamp(snapshot, earlier).timestamp
        if timestamp > NO_TIMESTAMP:
            return timestamp, timestamp
    return None


def first_times_behind(snapshot: LogSnapshot, segment: Segment) -> tuple[int, int] | None:
    """Least and greatest timestamp in the header of the first batch after a segment, -1 for messages without; None if
    no batch follows, or it cannot be read."""
    for later in snapshot.segments[snapshot.segment_index(segment.base_offset) + 1 :]:
        end = snapshot.end_position(later)
        if not end:
            continue
        try:
            batch = later.batch_at(0, end)
        except (StorageError, OSError):
            return None
        return None if batch is None else times_of(batch, 0)
    return None


def _find(snapshot: LogSnapshot, segment: Segment) -> _Found:
    end = snapshot.end_position(segment)
    if segment.known_greatest is not None:
        return _Found(segment.known_greatest, end, NO_TIMESTAMP, None)
    with _lock:
        known = _found.get(segment)
    if known is not None and known.damaged_at is not None:
        # A segment that is still being written changes all the time: it is read again when it is sealed.
        known = known if not segment.sealed or known.damaged_at == segment.changed_ns() else None
    if known is not None and known.end >= end:
        return known
    changed_at = segment.changed_ns()  # taken before the file is read
    if known is None:
        known = _from_index(snapshot, segment, end)
    greatest, unborne, damaged = known.greatest, known.unborne, known.damaged_at is not None
    for window in scan_batches(snapshot, segment, known.end, end):
        if window.table.rows:
            greatest = greater(window.table, greatest)
        if window.damage is not None:
            damaged = True
            unborne = max((unborne, *(window.damage.times or ())))
    times = _Found(greatest, end, unborne, changed_at if damaged else None)
    with _lock:
        _found[segment] = times
    return times


def _from_index(snapshot: LogSnapshot, segment: Segment, end: int) -> _Found:
    """The content of the time index, if the log confirms it, and the position that it covers."""
    entry = segment.last_indexed_time(end)
    start = 0 if entry.timestamp < 0 else segment.floor_near_end(entry.offset, end)
    position = None if entry.timestamp < 0 else _position_of(snapshot, segment, entry, start)
    if position is None:
        return _Found(TimestampOffset(NO_TIMESTAMP, segment.base_offset), 0, max(entry.timestamp, NO_TIMESTAMP), None)
    return _Found(entry, position, NO_TIMESTAMP, None)


def _position_of(snapshot: LogSnapshot, segment: Segment, entry: TimestampOffset, start: int) -> int | None:
    """The position of an index entry's batch, which is not before `start`; None if the log does not confirm the entry.

    Before Kafka 3.9.1 an entry's offset may be any offset of the batch.
    """
    for window in scan_batches(snapshot, segment, start, window=LOOKUP_BYTES):
        if window.damage is not None:
            return None
        table = window.table
        row = int(table.last_offset.searchsorted(entry.offset))
        if row < table.rows:
            good = int(table.base_offset[row]) <= entry.offset and int(table.max_timestamp[row]) == entry.timestamp
            return int(table.position[row]) if good else None
    return None


def greater(table: BatchTable, greatest: TimestampOffset) -> TimestampOffset:
    """The greater of `greatest` and the greatest timestamp of these batches, of which there is at least one."""
    row = int(table.max_timestamp.argmax())
    timestamp = int(table.max_timestamp[row])
    return TimestampOffset(timestamp, int(table.last_offset[row])) if timestamp > greatest.timestamp else greatest
