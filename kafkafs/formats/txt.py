"""`txt`: each message's value and a newline; a null value is an empty line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkafs.formats.program import VALUE, Program, ProgramFormat
from storage.format import decode_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock


class Txt(ProgramFormat):
    """Values and newlines, for every partition."""

    def __init__(self) -> None:
        super().__init__("txt", Program.of([VALUE, b"\n"]))

    def measure(self, block: RecordBlock, sizes: NDArray[np.int64]) -> None:
        """Needs only one column."""
        lengths = sizes[: len(block)]
        np.maximum(block.value_length, 0, out=lengths)
        lengths += 1

    def render_rows(
        self,
        block: RecordBlock,
        out: memoryview,
        out_start: int = 0,
        first_row: int = 0,
        sizes: NDArray[np.int64] | None = None,
    ) -> tuple[int, int]:
        """Gathers the column of values if all fit, which takes a third of the time of running the program."""
        if first_row == 0 and out_start >= 0:
            ends = np.empty(len(block), np.int64)
            lines = ends if sizes is None else sizes[: len(block)]
            self.measure(block, lines)
            if int(lines.sum()) <= len(out) - out_start:
                values = block.value_start, block.value_length
                used = decode_kernel.gather(block.buffer, *values, b"\n", out[out_start:], ends)
                return len(block), out_start + used
        return super().render_rows(block, out, out_start, first_row, sizes)
