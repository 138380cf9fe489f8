"""One piece of a view, rendered: its file span is read, its CRCs are checked, and its bytes go into a buffer.

Where a batch is damaged, as many bytes as it was measured to stand for its error; all else comes out right.
"""

from __future__ import annotations

import numpy as np

from kafkafs.handles import Buffer, DamagedPlace
from kafkafs.view_index.measure import Task, measure_row
from kafkafs.view_index.pieces import NO_CRC, NOT_SPLIT, Piece
from kafkafs.view_index.workbench import Workbench, workbench
from storage.errors import CorruptBatch, SegmentGone, StorageError
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock
from storage.log.scanning import scan_batches


def render_piece(task: Task, piece: Piece, buffer: Buffer) -> list[DamagedPlace]:
    """Fills buffer[:piece.size] and tells the places in it that stand for damage.

    SegmentGone when the file is gone, or no longer holds the batches that were measured.
    """
    if piece.crc == NO_CRC:
        return [DamagedPlace(0, piece.size, _why_damaged(task, piece))]
    out = buffer.array.data[: piece.size]
    with workbench() as bench:
        data = bench.read(task.segment, piece.position, piece.file_end)
        bench.scan(data, piece.position)
        _check(task, piece, bench.table)
        end, places = _render(bench, task, piece, data, out)
    if end != piece.size:
        raise SegmentGone(
            "segment was rewritten since its messages were measured",
            path=task.segment.log.path,
            position=piece.position,
            expected=f"{piece.size} rendered bytes",
            found=end,
        )
    return places


def _render(
    bench: Workbench, task: Task, piece: Piece, data: memoryview, out: memoryview
) -> tuple[int, list[DamagedPlace]]:
    table = bench.table
    skip = None if task.skips is None else task.skips(table)
    places: list[DamagedPlace] = []
    at = 0
    row = 0
    while row < table.rows:
        block = bench.checked.decode(data, table, row, origin=piece.position, skip=skip)
        row, damage = block.next_row, block.damage
        if len(block):
            mask = None if task.filter is None else task.filter.mask(block)
            wanted = block if mask is None else block.select(mask)
            if piece.skip != NOT_SPLIT:
                wanted = _part(bench, task, wanted, piece)
            at = task.format.render(wanted, out, at)
        if damage is not None:
            damage.error.path = task.segment.log.path
            size = piece.size if piece.skip != NOT_SPLIT else measure_row(
                bench, task, data, table, damage.row, piece.position
            )
            if size:
                places.append(DamagedPlace(at, at + size, damage.error))
            at += size
            row = damage.row + 1
    return at, places


def _part(bench: Workbench, task: Task, block: RecordBlock, piece: Piece) -> RecordBlock:
    """The records of a huge batch that belong to this piece of it."""
    sizes = bench.sizes(len(block))
    task.format.measure(block, sizes)
    ends = np.cumsum(sizes)
    first = int(ends.searchsorted(piece.skip, side="right"))
    last = int(ends.searchsorted(piece.skip + piece.size, side="right"))
    return block.select(slice(first, last))


def _check(task: Task, piece: Piece, table: BatchTable) -> None:
    """The batches that were measured must still be there: a file may be rewritten under the same name and inode."""
    if (
        table.rows
        and int(table.base_offset[0]) == piece.base_offset
        and int(table.crc[0]) == piece.crc
        and int(table.position[-1] + table.size[-1]) == piece.file_end
    ):
        return
    raise SegmentGone(
        "other batches stand where messages were measured", path=task.segment.log.path, position=piece.position
    )


def _why_damaged(task: Task, piece: Piece) -> StorageError:
    for window in scan_batches(task.snapshot, task.segment, piece.position, piece.file_end):
        if window.damage is not None:
            return window.damage.error
    return CorruptBatch("no record batch began here", path=task.segment.log.path, position=piece.position)
