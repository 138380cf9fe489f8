"""The greatest timestamp of a segment: from its time index where the log bears it out, from its headers where not.

A time index entry (t, o) says: t is the greatest timestamp up to offset o. The last entry is where the greatest
timestamp of all should stand, but an index that has lost its end, or has not got it yet, does not show it. So what
comes after that entry's batch is looked at too: next to nothing where timestamps rise, as they mostly do.
Source: Kafka's LogSegment.maxTimestampSoFar, largestTimestamp.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from storage.log.scanning import scan_batches
from storage.log.segment import Segment
from storage.types import NO_TIMESTAMP, TimestampOffset

if TYPE_CHECKING:
    from storage.format.batches import BatchTable
    from storage.log.snapshot import LogSnapshot

_LOOKUP_WINDOW = 64 << 10

# What was found, and up to which position of the .log: a growing segment is looked at from there on.
_lock = Lock()
_found: WeakKeyDictionary[Segment, tuple[TimestampOffset, int]] = WeakKeyDictionary()


def greatest_timestamp(snapshot: LogSnapshot, segment: Segment) -> TimestampOffset:
    """The greatest timestamp in a segment and the last offset of the first batch that has it.

    (-1, base offset) when its messages carry none, or it has none.
    """
    end = snapshot.end_position(segment)
    with _lock:
        known = _found.get(segment)
    if known is not None and known[1] >= end:
        return known[0]
    if known is None:
        known = _from_index(snapshot, segment, end)
    greatest = _scan(snapshot, segment, known[1], end, known[0])
    with _lock:
        _found[segment] = (greatest, end)
    return greatest


def retention_timestamp_ms(snapshot: LogSnapshot, segment: Segment) -> int:
    """The greatest timestamp, or the file's mtime where messages carry none: what Kafka goes by when it looks for a
    time and when it removes segments (LogSegment.largestTimestamp)."""
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


def _from_index(snapshot: LogSnapshot, segment: Segment, end: int) -> tuple[TimestampOffset, int]:
    """What the time index knows, if the log bears it out, and the position up to which it knows."""
    entry = segment.time_index(end).last
    position = None if entry.timestamp < 0 else _position_of(snapshot, segment, entry, end)
    if position is None:
        return TimestampOffset(NO_TIMESTAMP, segment.base_offset), 0
    return entry, position


def _position_of(snapshot: LogSnapshot, segment: Segment, entry: TimestampOffset, end: int) -> int | None:
    """Where the batch that an entry speaks of begins; None when the log does not bear the entry out.

    Before Kafka 3.9.1 an entry's offset may be any of the batch's.
    """
    start = segment.floor(entry.offset, end)
    for window in scan_batches(snapshot, segment, start, end, window=_LOOKUP_WINDOW):
        if window.damage is not None:
            return None
        table = window.table
        row = int(table.last_offset.searchsorted(entry.offset))
        if row < table.rows:
            good = int(table.base_offset[row]) <= entry.offset and int(table.max_timestamp[row]) == entry.timestamp
            return int(table.position[row]) if good else None
    return None


def _scan(snapshot: LogSnapshot, segment: Segment, start: int, end: int, greatest: TimestampOffset) -> TimestampOffset:
    for window in scan_batches(snapshot, segment, start, end):
        if window.table.rows:
            greatest = _greater(window.table, greatest)
    return greatest


def _greater(table: BatchTable, greatest: TimestampOffset) -> TimestampOffset:
    row = int(table.max_timestamp.argmax())
    timestamp = int(table.max_timestamp[row])
    return TimestampOffset(timestamp, int(table.last_offset[row])) if timestamp > greatest.timestamp else greatest
