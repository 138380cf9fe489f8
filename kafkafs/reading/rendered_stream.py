"""The messages that a pass renders while it measures, so that the reader who comes next need not decode them again."""

from __future__ import annotations

from kafkafs.formats.format import Format
from kafkafs.reading.block_cache import Buffer
from kafkafs.reading.blocks import Int64s
from storage.format.block import RecordBlock


class RenderedStream:
    """The bytes that the records of a pass render to, one after the other in `buffer`, as far as they fit. `start`: the
    extent's rendered position of the first byte, which whoever runs the pass sets."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.start = 0
        self.size = 0
        self._is_complete = False

    def add(self, form: Format, block: RecordBlock, sizes: Int64s) -> bool:
        """Renders the records of a block, and puts the size of each into `sizes`. False if they do not fit: then
        nothing can be added any more, and `sizes` is undefined."""
        if not self._is_complete:
            rows, self.size = form.render_rows(block, self.buffer.array.data, self.size, 0, sizes)
            self._is_complete = rows < len(block)
        return not self._is_complete

    def end(self) -> None:
        """Nothing can be added any more, because damage follows."""
        self._is_complete = True
