"""The offsets of the records that are the latest of their keys, of a whole log: a compacted topic as a table.

In memory each key takes less than 24 bytes while they are found (see LatestKeys), then 8.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import InvalidConfig, TooManyKeys
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.latest import key_table_kernel
from storage.latest.offset_map import Int64s, hash_keys, new_secret
from storage.log.isolation import last_stable_offset
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

# The latest offset of each key, for a number of keys that nobody knows beforehand, in at most 24 bytes a key.
#
# A slot has 20 bytes: a hash of 128 bits, seven of which follow from the slot, and 39 bits for an offset and two marks
# (see `key_table_kernel`). At most nine tenths of the slots are taken. The table grows by 7 %, within its own memory:
# the system extends the mapping, or moves it without a copy, and one pass puts the keys where they belong. Hence there
# is never a second table, and with 100,000 keys or more it takes 22.2 to 23.9 bytes a key. The result, 8 bytes a key,
# is made in the same memory too.
#
# Keys are compared by 128 bits of a hash with a random secret, as the cleaner compares them: less would save memory,
# but one key could be taken for another, whose message would then be missing.

_WORDS: Final = 5  # of 32 bits, in a slot
_WORDS_WIDE: Final = 6  # of a log with too many offsets for five
_WORD_BYTES: Final = 4
_MOST_OFFSETS: Final = 2**37  # in slots of five words
_MOST_SLOTS: Final = 0xFFFFFF00
_LOAD_FACTOR: Final = 0.9
_FIRST_SLOTS: Final = 16384
_GROWTH: Final = 1.07
_LEAST_GROWTH: Final = 1.02
_STEP: Final = 1 << 16  # slots that are made a result at a time


class LatestKeys:
    """The latest offset of each key, for a number of keys that is not known. Not thread-safe."""

    def __init__(self, memory_bytes: int, first_offset: int, end_offset: int) -> None:
        """For offsets in [first_offset, end_offset). `memory_bytes`: of the table, also while it grows. InvalidConfig
        if that is too little for any table."""
        self._secret = new_secret()
        self._origin = first_offset
        self._words = _WORDS if end_offset - first_offset <= _MOST_OFFSETS else _WORDS_WIDE
        self._most_slots = min(memory_bytes // self.slot_bytes - key_table_kernel.HEAD_SLOTS, _MOST_SLOTS)
        if self._most_slots < key_table_kernel.LEAST_SLOTS:
            raise InvalidConfig(
                "there is too little memory for keys",
                expected=f"{(key_table_kernel.HEAD_SLOTS + key_table_kernel.LEAST_SLOTS) * self.slot_bytes} bytes",
                found=f"{memory_bytes} bytes",
            )
        self._slots = min(_FIRST_SLOTS, self._most_slots)
        # Not an array: only a mapping can be extended without a second one. Private, since a shared one cannot.
        self._memory = mmap.mmap(-1, self._bytes_of(self._slots), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._state = np.zeros(2, np.int64)
        self._hashes = np.empty((0, 2), np.uint64)

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def memory_bytes(self) -> int:
        """The size of the table: never more than this was in use before."""
        return len(self._memory)

    @property
    def slot_bytes(self) -> int:
        """The size of a slot; each key takes one, and nine tenths of them are taken at most."""
        return self._words * _WORD_BYTES

    def put(self, block: RecordBlock) -> bool:
        """Adds the records that have keys; their offsets are above all before. False when there is not enough memory
        for them: the table is of no more use then."""
        rows = len(block)
        if len(self._hashes) < rows:
            self._hashes = np.empty((max(rows, 2 * len(self._hashes)), 2), np.uint64)
        hash_keys(block, self._secret, self._hashes)
        done = 0
        while True:
            done = key_table_kernel.put(
                self._table(),
                self._words,
                self._slots,
                int(self._slots * _LOAD_FACTOR),
                self._state,
                self._hashes,
                block.offset,
                block.key_length,
                block.value_length,
                self._origin,
                done,
            )
            if done == rows:
                return True
            if not self._grow():
                return False

    def offsets(self) -> Int64s:
        """The offsets of the latest records that are no tombstones, ascending. The table is of no more use then: they
        take its place."""
        count = self._gather()
        if not count:
            return np.empty(0, np.int64)
        np.frombuffer(self._memory, np.int64, count).sort()
        self._memory.resize(count * 8)
        return np.frombuffer(self._memory, np.int64, count)

    def _gather(self) -> int:
        """Puts the offsets in the first bytes of the memory; returns how many they are. An offset is shorter than a
        slot, so what is overwritten has been read."""
        slots = self._table().reshape(-1, self._words)
        latest = np.frombuffer(self._memory, np.int64, len(self._memory) // 8)
        count = 0
        for first in range(0, len(slots), _STEP):
            some = slots[first : first + _STEP]
            some = some[(some[:, 4] & 3) == 1].astype(np.int64)
            offsets = (some[:, 0] >> 25 << 32 | some[:, 4]) >> 2
            if self._words == _WORDS_WIDE:
                offsets |= some[:, 5] << 37
            latest[count : count + len(offsets)] = offsets + self._origin
            count += len(offsets)
        return count

    def _grow(self) -> bool:
        """Makes the table larger; False when the memory does not suffice."""
        larger = min(int(self._slots * _GROWTH) + 1, self._most_slots)
        if larger <= self._slots * _LEAST_GROWTH:
            return False
        self._memory.resize(self._bytes_of(larger))
        key_table_kernel.grow(self._table(), self._words, self._slots, larger)
        self._slots = larger
        return True

    def _bytes_of(self, slots: int) -> int:
        return (slots + key_table_kernel.HEAD_SLOTS) * self.slot_bytes

    def _table(self) -> npt.NDArray[np.uint32]:
        """Must not be kept: the memory cannot grow then."""
        return np.frombuffer(self._memory, np.uint32)


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
    keys = LatestKeys(memory_bytes, start, end)
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
    """The offsets of a block's records, for tombstones `~offset`, which is below 0: a map passes on any number."""
    return np.where(block.value_length < 0, ~block.offset, block.offset)


def _too_many(snapshot: LogSnapshot, memory_bytes: int, keys: LatestKeys) -> TooManyKeys:
    return TooManyKeys(
        f"{snapshot.tp} has more keys than the memory for them holds",
        expected=f"keys that fit into {memory_bytes} bytes, {keys.slot_bytes} bytes and a little free space each",
        found=f"more than {len(keys)} keys",
        advice="Allow more memory (-o latest_memory=…), or let `kafkafs spark latest` find them with many processes",
    )
