"""Planning: from file spans to the runs of a rendered view, with as little measuring as will do.

A span that is a whole segment uses the view index, and makes it if need be. A part of a segment uses the index where it
is there, with the pieces at its edges measured for themselves; else the part alone is measured. A time range needs the
index of each segment that may hold it: pieces wholly inside the range are taken as they are, the others measured again
through a filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kafkafs.view_index.extent import Extent
from kafkafs.view_index.index import ViewIndex
from kafkafs.view_index.pieces import (
    CRC,
    END,
    FILE_END,
    GREATEST,
    LEAST,
    NO_CRC,
    OPEN_ABOVE,
    OPEN_BELOW,
    POSITION,
    Pieces,
    RecordFilter,
    may_lie_in,
)
from kafkafs.view_index.workbench import Rendition
from kafkafs.views.layout import Run
from kafkafs.views.spans import Span
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.log.timestamps import first_times_behind, greatest_timestamp, may_reach
from storage.types import NO_TIMESTAMP, TimeRange

_SKIP, _WHOLE, _PART = range(3)


class Raced(Exception):
    """Another thread has measured more than this snapshot shows: take a newer one."""


class Plan(Protocol):
    """How the spans of a range become runs."""

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        """Adds the runs of a span behind `runs`, or makes the last one longer. Returns the greatest timestamp in them,
        -1 if unknown. `grows`: the span's end is where the view will go on. When it raises (Raced too), `runs` is of
        no more use."""

    def kept(self, snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        """Runs that a truncation has left as they were, for the log as it is behind that. None is made longer."""

    def count(self, runs: Sequence[Run]) -> int | None:
        """How many messages are in these runs; None where they do not tell."""


def append_run(runs: list[Run], run: Run, size: int) -> None:
    """Puts `run`, of `size` bytes, behind the others; `run.start` and `run.end` are not looked at."""
    start = runs[-1].end if runs else 0
    if size or run.file_end >= 0:
        runs.append(run._replace(start=start, end=start + size))


class OffsetPlan:
    """Of a range of offsets, rendered."""

    def __init__(self, index: ViewIndex, rendition: Rendition) -> None:
        self._index = index
        self._rendition = rendition

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if continues(runs, span):
            return lengthen(self._index, snapshot, runs, span)
        is_whole = span.natural or span.end == snapshot.end_position(span.segment)
        if span.start == 0 and span.wanted is None and is_whole:
            extent = self._index.whole(snapshot, span.segment, self._rendition, span.end)
            return self._add_extent(runs, span, extent, grows=grows)
        held = self._index.held(snapshot, span.segment, self._rendition, span.end)
        if held is not None:
            return self._add_slice(snapshot, runs, span, held, grows=grows)
        return self._add_stretch(snapshot, runs, span, span.wanted, grows=grows and span.natural)

    def _add_extent(self, runs: list[Run], span: Span, extent: Extent, *, grows: bool) -> int:
        pieces = extent.pieces
        if pieces.file_end > span.end:
            raise Raced
        append_run(runs, Run(0, 0, span.segment, extent, 0, span.end if grows else -1), pieces.size)
        return pieces.greatest_timestamp

    def _add_stretch(
        self, snapshot: LogSnapshot, runs: list[Run], span: Span, wanted: RecordFilter | None, *, grows: bool
    ) -> int:
        extent = self._index.stretch(
            snapshot, span.segment, self._rendition, span.start, span.end, wanted, grows=grows
        )
        return self._add_extent(runs, span, extent, grows=grows)

    def _add_slice(self, snapshot: LogSnapshot, runs: list[Run], span: Span, held: Extent, *, grows: bool) -> int:
        """Whole pieces of the index, and what lies before and behind them in the span."""
        pieces = held.pieces
        position, file_end = pieces.columns[POSITION], pieces.columns[FILE_END]
        below = span.wanted is not None and span.wanted.first > 0
        above = span.wanted is not None and span.wanted.end is not None
        first = pieces.row_of(span.start)
        if first < len(pieces) and (int(position[first]) < span.start or below):
            # The pieces of a huge batch share its position.
            first = int(position.searchsorted(int(file_end[first])))
        if span.natural:
            if pieces.file_end > span.end:
                raise Raced
            last = len(pieces)
        else:
            last = int(file_end.searchsorted(span.end, side="left" if above else "right"))
        if first >= last:
            return self._add_stretch(snapshot, runs, span, span.wanted, grows=grows and span.natural)
        greatest = NO_TIMESTAMP
        if span.start < int(position[first]):
            edge = Span(span.segment, span.start, int(position[first]), span.wanted, False)
            greatest = self._add_stretch(snapshot, runs, edge, span.wanted, grows=False)
        start, end = pieces.rendered_start(first), int(pieces.columns[END, last - 1])
        run = Run(0, 0, span.segment, held, start, span.end if grows and span.natural else -1)
        append_run(runs, run, end - start)
        greatest = max(greatest, pieces.greatest_in(first, last))
        behind = int(file_end[last - 1])
        if behind < span.end and not span.natural:
            edge = Span(span.segment, behind, span.end, span.wanted, False)
            greatest = max(greatest, self._add_stretch(snapshot, runs, edge, span.wanted, grows=False))
        return greatest

    def kept(self, snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        return kept_runs(snapshot, runs)

    def count(self, runs: Sequence[Run]) -> int | None:
        return count_of(runs)


class TimePlan:
    """Of a range of times, rendered."""

    def __init__(self, index: ViewIndex, rendition: Rendition, times: TimeRange) -> None:
        self._index = index
        self._rendition = rendition
        self._times = times

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if continues(runs, span):
            self._pass_over(snapshot, runs[-1], span)
            return lengthen(self._index, snapshot, runs, span)
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return NO_TIMESTAMP
        extent = self._index.held(snapshot, span.segment, self._rendition, span.end)
        if extent is None and span.start > snapshot.end_position(span.segment) // 2:
            first_offset = 0 if span.wanted is None else span.wanted.first
            return self._add_rest(snapshot, runs, span, span.start, first_offset, grows=grows)
        if extent is None:
            extent = self._index.whole(snapshot, span.segment, self._rendition, span.end)
        pieces = extent.pieces
        if pieces.file_end > span.end:
            raise Raced
        # What grows is measured through the filter from the last piece on, and so is all that comes.
        last = len(pieces)
        if grows and last:
            last = int(pieces.columns[POSITION].searchsorted(int(pieces.columns[POSITION, -1])))
        first_offset = 0 if span.wanted is None else span.wanted.first
        greatest = NO_TIMESTAMP
        for start, stop, kind in _groups(self._kinds(snapshot, pieces, span)[:last]):
            if kind == _WHOLE:
                begin, end = pieces.rendered_start(start), int(pieces.columns[END, stop - 1])
                append_run(runs, Run(0, 0, span.segment, extent, begin, -1), end - begin)
                greatest = max(greatest, pieces.greatest_in(start, stop))
            elif kind == _PART:
                position = max(span.start, int(pieces.columns[POSITION, start]))
                file_end = int(pieces.columns[FILE_END, stop - 1])
                greatest = max(greatest, self._add_part(snapshot, runs, span, position, file_end, first_offset))
        if grows:
            position = int(pieces.columns[POSITION, last]) if last < len(pieces) else span.start
            behind = self._add_rest(snapshot, runs, span, max(span.start, position), first_offset, grows=True)
            greatest = max(greatest, behind)
        return greatest

    def _pass_over(self, snapshot: LogSnapshot, run: Run, span: Span) -> None:
        """Tells the run's extent that nothing in the span is in the range, if that is so and costs little to know.

        The log has gone past most ranges, and only stragglers may still come: what is appended is measured once for all
        of them, in the index, and not through the filter of each.
        """
        times = self._times
        if run.extent is None or times.end_ms is None:
            return
        if greatest_timestamp(snapshot, span.segment).timestamp < times.end_ms:
            return
        whole = self._index.held(snapshot, span.segment, self._rendition, span.end)
        if whole is None or whole.pieces.file_end != span.end:
            return
        columns = whole.pieces.columns[:, whole.pieces.row_of(span.start) :]
        outside = (columns[LEAST] >= times.end_ms) | (columns[GREATEST] <= NO_TIMESTAMP)
        if times.start_ms is not None:
            outside |= columns[GREATEST] < times.start_ms
        if (outside & (columns[CRC] != NO_CRC)).all():
            run.extent.pass_over(span.start, span.end)

    def _add_rest(
        self, snapshot: LogSnapshot, runs: list[Run], span: Span, position: int, first_offset: int, *, grows: bool
    ) -> int:
        """The span from `position` on, measured through the filter."""
        wanted = RecordFilter(first_offset, None, self._times)
        rest = self._index.stretch(
            snapshot, span.segment, self._rendition, position, span.end, wanted, grows=grows
        )
        if rest.pieces.file_end > span.end:
            raise Raced
        append_run(runs, Run(0, 0, span.segment, rest, 0, span.end if grows else -1), rest.pieces.size)
        return rest.pieces.greatest_timestamp

    def _add_part(
        self, snapshot: LogSnapshot, runs: list[Run], span: Span, position: int, file_end: int, first_offset: int
    ) -> int:
        wanted = RecordFilter(first_offset, None, self._times)
        part = self._index.stretch(
            snapshot, span.segment, self._rendition, position, file_end, wanted, grows=False
        )
        append_run(runs, Run(0, 0, span.segment, part, 0, -1), part.pieces.size)
        return part.pieces.greatest_timestamp

    def kept(self, snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        return kept_runs(snapshot, runs)

    def count(self, runs: Sequence[Run]) -> int | None:
        return count_of(runs)

    def _kinds(self, snapshot: LogSnapshot, pieces: Pieces, span: Span) -> npt.NDArray[np.int64]:
        """By piece: wholly in the range, partly, or not at all."""
        columns = pieces.columns
        least, greatest = columns[LEAST], columns[GREATEST]
        inside, outside = least > NO_TIMESTAMP, (greatest <= NO_TIMESTAMP) & (least >= NO_TIMESTAMP)
        if self._times.start_ms is not None:
            inside &= least >= self._times.start_ms
            outside |= greatest < self._times.start_ms
        if self._times.end_ms is not None:
            inside &= greatest < self._times.end_ms
            outside |= least >= self._times.end_ms
        kinds = np.where(outside, _SKIP, np.where(inside, _WHOLE, _PART))
        # Damage is shown, as a whole, where what it hides may have lain in the range: there is never nothing in its
        # place without an error.
        for row in np.flatnonzero(columns[CRC] == NO_CRC).tolist():
            held = may_have_held(snapshot, span.segment, pieces, row)
            kinds[row] = _WHOLE if may_lie_in(self._times, *held) else _SKIP
        first = pieces.row_of(span.start)
        kinds[:first] = _SKIP
        if first < len(pieces) and (span.wanted is not None or int(columns[POSITION, first]) < span.start):
            same = columns[POSITION] == columns[POSITION, first]
            kinds[same & (kinds == _WHOLE)] = _PART
        return kinds


def kept_runs(snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
    """See Plan.kept. Of segments that the log names no more all stays, their decisions about transactions too."""
    listed = set(snapshot.segments)
    kept: list[Run] = []
    for run in runs:
        extent = run.extent
        if extent is not None and run.segment in listed:
            extent = extent.successor(snapshot)
        kept.append(run._replace(extent=extent, file_end=-1))
    return tuple(kept)


def count_of(runs: Sequence[Run]) -> int | None:
    """See Plan.count. None too where a run ends within a piece that grew for somebody else."""
    total = 0
    for run in runs:
        end = run.source_start + run.end - run.start
        count = None if run.extent is None else run.extent.pieces.records_between(run.source_start, end)
        if count is None:
            return None
        total += count
    return total


def lies_before(snapshot: LogSnapshot, span: Span, times: TimeRange) -> bool:
    """Whether all messages of a sealed segment are known to be older than the range; damage may hide others."""
    if times.start_ms is None or greatest_timestamp(snapshot, span.segment).timestamp == NO_TIMESTAMP:
        return False
    return not may_reach(snapshot, span.segment, times.start_ms)


def may_have_held(snapshot: LogSnapshot, segment: Segment, pieces: Pieces, row: int) -> tuple[int, int]:
    """Least and greatest timestamp that the damaged piece `row` may have held: what its neighbours in other chunks or
    segments tell where it is open at an end."""
    least, greatest = int(pieces.columns[LEAST, row]), int(pieces.columns[GREATEST, row])
    good = pieces.columns[CRC] != NO_CRC
    if least == OPEN_BELOW:
        before = np.flatnonzero(good[:row])
        if len(before):
            least = min(int(pieces.columns[LEAST, before[-1]]), greatest)
        else:
            least = _greatest_before(snapshot, segment)
    if greatest == OPEN_ABOVE:
        behind = np.flatnonzero(good[row:])
        if len(behind):
            greatest = max(int(pieces.columns[GREATEST, row + behind[0]]), least)
        elif (first := first_times_behind(snapshot, segment)) is not None:
            greatest = max(first[1], least)
    return least, greatest


def _greatest_before(snapshot: LogSnapshot, segment: Segment) -> int:
    slot = snapshot.segment_index(segment.base_offset)
    for earlier in reversed(snapshot.segments[:slot]):
        timestamp = greatest_timestamp(snapshot, earlier).timestamp
        if timestamp > NO_TIMESTAMP:
            return timestamp
    return OPEN_BELOW


def continues(runs: list[Run], span: Span) -> bool:
    """Whether the span begins where the last run ends, and may simply make it longer."""
    return bool(runs) and runs[-1].segment is span.segment and runs[-1].file_end == span.start and span.natural


def lengthen(index: ViewIndex, snapshot: LogSnapshot, runs: list[Run], span: Span) -> int:
    """Makes the last run longer by a span that continues it."""
    run = runs[-1]
    assert run.extent is not None
    index.extend(run.extent, snapshot, span.end)
    pieces = run.extent.pieces
    if pieces.file_end > span.end:
        raise Raced
    runs[-1] = run._replace(end=run.start + pieces.size - run.source_start, file_end=span.end)
    return pieces.greatest_timestamp


def _groups(kinds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Neighbours of one kind: (first, behind the last, kind)."""
    edges = np.flatnonzero(np.diff(kinds)) + 1
    bounds = [0, *edges.tolist(), len(kinds)]
    for start, stop in pairwise(bounds):
        if start < stop:
            yield start, stop, int(kinds[start])
