"""Lines that come again: what a failed write has put into some partitions already is not put there twice.

A topic's lines go to their partitions batch by batch. When one partition fails, lines behind the first that is missing
may be in the logs of others. The short write counts the lines before that one only, so a tool that goes on writes the
others again; then they are known by their order and content.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from storage.format.block import RecordColumn
from storage.format.record_columns import RecordColumns

Content = tuple[bytes | None, bytes | None, bytes]  # key, value, headers


class Ahead:
    """Rows that are in a log, of those that are expected to come next. Not thread-safe."""

    def __init__(self) -> None:
        self._there: dict[int, Content] = {}  # by number, counted from the next row on

    def __bool__(self) -> bool:
        return bool(self._there)

    def missing(self, columns: RecordColumns) -> npt.NDArray[np.int64]:
        """The rows that are in no log yet. Rows that are not those expected are all missing, and others forgotten."""
        there = [row for row in self._there if row < len(columns)]
        if any(_content(columns, row) != self._there[row] for row in there):
            self._there.clear()
            there = []
        return np.delete(np.arange(len(columns), dtype=np.int64), there)

    def forget(self) -> None:
        """What comes next is something else, even where it looks the same."""
        self._there.clear()

    def note(self, columns: RecordColumns, count: int, there: Collection[int]) -> None:
        """The first `count` rows are accounted for; of the others those in `there`, and those known before that have
        not come yet, are in a log."""
        known = {row - count: content for row, content in self._there.items() if row >= max(count, len(columns))}
        self._there = known | {row - count: _content(columns, row) for row in there if row >= count}


def _content(columns: RecordColumns, row: int) -> Content:
    return (
        columns.key(row),
        columns.value(row),
        columns.field(RecordColumn.HEADERS_START, RecordColumn.HEADERS_LENGTH, row) or b"",
    )
