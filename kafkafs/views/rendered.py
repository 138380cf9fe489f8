"""Open files of rendered messages: reads are answered from blocks of a shared cache, which workers fill in advance."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from kafkafs.view_index.extent import Extent
from kafkafs.view_index.pieces import NOT_SPLIT, Piece
from kafkafs.view_index.workers import Workers
from kafkafs.views.block_cache import Block, BlockCache, Buffer, DamagedPlace
from kafkafs.views.layout import Layout, Run
from kafkafs.views.open_view import OpenView, ViewHandle
from kafkafs.views.rendering import forget_huge_batch, render_piece

_AHEAD_BYTES = 12 << 20  # rendered before they are requested, once a reader has proved to be sequential
_NEAR_BYTES = 1 << 20  # reads of a buffered file arrive out of order by a few requests

# memmove that keeps the interpreter's lock: a copy takes less time than getting the lock back may take.
_memmove = ctypes.PyDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = None


class Place(NamedTuple):
    """A piece of a view: the view's bytes from `start` to `end` are the block's from `skip` on."""

    start: int
    end: int
    skip: int
    run: Run
    extent: Extent
    piece: Piece


def place_at(layout: Layout, position: int, *, grouped: bool) -> Place:
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
    return Place(first, min(start + piece.size, run.end), first - start, run, extent, piece)


class RenderedHandle(ViewHandle):
    """An open rendered view. The fields that reading threads share are only hints."""

    def __init__(self, view: OpenView, cache: BlockCache, workers: Workers) -> None:
        super().__init__(view)
        self._cache = cache
        self._workers = workers
        self._place: tuple[Layout, Place] | None = None
        self._next = 0  # where a sequential reader continues
        self._streak = 0  # how often it did
        self._ahead = 0  # up to where pieces were requested
        self._reads_parts = False  # of a huge batch

    def close(self) -> None:
        super().close()
        if self._reads_parts:
            forget_huge_batch()

    def _copy(self, layout: Layout, position: int, end: int, address: int) -> tuple[int, int]:
        place = self._find(layout, position)
        if place.run.segment in layout.unlisted:
            place.run.segment.log.stat()  # when a file is removed, its cached blocks are no longer served
        block = self._block(place, self._workers.help)
        finished = False
        try:
            start = position - place.start + place.skip
            stop = min(block.readable_until(start), start + min(end, place.end) - position)
            _memmove(address, block.address + start, stop - start)
            finished = self._streak > 1 and place.start + stop - place.skip >= place.end
            return stop - start, min(end, place.end) - position
        finally:
            self._cache.release(block, finished=finished)

    def _after_read(self, layout: Layout, offset: int, position: int) -> None:
        if self._workers.running:
            self._render_ahead(layout, offset, position)

    def _find(self, layout: Layout, position: int) -> Place:
        held = self._place
        if held is not None and held[0] is layout and held[1].start <= position < held[1].end:
            return held[1]
        place = place_at(layout, position, grouped=self._streak > 1)
        self._place = (layout, place)
        return place

    def _block(self, place: Place, while_waiting: Callable[[], object] | None = None) -> Block:
        extent, piece = place.extent, place.piece
        key = extent.key(piece)
        self._reads_parts = self._reads_parts or piece.skip != NOT_SPLIT

        def fill(buffer: Buffer) -> list[DamagedPlace]:
            return render_piece(extent.task, piece, buffer)

        block = self._cache.get(key, piece.size, fill, while_waiting)
        if block.damage and block.damage[0].read_at != place.run.segment.changed_ns():
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
        held = self._place
        ahead = max(self._ahead, position if held is None else held[1].end)
        while ahead < layout.size and ahead - position < _AHEAD_BYTES:
            place = place_at(layout, ahead, grouped=True)
            self._submit(place)
            ahead = place.end
        self._ahead = ahead

    def _submit(self, place: Place) -> None:
        extent, piece = place.extent, place.piece
        if piece.size > _NEAR_BYTES and self._cache.max_bytes < 8 * piece.size:
            return

        def render() -> None:
            if self._view.is_open and place.end > self._next - _NEAR_BYTES:
                self._cache.release(self._block(place))

        if not self._cache.holds(extent.key(piece)):
            self._workers.submit(render)
