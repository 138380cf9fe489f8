"""Memory for decoding: of each thread, kept between calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Records, arrays and maps within each other, and JSON's arrays and objects.
MAX_DEPTH: Final = 500


class Room:
    """Memory of one thread: for texts, which grows for a text that does not fit, and for the kernel."""

    __slots__ = ("scratch", "stack", "texts")

    def __init__(self, size: int) -> None:
        self.texts: NDArray[np.uint8] = np.empty(size, np.uint8)
        self.stack: NDArray[np.int64] = np.empty(4 * (MAX_DEPTH + 1), np.int64)
        self.scratch: NDArray[np.int64] = np.empty(2052, np.int64)

    def grow(self) -> None:
        """Four times the room; what is in it is lost."""
        self.texts = np.empty(4 * len(self.texts), np.uint8)

    def append(self, position: int, data: bytes) -> int:
        """The position after `data`; -1 if it does not fit."""
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
        """This thread's room, which nobody else gets until `keep`: a lookup may cause rendering within rendering."""
        room: Room | None = self._local.__dict__.pop("room", None)
        return Room(self._size) if room is None else room

    def keep(self, room: Room) -> None:
        """Gives it back."""
        if len(room.texts) <= self._most_kept:
            self._local.room = room
