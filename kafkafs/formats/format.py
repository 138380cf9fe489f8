"""The interface of formats: records in columns to bytes, whose size is known beforehand. Nothing about files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from storage.errors import LineTooLong

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from storage.format.block import RecordBlock

MOST_LINE_BYTES: Final = 64 << 20
"""The most bytes that a message may take in a file of the tree and in `kafkafs cat`."""


def line_too_long(offset: int, size: int, path: Path | None = None) -> LineTooLong:
    """The error of a message that takes `size` bytes, more than MOST_LINE_BYTES."""
    what, advice = "message is too long for this format", "`.log` files have it, and `kafkafs dump` prints it"
    expected = f"at most {MOST_LINE_BYTES} bytes"
    return LineTooLong(what, path=path, offset=offset, expected=expected, found=size, advice=advice)


class Format(Protocol):
    """Renders each record to bytes that depend only on the record. Threads can share it."""

    name: str
    """`txt`, `jsonl`, or the text of a template."""

    def measure(self, block: RecordBlock, sizes: NDArray[np.int64]) -> None:
        """Puts the rendered size of each record in bytes into sizes[:len(block)], without rendering."""

    def render(self, block: RecordBlock, out: memoryview, out_start: int = 0) -> int:
        """Renders all records into `out` from `out_start` on; returns where they end. ValueError if they do not fit.

        The content of `out` after that end is undefined.
        """
        row, end = self.render_rows(block, out, out_start)
        if row < len(block):
            raise ValueError(f"{len(out) - out_start} bytes are too few for {len(block)} records")
        return end

    def render_rows(
        self,
        block: RecordBlock,
        out: memoryview,
        out_start: int = 0,
        first_row: int = 0,
        sizes: NDArray[np.int64] | None = None,
    ) -> tuple[int, int]:
        """Renders records from `first_row` on while they fit: (first record not rendered, end of those before it).

        `sizes`: gets the size of each record that is rendered, as from `measure`; then `out` must not be empty.
        """
