"""The partition of a message, as Kafka's producer chooses it: by its key, or sticky without one.

Source: BuiltInPartitioner, Utils.murmur2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.format import hashing
from storage.format.block import RecordColumns

Int64s = npt.NDArray[np.int64]

# The producer's batch.size: after this many bytes without a key the sticky partition changes.
STICKY_BYTES: Final = 16_384
_POSITIVE: Final = 0x7FFFFFFF


class Partitioner:
    """Chooses among the partitions 0 to `partitions` - 1 for one writer. Not thread-safe."""

    def __init__(
        self, partitions: int, *, sticky_bytes: int = STICKY_BYTES, chance: random.Random | None = None
    ) -> None:
        if partitions < 1:
            raise ValueError("a topic has at least one partition")
        self._partitions = partitions
        self._sticky_bytes = sticky_bytes
        self._chance = chance or random.Random()
        self._sticky = self._chance.randrange(partitions)
        self._bytes = 0

    def choose(self, columns: RecordColumns) -> Int64s:
        """The partition of each record. All records without a key in one call get the same partition."""
        rows = len(columns)
        keyed = columns.key_length >= 0
        chosen = np.full(rows, self._sticky, np.int64)
        if keyed.any():
            starts, lengths = columns.key_start, columns.key_length
            hashes = np.empty(rows, np.int32)
            hashing.murmur2_columns(memoryview(columns.buffer).cast("B"), starts, lengths, hashes)
            chosen[keyed] = _of_hash(hashes[keyed].astype(np.int64), self._partitions)
        if not keyed.all():
            sizes = np.maximum(columns.value_length[~keyed], 0)
            self.used(int(sizes.sum()))
        return chosen

    @property
    def sticky(self) -> int:
        """The current partition for records without a key."""
        return self._sticky

    def used(self, size: int) -> None:
        """Counts bytes of values that went to the sticky partition, and changes it after a batch's worth."""
        self._bytes += size
        if self._bytes >= self._sticky_bytes:
            self._bytes = 0
            self._sticky = self._chance.randrange(self._partitions)


def in_order_for_key(key: bytes, partitions: Sequence[int], count: int | None) -> list[int]:
    """The `partitions` in the order in which to search them for a key: the partition that Kafka's producers choose by
    default among `count`, if it is one of them, then the others. `count` None: unknown, so the highest of `partitions`
    counts as the last."""
    among = max(partitions, default=0) + 1 if count is None else count
    chosen = int(_of_hash(np.array([hashing.murmur2(key)], np.int64), among)[0])
    return sorted(partitions, key=lambda partition: (partition != chosen, partition))


def _of_hash(hashes: Int64s, partitions: int) -> Int64s:
    chosen: Int64s = (hashes & _POSITIVE) % partitions
    return chosen
