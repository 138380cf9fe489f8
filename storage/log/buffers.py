"""Recycled read buffers: a new megabyte for each window would be zeroed and paged in each time."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_BYTES: Final = 1 << 20

_KEPT: Final = 8  # windows in use at once by a few parallel readers
_free: deque[bytearray] = deque(maxlen=_KEPT)


def take(size: int = WINDOW_BYTES) -> bytearray:
    """A buffer of at least `size` bytes with arbitrary content. Thread-safe, because a deque's ends are."""
    if size <= WINDOW_BYTES:
        try:
            return _free.pop()
        except IndexError:
            return bytearray(WINDOW_BYTES)
    return bytearray(size)


def give(buffer: bytearray) -> None:
    """Takes a buffer back. Its bytes may change from now on, also for views of it that still exist."""
    if len(buffer) == WINDOW_BYTES:
        _free.append(buffer)
