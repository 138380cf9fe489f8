"""Facts about a partition or a topic without reading its messages: `@info.json`, `@config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from kafkafs.reading.index import BlockIndex
from kafkafs.reading.range_names import timestamp_text
from kafkafs.reading.times import first_shown_timestamp, log_mtime_ns, newest_timestamp, shown_segments
from storage.append.partition_log import PartitionLog
from storage.errors import StorageError
from storage.log.counting import count_messages
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.log.tiered_log import TieredLog
from storage.log.topic_info import TopicInfo
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition

# The messages of a larger partition are not counted for @info.json: that would mean reading the partition.
COUNTED_BYTES = 8 << 20
_KEPT_CONFIGS = 2_500  # of about 2 KB each


def _partition_facts(
    snapshot: LogSnapshot, info: TopicInfo | None, point: int | None, isolation: Isolation | None
) -> dict[str, Any]:
    """The facts in `@info.json`. `isolation` None: reads no messages, and assumes that there are no gaps and no
    transactions."""
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
    """The facts about segments in tiered storage; none if there are no such segments. `remote_places`: the directories
    or URLs that have them."""
    remote = snapshot.remote
    if not remote:
        return {}
    places = dict.fromkeys(place for segment in remote for place in segment.remote_places())
    size = sum(segment.size for segment in remote)
    return {"remote_segments": len(remote), "remote_bytes": size, "remote_places": list(places)}


def _is_complete(facts: Mapping[str, Any]) -> bool:
    """Whether no fact is missing because a file could not be read."""
    if facts["messages"] is None and facts["bytes"] <= COUNTED_BYTES:
        return False
    return facts["last_stable_offset"] is not None and (facts["bytes"] == 0 or facts["first_timestamp"] is not None)


def _object(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2).encode() + b"\n"


_Sources = tuple[LogSnapshot, TopicInfo, int | None]
"""The sources of `@info.json`: the log's snapshot and its topic's info, each a new object after a change; and the
recovery point."""


class InfoTexts:
    """The contents of `@info.json` and `@config`, kept because every stat needs their sizes. Thread-safe.

    A text is kept until its sources change. A text that lacks facts because a file could not be read is not kept.
    """

    def __init__(
        self,
        log_dir: LogDir,
        isolation: Isolation,
        exact_below: int | None = None,
        index: BlockIndex | None = None,
    ) -> None:
        """`exact_below`: views of a partition with more bytes, uncompressed, may have estimated sizes, and `@info.json`
        says so. `index`: shows how many they are."""
        # constant after construction
        self._exact_below = exact_below
        self._index = index
        self._log_dir = log_dir
        self._isolation = isolation
        # guarded by the lock
        self._lock = Lock()
        self._partitions: WeakKeyDictionary[ReadableLog, tuple[_Sources, bytes]] = WeakKeyDictionary()
        self._sizes: WeakKeyDictionary[ReadableLog, tuple[_Sources, int]] = WeakKeyDictionary()  # estimated
        self._opened: WeakSet[ReadableLog] = WeakSet()
        self._topics: dict[str, tuple[TopicInfo, bytes]] = {}

    def partition_info_size(self, log: ReadableLog) -> tuple[int, int]:
        """The size of `@info.json`, and its mtime in ns. Before the file is first opened, the size assumes that there
        are no gaps and no transactions: the exact size takes reading all of a small partition, too much for a listing.
        """
        with self._lock:
            was_opened, held = log in self._opened, self._sizes.get(log)
        if was_opened:
            text, mtime_ns = self.partition_info(log)
            return len(text), mtime_ns
        sources = self._sources(log)
        if held is None or not _unchanged(held[0], sources):
            facts = self._facts(sources, None)
            held = sources, len(_object(facts))
            if _is_complete(facts):
                with self._lock:
                    self._sizes[log] = held
        return held[1], log_mtime_ns(log, sources[0])

    def partition_info(self, log: ReadableLog) -> tuple[bytes, int]:
        """The content of `@info.json`, and its mtime in ns. From now on `partition_info_size` is exact for the log."""
        sources = self._sources(log)
        with self._lock:
            self._opened.add(log)
            held = self._partitions.get(log)
        if held is not None and _unchanged(held[0], sources):
            text = held[1]
        else:
            facts = self._facts(sources, self._isolation)
            text = _object(facts)
            if _is_complete(facts):
                with self._lock:
                    self._partitions[log] = sources, text
        return text, log_mtime_ns(log, sources[0])

    def topic_config(self, topic: str) -> bytes:
        """The content of a topic's `@config`. UnknownTopicOrPartition; OSError."""
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

    def _facts(self, sources: _Sources, isolation: Isolation | None) -> dict[str, Any]:
        facts = _partition_facts(*sources, isolation)
        if self._is_large(sources[0], may_read=isolation is not None):
            facts["sizes"] = "estimated"
        return facts

    def _is_large(self, snapshot: LogSnapshot, *, may_read: bool) -> bool:
        """Whether views of a partition may have estimated sizes; unless `may_read`, by the sizes of its files."""
        if self._exact_below is None:
            return False
        if self._index is None or not may_read:
            return snapshot.size_bytes > self._exact_below
        sizes = ((segment, snapshot.end_position(segment)) for segment in snapshot.segments)
        try:
            return self._index.are_more(snapshot, sizes, self._exact_below)
        except (StorageError, OSError):
            return False

    def _sources(self, log: ReadableLog) -> _Sources:
        return log.snapshot(), self._log_dir.topic_info(log.tp.topic), recovery_point(self._log_dir, log.tp)


def _unchanged(before: _Sources, now: _Sources) -> bool:
    return before[0] is now[0] and before[1] is now[1] and before[2] == now[2]


def topic_config(info: TopicInfo) -> bytes:
    """The content of `@config`: the topic's own keys as `key=value` lines, then all others in force as comments."""
    in_force = info.config.texts()
    lines = [f"{name}={value}" for name, value in sorted(info.overrides.items())]
    lines += [f"# {name}={value}" for name, value in sorted(in_force.items()) if name not in info.overrides]
    return "".join(f"{line}\n" for line in lines).encode()


def recovery_point(log_dir: LogDir, tp: TopicPartition) -> int | None:
    """The offset below which the log is known to be on disk; None if no checkpoint has it, or it cannot be read.

    For a log that this process owns, it is the log's own, up to a minute ahead of the checkpoint.
    """
    try:
        log = log_dir.log(tp)
        log = log.local if isinstance(log, TieredLog) else log
        if isinstance(log, PartitionLog):
            return log.recovery_point
        return log_dir.recovery_point(tp)
    except (StorageError, OSError):
        return None


def _timestamps(snapshot: LogSnapshot) -> tuple[int | None, int | None]:
    """The first message's timestamp and the greatest known timestamp, from the log start on; None if unknown."""
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
    if snapshot.size_bytes > COUNTED_BYTES:
        return None
    if isolation is None:
        return snapshot.log_end_offset - snapshot.log_start_offset
    try:
        return count_messages(snapshot, snapshot.log_start_offset, snapshot.log_end_offset, isolation)
    except (StorageError, OSError):
        return None
