"""From a time to an offset, by the rules of Kafka's ListOffsets.

Sources: UnifiedLog.fetchOffsetByTimestamp, Partition.fetchOffsetForTimestamp, LogSegment.findOffsetByTimestamp,
FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from storage.errors import StorageError
from storage.format.batches import times_of
from storage.log.counting import visible_end
from storage.log.reader import batch_records, read_blocks
from storage.log.scanning import scan_batches, scan_sound_batches
from storage.log.segment import LOOKUP_BYTES, Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, Isolation, TimestampOffset

if TYPE_CHECKING:
    from storage.format.batches import BatchTable


# The greatest timestamp of a segment: from its time index where the log confirms it, otherwise from its headers.
#
# A time index entry (t, o) means: t is the greatest timestamp up to offset o. The last entry should have the greatest
# timestamp of all, but it may be missing from an index that has lost its end or is not complete yet. So the batches
# after that entry's batch are read too: next to none where timestamps ascend, as they usually do. Source: Kafka's
# LogSegment.maxTimestampSoFar, largestTimestamp.
#
# Where damage hides batches, the result is only the greatest of what can be read. Before skipping a segment because
# everything in it is older, call `may_reach`: hidden messages are assumed to lie between their neighbours in time.


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
            greatest = _greater(window.table, greatest)
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


def _greater(table: BatchTable, greatest: TimestampOffset) -> TimestampOffset:
    row = int(table.max_timestamp.argmax())
    timestamp = int(table.max_timestamp[row])
    return TimestampOffset(timestamp, int(table.last_offset[row])) if timestamp > greatest.timestamp else greatest


def offset_for_timestamp(
    snapshot: LogSnapshot, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> TimestampOffset | None:
    """The first message with a timestamp >= `timestamp_ms` in the first segment that reaches that time; None if none.

    Exactly Kafka's rule: where timestamps are out of order, later segments are not searched (a segment below the log
    start, or without timestamps but with a late mtime, may hide them), and a control record may be the answer.
    StorageError when the batch that decides is damaged, or may be: damage is never skipped silently.
    """
    for segment in snapshot.segments:
        if retention_timestamp_ms(snapshot, segment) >= timestamp_ms:
            return _below_end(snapshot, isolation, _first_at(snapshot, segment, timestamp_ms))
        if may_reach(snapshot, segment, timestamp_ms):
            _check(snapshot, segment)
    return None


def _check(snapshot: LogSnapshot, segment: Segment) -> None:
    """Raises the damage in a segment, which may hide the wanted message."""
    for block in read_blocks(snapshot, segment, 0):
        block.check()


def _first_at(snapshot: LogSnapshot, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
    """The segment's first record from the log start on with a timestamp >= `timestamp_ms`."""
    log_start = snapshot.log_start_offset
    start = position_for_timestamp(snapshot, segment, timestamp_ms)
    if segment.base_offset < log_start:
        start = max(start, segment.floor(log_start, snapshot.end_position(segment)))
    for window in scan_sound_batches(snapshot, segment, start):
        table = window.table
        late = (table.max_timestamp >= timestamp_ms) & (table.last_offset >= log_start)
        for position in table.position[late].tolist():
            with batch_records(snapshot, segment, position) as block:
                found = np.flatnonzero((block.timestamp >= timestamp_ms) & (block.offset >= log_start))
                if len(found):
                    return TimestampOffset(int(block.timestamp[found[0]]), int(block.offset[found[0]]))
    return None


def _below_end(snapshot: LogSnapshot, isolation: Isolation, found: TimestampOffset | None) -> TimestampOffset | None:
    return found if found is not None and found.offset < visible_end(snapshot, isolation) else None


# Where a log is cut at a moment: after the last batch that has a message with a timestamp at or before it.
#
# Whole batches are kept, and all that come before that batch: timestamps need not ascend. A message without a timestamp
# (format v0) counts as one from before any moment. Control records count by their timestamps like messages, so that a
# transaction which was committed at that moment is committed in what is left.


class MixedBatch(NamedTuple):
    """The last batch before the cut, if it also has messages from after the moment: `later` of them."""

    base_offset: int
    last_offset: int
    later: int


class TimeCut(NamedTuple):
    """A log up to a moment. `snapshot`: as if nothing had been appended after the cut; `mixed`: see MixedBatch."""

    snapshot: LogSnapshot
    mixed: MixedBatch | None = None


class _Last(NamedTuple):
    """The last batch of a segment that belongs to what is kept: where it begins and ends, and its last offset."""

    position: int
    end: int
    last_offset: int


def cut_at(snapshot: LogSnapshot, until_ms: int) -> TimeCut:
    """Cuts a log at the moment `until_ms` (epoch milliseconds, included).

    Reads the headers of the segments from the last one back to the cut, and decodes what comes after the cut.
    StorageError for damage there: it may hide a message.
    """
    # Records below the log start count: whole segments are kept.
    segments = snapshot.segments
    whole = replace(snapshot, log_start_offset=segments[0].base_offset) if segments else snapshot
    for index in reversed(range(len(segments))):
        last = _last_until(whole, segments[index], until_ms)
        if last is not None:
            mixed = _mixed(whole, segments[index], last, until_ms)
            return TimeCut(_shortened(snapshot, index, last.end, last.last_offset + 1), mixed)
    return TimeCut(_shortened(snapshot, 0, 0, segments[0].base_offset) if segments else snapshot)


def _shortened(snapshot: LogSnapshot, index: int, end: int, end_offset: int) -> LogSnapshot:
    return replace(
        snapshot,
        segments=snapshot.segments[: index + 1],
        log_start_offset=min(snapshot.log_start_offset, end_offset),
        log_end_offset=end_offset,
        active_end=end,
        active_size=end,
    )


def _last_until(snapshot: LogSnapshot, segment: Segment, until_ms: int) -> _Last | None:
    """The segment's last batch with a message at or before the moment."""
    last: _Last | None = None
    for window in scan_sound_batches(snapshot, segment, 0):
        table = window.table
        rows = np.flatnonzero(table.max_timestamp <= until_ms)
        if len(rows):
            row = int(rows[-1])
            last = _Last(int(table.position[row]), int(table.end[row]), int(table.last_offset[row]))
    # The batches after it end later; still they may have an earlier message.
    for block in read_blocks(snapshot, segment, 0 if last is None else last.end, control=True):
        block.check()
        rows = np.flatnonzero(block.timestamp <= until_ms)
        if len(rows):
            row, table = int(block.batch[rows[-1]]), block.table
            last = _Last(int(table.position[row]), int(table.end[row]), int(table.last_offset[row]))
    return last


def _mixed(snapshot: LogSnapshot, segment: Segment, last: _Last, until_ms: int) -> MixedBatch | None:
    with batch_records(snapshot, segment, last.position) as block:
        later = int((block.timestamp > until_ms).sum())
        if not later:
            return None
        first = int(block.table.base_offset[0])
        return MixedBatch(first if first >= 0 else int(block.offset[0]), last.last_offset, later)
