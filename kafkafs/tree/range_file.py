"""`messages.*`, `offsets/*` and `time/*`: a partition's messages in a range, in one of the formats; and `keys/*`, those
with a key."""

from __future__ import annotations

from collections.abc import Mapping

from kafkafs.formats import by_name
from kafkafs.selection.range_names import LastDuration, LastMessages, OffsetSpec, TimeBetween, TimeSpec
from kafkafs.selection.select import Selection
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.tree.paths import DECODED, RangePath
from kafkafs.tree.segment_file import FileContent
from kafkafs.tree.services import Services
from kafkafs.view_index.workbench import Rendition
from kafkafs.views.growth import Question
from kafkafs.views.handle import Handle
from kafkafs.views.key_plan import KeyPlan
from kafkafs.views.layout import Layout
from kafkafs.views.open_view import OpenView, ViewHandle
from kafkafs.views.path_pages import PathPages
from kafkafs.views.plans import OffsetPlan, Plan, TimePlan
from kafkafs.views.raw import RawHandle, RawPlan, RawTimePlan
from kafkafs.views.rendered import RenderedHandle
from kafkafs.views.state import ViewState
from kafkafs.views.times import file_mtime_ns, first_timestamp, mtime_ns, newest_timestamp
from storage.client.counting import visible_end
from storage.errors import SegmentGone
from storage.log.rereading import Rereads
from storage.log.segment import Segment
from storage.log.snapshot import Log, LogSnapshot
from storage.types import NO_TIMESTAMP, Isolation


class RangeFile(File):
    """A view of a range. Its state belongs to the path and is made at the first open."""

    def __init__(self, services: Services, log: Log, node: RangePath) -> None:
        self._services = services
        self._node = node
        self._spec = node.spec
        self._question = Question(log, self._spec, services.isolation, services.clamp)

    @property
    def _is_raw(self) -> bool:
        return self._node.ext == "log"

    def attributes(self) -> Attributes:
        shown = self.shown_attributes()
        if shown is not None:
            return shown
        state = self._find()
        snapshot: LogSnapshot | None = None
        if state is None and self._is_raw and not isinstance(self._spec, TimeBetween | LastDuration):
            snapshot = self._question.log.snapshot()
            if not self._is_all_files(snapshot):
                self._obtain()  # a few reads give the exact size
                shown = self.shown_attributes()
                if shown is not None:
                    return shown
        snapshot = snapshot or self._question.log.snapshot()
        segments = estimated_segments(snapshot, self._spec, clamp=self._services.clamp)
        size = estimated_size(snapshot, segments, self._spec)
        if state is not None:
            state.pages.check(size)
        return Attributes(NodeKind.FILE, size, self._estimated_mtime_ns(snapshot, segments), FILE_MODE)

    def shown_attributes(self) -> Attributes | None:
        """What stat shows if the file was opened lately: its exact size. Otherwise None."""
        state = self._find()
        layout = None if state is None else state.glance()
        if state is None or layout is None:
            return None
        state.pages.check(layout.size)
        return Attributes(NodeKind.FILE, layout.size, self._mtime_ns(layout), FILE_MODE)

    def first_found(self) -> tuple[int, int]:
        """Of a key's file: the bytes that the first of its messages render to, 0 if there is none, and the greatest
        timestamp in them, -1 if there is none."""
        rereads = Rereads()
        while True:
            try:
                snapshot = self._question.log.snapshot()
                plan = self._key_plan(self._node.key or b"")
                return next((found for found in plan.first_sizes(snapshot) if found[0]), (0, NO_TIMESTAMP))
            except SegmentGone:
                if rereads.are_exhausted(0):
                    raise

    def open(self) -> Handle:
        return self.open_view()

    def open_view(self) -> ViewHandle:
        """As `open`."""
        state = self._obtain()
        if self._forget_repaired(state.layout):
            state.begin_again()
        if self._is_raw:
            return RawHandle(OpenView(state, _files))
        return RenderedHandle(OpenView(state), self._services.cache, self._services.workers)

    def _forget_repaired(self, layout: Layout | None) -> bool:
        """Whether the layout shows damage in a file that has been changed in place since. Its index is dropped, so that
        it is measured again."""
        found = False
        for run in () if layout is None else layout.runs:
            if run.extent is not None and run.extent.is_outdated():
                self._services.index.forget(run.segment)
                found = True
        return found

    def xattrs(self) -> Mapping[str, bytes]:
        snapshot = self._question.log.snapshot()
        selection = self._question.resolve(snapshot, self._services.clocks.now_ms())
        end = visible_end(snapshot, self._question.isolation)
        if selection.end_offset is not None:
            end = min(end, selection.end_offset)
        facts: dict[str, object] = {
            "topic": snapshot.tp.topic,
            "partition": snapshot.tp.partition,
            "start_offset": selection.start_offset,
            "end_offset": max(end, selection.start_offset),
            "isolation": self._question.isolation.value,
        }
        state = self._find()
        if state is not None and state.layout is not None:
            facts["bytes"] = state.layout.size
        return {f"user.kafka.{name}": str(value).encode() for name, value in facts.items()}

    def _is_all_files(self, snapshot: LogSnapshot) -> bool:
        """Whether a `.log` view is simply all bytes of all segments, so that the estimate is exact."""
        return (
            self._spec is None
            and self._question.isolation is Isolation.READ_UNCOMMITTED
            and bool(snapshot.segments)
            and snapshot.log_start_offset == snapshot.segments[0].base_offset
        )

    def _obtain(self) -> ViewState:
        return self._services.states.obtain(self._node, self._question.log, self._make_state)

    def _find(self) -> ViewState | None:
        return self._services.states.get(self._node, self._question.log, self._make_state)

    def _make_state(self, pages: PathPages | None) -> ViewState:
        return ViewState(self._question, self._plan, self._services.clocks, self._services.callers, pages)

    def _plan(self, selection: Selection) -> Plan:
        if self._is_raw:
            return RawPlan() if selection.time_range is None else RawTimePlan(selection.time_range)
        if self._node.key is not None:
            return self._key_plan(self._node.key)
        rendition = self._rendition()
        if selection.time_range is None:
            return OffsetPlan(self._services.index, rendition)
        return TimePlan(self._services.index, rendition, selection.time_range)

    def _key_plan(self, key: bytes) -> KeyPlan:
        return KeyPlan(self._services.index, self._rendition(), key)

    def _rendition(self) -> Rendition:
        if self._node.ext == DECODED:
            return self._services.decoded.rendition(self._node.tp)
        return Rendition(by_name(self._node.ext, self._node.tp), self._services.isolation)

    def _mtime_ns(self, layout: Layout) -> int:
        if layout.greatest != NO_TIMESTAMP:
            return layout.greatest * 1_000_000
        segments = dict.fromkeys(run.segment for run in layout.runs)
        if self._is_raw and segments:
            return mtime_ns(self._question.log.snapshot(), segments)
        chosen = segments or self._question.log.snapshot().segments
        return file_mtime_ns(chosen) if chosen else self._directory_mtime_ns()

    def _estimated_mtime_ns(self, snapshot: LogSnapshot, segments: tuple[Segment, ...]) -> int:
        chosen = segments or snapshot.segments[-1:]
        found = mtime_ns(snapshot, chosen) if chosen else self._directory_mtime_ns()
        if isinstance(self._spec, TimeBetween) and self._spec.end_ms is not None:
            return min(found, (self._spec.end_ms - 1) * 1_000_000)
        return found

    def _directory_mtime_ns(self) -> int:
        """The mtime for a partition without a segment."""
        return self._question.log.path.stat().st_mtime_ns


def estimated_segments(
    snapshot: LogSnapshot, spec: OffsetSpec | TimeSpec | None, *, clamp: bool
) -> tuple[Segment, ...]:
    """The segments that may hold a range, found without reading messages. OffsetOutOfRange."""
    if spec is None or isinstance(spec, LastDuration):
        return snapshot.segments
    if isinstance(spec, TimeBetween):
        return tuple(segment for segment in snapshot.segments if _overlaps(snapshot, segment, spec))
    if isinstance(spec, LastMessages):
        return snapshot.segments[-1:]
    first, last = spec.first, spec.last
    if first < snapshot.log_start_offset and clamp and (last is None or last >= snapshot.log_start_offset):
        first = snapshot.log_start_offset
    snapshot.check_offset(first)
    if first == snapshot.log_end_offset:
        return ()
    start = max(snapshot.segment_index(first), 0)
    stop = len(snapshot.segments) if last is None else snapshot.segment_index(last) + 1
    return snapshot.segments[start:stop]


def estimated_size(snapshot: LogSnapshot, segments: tuple[Segment, ...], spec: OffsetSpec | TimeSpec | None) -> int:
    """An estimate of the size of a range's file in bytes: 0 if it is known to be empty, otherwise at least 1."""
    if snapshot.log_start_offset == snapshot.log_end_offset or (not segments and not isinstance(spec, TimeBetween)):
        return 0
    size = sum(snapshot.end_position(segment) for segment in segments)
    wanted = None if spec is None or isinstance(spec, TimeBetween | LastDuration) else spec.most
    if wanted is not None:
        there = max(1, _segment_end(snapshot, segments[-1]) - segments[0].base_offset)
        size = size * min(wanted, there) // there
    return max(1, size)


def _segment_end(snapshot: LogSnapshot, segment: Segment) -> int:
    slot = snapshot.segment_index(segment.base_offset) + 1
    return snapshot.segments[slot].base_offset if slot < len(snapshot.segments) else snapshot.log_end_offset


def _overlaps(snapshot: LogSnapshot, segment: Segment, spec: TimeBetween) -> bool:
    newest = newest_timestamp(snapshot, segment)
    if newest == NO_TIMESTAMP or (spec.start_ms is not None and newest < spec.start_ms):
        return False
    return spec.end_ms is None or min(first_timestamp(snapshot, segment), newest) < spec.end_ms


def _files(layout: Layout) -> object:
    """A value that identifies the bytes of a `.log` view: they are the files' own, including damage, so it includes the
    files' ctimes."""
    segments = dict.fromkeys(run.segment for run in layout.runs)
    return layout.runs, tuple(FileContent.of(segment.log.stat()) for segment in segments)
