"""How the content of a view begins, grows with its log, and shrinks with it: from one immutable value to the next.

    begin     the name is resolved; positions begin at its first message
    follow    positions stay: messages that the log loses keep their bytes, new ones are added at the end; only a
              truncation (on a follower) removes bytes

Each takes a snapshot and returns a new value, or raises and has changed nothing: the caller still has the last value
and may try again with another snapshot. The extents that views share only ever learn more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from kafkafs.reading.layout import Cursor, Layout, spans_from
from kafkafs.reading.plans import Plan
from kafkafs.reading.range_names import TimeBetween
from kafkafs.reading.selection import Question, Selection, agreed_end
from storage.errors import OffsetOutOfRange
from storage.log.counting import count_messages, nth_message, visible_end
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP

# What remains of an open view after a truncation: a follower's log may lose its last messages and get others instead.
#
# A view consists of covers, one for each segment: "from this offset on, the content was made from this segment". A
# cover is kept or dropped as a whole, even one without bytes (other messages, which do show, may be there now). The
# view is made again from the first cover that reaches beyond the offset up to which the log is unchanged. Messages
# still in the log render to the same bytes, so positions before the truncation stay, and no place has to be found in a
# file that was overwritten. Segments that retention or compaction removed are different: their places keep their bytes.


class Cover(NamedTuple):
    """The content from `first_offset` up to the next cover, or the cursor, was made from `segment`."""

    first_offset: int
    segment: Segment


class Kept(NamedTuple):
    """`covers`: how many are kept. `placed_end`: up to this offset (excluded) what is made again has the bytes that it
    had; above it they were cut off, or compaction has removed some of them since."""

    covers: int
    placed_end: int


def kept_covers(covers: Sequence[Cover], next_offset: int, agreed: int, snapshot: LogSnapshot) -> Kept:
    """What is kept of covers, of which the last ends at the cursor, at `next_offset`: those that end at or before the
    offset `agreed`, and whose file was not cut: one that was can only be read as another segment."""
    listed = set(snapshot.segments)
    files = {_file(segment) for segment in listed}
    kept = len(covers)
    for index in range(len(covers)):
        segment = covers[index].segment
        end = covers[index + 1].first_offset if index + 1 < len(covers) else next_offset
        if end > agreed or (segment not in listed and _file(segment) in files):
            kept = index
            break
    gone = (cover.first_offset for cover in covers[kept:] if _file(cover.segment) not in files)
    return Kept(kept, min(agreed, next(gone, agreed)))


def _file(segment: Segment) -> tuple[int, object]:
    """A file under its offset: what replaces another file may get the inode of a third."""
    return segment.base_offset, segment.log.identity


class Tally(NamedTuple):
    """How far an incomplete A+N has been counted: it holds so many `messages` below `offset`."""

    offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The state of a view at one look. `layout` was made for `snapshot`, from what `covers` lists.

    `cuts`: for each truncation that has removed something from it, the position up to which it was not changed.
    """

    snapshot: LogSnapshot
    selection: Selection
    plan: Plan
    layout: Layout
    covers: tuple[Cover, ...]
    tally: Tally
    cuts: tuple[int, ...] = ()


class Growth:
    """The steps of one view. Holds no state."""

    def __init__(self, question: Question, plan: Callable[[Selection], Plan]) -> None:
        self._question = question
        self._make_plan = plan

    def begin(self, snapshot: LogSnapshot, now_ms: int) -> Shown:
        """What a file opened now shows. OffsetOutOfRange; SegmentGone and Raced: try again with a newer snapshot."""
        selection = self._question.resolve(snapshot, now_ms)
        start = selection.start_offset
        layout = Layout.of(Cursor(start), (), NO_TIMESTAMP, complete=False)
        shown = Shown(snapshot, selection, self._make_plan(selection), layout, (), Tally(start, 0))
        return self._grown(shown, snapshot)

    def follow(self, shown: Shown, snapshot: LogSnapshot) -> Shown:
        """What a file shows now to a reader that has had it open since it showed `shown`. SegmentGone, Raced as in
        `begin`."""
        if snapshot is shown.snapshot:
            return shown
        if snapshot.generation == shown.snapshot.generation:
            return self._grown(shown, snapshot)
        agreed = agreed_end(shown.snapshot, snapshot, self._question.isolation)
        start = shown.selection.start_offset
        if agreed < start and self._question.offsets is None and isinstance(self._question.times, TimeBetween | None):
            # Nothing is left of it, so it begins where the messages that exist now begin.
            # These two kinds of range do not depend on the time of day.
            return replace(self.begin(snapshot, 0), cuts=(*shown.cuts, 0))
        end_offset = shown.layout.cursor.next_offset
        kept = kept_covers(shown.covers, end_offset, agreed, snapshot)
        cut = self._cut(shown, snapshot, agreed, kept.covers)
        first = min(cut.layout.cursor.next_offset, cut.tally.offset)
        # What is made again begins where it began before, although the log start may be higher by now.
        seen = snapshot if first >= snapshot.log_start_offset else replace(snapshot, log_start_offset=first)
        grown = self._grown(cut, seen)
        if kept.placed_end < end_offset:
            position = grown.layout.size
            if kept.placed_end < visible_end(snapshot, self._question.isolation):
                position = min(position, self._position(cut, seen, kept.placed_end))
            grown = replace(grown, cuts=(*shown.cuts, position))
        return replace(grown, snapshot=snapshot)

    def would_begin_alike(self, shown: Shown, snapshot: LogSnapshot, now_ms: int) -> bool:
        """Whether `shown`, followed to `snapshot`, equals what `begin` would return."""
        if snapshot.generation != shown.snapshot.generation:
            return False
        # A latest file depends on every segment, also on those of which it shows nothing: when compaction removes an
        # aborted message, an earlier message becomes the last of its key.
        is_latest = self._question.latest_bytes is not None
        used = {part.segment for part in (shown.covers if is_latest else shown.layout.runs)}
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

    def _cut(self, shown: Shown, snapshot: LogSnapshot, agreed: int, kept: int) -> Shown:
        """The part of `shown` that was made from the first `kept` covers, all of them below the offset `agreed`."""
        selection, layout, covers = shown.selection, shown.layout, shown.covers
        dropped = {cover.segment for cover in covers[kept:]}
        left = list(takewhile(lambda run: run.segment not in dropped, layout.runs))
        runs = shown.plan.kept(snapshot, left)
        if len(runs) < len(left):  # the last of these segments is measured again
            return self._cut(shown, snapshot, agreed, kept - 1)
        if layout.cursor.next_offset <= agreed and not dropped:
            return replace(shown, layout=replace(layout, runs=runs))
        first = agreed if kept == len(covers) else min(agreed, covers[kept].first_offset)
        cursor = Cursor(max(first, selection.start_offset))
        tally = Tally(cursor.next_offset, 0)
        if selection.limit is not None:
            selection = replace(selection, end_offset=None, complete=False)
            count = shown.plan.count(runs)
            tally = Tally(selection.start_offset, 0) if count is None else tally._replace(messages=count)
        # A fixed range too is made again, up to its end: what was appended since it was opened is no part of it.
        layout = Layout.of(cursor, runs, layout.greatest, complete=False)
        return replace(shown, selection=selection, layout=layout, covers=covers[:kept], tally=tally)

    def _position(self, cut: Shown, snapshot: LogSnapshot, end_offset: int) -> int:
        """The position at which the messages below an offset end, in what `cut` grows to."""
        spans, _ = spans_from(snapshot, cut.layout.cursor, end_offset, visible_end(snapshot, self._question.isolation))
        runs = list(cut.layout.runs)
        for span in spans:
            cut.plan.add(snapshot, runs, span, grows=False)
        return runs[-1].end if runs else 0

    def _grown(self, shown: Shown, snapshot: LogSnapshot) -> Shown:
        layout, selection, tally = shown.layout, shown.selection, shown.tally
        runs, greatest, cursor, complete = list(layout.runs), layout.greatest, layout.cursor, layout.complete
        covers = list(shown.covers)
        if not complete:
            visible = visible_end(snapshot, self._question.isolation)
            if selection.limit is not None and selection.end_offset is None:
                selection, tally = self._counted(snapshot, selection, tally, visible)
            end_offset = selection.end_offset
            spans, cursor = spans_from(snapshot, cursor, end_offset, visible)
            complete = self._question.is_fixed or (end_offset is not None and cursor.next_offset >= end_offset)
            for span in spans:
                if not covers or covers[-1].segment is not span.segment:
                    first = layout.cursor.next_offset if span is spans[0] else span.segment.base_offset
                    covers.append(Cover(first, span.segment))
                grows = span is spans[-1] and not complete
                greatest = max(greatest, shown.plan.add(snapshot, runs, span, grows=grows))
            if complete:
                runs = [run for run in runs if run.end > run.start]  # without those that were to grow
        listed = set(snapshot.segments)
        unlisted = frozenset(run.segment for run in runs if run.segment not in listed)
        layout = Layout.of(cursor, runs, greatest, complete, unlisted)
        return Shown(snapshot, selection, shown.plan, layout, tuple(covers), tally, shown.cuts)

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
