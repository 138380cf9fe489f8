"""How the content of a view begins and grows with its log: from one immutable value to the next.

    begin     the name is resolved; positions begin at its first message
    follow    positions stay: messages that retention and compaction remove keep their bytes, new ones are added at the
              end; a truncation ends the view
    reach     a reader of a large view that nobody has measured asks for what is in its gap (Ends)

Each takes a snapshot and returns a new value, or raises and has changed nothing: the caller still has the last value
and may try again with another snapshot. The extents that views share only ever learn more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafkafs.reading.layout import (
    Cursor,
    Gap,
    Layout,
    MeasuringPlan,
    Plan,
    Run,
    Span,
    cursor_at,
    offset_before,
    spans_from,
)
from kafkafs.reading.selection import Question, Selection, end_of_time
from storage.errors import LogTruncated, OffsetOutOfRange, SegmentGone, StorageError
from storage.log.counting import count_messages, nth_message, visible_end
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP


class Tally(NamedTuple):
    """How far an incomplete A+N has been counted: it holds so many `messages` below `offset`."""

    offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The state of a view at one look. `layout` was made for `snapshot`. `looked_at`: the segments that the log had
    when the view could last grow, including segments of which the view shows nothing."""

    snapshot: LogSnapshot
    selection: Selection
    plan: Plan
    layout: Layout
    looked_at: tuple[Segment, ...]
    tally: Tally
    ends: Ends | None = None
    rest: Rest | None = None

    @property
    def is_estimated(self) -> bool:
        """Whether the size may be wrong, because not everything has been measured."""
        return self.ends is not None or self.rest is not None


DEFAULT_EXACT_BELOW = 1 << 30  # how long this takes: kafkafs/DESIGN.md, "Sizes"


class SizeWasEstimated(StorageError):
    """The size that an open file has shown turned out to be wrong, so the bytes that were read from its end are not at
    their true position."""


# A large view that nobody has measured begins with its two ends. The *front* is the view as it would be if its log were
# shorter: it is right, and goes on as a reader comes nearer to where it ends. The *back* is the range of the last
# messages, in front of which earlier ones are put. Between them is the gap, whose size is estimated, so that only
# the position of the back may be wrong.
#
#     reads                                      what happens
#     on from where the reader was, or near      the front goes on. At the end of the log the view is exact, and that
#     the front                                  is its end, whatever size was shown
#     at the back, or near                       the back goes on, backwards; the handle is *anchored*: it keeps these
#                                                positions, and what is appended comes after them
#     elsewhere                                  everything is measured
#
# Once everything is measured, an anchored handle goes on if the estimate was right by chance. Otherwise it can go on
# at its back, but its gap cannot be filled: reads there fail.
#
# Any message may be late, so a range of times that lies in the past would have to be read to the log's end. Instead, it
# is first the view of a log that ends a little behind the messages of that time (`body`), which may have a gap itself.
# What the log has then (`rest`) is measured when a reader reads at the end: late messages come after the others anyway,
# as if they were appended.


class Rest(NamedTuple):
    """The parts of a range of times that lies in the past: `body`, which is shown, and `later`, the messages of that
    time that have been appended since the view began. Between the two there may be more."""

    body: Shown
    later: Shown


class Ends(NamedTuple):
    """The ends of a view that has a gap. `position`: where the back begins; without a back, the least size that the
    view shows. `step`: how many bytes of files the next step of a sequential reader measures."""

    front: Shown
    back: Shown | None
    position: int
    step: int
    anchored: bool = False


class Growth:
    """The steps of one view. Holds no state."""

    def __init__(self, question: Question, plan: Callable[[Selection], Plan], exact_below: int | None = None) -> None:
        """`exact_below`: a view of offsets or times with more bytes, uncompressed, that nobody has measured begins with
        a gap; None: never."""
        self._question = question
        self._make_plan = plan
        self._exact_below = exact_below
        self._step = 0 if exact_below is None else min(max(exact_below // 4, _LEAST_STEP), _FIRST_STEP)

    def begin(self, snapshot: LogSnapshot, now_ms: int) -> Shown:
        """The state of a view that is opened now. OffsetOutOfRange; SegmentGone and Raced: try again with a newer
        snapshot."""
        selection = self._question.resolve(snapshot, now_ms)
        start = selection.start_offset
        layout = Layout.of(Cursor(start), (), NO_TIMESTAMP, complete=False)
        shown = Shown(snapshot, selection, self._make_plan(selection), layout, (), Tally(start, 0))
        behind = self._likely_end(shown)
        if behind is None:
            return self._begun(shown)
        body = self._begun(replace(shown, selection=replace(selection, end_offset=behind)))
        later = self._grown(_from(shown, self._end(shown, snapshot), None), snapshot)
        return _with_rest(selection, Rest(body, later))

    def follow(self, shown: Shown, snapshot: LogSnapshot) -> Shown:
        """The state of a view now, for a reader that opened it when it showed `shown`. LogTruncated; SegmentGone and
        Raced as in `begin`."""
        if snapshot is shown.snapshot:
            return shown
        if snapshot.generation != shown.snapshot.generation:
            raise LogTruncated(f"{snapshot.tp} was truncated while this file was open", advice="Open it again")
        if shown.rest is not None:
            body, later = self.follow(shown.rest.body, snapshot), self._grown(shown.rest.later, snapshot)
            return _with_rest(shown.selection, Rest(body, later))
        if shown.ends is None:
            return self._grown(shown, snapshot)
        back = shown.ends.back
        return _joined(shown.ends._replace(back=None if back is None else self._grown(back, snapshot)), snapshot)

    def reach(self, shown: Shown, snapshot: LogSnapshot, start: int, end: int, seen: int) -> Shown:
        """`shown`, followed, with what a reader needs to read from `start` to `end`. `seen`: up to where it has read
        before the gap. A reader that continues there gets the messages of one step, which may be fewer than it asks
        for. Errors as `follow`; SegmentGone also if messages in the gap have been deleted; SizeWasEstimated."""
        shown = self.follow(shown, snapshot)
        if shown.rest is not None and start < shown.layout.end:
            body = self.reach(shown.rest.body, snapshot, start, min(end, shown.layout.end), seen)
            return _with_rest(shown.selection, shown.rest._replace(body=body))
        if shown.rest is not None:
            shown = self._with_rest_measured(shown, shown.rest.body, snapshot)
        while not shown.layout.covers(start, min(end, shown.layout.size)):
            shown = self._nearer(shown, snapshot, start, end, seen)
            if start <= seen and shown.layout.covers(start, start + 1):
                break
        return shown

    def settled(self, shown: Shown, snapshot: LogSnapshot) -> Shown:
        """`shown`, followed, for a reader that asks where the file ends, to read there: the back has what such a reader
        reads at once, or everything is measured, so that a file with few bytes has its exact size. Errors as
        `follow`."""
        shown = self.follow(shown, snapshot)
        if shown.rest is not None:
            body = self.settled(shown.rest.body, snapshot)
            return _with_rest(shown.selection, shown.rest._replace(body=body))
        while shown.ends is not None and not shown.ends.anchored:
            front, back, position, step, _ = shown.ends
            if back is None or back.layout.size >= min(_LAST_BYTES, self._step):
                break
            first = offset_before(snapshot, _start(back), step)
            if first <= _covered(front):
                return self._further(front, snapshot, None)
            part = self._grown(_from(front, first, _start(back)), snapshot)
            shown = _joined(Ends(front, _prepended(part, back), position, min(2 * step, _MOST_STEP)), snapshot)
        return shown

    def is_measured(self, shown: Shown, snapshot: LogSnapshot) -> bool:
        """Whether a view with a gap would begin without one now."""
        start = shown.selection.start_offset
        return not self._is_large(replace(shown, layout=replace(shown.layout, cursor=Cursor(start))), snapshot)

    def would_begin_alike(self, shown: Shown, snapshot: LogSnapshot, now_ms: int) -> bool:
        """Whether `shown`, followed to `snapshot`, equals what `begin` would return."""
        if snapshot.generation != shown.snapshot.generation:
            return False
        # A latest file depends on every segment, also on those of which it shows nothing: when compaction removes an
        # aborted message, an earlier message becomes the last of its key.
        is_latest = self._question.latest_bytes is not None
        used = set(shown.looked_at) if is_latest else {run.segment for run in shown.layout.runs}
        if not used.issubset(snapshot.segments):
            return False
        try:
            now = self._question.resolve(snapshot, now_ms, find_nth=False)
        except OffsetOutOfRange:
            return False
        selection = shown.selection
        if self._question.is_fixed and now.end_offset != selection.end_offset:
            return False
        return now.start_offset == selection.start_offset

    def _is_large(self, shown: Shown, snapshot: LogSnapshot | None = None) -> bool:
        """Whether too many bytes after the cursor have not been measured."""
        plan, selection, snapshot = shown.plan, shown.selection, snapshot or shown.snapshot
        if self._exact_below is None or not isinstance(plan, MeasuringPlan):
            return False
        if self._question.is_fixed or (selection.limit is not None and selection.end_offset is None):
            return False
        spans = self._spans(snapshot, shown.layout.cursor, selection.end_offset)
        return plan.measures_more(snapshot, spans, self._exact_below)

    def _spans(self, snapshot: LogSnapshot, cursor: Cursor, end_offset: int | None = None) -> list[Span]:
        return spans_from(snapshot, cursor, end_offset, visible_end(snapshot, self._question.isolation))[0]

    def _end(self, shown: Shown, snapshot: LogSnapshot) -> int:
        """The offset where the view ends now."""
        visible, end_offset = visible_end(snapshot, self._question.isolation), shown.selection.end_offset
        return visible if end_offset is None else min(visible, end_offset)

    def _begun(self, shown: Shown) -> Shown:
        return self._begun_at_ends(shown) if self._is_large(shown) else self._grown(shown, shown.snapshot)

    def _begun_at_ends(self, shown: Shown) -> Shown:
        snapshot = shown.snapshot
        front = self._grown(shown, snapshot, most=self._step)
        cursor, end = shown.layout.cursor, self._end(shown, snapshot)
        first = offset_before(snapshot, end, self._step)
        between = self._bytes(snapshot, front.layout.cursor, first)
        if between <= self._step:
            return self._grown(front, snapshot)
        back = self._grown(_from(shown, first, shown.selection.end_offset), snapshot)
        measured = self._bytes(snapshot, cursor, end) - between
        rendered = front.layout.size + back.layout.size
        gap = max(1, between * rendered // max(1, measured) if rendered else between)
        return _joined(Ends(front, back, front.layout.size + gap, self._step), snapshot)

    def _likely_end(self, shown: Shown) -> int | None:
        """The offset behind which the messages of a range of times are late; None if the range does not lie in the
        past, or nobody would have to wait long for what is behind this offset."""
        times, snapshot = shown.selection.time_range, shown.snapshot
        if times is None or times.end_ms is None or not self._is_large(shown):
            return None
        with suppress(StorageError):  # damage: reading reports it
            behind = end_of_time(snapshot, times.end_ms, _LATE_STEPS * self._step)
            behind = max(behind, shown.selection.start_offset)
            if self._is_large(_from(shown, behind, shown.selection.end_offset)):
                return behind
        return None

    def _with_rest_measured(self, shown: Shown, body: Shown, snapshot: LogSnapshot) -> Shown:
        """The view with all messages that the log has after its body."""

        def opened(part: Shown) -> Shown:
            selection = replace(part.selection, end_offset=shown.selection.end_offset)
            return replace(part, selection=selection, layout=replace(part.layout, complete=False))

        if body.ends is None:
            return self._further(opened(body), snapshot, None)
        front, back = opened(body.ends.front), body.ends.back
        back = None if back is None else self._further(opened(back), snapshot, None)
        return _joined(body.ends._replace(front=front, back=back), snapshot)

    def _bytes(self, snapshot: LogSnapshot, cursor: Cursor, end_offset: int | None = None) -> int:
        """The bytes of files from a cursor on."""
        return sum(span.end - span.start for span in self._spans(snapshot, cursor, end_offset))

    def _nearer(self, shown: Shown, snapshot: LogSnapshot, start: int, end: int, seen: int) -> Shown:
        """The view with a smaller gap, or without one."""
        assert shown.ends is not None
        assert self._exact_below is not None
        front, back, position, step, anchored = shown.ends
        if anchored and _covered(front) >= self._end(front, snapshot):
            raise _estimated(snapshot)
        at_front = start <= front.layout.size and (start <= seen or anchored or back is None)
        if not at_front and back is not None and end >= position - self._exact_below:
            return self._further_back(shown, snapshot, start, seen)
        near = at_front or start <= front.layout.size + self._exact_below
        before = front.layout.size
        front = self._further(front, snapshot, step if near and (back is not None or start <= seen) else None)
        if start <= seen:
            step = max(_LEAST_STEP, min(step, step * _RENDERED_STEP // max(1, 2 * (front.layout.size - before))))
        if _covered(front) >= self._end(front, snapshot):
            is_whole = not anchored and (start <= seen or back is not None)
            return front if is_whole else _placed(shown, front, start, seen)
        if anchored and (front.layout.size >= position or (back is not None and _covered(front) > _start(back))):
            return _placed(shown, self._further(front, snapshot, None), start, seen)
        if front.layout.size >= position:
            back, position = None, shown.layout.size
        return _joined(Ends(front, back, position, min(2 * step, _MOST_STEP), anchored), snapshot)

    def _further(self, part: Shown, snapshot: LogSnapshot, most: int | None) -> Shown:
        """`_grown`, of a part that may end at messages that have been deleted."""
        if snapshot.log_start_offset > _covered(part):
            raise SegmentGone(
                f"messages of {snapshot.tp} that this file had have been deleted before they were read",
                offset=_covered(part), advice="Open it again",
            )  # fmt: skip
        return self._grown(part, snapshot, most)

    def _further_back(self, shown: Shown, snapshot: LogSnapshot, start: int, seen: int) -> Shown:
        """The view with more messages at the beginning of its back, down to the position `start` if the estimate was
        right."""
        ends = shown.ends
        assert ends is not None
        front, back, position, step, anchored = ends
        assert back is not None
        if start >= position:
            return _joined(ends._replace(anchored=True), snapshot)
        before = _start(back)
        first = offset_before(snapshot, before, max(step, position - start))
        if first > _covered(front):
            part = self._grown(_from(front, first, before), snapshot)
            shift = part.layout.size
            if position - shift > front.layout.size:
                back = _prepended(part, back)
                return _joined(Ends(front, back, position - shift, min(2 * step, _MOST_STEP), anchored), snapshot)
        return _placed(shown, self._further(front, snapshot, None), start, seen)

    def _grown(self, shown: Shown, snapshot: LogSnapshot, most: int | None = None) -> Shown:
        """The view with all messages that the log has now; `most`: with at most about so many more bytes of the log's
        files."""
        layout, selection, tally = shown.layout, shown.selection, shown.tally
        runs, greatest, cursor, complete = list(layout.runs), layout.greatest, layout.cursor, layout.complete
        looked_at = shown.looked_at
        if not complete:
            visible = visible_end(snapshot, self._question.isolation)
            if selection.limit is not None and selection.end_offset is None:
                selection, tally = self._counted(snapshot, selection, tally, visible)
            end_offset = selection.end_offset
            spans, cursor = spans_from(snapshot, cursor, end_offset, visible)
            looked_at = snapshot.segments
            if most is not None:
                spans, cursor = self._first(shown, snapshot, spans, cursor, most)
            complete = self._question.is_fixed or (end_offset is not None and cursor.next_offset >= end_offset)
            for span in spans:
                grows = span is spans[-1] and not complete
                greatest = max(greatest, shown.plan.add(snapshot, runs, span, grows=grows))
            if complete:
                runs = [run for run in runs if run.end > run.start]  # drop the empty runs that were kept to grow
        layout = Layout.of(cursor, runs, greatest, complete, _unlisted(runs, snapshot))
        return Shown(snapshot, selection, shown.plan, layout, looked_at, tally)

    @staticmethod
    def _first(
        shown: Shown, snapshot: LogSnapshot, spans: list[Span], cursor: Cursor, most: int
    ) -> tuple[list[Span], Cursor]:
        """The first of the spans, after measuring about `most` bytes of them; and the cursor after these spans."""
        plan, runs, first = shown.plan, list(shown.layout.runs), list[Span]()
        assert isinstance(plan, MeasuringPlan)
        for span in spans:
            if most <= 0:
                return first, Cursor(span.segment.base_offset, first[-1].segment, first[-1].end)
            end = span.start
            behind = None
            while behind is None:
                end = plan.measure(snapshot, runs if span is spans[0] else [], span, min(span.end, end + most))
                if end == span.end:
                    break
                behind = cursor_at(snapshot, span.segment, end)
            first.append(span._replace(end=end))
            if behind is not None:
                return first, behind
            most -= end - span.start
        return first, cursor

    def _counted(
        self, snapshot: LogSnapshot, selection: Selection, tally: Tally, visible: int
    ) -> tuple[Selection, Tally]:
        """An A+N with its end if it is complete now; otherwise how far it has been counted."""
        assert selection.limit is not None
        isolation = self._question.isolation
        nth = nth_message(snapshot, tally.offset, selection.limit - tally.messages, isolation)
        if nth is not None:
            return replace(selection, end_offset=nth + 1, complete=True), tally
        if visible <= tally.offset:
            return selection, tally
        return selection, Tally(visible, tally.messages + count_messages(snapshot, tally.offset, visible, isolation))


_LATE_STEPS = 2  # of files, measured after the last message of a time that is not late
_LEAST_STEP = 64  # of files
_FIRST_STEP = 1 << 20
_MOST_STEP = 32 << 20
_LAST_BYTES = 64 << 10  # tail(1) and tac(1) read 8 KiB at once
_RENDERED_STEP = 6 << 20  # of a sequential reader: most of what is rendered in advance


def _unlisted(runs: Iterable[Run], snapshot: LogSnapshot) -> frozenset[Segment]:
    listed = set(snapshot.segments)
    return frozenset(run.segment for run in runs if run.segment not in listed)


def _with_rest(selection: Selection, rest: Rest) -> Shown:
    """The view of a range of times whose body is shown."""
    body, later = rest.body, rest.later.layout
    greatest = max(body.layout.greatest, later.greatest)
    layout = replace(body.layout, greatest=greatest, complete=False, behind=later.size)
    return replace(body, selection=selection, layout=layout, rest=rest)


def _joined(ends: Ends, snapshot: LogSnapshot) -> Shown:
    """A view with these ends."""
    front, back = ends.front, ends.back
    size, greatest, runs = front.layout.size, front.layout.greatest, front.layout.runs
    gap = Gap(size, max(ends.position, size + 1), ends.anchored)
    if back is not None:
        greatest = max(greatest, back.layout.greatest)
        runs += _moved(back.layout.runs, ends.position)
    layout = Layout.of(front.layout.cursor, runs, greatest, False, _unlisted(runs, snapshot), gap)
    return replace(front, snapshot=snapshot, layout=layout, ends=ends)


def _prepended(part: Shown, back: Shown) -> Shown:
    """A back with the messages of `part` before it."""
    runs = (*part.layout.runs, *_moved(back.layout.runs, part.layout.size))
    greatest, unlisted = max(part.layout.greatest, back.layout.greatest), back.layout.unlisted | part.layout.unlisted
    layout = Layout.of(back.layout.cursor, runs, greatest, back.layout.complete, unlisted)
    return replace(back, selection=replace(back.selection, start_offset=part.selection.start_offset), layout=layout)


def _placed(shown: Shown, whole: Shown, start: int, seen: int) -> Shown:
    """The view once everything is measured: the exact view, if the size was estimated right or only the first bytes
    were seen. Otherwise the first bytes that were seen keep their positions, and the last bytes end where the view was
    shown to end; a read at `start` fails if `start` is between the two."""
    assert shown.ends is not None
    size, estimated = whole.layout.size, shown.layout.size
    split = max(seen, seen + 1 + size - estimated)
    position = estimated - size + split
    if size == estimated or (not shown.ends.anchored and start < min(position, size)):
        return whole
    if start < position:
        raise _estimated(whole.snapshot)
    back = _part(whole, split, size)
    return _joined(Ends(_part(whole, 0, seen), back, position, _MOST_STEP, anchored=True), whole.snapshot)


def _part(whole: Shown, start: int, end: int) -> Shown:
    """The bytes from `start` to `end` of an exact view, moved to the position 0."""
    runs = []
    for run in whole.layout.runs:
        first, behind = max(run.start, start), min(run.end, end)
        if first < behind or (first == behind == whole.layout.size):
            source_start = run.source_start + first - run.start
            file_end = run.file_end if behind == run.end else -1
            runs.append(Run(first - start, behind - start, run.segment, run.extent, source_start, file_end))
    layout = whole.layout
    return replace(whole, layout=Layout.of(layout.cursor, runs, layout.greatest, layout.complete, layout.unlisted))


def _from(shown: Shown, first: int, end: int | None) -> Shown:
    """An empty view, to be filled with the messages from the offset `first` up to `end`."""
    layout = Layout.of(Cursor(first), (), NO_TIMESTAMP, complete=False)
    return replace(shown, selection=replace(shown.selection, start_offset=first, end_offset=end), layout=layout)


def _moved(runs: Iterable[Run], by: int) -> tuple[Run, ...]:
    return tuple(run._replace(start=run.start + by, end=run.end + by) for run in runs)


def _covered(shown: Shown) -> int:
    """The offset below which a part of a view has all messages."""
    return shown.layout.cursor.next_offset


def _start(back: Shown) -> int:
    """The offset from which a back has all messages."""
    return back.selection.start_offset


def _estimated(snapshot: LogSnapshot) -> SizeWasEstimated:
    return SizeWasEstimated(
        f"the size of this file of {snapshot.tp} was an estimate, and its last messages are not where it showed them",
        advice="Open it again: the messages that have been measured meanwhile have their positions",
    )
