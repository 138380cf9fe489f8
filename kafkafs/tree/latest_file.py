"""`latest.txt`, `latest.jsonl` …: the last message of every key of a partition, or of all partitions of a topic.

A file is made when it is opened, which takes a scan of the log; a stat never scans. It shows what the caller has open,
otherwise the size that the last open found, and before the first an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from kafkafs.formats import by_name
from kafkafs.selection.select import Selection
from kafkafs.tree.directories import LOOKED_INTO
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.tree.paths import DECODED, LatestPath
from kafkafs.tree.range_file import estimated_size
from kafkafs.tree.services import Services
from kafkafs.view_index.workbench import Rendition
from kafkafs.views.growth import Question
from kafkafs.views.handle import Handle
from kafkafs.views.latest import LatestHandle, LatestPlan, held_bytes
from kafkafs.views.open_view import OpenView
from kafkafs.views.path_pages import PathPages
from kafkafs.views.plans import Plan
from kafkafs.views.rendered import RenderedHandle
from kafkafs.views.state import ViewState
from kafkafs.views.times import log_mtime_ns
from storage.client.counting import visible_end
from storage.latest.latest_records import latest_offsets
from storage.latest.offset_map import Int64s
from storage.log.log_dir import LogDir
from storage.log.snapshot import Log, LogSnapshot
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition


class LatestFile(File):
    """The file of a partition."""

    def __init__(self, services: Services, log: Log, ext: str) -> None:
        self._services = services
        self._node = LatestPath(log.tp, ext)
        self._question = Question(log, None, services.isolation, clamp=False, at_open=True)

    def attributes(self) -> Attributes:
        state = self._services.states.get(self._node, self._question.log, self._make_state)
        layout = None if state is None else state.seen()
        snapshot = self._question.log.snapshot()
        size = estimated_size(snapshot, snapshot.segments, None) if layout is None else layout.size
        if layout is not None and layout.greatest != NO_TIMESTAMP:
            mtime_ns = layout.greatest * 1_000_000
        else:
            mtime_ns = log_mtime_ns(self._question.log, snapshot)
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        services = self._services
        state = services.states.obtain(self._node, self._question.log, self._make_state)
        view = OpenView(state)
        services.latest.hold(self._node, state, held_bytes(view.positions.layout))
        return _Handle(view, services)

    def xattrs(self) -> Mapping[str, bytes]:
        snapshot = self._question.log.snapshot()
        facts = {
            "topic": snapshot.tp.topic,
            "partition": snapshot.tp.partition,
            "start_offset": snapshot.log_start_offset,
            "end_offset": visible_end(snapshot, self._question.isolation),
            "isolation": self._question.isolation.value,
        }
        return {f"user.kafka.{name}": str(value).encode() for name, value in facts.items()}

    def _make_state(self, pages: PathPages | None) -> ViewState:
        services, tp = self._services, self._question.log.tp
        # The scan has applied the isolation: what it has found is shown.
        isolation = Isolation.READ_UNCOMMITTED
        plain = None if self._node.ext == DECODED else Rendition(by_name(self._node.ext, tp), isolation)

        def plan(_: Selection) -> Plan:
            rendition = plain or replace(services.decoded.rendition(tp), isolation=isolation)
            return LatestPlan(services.index, rendition, self._find)

        return ViewState(
            self._question,
            plan,
            services.clocks,
            services.callers,
            pages,
        )

    def _find(self, snapshot: LogSnapshot) -> Int64s:
        services = self._services
        with services.latest.scan, services.index.scanning(self._question.log.path, snapshot.size_bytes) as on_bytes:
            return latest_offsets(snapshot, services.isolation, services.latest.scan_bytes, on_bytes)


class LatestOfTopic(File):
    """The file of a topic: those of its partitions, one after the other. A key that is in several partitions is in each
    of them."""

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
        found = [file.attributes() for file in self._files()]
        mtime_ns = max((one.mtime_ns for one in found), default=0)
        return Attributes(NodeKind.FILE, sum(one.size for one in found), mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        with ExitStack() as opened:
            parts = []
            for file in self._files():
                parts.append(file.open())
                opened.callback(parts[-1].close)
            handle = LatestHandle(parts)
            opened.pop_all()
        return handle

    def xattrs(self) -> Mapping[str, bytes]:
        return {"user.kafka.topic": self._topic.encode()}


class _Handle(RenderedHandle):
    """An open file of a partition."""

    def __init__(self, view: OpenView, services: Services) -> None:
        super().__init__(view, services.cache, services.workers)
        self._services = services

    def close(self) -> None:
        super().close()
        self._services.latest.trim(self._services.states)
