"""Pieces: the rendered bytes of a segment's blocks in one rendition. Values only, no I/O.

A rendition has a size for each block; blocks that render to nothing are left out. Only a block that renders to more
than MOST_LINE_BYTES is cut, between messages, into several pieces: they have the same file span, and each skips the
bytes of the ones before it. A message that is longer by itself takes one byte, which stands for its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.formats.format import MOST_LINE_BYTES
from kafkafs.reading.blocks import CRC, FILE_END, GREATEST, NO_CRC, POSITION, RENDERED, BlockTable, Int64s
from storage.types import NO_TIMESTAMP

GROUP_PIECES: Final = 32  # rendered at a time for a sequential reader: fewer, longer steps
GROUP_BYTES: Final = 4 << 20  # of the file, and rendered

NOT_SPLIT: Final = -1  # `Piece.skip` of a piece of whole batches


class Piece(NamedTuple):
    """A piece. Positions and sizes in bytes; it is made from the whole batches from `position` to `file_end`."""

    position: int
    file_end: int
    base_offset: int  # of the batch at `position`: checked before use, together with its CRC
    crc: int
    least: int  # timestamps of the block, of which the piece may show less; see BlockTable
    greatest: int
    end: int  # rendered position after it, counted from where the pieces begin
    size: int  # rendered
    skip: int  # in a part of a block: rendered bytes of earlier parts; otherwise NOT_SPLIT

    @property
    def start(self) -> int:
        """Rendered position of its first byte."""
        return self.end - self.size


_OF_BLOCK: Final = 6  # columns that are those of the block
END, SIZE, SKIP = range(6, 9)
_COLUMNS: Final = len(Piece._fields)

Split = Callable[[int, int], list[int]]
"""The rendered positions where the batches between two positions of the file are cut; the last is their end."""


class PieceSizes(NamedTuple):
    """Of each piece the row of its block, ascending; its rendered size, and how much it skips (see Piece). `file_end`:
    the file position up to which the pieces go."""

    rows: Int64s
    sizes: Int64s
    skips: Int64s
    file_end: int

    def until(self, table: BlockTable) -> PieceSizes:
        """The sizes of the whole blocks of a table."""
        ends = table.columns[FILE_END]
        blocks = int(ends.searchsorted(self.file_end, side="right"))
        kept = int(self.rows.searchsorted(blocks))
        file_end = int(ends[blocks - 1]) if blocks else 0
        return PieceSizes(self.rows[:kept], self.sizes[:kept], self.skips[:kept], file_end)

    def can_be(self, table: BlockTable) -> bool:
        """Whether these may be the sizes of the undamaged blocks of a table. This check protects readers, which
        allocate memory by these sizes and copy by these positions."""
        rows, sizes, skips, file_end = self
        blocks = int(table.columns[FILE_END].searchsorted(file_end, side="right"))
        if file_end != (table.columns[FILE_END, blocks - 1] if blocks else 0):
            return False
        if not len(rows) == len(sizes) == len(skips):
            return False
        goes_on = np.diff(rows, prepend=-1) == 0
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))[:-1]
        starts = np.maximum.accumulate(np.where(goes_on, 0, before)) if len(rows) else before
        is_part = goes_on | np.append(goes_on[1:], [False])
        return bool(
            ((rows >= 0) & (rows < blocks)).all()
            and (np.diff(rows) >= 0).all()
            and ((sizes > 0) & (sizes <= MOST_LINE_BYTES)).all()
            and np.where(is_part, skips == before - starts, (skips == NOT_SPLIT) | (skips == 0)).all()
        )


class Pieces:
    """All pieces of a stretch from the file position `start` to `file_end`, in order. Immutable.

    `columns`: int64, shape (fields of Piece, pieces).
    """

    __slots__ = ("_may_fail", "columns", "file_end", "rows", "size", "start")

    def __init__(self, table: BlockTable, sizes: PieceSizes, start: int) -> None:
        rows = sizes.rows
        self._may_fail: bool | None = None  # not known yet
        self.rows = rows
        self.columns = columns = np.empty((_COLUMNS, len(rows)), np.int64)
        columns[:_OF_BLOCK] = table.columns[:_OF_BLOCK, rows]
        columns[SIZE], columns[SKIP] = sizes.sizes, sizes.skips
        np.cumsum(sizes.sizes, out=columns[END])
        np.minimum(columns[FILE_END], sizes.file_end, out=columns[FILE_END])
        self.start = start
        self.file_end = sizes.file_end
        self.size = int(columns[END, -1]) if len(rows) else 0

    @staticmethod
    def none(start: int) -> Pieces:
        """Nothing measured yet."""
        none = Pieces.__new__(Pieces)
        none._may_fail = False
        none.rows, none.columns, none.start, none.file_end, none.size = _NO_ROWS, _NO_COLUMNS, start, start, 0
        return none

    @property
    def is_damaged(self) -> bool:
        return bool((self.columns[CRC] == NO_CRC).any())

    @property
    def sizes(self) -> PieceSizes:
        """The sizes from which these pieces are made, together with the table."""
        return PieceSizes(self.rows, self.columns[SIZE], self.columns[SKIP], self.file_end)

    def until(self, table: BlockTable, file_end: int) -> Pieces:
        """These pieces, measured up to the later position `file_end`, without a piece in between."""
        return Pieces(table, self.sizes._replace(file_end=file_end), self.start)

    def extended(self, table: BlockTable, of: Int64s, found: Int64s, file_end: int, split: Split) -> Pieces:
        """These pieces and the ones that a pass has measured after them, up to the position `file_end`. `found`: rows
        of FoundBlocks; `of`: their blocks; `split`: cuts blocks that are too large."""
        kept, sizes = len(self), found[:, RENDERED]
        if kept and len(of) and int(of[0]) == int(self.rows[-1]):
            # The block goes on.
            kept = int(self.rows.searchsorted(self.rows[-1]))
            of = np.concatenate((self.rows[kept:], of))
            sizes = np.concatenate((self.columns[SIZE, kept:], sizes))
        if len(of) > 1:
            starts = np.flatnonzero(np.diff(of, prepend=-1))
            of, sizes = of[starts], np.add.reduceat(sizes, starts)
        shown = sizes > 0
        rows, totals = of[shown], sizes[shown]
        skips = np.full(len(rows), NOT_SPLIT, np.int64)
        was_split = kept < len(self) and bool((self.columns[SKIP, kept:] != NOT_SPLIT).any())
        large = totals > MOST_LINE_BYTES
        if was_split and len(large):
            large[0] = True
        for slot in np.flatnonzero(large)[::-1].tolist():
            columns = table.columns[:, rows[slot]]
            cuts = np.array(split(int(columns[POSITION]), min(int(columns[FILE_END]), file_end)), np.int64)
            before = np.concatenate((np.zeros(1, np.int64), cuts[:-1]))
            rows = np.concatenate((rows[:slot], np.full(len(cuts), rows[slot]), rows[slot + 1 :]))
            totals = np.concatenate((totals[:slot], cuts - before, totals[slot + 1 :]))
            skips = np.concatenate((skips[:slot], before, skips[slot + 1 :]))
        if kept:
            rows = np.concatenate((self.rows[:kept], rows))
            totals = np.concatenate((self.columns[SIZE, :kept], totals))
            skips = np.concatenate((self.columns[SKIP, :kept], skips))
        return Pieces(table, PieceSizes(rows, totals, skips, file_end), self.start)

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def piece(self, row: int) -> Piece:
        return Piece._make(self.columns[:, row].tolist())

    def within(self, start: int, end: int) -> Iterator[Piece]:
        """The undamaged pieces of whole blocks between these rendered positions."""
        for row in range(self.row_at(start), self.row_at(end)):
            piece = self.piece(row)
            if piece.start >= start and piece.skip == NOT_SPLIT and piece.crc != NO_CRC:
                yield piece

    def group(self, row: int, start: int, end: int) -> Piece:
        """The piece `row`, joined with the pieces of its group between the rendered positions `start` and `end`. A
        damaged piece or a part of a block stays alone."""
        pieces = GROUP_PIECES
        while pieces > 1:
            low = row - row % pieces
            part = self.columns[:, low : low + pieces]
            part = part[:, (part[END] > start) & (part[END] - part[SIZE] < end)]
            first = Piece._make(part[:, 0].tolist())
            last = Piece._make(part[:, -1].tolist())
            is_special = (part[SKIP] != NOT_SPLIT).any() or (part[CRC] == NO_CRC).any()
            if not is_special and max(last.file_end - first.position, last.end - first.start) <= GROUP_BYTES:
                return first._replace(end=last.end, size=last.end - first.start, file_end=last.file_end)
            pieces //= 2
        return self.piece(row)

    def may_fail_in(self, start: int, end: int) -> bool:
        """Whether reads between these rendered positions may end with an error: at damage, or at a message that is too
        long in a part of a block."""
        if self._may_fail is None:
            self._may_fail = self.is_damaged or bool((self.columns[SKIP] != NOT_SPLIT).any())
        if not self._may_fail or start >= end:
            return False
        part = self.columns[:, self.row_at(start) : self.row_at(end - 1) + 1]
        return bool(((part[CRC] == NO_CRC) | (part[SKIP] != NOT_SPLIT)).any())

    def row_at(self, rendered: int) -> int:
        """The piece that holds the byte at this rendered position; the number of pieces if the position is the end."""
        return int(self.columns[END].searchsorted(rendered, side="right"))

    def row_of(self, position: int) -> int:
        """The first piece that ends after this file position."""
        return int(self.columns[FILE_END].searchsorted(position, side="right"))

    def rendered_start(self, row: int) -> int:
        """The rendered position where the piece `row` begins; the whole size for the row after the last."""
        return int(self.columns[END, row] - self.columns[SIZE, row]) if row < len(self) else self.size

    @property
    def greatest_timestamp(self) -> int:
        """The greatest timestamp of the messages; -1 when no message has one."""
        return self.greatest_in(0, len(self))

    def greatest_in(self, first: int, last: int) -> int:
        """The greatest timestamp in the readable pieces of [first, last); -1 when no message has one."""
        greatest = self.columns[GREATEST, first:last][self.columns[CRC, first:last] != NO_CRC]
        return max(int(greatest.max()), NO_TIMESTAMP) if len(greatest) else NO_TIMESTAMP

    @property
    def memory_bytes(self) -> int:
        return self.columns.nbytes + self.rows.nbytes


_NO_ROWS: Final = np.empty(0, np.int64)
_NO_COLUMNS: Final = np.empty((_COLUMNS, 0), np.int64)


def line_ends(sizes: npt.NDArray[np.int64]) -> Int64s:
    """Where the lines of a large block end, from their sizes; a line that is too long takes one byte."""
    return np.cumsum(np.where(sizes > MOST_LINE_BYTES, 1, sizes))


def line_cuts(sizes: npt.NDArray[np.int64]) -> list[int]:
    """The rendered positions at which a large block is cut between records, before and after each that is too long; the
    last one is its end."""
    ends = line_ends(sizes)
    too_long = ends[sizes > MOST_LINE_BYTES]
    edges = np.concatenate((np.sort(np.concatenate((too_long - 1, too_long))), ends[-1:]))
    cuts = [0]
    while cuts[-1] < ends[-1]:
        fitting = ends[ends.searchsorted(cuts[-1] + MOST_LINE_BYTES, side="right") - 1]
        cuts.append(int(min(fitting, edges[edges.searchsorted(cuts[-1], side="right")])))
    return cuts[1:]
