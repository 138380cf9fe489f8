"""Small texts made when they are looked at: `@info.json`, `@config`, `@help`, `@status.json`, `@metrics`.

What a tool sees of such a file must be consistent, although the next text may be longer: `tar` asks for its size, opens
it, asks again (fstat arrives as a stat of the path), reads that many bytes, and complains if size or time have changed.
So

    while open  a stat shows the text that was opened last; each handle keeps its own
    otherwise   a stat makes a text, and the open that follows it within a moment takes that one

The latter applies only to texts that differ each time they are made (`moment_s`); of others an open shows the current
state. Opening a file twice gives a new text each time.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from kafkafs.reading.handle import BytesHandle, Handle, WriteHandle
from kafkafs.reading.range_names import timestamp_text
from kafkafs.reading.times import first_shown_timestamp, log_mtime_ns, newest_timestamp, shown_segments
from kafkafs.tree.append_files import LinesHandle
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.writing.destinations import Taken
from kafkafs.writing.line_parsers import Parsed, parse_txt
from kafkafs.writing.line_writer import Refused
from storage.append.partition_log import PartitionLog
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, StorageError
from storage.log.counting import count_messages
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.snapshot import Log, LogSnapshot
from storage.log.tiered_log import TieredLog
from storage.log.topic_info import TopicInfo
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition

MOMENT_S = 0.25  # from a stat to the open that belongs to it
_KEPT = 64  # texts, of files without an open handle

Make = Callable[[], tuple[bytes, int]]


@dataclass(slots=True)
class _Text:
    """A text; `made`: when, by the monotonic clock; `handles`: how many are open; `opened`: whether one ever was."""

    content: bytes
    mtime_ns: int
    made: float
    handles: int = 0
    opened: bool = False


class GeneratedTexts:
    """The texts of a tree's generated files, by path. Thread-safe; texts are made outside the lock.

    It keeps what open handles were given, whether or not that has changed since. `InfoTexts` keeps texts by another
    rule: until what they were made from changes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # constant after construction
        self._clock = clock
        # guarded by the lock
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, _Text] = OrderedDict()

    def shown(self, path: str, moment_s: float) -> _Text | None:
        """The text that a stat must show: that of an open handle, or one made a moment ago. None: make one."""
        with self._lock:
            text = self._texts.get(path)
            return text if text is not None and (text.handles or self._is_fresh(text, moment_s)) else None

    def keep(self, path: str, content: bytes, mtime_ns: int, handles: int = 0) -> _Text:
        """Keeps a new text of a file, with so many handles open."""
        text = _Text(content, mtime_ns, self._clock(), handles, opened=handles > 0)
        with self._lock:
            self._texts[path] = text
            self._texts.move_to_end(path)
            if len(self._texts) > _KEPT:
                oldest = next((path for path, text in self._texts.items() if not text.handles), None)
                if oldest is not None:
                    del self._texts[oldest]
        return text

    def open(self, path: str, make: Make, moment_s: float) -> _Text:
        """The text for an open; `close` must follow."""
        with self._lock:
            text = self._texts.get(path)
            if text is not None and self._is_fresh(text, moment_s):
                text.handles += 1
                text.opened = True
                return text
        return self.keep(path, *make(), handles=1)

    def close(self, text: _Text) -> None:
        """Ends the use of a text by a handle."""
        with self._lock:
            text.handles -= 1

    def _is_fresh(self, text: _Text, moment_s: float) -> bool:
        return not text.opened and self._clock() - text.made < moment_s


class GeneratedFile(File):
    """A generated file: `make` returns its content and mtime in ns. `moment_s`: see the module's description.

    `size` returns its size and mtime where they are cheaper to know than the text, for a stat while no handle is open.
    """

    def __init__(
        self,
        texts: GeneratedTexts,
        path: str,
        make: Make,
        moment_s: float = 0.0,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._texts = texts
        self._path = path
        self._make = make
        self._moment_s = moment_s
        self._size = size

    def attributes(self) -> Attributes:
        text = self._texts.shown(self._path, self._moment_s)
        if text is not None:
            size, mtime_ns = len(text.content), text.mtime_ns
        elif self._size is not None:
            size, mtime_ns = self._size()
        else:
            content, mtime_ns = self._make()
            size = len(content)
            if self._moment_s:
                self._texts.keep(self._path, content, mtime_ns)
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return _GeneratedHandle(self._texts, self._texts.open(self._path, self._make, self._moment_s))


class _GeneratedHandle(BytesHandle):
    def __init__(self, texts: GeneratedTexts, text: _Text) -> None:
        super().__init__(text.content)
        self._texts = texts
        self._text: _Text | None = text

    def close(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._texts.close(text)


# What is known about a partition or a topic without reading its messages: `@info.json`, `@config`, xattrs.

# The messages of a larger partition are not counted for @info.json: that would mean reading the partition.
_COUNTED_BYTES = 8 << 20
_KEPT_CONFIGS = 2_500  # of about 2 KB each
_XATTRS = (
    "topic", "partition", "log_start_offset", "local_log_start_offset", "log_end_offset", "recovery_point", "segments",
    "bytes", "first_timestamp", "last_timestamp",
)  # fmt: skip


def _partition_facts(
    snapshot: LogSnapshot, info: TopicInfo | None, point: int | None, isolation: Isolation | None
) -> dict[str, Any]:
    """`isolation` None: what could only be found by reading is assumed: no gaps, no transactions."""
    first, last = _timestamps(snapshot)
    facts: dict[str, Any] = {
        "topic": snapshot.tp.topic,
        "partition": snapshot.tp.partition,
        "topic_id": None if info is None else info.topic_id,
        "log_start_offset": snapshot.whole_start_offset,
        "local_log_start_offset": snapshot.local_log_start_offset,
        "log_end_offset": snapshot.log_end_offset,
        "last_stable_offset": snapshot.log_end_offset if isolation is None else _stable(snapshot),
        "recovery_point": point,
        "segments": len(snapshot.segments),
        "offsets": snapshot.log_end_offset - snapshot.log_start_offset,
        "messages": _messages(snapshot, isolation),
        "bytes": snapshot.size_bytes,
        **_remote_facts(snapshot),
        "first_timestamp": first,
        "last_timestamp": last,
        "first_time": None if first is None else timestamp_text(first),
        "last_time": None if last is None else timestamp_text(last),
    }
    if snapshot.active_size > snapshot.active_end:
        facts["invalid_tail_bytes"] = snapshot.active_size - snapshot.active_end
    return facts


def _remote_facts(snapshot: LogSnapshot) -> dict[str, Any]:
    """Of the segments that are read in tiered storage, where there are some: `remote_places` has the directories or
    URLs that they are in."""
    remote = snapshot.remote
    if not remote:
        return {}
    places = dict.fromkeys(place for segment in remote for place in segment.remote_places())
    size = sum(segment.size for segment in remote)
    return {"remote_segments": len(remote), "remote_bytes": size, "remote_places": list(places)}


def _is_complete(facts: Mapping[str, Any]) -> bool:
    """Whether the facts have everything that they have when all files can be read."""
    if facts["messages"] is None and facts["bytes"] <= _COUNTED_BYTES:
        return False
    return facts["last_stable_offset"] is not None and (facts["bytes"] == 0 or facts["first_timestamp"] is not None)


def _object(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2).encode() + b"\n"


_Sources = tuple[LogSnapshot, TopicInfo, int | None]
"""What `@info.json` is made from: a change of the log or of its topic gives another object; the recovery point."""


class InfoTexts:
    """The contents of `@info.json` and `@config`, kept because every stat needs their sizes. Thread-safe.

    A text is kept until what it was made from has changed. A text that lacks something because a file could not be read
    is not kept. `GeneratedTexts` is another store with another rule: it keeps what an open handle was given, changed or
    not.
    """

    def __init__(self, log_dir: LogDir, isolation: Isolation) -> None:
        # constant after construction
        self._log_dir = log_dir
        self._isolation = isolation
        # guarded by the lock
        self._lock = Lock()
        self._partitions: WeakKeyDictionary[Log, tuple[_Sources, bytes]] = WeakKeyDictionary()
        self._sizes: WeakKeyDictionary[Log, tuple[_Sources, int]] = WeakKeyDictionary()  # estimated
        self._opened: WeakSet[Log] = WeakSet()
        self._topics: dict[str, tuple[TopicInfo, bytes]] = {}

    def partition_info_size(self, log: Log) -> tuple[int, int]:
        """The size of `@info.json`, and its mtime in ns. Before the file is first opened, the size is that of a log
        without gaps and transactions: the exact one takes reading all of a small partition, too much for a listing.
        """
        with self._lock:
            was_opened, held = log in self._opened, self._sizes.get(log)
        if was_opened:
            text, mtime_ns = self.partition_info(log)
            return len(text), mtime_ns
        sources = self._sources(log)
        if held is None or not _unchanged(held[0], sources):
            facts = _partition_facts(*sources, None)
            held = sources, len(_object(facts))
            if _is_complete(facts):
                with self._lock:
                    self._sizes[log] = held
        return held[1], log_mtime_ns(log, sources[0])

    def partition_info(self, log: Log) -> tuple[bytes, int]:
        """The content of `@info.json` for a reader, and its mtime in ns. From now on its size is exact."""
        sources = self._sources(log)
        with self._lock:
            self._opened.add(log)
            held = self._partitions.get(log)
        if held is not None and _unchanged(held[0], sources):
            text = held[1]
        else:
            facts = _partition_facts(*sources, self._isolation)
            text = _object(facts)
            if _is_complete(facts):
                with self._lock:
                    self._partitions[log] = sources, text
        return text, log_mtime_ns(log, sources[0])

    def topic_config(self, topic: str) -> bytes:
        """The content, by the function `topic_config`. UnknownTopicOrPartition; OSError."""
        info = self._log_dir.topic_info(topic)
        with self._lock:
            held = self._topics.get(topic)
        if held is not None and held[0] is info:
            return held[1]
        text = topic_config(info)
        with self._lock:
            if len(self._topics) >= _KEPT_CONFIGS:
                self._topics.clear()
            self._topics[topic] = info, text
        return text

    def _sources(self, log: Log) -> _Sources:
        return log.snapshot(), self._log_dir.topic_info(log.tp.topic), recovery_point(self._log_dir, log.tp)


def _unchanged(before: _Sources, now: _Sources) -> bool:
    return before[0] is now[0] and before[1] is now[1] and before[2] == now[2]


def topic_config(info: TopicInfo) -> bytes:
    """The content of `@config`: the topic's own keys as `key=value` lines, then all others in force as comments."""
    in_force = info.config.texts()
    lines = [f"{name}={value}" for name, value in sorted(info.overrides.items())]
    lines += [f"# {name}={value}" for name, value in sorted(in_force.items()) if name not in info.overrides]
    return "".join(f"{line}\n" for line in lines).encode()


def topic_xattrs(info: TopicInfo, partitions: Sequence[int]) -> dict[str, bytes]:
    """A topic's facts and its own configuration."""
    facts: dict[str, Any] = {"partitions": len(partitions)}
    if info.topic_id is not None:
        facts["topic_id"] = info.topic_id
    if info.partition_count is not None:
        facts["partition_count"] = info.partition_count
    facts |= {f"config.{name}": value for name, value in info.overrides.items()}
    return attributes_of(facts)


def partition_xattrs(log_dir: LogDir, log: Log) -> dict[str, bytes]:
    """A partition's facts that cost nothing to find out."""
    snapshot = log.snapshot()
    facts = _partition_facts(snapshot, None, recovery_point(log_dir, snapshot.tp), None)
    return attributes_of({name: facts[name] for name in _XATTRS})


def attributes_of(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Facts as `user.kafka.*`; unknown ones are left out."""
    return {f"user.kafka.{name}": str(value).encode() for name, value in facts.items() if value is not None}


def recovery_point(log_dir: LogDir, tp: TopicPartition) -> int | None:
    """The offset below which the log is known to be on disk; None where no checkpoint has it.

    For a log that this process owns it is the current one; the checkpoint is updated once a minute.
    """
    try:
        log = log_dir.log(tp)
        log = log.here if isinstance(log, TieredLog) else log
        if isinstance(log, PartitionLog):
            return log.recovery_point
        return log_dir.recovery_point(tp)
    except (StorageError, OSError):
        return None


def _timestamps(snapshot: LogSnapshot) -> tuple[int | None, int | None]:
    """The first message's and the greatest known timestamp, from the log start on."""
    segments = shown_segments(snapshot)
    if not segments:
        return None, None
    first = first_shown_timestamp(snapshot)
    last = max(newest_timestamp(snapshot, segment) for segment in segments)
    return (None if first == NO_TIMESTAMP else first), (None if last == NO_TIMESTAMP else last)


def _stable(snapshot: LogSnapshot) -> int | None:
    try:
        return last_stable_offset(snapshot)
    except (StorageError, OSError):
        return None


def _messages(snapshot: LogSnapshot, isolation: Isolation | None) -> int | None:
    if snapshot.size_bytes > _COUNTED_BYTES:
        return None
    if isolation is None:
        return snapshot.log_end_offset - snapshot.log_start_offset
    try:
        return count_messages(snapshot, snapshot.log_start_offset, snapshot.log_end_offset, isolation)
    except (StorageError, OSError):
        return None


# A topic's `@config` on a writable mount: each `key=value` line sets one key, `key=` unsets it.

_MODE = 0o644
_LONGEST_LINE = 64 << 10


class ConfigFile(File):
    """UnknownTopicOrPartition when there is no such topic."""

    def __init__(self, owned: OwnedDir, texts: InfoTexts, topic: str, refused: Refused) -> None:
        self._owned = owned
        self._refused = refused
        self._texts = texts
        self._topic = topic
        owned.log_dir.partitions(topic)

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, len(self._content()), self._owned.log_dir.mtime_ns, _MODE)

    def open(self) -> Handle:
        return BytesHandle(self._content())

    def open_to_write(self) -> WriteHandle:
        return LinesHandle(_Settings(self._owned, self._topic), parse_txt, self._refused, self._content())

    def _content(self) -> bytes:
        return self._texts.topic_config(self._topic)


class _Settings:
    """The destination of settings lines. Blank lines and comments are skipped: `@config` itself has some."""

    def __init__(self, owned: OwnedDir, topic: str) -> None:
        self._owned = owned
        self._topic = topic

    def append(self, parsed: Parsed) -> Taken:
        columns = parsed.columns
        data = memoryview(columns.buffer)
        for row in range(len(columns)):
            start = int(columns.value_start[row])
            try:
                self._set(bytes(data[start : start + int(columns.value_length[row])]))
            except (StorageError, OSError) as error:
                return Taken(row, error)
        return Taken(len(columns), None)

    def longest_line(self, *, verbatim: bool) -> int:
        return _LONGEST_LINE

    def forget_refused(self) -> None:
        """Does nothing: settings are made one by one, so none after a refused one is made."""

    def sync(self) -> None:
        """Does nothing: each setting is on disk as soon as it is made."""

    def _set(self, line: bytes) -> None:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise InvalidConfig(f"line is not UTF-8: {error}") from None
        if not text or text.startswith("#"):
            return
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InvalidConfig("line is not key=value", found=text[:100])
        if value:
            self._owned.alter_config(self._topic, {key: value})
        else:
            self._owned.alter_config(self._topic, {}, [key])
