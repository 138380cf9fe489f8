"""`latest.txt`, `latest.jsonl` …: the last message of every key of a partition, or of all partitions of a topic.

A file is made when it is opened, which takes a scan of the log. A stat never scans: it shows the size of the caller's
open file, otherwise the size of the last open, and before the first open an estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kafkafs.formats import by_name
from kafkafs.reading.block_cache import PathPages
from kafkafs.reading.extent import Extent
from kafkafs.reading.handle import Handle, JoinedHandle, OpenView, ViewHandle, open_all
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.layout import Layout, Plan, Run, Span
from kafkafs.reading.plans import RenderedPlan, append_run
from kafkafs.reading.rendering import RenderedHandle
from kafkafs.reading.selection import ChosenOffsets, Question, Selection
from kafkafs.reading.state import ViewState
from kafkafs.reading.times import log_mtime_ns
from kafkafs.reading.workbench import Rendition
from kafkafs.tree.directories import LOOKED_INTO
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.tree.paths import DECODED, LatestPath
from kafkafs.tree.range_file import estimated_size
from kafkafs.tree.services import Services
from storage.latest.latest_records import latest_offsets
from storage.latest.offset_map import Int64s
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition

# The last message of every key, as one file: a snapshot of a log, seen as a table.
#
# When the file is opened, one scan of the log finds the offsets of the latest messages (`storage.latest`). They are
# then measured and rendered as the messages of any other view, through a filter of offsets; segments without any of
# them are not read again, and batches without any are not decoded. Nothing that happens to the log later changes the
# file: new messages are not in it.

Find = Callable[["LogSnapshot"], "Int64s"]
"""The offsets of the latest messages in a snapshot, ascending."""


class LatestPlan(RenderedPlan):
    """The plan of one opening of a file. Adding the first span finds the messages of the whole snapshot."""

    def __init__(self, index: BlockIndex, rendition: Rendition, find: Find) -> None:
        """`find` applies the isolation already, so `rendition` shows all messages."""
        super().__init__(index, rendition)
        self._find = find
        self._offsets: Int64s | None = None

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        """Adds a span's messages, as Plan.add. `grows` has no effect: the file is complete when it is opened."""
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
        return extent.pieces.greatest_timestamp


def held_bytes(layout: Layout) -> int:
    """The memory of the offsets in a layout that a LatestPlan has made."""
    filters = (run.extent.record_filter for run in layout.runs if run.extent is not None)
    return sum(record_filter.offsets.nbytes for record_filter in filters if isinstance(record_filter, ChosenOffsets))


class LatestFile(File):
    """The file of a partition."""

    def __init__(self, services: Services, log: ReadableLog, ext: str) -> None:
        self._services = services
        self._node = LatestPath(log.tp, ext)
        self._log = log
        self._question = Question(isolation=services.isolation, latest_bytes=services.latest.scan_bytes)

    def attributes(self) -> Attributes:
        state = self._services.states.get(self._node, self._log, self._make_state)
        layout = None if state is None else state.seen()
        snapshot = self._log.snapshot()
        size = estimated_size(snapshot, snapshot.segments, None) if layout is None else layout.size
        if layout is not None and layout.greatest != NO_TIMESTAMP:
            mtime_ns = layout.greatest * 1_000_000
        else:
            mtime_ns = log_mtime_ns(self._log, snapshot)
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> ViewHandle:
        services = self._services
        state = services.states.obtain(self._node, self._log, self._make_state)
        view = OpenView(state)
        services.latest.hold(self._node, state, held_bytes(view.positions.layout))
        return _Handle(view, services)

    def _make_state(self, pages: PathPages | None) -> ViewState:
        services, tp = self._services, self._log.tp
        # The scan has applied the isolation already.
        isolation = Isolation.READ_UNCOMMITTED
        plain = None if self._node.ext == DECODED else Rendition(by_name(self._node.ext, tp), isolation)

        def plan(_: Selection) -> Plan:
            rendition = plain or replace(services.decoded.rendition(tp), isolation=isolation)
            return LatestPlan(services.index, rendition, self._find)

        return ViewState(
            self._log,
            self._question,
            plan,
            services.clocks,
            services.callers,
            pages,
        )

    def _find(self, snapshot: LogSnapshot) -> Int64s:
        services = self._services
        with services.latest.scan, services.index.scanning(self._log.path, snapshot.size_bytes) as on_bytes:
            return latest_offsets(snapshot, services.isolation, services.latest.scan_bytes, on_bytes)


class LatestOfTopic(File):
    """The file of a topic: the files of its partitions, one after the other. A key that has messages in several
    partitions appears once for each of them."""

    def __init__(self, services: Services, log_dir: LogDir, topic: str, ext: str) -> None:
        """UnknownTopicOrPartition."""
        self._services = services
        self._log_dir = log_dir
        self._topic = topic
        self._ext = ext
        self._tps = [TopicPartition(topic, partition) for partition in log_dir.partitions(topic)]

    def _files(self) -> list[LatestFile]:
        return [LatestFile(self._services, self._log_dir.log(tp), self._ext) for tp in self._tps]

    def attributes(self) -> Attributes:
        states = self._services.states
        if len(self._tps) > LOOKED_INTO and not any(states.has(LatestPath(tp, self._ext)) for tp in self._tps):
            return Attributes(NodeKind.FILE, len(self._tps), self._log_dir.mtime_ns, FILE_MODE)
        parts = [file.attributes() for file in self._files()]
        mtime_ns = max((part.mtime_ns for part in parts), default=0)
        return Attributes(NodeKind.FILE, sum(part.size for part in parts), mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return JoinedHandle(open_all(file.open for file in self._files()))


class _Handle(RenderedHandle):
    """An open file of a partition."""

    def __init__(self, view: OpenView, services: Services) -> None:
        super().__init__(view, services.cache, services.workers, services.index.pages)
        self._services = services

    def close(self) -> None:
        super().close()
        self._services.latest.trim(self._services.states)
