"""The intact batches of one segment, as columns, and the bytes between them.

A batch is intact if it is whole, has a right CRC and an offset of its segment. If a batch has an unknown magic and a
right CRC, only the magic's byte is wrong: it was written as v2, and is read as v2.
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
from storage.format.batches import MAGIC_AT, MOST_BATCH_BYTES, BatchTable, header_of
from storage.format.decoder import Decoder
from storage.log.intact import COUNTED, Break, walk
from storage.log.segment import LargeBatch, Segment
from storage.log.segment_check import has_undefined_magic
from storage.progress import Progress
from storage.types import NO_TIMESTAMP

UNDECIDED: Final = "undecided: "  # the beginning of reasons that nobody can decide
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
    """A range of a segment's intact batches, `first` to below `last`, which are contiguous in the file."""

    first: int
    last: int
    position: int
    size_bytes: int


class IntactBatches:
    """The intact batches of one segment, in file order: `table`, where `base` also has the first offsets of old
    compressed message sets. `kept`: which of them belong to the log. `breaks`: the bytes between them."""

    def __init__(self, segment: Segment, end_offset: int, progress: Progress) -> None:
        self.segment = segment
        self.breaks: list[Break] = []
        self.unavailable: str | None = None  # why the tier cannot deliver the rest of this segment
        parts: list[BatchTable] = []
        repaired: list[int] = []
        seen = 0

        def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
            nonlocal seen
            part = table.slice(0, rows).copy()
            if (part.base_offset < 0).any():
                part.base_offset[:] = _first_offsets(data, table, rows, origin)
            parts.append(part)
            if has_undefined_magic(segment.log, table, rows):
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
        """Mark these rows as not belonging to the log, or as undecided."""
        self._left_out.append((rows & self.kept, reason))
        self.kept = self.kept & ~rows

    @property
    def is_misnamed(self) -> bool:
        """Whether the file's name has another base offset."""
        parsed = names.parse_segment_file(self.segment.log.path.name)
        return parsed is not None and parsed.offset != self.segment.base_offset

    @property
    def first_offset(self) -> int:
        """The first offset of the kept batches. IndexError if there are none."""
        return int(self.base[self.kept][0])

    @property
    def last_offset(self) -> int:
        """The last offset of the kept batches. IndexError if there are none."""
        return int(self.last[self.kept][-1])

    @property
    def times(self) -> tuple[int, int] | None:
        """The least and the greatest timestamp of the kept batches; None if there are none."""
        stamps = self.table.max_timestamp[self.kept]
        stamps = stamps[stamps > NO_TIMESTAMP]
        return (int(stamps.min()), int(stamps.max())) if len(stamps) else None

    def rows_beyond_gaps(self) -> list[int]:
        """The kept batches that follow another one in the file, but not in their offsets."""
        rows = np.flatnonzero(self.kept)
        beyond = self.base[rows[1:]] > self.last[rows[:-1]] + 1
        return [int(row) for row in rows[1:][beyond & (self.position[rows[1:]] == self.end[rows[:-1]])]]

    def kept_table(self, rows: Flags | None = None) -> BatchTable:
        """The headers of the kept batches, or of these rows."""
        chosen = self.kept if rows is None else rows
        return BatchTable(np.ascontiguousarray(self.table.data[:, : len(chosen)][:, chosen]), int(chosen.sum()))

    def kept_runs(self, *, split: bool = False) -> Iterator[BatchRun]:
        """The kept batches, in parts of about a megabyte. `split`: no part has gaps in its offsets."""
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
        """The bytes of a run, ready to be appended; for a large batch, which is alone in its run, also its header."""
        if run.size_bytes > MOST_BATCH_BYTES:
            large = LargeBatch(self.segment.log, run.position, run.size_bytes, bool(self.repaired[run.first]))
            return large, header_of(large.head(), 0, run.size_bytes)
        data = self.segment.log.read(run.position, run.size_bytes)
        if self.repaired[run.first]:
            data = memoryview(bytes(data[:MAGIC_AT]) + _KNOWN_MAGIC + bytes(data[MAGIC_AT + 1 :]))
        return data, None

    def damages(self) -> list[UncopiedBytes]:
        """Breaks, and intact batches that were left out as undecided, in file order."""
        breaks = (damage for damage in self.breaks if damage.fault not in COUNTED)
        path = self.segment.log.path
        damages = [
            UncopiedBytes(
                path, damage.position, damage.end, damage.fault.value + (damage.behind if damage.undecided else "")
            )
            for damage in breaks
        ]
        reasons = self.reasons("offset {} contradicts those around it")
        for row in np.flatnonzero(~self.kept).tolist():
            position, reason = int(self.position[row]), reasons[row].format(int(self.base[row]))
            if self.is_unexplained[row]:
                damages.append(UncopiedBytes(path, position, position + int(self.size[row]), reason))
        if self.unavailable is not None:
            end = max([0, *(damage.end for damage in damages), *self.end.tolist()])
            damages.append(UncopiedBytes(path, end, self.segment.size, self.unavailable))
        return sorted(damages, key=lambda damage: damage.position)

    @property
    def is_unexplained(self) -> Flags:
        """The batches that were left out although no rule says to which log they belong."""
        explained = np.zeros(len(self.kept), np.bool_)
        for rows, reason in self._left_out:
            explained |= rows & (not reason.startswith(UNDECIDED))
        return ~self.kept & ~explained

    @property
    def reason_of_another_log(self) -> str | None:
        """The reason why undamaged batches were left out; None if none were."""
        return next((reason for rows, reason in self._left_out if rows.any()), None)

    def reasons(self, otherwise: str) -> list[str]:
        """For each batch the reason why it was left out, or `otherwise`."""
        reasons = [otherwise] * len(self.kept)
        for rows, reason in self._left_out:
            for row in np.flatnonzero(rows).tolist():
                reasons[row] = reason
        return reasons


def _first_offsets(data: memoryview, table: BatchTable, rows: int, origin: int) -> Int64s:
    """The first offsets of batches, including the old formats' compressed sets, whose headers have only their last
    offset."""
    first = np.where(table.base_offset[:rows] < 0, table.last_offset[:rows], table.base_offset[:rows])
    decoder = Decoder(verify_crc=False)
    row = 0
    while row < rows:
        block = decoder.decode(data, table, row, rows, origin=origin, control=True)
        np.minimum.at(first, block.batch, block.offset)
        row = block.next_row + (block.damage is not None)
    return first
