"""Memory of each thread for decoding, kept between calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The deepest nesting of records, arrays and maps, and of JSON's arrays and objects.
MAX_DEPTH: Final = 500


class Room:
    """Memory of one thread: space for texts, which grows if a text does not fit, and arrays for the kernel."""

    __slots__ = ("scratch", "stack", "texts")

    def __init__(self, size: int) -> None:
        self.texts: NDArray[np.uint8] = np.empty(size, np.uint8)
        self.stack: NDArray[np.int64] = np.empty(4 * (MAX_DEPTH + 1), np.int64)
        self.scratch: NDArray[np.int64] = np.empty(2052, np.int64)

    def grow(self) -> None:
        """Make the space for texts four times as large, without its contents."""
        self.texts = np.empty(4 * len(self.texts), np.uint8)

    def append(self, position: int, data: bytes) -> int:
        """Write `data` at `position`; return the position after it, -1 if it does not fit."""
        end = position + len(data)
        if end > len(self.texts):
            return -1
        self.texts[position:end] = memoryview(data)
        return end


class Rooms:
    """Each thread's room, kept between calls unless it has grown large. Threads can share it."""

    def __init__(self, size: int, most_kept: int) -> None:
        self._size, self._most_kept = size, most_kept
        self._local = threading.local()

    def take(self) -> Room:
        """Return this thread's room. Until `keep`, other calls get new rooms: a lookup may render during rendering."""
        room: Room | None = self._local.__dict__.pop("room", None)
        return Room(self._size) if room is None else room

    def keep(self, room: Room) -> None:
        """Return a room for the next `take`."""
        if len(room.texts) <= self._most_kept:
            self._local.room = room
