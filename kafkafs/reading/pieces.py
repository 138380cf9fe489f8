"""Pieces: how a stretch of one segment's file becomes a stretch of rendered bytes. Values only, no I/O.

A piece is about 512 KiB of rendered bytes made from whole batches (smaller ones cost more in calls than they save). A
batch that renders to more than MOST_LINE_BYTES is cut between messages into several pieces: they have the same file
span, and each skips the bytes of the ones before it. A message that is longer by itself takes one byte, which stands
for its error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.formats.format import MOST_LINE_BYTES
from storage.format.batches import MOST_BATCH_BYTES
from storage.types import NO_TIMESTAMP

PIECE_BYTES = 512 << 10  # rendered
PIECE_SPAN_BYTES = 1 << 20  # of the file: tombstones and aborted messages render to little or nothing
GROUP_PIECES = 8  # rendered at a time for a sequential reader: fewer, longer steps
GROUP_BYTES = 8 << 20  # of the file, and rendered

NOT_SPLIT = -1  # `Piece.skip` of a piece of whole batches
NO_CRC = -1  # `Piece.crc` of damage: of an unreadable batch, or where no batch begins
NO_LEAST = 2**63 - 1  # least and greatest timestamp where there is no message
NO_GREATEST = -(2**63 - 1)


class Piece(NamedTuple):
    """One piece. Positions and sizes in bytes; it is made from the whole batches from `position` to `file_end`."""

    end: int  # rendered position after it, counted from where the pieces begin
    size: int  # rendered
    position: int
    file_end: int
    skip: int  # in a part of a batch: rendered bytes of earlier parts; otherwise NOT_SPLIT
    base_offset: int  # of the batch at `position`: checked before use, together with its CRC
    crc: int
    least: int  # timestamps; NO_LEAST, NO_GREATEST when it has no message; for damage what its header names
    greatest: int
    records: int

    @property
    def start(self) -> int:
        """Rendered position of its first byte."""
        return self.end - self.size


END, SIZE, POSITION, FILE_END, SKIP, BASE_OFFSET, CRC, LEAST, GREATEST, RECORDS = range(len(Piece._fields))
COLUMNS = len(Piece._fields)


class Pieces:
    """All pieces of a stretch from the file position `start` to `file_end`, in order. Immutable.

    `columns`: int64, shape (COLUMNS, pieces), see Piece.
    """

    __slots__ = ("columns", "file_end", "is_damaged", "may_fail", "size", "start")

    def __init__(self, columns: npt.NDArray[np.int64], start: int, file_end: int) -> None:
        self.columns = columns
        self.start = start
        self.file_end = file_end
        self.size = int(columns[END, -1]) if columns.shape[1] else 0
        self.is_damaged = bool((columns[CRC] == NO_CRC).any())
        # Reads may end with an error: at damage, or at a message that is too long in a part of a batch.
        self.may_fail = self.is_damaged or bool((columns[SKIP] != NOT_SPLIT).any())

    @staticmethod
    def none(start: int) -> Pieces:
        """Nothing measured yet."""
        return Pieces(np.empty((COLUMNS, 0), dtype=np.int64), start, start)

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def piece(self, row: int) -> Piece:
        return Piece._make(self.columns[:, row].tolist())

    def group(self, row: int, start: int, end: int) -> Piece:
        """The piece `row` and those of its group that lie between the rendered positions `start` and `end`, as one.

        The piece alone if one of them is damaged or a part of a batch, or if they are large.
        """
        low = row - row % GROUP_PIECES
        high = min(low + GROUP_PIECES, len(self))
        ends = self.columns[END, low:high].tolist()
        while low < row and ends[0] <= start:
            del ends[0]
            low += 1
        while high - 1 > row and ends[-2] >= end:
            del ends[-1]
            high -= 1
        part = self.columns[:, low:high]
        first = Piece._make(part[:, 0].tolist())
        file_end = int(part[FILE_END, -1])
        is_special = (part[SKIP] != NOT_SPLIT).any() or (part[CRC] == NO_CRC).any()
        if is_special or max(file_end - first.position, ends[-1] - first.start) > GROUP_BYTES:
            return self.piece(row)
        return first._replace(
            end=ends[-1],
            size=ends[-1] - first.start,
            file_end=file_end,
            least=int(part[LEAST].min()),
            greatest=int(part[GREATEST].max()),
            records=int(part[RECORDS].sum()),
        )

    def may_fail_in(self, start: int, end: int) -> bool:
        """Whether reads between these rendered positions may end with an error."""
        if not self.may_fail or start >= end:
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
        """-1 when no message has one."""
        return self.greatest_in(0, len(self))

    def greatest_in(self, first: int, last: int) -> int:
        """The greatest timestamp in the readable pieces of [first, last); -1 when no message has one."""
        greatest = self.columns[GREATEST, first:last][self.columns[CRC, first:last] != NO_CRC]
        return max(int(greatest.max()), NO_TIMESTAMP) if len(greatest) else NO_TIMESTAMP

    @property
    def memory_bytes(self) -> int:
        return self.columns.nbytes


_NOTHING = np.array(Piece(0, 0, -1, 0, NOT_SPLIT, 0, 0, 0, 0, 0), np.int64).reshape(COLUMNS, 1)


def can_be_measured(columns: npt.NDArray[np.int64], file_end: int) -> bool:
    """Whether these may be the pieces of an undamaged file of `file_end` bytes: one behind the other, none larger than
    a piece is made. Who reads them takes that much memory, and copies by these positions."""
    before = np.concatenate((_NOTHING, columns), axis=1)[:, :-1]
    end, size, position, behind, skip, _, crc, _, _, records = columns
    continues = position == before[POSITION]  # the batch that the piece before is of
    return bool(
        ((size > 0) & (size <= MOST_LINE_BYTES + PIECE_BYTES) & (end == before[END] + size)).all()
        and ((position >= 0) & (position < behind) & (behind <= file_end)).all()
        and (behind - position <= MOST_BATCH_BYTES).all()
        and np.where(continues, before[SKIP] != NOT_SPLIT, position >= before[FILE_END]).all()
        and np.where(continues, skip == before[SKIP] + before[SIZE], (skip == NOT_SPLIT) | (skip == 0)).all()
        and ((crc >= 0) & (records >= 0) & (records <= end)).all()
    )


class PieceBuilder:
    """Adds pieces after the existing ones; small neighbours are merged."""

    def __init__(self, pieces: Pieces) -> None:
        self._before = pieces
        self._rows: list[Piece] = []
        if len(pieces):
            self._rows.append(pieces.piece(len(pieces) - 1))

    def add(self, piece: Piece) -> None:
        """`piece.end` is ignored; pieces without rendered bytes are left out."""
        if piece.size == 0:
            return
        if not self._rows:
            self._rows.append(piece._replace(end=piece.size))
            return
        last = self._rows[-1]
        end = last.end + piece.size
        if (
            last.size + piece.size > PIECE_BYTES
            or piece.file_end - last.position > PIECE_SPAN_BYTES
            or last.skip != NOT_SPLIT
            or piece.skip != NOT_SPLIT
            or NO_CRC in (last.crc, piece.crc)
        ):
            self._rows.append(piece._replace(end=end))
            return
        self._rows[-1] = last._replace(
            end=end,
            size=last.size + piece.size,
            file_end=piece.file_end,
            least=min(last.least, piece.least),
            greatest=max(last.greatest, piece.greatest),
            records=last.records + piece.records,
        )

    def build(self, file_end: int) -> Pieces:
        """All pieces, up to the file position `file_end`."""
        kept = self._before.columns[:, : max(0, len(self._before) - 1)]
        added = np.array(self._rows, dtype=np.int64).reshape(-1, COLUMNS).T
        columns = np.ascontiguousarray(np.concatenate((kept, added), axis=1))
        return Pieces(columns, self._before.start, file_end)
