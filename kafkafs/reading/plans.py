"""Planning: which runs show the file spans of a rendered view, with as little measuring as possible.

A span that is a whole segment uses the view index, which is made if necessary. A part of a segment uses the index if
the segment has one, and measures the pieces at its edges separately; without an index only the part is measured. A time
range needs the index of each segment that may hold a message of it: pieces wholly inside the range are used as they
are, the others are measured again through a filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kafkafs.reading.blocks import CRC, FILE_END, GREATEST, LEAST, NO_CRC, NO_GREATEST, NO_LEAST, POSITION
from kafkafs.reading.extent import Extent
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.layout import Cursor, Raced, Run, Span, spans_from
from kafkafs.reading.pieces import END, Pieces
from kafkafs.reading.selection import RecordFilter
from kafkafs.reading.workbench import Rendition
from storage.log.counting import visible_end
from storage.log.greatest_timestamp import first_times_behind, greatest_timestamp, may_reach, times_before
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, TimeRange

_SKIP, _WHOLE, _PART = range(3)
_SHORT_BYTES = 8 << 20  # for a part of a segment smaller than this, nothing before the part is measured

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def append_run(
    runs: list[Run], segment: Segment, extent: Extent | None, source_start: int, size: int, file_end: int = -1
) -> None:
    """Adds a run of `size` bytes after the others; see Run. An empty one is left out unless it may be extended."""
    start = runs[-1].end if runs else 0
    if size or file_end >= 0:
        runs.append(Run(start, start + size, segment, extent, source_start, file_end))


class RenderedPlan:
    """The base of the plans of rendered views."""

    def __init__(self, index: BlockIndex, rendition: Rendition) -> None:
        self._index = index
        self._rendition = rendition

    def is_outdated(self) -> bool:
        return self._rendition.is_outdated()

    def _continues(self, runs: list[Run], span: Span) -> bool:
        """Whether the span begins where the last run ends, so that the run can simply be extended."""
        return bool(runs) and runs[-1].segment is span.segment and runs[-1].file_end == span.start and span.natural

    def _lengthen(self, snapshot: LogSnapshot, runs: list[Run], span: Span) -> int:
        """Extends the last run by a span that continues it."""
        run = runs[-1]
        assert run.extent is not None
        self._index.extend(run.extent, snapshot, span.end)
        pieces = run.extent.pieces
        _check_not_raced(pieces, span)
        runs[-1] = run._replace(end=run.start + pieces.size - run.source_start, file_end=span.end)
        return pieces.greatest_timestamp

    def _add_extent(self, runs: list[Run], span: Span, extent: Extent, *, grows: bool) -> int:
        """Adds everything that an extent shows."""
        pieces = extent.pieces
        _check_not_raced(pieces, span)
        append_run(runs, span.segment, extent, 0, pieces.size, span.end if grows else -1)
        return pieces.greatest_timestamp

    def _add_pieces(
        self, runs: list[Run], span: Span, extent: Extent, pieces: Pieces, first: int, last: int, file_end: int
    ) -> int:
        """Adds the rows [first, last) of an extent's `pieces`, which another thread may have replaced by longer ones
        meanwhile. `file_end`: see Run."""
        start, end = pieces.rendered_start(first), int(pieces.columns[END, last - 1])
        append_run(runs, span.segment, extent, start, end - start, file_end)
        return pieces.greatest_in(first, last)

    def _add_measured(
        self,
        snapshot: LogSnapshot,
        runs: list[Run],
        span: Span,
        start: int,
        end: int,
        record_filter: RecordFilter | None,
        *,
        grows: bool,
    ) -> int:
        """Adds the wanted messages of the span's batches from the file position `start` to `end`, measured
        separately."""
        extent = self._index.stretch(snapshot, span.segment, self._rendition, start, end, record_filter, grows=grows)
        return self._add_extent(runs, span, extent, grows=grows)

    def measures_more(self, snapshot: LogSnapshot, spans: Iterable[Span], limit: int) -> bool:
        """Whether `add` would measure more than `limit` bytes of batches, uncompressed, for all the spans
        (MeasuringPlan)."""
        sizes = ((span.segment, self._unmeasured(snapshot, span)) for span in spans)
        return self._index.are_more(snapshot, sizes, limit)

    def _unmeasured(self, snapshot: LogSnapshot, span: Span) -> int:
        """How many bytes of the span's file `add` would measure."""
        raise NotImplementedError


class OffsetPlan(RenderedPlan):
    """The plan of a range of offsets."""

    def _unmeasured(self, snapshot: LogSnapshot, span: Span) -> int:
        """How many bytes of the span's file `add` would measure."""
        measured = self._index.measured_end(snapshot, span.segment, self._rendition, span.start, span.record_filter)
        return max(0, span.end - measured)

    def measure(self, snapshot: LogSnapshot, runs: list[Run], span: Span, end: int) -> int:
        """Measures the span up to the file position `end` at least (MeasuringPlan)."""
        end = min(span.end, self._index.whole_blocks(span.segment, end))
        extent: Extent | None
        if self._continues(runs, span):
            extent = runs[-1].extent
            assert extent is not None
            self._index.extend(extent, snapshot, end, render=True)
        elif span.start == 0 and span.record_filter is None:
            extent = self._index.whole(snapshot, span.segment, self._rendition, end, render=True)
        else:
            extent = self._index.held(snapshot, span.segment, self._rendition, end, span.start, render=True)
            if extent is None:
                first, record_filter = span.start, span.record_filter
                extent = self._index.stretch(
                    snapshot, span.segment, self._rendition, first, end, record_filter, grows=True, render=True
                )
        pieces = extent.pieces
        _check_not_raced(pieces, span)
        return pieces.file_end

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if self._continues(runs, span):
            return self._lengthen(snapshot, runs, span)
        ends_with_segment = span.natural or span.end == snapshot.end_position(span.segment)
        if span.start == 0 and span.record_filter is None and ends_with_segment:
            extent = self._index.whole(snapshot, span.segment, self._rendition, span.end)
            return self._add_extent(runs, span, extent, grows=grows)
        grows = grows and span.natural
        held = self._index.held(snapshot, span.segment, self._rendition, span.end, span.start)
        pieces = Pieces.none(0) if held is None else held.pieces
        first, last = self._whole_pieces(pieces, span)
        if held is None or first >= last:
            return self._add_measured(snapshot, runs, span, span.start, span.end, span.record_filter, grows=grows)
        before = int(pieces.columns[POSITION, first])
        behind = span.end if span.natural else int(pieces.columns[FILE_END, last - 1])
        greatest = self._add_edge(snapshot, runs, span, span.start, before)
        file_end = span.end if grows else -1
        greatest = max(greatest, self._add_pieces(runs, span, held, pieces, first, last, file_end))
        return max(greatest, self._add_edge(snapshot, runs, span, behind, span.end))

    def _add_edge(self, snapshot: LogSnapshot, runs: list[Run], span: Span, start: int, end: int) -> int:
        """Adds the batches between an end of the span and the whole pieces in it, if there are any."""
        if start >= end:
            return NO_TIMESTAMP
        return self._add_measured(snapshot, runs, span, start, end, span.record_filter, grows=False)

    @staticmethod
    def _whole_pieces(pieces: Pieces, span: Span) -> tuple[int, int]:
        """The first of the pieces that lie wholly in the span, and the first one after them."""
        position, file_end = pieces.columns[POSITION], pieces.columns[FILE_END]
        cut_below = span.record_filter is not None and span.record_filter.first > 0
        first = pieces.row_of(span.start)
        if first < len(pieces) and (int(position[first]) < span.start or cut_below):
            # All pieces of the batch there: the parts of a batch share its position.
            first = int(position.searchsorted(int(file_end[first])))
        if span.natural:
            _check_not_raced(pieces, span)
            return first, len(pieces)
        return first, _pieces_before(pieces, span)


class TimePlan(RenderedPlan):
    """The plan of a range of times."""

    def __init__(self, index: BlockIndex, rendition: Rendition, times: TimeRange) -> None:
        super().__init__(index, rendition)
        self._times = times

    def _unmeasured(self, snapshot: LogSnapshot, span: Span) -> int:
        """How many bytes of the span's file `add` would measure."""
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return 0
        measured = self._index.measured_end(snapshot, span.segment, self._rendition, span.start, self._wanted(span))
        return max(0, span.end - measured)

    def measure(self, snapshot: LogSnapshot, runs: list[Run], span: Span, end: int) -> int:
        """Measures the span up to the file position `end` at least (MeasuringPlan)."""
        end = min(span.end, self._index.whole_blocks(span.segment, end))
        if self._continues(runs, span):
            extent = runs[-1].extent
            assert extent is not None
            self._index.extend(extent, snapshot, end, render=True)
        elif span.segment.sealed and lies_before(snapshot, span, self._times):
            return span.end
        else:
            extent = self._measured(snapshot, span, end, render=True)
        _check_not_raced(extent.pieces, span)
        return max(span.start, extent.pieces.file_end)

    def _measured(self, snapshot: LogSnapshot, span: Span, end: int, *, render: bool = False) -> Extent:
        """The span's segment, measured up to the file position `end`; only the wanted part, if it is short, or if more
        would have to be measured before the span than in it. `render`: see BlockIndex.extend."""
        extent = self._index.held(snapshot, span.segment, self._rendition, end, span.start, render=render)
        if extent is not None:
            return extent
        is_short = not span.natural and end - span.start < _SHORT_BYTES
        if is_short or span.start > end - span.start:
            extent = self._filtered(snapshot, span, span.start, end, grows=span.natural, render=render)
            if not extent.pieces.is_damaged:
                return extent
        return self._index.whole(snapshot, span.segment, self._rendition, end, render=render)

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if self._continues(runs, span):
            self._pass_over(snapshot, runs[-1], span)
            return self._lengthen(snapshot, runs, span)
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return NO_TIMESTAMP
        extent = self._measured(snapshot, span, span.end)
        if not extent.is_whole:
            return self._add_extent(runs, span, extent, grows=grows)
        pieces = extent.pieces
        columns = pieces.columns
        position, file_end = columns[POSITION], columns[FILE_END]
        last = len(pieces)
        if not span.natural:
            last = _pieces_before(pieces, span)
        else:
            _check_not_raced(pieces, span)
            grows = grows and span.end == snapshot.end_position(span.segment)
            # Where the view grows, everything from the last piece on is measured through the filter, now and later.
            if grows and last and columns[CRC, -1] != NO_CRC:
                last = int(position.searchsorted(int(position[-1])))
        greatest = NO_TIMESTAMP
        for start, stop, kind in _groups(self._kinds(snapshot, pieces, span)[:last]):
            if kind == _WHOLE:
                greatest = max(greatest, self._add_pieces(runs, span, extent, pieces, start, stop, -1))
            elif kind == _PART:
                first, end = max(span.start, int(position[start])), int(file_end[stop - 1])
                greatest = max(greatest, self._add_filtered(snapshot, runs, span, first, end, grows=False))
        first = max(span.start, int(position[last]) if last < len(pieces) else pieces.file_end)
        if grows or (not span.natural and first < span.end):
            greatest = max(greatest, self._add_filtered(snapshot, runs, span, first, span.end, grows=grows))
        return greatest

    def _pass_over(self, snapshot: LogSnapshot, run: Run, span: Span) -> None:
        """Marks the span as measured in the run's extent if nothing in it is in the range, and this is cheap to find.

        Most ranges lie in the past, and only late messages may still come: appended messages are measured once for all
        ranges, in the index, instead of through the filter of each range.
        """
        times = self._times
        if run.extent is None or times.end_ms is None:
            return
        if greatest_timestamp(snapshot, span.segment).timestamp < times.end_ms:
            return
        whole = self._index.held(snapshot, span.segment, self._rendition, span.end, span.start)
        pieces = Pieces.none(0) if whole is None else whole.pieces
        if pieces.file_end != span.end:
            return
        columns = pieces.columns[:, pieces.row_of(span.start) :]
        if (_outside(times, columns[LEAST], columns[GREATEST]) & (columns[CRC] != NO_CRC)).all():
            run.extent.pass_over(span.start, span.end)

    def _add_filtered(
        self, snapshot: LogSnapshot, runs: list[Run], span: Span, start: int, end: int, *, grows: bool
    ) -> int:
        """Adds the span's batches from the file position `start` to `end`, measured through the filter."""
        return self._add_extent(runs, span, self._filtered(snapshot, span, start, end, grows=grows), grows=grows)

    def _filtered(
        self, snapshot: LogSnapshot, span: Span, start: int, end: int, *, grows: bool, render: bool = False
    ) -> Extent:
        record_filter = self._wanted(span)
        return self._index.stretch(
            snapshot, span.segment, self._rendition, start, end, record_filter, grows=grows, render=render
        )

    def _wanted(self, span: Span) -> RecordFilter:
        return (span.record_filter or RecordFilter())._replace(times=self._times)

    def _kinds(self, snapshot: LogSnapshot, pieces: Pieces, span: Span) -> npt.NDArray[np.int64]:
        """For each piece: whether it is wholly in the range, partly, or not at all."""
        columns = pieces.columns
        least, greatest = columns[LEAST], columns[GREATEST]
        inside = least > NO_TIMESTAMP
        if self._times.start_ms is not None:
            inside &= least >= self._times.start_ms
        if self._times.end_ms is not None:
            inside &= greatest < self._times.end_ms
        kinds = np.where(_outside(self._times, least, greatest), _SKIP, np.where(inside, _WHOLE, _PART))
        if pieces.is_damaged:  # shown as a whole
            damaged = columns[CRC] == NO_CRC
            within = damage_within(self._times, snapshot, span.segment, least, greatest, damaged)
            kinds[damaged] = np.where(within, _WHOLE, _SKIP)[damaged]
        first = pieces.row_of(span.start)
        kinds[:first] = _SKIP
        if first < len(pieces) and (span.record_filter is not None or int(columns[POSITION, first]) < span.start):
            same = columns[POSITION] == columns[POSITION, first]
            kinds[same & (kinds == _WHOLE)] = _PART
        return kinds


def _pieces_before(pieces: Pieces, span: Span) -> int:
    """How many pieces end at or before the end of a span that is cut."""
    cut_above = span.record_filter is not None and span.record_filter.end is not None
    return int(pieces.columns[FILE_END].searchsorted(span.end, side="left" if cut_above else "right"))


def lies_before(snapshot: LogSnapshot, span: Span, times: TimeRange) -> bool:
    """Whether all messages of a sealed segment, including those that damage may hide, are older than the range."""
    if times.start_ms is None or greatest_timestamp(snapshot, span.segment).timestamp == NO_TIMESTAMP:
        return False
    return not may_reach(snapshot, span.segment, times.start_ms)


def damage_within(
    times: TimeRange, snapshot: LogSnapshot, segment: Segment, least: Int64s, greatest: Int64s, damaged: Bools
) -> Bools:
    """Which damaged stretches of a segment belong to a range of times: the range touches the times that the stretch's
    own header names, those of the nearest readable stretches before and after it, or the times between them.

    By stretch: its least and greatest timestamp, and whether it is damaged.
    """
    before = times_before(snapshot, segment) or (NO_GREATEST, NO_GREATEST)
    behind = first_times_behind(snapshot, segment) or (NO_LEAST, NO_LEAST)
    good, bad = np.flatnonzero(~damaged), np.flatnonzero(damaged)
    lows = np.concatenate(([before[0]], least[good], [behind[0]]))
    highs = np.concatenate(([before[1]], greatest[good], [behind[1]]))
    slots = good.searchsorted(bad)
    low = np.minimum.reduce([least[bad], lows[slots], lows[slots + 1]])
    high = np.maximum.reduce([greatest[bad], highs[slots], highs[slots + 1]])
    within = np.zeros(len(damaged), np.bool_)
    within[bad] = ~_outside(times, low, high)
    return within


def _outside(times: TimeRange, least: Int64s, greatest: Int64s) -> Bools:
    """Which stretches with these timestamps have nothing in a range of times; -1 is no timestamp."""
    outside: Bools = (greatest <= NO_TIMESTAMP) & (least >= NO_TIMESTAMP)
    if times.start_ms is not None:
        outside |= greatest < times.start_ms
    if times.end_ms is not None:
        outside |= least >= times.end_ms
    return outside


def _check_not_raced(pieces: Pieces, span: Span) -> None:
    if pieces.file_end > span.end:
        raise Raced


def _groups(kinds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Consecutive pieces of one kind: (first, first after them, kind)."""
    edges = np.flatnonzero(np.diff(kinds)) + 1
    bounds = [0, *edges.tolist(), len(kinds)]
    for start, stop in pairwise(bounds):
        if start < stop:
            yield start, stop, int(kinds[start])


# The plan of a key's messages: only the blocks that may hold the key are measured, through a filter.
# If keys are not collected, everything is measured. Messages that are appended later are measured through the filter as
# they come, so positions do not depend on collected keys.


class KeyPlan(RenderedPlan):
    """The plan of all messages with a key."""

    def __init__(self, index: BlockIndex, rendition: Rendition, key: bytes) -> None:
        super().__init__(index, rendition)
        self._key = key

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if self._continues(runs, span):
            return self._lengthen(snapshot, runs, span)
        greatest, record_filter = NO_TIMESTAMP, self._wanted(span)
        for start, end, goes_on in self._stretches(snapshot, span, grows=grows):
            newest = self._add_measured(snapshot, runs, span, start, end, record_filter, grows=goes_on)
            greatest = max(greatest, newest)
        return greatest

    def first_sizes(self, snapshot: LogSnapshot) -> Iterator[tuple[int, int]]:
        """For each stretch that may hold the key, in order: the bytes that its messages render to, and the greatest
        timestamp in them. Measured one by one, so that the first with messages shows that the key is there."""
        visible = visible_end(snapshot, self._rendition.isolation)
        spans, _ = spans_from(snapshot, Cursor(snapshot.log_start_offset), None, visible)
        for span in spans:
            record_filter = self._wanted(span)
            # The stretches as `add` measures them, so that an open finds them measured.
            for start, end, grows in self._stretches(snapshot, span, grows=span is spans[-1]):
                extent = self._index.stretch(
                    snapshot, span.segment, self._rendition, start, end, record_filter, grows=grows
                )
                yield extent.pieces.size, extent.pieces.greatest_timestamp

    def _wanted(self, span: Span) -> RecordFilter:
        return (span.record_filter or RecordFilter())._replace(key=self._key)

    def _stretches(self, snapshot: LogSnapshot, span: Span, *, grows: bool) -> list[tuple[int, int, bool]]:
        """Those that may hold the key: start, end, and whether the view continues there."""
        places = self._index.find(snapshot, span.segment, self._key, span.start, span.end)
        stretches = [(start, end, False) for start, end in places.stretches]
        return [*stretches, (places.behind, span.end, grows)] if grows or places.behind < span.end else stretches
