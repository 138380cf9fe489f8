"""Cuts the batches of a pass into blocks, as they come, with their keys and rendered sizes if these are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt

from kafkafs.reading import block_kernel, blocks
from kafkafs.reading.blocks import FOUND_COLUMNS, MOST_KEY_BYTES, MOST_NAMES, NO_CRC, NO_FILTER, FoundBlocks

if TYPE_CHECKING:
    from kafkafs.reading.blocks import Int64s, Secret, UInt64s
    from storage.format.batches import BatchTable
    from storage.format.block import RecordBlock

NOTHING: Final = np.empty(0, np.int64)
_ALL: Final = np.empty(0, np.uint8)
_NO_HASHES: Final = np.empty(0, np.uint64)


class BlockCollector:
    """Makes the blocks of a part of a segment from its batches, which must be given in order. Used by one thread.

    `edges`: where known blocks begin and end. `secret`: for the filters of keys; None: there are none. `is_sparse`: few
    records may be wanted, so that blocks begin and end with batches that have some.
    """

    def __init__(self, edges: Int64s, secret: Secret | None, *, is_sparse: bool) -> None:
        self._edges = edges
        self._secret = secret
        # of the block that is being made, and how many are complete; see block_kernel.collect
        self._state = np.zeros(block_kernel.STATE_CELLS, np.int64)
        self._state[block_kernel.HAS_KEYS] = secret is not None
        self._state[block_kernel.IS_SPARSE] = is_sparse
        self._pending = np.empty(0, np.uint64)
        self._sketch = np.empty(1, np.uint64)
        # of the whole part
        self._rows = np.empty((0, FOUND_COLUMNS), np.int64)
        self._words = np.empty(0, np.uint64)
        self._names = None if secret is None else _Names()

    def found(self) -> FoundBlocks:
        """Complete the last block, and return all blocks that were collected."""
        self._close()
        count, words = (int(self._state[cell]) for cell in (block_kernel.BLOCKS, block_kernel.WORDS))
        names: frozenset[bytes] | None = frozenset()
        if self._secret is not None:
            names = None if self._names is None else self._names.all()
        return FoundBlocks(self._rows[:count], self._words[:words], names)

    def add(
        self,
        table: BatchTable,
        first: int,
        last: int,
        block: RecordBlock,
        sizes: Int64s = NOTHING,
        mask: npt.NDArray[np.bool_] | None = None,
        hidden: npt.NDArray[np.uint8] | None = None,
        hashes: UInt64s | None = None,
    ) -> None:
        """Adds the batches in rows [first, last) of a table, decoded in `block`. By record: its rendered size
        (`sizes`), if sizes are measured; whether it is wanted (`mask`). By batch: whether it renders to nothing
        (`hidden`).

        `hashes`: if keys are collected, an array to overwrite, of one hash for each record: allocating it anew would
        take a fifth as long as everything else here.
        """
        if self._secret is not None and hashes is not None:
            block_kernel.hash_keys(block.buffer, block.key_start, block.key_length, *self._secret, hashes)
            if self._names is not None and not self._names.add(block, hashes):
                self._names = None
        self._make_room(len(block), last - first)
        is_compressed = table.codec[first:last].any()
        block_kernel.collect(
            table.data,
            first,
            last,
            block.batch,
            block.timestamp,
            block.key_length if is_compressed else NOTHING,
            block.value_length if is_compressed else NOTHING,
            sizes,
            _ALL if mask is None else mask.view(np.uint8),
            _ALL if hidden is None else np.ascontiguousarray(hidden, np.uint8),
            _NO_HASHES if hashes is None else hashes,
            self._edges,
            blocks.BLOCK_BYTES,
            blocks.BLOCK_RECORDS,
            blocks.DECODED_BYTES,
            self._state,
            self._pending,
            self._sketch,
            self._rows,
            self._words,
        )

    def add_damage(self, position: int, end: int, times: tuple[int, int], size: int) -> None:
        """Adds bytes that cannot be read: a damaged batch, or bytes where no batch begins. `times`: the least and the
        greatest timestamp that its header names; `size`: its rendered size."""
        self._close()
        self._make_room(0, 1)
        row = int(self._state[block_kernel.BLOCKS])
        words = int(self._state[block_kernel.WORDS])
        self._rows[row] = (position, end, -1, NO_CRC, *times, 0, 0, words, NO_FILTER, size)
        self._state[block_kernel.BLOCKS] = row + 1

    def _close(self) -> None:
        if not self._state[block_kernel.IS_OPEN]:
            return
        self._make_room(0, 1)
        block_kernel.close(self._state, self._pending, self._sketch, self._rows, self._words)

    def _make_room(self, records: int, batches: int) -> None:
        """Make room for `records` more hashes, and for a block for each of `batches` more batches."""
        if self._secret is None:
            records = 0
        pending = int(self._state[block_kernel.PENDING])
        hashes = pending + records
        if hashes > len(self._pending):
            larger = np.empty(max(2 * hashes, blocks.BLOCK_RECORDS), np.uint64)
            larger[:pending] = self._pending[:pending]
            self._pending = larger
            self._sketch = np.empty(len(larger) // 4 + 1, np.uint64)
        words = hashes * block_kernel.BITS_PER_KEY // 64 + batches + 1
        is_open = int(self._state[block_kernel.IS_OPEN])
        self._rows = _with_room(self._rows, int(self._state[block_kernel.BLOCKS]) + is_open, batches + 1)
        self._words = _with_room(self._words, int(self._state[block_kernel.WORDS]), words)


_Array = TypeVar("_Array", npt.NDArray[np.int64], npt.NDArray[np.uint64])


def _with_room(array: _Array, used: int, rows: int) -> _Array:
    """An array with room for `rows` more after the `used` rows: the array itself, or a copy."""
    if used + rows <= len(array):
        return array
    # Each copy needs new memory from the system, so copies are few; the rows that are not used take no memory.
    larger = np.empty((2 * used + 32 * rows, *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


class _Names:
    """The different keys of up to MOST_KEY_BYTES bytes, at most MOST_NAMES."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = np.empty(MOST_NAMES * MOST_KEY_BYTES, np.uint8)  # mostly untouched, so it takes no memory
        self._ends = np.empty(MOST_NAMES, np.int64)
        self._table = np.zeros(4096, np.int64)

    def add(self, block: RecordBlock, hashes: UInt64s) -> bool:
        """Adds the keys of a block; False if the set would hold too many."""
        self._count = block_kernel.add_names(
            block.buffer,
            block.key_start,
            block.key_length,
            hashes,
            MOST_KEY_BYTES,
            self._bytes,
            self._ends,
            self._table,
            self._count,
        )
        return self._count >= 0

    def all(self) -> frozenset[bytes]:
        ends = self._ends[: self._count].tolist()
        names = self._bytes[: ends[-1] if ends else 0].tobytes()
        return frozenset(names[start:end] for start, end in zip([0, *ends], ends, strict=False))
