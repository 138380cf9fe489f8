"""The directories of the tree. Listings read no messages: file names, first headers and time indexes are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kafkafs.reading.range_names import MalformedRange, day_name, offsets_name
from kafkafs.reading.times import DAY_MS, known_days, log_mtime_ns, shown_segments
from kafkafs.tree.append_files import APPEND_FILES
from kafkafs.tree.node import DIRECTORY_MODE, Attributes, Directory, Entry, NodeKind
from kafkafs.tree.paths import (
    DECODED,
    EXTENSIONS,
    RENDERED,
    ROOT_FILES,
)
from kafkafs.tree.schema_directories import SCHEMAS
from storage.errors import StorageError
from storage.files.listing import scan_quietly
from storage.files.names import FileKind, segment_file
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.types import TopicPartition

MESSAGE_FILES = tuple(f"messages.{ext}" for ext in EXTENSIONS)
LATEST_FILES = tuple(f"latest.{ext}" for ext in RENDERED)
WRITABLE_MODE = 0o755
LOOKED_INTO = 16  # a topic with more partitions takes its mtime from their directories, not from their logs


class RootDirectory(Directory):
    """The mountpoint: the files about the mount, and all topics."""

    def __init__(self, log_dir: LogDir, has_schemas: Callable[[], bool], *, writable: bool = False) -> None:
        self._log_dir = log_dir
        self._has_schemas = has_schemas
        self._mode = WRITABLE_MODE if writable else DIRECTORY_MODE

    def attributes(self) -> Attributes:
        below = 1 + self._has_schemas() + len(self._log_dir.topics())
        return Attributes(NodeKind.DIRECTORY, 0, self._log_dir.mtime_ns, self._mode, 2 + below)

    def list(self) -> Iterable[Entry]:
        yield from (Entry(name, NodeKind.FILE) for name in ROOT_FILES)
        yield Entry("@groups", NodeKind.DIRECTORY)
        if self._has_schemas():
            yield Entry(SCHEMAS, NodeKind.DIRECTORY)
        yield from (Entry(topic, NodeKind.DIRECTORY) for topic in self._log_dir.topics())


class TopicDirectory(Directory):
    """A topic: its configuration, and its partitions that are in this directory."""

    def __init__(
        self, log_dir: LogDir, topic: str, is_decoded: Callable[[str], bool], *, writable: bool = False
    ) -> None:
        """`is_decoded`: whether a topic has decoded views."""
        self._log_dir = log_dir
        self._topic = topic
        self._is_decoded = is_decoded
        self._more = APPEND_FILES if writable else ()
        self._partitions = log_dir.partitions(topic)

    def attributes(self) -> Attributes:
        return _directory(max(self._mtimes(), default=0), len(self._partitions) + 1)

    def list(self) -> Iterable[Entry]:
        names = ("@config", *_there(LATEST_FILES, self._is_decoded(self._topic)), *self._more)
        yield from (Entry(name, NodeKind.FILE) for name in names)
        yield Entry("keys", NodeKind.DIRECTORY)
        yield from (Entry(str(partition), NodeKind.DIRECTORY) for partition in self._partitions)

    def _mtimes(self) -> Iterator[int]:
        for partition in self._partitions:
            tp = TopicPartition(self._topic, partition)
            try:
                if len(self._partitions) <= LOOKED_INTO:
                    log = self._log_dir.log(tp)
                    yield log_mtime_ns(log, log.snapshot())
                else:
                    yield (self._log_dir.path / tp.dir_name).stat().st_mtime_ns
            except (StorageError, OSError):
                continue  # a stat of the partition reports it


class PartitionDirectory(Directory):
    """A partition."""

    _DIRECTORIES = ("keys", "offsets", "time", "segments")

    def __init__(
        self, log_dir: LogDir, log: ReadableLog, is_decoded: Callable[[str], bool], *, writable: bool = False
    ) -> None:
        """`is_decoded`: whether a topic has decoded views."""
        self._log_dir = log_dir
        self._log = log
        self._is_decoded = is_decoded
        self._more = ("@info.json", *(APPEND_FILES if writable else ()))

    def attributes(self) -> Attributes:
        return _directory(log_mtime_ns(self._log, self._log.snapshot()), len(self._DIRECTORIES))

    def list(self) -> Iterable[Entry]:
        names = _there((*MESSAGE_FILES, *LATEST_FILES), self._is_decoded(self._log.tp.topic))
        yield from (Entry(name, NodeKind.FILE) for name in (*names, *self._more))
        yield from (Entry(name, NodeKind.DIRECTORY) for name in self._DIRECTORIES)


def _there(names: Iterable[str], is_decoded: bool) -> list[str]:
    """The names of views that a topic has."""
    return [name for name in names if is_decoded or not name.endswith(DECODED)]


class RangesDirectory(Directory):
    """`offsets` or `time`: the ranges that `names_of` lists. Others can be opened without being listed."""

    def __init__(self, log: ReadableLog, names_of: Callable[[LogSnapshot], Iterable[str]]) -> None:
        self._log = log
        self._names_of = names_of

    def attributes(self) -> Attributes:
        return _directory(log_mtime_ns(self._log, self._log.snapshot()), 0)

    def list(self) -> Iterable[Entry]:
        return [Entry(f"{name}.txt", NodeKind.FILE) for name in self._names_of(self._log.snapshot())]


class SegmentsDirectory(Directory):
    """`segments`: the partition's real files, and the .log files of remote segments."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log

    def attributes(self) -> Attributes:
        return _directory(self._log.path.stat().st_mtime_ns, 0)

    def list(self) -> Iterable[Entry]:
        with scan_quietly(self._log.path) as entries:
            names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        names |= {segment_file(segment.base_offset, FileKind.LOG) for segment in self._log.snapshot().remote}
        return [Entry(name, NodeKind.FILE) for name in sorted(names)]


def segment_ranges(snapshot: LogSnapshot) -> Iterator[str]:
    """The names of the offset ranges, one for each segment, from the log start on. Each number has as many digits as
    the log end, so that a shell's `offsets/*` is in order."""
    start, digits = snapshot.log_start_offset, len(str(snapshot.log_end_offset))
    for index, segment in enumerate(snapshot.segments):
        first = max(segment.base_offset, start)
        if segment is snapshot.active:
            yield offsets_name(first, digits=digits)
        elif (behind := snapshot.segments[index + 1].base_offset) > first:
            yield offsets_name(first, behind - 1, digits)


def day_names(snapshot: LogSnapshot) -> list[str]:
    """The names of the days on which the segments are known to have messages, ascending."""
    days: set[int] = set()
    for segment in shown_segments(snapshot):
        days.update(known_days(snapshot, segment).tolist())
    return [name for day in sorted(days) for name in _name_of(day)]


def _name_of(day: int) -> Iterator[str]:
    try:
        yield day_name(day * DAY_MS)
    except MalformedRange:
        return  # beyond the year 9999


def _directory(mtime: int, directories: int) -> Attributes:
    return Attributes(NodeKind.DIRECTORY, 0, mtime, DIRECTORY_MODE, 2 + directories)
