"""An extent: the messages of one segment from a batch on, in one rendition, measured as far as a reader has needed.

Under read_committed it depends on more than the segment: markers in it or in later segments decide which batches show,
and the last stable offset decides up to where. Both only move forward until a truncation removes markers. So an extent
belongs to an epoch, the generation of the snapshots that it is measured for, and it records the last marker that
decided about it, by which a later mount knows whether it is still right. For a reader of all messages none of this
matters; it has one epoch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kafkafs.formats.format import MOST_LINE_BYTES, Format
from kafkafs.reading import measure_kernel
from kafkafs.reading.key_blocks import KeyCollector, Secret, add_keys, collect_keys
from kafkafs.reading.key_index import KeyIndex
from kafkafs.reading.pieces import (
    NO_CRC,
    NO_GREATEST,
    NO_LEAST,
    NOT_SPLIT,
    PIECE_BYTES,
    Piece,
    PieceBuilder,
    Pieces,
)
from kafkafs.reading.selection import MessageFilter
from kafkafs.reading.workbench import Rendition, Skips, Workbench
from kafkafs.reading.workers import OnBytes, Workers, in_parts, window_bytes
from storage.format.batches import BatchTable, claimed_times
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.scanning import SpanDamage, Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot
from storage.types import Isolation

# Measuring: one pass over a segment's batches that finds the rendered size of each, cut into pieces. Nothing is
# rendered.
#
# Damage makes separate pieces. A batch that fails its CRC but decodes has its rendered size; one that does not decode
# has one byte, which takes the place of its error, and so does a stretch where no batch begins, up to the next batch in
# the offset index. CRCs are checked here, and again whenever bytes are served: otherwise a batch with damaged
# timestamps would be missing from a range of times without an error. A damaged piece has the times that its header
# names, whatever is wrong with it; which ranges of times it belongs to, `damage_within` decides (plans.py).

_SIZE = 0  # row of the totals
_ALL = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """What is measured or rendered: a segment's messages in a format, without those that isolation or filter
    exclude."""

    snapshot: LogSnapshot
    segment: Segment
    format: Format
    skips: Skips | None
    filter: MessageFilter | None


class Measured:
    """The pieces of some batches, without `Piece.end`, and their keys if they are collected."""

    def __init__(self, secret: Secret | None = None) -> None:
        self.pieces: list[Piece] = []
        self.keys = None if secret is None else KeyCollector(secret)


def extend(
    pieces: Pieces, task: SegmentTask, end: int, workers: Workers, on_bytes: OnBytes, secret: Secret | None = None
) -> tuple[Pieces, list[KeyCollector]]:
    """`pieces`, and those after them up to the file position `end`; a large rest is shared with a worker.

    With a `secret` also the keys of what is measured, whatever the isolation excludes, in parts in order.
    """
    builder = PieceBuilder(pieces)

    def do(bench: Workbench, found: Measured, start: int, stop: int) -> int:
        return measure(bench, task, found, start, stop, on_bytes)

    parts, reached = in_parts(task.segment, pieces.file_end, end, workers, lambda: Measured(secret), do)
    for part in parts:
        for piece in part.pieces:
            builder.add(piece)
    return builder.build(reached), [part.keys for part in parts if part.keys is not None]


def measure(bench: Workbench, task: SegmentTask, found: Measured, start: int, stop: int, on_bytes: OnBytes) -> int:
    """Adds the batches that begin in [start, stop) to `found`; returns the position after them.

    SegmentGone when the file is gone or was truncated.
    """
    reached = start
    for window in scan_batches(task.snapshot, task.segment, start, stop, window=window_bytes(start, stop)):
        if window.damage is not None:
            found.pieces.append(_no_batch(window.damage))
            behind = window.damage.end
            if found.keys is not None:
                found.keys.add_damage(window.damage.position, behind)
        else:
            _measure_window(bench, task, window, found)
            behind = int(window.table.position[-1] + window.table.size[-1])
        on_bytes(behind - reached)
        reached = behind
    return reached


def measure_row(bench: Workbench, task: SegmentTask, data: memoryview, table: BatchTable, row: int, origin: int) -> int:
    """The rendered size of a damaged batch: if it decodes, as if its CRC were right; otherwise 1 if its header says
    that it may hold wanted messages."""
    skip = None if task.skips is None else task.skips(table)
    block = bench.unchecked.decode(data, table, row, row + 1, origin=origin, skip=skip)
    if block.damage is not None:
        return int(task.filter is None or task.filter.may_hold(table, row))
    sizes = bench.sizes(len(block))
    if not len(block):
        return 0
    task.format.measure(block, sizes)
    mask = None if task.filter is None else task.filter.mask(block)
    return int((sizes if mask is None else sizes[mask]).sum())


def _measure_window(bench: Workbench, task: SegmentTask, window: Window, found: Measured) -> None:
    """Adds the pieces and keys of a window."""
    table = window.table
    totals = bench.totals(table.rows)
    cuts: dict[int, list[int]] = {}
    damaged: list[int] = []
    skip = None if task.skips is None else task.skips(table)
    keys = found.keys if skip is None else None
    row = 0
    while row < table.rows:
        first = row
        block = bench.checked.decode(window.buffer, table, row, origin=window.origin, skip=skip)
        bench.note(block)
        row = block.next_row
        if keys is not None:
            add_keys(bench, keys, table, first, block)
        if len(block):
            sizes = bench.sizes(len(block))
            task.format.measure(block, sizes)
            mask = None if task.filter is None else task.filter.mask(block)
            wanted = _ALL if mask is None else mask.view(np.uint8)
            largest = measure_kernel.add_records(block.batch, sizes, block.timestamp, wanted, totals, table.rows)
            if largest > MOST_LINE_BYTES:
                for large in np.flatnonzero(totals[_SIZE, : table.rows] > MOST_LINE_BYTES).tolist():
                    if large not in cuts:
                        chosen = block.batch == large if mask is None else (block.batch == large) & mask
                        cuts[large] = _split(sizes[chosen])
        if block.damage is not None:
            damaged.append(block.damage.row)
            row = block.damage.row + 1
    for row in damaged:
        size = measure_row(bench, task, window.buffer, table, row, window.origin)
        # Nothing in its header is certain, so it is shown even if it seems to be empty.
        shown = task.filter is None or task.filter.may_hold(table, row)
        totals[_SIZE, row] = min(max(size, int(shown)), MOST_LINE_BYTES)
    found.pieces += _cut(bench, table, totals, cuts, damaged)
    if found.keys is not None and skip is not None:
        collect_keys(bench, found.keys, window)  # also of the batches that were left out


def _split(sizes: npt.NDArray[np.int64]) -> list[int]:
    """The rendered positions at which a large batch is cut between records, before and after each that is too long; the
    last one is its end."""
    ends = line_ends(sizes)
    too_long = ends[sizes > MOST_LINE_BYTES]
    edges = np.concatenate((np.sort(np.concatenate((too_long - 1, too_long))), ends[-1:]))
    cuts = [0]
    while cuts[-1] < ends[-1]:
        fitting = ends[ends.searchsorted(cuts[-1] + MOST_LINE_BYTES, side="right") - 1]
        cuts.append(int(min(fitting, edges[edges.searchsorted(cuts[-1], side="right")])))
    return cuts[1:]


def line_ends(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the lines of a large batch end, of these sizes; one that is too long takes one byte."""
    return np.cumsum(np.where(sizes > MOST_LINE_BYTES, 1, sizes))


def _cut(
    bench: Workbench,
    table: BatchTable,
    totals: npt.NDArray[np.int64],
    cuts: dict[int, list[int]],
    damaged: Collection[int],
) -> list[Piece]:
    """A measured window as pieces of similar size; large and damaged batches separately."""
    pieces: list[Piece] = []
    first = 0
    for row in sorted({*cuts, *damaged}):
        pieces += _even_pieces(bench, table, totals, first, row)
        first = row + 1
        if row in damaged:
            least, greatest = named_times(claimed_times(table, row))
            for piece in _even_pieces(bench, table, totals, row, row + 1, whole=True):
                pieces.append(piece._replace(crc=NO_CRC, least=least, greatest=greatest, records=0))
            continue
        (whole,) = _even_pieces(bench, table, totals, row, row + 1, whole=True)
        before = 0
        for cut in cuts[row]:
            records = whole.records if cut == cuts[row][-1] else 0  # of one batch, so counted with one of its pieces
            pieces.append(whole._replace(size=cut - before, skip=before, records=records))
            before = cut
    return pieces + _even_pieces(bench, table, totals, first, table.rows)


def _even_pieces(
    bench: Workbench, table: BatchTable, totals: npt.NDArray[np.int64], first: int, last: int, *, whole: bool = False
) -> list[Piece]:
    total = int(totals[_SIZE, first:last].sum())
    if total == 0:
        return []
    lines = bench.lines(1 if whole else total // PIECE_BYTES + 2)
    count = measure_kernel.cut(table.data, totals, first, last, total if whole else PIECE_BYTES, lines)
    return [Piece._make(line) for line in lines[:count].tolist()]


def _no_batch(damage: SpanDamage) -> Piece:
    # The messages that were there are unknown, so there are no offsets.
    return Piece(0, 1, damage.position, damage.end, NOT_SPLIT, -1, NO_CRC, *named_times(damage.times or ()), 0)


def named_times(times: Iterable[int]) -> tuple[int, int]:
    """Least and greatest of the times in the header of a damaged batch; NO_LEAST and NO_GREATEST without any. Zeros do
    not count: a lost block of a disk has nothing else."""
    positive = [time for time in times if time > 0]
    return min(positive, default=NO_LEAST), max(positive, default=NO_GREATEST)


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
                pieces, parts = extend(self.pieces, task, end, workers, on_bytes, secret)
                if keys is not None and secret is not None:
                    keys.add(snapshot, self.segment, parts, pieces.file_end)
                if aborted is not None:
                    self.decider = _later_of(self.decider, aborted.decider)
                self._measured = changed_ns, size
                self.pieces = pieces
            self._task = task

    @property
    def is_whole(self) -> bool:
        """Whether it has all messages of its segment, as far as it is measured."""
        return self.wanted is None and self.pieces.start == 0

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

    @property
    def task(self) -> SegmentTask:
        """What the last `extend` has measured with."""
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
