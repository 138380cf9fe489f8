"""How the content of a view begins and grows with its log: from one immutable value to the next.

    begin     the name is resolved; positions begin at its first message
    follow    positions stay: messages that retention and compaction remove keep their bytes, new ones are added at the
              end; a truncation ends the view

Each takes a snapshot and returns a new value, or raises and has changed nothing: the caller still has the last value
and may try again with another snapshot. The extents that views share only ever learn more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafkafs.reading.layout import Cursor, Layout, spans_from
from kafkafs.reading.plans import Plan
from kafkafs.reading.selection import Question, Selection
from storage.errors import LogTruncated, OffsetOutOfRange
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
    """The state of a view at one look. `layout` was made for `snapshot`; `looked_at`: the segments that the log
    had when something could last be added, also those of which it shows nothing."""

    snapshot: LogSnapshot
    selection: Selection
    plan: Plan
    layout: Layout
    looked_at: tuple[Segment, ...]
    tally: Tally


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
        """What a file shows now to a reader that has had it open since it showed `shown`. LogTruncated; SegmentGone and
        Raced as in `begin`."""
        if snapshot is shown.snapshot:
            return shown
        if snapshot.generation != shown.snapshot.generation:
            raise LogTruncated(f"{snapshot.tp} was truncated while this file was open", advice="Open it again")
        return self._grown(shown, snapshot)

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

    def _grown(self, shown: Shown, snapshot: LogSnapshot) -> Shown:
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
            complete = self._question.is_fixed or (end_offset is not None and cursor.next_offset >= end_offset)
            for span in spans:
                grows = span is spans[-1] and not complete
                greatest = max(greatest, shown.plan.add(snapshot, runs, span, grows=grows))
            if complete:
                runs = [run for run in runs if run.end > run.start]  # without those that were to grow
        listed = set(snapshot.segments)
        unlisted = frozenset(run.segment for run in runs if run.segment not in listed)
        layout = Layout.of(cursor, runs, greatest, complete, unlisted)
        return Shown(snapshot, selection, shown.plan, layout, looked_at, tally)

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
