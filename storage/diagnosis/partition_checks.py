"""Predictions about the partitions that a broker sets aside when it starts, and those that it creates empty.

Sources: Kafka's LogManager.isStrayKraftReplica, ReplicaManager.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from storage.config.log_config import LEAST_SEGMENT_BYTES
from storage.diagnosis.broker_properties import BrokerProperties
from storage.diagnosis.damage import of_denied
from storage.diagnosis.directory_checks import REVIVE, LogDirState, not_a_file
from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import CorruptCheckpoint
from storage.files import names, partition_metadata
from storage.files.leader_epochs import EpochEntry
from storage.files.metadata_replay import ClusterMetadata
from storage.files.names import FileKind
from storage.log.log_dir import LogDir
from storage.log.remote_metadata import RemoteMetadata, RemoteState
from storage.log.segment import Segment
from storage.log.segments import live_offsets
from storage.log.tiering import is_tiered
from storage.recovery.recovery import RecoveryReport
from storage.types import OffsetRange, TopicPartition
from storage.verify.findings import FaultKind

_OTHERS_DECIDE: Final = "Start it when the other controllers run: their metadata may be newer, and decide."


def check_topics(
    state: LogDirState, metadata: ClusterMetadata | None, node_id: int | None, properties: BrokerProperties | None
) -> Iterator[Prediction]:
    """Partitions that become strays: the metadata does not have them under their id on this node. If there are other
    controllers, their metadata decide, which may be newer."""
    has_others = properties is not None and properties.has_others
    if metadata is None:
        if state.partitions:
            yield _metadata_lost(state, properties)
        return
    yield from _small_segments(state, metadata)
    by_id = {topic.topic_id: topic for topic in metadata.topics.values()}
    for tp in state.partitions:
        path = state.path / tp.dir_name / names.PARTITION_METADATA
        described = metadata.topics.get(tp.topic)
        try:
            topic_id = partition_metadata.read(path)
        except CorruptCheckpoint as error:
            # Neither is an IOException, which takes the directory offline: IllegalArgument-, NullPointerException.
            refuses = error.what in (partition_metadata.NO_ID, partition_metadata.CUT_OFF)
            reaction = Reaction.REFUSES if refuses else Reaction.OFFLINE
            broker = "does not start" if refuses else "takes the log directory offline; without another one it stops"
            yield Prediction("topic-id-corrupt", reaction, path, error.what, broker, _id_advice(described), tp)
            continue
        except PermissionError as error:
            yield of_denied(error, path)
            continue
        except OSError as error:
            not_a_file(path, error)  # check_files reports it
            continue
        if topic_id is None:
            what = "partition.metadata is missing"
            yield _stray("topic-id-missing", path, what, tp, described is not None, _id_advice(described))
            continue
        newer = _OTHERS_DECIDE if has_others else ""
        if topic_id not in by_id:
            if described is not None:
                what = f"topic id {topic_id}; the cluster's topic of that name has {described.topic_id}"
                advice = f"{newer} These are data of an older topic. {REVIVE}".lstrip()
                yield _stray("topic-id-differs", path, what, tp, True, advice, undecided=has_others)
            else:
                what = f"the metadata knows no topic with the id {topic_id}"
                advice = newer or f"Move it elsewhere. {REVIVE}"
                yield _stray("topic-unknown", path, what, tp, False, advice, undecided=has_others)
            continue
        owner = by_id[topic_id]
        known = owner.partitions.get(tp.partition)
        if node_id is not None and (known is None or node_id not in known.replicas):
            assigned = "nothing" if known is None else f"nodes {', '.join(map(str, known.replicas))}"
            what = f"the metadata assigns it to {assigned}, not to node {node_id}"
            advice = newer or f"Move it elsewhere. {REVIVE}"
            yield _stray("not-assigned", path.parent, what, tp, False, advice, undecided=has_others)
        elif owner.name != tp.topic:
            yield Prediction(
                "topic-id-shared", Reaction.UNNOTICED, path,
                f"topic id {topic_id} is that of the topic {owner.name}",
                f"starts; does not lead {tp.topic}, nor perhaps other partitions: InconsistentTopicIdException",
                _id_advice(described), tp,
            )  # fmt: skip


def _small_segments(state: LogDirState, metadata: ClusterMetadata) -> Iterator[Prediction]:
    """Topics of this directory whose segment.bytes only releases before Kafka 4.1 allow."""
    for name in sorted({tp.topic for tp in state.partitions} & metadata.topics.keys()):
        value = metadata.topics[name].configs.get("segment.bytes", "").strip()
        if value.isdecimal() and int(value[:20]) < LEAST_SEGMENT_BYTES:
            yield Prediction(
                "segment-bytes-small", Reaction.IGNORES, state.metadata_log,
                f"segment.bytes of the topic {name} is {value}",
                f"does not start if it is Kafka 4.1 or later, which takes {LEAST_SEGMENT_BYTES} or more; an earlier "
                "one does",
                f"Set it with the earlier one before an upgrade: kafka-configs.sh --alter. {REVIVE}",
            )  # fmt: skip


def _metadata_lost(state: LogDirState, properties: BrokerProperties | None) -> Prediction:
    what = f"there is no metadata log, and {len(state.partitions)} partitions"
    if properties is not None and properties.has_others:
        broker = "gets the metadata from the other controllers, once a majority of them runs"
        advice = "Start it when the other controllers run, and not before"
        return Prediction("metadata-lost", Reaction.REPAIRS, state.metadata_log, what, broker, advice)
    broker = "renames every partition to a stray (-stray), and has no topics"
    advice = f"Do not start it. {REVIVE}"
    if properties is None:
        broker = f"if it is the only controller, {broker}; otherwise it gets the metadata from the others"
        advice = (
            f"Name its configuration by --server-properties. If no other controller is there, do not start it. {REVIVE}"
        )
    return Prediction("metadata-lost", Reaction.STRAY, state.metadata_log, what, broker, advice)


def _id_advice(described: object) -> str:
    topic_id = getattr(described, "topic_id", None)
    if topic_id is None:
        return REVIVE
    return f"If these are data of that topic, write a partition.metadata with its id {topic_id}"


def _stray(
    name: str, path: Path, what: str, tp: TopicPartition, replaced: bool, advice: str, *, undecided: bool = False
) -> Prediction:
    """The prediction for a stray. `undecided`: newer metadata of other controllers may keep the partition."""
    broker = "renames the directory to a stray (-stray)"
    broker += ", and creates an empty partition in its place" if replaced else ""
    if undecided:
        broker = f"keeps it if newer metadata of the other controllers have it here, which is not known; else {broker}"
    return Prediction(name, Reaction.STRAY, path, what, broker, advice, tp)


def check_absent(
    dirs: Mapping[TopicPartition, Path], metadata: ClusterMetadata | None, node_id: int | None, place: Path
) -> Iterator[Prediction]:
    """Partitions that the metadata assign to this node and that none of its directories has."""
    for topic in () if metadata is None else metadata.topics.values():
        for number, known in topic.partitions.items():
            tp = TopicPartition(topic.name, number)
            if node_id in known.replicas and tp not in dirs:
                if os.path.lexists(place / tp.dir_name):  # not a directory, or a broken link
                    yield Prediction(
                        "partition-absent", Reaction.OFFLINE, place / tp.dir_name,
                        "the metadata assigns this partition to the node, and what has its name is no directory",
                        "cannot create it, and takes the log directory offline; without another one it stops",
                        "Move it elsewhere, and put the directory back", tp,
                    )  # fmt: skip
                    continue
                others = [str(node) for node in known.replicas if node != node_id]
                filled = f"; node {' or '.join(others)} fills it again" if others else ""
                yield Prediction(
                    "partition-absent",
                    Reaction.REPAIRS if others else Reaction.CREATES_EMPTY,
                    place / tp.dir_name,
                    "the metadata assigns this partition to the node, and no directory has it",
                    f"creates it, empty{filled}",
                    "Name all of the broker's log.dirs, or put the directory back",
                    tp,
                )


def check_remote(
    log_dir: LogDir, partitions: Iterable[TopicPartition], properties: BrokerProperties | None, events: RemoteMetadata
) -> Iterator[Prediction]:
    """Check partitions that begin in tiered storage. `events`: of all log directories. OSError."""
    loses = properties is not None and not properties.is_tiered
    for tp in partitions:
        bases = live_offsets(log_dir.path / tp.dir_name, FileKind.LOG)
        try:
            remote = log_dir.remote_offsets(tp, bases[0]) if bases else None
        except PermissionError as error:
            yield of_denied(error, log_dir.path / tp.dir_name)
            continue
        if remote is not None:
            yield Prediction(
                FaultKind.REMOTE_SEGMENTS.name_in_reports,
                Reaction.FORGETS if loses else Reaction.FETCHES,
                log_dir.path / tp.dir_name,
                f"offsets {remote.start} to {remote.end - 1} are in tiered storage, not in this directory",
                "begins after them, and removes the log start from its checkpoint: tiered storage is not configured"
                if loses
                else "reads them from there if that is configured as before; otherwise it forgets them",
                "Set remote.log.storage.system.enable=true, and the rest as before, in its configuration"
                if loses
                else "Keep the tiered storage: a copy of this directory does not have these messages",
                tp,
            )
            lost = None if loses else _never_uploaded(log_dir, tp, remote, events)
            if lost is not None:
                yield Prediction(
                    FaultKind.REMOTE_SEGMENT.name_in_reports,
                    Reaction.UNNOTICED,
                    log_dir.path / tp.dir_name,
                    f"offsets {lost.start} to {lost.end - 1} are not here, and no event says that they were uploaded",
                    "answers OFFSET_OUT_OF_RANGE there: consumers go on at the end of the log, or begin again",
                    "Put the missing segments back, from another replica or a backup",
                    tp,
                )


def _never_uploaded(
    log_dir: LogDir, tp: TopicPartition, remote: OffsetRange, events: RemoteMetadata
) -> OffsetRange | None:
    """The first offsets before the local log that were never uploaded; None if there are none, or the events do not
    say. OSError."""
    topic_id = log_dir.topic_info(tp.topic).topic_id
    known = None if topic_id is None else events.segments(topic_id, tp.partition)
    if not known or events.problem is not None:
        return None
    uploaded = [segment for segment in known.values() if segment.state is not RemoteState.STARTED]
    end = remote.start
    for segment in sorted(uploaded, key=lambda segment: segment.base_offset):
        if segment.base_offset > end:
            return OffsetRange(end, min(segment.base_offset, remote.end))
        end = max(end, segment.end_offset)
        if end >= remote.end:
            return None
    return OffsetRange(end, remote.end)


def check_remote_epochs(
    directory: Path, report: RecoveryReport, metadata: ClusterMetadata | None, checkpointed: int | None
) -> Iterator[Prediction]:
    """Check whether the leader epochs that recovery leaves are those of a tiered log's beginning: a broker looks for
    remote segments by leader epoch, and removes those whose epochs are below all of these. A leader begins with the
    epoch in the metadata, which removes those from that one on. This directory does not say the epochs of the remote
    segments, but none is later than that of the first batch here. `checkpointed`: the log start offset; the metadata
    that say that the log is tiered may be in another log directory, of which recovery here knows nothing. OSError."""
    topic = None if metadata is None else metadata.topics.get(report.tp.topic)
    base = next(iter(live_offsets(directory, FileKind.LOG)), 0)
    start = report.log_start_offset if checkpointed is None else min(checkpointed, report.log_start_offset)
    if topic is None or not is_tiered(topic.configs) or not base or start > base:
        return
    epochs, known = report.epochs, topic.partitions.get(report.tp.partition)
    if known is not None:
        epochs = epochs.assign(EpochEntry(known.leader_epoch, report.log_end_offset))
    segment = Segment.at(directory, base)
    batch = segment.batch_at(0, segment.size)
    written_by = -1 if batch is None else int(batch.leader_epoch[0])
    at_start, at_base = epochs.epoch_at(start), epochs.epoch_at(base)
    path = directory / names.LEADER_EPOCH_CHECKPOINT
    advice = "Restore the file before the broker starts, and the segments, from another replica or a backup"
    if at_start is None or at_base is None or at_start > written_by >= 0:
        yield Prediction(
            "remote-epochs", Reaction.FORGETS, path,
            f"the leader of offset {start} is missing or wrong in this file, or in the log",
            f"finds nothing in tiered storage: it begins at {base} and removes what is there, or serves nothing",
            advice, report.tp,
        )  # fmt: skip
    elif at_base < written_by or any(
        start < entry.start_offset < base and entry.epoch > written_by >= 0 for entry in epochs.entries
    ):
        yield Prediction(
            "remote-epochs", Reaction.UNNOTICED, path,
            f"the leaders of the offsets {start} to {base} are wrong in this file, or in the log",
            "may not find a part of what is in tiered storage", advice, report.tp,
        )  # fmt: skip
