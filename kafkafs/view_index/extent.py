"""An extent: the messages of one segment from a batch on, in one rendition, measured as far as anybody has asked."""

from __future__ import annotations

import itertools
import threading

from kafkafs.handles import Workers
from kafkafs.view_index import measure
from kafkafs.view_index.measure import OnBytes, Task
from kafkafs.view_index.pieces import Piece, Pieces, RecordFilter
from kafkafs.view_index.workbench import Rendition, Skips
from storage.log.isolation import AbortedTransactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

_numbers = itertools.count()

BlockKey = tuple[int, int, int, int]


def task_of(snapshot: LogSnapshot, segment: Segment, rendition: Rendition, wanted: RecordFilter | None) -> Task:
    """What to measure or render of a segment, as the log is in `snapshot`."""
    skips: Skips | None = None
    if rendition.isolation is Isolation.READ_COMMITTED:
        skips = AbortedTransactions(snapshot, segment).skip_rows
    return Task(snapshot, segment, rendition.format, skips, wanted)


class Extent:
    """`pieces` is what is measured so far; it only ever grows behind its end, and what it maps stays where it is."""

    def __init__(
        self,
        segment: Segment,
        rendition: Rendition,
        wanted: RecordFilter | None,
        start: int,
        known: Pieces | None = None,
    ) -> None:
        # set once by the view index: whether the pieces are kept on disk
        self.kept = False
        # constant after construction
        self.segment = segment
        self.wanted = wanted
        self.number = next(_numbers)
        self._rendition = rendition
        # replaced as a whole, guarded by the lock for writing
        self._lock = threading.Lock()
        self.pieces = Pieces.none(start) if known is None else known
        self._measured: tuple[int, int] | None = None  # ctime and size of the file before it was measured
        self._task: Task | None = None

    def extend(self, snapshot: LogSnapshot, end: int, workers: Workers, on_bytes: OnBytes) -> None:
        """Measures up to the file position `end`, where a batch ends. SegmentGone when the file is gone."""
        if end <= self.pieces.file_end and self._task is not None:
            return
        with self._lock:
            task = task_of(snapshot, self.segment, self._rendition, self.wanted)
            if end > self.pieces.file_end:
                self._measured = self.segment.changed_ns(), self.segment.size
                self.pieces = measure.extend(self.pieces, task, end, workers, on_bytes)
            self._task = task

    def pass_over(self, start: int, end: int) -> None:
        """Counts the file positions from `start` to `end` as measured, because nothing wanted is known to be there.

        Nothing happens unless the extent ends at `start`.
        """
        with self._lock:
            if self.pieces.file_end == start:
                self.pieces = Pieces(self.pieces.columns, self.pieces.start, end)

    def is_outdated(self) -> bool:
        """Whether damage was measured in a file that was changed in place since: it may have been repaired.

        Not of a file that has grown since, which changes it all the time.
        """
        measured = self._measured
        if not self.pieces.is_damaged or measured is None or measured[1] != self.segment.size:
            return False
        return measured[0] != self.segment.changed_ns()

    @property
    def task(self) -> Task:
        """As of the last `extend`."""
        assert self._task is not None, "an extent is extended before it is read"
        return self._task

    def key(self, piece: Piece) -> BlockKey:
        """What a piece's rendered bytes are cached under. The last piece grows, so its end is part of it."""
        return (self.number, piece.position, piece.file_end, piece.skip)
