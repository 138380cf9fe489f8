"""Rendering one piece of a view: its file span is read, its CRCs are checked, and its bytes go into a buffer.

A damaged batch has as many bytes as were measured for it, which stand for its error; a message that is too long has one
byte. All other bytes are right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kafkafs.formats.format import MOST_LINE_BYTES, line_too_long
from kafkafs.reading.block_cache import Block, BlockCache, Buffer, DamagedPlace
from kafkafs.reading.blocks import NO_CRC
from kafkafs.reading.extent import Extent, SegmentTask, measure_row
from kafkafs.reading.handle import OpenView, ViewHandle
from kafkafs.reading.layout import Layout, Run
from kafkafs.reading.measured_pages import MeasuredPages
from kafkafs.reading.pieces import NOT_SPLIT, Piece, line_ends
from kafkafs.reading.workbench import Workbench, workbench
from kafkafs.reading.workers import Workers
from storage.errors import CorruptBatch, SegmentGone, StorageError
from storage.format.batches import BatchTable
from storage.log.scanning import scan_batches


def render_piece(task: SegmentTask, piece: Piece, buffer: Buffer) -> list[DamagedPlace]:
    """Fill buffer[:piece.size] and return the places that stand for damage.

    SegmentGone if the file is gone, or no longer holds the batches that were measured.
    """
    read_at = task.segment.changed_ns()
    return [replace(place, read_at=read_at) for place in _fill(task, piece, buffer)]


def _fill(task: SegmentTask, piece: Piece, buffer: Buffer) -> list[DamagedPlace]:
    out = buffer.array.data[: piece.size]
    if piece.crc == NO_CRC:
        return _render_damaged(task, piece, out)
    with workbench() as bench:
        data = bench.read(task.segment, piece.position, piece.file_end)
        bench.scan(data, piece.position)
        _check(task, piece, bench.table)
        if piece.skip != NOT_SPLIT:
            return _render_part(bench, task, piece, data, out)
        end, places = _render(bench, task, piece, data, out)
    if end != piece.size:
        raise _rewritten(task, piece, end)
    return places


def _render_part(
    bench: Workbench, task: SegmentTask, piece: Piece, data: memoryview, out: memoryview
) -> list[DamagedPlace]:
    """Render some messages of a block, and report a message that is too long."""
    table, path = bench.table, task.segment.log.path
    skip = None if task.skips is None else task.skips(table)
    row, before, at, end = 0, 0, 0, piece.skip + piece.size
    while row < table.rows and before < end:
        block = bench.checked.decode(data, table, row, origin=piece.position, skip=skip)
        bench.note(block)
        if block.damage is not None:
            block.damage.error.path = path
            return [DamagedPlace(0, piece.size, block.damage.error)]
        row = block.next_row
        shown = block if task.filter is None else task.filter.apply(block)
        if not len(shown):
            continue
        sizes = bench.sizes(len(shown))
        task.format.measure(shown, sizes)
        ends = before + line_ends(sizes)
        first, behind = ends.searchsorted((piece.skip, end), side="right").tolist()
        if behind - first == 1 and sizes[first] > MOST_LINE_BYTES:
            return [DamagedPlace(0, piece.size, line_too_long(int(shown.offset[first]), int(sizes[first]), path))]
        done, at = task.format.render_rows(shown.select(slice(first, behind)), out, at)
        if done < behind - first:
            raise _rewritten(task, piece, f"more than {len(out)}")
        before = int(ends[-1])
    if at != piece.size:
        raise _rewritten(task, piece, at)
    return []


def _render(
    bench: Workbench, task: SegmentTask, piece: Piece, data: memoryview, out: memoryview
) -> tuple[int, list[DamagedPlace]]:
    table = bench.table
    skip = None if task.skips is None else task.skips(table)
    places: list[DamagedPlace] = []
    at = 0
    row = 0
    while row < table.rows:
        block = bench.checked.decode(data, table, row, origin=piece.position, skip=skip)
        bench.note(block)
        row, damage = block.next_row, block.damage
        if len(block):
            shown = block if task.filter is None else task.filter.apply(block)
            done, at = task.format.render_rows(shown, out, at)
            if done < len(shown):
                raise _rewritten(task, piece, f"more than {len(out)}")
        if damage is not None:
            damage.error.path = task.segment.log.path
            size = measure_row(bench, task, data, table, damage.row, piece.position)
            if size:
                places.append(DamagedPlace(at, at + size, damage.error))
            at += size
            row = damage.row + 1
            if at > len(out):
                raise _rewritten(task, piece, f"more than {len(out)}")
    return at, places


def _rewritten(task: SegmentTask, piece: Piece, end: int | str) -> SegmentGone:
    return SegmentGone(
        "segment was rewritten since its messages were measured",
        path=task.segment.log.path,
        position=piece.position,
        expected=f"{piece.size} rendered bytes",
        found=end,
    )


def _check(task: SegmentTask, piece: Piece, table: BatchTable) -> None:
    """Check that the measured batches still exist: a file may be rewritten under the same name and inode."""
    if (
        table.rows
        and int(table.base_offset[0]) == piece.base_offset
        and int(table.crc[0]) == piece.crc
        and int(table.position[-1] + table.size[-1]) == piece.file_end
    ):
        return
    raise SegmentGone(
        "the file has other batches where messages were measured", path=task.segment.log.path, position=piece.position
    )


def _render_damaged(task: SegmentTask, piece: Piece, out: memoryview) -> list[DamagedPlace]:
    """Render a piece that was damaged when it was measured: its error, or its messages if it was repaired and fits."""
    error = _no_batch(task, piece)
    if error is not None:
        return [DamagedPlace(0, piece.size, error)]
    with workbench() as bench:
        data = bench.read(task.segment, piece.position, piece.file_end)
        bench.scan(data, piece.position)
        block = bench.checked.decode(data, bench.table, origin=piece.position)
        if block.damage is not None:
            block.damage.error.path = task.segment.log.path
            return [DamagedPlace(0, piece.size, block.damage.error)]
        sizes = sum(measure_row(bench, task, data, bench.table, row, piece.position) for row in range(bench.table.rows))
        if sizes == piece.size:
            _, places = _render(bench, task, piece, data, out)
            return places
    repaired = CorruptBatch(
        "a damaged batch was repaired, and does not fit in the place of its error",
        path=task.segment.log.path,
        position=piece.position,
        expected=f"{piece.size} rendered bytes",
        found=sizes,
        advice="Close this file in all programs, and open it again",
    )
    return [DamagedPlace(0, piece.size, repaired)]


def _no_batch(task: SegmentTask, piece: Piece) -> StorageError | None:
    """The error if no batch begins at a piece's position; None if one does. The scan begins at an earlier batch, so
    that the error can name the next offset."""
    segment = task.segment
    start = segment.floor_position(piece.position, task.snapshot.end_position(segment))
    for window in scan_batches(task.snapshot, segment, start, piece.file_end):
        if window.damage is not None and window.damage.position == piece.position:
            return window.damage.error
    return None


# Open files of rendered messages: reads are answered from blocks of a shared cache, which workers fill in advance.

_AHEAD_BYTES = 12 << 20  # rendered before they are requested, once a reader has proved to be sequential
_NEAR_BYTES = 1 << 20  # reads of a buffered file arrive out of order by a few requests

# memmove that keeps the interpreter's lock: a copy takes less time than getting the lock back may take.
_memmove = ctypes.PyDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = None


class ShownPiece(NamedTuple):
    """A piece of a view: the view's bytes from `start` to `end` are the block's from `skip` on."""

    start: int
    end: int
    skip: int
    run: Run
    extent: Extent
    piece: Piece


def shown_piece_at(layout: Layout, position: int, *, grouped: bool) -> ShownPiece:
    """The piece (or group of pieces) that holds the byte at `position`, which is below the layout's size."""
    run = layout.run_at(position)
    extent = run.extent
    assert extent is not None, "a rendered view has extents"
    pieces = extent.pieces
    row = pieces.row_at(run.source_start + position - run.start)
    if grouped:
        piece = pieces.group(row, run.source_start, run.source_start + run.end - run.start)
    else:
        piece = pieces.piece(row)
    start = run.start + piece.start - run.source_start
    first = max(start, run.start)
    # The last piece may have grown since this layout was made.
    return ShownPiece(first, min(start + piece.size, run.end), first - start, run, extent, piece)


class RenderedHandle(ViewHandle):
    """An open rendered view. The fields that reading threads share are only hints."""

    def __init__(self, view: OpenView, cache: BlockCache, workers: Workers, pages: MeasuredPages) -> None:
        super().__init__(view)
        self._cache = cache
        self._workers = workers
        self._pages = pages
        self._shown: tuple[Layout, ShownPiece] | None = None
        self._next = 0  # where a sequential reader continues
        self._streak = 0  # how often it did
        self._ahead = 0  # up to where pieces were requested
        self._is_reaching = False  # whether a worker makes more of the view known

    def close(self) -> None:
        super().close()
        self._pages.drop(run.segment.log for run in self._view.positions.layout.runs)

    def read_into(self, address: int, offset: int, size: int) -> int:
        gap = self._view.positions.layout.gap
        if gap is not None and offset <= gap.start < offset + size:
            self._workers.help()  # some worker may be making what is read, while it keeps the view's lock
        return super().read_into(address, offset, size)

    def _copy(self, layout: Layout, position: int, end: int, address: int) -> tuple[int, int]:
        shown = self._find(layout, position)
        if shown.run.segment in layout.unlisted:
            shown.run.segment.log.stat()  # when a file is removed, its cached blocks are no longer served
        block = self._block(shown, self._workers.help)
        finished = False
        try:
            start = position - shown.start + shown.skip
            stop = min(block.readable_until(start), start + min(end, shown.end) - position)
            _memmove(address, block.address + start, stop - start)
            finished = self._streak > 1 and shown.start + stop - shown.skip >= shown.end
            return stop - start, min(end, shown.end) - position
        finally:
            self._cache.release(block, finished=finished)

    def _after_read(self, layout: Layout, offset: int, position: int) -> None:
        if self._workers.running:
            self._render_ahead(layout, offset, position)

    def _find(self, layout: Layout, position: int) -> ShownPiece:
        held = self._shown
        if held is not None and held[0] is layout and held[1].start <= position < held[1].end:
            return held[1]
        shown = self._piece_at(layout, position, grouped=self._streak > 1)
        self._shown = (layout, shown)
        return shown

    def _piece_at(self, layout: Layout, position: int, *, grouped: bool) -> ShownPiece:
        """The piece that holds the byte at `position`; if `grouped`, its group, unless the piece is there already."""
        shown = shown_piece_at(layout, position, grouped=False)
        if grouped and not self._cache.holds(shown.extent.key(shown.piece)):
            return shown_piece_at(layout, position, grouped=True)
        return shown

    def _block(self, shown: ShownPiece, while_waiting: Callable[[], object] | None = None) -> Block:
        extent, piece = shown.extent, shown.piece
        key = extent.key(piece)

        def fill(buffer: Buffer) -> list[DamagedPlace]:
            self._pages.read(extent.segment.log, piece.position, piece.file_end)
            return render_piece(extent.task, piece, buffer)

        block = self._cache.get(key, piece.size, fill, while_waiting)
        if block.damage and block.damage[0].read_at != shown.run.segment.changed_ns():
            # A damaged block is valid only until its file changes: it may have been repaired in place.
            self._cache.release(block, outdated=True)
            block = self._cache.get(key, piece.size, fill, while_waiting)
        return block

    def _render_ahead(self, layout: Layout, offset: int, position: int) -> None:
        if abs(offset - self._next) <= _NEAR_BYTES:
            self._streak += 1
        else:
            self._streak = 0
            self._ahead = 0
        self._next = position
        if self._streak < 2:
            return  # reading only the head of a file does not justify rendering much
        held = self._shown
        ahead = max(self._ahead, position if held is None else held[1].end)
        while ahead < layout.end_from(position) and ahead - position < _AHEAD_BYTES:
            shown = self._piece_at(layout, ahead, grouped=True)
            self._submit(shown)
            ahead = shown.end
        self._ahead = ahead
        if layout.gap is not None and ahead == layout.gap.start and ahead - position < _AHEAD_BYTES:
            self._reach_ahead()

    def _reach_ahead(self) -> None:
        """Lets a worker make more of the view known."""

        def reach() -> None:
            try:
                if self._view.is_open:
                    self._view.read_ahead()
            finally:
                self._is_reaching = False

        if not self._is_reaching:
            self._is_reaching = True
            self._workers.submit(reach, long=True)

    def _submit(self, shown: ShownPiece) -> None:
        extent, piece = shown.extent, shown.piece
        if piece.size > _NEAR_BYTES and self._cache.max_bytes < 8 * piece.size:
            return

        def render() -> None:
            if self._view.is_open and shown.end > self._next - _NEAR_BYTES:
                self._cache.release(self._block(shown))

        if not self._cache.holds(extent.key(piece)):
            self._workers.submit(render)
