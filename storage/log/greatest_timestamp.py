"""The greatest timestamp of a segment: from its time index where the log confirms it, otherwise from its headers.

A time index entry (t, o) means: t is the greatest timestamp up to offset o. The last entry should have the greatest
timestamp of all, but it may be missing from an index that has lost its end or is not complete yet. So the batches
after that entry's batch are read too: next to none where timestamps ascend, as they usually do. Source: Kafka's
LogSegment.maxTimestampSoFar, largestTimestamp.

Where damage hides batches, the result is only the greatest of what can be read. Before skipping a segment because
everything in it is older, call `may_reach`: hidden messages are assumed to lie between their neighbours in time.
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
    """What was found, and up to which position of the .log: a growing segment is read from there on.

    `unborne`: the greatest timestamp that the time index, or the header of a damaged batch, names and the log does not
    confirm, -1 if there is none. `damaged_at`: the file's ctime (ns) if damage was met; a file that was changed since
    is read again. None: no damage was met.
    """

    greatest: TimestampOffset
    end: int
    unborne: int
    damaged_at: int | None


_lock = Lock()
_found: WeakKeyDictionary[Segment, _Found] = WeakKeyDictionary()


def greatest_timestamp(snapshot: LogSnapshot, segment: Segment) -> TimestampOffset:
    """The greatest timestamp in a segment and the last offset of the first batch that has it.

    (-1, base offset) when its messages carry none, or it has none. Damage is skipped.
    """
    return _find(snapshot, segment).greatest


def may_reach(snapshot: LogSnapshot, segment: Segment, timestamp: int) -> bool:
    """Whether a segment holds a message with this timestamp or a later one, or may have held one where it is damaged.

    Damage is assumed to hide nothing later than the time index shows, its own header, or the batches around it.
    """
    found = _find(snapshot, segment)
    if max(found.greatest.timestamp, found.unborne) >= timestamp:
        return True
    if found.damaged_at is None:
        return False
    before, behind = times_before(snapshot, segment), first_times_behind(snapshot, segment)
    return behind is None or behind[1] >= timestamp or (before is not None and before[1] >= timestamp)


def retention_timestamp_ms(snapshot: LogSnapshot, segment: Segment) -> int:
    """The greatest timestamp, or the file's mtime where messages carry none: what Kafka uses to look for a time and to
    remove segments (LogSegment.largestTimestamp)."""
    greatest = greatest_timestamp(snapshot, segment).timestamp
    return greatest if greatest >= 0 else segment.mtime_ms()


def position_for_timestamp(snapshot: LogSnapshot, segment: Segment, timestamp: int) -> int:
    """A position where a batch begins, and before which no message of the segment has this timestamp or a later one."""
    end = snapshot.end_position(segment)
    entry = segment.time_index(end).floor(timestamp)
    if entry.timestamp < 0:
        return 0
    position = _position_of(snapshot, segment, entry, end)
    return 0 if position is None else position


def times_before(snapshot: LogSnapshot, segment: Segment) -> tuple[int, int] | None:
    """The greatest timestamp (twice) of the last segment before this one that has any; None where there is none."""
    slot = snapshot.segment_index(segment.base_offset)
    for earlier in reversed(snapshot.segments[:slot]):
        timestamp = greatest_timestamp(snapshot, earlier).timestamp
        if timestamp > NO_TIMESTAMP:
            return timestamp, timestamp
    return None


def first_times_behind(snapshot: LogSnapshot, segment: Segment) -> tuple[int, int] | None:
    """Least and greatest timestamp in the header of the first batch after a segment, -1 for messages without; None
    where nothing follows, or it cannot be read."""
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
        # A segment that is still written changes all the time: it is read again when it is sealed.
        known = known if not segment.sealed or known.damaged_at == segment.changed_ns() else None
    if known is not None and known.end >= end:
        return known
    changed_at = segment.changed_ns()  # before it is read
    if known is None:
        known = _from_index(snapshot, segment, end)
    greatest, unborne, damaged = known.greatest, known.unborne, known.damaged_at is not None
    for window in scan_batches(snapshot, segment, known.end, end):
        if window.table.rows:
            greatest = greater(window.table, greatest)
        if window.damage is not None:
            damaged = True
            unborne = max((unborne, *(window.damage.times or ())))
    found = _Found(greatest, end, unborne, changed_at if damaged else None)
    with _lock:
        _found[segment] = found
    return found


def _from_index(snapshot: LogSnapshot, segment: Segment, end: int) -> _Found:
    """The content of the time index, if the log confirms it, and the position that it covers."""
    entry = segment.time_index(end).last
    position = None if entry.timestamp < 0 else _position_of(snapshot, segment, entry, end)
    if position is None:
        return _Found(TimestampOffset(NO_TIMESTAMP, segment.base_offset), 0, max(entry.timestamp, NO_TIMESTAMP), None)
    return _Found(entry, position, NO_TIMESTAMP, None)


def _position_of(snapshot: LogSnapshot, segment: Segment, entry: TimestampOffset, end: int) -> int | None:
    """Where the batch of an index entry begins; None when the log does not confirm the entry.

    Before Kafka 3.9.1 an entry's offset may be any of the batch's.
    """
    start = segment.floor(entry.offset, end)
    for window in scan_batches(snapshot, segment, start, end, window=LOOKUP_BYTES):
        if window.damage is not None:
            return None
        table = window.table
        row = int(table.last_offset.searchsorted(entry.offset))
        if row < table.rows:
            good = int(table.base_offset[row]) <= entry.offset and int(table.max_timestamp[row]) == entry.timestamp
            return int(table.position[row]) if good else None
    return None


def greater(table: BatchTable, greatest: TimestampOffset) -> TimestampOffset:
    """The greatest timestamp of what was read before and of these batches, of which there is at least one."""
    row = int(table.max_timestamp.argmax())
    timestamp = int(table.max_timestamp[row])
    return TimestampOffset(timestamp, int(table.last_offset[row])) if timestamp > greatest.timestamp else greatest
