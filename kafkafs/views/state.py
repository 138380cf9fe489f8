"""The state of a range's file, shared by all handles on its path: how it begins, grows, shrinks and is forgotten.

    first open          the name is resolved, positions begin at its first message
    while any is open   positions stay: what the log loses keeps its bytes, new messages come behind; only a truncation
                        (a follower's) takes bytes away
    after the last close  positions begin anew at the next look, unless that would give the same
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kafkafs.count import count_messages, nth_message, visible_end
from kafkafs.ranges import LastDuration, LastMessages, OffsetSpec, TimeSpec
from kafkafs.selection import Selection, resolve
from kafkafs.views.layout import Layout, Run
from kafkafs.views.plans import Plan, Raced
from kafkafs.views.shrinking import shrunk
from kafkafs.views.spans import Cursor, spans_from
from storage.errors import SegmentGone
from storage.log.snapshot import Log, LogSnapshot
from storage.log.timestamps import greatest_timestamp
from storage.types import NO_TIMESTAMP, Isolation

_TRIES = 20  # to catch a log between two changes
_PATIENCE_S = 0.1
_FIXED_S = 1.0  # how long `last-15m` is believed while nobody has it open


@dataclass(frozen=True, slots=True)
class Question:
    """What a path asks of a log. `spec` None is all of it. `clamp`: see kafkafs.selection."""

    log: Log
    spec: OffsetSpec | TimeSpec | None
    isolation: Isolation
    clamp: bool

    @property
    def is_fixed(self) -> bool:
        """Whether it means what is there when it is opened, and nothing that comes later."""
        return isinstance(self.spec, LastMessages | LastDuration)

    def resolve(self, snapshot: LogSnapshot, now_ms: int) -> Selection:
        return resolve(snapshot, self.spec, self.isolation, now_ms, clamp=self.clamp)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Time of day for `last-15m`, and time that only runs for how old a look is."""

    now_ms: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic


class ViewState:
    """Thread-safe. `layout` may be read without a lock; it is None until somebody opened the file."""

    def __init__(self, question: Question, plan: Callable[[Selection], Plan], clocks: Clocks) -> None:
        # constant after construction
        self._question = question
        self._make_plan = plan
        self._clocks = clocks
        # replaced as a whole, guarded by the lock for writing
        self.layout: Layout | None = None
        # guarded by the lock
        self._lock = threading.Lock()
        self.handles = 0
        self._snapshot: LogSnapshot | None = None
        self._selection = Selection(0, None)
        self._plan: Plan | None = None
        self._missing: int | None = None  # of an A+N that is not complete: messages still to come
        self._looked = 0.0
        self._settled = False  # the layout would come out the same if it was made anew: it was not kept for a handle
        self._last_opened: Layout | None = None

    def open(self) -> bool:
        """Counts a handle, and makes the layout. Whether the last open had the same runs."""
        with self._lock:
            layout = self._refresh_locked()
            self.handles += 1
            same = self._last_opened is not None and self._last_opened.runs == layout.runs
            self._last_opened = layout
            return same

    def close(self) -> None:
        with self._lock:
            self.handles -= 1

    @property
    def shared_layout(self) -> Layout:
        """The layout as it was last looked at, for holders of a handle."""
        layout = self.layout
        assert layout is not None, "a handle is open"
        return layout

    def refresh(self) -> Layout:
        """The layout as of now."""
        with self._lock:
            return self._refresh_locked()

    def glance(self) -> Layout | None:
        """The layout as of now, or the one before if making it anew takes another thread long: a stat must not wait."""
        if self._lock.acquire(timeout=_PATIENCE_S):
            try:
                return self._refresh_locked()
            finally:
                self._lock.release()
        return self.layout

    def is_older_than(self, age_s: float) -> bool:
        """Whether nobody has looked at the log for so long."""
        return self._clocks.monotonic() - self._looked > age_s

    @property
    def is_sealed(self) -> bool:
        """Whether the range is complete and ends below the active segment: nothing appended can change it."""
        layout, snapshot = self.layout, self._snapshot
        if layout is None or snapshot is None or snapshot.active is None or self._question.is_fixed:
            return False
        return layout.complete and all(run.segment is not snapshot.active for run in layout.runs)

    def _refresh_locked(self) -> Layout:
        for attempt in range(_TRIES):
            snapshot = self._question.log.snapshot()
            try:
                layout = self._adopt_locked(snapshot)
            except Raced:
                continue
            except SegmentGone:
                if attempt == _TRIES - 1:
                    raise
                continue  # The next snapshot will not name it any more.
            return layout
        raise SegmentGone("log changes faster than it is measured", path=self._question.log.path, advice="Try again")

    def _adopt_locked(self, snapshot: LogSnapshot) -> Layout:
        layout, before = self.layout, self._snapshot
        now = self._clocks.monotonic()
        still = self._settled and not self._is_outdated(now)
        if layout is not None and snapshot is before and (self.handles or still):
            self._looked = now
            return layout
        if layout is None or before is None or not (self.handles or self._goes_on_locked(layout, before, snapshot)):
            self.layout = None
            self._selection = self._question.resolve(snapshot, self._clocks.now_ms())
            self._missing = self._selection.limit
            self._plan = self._make_plan(self._selection)
            layout = Layout.of(Cursor(self._selection.start_offset), (), NO_TIMESTAMP, complete=False)
        elif snapshot.generation != before.generation:
            layout = shrunk(layout, before, snapshot)
        layout = self._grow_locked(layout, snapshot)
        self.layout, self._snapshot, self._looked = layout, snapshot, now
        self._settled = not self.handles
        return layout

    def _grow_locked(self, layout: Layout, snapshot: LogSnapshot) -> Layout:
        assert self._plan is not None
        runs, greatest, cursor, complete = list(layout.runs), layout.greatest, layout.cursor, layout.complete
        if not complete:
            visible = visible_end(snapshot, self._question.isolation)
            if self._missing is not None and self._selection.end_offset is None:
                self._count_on_locked(snapshot, cursor.next_offset, visible)
            end_offset = self._selection.end_offset
            spans, cursor = spans_from(snapshot, cursor, end_offset, visible)
            complete = self._question.is_fixed or (end_offset is not None and cursor.next_offset >= end_offset)
            for span in spans:
                grows = span is spans[-1] and not complete
                greatest = max(greatest, self._plan.add(snapshot, runs, span, grows=grows))
            complete = complete or self._has_passed(snapshot, runs)
            if complete:
                runs = [run for run in runs if run.end > run.start]  # without those that were to grow
        listed = set(snapshot.segments)
        unlisted = frozenset(run.segment for run in runs if run.segment not in listed)
        return Layout.of(cursor, runs, greatest, complete, unlisted)

    def _count_on_locked(self, snapshot: LogSnapshot, start_offset: int, visible: int) -> None:
        """Sets the selection's end if what was appended makes an A+N complete."""
        assert self._missing is not None
        nth = nth_message(snapshot, start_offset, self._missing, self._question.isolation)
        if nth is not None:
            self._selection = replace(self._selection, end_offset=nth + 1, complete=True)
        else:
            self._missing -= count_messages(snapshot, start_offset, visible, self._question.isolation)

    def _has_passed(self, snapshot: LogSnapshot, runs: list[Run]) -> bool:
        """Whether the log has left a range of times behind: none of it lies in the active segment, which is later.

        A straggler may still come. It is in the file at the next open.
        """
        times, active = self._selection.time_range, snapshot.active
        if times is None or times.end_ms is None or active is None:
            return False
        if any(run.segment is active and run.end > run.start for run in runs):
            return False
        return greatest_timestamp(snapshot, active).timestamp >= times.end_ms

    def _goes_on_locked(self, layout: Layout, before: LogSnapshot, snapshot: LogSnapshot) -> bool:
        """Whether a layout that nobody has open would come out the same if it was made anew, but for what is new."""
        if self._question.is_fixed or self._missing is not None or snapshot.generation != before.generation:
            return False
        listed = set(snapshot.segments)
        if not all(run.segment in listed for run in layout.runs):
            return False
        now = self._question.resolve(snapshot, self._clocks.now_ms())
        return now.start_offset == self._selection.start_offset

    def _is_outdated(self, now: float) -> bool:
        return isinstance(self._question.spec, LastDuration) and now - self._looked > _FIXED_S
