"""The offset map: the offset of each key's latest record, in bounded memory.

24 bytes per key, as in Kafka: 16 for a hash of the whole key, 8 for the offset. Each map hashes with a random secret,
so nobody can construct two keys that compaction would confuse. Source: `SkimpyOffsetMap` (which has MD5 there).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import InvalidConfig
from storage.format import hashing
from storage.format.block import RecordBlock
from storage.latest import offset_map_kernel

ENTRY_BYTES: Final = 24

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

# The secret of a pass's hashes.
Secret = tuple[int, int]

_NO_HASHES: Final = np.empty((0, 2), np.uint64)
_ANY_NUMBER: Final = -(2**63)
_STEP: Final = 1 << 16  # slots examined at a time


def new_secret() -> Secret:
    """A random secret."""
    return int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8))


class OffsetMap:
    """Keys' latest offsets. Not thread-safe. `latest_offset`: all records up to there are in the map; -1 at first."""

    def __init__(self, memory_bytes: int, load_factor: float, *, most_keys: int, secret: Secret | None = None) -> None:
        """Uses at most `memory_bytes`, less if there cannot be more than `most_keys` keys. Full when `load_factor` of
        the slots that Kafka would have in that memory are used. InvalidConfig when not even two keys would fit.
        `secret`: of the hashes, if several maps must share it."""
        slots = memory_bytes // ENTRY_BYTES
        if slots * load_factor <= 1:
            raise InvalidConfig(
                "offset map is too small for even one message",
                expected="a greater log.cleaner.dedupe.buffer.size or log.cleaner.io.buffer.load.factor",
                found=f"{memory_bytes} bytes, {load_factor}",
            )
        taken = min(slots, max(int(most_keys / load_factor), most_keys) + 2)
        self.latest_offset = -1
        self.slots: Final = slots
        self._limit = min(int(slots * load_factor), taken - 1)
        self._table = np.zeros(3 * taken, np.uint64)
        self._state = np.zeros(3, np.int64)
        self._secret = new_secret() if secret is None else secret
        self._hashes = np.empty((0, 2), np.uint64)
        self._first = 0
        self._marks = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def utilization(self) -> float:
        """The share of used slots."""
        return len(self) / self.slots

    def put(self, block: RecordBlock, first_offset: int = _ANY_NUMBER, numbers: Int64s | None = None) -> int:
        """Adds the records with keys from `first_offset` on; returns how many records were processed: all, or those
        before the first one that found the map full. `numbers`: stored for the records in place of their offsets."""
        self._state[1] = self.latest_offset
        offsets = block.offset if numbers is None else numbers
        rows = offset_map_kernel.put(
            self._table, self._limit, self._state, self._hashed(block), offsets, block.key_length, first_offset
        )
        self.latest_offset = int(self._state[1])
        return int(rows)

    def put_hashed(self, hashes: UInt64s, offsets: Int64s) -> None:
        """Adds keys and offsets from another map with the same secret; ValueError when they do not fit."""
        lengths = np.zeros(len(offsets), np.int64)
        rows = offset_map_kernel.put(self._table, self._limit, self._state, hashes, offsets, lengths, _ANY_NUMBER)
        if rows < len(offsets):
            raise ValueError("a map too small for its keys")

    def parts(self) -> Iterator[tuple[UInt64s, Int64s]]:
        """The hashes in the map and their offsets, in no particular order, as many at a time as take little memory."""
        slots = self._table.reshape(-1, 3)
        for first in range(0, len(slots), _STEP):
            some = slots[first : first + _STEP]
            taken = some[(some[:, 0] != 0) | (some[:, 1] != 0)]
            yield np.ascontiguousarray(taken[:, :2]), taken[:, 2].astype(np.int64)

    def complete(self, first_offset: int) -> None:
        """Call it when all records, none below `first_offset`, have been added. Marks the offsets in the map with a bit
        each, if that is small compared with the map: those records then need no lookup by key."""
        size = max(self.latest_offset - first_offset + 8, 0) // 8
        if size <= max(self._table.nbytes >> 4, 4096):
            self._first = first_offset
            self._marks = np.zeros(size, np.uint8)
            offset_map_kernel.mark(self._table, first_offset, self._marks)

    def retain(
        self, block: RecordBlock, verdicts: npt.NDArray[np.uint8], kept: Int64s, deletes: Int64s, counts: Int64s
    ) -> npt.NDArray[np.uint8]:
        """Which records stay, 1 or 0 each; see offset_map_kernel.retain for the columns."""
        marked = len(self._marks) and len(block) and int(block.offset[0]) >= self._first
        hashes = _NO_HASHES if marked else self._hashed(block)
        keep = np.empty(len(block), np.uint8)
        offset_map_kernel.retain(
            self._table,
            self.latest_offset,
            self._first,
            self._marks,
            hashes,
            block.offset,
            block.key_length,
            block.value_length,
            block.batch,
            verdicts,
            keep,
            kept,
            deletes,
            counts,
        )
        return keep

    def _hashed(self, block: RecordBlock) -> npt.NDArray[np.uint64]:
        if len(self._hashes) < len(block):
            self._hashes = np.empty((max(len(block), 2 * len(self._hashes)), 2), np.uint64)
        hashing.siphash_columns(block.buffer, block.key_start, block.key_length, *self._secret, self._hashes)
        return self._hashes
