"""An extent: the messages of one segment from a batch on, in one rendition, measured as far as a reader has needed.

Under read_committed an extent depends on more than the segment: markers in it or in later segments decide which batches
show, and the last stable offset decides up to where. Both only move forward until a truncation removes markers. So an
extent belongs to an epoch: the generation of the snapshots that it is measured for. It also records the last marker
that decided about it: if the log still has this marker, a later mount can use the extent. For a reader of all messages
none of this matters; it has one epoch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kafkafs.formats.format import MOST_LINE_BYTES, Format
from kafkafs.reading.blocks import NO_GREATEST, NO_LEAST, RENDERED, BlockTable, FoundBlocks, Int64s, Secret
from kafkafs.reading.collector import NOTHING, BlockCollector
from kafkafs.reading.pieces import Piece, Pieces, line_cuts
from kafkafs.reading.rendered_stream import RenderedPass, RenderedStream
from kafkafs.reading.selection import MessageFilter
from kafkafs.reading.workbench import Rendition, Skips, Workbench, workbench
from kafkafs.reading.workers import OnBytes, Workers, in_parts, window_bytes
from storage.format.batches import BatchTable, claimed_times
from storage.format.block import RecordBlock
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot
from storage.types import Isolation

# A pass over a segment's batches cuts them into blocks, and finds what it is asked for: keys, and the rendered size of
# each block. For a reader who comes next it also renders the first of them.
#
# Damage makes separate blocks. A batch that fails its CRC but decodes has its rendered size. One byte stands for the
# error of a batch that does not decode, or of a stretch where no batch begins, up to the next batch in the offset
# index. CRCs are checked here, and again whenever bytes are served: otherwise a batch with damaged timestamps would be
# missing from a range of times without an error. A damaged block has the times that its header names, whatever is wrong
# with the block; `damage_within` (plans.py) decides to which ranges of times it belongs.


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A task of measuring or rendering: a segment's messages in a format, without those that isolation or filter
    exclude."""

    snapshot: LogSnapshot
    segment: Segment
    format: Format
    skips: Skips | None
    filter: MessageFilter | None

    def measure(self, bench: Workbench, block: RecordBlock) -> tuple[Int64s, npt.NDArray[np.bool_] | None]:
        """The rendered size of each record of a block, in the workbench's memory; and whether each passes the filter,
        if there is one."""
        sizes = bench.sizes(len(block))
        self.format.measure(block, sizes)
        return sizes, None if self.filter is None else self.filter.mask(block)

    def render(
        self, bench: Workbench, block: RecordBlock, skip: npt.NDArray[np.uint8] | None, stream: RenderedStream
    ) -> tuple[Int64s, npt.NDArray[np.bool_] | None]:
        """Measures a block, and renders the records that are shown, as far as they fit. `skip`: see Skips."""
        mask = None if self.filter is None else self.filter.mask(block)
        shown = mask
        if skip is not None and skip.any():
            shown = (skip[block.batch] == 0) & (True if mask is None else mask)
        sizes = bench.sizes(len(block))
        fits = stream.add(self.format, block if shown is None else block.select(shown), sizes)
        if shown is not None or not fits:
            self.format.measure(block, sizes)
        return sizes, mask


@dataclass(slots=True)
class _PassPart:
    """The blocks and the rendered bytes of a part of a pass."""

    collector: BlockCollector
    stream: RenderedStream | None = None


@dataclass(frozen=True, slots=True)
class BlockPass:
    """A pass over some of a segment's batches. `edges`: see BlockCollector; `secret`: for the filters of keys, if they
    are wanted; `task`: what is measured, if anything is; `rendered`: gets the rendered bytes."""

    snapshot: LogSnapshot
    segment: Segment
    edges: Int64s
    secret: Secret | None
    task: SegmentTask | None
    rendered: RenderedPass | None = None

    def run(self, start: int, end: int, workers: Workers, on_bytes: OnBytes) -> tuple[FoundBlocks, int]:
        """The blocks of the batches that begin in [start, end), and the position after them; a large stretch is shared
        with a worker. SegmentGone when the file is gone or was truncated."""

        rendered = self.rendered

        def do(bench: Workbench, part: _PassPart, first: int, stop: int) -> int:
            if rendered is not None:
                part.stream = rendered.stream((first - start) / (end - start), min(1, (stop - start) / (end - start)))
            return self._collect(bench, part.collector, first, stop, on_bytes, part.stream)

        def part() -> _PassPart:
            is_sparse = self.task is not None and self.task.filter is not None
            return _PassPart(BlockCollector(self.edges, self.secret, is_sparse=is_sparse))

        parts, reached = in_parts(
            self.segment, start, end, workers, part, do, known=self.edges, awaited=rendered is not None
        )
        blocks = [each.collector.found() for each in parts]
        if rendered is not None:
            position = rendered.size
            for each, found_blocks in zip(parts, blocks, strict=True):
                if each.stream is not None:
                    each.stream.start = position
                    rendered.streams.append(each.stream)
                position += int(found_blocks.rows[:, RENDERED].sum())
        return FoundBlocks.joined(blocks), reached

    def _collect(
        self,
        bench: Workbench,
        collector: BlockCollector,
        start: int,
        stop: int,
        on_bytes: OnBytes,
        stream: RenderedStream | None,
    ) -> int:
        reached = start
        batches = scan_batches(self.snapshot, self.segment, start, stop, window=window_bytes(start, stop), at_copy=True)
        for window in batches:
            damage = window.damage
            if damage is not None:
                # The messages that were there are unknown.
                self._collect_repeated(collector, reached, damage.position)
                behind = damage.end
                collector.add_damage(damage.position, behind, named_times(damage.times or ()), 1)
                if stream is not None:
                    stream.end()
            else:
                self._collect_repeated(collector, reached, int(window.table.position[0]))
                self._collect_window(bench, collector, window, stream)
                behind = int(window.table.end[-1])
            on_bytes(behind - reached)
            reached = behind
        self._collect_repeated(collector, reached, stop)
        return max(reached, stop)

    def _collect_repeated(self, collector: BlockCollector, start: int, end: int) -> None:
        """Collect what a scan has passed over, if it has: batches that repeat earlier ones, and show nothing."""
        if start < end:
            collector.add_damage(start, end, named_times(()), 0)

    def _collect_window(
        self, bench: Workbench, collector: BlockCollector, window: Window, stream: RenderedStream | None
    ) -> None:
        table, task = window.table, self.task
        skip = None if task is None or task.skips is None else task.skips(table)
        # Batches that a filter leaves out need not be decoded. The blocks of a whole segment also hold what isolation
        # hides.
        left_out = skip if task is not None and task.filter is not None else None
        row = 0
        while row < table.rows:
            block = bench.checked.decode(window.buffer, table, row, origin=window.origin, skip=left_out)
            bench.note(block)
            damage = block.damage
            last = block.next_row if damage is None else damage.row
            sizes, mask = NOTHING, None
            if task is not None and len(block):
                sizes, mask = task.measure(bench, block) if stream is None else task.render(bench, block, skip, stream)
            hashes = None if self.secret is None else bench.hashes(len(block))
            collector.add(table, row, last, block, sizes, mask, skip, hashes)
            row = last
            if damage is not None:
                size = 0 if task is None else shown_size(bench, task, window, row)
                times = named_times(claimed_times(table, row))
                collector.add_damage(int(table.position[row]), int(table.end[row]), times, size)
                if stream is not None:
                    stream.end()
                row += 1


def shown_size(bench: Workbench, task: SegmentTask, window: Window, row: int) -> int:
    """How many bytes stand for a damaged batch."""
    size = measure_row(bench, task, window.buffer, window.table, row, window.origin)
    # Nothing in its header is certain, so it is shown even if it seems to be empty.
    is_shown = task.filter is None or task.filter.may_hold(window.table, row)
    return min(max(size, int(is_shown)), MOST_LINE_BYTES)


def measure_row(bench: Workbench, task: SegmentTask, data: memoryview, table: BatchTable, row: int, origin: int) -> int:
    """The rendered size of a damaged batch: if it decodes, as if its CRC were right; otherwise 1 if its header says
    that it may hold wanted messages."""
    skip = None if task.skips is None else task.skips(table)
    block = bench.unchecked.decode(data, table, row, row + 1, origin=origin, skip=skip)
    if block.damage is not None:
        return int(task.filter is None or task.filter.may_hold(table, row))
    if not len(block):
        return 0
    sizes, mask = task.measure(bench, block)
    return int((sizes if mask is None else sizes[mask]).sum())


def _split(task: SegmentTask, start: int, end: int) -> list[int]:
    """The positions at which a block that renders to too many bytes is cut (pieces.line_cuts)."""
    sizes: list[Int64s] = []
    with workbench() as bench:
        for window in scan_batches(task.snapshot, task.segment, start, end, window=window_bytes(start, end)):
            skip = None if task.skips is None else task.skips(window.table)
            row = 0
            while row < window.table.rows:
                block = bench.checked.decode(window.buffer, window.table, row, origin=window.origin, skip=skip)
                bench.note(block)
                block.check(task.segment.log.path)
                row = block.next_row
                if len(block):
                    lines, mask = task.measure(bench, block)
                    sizes.append(lines.copy() if mask is None else lines[mask])
    return line_cuts(np.concatenate(sizes))


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
    snapshot: LogSnapshot, segment: Segment, rendition: Rendition, record_filter: MessageFilter | None
) -> tuple[SegmentTask, AbortedTransactions | None]:
    """The task for a segment, as the log is in `snapshot`, and the aborted transactions; None for a reader of all
    messages."""
    if rendition.isolation is not Isolation.READ_COMMITTED:
        return SegmentTask(
            snapshot, segment, rendition.format, None if record_filter is None else record_filter.skips, record_filter
        ), None
    # Read the transactions now: when a piece is rendered, segments of this snapshot may be gone.
    aborted = AbortedTransactions(snapshot, segment, last_stable_offset(snapshot))
    return SegmentTask(snapshot, segment, rendition.format, aborted.skip_rows, record_filter), aborted


class SegmentBlocks:
    """The table of blocks that all whole extents of a segment share, or the table of one extent that is not whole.

    `table` is replaced as a whole, under the lock, by one that has more blocks or filters.
    """

    __slots__ = ("lock", "table")

    def __init__(self, table: BlockTable | None = None) -> None:
        self.lock = threading.Lock()
        self.table = table or BlockTable.none()

    def collect_locked(
        self, snapshot: LogSnapshot, segment: Segment, start: int, end: int, workers: Workers, on_bytes: OnBytes,
        *, keys: bool,
    ) -> None:  # fmt: skip
        """Adds the blocks between two positions, with the filters of their keys if `keys`. SegmentGone."""
        table = self.table
        secret = table.secret if keys else None
        found_blocks, _ = BlockPass(snapshot, segment, table.edges(start), secret, None).run(
            start, end, workers, on_bytes
        )
        self.table, _ = table.merged(found_blocks)


class Extent:
    """`pieces` is what has been measured so far; it only grows at its end, and existing pieces do not change."""

    def __init__(
        self,
        segment: Segment,
        rendition: Rendition,
        record_filter: MessageFilter | None,
        start: int,
        blocks: SegmentBlocks | None = None,
        known: Pieces | None = None,
        decider: DecidingMarker | None = None,
    ) -> None:
        """`blocks`: the segment's blocks, if the extent has all messages of the segment."""
        # constant after construction
        self.segment = segment
        self.record_filter = record_filter
        self.number = next(_numbers)
        self.rendition = rendition
        self.is_whole = blocks is not None
        # has its own locking; its lock guards what follows, for writing
        self._blocks = blocks or SegmentBlocks()
        # replaced as a whole
        self.pieces = Pieces.none(start) if known is None else known
        self._measured: tuple[int, int] | None = None  # ctime and size of the file before it was measured
        # the last marker that decided whether a transaction in the pieces was aborted; None: no transaction in them
        self.decider = decider
        self._task: SegmentTask | None = None

    def extend(
        self,
        snapshot: LogSnapshot,
        end: int,
        workers: Workers,
        on_bytes: OnBytes,
        *,
        keys: bool = False,
        rendered: RenderedPass | None = None,
    ) -> None:
        """Measures up to the file position `end`, where a batch ends. SegmentGone when the file is gone.

        `keys`: also collects keys where nobody has collected them; only for an extent of a whole segment. `rendered`:
        gets the bytes of what is measured.
        """
        if end <= self.pieces.file_end and self._task is not None:
            return
        with self._blocks.lock:
            task, aborted = _task(snapshot, self.segment, self.rendition, self.record_filter)
            if end > self.pieces.file_end:
                changed_ns, size = self.segment.changed_ns(), self.segment.size
                start, table = self.pieces.file_end, self._blocks.table
                secret = table.secret if keys and table.unfiltered(start, end) else None
                if rendered is not None:
                    rendered.size = self.pieces.size
                a_pass = BlockPass(snapshot, self.segment, table.edges(start), secret, task, rendered)
                found_blocks, reached = a_pass.run(start, end, workers, on_bytes)
                table, of = table.merged(found_blocks)
                pieces = self.pieces.extended(table, of, found_blocks.rows, reached, partial(_split, task))
                if aborted is not None:
                    self.decider = _later_of(self.decider, aborted.decider)
                self._measured = changed_ns, size
                self._blocks.table = table
                self.pieces = pieces
            self._task = task

    def pass_over(self, start: int, end: int) -> None:
        """Marks the file positions from `start` to `end` as measured, because nothing wanted is there.

        Does nothing unless the extent ends at `start`.
        """
        with self._blocks.lock:
            if self.pieces.file_end == start:
                self.pieces = self.pieces.until(self._blocks.table, end)

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
        """The task of the last `extend`."""
        assert self._task is not None, "an extent is extended before it is read"
        return self._task

    @property
    def snapshot(self) -> LogSnapshot | None:
        """The snapshot of the last `extend`; None if none has finished."""
        return None if self._task is None else self._task.snapshot

    def key(self, piece: Piece) -> BlockKey:
        """The cache key of a piece's rendered bytes. The last piece grows, so its end is part of the key."""
        return (self.number, piece.position, piece.file_end, piece.skip)


def _later_of(first: DecidingMarker | None, second: DecidingMarker | None) -> DecidingMarker | None:
    if first is None or second is None:
        return first or second
    return first if first.offset > second.offset else second
