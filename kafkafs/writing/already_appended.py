"""Lines that are written again: those that a failed write has already put into some partitions are not appended twice.

A topic's lines go to their partitions batch by batch. When one partition fails, lines after the first missing one may
be in the logs of others. The short write counts only the lines before that one, so a tool that continues writes the
others again; they are then recognised by their order and content.
"""

from __future__ import annotations

from collections.abc import Collection

from storage.format.block import RecordColumn, RecordColumns

Content = tuple[bytes | None, bytes | None, bytes]  # key, value, headers


class AlreadyAppended:
    """The rows that are already in a log, among those that are expected next. Not thread-safe."""

    def __init__(self) -> None:
        self._there: dict[int, Content] = {}  # by number, counted from the next expected row

    def __bool__(self) -> bool:
        return bool(self._there)

    def rows_of(self, columns: RecordColumns) -> list[int]:
        """Those of these rows that are already in a log. If any of them differs from what is expected there,
        none counts, and all are forgotten."""
        there = [row for row in self._there if row < len(columns)]
        if any(_content(columns, row) != self._there[row] for row in there):
            self._there.clear()
            return []
        return there

    def forget(self) -> None:
        """The next rows are others, even where they look the same."""
        self._there.clear()

    def note(self, columns: RecordColumns, count: int, there: Collection[int]) -> None:
        """The first `count` rows are done. Of the others, those in `there` are in a log, and so are those noted before
        that have not come yet."""
        known = {row - count: content for row, content in self._there.items() if row >= max(count, len(columns))}
        self._there = known | {row - count: _content(columns, row) for row in there if row >= count}


def _content(columns: RecordColumns, row: int) -> Content:
    return (
        columns.key(row),
        columns.value(row),
        columns.field(RecordColumn.HEADERS_START, RecordColumn.HEADERS_LENGTH, row) or b"",
    )
