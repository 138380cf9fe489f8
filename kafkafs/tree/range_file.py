"""`messages.*`, `offsets/*` and `time/*`: a partition's messages in a range, in one of the formats."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from kafkafs.formats import by_name
from kafkafs.reading.block_cache import PathPages
from kafkafs.reading.handle import CopyingHandle, Handle, OpenView, ViewHandle
from kafkafs.reading.layout import Layout, Plan
from kafkafs.reading.plans import OffsetPlan, TimePlan
from kafkafs.reading.range_names import LastDuration, LastMessages, OffsetSpec, TimeBetween, TimeSpec
from kafkafs.reading.raw import RawHandle, RawPlan, RawTimePlan
from kafkafs.reading.rendering import RenderedHandle
from kafkafs.reading.selection import Question, Selection
from kafkafs.reading.state import ViewState
from kafkafs.reading.times import file_mtime_ns, first_timestamp, mtime_ns, newest_timestamp
from kafkafs.reading.workbench import Rendition
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.tree.paths import DECODED, NoSuchPath, RangePath
from kafkafs.tree.services import Services
from storage.errors import StorageError
from storage.files import names
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind, FileState
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.log.tiered_file import TieredFile
from storage.log.tiered_log import TieredLog
from storage.types import NO_TIMESTAMP, Isolation

# `segments/*`: a partition's real files, byte for byte, and the .log files of its remote segments. No descriptor stays
# open: each read opens and checks the file.

_REMEMBERED = 4096
_MTIME_SEGMENTS = 64  # the mtime of a view comes from the indexes of at most so many segments, the newest
_IMMUTABLE = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


@dataclass(frozen=True, slots=True)
class FileContent:
    """Values that change whenever the content of a file may have changed. They include the ctime, because a program can
    set the mtime back."""

    identity: FileIdentity
    size: int
    ctime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> FileContent:
        return FileContent(FileIdentity.of(status), status.st_size, status.st_ctime_ns)


class SeenFiles:
    """The pages that the cache may hold of each recently opened file. Thread-safe."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, PathPages] = OrderedDict()

    def find(self, path: str) -> PathPages | None:
        """The pages of a file that was opened."""
        with self._lock:
            return self._seen.get(path)

    def open(self, path: str, content: FileContent, *, sealed: bool) -> tuple[PathPages, bool, bool]:
        """The pages of a file that is being opened, and what PathPages.open returns: direct_io and keep_cache."""
        with self._lock:
            pages = self._seen.pop(path, None) or PathPages()
            self._seen[path] = pages
            if len(self._seen) > _REMEMBERED:
                unused = (path for path, other in self._seen.items() if not other.is_in_use and other is not pages)
                self._seen.pop(next(unused, ""), None)
            return pages, *pages.open(content, content.size, sealed=sealed)


class SegmentFile(File):
    """A real file of a partition's directory, or the .log of a remote segment."""

    def __init__(self, log: ReadableLog, name: str, seen: SeenFiles) -> None:
        self._log = log
        self._name = name
        self._path = f"{log.path}/{name}"
        self._seen = seen

    def attributes(self) -> Attributes:
        _, status = self._found()
        pages = self._seen.find(self._path)
        if pages is not None:
            pages.check(status.st_size)
        return Attributes(NodeKind.FILE, status.st_size, status.st_mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        remote, status = self._found()
        file = remote or LogFile(self._path, FileIdentity.of(status))
        content = FileContent.of(status)
        sealed = self._is_sealed()
        if sealed and remote is None:
            file.fix(status)  # content that another generation of the topic, or a truncation, puts there is not read
        return SegmentFileHandle(file, content, *self._seen.open(self._path, content, sealed=sealed))

    def _found(self) -> tuple[TieredFile | None, os.stat_result]:
        """The log's file if it is in a tier, otherwise None, and the status."""
        parsed = names.parse_segment_file(self._name) if isinstance(self._log, TieredLog) else None
        if parsed is not None and parsed.kind is FileKind.LOG and parsed.state is FileState.LIVE:
            snapshot = self._log.snapshot()
            slot = snapshot.segment_index(parsed.offset)
            file = snapshot.segments[slot].log if slot >= 0 else None
            if isinstance(file, TieredFile) and snapshot.segments[slot].base_offset == parsed.offset:
                return file, file.stat()
        return None, self._status()

    def _status(self) -> os.stat_result:
        try:
            status = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise NoSuchPath(self._name) from None
        if not stat.S_ISREG(status.st_mode):
            raise NoSuchPath(self._name)
        return status

    def _is_sealed(self) -> bool:
        """Whether the file belongs to a segment that is no longer written."""
        parsed = names.parse_segment_file(self._name)
        active = self._log.snapshot().active
        return (
            parsed is not None
            and parsed.kind in _IMMUTABLE
            and active is not None
            and parsed.offset < active.base_offset
        )


class SegmentFileHandle(CopyingHandle):
    """An open real file."""

    def __init__(
        self, file: LogFile, content: FileContent, pages: PathPages, direct_io: bool, keep_cache: bool
    ) -> None:
        self._file = file
        self._content = content
        self._pages = pages
        self._open = True
        self.direct_io = direct_io
        self.keep_cache = keep_cache

    @property
    def size(self) -> int:
        return self._file.stat().st_size if self.direct_io else self._content.size

    def read_into(self, address: int, offset: int, size: int) -> int:
        if size <= 0:
            return 0
        target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        return len(self._file.read(offset, size, target))

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self.direct_io:
                self._pages.close(self._content, self._content.size)


class RangeFile(File):
    """A view of a range. Its state belongs to the path, and is made at the first open or by a stat that measures."""

    def __init__(self, services: Services, log: ReadableLog, node: RangePath) -> None:
        self._services = services
        self._node = node
        self._spec = node.spec
        self._log = log

    @property
    def _question(self) -> Question:
        return Question.of(self._spec, self._services.isolation, clamp=self._services.clamp)

    @property
    def _is_raw(self) -> bool:
        return self._node.ext == "log"

    def attributes(self) -> Attributes:
        state = self._find()
        shown = self._shown(state)
        if shown is not None:
            return shown
        snapshot: LogSnapshot | None = None
        if state is None and self._is_raw and not isinstance(self._spec, TimeBetween | LastDuration):
            snapshot = self._log.snapshot()
            if not self._is_all_files(snapshot):
                self._obtain()  # a few reads give the exact size
                shown = self.shown_attributes()
                if shown is not None:
                    return shown
        snapshot = snapshot or self._log.snapshot()
        if state is None and not self._is_raw and snapshot.size_bytes <= self._services.stat_bytes:
            # tar and cpio store as many bytes as stat says before they open a file.
            with suppress(StorageError, OSError):  # reading reports it
                self._obtain()
                shown = self.shown_attributes()
                if shown is not None:
                    return shown
        segments = estimated_segments(snapshot, self._spec, clamp=self._services.clamp)
        size = estimated_size(snapshot, segments, self._spec)
        if state is not None:
            state.pages.check(size)
        return Attributes(NodeKind.FILE, size, self._estimated_mtime_ns(snapshot, segments), FILE_MODE)

    def shown_attributes(self) -> Attributes | None:
        """The attributes for stat if the file was opened lately: its exact size. Otherwise None."""
        return self._shown(self._find())

    def _shown(self, state: ViewState | None) -> Attributes | None:
        layout = None if state is None else state.glance()
        if state is None or layout is None:
            return None
        state.pages.check(layout.size)
        return Attributes(NodeKind.FILE, layout.size, self._mtime_ns(layout), FILE_MODE)

    def open(self) -> Handle:
        return self.open_view()

    def open_view(self) -> ViewHandle:
        """`open`, for callers that need the methods of ViewHandle; a key without messages yet is opened too."""
        state = self._obtain()
        if self._forget_repaired(state.layout):
            state.begin_again()
        if self._is_raw:
            return RawHandle(OpenView(state, _files))
        services = self._services
        return RenderedHandle(OpenView(state), services.cache, services.workers, services.index.pages)

    def _forget_repaired(self, layout: Layout | None) -> bool:
        """Whether the layout shows damage in files that have been changed in place since. Drops the index of their
        segments, so that they are measured again."""
        has_repaired = False
        for run in () if layout is None else layout.runs:
            if run.extent is not None and run.extent.is_outdated():
                self._services.index.forget(run.segment)
                has_repaired = True
        return has_repaired

    def _is_all_files(self, snapshot: LogSnapshot) -> bool:
        """Whether a `.log` view is simply all bytes of all segments, so that the estimate is exact."""
        return (
            self._spec is None
            and self._services.isolation is Isolation.READ_UNCOMMITTED
            and bool(snapshot.segments)
            and snapshot.log_start_offset == snapshot.segments[0].base_offset
        )

    def _obtain(self) -> ViewState:
        return self._services.states.obtain(self._node, self._log, self._make_state)

    def _find(self) -> ViewState | None:
        return self._services.states.get(self._node, self._log, self._make_state)

    def _make_state(self, pages: PathPages | None) -> ViewState:
        services = self._services
        clocks, callers = services.clocks, services.callers
        return ViewState(self._log, self._question, self._plan, clocks, callers, pages, services.exact_below)

    def _plan(self, selection: Selection) -> Plan:
        if self._is_raw:
            return RawPlan() if selection.time_range is None else RawTimePlan(selection.time_range)
        rendition = self._rendition()
        if selection.time_range is None:
            return OffsetPlan(self._services.index, rendition)
        return TimePlan(self._services.index, rendition, selection.time_range)

    def _rendition(self) -> Rendition:
        if self._node.ext == DECODED:
            return self._services.decoded.rendition(self._node.tp)
        return Rendition(by_name(self._node.ext, self._node.tp), self._services.isolation)

    def _mtime_ns(self, layout: Layout) -> int:
        if layout.greatest != NO_TIMESTAMP:
            return layout.greatest * 1_000_000
        segments = dict.fromkeys(run.segment for run in layout.runs)
        if self._is_raw and segments:
            return mtime_ns(self._log.snapshot(), segments)
        chosen = segments or self._log.snapshot().segments
        return file_mtime_ns(chosen) if chosen else self._directory_mtime_ns()

    def _estimated_mtime_ns(self, snapshot: LogSnapshot, segments: tuple[Segment, ...]) -> int:
        chosen = segments or snapshot.segments[-1:]
        if not isinstance(self._spec, TimeBetween):
            chosen = chosen[-_MTIME_SEGMENTS:]
        newest_ns = mtime_ns(snapshot, chosen) if chosen else self._directory_mtime_ns()
        if isinstance(self._spec, TimeBetween) and self._spec.end_ms is not None:
            return min(newest_ns, (self._spec.end_ms - 1) * 1_000_000)
        return newest_ns

    def _directory_mtime_ns(self) -> int:
        """The mtime for a partition without a segment."""
        return self._log.path.stat().st_mtime_ns


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
    asked = None if spec is None or isinstance(spec, TimeBetween | LastDuration) else spec.most
    if asked is not None:
        available = max(1, _segment_end(snapshot, segments[-1]) - segments[0].base_offset)
        size = size * min(asked, available) // available
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
    """A value that changes with the bytes of a `.log` view. They are the files' own bytes, damage included, so the
    value includes the files' ctimes."""
    segments = dict.fromkeys(run.segment for run in layout.runs)
    return layout.runs, tuple(FileContent.of(segment.log.stat()) for segment in segments)
