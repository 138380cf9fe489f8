"""What is known of a partition or a topic without reading its messages: `@info.json`, `@config`, xattrs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kafkafs.count import count_messages
from kafkafs.ranges import timestamp_text
from kafkafs.views.times import first_shown_timestamp, newest_timestamp, shown_segments
from storage.errors import StorageError
from storage.files import checkpoints, names
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.partition_log import PartitionLog
from storage.log.snapshot import Log, LogSnapshot
from storage.log.topic_info import TopicInfo
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition

# Messages of a larger partition are not counted for a look at @info.json: that would be reading it.
_COUNTED_BYTES = 8 << 20


def partition_info(log_dir: LogDir, log: Log, isolation: Isolation) -> bytes:
    """The content of `@info.json`: one object, indented. What is not known, or is too much to find out, is null."""
    snapshot = log.snapshot()
    info = log_dir.topic_info(snapshot.tp.topic)
    first, last = _timestamps(snapshot)
    facts: dict[str, Any] = {
        "topic": snapshot.tp.topic,
        "partition": snapshot.tp.partition,
        "topic_id": info.topic_id,
        "log_start_offset": snapshot.log_start_offset,
        "log_end_offset": snapshot.log_end_offset,
        "last_stable_offset": _stable(snapshot),
        "recovery_point": recovery_point(log_dir, snapshot.tp),
        "segments": len(snapshot.segments),
        "offsets": snapshot.log_end_offset - snapshot.log_start_offset,
        "messages": _messages(snapshot, isolation),
        "bytes": snapshot.size_bytes,
        "first_timestamp": first,
        "last_timestamp": last,
        "first_time": None if first is None else timestamp_text(first),
        "last_time": None if last is None else timestamp_text(last),
    }
    if snapshot.active_size > snapshot.active_end:
        facts["invalid_tail_bytes"] = snapshot.active_size - snapshot.active_end
    return json.dumps(facts, indent=2).encode() + b"\n"


def topic_config(info: TopicInfo) -> bytes:
    """The content of `@config`: the topic's own keys, then all others in force as comments, `key=value` lines each."""
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
    """A partition's facts that cost nothing."""
    snapshot = log.snapshot()
    first, last = _timestamps(snapshot)
    facts: dict[str, Any] = {
        "topic": snapshot.tp.topic,
        "partition": snapshot.tp.partition,
        "log_start_offset": snapshot.log_start_offset,
        "log_end_offset": snapshot.log_end_offset,
        "recovery_point": recovery_point(log_dir, snapshot.tp),
        "segments": len(snapshot.segments),
        "bytes": snapshot.size_bytes,
        "first_timestamp": first,
        "last_timestamp": last,
    }
    return attributes_of(facts)


def attributes_of(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Facts as `user.kafka.*`; what is not known is left out."""
    return {f"user.kafka.{name}": str(value).encode() for name, value in facts.items() if value is not None}


def recovery_point(log_dir: LogDir, tp: TopicPartition) -> int | None:
    """The offset below which the log is known to be on disk; None where no checkpoint tells.

    Of a log of ours as it is now, which the checkpoint follows once a minute.
    """
    try:
        log = log_dir.log(tp)
        if isinstance(log, PartitionLog):
            return log.recovery_point
        return checkpoints.read(log_dir.path / names.RECOVERY_POINT_CHECKPOINT).get(tp)
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


def _messages(snapshot: LogSnapshot, isolation: Isolation) -> int | None:
    if snapshot.size_bytes > _COUNTED_BYTES:
        return None
    try:
        return count_messages(snapshot, snapshot.log_start_offset, snapshot.log_end_offset, isolation)
    except (StorageError, OSError):
        return None
