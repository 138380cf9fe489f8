"""Whether the time index of a full segment is what its roll left.

A roll writes the time index's final entry after the segment's last message, and the next flush syncs it. Where a
flush had already made all messages durable, the recovery point is at the segment's end by then: so after a power loss
the segment lies below the recovery point, and the last entry of its time index may be missing, torn or garbage. All
other entries were synced with the messages. After a kill the entry is there, but perhaps not synced: recovery does
that, since the next flush begins at the recovery point.

An empty time index is left as it is, as a broker leaves it: it looks like one that was missing and was made
empty by a recovery that did not come to its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage.files import time_index
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.log.segment import Segment
from storage.types import MAX_OFFSET


def has_sound_time_index(segment: Segment) -> bool:
    """True when the last entry holds the segment's greatest timestamp, at a batch that has it, or there is no entry.

    Reads the batches from the last entry of the offset index on, and those up to the one that the entry names, one at
    a time. Damage that ends such a walk is not a matter of the time index: then the answer is True. Errors:
    SegmentGone, OSError.
    """
    # Nobody is writing to the index, so an invalid last entry is damage; a reader would take it for an unfinished
    # entry.
    times = time_index.load(segment.path_of(FileKind.TIME_INDEX), segment.base_offset)
    if times.problem is not None:
        return False
    if not len(times):
        return True
    last = times.last
    for batch in _batches(segment, segment.floor(MAX_OFFSET, segment.size)):
        if int(batch.max_timestamp[0]) > last.timestamp:
            return False
    end = 0
    for batch in _batches(segment, segment.floor(last.offset, segment.size)):
        if int(batch.last_offset[0]) >= last.offset:
            return int(batch.max_timestamp[0]) == last.timestamp
        end = int(batch.end[0])
    return end < segment.size


def _batches(segment: Segment, position: int) -> Iterator[BatchTable]:
    """The headers of the batches from a position on, a table of one row each, up to the first that is damaged."""
    while (batch := segment.batch_at(position, segment.size)) is not None:
        yield batch
        position = int(batch.end[0])
