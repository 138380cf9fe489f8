"""The messages that a pass renders while it measures, so that the reader who comes next need not decode them again."""

from __future__ import annotations

from kafkafs.formats.format import Format
from kafkafs.reading.block_cache import Buffer
from kafkafs.reading.blocks import Int64s
from storage.format.block import RecordBlock


class RenderedStream:
    """The bytes that the records of some batches render to, one after the other in `buffer` from `first` on, as far as
    they fit, up to `last`. `start`: the extent's rendered position of the first byte, which is known after the pass."""

    def __init__(self, buffer: Buffer, first: int, last: int) -> None:
        self.first = first
        self.start = 0
        self._data = buffer.array.data[:last]
        self._next = first
        self._is_complete = False

    @property
    def size(self) -> int:
        return self._next - self.first

    def add(self, form: Format, block: RecordBlock, sizes: Int64s) -> bool:
        """Renders the records of a block, and puts the size of each into `sizes`. False if they do not fit: then
        nothing can be added any more, and `sizes` is undefined."""
        if not self._is_complete:
            rows, self._next = form.render_rows(block, self._data, self._next, 0, sizes)
            self._is_complete = rows < len(block)
        return not self._is_complete

    def end(self) -> None:
        """Nothing can be added any more, because damage follows."""
        self._is_complete = True


class RenderedPass:
    """The bytes that a pass renders into `buffer`, of which each part of the pass has a share. `size`: the extent's
    rendered size before the pass; `streams`: those of the parts, after the pass. Whoever runs the pass sets both."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.size = 0
        self.streams: list[RenderedStream] = []

    def stream(self, first: float, last: float) -> RenderedStream:
        """A stream with a share of the buffer: from its fraction `first` to `last`."""
        capacity = self.buffer.capacity
        return RenderedStream(self.buffer, int(first * capacity), int(last * capacity))
