"""The offsets of the records that are the latest of their keys, of a whole log: a compacted topic as a table.

In memory each key takes a slot of 24 bytes as in the cleaner's OffsetMap, of which at most nine tenths are used, as
there. Nobody knows beforehand how many keys there are, so the map grows by a quarter: that makes 26.7 to 33.4 bytes a
key (the cleaner's map has its whole buffer from the beginning, and 26.7 when it is full). It consists of parts, by the
keys' hashes, and one part grows at a time: a single table would be there twice meanwhile. The result takes 8 bytes a
key.

Keys are compared by 128 bits of a hash with a random secret, as the cleaner compares them: less would save memory, but
one key could be taken for another, whose message would then be missing.
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
from storage.latest.offset_map import ENTRY_BYTES, Int64s, OffsetMap, UInt64s, hash_keys, new_secret
from storage.log.isolation import last_stable_offset
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

OnBytes = Callable[[int], None]
"""Called with the number of file bytes after each step, possibly 0; may raise to end the work."""

_PARTS: Final = 16
_LOAD_FACTOR: Final = 0.9
_FIRST_SLOTS: Final = 1024  # of a part
_GROWTH: Final = 1.25
_LEAST_GROWTH: Final = 1.02
_COPIES: Final = 3  # of a part while it grows: the old table, its entries, the new table


def latest_offsets(
    snapshot: LogSnapshot, isolation: Isolation, memory_bytes: int, on_bytes: OnBytes = lambda _: None
) -> Int64s:
    """The offsets of the visible records that are the latest of their keys, ascending, without tombstones (null values)
    and records without a key.

    TooManyKeys if they need more than `memory_bytes`. Damage is an error (CorruptBatch, UnsupportedFormat), because it
    may hide the latest record of any key. SegmentGone when segments are removed meanwhile.
    """
    keys = LatestKeys(memory_bytes)
    end = last_stable_offset(snapshot) if isolation is Isolation.READ_COMMITTED else snapshot.log_end_offset
    start, decoder = snapshot.log_start_offset, Decoder()
    for slot, segment in enumerate(snapshot.segments):
        behind = snapshot.segments[slot + 1].base_offset if slot + 1 < len(snapshot.segments) else end
        first, last = max(segment.base_offset, start), min(behind, end)
        if first >= last:
            continue
        with closing(read_range(snapshot, first, last, isolation=isolation, decoder=decoder)) as blocks:
            for block in blocks:
                block.check()
                if not keys.put(block):
                    raise _too_many(snapshot, memory_bytes, len(keys))
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
    """The offsets of a block's records, for tombstones `~offset`, which is below 0: a map passes on any number."""
    return np.where(block.value_length < 0, ~block.offset, block.offset)


class LatestKeys:
    """The latest offset of each key, for a number of keys that is not known. Not thread-safe."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: of the tables, also while they grow."""
        self._secret = new_secret()
        self._most_slots = memory_bytes // ENTRY_BYTES
        slots = max(4, min(_FIRST_SLOTS, self._most_slots // (_COPIES * _PARTS)))
        self._parts = [self._map(slots) for _ in range(_PARTS)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def slots(self) -> int:
        """The number of slots, of 24 bytes each."""
        return sum(part.slots for part in self._parts)

    def put(self, block: RecordBlock) -> bool:
        """Adds the records that have keys; their offsets are above all before. False when there is not enough memory
        for them: the map is of no more use then."""
        hashes = np.empty((len(block), 2), np.uint64)
        hash_keys(block, self._secret, hashes)
        offsets = tombstones_marked(block)
        with_key = block.key_length >= 0
        if not with_key.all():
            hashes, offsets = hashes[with_key], offsets[with_key]
        # By the lowest bits: the upper half of a hash determines a key's slot in a map.
        place = (hashes[:, 0] & np.uint64(_PARTS - 1)).astype(np.uint8)
        order = place.argsort(kind="stable")
        hashes, offsets = hashes[order], offsets[order]
        ends = np.bincount(place, minlength=_PARTS).cumsum().tolist()
        return all(
            self._put(number, hashes[start:end], offsets[start:end])
            for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
            if start < end
        )

    def offsets(self) -> Int64s:
        """The offsets of the latest records that are no tombstones, ascending. Empties the map."""
        found: list[Int64s] = []
        while self._parts:
            latest = self._parts.pop().drain()[1]
            found.append(latest[latest >= 0])
        together = np.concatenate(found)
        together.sort()
        return together

    def _put(self, number: int, hashes: UInt64s, offsets: Int64s) -> bool:
        done = self._parts[number].put_rows(hashes, offsets)
        while done < len(offsets):
            if not self._grow(number):
                return False
            done += self._parts[number].put_rows(hashes[done:], offsets[done:])
        return True

    def _grow(self, number: int) -> bool:
        """Makes a part larger; False when the memory does not suffice."""
        part = self._parts[number]
        room = (self._most_slots - self.slots + part.slots) // _COPIES
        slots = min(int(part.slots * _GROWTH) + 1, room)
        if slots <= part.slots * _LEAST_GROWTH:
            return False
        larger = self._map(slots)
        larger.put_hashed(*part.drain())
        self._parts[number] = larger
        return True

    def _map(self, slots: int) -> OffsetMap:
        return OffsetMap(slots * ENTRY_BYTES, _LOAD_FACTOR, most_keys=slots, secret=self._secret)


def _too_many(snapshot: LogSnapshot, memory_bytes: int, keys: int) -> TooManyKeys:
    return TooManyKeys(
        f"{snapshot.tp} has more keys than the memory for them holds",
        expected=f"keys that fit into {memory_bytes} bytes, {ENTRY_BYTES} bytes and some free space each",
        found=f"more than {keys} keys",
        advice="Allow more memory (-o latest_memory=…), or let `kafkafs spark latest` find them with many processes",
    )
