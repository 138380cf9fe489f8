"""A layout: where each byte of a view comes from. Immutable, so readers need no lock; growing views get new ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkafs.view_index.extent import Extent
from kafkafs.views.spans import Cursor
from storage.log.segment import Segment
from storage.types import NO_TIMESTAMP


class Run(NamedTuple):
    """Consecutive bytes of a view, from the view's position `start` to `end`.

    In a rendered view they come from an extent, from its rendered position `source_start` on; in a `.log` view from the
    file itself, from the file position `source_start` on (`extent` is None). `file_end`: the run has all messages of
    the view up to this file position of its segment, and may be extended from there; -1 if it may not.
    """

    start: int
    end: int
    segment: Segment
    extent: Extent | None
    source_start: int
    file_end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All runs of a view, in order and without gaps. `cursor`: what they cover. `greatest`: the greatest timestamp in
    them, -1 if there is none or it is unknown. `complete`: nothing appended later can belong to it (`Selection`).
    `unlisted`: segments that the log no longer lists, whose files may vanish at any time."""

    cursor: Cursor
    runs: tuple[Run, ...] = ()
    greatest: int = NO_TIMESTAMP
    complete: bool = False
    unlisted: frozenset[Segment] = frozenset()
    starts: tuple[int, ...] = field(default=(), compare=False)

    @staticmethod
    def of(
        cursor: Cursor, runs: Sequence[Run], greatest: int, complete: bool, unlisted: frozenset[Segment] = frozenset()
    ) -> Layout:
        return Layout(cursor, tuple(runs), greatest, complete, unlisted, tuple(run.start for run in runs))

    @property
    def size(self) -> int:
        """Bytes of the view."""
        return self.runs[-1].end if self.runs else 0

    @property
    def is_damaged(self) -> bool:
        """Whether there was damage when it was measured. `.log` views are bytes, so they never count as damaged."""
        return any(
            run.extent is not None
            and run.extent.pieces.is_damaged_in(run.source_start, run.source_start + run.end - run.start)
            for run in self.runs
        )

    def run_at(self, position: int) -> Run:
        """The run that holds the byte at `position`, which must be below `size`."""
        return self.runs[bisect_right(self.starts, position) - 1]
