"""Reading again from a newer snapshot when a file is gone, or was cut, at the moment it is read (SegmentGone).

Retention, compaction or truncation removed the file after the snapshot was taken. The next snapshot no longer names the
file, so a reader succeeds unless the log changes faster than it can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from storage.errors import SegmentGone
from storage.log.snapshot import LogSnapshot, ReadableLog

_TRIES: Final = 20

_Read = TypeVar("_Read")


class Rereads:
    """Counts the failed reads since the last progress. Not thread-safe."""

    __slots__ = ("_failures", "_position")

    def __init__(self) -> None:
        self._failures = 0
        self._position: int | None = None

    def are_exhausted(self, position: int) -> bool:
        """Record that reading failed at `position` (any number that grows with progress). True if it has failed there
        too often: then raise the error, otherwise read again."""
        self._failures = self._failures + 1 if position == self._position else 1
        self._position = position
        return self._failures >= _TRIES


def reread(log: ReadableLog, read: Callable[[LogSnapshot], _Read]) -> _Read:
    """Return the result of `read` for the log's present snapshot, or for a newer one if a file was gone.
    SegmentGone."""
    rereads = Rereads()
    while True:
        try:
            return read(log.snapshot())
        except SegmentGone:
            if rereads.are_exhausted(0):
                raise
