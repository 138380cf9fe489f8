"""The interface of formats: records in columns to bytes, whose size is known beforehand. Nothing about files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock


class Steps(Protocol):
    """A program for the kernel (`kafkafs.formats.program.Program`)."""

    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def literals(self) -> bytes: ...


class Prepared(NamedTuple):
    """One record, ready for the kernel: the program, the record's cells, and the texts that columns behind those of a
    block point into."""

    program: Steps
    columns: NDArray[np.int64]
    extra: memoryview


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
        self, block: RecordBlock, out: memoryview, out_start: int = 0, first_row: int = 0
    ) -> tuple[int, int]:
        """Renders records from `first_row` on while they fit: (first record not rendered, end of those before it)."""

    def prepared(self, record: RecordBlock) -> Prepared:
        """A block of one record, to be rendered in parts (`kafkafs.formats.long_record`)."""
