"""From a time to an offset, by the rules of Kafka's ListOffsets.

Sources: UnifiedLog.fetchOffsetByTimestamp, Partition.fetchOffsetForTimestamp, LogSegment.findOffsetByTimestamp,
FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from storage.client.counting import visible_end
from storage.log.reader import batch_records, read_blocks
from storage.log.scanning import scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.log.timestamps import greatest_timestamp, may_reach, position_for_timestamp, retention_timestamp_ms
from storage.types import NO_TIMESTAMP, Isolation, TimestampOffset


class SpecialTimestamp(IntEnum):
    """Special values of a ListOffsets request that are not times (ListOffsetsRequest)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


def list_offset(
    snapshot: LogSnapshot, special: SpecialTimestamp, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> TimestampOffset | None:
    """The answer of ListOffsets to a special timestamp; the answer's timestamp is -1, except for MAX_TIMESTAMP.

    None where a broker answers "unknown": there is no record, it is not stable yet, or nothing is tiered. Where no
    record has a timestamp, MAX_TIMESTAMP is the first record unless that has format v0, as in a broker.
    """
    if special is SpecialTimestamp.MAX_TIMESTAMP:
        return _below_end(snapshot, isolation, _of_greatest_timestamp(snapshot))
    if special is SpecialTimestamp.LATEST:
        return TimestampOffset(NO_TIMESTAMP, visible_end(snapshot, isolation))
    if special is SpecialTimestamp.EARLIEST:
        return TimestampOffset(NO_TIMESTAMP, snapshot.whole_start_offset)
    if special is SpecialTimestamp.EARLIEST_LOCAL:
        return TimestampOffset(NO_TIMESTAMP, snapshot.local_log_start_offset)
    return None


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


def _of_greatest_timestamp(snapshot: LogSnapshot) -> TimestampOffset | None:
    if not snapshot.segments:
        return None
    by_segment = [greatest_timestamp(snapshot, segment) for segment in snapshot.segments]
    index = max(range(len(by_segment)), key=lambda slot: (by_segment[slot].timestamp, -slot))
    greatest, segment = by_segment[index], snapshot.segments[index]
    start = segment.floor(greatest.offset, snapshot.end_position(segment))
    for window in scan_sound_batches(snapshot, segment, start):
        table = window.table
        for row in np.flatnonzero(table.max_timestamp == greatest.timestamp).tolist():
            if int(table.magic[row]) == 0:
                return None  # AbstractLegacyRecordBatch.offsetOfMaxTimestamp
            with batch_records(snapshot, segment, int(table.position[row])) as block:
                found = np.flatnonzero(block.timestamp == greatest.timestamp)
                return TimestampOffset(greatest.timestamp, int(block.offset[found[0]])) if len(found) else None
    return None


def _below_end(snapshot: LogSnapshot, isolation: Isolation, found: TimestampOffset | None) -> TimestampOffset | None:
    return found if found is not None and found.offset < visible_end(snapshot, isolation) else None
