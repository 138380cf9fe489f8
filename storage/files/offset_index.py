"""The offset index (.index): maps a batch's last offset to the byte position where that batch begins.

Entries of 8 bytes: int32 offset - base offset, int32 file position, both strictly ascending. The first batch of a
segment never has an entry (LogSegment.append), so neither field of an entry is ever 0: zeros are preallocated space.
See storage/FORMAT.md, "Index files". Source: Kafka's OffsetIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptIndex, IndexFault
from storage.files import sparse_index
from storage.files.sparse_index import SparseIndex, broken_entry, first_failure, load_index, used_entries
from storage.types import OffsetPosition

ENTRY_SIZE = 8
_MAX_INT32 = 2**31 - 1


class OffsetIndex(SparseIndex):
    """The trusted entries of an .index, in memory 8 bytes an entry as on disk."""

    __slots__ = ()

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Absolute last offsets of the indexed batches, int64, a new array."""
        return self._keys.astype(np.int64) + self.base_offset

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Byte positions of the indexed batches in the .log, int64, a new array."""
        return self._values.astype(np.int64)

    def entry(self, slot: int) -> OffsetPosition:
        """The entry in this slot."""
        return OffsetPosition(self.base_offset + int(self._keys[slot]), int(self._values[slot]))

    def floor(self, offset: int) -> OffsetPosition:
        """The last entry with an offset <= `offset`; (base offset, 0) when there is none (OffsetIndex.lookup).

        The first batch whose last offset is >= `offset` begins at that position or after it.
        """
        slot = self._floor_slot(offset - self.base_offset)
        return OffsetPosition(self.base_offset, 0) if slot < 0 else self.entry(slot)

    def first_from_position(self, position: int) -> OffsetPosition | None:
        """The first entry whose position is >= `position` (OffsetIndex.fetchUpperBoundOffset)."""
        slot = bisect_left(self._values.data, position)
        return None if slot == len(self._values) else self.entry(slot)


def parse(
    data: bytes, base_offset: int, log_size_bytes: int | None = None, *, growing: bool = False, path: Path | None = None
) -> OffsetIndex:
    """The entries in the bytes of an .index file.

    `log_size_bytes`: entries that point at or beyond it are not trusted. `growing`: the log has grown since that size
    was read, so such entries are left out but are not a problem. Never raises.
    """
    whole = len(data) - len(data) % ENTRY_SIZE
    table = np.frombuffer(data, dtype=">i4", count=whole // 4).reshape(-1, 2)
    table = table[: used_entries(table)].astype(np.int32)
    offsets, positions = table[:, 0], table[:, 1]
    rows = len(table)
    problem = None

    if rows:
        failed = (offsets <= 0) | (positions <= 0)
        failed[1:] |= (offsets[1:] <= offsets[:-1]) | (positions[1:] <= positions[:-1])
        row = first_failure(failed)
        if row < rows:
            if not (growing and row == rows - 1):  # the broker may be writing its last entry right now
                problem = _broken(table, row, base_offset, path)
            rows = row
    if log_size_bytes is not None and rows and positions[rows - 1] >= log_size_bytes:
        row = int(positions[:rows].searchsorted(np.int32(min(log_size_bytes, _MAX_INT32)), side="left"))
        if not growing:
            problem = broken_entry(
                "index entry points beyond the end of the log",
                IndexFault.BEYOND_LOG,
                path=path,
                position=row * ENTRY_SIZE,
                expected=f"a position below {log_size_bytes}",
                found=int(positions[row]),
            )
        rows = row
    return OffsetIndex(
        base_offset,
        np.ascontiguousarray(offsets[:rows]),
        np.ascontiguousarray(positions[:rows]),
        problem=problem,
        missing=False,
    )


def _broken(table: npt.NDArray[np.int32], row: int, base_offset: int, path: Path | None) -> CorruptIndex:
    previous = (0, 0) if row == 0 else (int(table[row - 1, 0]), int(table[row - 1, 1]))
    entry = (int(table[row, 0]), int(table[row, 1]))
    return broken_entry(
        "index entries are not strictly ascending",
        IndexFault.ORDER,
        path=path,
        position=row * ENTRY_SIZE,
        expected=f"an offset above {base_offset + previous[0]} and a position above {previous[1]}",
        found=f"offset {base_offset + entry[0]}, position {entry[1]}",
    )


def load(path: Path, base_offset: int, log_size_bytes: int | None = None, *, growing: bool = False) -> OffsetIndex:
    """Reads an .index file; see `parse`. Never raises: a missing or unreadable file gives an index without entries."""
    return load_index(
        path, ENTRY_SIZE, lambda data: parse(data, base_offset, log_size_bytes, growing=growing, path=path)
    )


def load_end(path: Path, base_offset: int, log_size_bytes: int) -> OffsetIndex | None:
    """Reads the last entries of an .index (`sparse_index.load_end`)."""
    return sparse_index.load_end(path, ENTRY_SIZE, lambda data: parse(data, base_offset, log_size_bytes))


def encode(offsets: npt.ArrayLike, positions: npt.ArrayLike, base_offset: int) -> bytes:
    """The bytes of an .index with these entries (absolute offsets). ValueError when they break the rules above."""
    table = np.empty((np.size(offsets), 2), dtype=np.int64)
    table[:, 0] = np.asarray(offsets, dtype=np.int64) - base_offset
    table[:, 1] = positions
    if len(table) and (table.min() <= 0 or table.max() > _MAX_INT32 or (np.diff(table, axis=0) <= 0).any()):
        raise ValueError("offset index entries must be strictly ascending, above the base offset, within 32 bits")
    return table.astype(">i4").tobytes()
