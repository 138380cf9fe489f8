"""Whether a copy's batches are those of its source, even if compaction has changed the source since.

Compaction keeps a batch's base offset, last offset, producer and sequence, and removes records from it, or the batch as
a whole (Kafka's MemoryRecords.buildRetainedRecordsInto). Batches of formats v0 and v1 become v2.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from storage.format.batches import BatchTable
from storage.format.columns import Column

_KEPT: Final = [
    Column.BASE_OFFSET,
    Column.PRODUCER_ID,
    Column.PRODUCER_EPOCH,
    Column.BASE_SEQUENCE,
    Column.LEADER_EPOCH,
]


def same_batches(copy: BatchTable, source: BatchTable, *, compacted: bool) -> bool:
    """Whether the source's batches in a range of offsets are the copy's, by their checksums.

    `compacted`: the topic is compacted, so that the source may lack batches, or have fewer records in them.
    """
    _, ours, theirs = np.intersect1d(copy.last_offset, source.last_offset, assume_unique=True, return_indices=True)
    if len(theirs) < source.rows or (not compacted and len(ours) < copy.rows):
        return False
    same = copy.crc[ours] == source.crc[theirs]
    if compacted:
        kept = (copy.data[_KEPT][:, ours] == source.data[_KEPT][:, theirs]).all(axis=0)
        same |= kept & (source.count[theirs] < copy.count[ours])
        same |= (copy.magic[ours] < 2) & (source.magic[theirs] == 2)
    return bool(same.all())
