"""From a time to an offset, by the rules of Kafka's ListOffsets.

Sources: UnifiedLog.fetchOffsetByTimestamp, Partition.fetchOffsetForTimestamp, LogSegment.findOffsetByTimestamp,
FileRecords.searchForTimestamp.
"""

from __future__ import annotations

import numpy as np

from storage.log.counting import visible_end
from storage.log.greatest_timestamp import may_reach, position_for_timestamp, retention_timestamp_ms
from storage.log.reader import batch_records, read_blocks
from storage.log.scanning import scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TimestampOffset


def offset_for_timestamp(
    snapshot: LogSnapshot, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> TimestampOffset | None:
    """Return the first message with a timestamp >= `timestamp_ms` in the first segment that reaches that time; or None.

    Exactly Kafka's rule: if timestamps are out of order, later segments are not searched (a segment below the log
    start, or without timestamps but with a late mtime, may hide them), and a control record may be the answer.
    StorageError if the batch that decides is damaged, or may be: damage is never skipped silently.
    """
    for segment in snapshot.segments:
        if retention_timestamp_ms(snapshot, segment) >= timestamp_ms:
            return _below_end(snapshot, isolation, first_at(snapshot, segment, timestamp_ms))
        if may_reach(snapshot, segment, timestamp_ms):
            _check(snapshot, segment)
    return None


def _check(snapshot: LogSnapshot, segment: Segment) -> None:
    """Raise the error of damage in a segment, which may hide the message."""
    for block in read_blocks(snapshot, segment, 0):
        block.check()


def first_at(snapshot: LogSnapshot, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
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
                rows = np.flatnonzero((block.timestamp >= timestamp_ms) & (block.offset >= log_start))
                if len(rows):
                    return TimestampOffset(int(block.timestamp[rows[0]]), int(block.offset[rows[0]]))
    return None


def _below_end(snapshot: LogSnapshot, isolation: Isolation, found: TimestampOffset | None) -> TimestampOffset | None:
    return found if found is not None and found.offset < visible_end(snapshot, isolation) else None
