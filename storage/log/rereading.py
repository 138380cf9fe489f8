"""Reading again from a newer snapshot when a file was gone, or cut, at the moment it was read (SegmentGone).

Retention, compaction or truncation removed it after the snapshot was taken. The next snapshot does not name the file
any more, so that a reader succeeds unless the log changes faster than it can be read.
"""

from __future__ import annotations

from typing import Final

_TRIES: Final = 20


class Rereads:
    """Counts the failed reads since the last progress. Not thread-safe."""

    __slots__ = ("_failures", "_position")

    def __init__(self) -> None:
        self._failures = 0
        self._position: int | None = None

    def are_exhausted(self, position: int) -> bool:
        """Notes that reading failed at `position` (any number that grows with progress). True when it failed there as
        often as it is worth trying: raise the error then, otherwise read again."""
        self._failures = self._failures + 1 if position == self._position else 1
        self._position = position
        return self._failures >= _TRIES
