"""An extent: the messages of one segment from a batch on, in one rendition, measured as far as a reader has needed.

Under read_committed it depends on more than the segment: markers in it or in later segments decide which batches show,
and the last stable offset decides up to where. Both only move forward until a truncation removes markers. So an extent
belongs to an epoch, the generation of the snapshots that it is measured for, and it records the last marker that
decided about it. In the next epoch it has a successor with the part that is still right: all of it, while that marker's
segment is in the log. For a reader of all messages none of this matters; it has one epoch.
"""

from __future__ import annotations

import itertools
import threading

from kafkafs.view_index import measure
from kafkafs.view_index.key_index import KeyIndex
from kafkafs.view_index.measure import SegmentTask
from kafkafs.view_index.parts import OnBytes
from kafkafs.view_index.pieces import MessageFilter, Piece, Pieces
from kafkafs.view_index.workbench import Rendition
from kafkafs.view_index.workers import Workers
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot
from storage.types import Isolation

_numbers = itertools.count()

BlockKey = tuple[int, int, int, int]


def epoch_of(snapshot: LogSnapshot, rendition: Rendition) -> int:
    """Extents of one epoch may be measured for any of its snapshots."""
    return snapshot.generation if rendition.isolation is Isolation.READ_COMMITTED else 0


def _task(
    snapshot: LogSnapshot, segment: Segment, rendition: Rendition, wanted: MessageFilter | None
) -> tuple[SegmentTask, AbortedTransactions | None]:
    """What to measure or render of a segment, as the log is in `snapshot`; None for a reader of all messages."""
    if rendition.isolation is not Isolation.READ_COMMITTED:
        return SegmentTask(snapshot, segment, rendition.format, None if wanted is None else wanted.skips, wanted), None
    # Taken now: when a piece is rendered, segments of this snapshot may be gone.
    aborted = AbortedTransactions(snapshot, segment, last_stable_offset(snapshot))
    return SegmentTask(snapshot, segment, rendition.format, aborted.skip_rows, wanted), aborted


class Extent:
    """`pieces` is what has been measured so far; it only grows at its end, and existing pieces do not change."""

    def __init__(
        self,
        segment: Segment,
        rendition: Rendition,
        wanted: MessageFilter | None,
        start: int,
        known: Pieces | None = None,
        decider: DecidingMarker | None = None,
    ) -> None:
        # set once by the view index: whether the pieces are kept on disk
        self.kept = False
        # constant after construction
        self.segment = segment
        self.wanted = wanted
        self.number = next(_numbers)
        self.rendition = rendition
        # replaced as a whole, guarded by the lock for writing
        self._lock = threading.Lock()
        self.pieces = Pieces.none(start) if known is None else known
        self._measured: tuple[int, int] | None = None  # ctime and size of the file before it was measured
        # the last marker that decided whether a transaction in the pieces was aborted; None: no transaction in them
        self.decider = decider
        self._task: SegmentTask | None = None

    def extend(
        self, snapshot: LogSnapshot, end: int, workers: Workers, on_bytes: OnBytes, keys: KeyIndex | None = None
    ) -> None:
        """Measures up to the file position `end`, where a batch ends. SegmentGone when the file is gone.

        `keys`: gets the keys of what is measured, if it lacks them; only for an extent of a whole segment.
        """
        if end <= self.pieces.file_end and self._task is not None:
            return
        with self._lock:
            task, aborted = _task(snapshot, self.segment, self.rendition, self.wanted)
            if end > self.pieces.file_end:
                changed_ns, size = self.segment.changed_ns(), self.segment.size
                start = self.pieces.file_end
                secret = None if keys is None else keys.secret_for(snapshot, self.segment, start, end)
                pieces, parts = measure.extend(self.pieces, task, end, workers, on_bytes, secret)
                if keys is not None and secret is not None:
                    keys.add(snapshot, self.segment, parts, pieces.file_end)
                if aborted is not None:
                    self.decider = _later_of(self.decider, aborted.decider)
                self._measured = changed_ns, size
                self.pieces = pieces
            self._task = task

    def pass_over(self, start: int, end: int) -> None:
        """Marks the file positions from `start` to `end` as measured, because nothing wanted is there.

        Does nothing unless the extent ends at `start`.
        """
        with self._lock:
            if self.pieces.file_end == start:
                self.pieces = Pieces(self.pieces.columns, self.pieces.start, end)

    def is_outdated(self) -> bool:
        """Whether damage was measured in a file that has been changed in place since: it may have been repaired.

        False for a file that has grown since, because growing changes it all the time.
        """
        measured = self._measured
        if not self.pieces.is_damaged or measured is None or measured[1] != self.segment.size:
            return False
        return measured[0] != self.segment.changed_ns()

    def successor(self, snapshot: LogSnapshot) -> Extent:
        """The extent that replaces this one in the snapshot's epoch, if all of it is still right and its segment is in
        the log. Threads that have an older snapshot may continue to measure this one."""
        if self.rendition.isolation is not Isolation.READ_COMMITTED:
            return self
        with self._lock:
            pieces, decider = self.pieces, self.decider
        extent = Extent(self.segment, self.rendition, self.wanted, pieces.start, pieces, decider)
        extent.kept = self.kept
        extent._measured = self._measured
        extent._task, _ = _task(snapshot, self.segment, self.rendition, self.wanted)
        return extent

    @property
    def task(self) -> SegmentTask:
        """As of the last `extend`."""
        assert self._task is not None, "an extent is extended before it is read"
        return self._task

    @property
    def snapshot(self) -> LogSnapshot | None:
        """The snapshot of the last `extend`; None if none has finished."""
        return None if self._task is None else self._task.snapshot

    def key(self, piece: Piece) -> BlockKey:
        """The cache key of a piece's rendered bytes. The last piece grows, so its end is part of the key."""
        return (self.number, piece.position, piece.file_end, piece.skip)


def _later_of(one: DecidingMarker | None, other: DecidingMarker | None) -> DecidingMarker | None:
    if one is None or other is None:
        return one or other
    return one if one.offset > other.offset else other
