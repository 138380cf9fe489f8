"""Predictions about logs that were being moved between two log directories (`-future`): whether such a log replaces the
partition's, and what that loses.

Sources: Kafka's LogManager (loadLog, findAbandonedFutureLogs), ReplicaManager.maybeAddLogDirFetchers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from storage.diagnosis.directory_checks import LogDirState
from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import StorageError
from storage.files import names, partition_metadata
from storage.files.metadata_replay import ClusterMetadata, PartitionMetadata
from storage.files.names import DirKind, FileKind
from storage.log import tail
from storage.log.segment import Segment
from storage.log.segments import live_offsets
from storage.types import TopicPartition

_NAME = "being-moved"
_TAKES = "takes it for the partition"
_MOVE = "Move one of them elsewhere: the shorter one"


def check_futures(
    dirs: Sequence[LogDirState], metadata: ClusterMetadata | None, node_id: int | None
) -> Iterator[Prediction]:
    """Check each log that was being moved. OSError."""
    topics = {} if metadata is None else {topic.topic_id: topic for topic in metadata.topics.values()}
    current = {tp: path for state in dirs for tp, path in state.loaded()}
    seen: dict[TopicPartition, Path] = {}
    for state in dirs:
        for kind, tp, path in state.asides:
            if kind is not DirKind.FUTURE or metadata is None:
                continue
            topic_id = _topic_id(path)
            topic = topics.get(topic_id or "")
            topic = topic if topic is not None and topic.name == tp.topic else None
            known = None if topic is None else topic.partitions.get(tp.partition)
            if known is None or (node_id is not None and node_id not in known.replicas):
                what = f"a log that was being moved here, with the topic id {topic_id}, which the metadata do not have"
                what += " for this partition on this node"
                is_only = tp not in current
                yield Prediction(
                    _NAME, Reaction.STRAY if is_only else Reaction.IGNORES, path, what,
                    "renames the directory to a stray (-stray)", _advice(tp) if is_only else "", tp,
                )  # fmt: skip
                continue
            if tp in seen:
                yield Prediction(
                    "partition-twice", Reaction.REFUSES, path, f"{tp} was also being moved to {seen[tp]}",
                    "does not start: Duplicate log directories found", _MOVE, tp,
                )  # fmt: skip
            seen.setdefault(tp, path)
            yield _moved(tp, path, current.get(tp), is_place=_is_place(state, known, node_id))


def taken_futures(
    state: LogDirState, metadata: ClusterMetadata | None, node_id: int | None
) -> Iterator[tuple[TopicPartition, Path]]:
    """The logs that were being moved to this directory and that a broker takes for partitions."""
    topics = {} if metadata is None else metadata.topics
    for kind, tp, path in state.asides:
        topic = topics.get(tp.topic)
        known = None if topic is None or topic.topic_id != _topic_id(path) else topic.partitions.get(tp.partition)
        if kind is DirKind.FUTURE and known is not None and _is_place(state, known, node_id):
            yield tp, path


def _is_place(state: LogDirState, known: PartitionMetadata, node_id: int | None) -> bool:
    """Whether the metadata place a partition in this directory."""
    placed = dict(zip(known.replicas, known.directories, strict=False)).get(-1 if node_id is None else node_id)
    return state.meta is not None and state.meta.directory_id is not None and placed == state.meta.directory_id


def _moved(tp: TopicPartition, path: Path, current: Path | None, *, is_place: bool) -> Prediction:
    """The prediction for a log that was being moved. `is_place`: the metadata place the partition in this directory."""
    what = "a partition that was being moved here from another log directory"
    if not is_place:
        if current is not None:
            return Prediction(_NAME, Reaction.IGNORES, path, what, "goes on with the move", "", tp)
        broker = "makes an empty partition where the metadata place it, empties this log too, and then takes it"
        return Prediction(_NAME, Reaction.CUTS, path, f"{what}, and is nowhere else", broker, _advice(tp), tp, 0)
    if current is None:
        return Prediction(_NAME, Reaction.IGNORES, path, f"{what}, and is nowhere else", _TAKES, "", tp)
    if current.parent == path.parent:
        return Prediction(
            _NAME, Reaction.REFUSES, path, f"{what}, beside {current.name}",
            "does not start: it cannot rename it, DirectoryNotEmptyException",
            _MOVE, tp,
        )  # fmt: skip
    (start, end), (current_start, current_end) = _extent(path), _extent(current)
    broker = f"{_TAKES}, and removes {current}"
    if start <= current_start and end >= current_end:
        return Prediction(_NAME, Reaction.IGNORES, path, f"{what}, completely", broker, "", tp)
    return Prediction(
        _NAME, Reaction.CUTS, path,
        f"{what}: it has the offsets {start} to {end - 1}, of {current_start} to {current_end - 1}",
        broker, "Move it elsewhere: the other one then stays where it is", tp, end,
    )  # fmt: skip


def _advice(tp: TopicPartition) -> str:
    return f"Rename it to {tp.dir_name}, if these are its messages"


def _topic_id(path: Path) -> str | None:
    try:
        return partition_metadata.read(path / names.PARTITION_METADATA)
    except (StorageError, OSError):
        return None  # check_files reports it


def _extent(directory: Path) -> tuple[int, int]:
    """The first offset of a log, and the offset after its last one. OSError."""
    bases = live_offsets(directory, FileKind.LOG)
    if not bases:
        return 0, 0
    last = Segment.at(directory, bases[-1])
    return bases[0], tail.measure(last, last.size).next_offset
