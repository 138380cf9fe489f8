"""Measuring: one pass over a segment's batches that tells what each renders to, cut into pieces. Nothing is rendered.

CRCs are not checked here but whenever bytes are served. A batch that does not decode counts as one byte, the place of
its error; so does a stretch where no batch begins, up to where the offset index finds the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kafkafs.formats.base import Format
from kafkafs.handles import Workers
from kafkafs.view_index.kernel import batch_totals
from kafkafs.view_index.pieces import (
    NO_CRC,
    NO_GREATEST,
    NO_LEAST,
    NOT_SPLIT,
    PIECE_BYTES,
    SPLIT_BYTES,
    Piece,
    PieceBuilder,
    Pieces,
    RecordFilter,
)
from kafkafs.view_index.workbench import Skips, Workbench, workbench
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

_CHUNK_BYTES = 8 << 20  # what one thread measures at a time, at least
_CHUNKS = 16  # at most, for one segment
_ALL = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured or rendered: a segment's messages in a format, but those that isolation or filter leave out."""

    snapshot: LogSnapshot
    segment: Segment
    format: Format
    skips: Skips | None
    filter: RecordFilter | None


@dataclass(slots=True)
class Chunk:
    """A part of a segment that one thread measures: the batches that begin in [start, stop). `reached`: where the first
    batch behind them begins; -1 while nobody has measured it."""

    start: int
    stop: int
    pieces: list[Piece]
    reached: int = -1
    failure: BaseException | None = None


OnBytes = Callable[[int], None]
"""Called with each number of file bytes done; may raise to end the work."""


def extend(pieces: Pieces, task: Task, end: int, workers: Workers, on_bytes: OnBytes) -> Pieces:
    """`pieces` and those up to the file position `end` behind them; a large rest is shared with a worker."""
    builder = PieceBuilder(pieces)
    reached = pieces.file_end
    chunks = _chunks(task.segment, reached, end)
    if len(chunks) > 1:
        _measure_together(chunks, task, workers, on_bytes)
    # Chunks begin where the offset index says: believed only if the batches before end exactly there.
    for chunk in chunks:
        if reached < chunk.start:
            reached = _measure_into(builder, task, reached, chunk.start, on_bytes)
        if reached == chunk.start and chunk.reached >= 0:
            for piece in chunk.pieces:
                builder.add(piece)
            reached = chunk.reached
    if reached < end:
        reached = _measure_into(builder, task, reached, end, on_bytes)
    return builder.build(reached)


def measure(bench: Workbench, task: Task, start: int, stop: int, on_bytes: OnBytes) -> tuple[list[Piece], int]:
    """The pieces of the batches that begin in [start, stop), and the position behind them.

    `Piece.end` is not filled in. SegmentGone when the file is gone or was truncated.
    """
    pieces: list[Piece] = []
    reached = start
    for window in scan_batches(task.snapshot, task.segment, start, stop):
        if window.damage is not None:
            pieces.append(_damaged(window.damage.position, window.damage.end))
            behind = window.damage.end
        else:
            pieces += _measure_window(bench, task, window)
            behind = int(window.table.position[-1] + window.table.size[-1])
        on_bytes(behind - reached)
        reached = behind
    return pieces, reached


def measure_row(bench: Workbench, task: Task, data: memoryview, table: BatchTable, row: int, origin: int) -> int:
    """Rendered bytes of one batch, as `measure` counts it."""
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


class _Totals:
    """By row of a table: rendered bytes, messages, least and greatest timestamp; and how the huge batches are cut."""

    __slots__ = ("cuts", "greatest", "least", "records", "size")

    def __init__(self, rows: int) -> None:
        self.size = np.zeros(rows, dtype=np.int64)
        self.records = np.zeros(rows, dtype=np.int64)
        self.least = np.full(rows, NO_LEAST, dtype=np.int64)
        self.greatest = np.full(rows, NO_GREATEST, dtype=np.int64)
        self.cuts: dict[int, list[int]] = {}


def _measure_window(bench: Workbench, task: Task, window: Window) -> list[Piece]:
    table = window.table
    totals = _Totals(table.rows)
    skip = None if task.skips is None else task.skips(table)
    row = 0
    while row < table.rows:
        block = bench.unchecked.decode(window.buffer, table, row, origin=window.origin, skip=skip)
        row = block.next_row
        if len(block):
            _add_block(totals, task, block, bench.sizes(len(block)))
        if block.damage is not None:
            row = block.damage.row
            totals.size[row] = int(task.filter is None or task.filter.may_hold(table, row))
            row += 1
    return _cut(table, totals)


def _add_block(totals: _Totals, task: Task, block: RecordBlock, sizes: npt.NDArray[np.int64]) -> None:
    task.format.measure(block, sizes)
    mask = None if task.filter is None else task.filter.mask(block)
    wanted = _ALL if mask is None else mask.view(np.uint8)
    batch_totals(
        block.batch, sizes, block.timestamp, wanted, totals.size, totals.records, totals.least, totals.greatest
    )
    if int(totals.size.max()) > SPLIT_BYTES:
        for row in np.flatnonzero(totals.size > SPLIT_BYTES).tolist():
            if row not in totals.cuts:
                chosen = block.batch == row if mask is None else (block.batch == row) & mask
                totals.cuts[row] = _split(sizes[chosen])


def _split(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Where a huge batch is cut, between records: rendered positions, the last one its end."""
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    before = 0
    while before < ends[-1]:
        fitting = int(ends.searchsorted(before + SPLIT_BYTES, side="right")) - 1
        least = int(ends.searchsorted(before, side="right"))  # one record, however large
        before = int(ends[max(fitting, least)])
        cuts.append(before)
    return cuts


def _cut(table: BatchTable, totals: _Totals) -> list[Piece]:
    """A measured table in pieces of even size; huge batches apart."""
    pieces: list[Piece] = []
    first = 0
    for row in sorted(totals.cuts):
        pieces += _even_pieces(table, totals, first, row)
        before = 0
        for cut in totals.cuts[row]:
            pieces.append(_piece(table, totals, row, row + 1)._replace(size=cut - before, skip=before, records=0))
            before = cut
        pieces[-1] = pieces[-1]._replace(records=int(totals.records[row]))
        first = row + 1
    return pieces + _even_pieces(table, totals, first, table.rows)


def _even_pieces(table: BatchTable, totals: _Totals, first: int, last: int) -> list[Piece]:
    if first == last:
        return []
    ends = np.cumsum(totals.size[first:last])
    total = int(ends[-1])
    if total == 0:
        return []
    count = -(-total // PIECE_BYTES)
    edges = [first]
    for part in range(1, count):
        edge = first + int(ends.searchsorted(part * total // count)) + 1
        if edges[-1] < edge < last:
            edges.append(edge)
    edges.append(last)
    pieces = (_piece(table, totals, start, stop) for start, stop in pairwise(edges))
    return [piece for piece in pieces if piece.size]


def _piece(table: BatchTable, totals: _Totals, first: int, last: int) -> Piece:
    return Piece(
        end=0,
        size=int(totals.size[first:last].sum()),
        position=int(table.position[first]),
        file_end=int(table.position[last - 1] + table.size[last - 1]),
        skip=NOT_SPLIT,
        base_offset=int(table.base_offset[first]),
        crc=int(table.crc[first]),
        least=int(totals.least[first:last].min()),
        greatest=int(totals.greatest[first:last].max()),
        records=int(totals.records[first:last].sum()),
    )


def _damaged(position: int, file_end: int) -> Piece:
    # Which messages stood there is unknown: no offsets, no timestamps.
    return Piece(0, 1, position, file_end, NOT_SPLIT, -1, NO_CRC, NO_LEAST, NO_GREATEST, 0)


def _chunks(segment: Segment, start: int, end: int) -> list[Chunk]:
    count = min(_CHUNKS, (end - start) // _CHUNK_BYTES)
    edges = [start]
    if count > 1:
        hints = segment.offset_index(end).positions
        for part in range(1, count):
            slot = int(hints.searchsorted(start + part * (end - start) // count))
            if slot < len(hints) and edges[-1] < int(hints[slot]) < end:
                edges.append(int(hints[slot]))
    edges.append(end)
    return [Chunk(first, last, []) for first, last in pairwise(edges)]


def _measure_into(builder: PieceBuilder, task: Task, start: int, stop: int, on_bytes: OnBytes) -> int:
    with workbench() as bench:
        pieces, reached = measure(bench, task, start, stop, on_bytes)
    for piece in pieces:
        builder.add(piece)
    return reached


def _measure_together(chunks: list[Chunk], task: Task, workers: Workers, on_bytes: OnBytes) -> None:
    """Measures the chunks in this thread and, if one is free, a worker."""
    changed = threading.Condition()
    waiting = list(reversed(chunks))
    under_way = 0

    def work() -> None:
        nonlocal under_way
        with workbench() as bench:
            while True:
                with changed:
                    if not waiting:
                        return
                    chunk = waiting.pop()
                    under_way += 1
                try:
                    chunk.pieces, chunk.reached = measure(bench, task, chunk.start, chunk.stop, on_bytes)
                except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits for the result
                    chunk.failure = error
                finally:
                    with changed:
                        under_way -= 1
                        changed.notify()

    for _ in range(max(0, workers.count - 1)):
        workers.submit(work)
    work()
    with changed:
        while under_way:
            changed.wait()
    for chunk in chunks:
        if chunk.failure is not None:
            raise chunk.failure
