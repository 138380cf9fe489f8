"""The latest offset of each key, for a number of keys that nobody knows beforehand, in at most 24 bytes a key.

A slot has 20 bytes: a hash of 128 bits, seven of which follow from the slot, and 39 bits for an offset and two marks
(see `key_table_kernel`). At most nine tenths of the slots are taken. The table grows by 7 %, within its own memory: the
system extends the mapping, or moves it without a copy, and one pass puts the keys where they belong. Hence there is
never a second table, and with 100,000 keys or more it takes 22.2 to 23.9 bytes a key. The result, 8 bytes a key, is
made in the same memory too.

Keys are compared by 128 bits of a hash with a random secret, as the cleaner compares them: less would save memory, but
one key could be taken for another, whose message would then be missing.
"""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import InvalidConfig
from storage.format.block import RecordBlock
from storage.latest import key_table_kernel
from storage.latest.offset_map import Int64s, hash_keys, new_secret

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
