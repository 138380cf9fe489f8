"""A layout: where each byte of a view comes from. Immutable, so readers need no lock; growing views get new ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from kafkafs.reading.selection import RecordFilter
from storage.log.reader import find_batch
from storage.log.scanning import scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from kafkafs.reading.extent import Extent


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


class Gap(NamedTuple):
    """The bytes of a view from `start` to `end` are unknown: nobody has measured the messages between its first and its
    last runs, and `end` is an estimate. `anchored`: a reader has seen the bytes after it."""

    start: int
    end: int
    anchored: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """All runs of a view, in order, without gaps other than `gap`. `cursor`: the messages that they cover, up to the
    gap. `greatest`: the greatest timestamp in them, -1 if there is none or it is unknown. `complete`: nothing appended
    later belongs to it (`Selection`). `unlisted`: segments that the log no longer lists, whose files may vanish at any
    time. `behind`: how many bytes of the view are known to come after the last run, while not all of the log is
    measured; None if all of it is."""

    cursor: Cursor
    runs: tuple[Run, ...] = ()
    greatest: int = NO_TIMESTAMP
    complete: bool = False
    unlisted: frozenset[Segment] = frozenset()
    starts: tuple[int, ...] = field(default=(), compare=False)
    gap: Gap | None = None
    behind: int | None = None

    @staticmethod
    def of(
        cursor: Cursor,
        runs: Sequence[Run],
        greatest: int,
        complete: bool,
        unlisted: frozenset[Segment] = frozenset(),
        gap: Gap | None = None,
    ) -> Layout:
        return Layout(cursor, tuple(runs), greatest, complete, unlisted, tuple(run.start for run in runs), gap)

    @property
    def end(self) -> int:
        """The position after the last run."""
        end = self.runs[-1].end if self.runs else 0
        return end if self.gap is None else max(end, self.gap.end)

    @property
    def size(self) -> int:
        """Bytes of the view; an estimate if it has a gap or something behind its end."""
        return self.end + (self.behind or 0)

    def covers(self, position: int, end: int) -> bool:
        """Whether the bytes from `position` to `end` can be read: they are before the gap, or after it and the reader
        has seen the bytes there, and not behind the last run."""
        gap = self.gap
        if self.behind is not None and max(position + 1, end) > self.end:
            return False
        return gap is None or end <= gap.start or (gap.anchored and position >= gap.end)

    def end_from(self, position: int) -> int:
        """Up to where bytes can be read from `position` on."""
        return self.end if self.gap is None or position >= self.gap.end else self.gap.start

    @property
    def may_fail(self) -> bool:
        """Whether reads may end with an error, as far as is known since measuring: at damage, or at a message that is
        too long. `.log` views are plain bytes and have neither."""
        return any(
            run.extent is not None
            and run.extent.pieces.may_fail_in(run.source_start, run.source_start + run.end - run.start)
            for run in self.runs
        )

    def run_at(self, position: int) -> Run:
        """The run that holds the byte at `position`, which must be below `size`."""
        return self.runs[bisect_right(self.starts, position) - 1]


# From offsets to spans of files: the whole batches that hold a range, and how far a log is covered.

_LOOK_BYTES = 64 << 10


class Cursor(NamedTuple):
    """All messages below `next_offset` are covered. In `segment` that is up to the file position `position`, if the
    segment still exists; otherwise only the offset counts."""

    next_offset: int
    segment: Segment | None = None
    position: int = 0


class Span(NamedTuple):
    """Whole batches of a segment, from the position `start` to `end`. `record_filter` is set if the first or last
    batch also holds messages outside the range. `natural`: it ends there because the log (so far) does, not the
    range."""

    segment: Segment
    start: int
    end: int
    record_filter: RecordFilter | None
    natural: bool


def spans_from(
    snapshot: LogSnapshot, cursor: Cursor, end_offset: int | None, visible_end: int
) -> tuple[list[Span], Cursor]:
    """Return the batches that hold offsets from the cursor up to `end_offset` (excluded; None: no end), and the cursor
    after them.

    `visible_end`: where the log ends for this reader, its end or the last stable offset. SegmentGone if files vanish.
    """
    if cursor.next_offset < snapshot.log_start_offset:
        # The messages were deleted before anybody read them, though the files may still have their bytes.
        cursor = Cursor(snapshot.log_start_offset)
    natural = end_offset is None or end_offset >= visible_end
    bound = visible_end if end_offset is None else min(end_offset, visible_end)
    if cursor.next_offset >= bound:
        return [], cursor
    start = _start(snapshot, cursor)
    if start is None:
        return [], Cursor(bound, cursor.segment, cursor.position)
    first_index, position, first = start
    last_index, end, last = _end(snapshot, bound)
    spans = []
    for index in range(first_index, last_index + 1):
        segment = snapshot.segments[index]
        start_position = position if index == first_index else 0
        end_position = end if index == last_index else snapshot.end_position(segment)
        if start_position >= end_position:
            continue
        below = first if index == first_index else None
        above = last if index == last_index else None
        record_filter = None if below is None and above is None else RecordFilter(below or 0, above)
        spans.append(Span(segment, start_position, end_position, record_filter, natural))
    if last_index < first_index:  # only a gap
        return [], Cursor(bound, snapshot.segments[first_index], position)
    return spans, Cursor(bound, snapshot.segments[last_index], end)


def cursor_at(snapshot: LogSnapshot, segment: Segment, position: int) -> Cursor | None:
    """The cursor before the batch that begins at `position`; None if its first offset is unknown."""
    base_offset, _ = _batch(snapshot, segment, position)
    return None if base_offset < 0 else Cursor(base_offset, segment, position)


def offset_before(snapshot: LogSnapshot, offset: int, size: int) -> int:
    """The offset of a batch that begins at least `size` bytes of files before the messages from `offset` on, or the log
    start. The result stays the same while a log grows a little."""
    place = None if offset >= snapshot.log_end_offset else find_batch(snapshot, offset)
    grid = size
    slot = len(snapshot.segments) - 1 if place is None else place.segment_index
    position = snapshot.end_position(snapshot.segments[slot]) if place is None else place.position
    while slot > 0 and position < size:
        size -= position
        slot -= 1
        position = snapshot.end_position(snapshot.segments[slot])
    segment = snapshot.segments[slot]
    position = max(0, position - size)
    end = snapshot.end_position(segment)
    start = segment.floor_position(position - position % grid + 1, end) if position else 0
    batch = segment.batch_at(start, end) if start else None
    base_offset = segment.base_offset if batch is None else int(batch.base_offset[0])
    return max(segment.base_offset, base_offset, snapshot.log_start_offset)


def _start(snapshot: LogSnapshot, cursor: Cursor) -> tuple[int, int, int | None] | None:
    """Where the messages begin: (segment index, position, least wanted offset if the batch there begins below it)."""
    for index in range(len(snapshot.segments) - 1, -1, -1):
        if snapshot.segments[index] is cursor.segment:
            if cursor.position <= snapshot.end_position(snapshot.segments[index]):
                return index, cursor.position, None
            break
    place = find_batch(snapshot, cursor.next_offset)
    if place is None:
        return None
    base_offset, _ = _batch(snapshot, place.segment, place.position)
    return place.segment_index, place.position, None if base_offset >= cursor.next_offset else cursor.next_offset


def _end(snapshot: LogSnapshot, bound: int) -> tuple[int, int, int | None]:
    """Where the messages end: (segment index, position, first unwanted offset if the last batch reaches beyond it)."""
    last = len(snapshot.segments) - 1
    place = None if bound >= snapshot.log_end_offset else find_batch(snapshot, bound)
    if place is None:
        return last, snapshot.end_position(snapshot.segments[last]), None
    base_offset, end = _batch(snapshot, place.segment, place.position)
    if base_offset >= bound or _ends_before(snapshot, place.segment, place.position, bound):
        return place.segment_index, place.position, None
    return place.segment_index, end, bound


def _ends_before(snapshot: LogSnapshot, segment: Segment, position: int, bound: int) -> bool:
    """Whether all offsets below `bound` are before `position`, if the first offset there cannot be read."""
    last_offset = segment.base_offset - 1
    for window in scan_batches(snapshot, segment, segment.floor(bound - 1, position), position, window=_LOOK_BYTES):
        if window.table.rows:
            last_offset = int(window.table.last_offset[-1])
    return last_offset >= bound - 1


def _batch(snapshot: LogSnapshot, segment: Segment, position: int) -> tuple[int, int]:
    """Base offset and end of the batch, or damage, at a position. Base offset -1: damage, or known only after
    decompression."""
    for window in scan_batches(snapshot, segment, position, window=_LOOK_BYTES):
        if window.damage is not None:
            return -1, window.damage.end
        return int(window.table.base_offset[0]), position + int(window.table.size[0])
    return -1, snapshot.end_position(segment)


# From spans to runs


class Raced(Exception):
    """Another thread has measured more than this snapshot shows: take a newer one."""


class Plan(Protocol):
    """How the spans of a range become runs."""

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        """Adds the runs of a span after `runs`, or extends the last one. Returns the greatest timestamp in them, -1 if
        unknown. `grows`: the view will continue at the span's end. If it raises (Raced too), discard `runs`."""

    def is_outdated(self) -> bool:
        """Whether a new plan would show the same messages differently. Open files keep their plan."""


@runtime_checkable
class MeasuringPlan(Plan, Protocol):
    """A plan that can measure a span step by step, for a reader who comes next: what is measured is rendered too."""

    def measures_more(self, snapshot: LogSnapshot, spans: Iterable[Span], limit: int) -> bool:
        """Whether `add` would measure more than `limit` bytes of batches, uncompressed, for all the spans."""

    def measure(self, snapshot: LogSnapshot, runs: list[Run], span: Span, end: int) -> int:
        """Measure the span at least up to the file position `end`. Return up to where it is measured, where a batch
        ends: for a span that ends there, `add` measures nothing."""
