"""The offsets of a whole log's records that are the latest of their keys: a compacted topic as a table.

In memory a key takes at most 36 bytes while they are found (see LatestKeys), then 8.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import TooManyKeys
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.latest.offset_map import ENTRY_BYTES, Int64s, OffsetMap, new_secret
from storage.log.isolation import last_stable_offset
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

# The share of the memory that the largest map may take: the map that it replaces takes a quarter of that, the result
# less than a third.
_SHARE: Final = 0.75
_LOAD_FACTOR: Final = 0.9
_GROWTH: Final = 4
_FIRST_SLOTS: Final = 16384


class LatestKeys:
    """The latest offset of each key, for a number of keys that is not known: an offset map that is replaced by larger
    ones. Not thread-safe."""

    def __init__(self, memory_bytes: int, most_keys: int) -> None:
        """`memory_bytes`: the limit for everything, also while a map is replaced; 36 a key suffice. InvalidConfig if
        that is too little for any keys. `most_keys`: there cannot be more."""
        most = min(int(memory_bytes * _SHARE) // ENTRY_BYTES, int(most_keys / _LOAD_FACTOR) + 4)
        self._sizes = [most]
        while self._sizes[-1] > _FIRST_SLOTS:
            self._sizes.append(self._sizes[-1] // _GROWTH)
        self._secret = new_secret()
        self._map = self._next_map()

    def __len__(self) -> int:
        return len(self._map)

    @property
    def slots(self) -> int:
        """The number of the map's slots, 24 bytes each."""
        return self._map.slots

    def put(self, block: RecordBlock) -> bool:
        """Adds the records that have keys; their offsets are above all earlier ones. False if the memory does not
        suffice; this object is of no use then."""
        while self._map.put(block, numbers=tombstones_marked(block)) < len(block):
            if not self._sizes:
                return False
            smaller, self._map = self._map, self._next_map()
            for hashes, offsets in smaller.parts():
                self._map.put_hashed(hashes, offsets)
        return True

    def offsets(self) -> Int64s:
        """The offsets of the latest records that are no tombstones, ascending."""
        latest = np.concatenate([offsets[offsets >= 0] for _, offsets in self._map.parts()])
        latest.sort()
        return latest

    def _next_map(self) -> OffsetMap:
        slots = self._sizes.pop()
        return OffsetMap(slots * ENTRY_BYTES, _LOAD_FACTOR, most_keys=slots, secret=self._secret)


OnBytes = Callable[[int], None]
"""Called with the number of file bytes after each step, possibly 0; may raise to end the work."""


def latest_offsets(
    snapshot: LogSnapshot, isolation: Isolation, memory_bytes: int, on_bytes: OnBytes = lambda _: None
) -> Int64s:
    """The offsets of the visible records that are the latest of their keys, ascending, without tombstones (null values)
    and records without a key.

    TooManyKeys if they need more than `memory_bytes`, InvalidConfig if those are too few for any keys. Damage is an
    error (CorruptBatch, UnsupportedFormat), because it may hide the latest record of any key. SegmentGone when segments
    are removed meanwhile.
    """
    end = last_stable_offset(snapshot) if isolation is Isolation.READ_COMMITTED else snapshot.log_end_offset
    start, decoder = snapshot.log_start_offset, Decoder()
    keys = LatestKeys(memory_bytes, end - start)
    for slot, segment in enumerate(snapshot.segments):
        behind = snapshot.segments[slot + 1].base_offset if slot + 1 < len(snapshot.segments) else end
        first, last = max(segment.base_offset, start), min(behind, end)
        if first >= last:
            continue
        with closing(read_range(snapshot, first, last, isolation=isolation, decoder=decoder)) as blocks:
            for block in blocks:
                block.check()
                if not keys.put(block):
                    raise _too_many(snapshot, memory_bytes, keys)
                on_bytes(0)
        on_bytes(snapshot.end_position(segment))
    return keys.offsets()


def rows_among(offsets: Int64s, chosen: Int64s) -> npt.NDArray[np.bool_]:
    """Which of `offsets` are among the `chosen` ones. Both ascend."""
    if not len(offsets):
        return np.zeros(0, np.bool_)
    first, last = chosen.searchsorted((offsets[0], offsets[-1] + 1)).tolist()
    near = chosen[first:last]
    if not len(near):
        return np.zeros(len(offsets), np.bool_)
    slots = np.minimum(near.searchsorted(offsets), len(near) - 1)
    return np.equal(near[slots], offsets)


def tombstones_marked(block: RecordBlock) -> Int64s:
    """The offsets of a block's records; for a tombstone `~offset`, which is negative. A map stores any numbers."""
    return np.where(block.value_length < 0, ~block.offset, block.offset)


def _too_many(snapshot: LogSnapshot, memory_bytes: int, keys: LatestKeys) -> TooManyKeys:
    return TooManyKeys(
        f"{snapshot.tp} has more keys than the memory for them holds",
        expected=f"keys that fit into {memory_bytes} bytes, 36 bytes each",
        found=f"more than {len(keys)} keys",
        advice="Allow more memory (-o latest_memory=…), or use the recipe for Spark in kafkafs/spark/SPARK.md",
    )
