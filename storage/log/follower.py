"""Following a log whose records add up to a state: a compacted topic that a service replays when it starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from storage.errors import SegmentGone, StorageError, TooManyKeys
from storage.format.block import RecordBlock
from storage.log.reader import read_range
from storage.log.rereads import Rereads
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot, ReadableLog


class ReplayedState(ABC):
    """The state that results from all records read so far. Not thread-safe."""

    next_offset = -1  # the offset to read next; -1: the log start
    control = False  # whether control records are read too

    def read(self, snapshot: LogSnapshot) -> Iterator[StorageError]:
        """Continue to the snapshot's end; yield the errors of records and batches that are skipped."""
        start = snapshot.log_start_offset if self.next_offset < 0 else self.next_offset
        for block in read_range(snapshot, start, snapshot.log_end_offset, control=self.control):
            yield from self.apply_block(block, snapshot)
            if block.damage is not None:
                yield block.damage.error
        self.next_offset = snapshot.log_end_offset

    @abstractmethod
    def apply_block(self, block: RecordBlock, snapshot: LogSnapshot) -> Iterator[StorageError]:
        """Apply a block's records; yield the errors of records that are skipped."""


_Replay = TypeVar("_Replay", bound=ReplayedState)


class Follower(Generic[_Replay]):
    """Reads a log from its start, and at each later call the records appended since. Not thread-safe.

    If segments that were read have been removed (compaction, retention) or truncated, a new replay reads everything
    again: a tombstone that was never read may have been removed with them.
    """

    def __init__(self, make: Callable[[], _Replay]) -> None:
        self._make = make
        self._log: ReadableLog | None = None
        self._snapshot: LogSnapshot | None = None
        self._failure: TooManyKeys | None = None  # the error of reading this snapshot
        self.replay = make()

    def refresh(self, log: ReadableLog, skipped: Callable[[StorageError], None]) -> bool:
        """Bring `replay` up to date; return False if nothing has changed since the last call. `skipped` gets the errors
        of unreadable records. StorageError, OSError."""
        snapshot = log.snapshot()
        if snapshot is self._snapshot and log is self._log:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return False
        continues = log is self._log and self._continues(snapshot)
        # Set again when everything is read: after a failure half-way, all is read again.
        self._snapshot = self._failure = None
        rereads = Rereads()
        while True:
            if not continues:
                self.replay = self._make()
            try:
                for error in self.replay.read(snapshot):
                    skipped(error)
                break
            except TooManyKeys as error:
                self.replay = self._make()
                self._log, self._snapshot, self._failure = log, snapshot, error
                error.path = error.path or log.path
                raise
            except SegmentGone:  # for example compaction
                if rereads.are_exhausted(0):
                    raise
                continues, snapshot = False, log.snapshot()
        self._log, self._snapshot = log, snapshot
        return True

    def _continues(self, snapshot: LogSnapshot) -> bool:
        """Whether everything that was read still exists, so that reading can continue."""
        before = self._snapshot
        if before is None or snapshot.generation != before.generation:
            return False
        if not snapshot.log_start_offset <= self.replay.next_offset <= snapshot.log_end_offset:
            return False
        segments: set[Segment] = set(snapshot.segments)
        return segments.issuperset(before.segments)
