"""The intact batches of one segment, as columns, and the bytes between them.

A batch is intact if it is whole, has a right CRC and an offset of its segment. A batch of an unknown magic whose CRC is
right was written as v2 (only the byte of the magic is wrong), and is read as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import TierUnavailable
from storage.files import names
from storage.format.batches import MAGIC_AT, MAX_MAGIC, MOST_BATCH_BYTES, BatchTable, header_of
from storage.format.decoder import Decoder
from storage.log.intact import Break, BreakReason, walk
from storage.log.segment import LargeBatch, Segment
from storage.progress import Progress
from storage.types import NO_TIMESTAMP

UNDECIDED: Final = "undecided: "  # how the reasons begin for what nobody can know
_WINDOW = 1 << 20
_KNOWN_MAGIC = b"\x02"

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class UncopiedBytes:
    """Bytes of a .log from `position` to `end` that do not count, and why."""

    path: Path
    position: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchRun:
    """The batches `first` to below `last` of a segment's intact ones, which are contiguous in the file."""

    first: int
    last: int
    position: int
    size_bytes: int


class IntactBatches:
    """The intact batches of one segment, in file order: `table`, where `base` also has the first offsets of old
    compressed message sets. `kept`: which of them belong to the log. `breaks`: what lies between them."""

    def __init__(self, segment: Segment, end_offset: int, progress: Progress) -> None:
        self.segment = segment
        self.breaks: list[Break] = []
        self.unavailable: str | None = None  # why a tier does not give what follows in this segment
        parts: list[BatchTable] = []
        repaired: list[int] = []
        seen = 0

        def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
            nonlocal seen
            part = table.slice(0, rows).copy()
            if (part.base_offset < 0).any():
                part.base_offset[:] = _first_offsets(data, table, rows, origin)
            parts.append(part)
            if rows == 1 and segment.log.read(int(part.position[0]) + MAGIC_AT, 1)[0] > MAX_MAGIC:
                repaired.append(seen)
            seen += rows
            progress.advance(int(part.size.sum()))

        def passed(broken: Break, _next_offset: int) -> None:
            self.breaks.append(broken)
            progress.advance(broken.end - broken.position)

        try:
            walk(segment, visit, passed, end_offset)
        except TierUnavailable as error:
            self.unavailable = f"{error.what}: {error.found}"
        self.table = BatchTable.concat(parts)
        self.position, self.size, self.end = self.table.position, self.table.size, self.table.end
        self.base, self.last = self.table.base_offset, self.table.last_offset
        self.repaired = np.zeros(seen, np.bool_)
        self.repaired[repaired] = True
        self.kept = np.ones(seen, np.bool_)
        self._left_out: list[tuple[Flags, str]] = []

    def leave_out(self, rows: Flags, reason: str) -> None:
        """These rows do not belong to the log, or nobody knows whether they do."""
        self._left_out.append((rows & self.kept, reason))
        self.kept = self.kept & ~rows

    @property
    def is_misnamed(self) -> bool:
        """Whether the file's name says another base offset."""
        parsed = names.parse_segment_file(self.segment.log.path.name)
        return parsed is not None and parsed.offset != self.segment.base_offset

    @property
    def first_offset(self) -> int:
        """Where the batches that are kept begin. IndexError without any."""
        return int(self.base[self.kept][0])

    @property
    def last_offset(self) -> int:
        """The last offset of the batches that are kept. IndexError without any."""
        return int(self.last[self.kept][-1])

    @property
    def times(self) -> tuple[int, int] | None:
        """The least and the greatest timestamp of the batches that are kept; None without any."""
        stamps = self.table.max_timestamp[self.kept]
        stamps = stamps[stamps > NO_TIMESTAMP]
        return (int(stamps.min()), int(stamps.max())) if len(stamps) else None

    def rows_beyond_gaps(self) -> list[int]:
        """The kept batches that follow the one before them in the file, but not in their offsets."""
        rows = np.flatnonzero(self.kept)
        beyond = self.base[rows[1:]] > self.last[rows[:-1]] + 1
        return [int(row) for row in rows[1:][beyond & (self.position[rows[1:]] == self.end[rows[:-1]])]]

    def kept_table(self, rows: Flags | None = None) -> BatchTable:
        """The headers of the batches that are kept, or of these rows."""
        chosen = self.kept if rows is None else rows
        return BatchTable(np.ascontiguousarray(self.table.data[:, : len(chosen)][:, chosen]), int(chosen.sum()))

    def kept_runs(self, *, split: bool = False) -> Iterator[BatchRun]:
        """The batches that are kept, in parts of about a megabyte. `split`: of each, the offsets have no gaps."""
        rows = np.flatnonzero(self.kept)
        first = 0
        for at in range(1, len(rows) + 1):
            row, start = rows[at - 1], rows[first]
            if (
                at == len(rows)
                or self.position[rows[at]] != self.end[row]
                or self.end[rows[at]] - self.position[start] > _WINDOW
                or self.repaired[row]
                or self.repaired[rows[at]]
                or (split and self.base[rows[at]] > self.last[row] + 1)
            ):
                begin = int(self.position[start])
                yield BatchRun(int(start), int(row) + 1, begin, int(self.end[row]) - begin)
                first = at

    def read(self, run: BatchRun) -> tuple[memoryview | LargeBatch, BatchTable | None]:
        """The bytes of a run, ready to be appended, and the header of a large batch, which is alone in its run."""
        if run.size_bytes > MOST_BATCH_BYTES:
            large = LargeBatch(self.segment.log, run.position, run.size_bytes, bool(self.repaired[run.first]))
            return large, header_of(large.head(), 0, run.size_bytes)
        data = self.segment.log.read(run.position, run.size_bytes)
        if self.repaired[run.first]:
            data = memoryview(bytes(data[:MAGIC_AT]) + _KNOWN_MAGIC + bytes(data[MAGIC_AT + 1 :]))
        return data, None

    def damages(self) -> list[UncopiedBytes]:
        """Breaks, and intact batches that are left out although nobody knows better, in file order."""
        breaks = (one for one in self.breaks if one.fault is not BreakReason.ORDER)
        path = self.segment.log.path
        damages = [
            UncopiedBytes(path, one.position, one.end, one.fault.value + (one.behind if one.undecided else ""))
            for one in breaks
        ]
        reasons = self.reasons("offset {} contradicts those around it")
        for row in np.flatnonzero(~self.kept).tolist():
            position, reason = int(self.position[row]), reasons[row].format(int(self.base[row]))
            if self.is_unexplained[row]:
                damages.append(UncopiedBytes(path, position, position + int(self.size[row]), reason))
        if self.unavailable is not None:
            end = max([0, *(one.end for one in damages), *self.end.tolist()])
            damages.append(UncopiedBytes(path, end, self.segment.size, self.unavailable))
        return sorted(damages, key=lambda one: one.position)

    @property
    def is_unexplained(self) -> Flags:
        """The batches that are left out without a rule that says whose they are."""
        explained = np.zeros(len(self.kept), np.bool_)
        for rows, reason in self._left_out:
            explained |= rows & (not reason.startswith(UNDECIDED))
        return ~self.kept & ~explained

    @property
    def reason_of_another_log(self) -> str | None:
        """Why batches are left out that are not damaged; None where there are none."""
        return next((reason for rows, reason in self._left_out if rows.any()), None)

    def reasons(self, otherwise: str) -> list[str]:
        """For each batch why it is left out, if it is."""
        reasons = [otherwise] * len(self.kept)
        for rows, reason in self._left_out:
            for row in np.flatnonzero(rows).tolist():
                reasons[row] = reason
        return reasons


def _first_offsets(data: memoryview, table: BatchTable, rows: int, origin: int) -> Int64s:
    """First offsets of batches, including the old formats' compressed sets, whose headers have only their last
    offset."""
    first = np.where(table.base_offset[:rows] < 0, table.last_offset[:rows], table.base_offset[:rows])
    decoder = Decoder(verify_crc=False)
    row = 0
    while row < rows:
        block = decoder.decode(data, table, row, rows, origin=origin, control=True)
        np.minimum.at(first, block.batch, block.offset)
        row = block.next_row + (block.damage is not None)
    return first
