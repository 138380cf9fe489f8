"""The offset map of a compaction pass: the offset of each key's latest record, in bounded memory.

24 bytes a key, as in Kafka: 16 of a hash of the whole key, 8 of the offset. The hash is keyed at random for each map,
so nobody can make two keys that compaction would take for one. Source: `SkimpyOffsetMap` (which has MD5 there).
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.compaction import offset_map_kernel
from storage.errors import InvalidConfig
from storage.format import hashing
from storage.format.block import RecordBlock

ENTRY_BYTES: Final = 24

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

# What the hashes of a pass are keyed with.
Secret = tuple[int, int]

_NO_HASHES: Final = np.empty((0, 2), np.uint64)


def new_secret() -> Secret:
    """One that nobody can guess."""
    return secrets.randbits(64), secrets.randbits(64)


class OffsetMap:
    """Keys' latest offsets. Not thread-safe. `latest_offset`: all records up to there are in the map; -1 at first."""

    def __init__(self, memory_bytes: int, load_factor: float, *, most_keys: int, secret: Secret | None = None) -> None:
        """In at most `memory_bytes`; less where there cannot be more than `most_keys` keys. Full when the share
        `load_factor` of Kafka's slots in that memory is taken. InvalidConfig when not even two keys would fit.
        `secret`: of the hashes, where several maps are to have the same."""
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
        """The share of its slots that is taken."""
        return len(self) / self.slots

    def put(self, block: RecordBlock, first_offset: int) -> int:
        """Notes the records from `first_offset` on that have keys; returns how many were looked at: all, or those
        before the first that found the map full."""
        self._state[1] = self.latest_offset
        rows = offset_map_kernel.put(
            self._table, self._limit, self._state, self._hashed(block), block.offset, block.key_length, first_offset
        )
        self.latest_offset = int(self._state[1])
        return int(rows)

    def put_hashed(self, hashes: UInt64s, offsets: Int64s) -> None:
        """Notes the offsets of keys that another map of the same secret had; ValueError when they do not fit in."""
        keys = np.zeros(len(offsets), np.int64)
        if offset_map_kernel.put(self._table, self._limit, self._state, hashes, offsets, keys, 0) < len(offsets):
            raise ValueError("a map too small for its keys")

    def drain(self) -> tuple[UInt64s, Int64s]:
        """All hashes, two halves each, and their offsets, in no order; the map is empty then."""
        slots = self._table.reshape(-1, 3)
        taken = slots[(slots[:, 0] != 0) | (slots[:, 1] != 0)]
        self._table[:] = 0
        self._state[0] = 0
        return np.ascontiguousarray(taken[:, :2]), taken[:, 2].astype(np.int64)

    def lacks(self, hashes: UInt64s) -> npt.NDArray[np.bool_]:
        """Which of these keys are not in the map."""
        rows = len(hashes)
        nothing, keep = np.zeros(rows, np.int64), np.empty(rows, np.uint8)
        counts = np.zeros(3, np.int64)
        offset_map_kernel.retain(
            self._table,
            0,
            0,
            np.empty(0, np.uint8),
            hashes,
            nothing - 1,  # below all that the map has
            nothing,
            nothing,
            nothing,
            np.zeros(1, np.uint8),
            keep,
            counts[:1],
            counts[1:2],
            np.zeros(3, np.int64),
        )
        return keep.astype(np.bool_)

    def complete(self, first_offset: int) -> None:
        """Nothing more will be put: all that was lies at `first_offset` or above. Marks the offsets in the map, where a
        bit for each takes little beside it: then the records there need not be looked up by their keys."""
        size = max(self.latest_offset - first_offset + 8, 0) // 8
        if size <= max(self._table.nbytes >> 4, 4096):
            self._first = first_offset
            self._marks = np.zeros(size, np.uint8)
            offset_map_kernel.mark(self._table, first_offset, self._marks)

    def retain(
        self, block: RecordBlock, verdicts: npt.NDArray[np.uint8], kept: Int64s, deletes: Int64s, counts: Int64s
    ) -> npt.NDArray[np.uint8]:
        """Which records stay, 1 or 0 each; see offset_map_kernel.retain for the columns."""
        keep = np.empty(len(block), np.uint8)
        marked = len(self._marks) and len(block) and int(block.offset[0]) >= self._first
        offset_map_kernel.retain(
            self._table,
            self.latest_offset,
            self._first,
            self._marks,
            _NO_HASHES if marked else self._hashed(block),
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
        hash_keys(block, self._secret, self._hashes)
        return self._hashes


def hash_keys(block: RecordBlock, secret: Secret, out: UInt64s) -> None:
    """The hashes of the records' keys, two halves each, as a map of that secret has them."""
    hashing.siphash_columns(block.buffer, block.key_start, block.key_length, *secret, out)
