"""An extent: the messages of one segment from a batch on, in one rendition, measured as far as anybody has asked."""

from __future__ import annotations

import itertools
import threading

from kafkafs.handles import Workers
from kafkafs.view_index import measure
from kafkafs.view_index.measure import OnBytes, Task
from kafkafs.view_index.pieces import Piece, Pieces, RecordFilter
from kafkafs.view_index.workbench import Rendition, Skips
from storage.format.batches import BATCH_HEADER_SIZE, CODEC_MASK
from storage.format.compression import Codec
from storage.log.isolation import AbortedTransactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

_numbers = itertools.count()

_MAGIC = 16  # where bytes lie in a batch's header
_V1_ATTRIBUTES = 17
_V2_ATTRIBUTES = 22
_SMALL_BATCH_BYTES = 128 << 10

BlockKey = tuple[int, int, int, int]


def task_of(snapshot: LogSnapshot, segment: Segment, rendition: Rendition, wanted: RecordFilter | None) -> Task:
    """What to measure or render of a segment, as the log is in `snapshot`."""
    skips: Skips | None = None
    if rendition.isolation is Isolation.READ_COMMITTED:
        skips = AbortedTransactions(snapshot, segment).skip_rows
    return Task(snapshot, segment, rendition.format, skips, wanted)


class Extent:
    """`pieces` is what is measured so far; it only ever grows behind its end, and what it maps stays where it is.

    `alone`: threads only hinder each other here. Small batches of a fast codec are decompressed in calls so short that
    handing over the interpreter's lock between them costs more than they do.
    """

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
        self.alone = False
        self._task: Task | None = None

    def extend(self, snapshot: LogSnapshot, end: int, workers: Workers, on_bytes: OnBytes) -> None:
        """Measures up to the file position `end`, where a batch ends. SegmentGone when the file is gone."""
        if end <= self.pieces.file_end and self._task is not None:
            return
        with self._lock:
            task = task_of(snapshot, self.segment, self._rendition, self.wanted)
            if self._task is None:
                self.alone = _has_short_steps(self.segment, self.pieces.start)
            if end > self.pieces.file_end:
                self.pieces = measure.extend(self.pieces, task, end, None if self.alone else workers, on_bytes)
            self._task = task

    @property
    def task(self) -> Task:
        """As of the last `extend`."""
        assert self._task is not None, "an extent is extended before it is read"
        return self._task

    def key(self, piece: Piece) -> BlockKey:
        """What a piece's rendered bytes are cached under. The last piece grows, so its end is part of it."""
        return (self.number, piece.position, piece.file_end, piece.skip)


def _has_short_steps(segment: Segment, position: int) -> bool:
    """Whether the batch at `position`, which stands for all, is a small one of snappy or lz4."""
    head = segment.log.read(position, BATCH_HEADER_SIZE)
    size = segment.batch_size(head)
    if size is None or len(head) < _V2_ATTRIBUTES + 1:
        return False
    attributes = head[_V2_ATTRIBUTES if head[_MAGIC] == 2 else _V1_ATTRIBUTES]
    return attributes & CODEC_MASK in (Codec.SNAPPY, Codec.LZ4) and size < _SMALL_BATCH_BYTES
