"""The last message of every key, as one file: a snapshot of a log, seen as a table.

When the file is opened, one scan of the log finds the offsets of the latest messages (`storage.latest`). They are then
measured and rendered as the messages of any other view, through a filter of offsets; segments without any of them are
not read again, and batches without any are not decoded. Nothing that happens to the log later changes the file: new
messages are not in it, and once a truncation has taken messages that it shows, reading it is an error, because those
that were the latest before them are not in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kafkafs.selection.latest_messages import ChosenOffsets
from kafkafs.view_index.extent import Extent
from kafkafs.view_index.index import ViewIndex
from kafkafs.view_index.workbench import Rendition
from kafkafs.views.handle import CopyingHandle, Handle, read_parts
from kafkafs.views.layout import Layout, Run
from kafkafs.views.plans import RenderedPlan, append_run
from kafkafs.views.spans import Span
from storage.errors import SegmentGone
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from storage.latest.offset_map import Int64s
    from storage.log.snapshot import LogSnapshot

Find = Callable[["LogSnapshot"], "Int64s"]
"""The offsets of the latest messages in a snapshot, ascending."""


class LatestPlan(RenderedPlan):
    """The plan of one opening of a file: the first span that is added finds the messages of the whole snapshot."""

    def __init__(self, index: ViewIndex, rendition: Rendition, find: Find) -> None:
        """`find`: has decided about isolation, so the rendition is of all messages."""
        super().__init__(index, rendition)
        self._find = find
        self._offsets: Int64s | None = None
        self._runs = 0

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        """See Plan. A view that is complete never grows."""
        if self._offsets is None:
            self._offsets = self._find(snapshot)
        segment = span.segment
        slot = snapshot.segment_index(segment.base_offset) + 1
        behind = snapshot.segments[slot].base_offset if slot < len(snapshot.segments) else snapshot.log_end_offset
        first, last = self._offsets.searchsorted((segment.base_offset, behind)).tolist()
        if first == last:
            return NO_TIMESTAMP
        extent = Extent(segment, self._rendition, ChosenOffsets(self._offsets[first:last]), span.start)
        self._index.extend(extent, snapshot, span.end)
        append_run(runs, segment, extent, 0, extent.pieces.size)
        self._runs = len(runs)
        return extent.pieces.greatest_timestamp

    def kept(self, snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        """See Plan. SegmentGone if a truncation has taken any of them."""
        kept = super().kept(snapshot, runs)
        if len(kept) < self._runs:
            raise SegmentGone(
                "the log was truncated while this file was open: some of the messages in it are gone",
                advice="Open it again",
            )
        return kept


def held_bytes(layout: Layout) -> int:
    """The memory of the offsets in a layout that a LatestPlan has made."""
    filters = (run.extent.wanted for run in layout.runs if run.extent is not None)
    return sum(wanted.offsets.nbytes for wanted in filters if isinstance(wanted, ChosenOffsets))


class LatestHandle(CopyingHandle):
    """Several open files of fixed sizes, one after the other, as one."""

    direct_io = True
    keep_cache = False

    def __init__(self, parts: Sequence[Handle]) -> None:
        """Takes the parts over: `close` closes them."""
        self._parts = parts
        self._ends = list(accumulate(part.size for part in parts))

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_into(self, address: int, offset: int, size: int) -> int:
        return read_parts(address, offset, min(offset + size, self.size), self._part_at)

    def _part_at(self, position: int) -> tuple[Handle, int, int]:
        number = bisect_right(self._ends, position)
        start = self._ends[number - 1] if number else 0
        return self._parts[number], position - start, self._ends[number]

    def close(self) -> None:
        for part in self._parts:
            part.close()
