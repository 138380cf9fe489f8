"""Measuring: one pass over a segment's batches that finds the rendered size of each, cut into pieces. Nothing is
rendered.

Damage makes separate pieces. A batch that fails its CRC but decodes has its rendered size; one that does not decode has
one byte, which takes the place of its error, and so does a stretch where no batch begins, up to the next batch in the
offset index. CRCs are checked here, and again whenever bytes are served: otherwise a batch with damaged timestamps
would be missing from a range of times without an error. Which times it may hide: see `hidden_times`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kafkafs.formats.base import Format
from kafkafs.view_index import measure_kernel
from kafkafs.view_index.hidden_times import Times, hidden_times, of_damaged_rows, times_at_ends
from kafkafs.view_index.key_blocks import KeyCollector, Secret
from kafkafs.view_index.key_scan import add_keys, collect_keys
from kafkafs.view_index.parts import OnBytes, in_parts, window_bytes
from kafkafs.view_index.pieces import (
    NO_CRC,
    NOT_SPLIT,
    OPEN_ABOVE,
    PIECE_BYTES,
    SPLIT_BYTES,
    MessageFilter,
    Piece,
    PieceBuilder,
    Pieces,
)
from kafkafs.view_index.workbench import Skips, Workbench
from kafkafs.view_index.workers import Workers
from storage.format.batches import BatchTable, claimed_times, times_of
from storage.log.scanning import SpanDamage, Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

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
    """The pieces of some batches, without `Piece.end`, and their keys if they are collected.

    `before`: the times of the last readable batch. `waiting`: of the damaged pieces at the end, by file position, those
    of the batch before and of their own header, until the batch after them is known.
    """

    def __init__(self, secret: Secret | None = None) -> None:
        self.pieces: list[Piece] = []
        self.before: Times | None = None
        self.waiting: dict[int, tuple[Times | None, Times | None]] = {}
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
            found.pieces.append(_no_batch(window.damage, found.before))
            found.waiting[window.damage.position] = found.before, window.damage.times
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
        return int(task.filter is None or task.filter.may_hold(table, row, times_of(table, row)))
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
            if largest > SPLIT_BYTES:
                for huge in np.flatnonzero(totals[_SIZE, : table.rows] > SPLIT_BYTES).tolist():
                    if huge not in cuts:
                        chosen = block.batch == huge if mask is None else (block.batch == huge) & mask
                        cuts[huge] = _split(sizes[chosen])
        if block.damage is not None:
            damaged.append(block.damage.row)
            row = block.damage.row + 1
    hidden = of_damaged_rows(table, damaged, found.before) if damaged else {}
    for row, times in hidden.items():
        size = measure_row(bench, task, window.buffer, table, row, window.origin)
        # Nothing in its header is certain, so it is shown even if it seems to be empty.
        shown = task.filter is None or task.filter.may_hold(table, row, times)
        totals[_SIZE, row] = min(max(size, int(shown)), SPLIT_BYTES)
    ends = times_at_ends(table, damaged)
    if ends is not None:
        _close_above(found, ends[0])
        found.before = ends[1]
    for row, (_, greatest) in hidden.items():
        if greatest == OPEN_ABOVE:
            found.waiting[int(table.position[row])] = found.before, claimed_times(table, row)
    found.pieces += _cut(bench, table, totals, cuts, hidden)
    if found.keys is not None and skip is not None:
        collect_keys(bench, found.keys, window)  # also of the batches that were left out


def _close_above(found: Measured, behind: Times) -> None:
    """Sets the open upper times of the damaged pieces at the end from the batch that follows them."""
    for slot in reversed(range(len(found.pieces))):
        piece = found.pieces[slot]
        if piece.position not in found.waiting:
            break
        before, own = found.waiting[piece.position]
        least, greatest = hidden_times(before, behind, own)
        found.pieces[slot] = piece._replace(least=least, greatest=greatest)
    found.waiting.clear()


def _split(sizes: npt.NDArray[np.int64]) -> list[int]:
    """The rendered positions at which a huge batch is cut, between records, or within one that is itself too large;
    the last one is its end."""
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    before = 0
    while before < ends[-1]:
        fitting = int(ends.searchsorted(before + SPLIT_BYTES, side="right")) - 1
        least = int(ends.searchsorted(before, side="right"))
        before = int(ends[fitting]) if fitting >= least else before + SPLIT_BYTES
        cuts.append(before)
    return cuts


def _cut(
    bench: Workbench,
    table: BatchTable,
    totals: npt.NDArray[np.int64],
    cuts: dict[int, list[int]],
    damaged: dict[int, Times],
) -> list[Piece]:
    """A measured window as pieces of similar size; huge and damaged batches separately."""
    pieces: list[Piece] = []
    first = 0
    for row in sorted({*cuts, *damaged}):
        pieces += _even_pieces(bench, table, totals, first, row)
        first = row + 1
        if row in damaged:
            least, greatest = damaged[row]
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


def _no_batch(damage: SpanDamage, before: Times | None) -> Piece:
    # The messages that were there are unknown, so there are no offsets.
    times = hidden_times(before, None, damage.times)
    return Piece(0, 1, damage.position, damage.end, NOT_SPLIT, -1, NO_CRC, *times, 0)
