"""Whether the time index of a full segment is what its roll left.

A roll writes the time index's final entry after the segment's last message, and the next flush syncs it. Where a flush
had already made all messages durable, the recovery point is at the segment's end by then: so after a power loss the
segment lies below the recovery point, and the last entry of its time index may be missing, torn or garbage. All other
entries were synced with the messages.

An empty time index is left as it is, as a broker leaves it: it cannot be told from one that was missing and was made
empty by a recovery that did not come to its end.
"""

from __future__ import annotations

import numpy as np

from storage.format.batches import BatchTable, scan
from storage.log.segment import Segment


def is_sound(segment: Segment) -> bool:
    """True when the last entry holds the segment's greatest timestamp, at a batch that has it, or there is no entry.

    Reads the batches from the last entry of each index on, headers alone. Errors: SegmentGone, OSError.
    """
    times = segment.time_index(segment.size)
    if times.problem is not None:
        return False
    if not len(times):
        return True
    tail = _headers(segment, segment.floor(segment.base_offset + 2**31, segment.size))
    last = times.last
    if tail.rows and int(tail.max_timestamp.max()) > last.timestamp:
        return False
    named = _headers(segment, segment.floor(last.offset, segment.size))
    row = int(np.searchsorted(named.last_offset, last.offset))
    return row < named.rows and int(named.max_timestamp[row]) == last.timestamp


def _headers(segment: Segment, position: int) -> BatchTable:
    """The headers of the batches from a position on, as far as they can be read."""
    data = segment.log.read(position, segment.size - position)
    table = BatchTable.empty(max(1, len(data) // 64))
    scan(data, position, table)
    return table
