"""The time index (.timeindex): maps a timestamp to an offset.

Entries of 12 bytes: int64 timestamp, int32 offset - base offset; timestamps strictly ascending, offsets never
descending. An entry (t, o) means: t is the greatest timestamp up to offset o, and o the last offset of the first batch
that has it. So messages later than t have offsets above o. See storage/FORMAT.md, "Index files". Source: Kafka's
TimeIndex.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptIndex, IndexFault
from storage.files import sparse_index
from storage.files.sparse_index import SparseIndex, broken_entry, first_failure, load_index, used_entries
from storage.types import NO_TIMESTAMP, TimestampOffset

ENTRY_SIZE = 12
_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_MAX_INT32 = 2**31 - 1


class TimeIndex(SparseIndex):
    """The trusted entries of a .timeindex, in memory 12 bytes an entry as on disk."""

    __slots__ = ()

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """Epoch milliseconds, int64, read-only."""
        return self._keys

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Absolute offsets, int64, a new array."""
        return self._values.astype(np.int64) + self.base_offset

    def entry(self, slot: int) -> TimestampOffset:
        """The entry in this slot."""
        return TimestampOffset(int(self._keys[slot]), self.base_offset + int(self._values[slot]))

    @property
    def last(self) -> TimestampOffset:
        """The last entry; (-1, base offset) when there is none (TimeIndex.lastEntry)."""
        return self.entry(-1) if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def floor(self, timestamp: int) -> TimestampOffset:
        """The last entry with a timestamp <= `timestamp`; (-1, base offset) when there is none (TimeIndex.lookup)."""
        slot = self._floor_slot(timestamp)
        return TimestampOffset(NO_TIMESTAMP, self.base_offset) if slot < 0 else self.entry(slot)


def parse(data: bytes, base_offset: int, *, growing: bool = False, path: Path | None = None) -> TimeIndex:
    """The entries in the bytes of a .timeindex file. `growing`: an invalid last entry is left out but is not a problem,
    because the broker may be writing it. Never raises."""
    whole = len(data) // ENTRY_SIZE
    table = np.frombuffer(data, dtype=_ENTRY, count=whole)
    timestamps = table["timestamp"].astype(np.int64)
    offsets = table["offset"].astype(np.int32)
    rows = used_entries(np.stack((timestamps, offsets.astype(np.int64)), axis=1))
    if rows == 0 and whole == 1:
        # A trimmed file of one zero entry: the segment has only its first offset, with timestamp 0.
        rows = 1
    problem = None

    timestamps, offsets = timestamps[:rows], offsets[:rows]
    failed = (timestamps < 0) | (offsets < 0)
    failed[1:] |= (timestamps[1:] <= timestamps[:-1]) | (offsets[1:] < offsets[:-1])
    row = first_failure(failed)
    if row < rows:
        if not (growing and row == rows - 1):
            problem = _broken(timestamps, offsets, row, base_offset, path)
        rows = row
    keys = timestamps[:rows].copy()
    keys.flags.writeable = False
    return TimeIndex(base_offset, keys, offsets[:rows].copy(), problem=problem, missing=False)


def _broken(
    timestamps: npt.NDArray[np.int64], offsets: npt.NDArray[np.int32], row: int, base_offset: int, path: Path | None
) -> CorruptIndex:
    previous = (NO_TIMESTAMP, 0) if row == 0 else (int(timestamps[row - 1]), int(offsets[row - 1]))
    return broken_entry(
        "time index entries are not ascending",
        IndexFault.ORDER,
        path=path,
        position=row * ENTRY_SIZE,
        expected=f"a timestamp above {previous[0]} and an offset from {base_offset + previous[1]}",
        found=f"timestamp {int(timestamps[row])}, offset {base_offset + int(offsets[row])}",
    )


def load(path: Path, base_offset: int, *, growing: bool = False) -> TimeIndex:
    """Reads a .timeindex; see `parse`. Never raises: a missing or unreadable file gives an index without entries."""
    return load_index(path, ENTRY_SIZE, lambda data: parse(data, base_offset, growing=growing, path=path))


def load_end(path: Path, base_offset: int) -> TimeIndex | None:
    """Reads the last entries of a .timeindex (`sparse_index.load_end`)."""
    return sparse_index.load_end(path, ENTRY_SIZE, lambda data: parse(data, base_offset))


def encode(timestamps: npt.ArrayLike, offsets: npt.ArrayLike, base_offset: int) -> bytes:
    """The bytes of a .timeindex with these entries (absolute offsets). ValueError when they break the rules above."""
    times = np.asarray(timestamps, dtype=np.int64)
    relative = np.asarray(offsets, dtype=np.int64) - base_offset
    table = np.empty(len(times), dtype=_ENTRY)
    if len(times) and (
        times.min() < 0
        or relative.min() < 0
        or relative.max() > _MAX_INT32
        or (np.diff(times) <= 0).any()
        or (np.diff(relative) < 0).any()
    ):
        raise ValueError("time index entries must be ascending, from the base offset on, within 32 bits")
    table["timestamp"] = times
    table["offset"] = relative
    return table.tobytes()
