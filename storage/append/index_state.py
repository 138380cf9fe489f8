"""Which batches get index entries: the state that appending, recovery and compaction carry along a segment.

Source: LogSegment.append, LogSegment.recover, TimeIndex.maybeAppend.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage.format import index_kernel
from storage.format.batches import BatchTable
from storage.types import NO_TIMESTAMP, TimestampOffset

Int64s = npt.NDArray[np.int64]


class IndexEntries(NamedTuple):
    """New entries, int64 columns in pairs: `offsets` with `positions`, `timestamps` with `time_offsets`.

    Offsets are absolute record offsets, positions bytes in the .log, timestamps epoch milliseconds.
    """

    offsets: Int64s
    positions: Int64s
    timestamps: Int64s
    time_offsets: Int64s


class IndexState:
    """Values that a segment's writer keeps between batches to know which get an entry. Not thread-safe."""

    __slots__ = ("_interval_bytes", "_state")

    def __init__(self, interval_bytes: int, base_offset: int, last_time_entry: TimestampOffset | None = None) -> None:
        """The state at the start of a segment, or of a reopened one whose last time index entry is `last_time_entry`:
        the bytes since that entry count from 0, as in Kafka."""
        largest = last_time_entry or TimestampOffset(NO_TIMESTAMP, base_offset)
        self._interval_bytes = interval_bytes
        self._state = array("q", (largest.timestamp, largest.offset, 0, largest.timestamp))

    def copy(self) -> IndexState:
        """A copy of the state, to be advanced separately."""
        other = IndexState(self._interval_bytes, 0)
        other._state = self._state[:]
        return other

    def values(self) -> array[int]:
        """The present state, for `restore`."""
        return self._state[:]

    def restore(self, values: array[int]) -> None:
        """Resets the state to these values."""
        self._state = values

    def wrote_final_entry(self) -> None:
        """The final time entry is in the index now."""
        self._state[3] = self._state[0]

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp so far and the last offset of the earliest batch that has it; -1 before any."""
        return TimestampOffset(self._state[0], self._state[1])

    def final_time_entry(self) -> TimestampOffset | None:
        """The entry that a roll or a clean close adds to the time index, even to a full one; None if the index already
        ends with this entry."""
        return self.largest if self._state[0] > self._state[3] else None

    def advance_batch(self, size: int, last_offset: int, max_timestamp: int) -> int:
        """`advance` for one batch of `size` bytes. Returns the number of entries that it gets: 1 is an offset entry,
        with its last offset; 2 means a time entry as well, with the largest timestamp."""
        return index_kernel.index_batch(size, last_offset, max_timestamp, self._interval_bytes, self._state)

    def advance(self, table: BatchTable, first: int = 0, last: int | None = None) -> IndexEntries:
        """The entries that result from appending the rows `first` to `last` (excluded), one batch after the other."""
        stop = table.rows if last is None else last
        room = stop - first
        offsets = np.empty((2, room), dtype=np.int64)
        times = np.empty((2, room), dtype=np.int64)
        new_offsets, new_times = index_kernel.index_batches(
            table.data, first, stop, self._interval_bytes, self._state, offsets, times
        )
        return IndexEntries(
            offsets[0, :new_offsets], offsets[1, :new_offsets], times[0, :new_times], times[1, :new_times]
        )
