"""Predictions about the log directories themselves: identity, lock, names, checkpoints, space.

Sources: Kafka's KafkaRaftServer.initializeLogDirs, MetaPropertiesEnsemble, LogManager, FileQuorumStateStore.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage.diagnosis.broker_properties import BrokerProperties
from storage.diagnosis.damage import of_denied
from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import CorruptCheckpoint, StorageError
from storage.files import checkpoints, cluster_metadata, dir_lock, meta_properties, names
from storage.files.cluster_metadata import ClusterMetadataReader
from storage.files.listing import paths_in
from storage.files.meta_properties import MetaProperties
from storage.files.metadata_replay import ClusterMetadata
from storage.files.names import DirKind
from storage.files.opening import exists, real_place
from storage.files.partition_metadata import id_bytes
from storage.files.small_files import read_whole
from storage.types import MAX_OFFSET, TopicPartition

REVIVE = "`kafkafs revive` makes a directory of it on which a broker starts"
_RESERVED_IDS = 100
_NOT_A_FILE = (errno.EISDIR, errno.EINVAL, errno.ELOOP)  # of opening a directory or a link
_LITTLE_SPACE_BYTES = 64 << 20
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]+")
_ZEROS = re.compile(r"0[0-9]{1,9}")
_CHECKPOINTS = {
    names.RECOVERY_POINT_CHECKPOINT: "checks all logs from their beginning",
    names.LOG_START_CHECKPOINT: "begins all logs with their first segment: deleted messages are back",
}
_READ_LATER = {
    names.REPLICATION_CHECKPOINT: "neither leads nor follows partitions of this directory",
    names.CLEANER_CHECKPOINT: "its cleaner stops: no topic is compacted",
}


@dataclass(frozen=True, slots=True)
class LogDirState:
    """A log directory. `meta`: None if meta.properties is missing, or cannot be read (`meta_problem`). `clean`: it was
    shut down cleanly. `partitions`: those that a broker loads. `asides`: directories that it loads but does not serve,
    with their kind: deleted, stray, being moved."""

    path: Path
    meta: MetaProperties | None
    meta_problem: StorageError | None
    clean: bool
    partitions: tuple[TopicPartition, ...]
    asides: tuple[tuple[DirKind, TopicPartition, Path], ...] = ()

    @staticmethod
    def of(path: Path) -> LogDirState:
        """Read the state of a directory. OSError."""
        path, meta, problem = real_place(path), None, None
        try:
            meta = meta_properties.read(path / names.META_PROPERTIES)
        except CorruptCheckpoint as error:
            problem = error
        except PermissionError as error:
            problem = CorruptCheckpoint("cannot be read", path=path / names.META_PROPERTIES, found=error)
        except OSError as error:
            problem = not_a_file(path / names.META_PROPERTIES, error)
        parsed = [(names.parse_dir(entry.name), entry) for entry in paths_in(path) if entry.is_dir()]
        partition_dirs = [(item.kind, item.partition, entry) for item, entry in parsed if item.partition is not None]
        loaded = sorted(tp for kind, tp, _ in partition_dirs if kind is DirKind.PARTITION)
        asides = [item for item in partition_dirs if item[0] in (DirKind.DELETED, DirKind.STRAY, DirKind.FUTURE)]
        return LogDirState(path, meta, problem, exists(path / names.CLEAN_SHUTDOWN), tuple(loaded), tuple(asides))

    def without(self, directories: Collection[Path]) -> LogDirState:
        """This state without the partitions in these directories."""
        partitions = tuple(tp for tp in self.partitions if self.path / tp.dir_name not in directories)
        asides = tuple(aside for aside in self.asides if aside[2] not in directories)
        return replace(self, partitions=partitions, asides=asides)

    def loaded(self) -> list[tuple[TopicPartition, Path]]:
        """The partitions that a broker loads, with their directories, including numbers with leading zeros."""
        loaded = [(tp, self.path / tp.dir_name) for tp in self.partitions]
        for entry in paths_in(self.path):
            topic, dash, number = entry.name.rpartition("-")
            is_taken = bool(topic and dash) and names.topic_name_problem(topic) is None and entry.is_dir()
            if is_taken and _ZEROS.fullmatch(number):
                loaded.append((TopicPartition(topic, int(number)), entry))
        return loaded

    @property
    def metadata_log(self) -> Path:
        return self.path / f"{names.CLUSTER_METADATA_TOPIC}-0"


def not_a_file(path: Path, error: OSError) -> CorruptCheckpoint:
    """The error for a path that should be a file and is, for example, a directory. Other errors are raised."""
    if error.errno not in _NOT_A_FILE:
        raise error
    return CorruptCheckpoint(f"{path.name} is no regular file", path=path)


def metadata_dir_of(dirs: Sequence[LogDirState], given: BrokerProperties | None) -> LogDirState:
    """The directory whose metadata log the broker uses: the configured one, otherwise the one that has the log."""
    if given is not None and given.metadata_dir is not None:
        for state in dirs:
            if state.path.resolve() == given.metadata_dir.resolve():
                return state
    return next((state for state in dirs if state.metadata_log.is_dir()), dirs[0])


def metadata_of(state: LogDirState) -> ClusterMetadata | None:
    """The metadata with which a broker starts: its log or, if it has none, a bootstrap.checkpoint with topics. None if
    neither has topics. OSError; PermissionError also for a snapshot without which the metadata are not complete."""
    try:
        metadata = ClusterMetadataReader(state.path).refresh()
    except OSError as error:
        not_a_file(state.path, error)  # check_quorum reports it
        return None
    if metadata is not None and metadata.problem is not None and isinstance(metadata.problem.found, PermissionError):
        raise metadata.problem.found
    if metadata is None or (not metadata.end_offset and metadata.problem is None):
        try:
            bootstrap = cluster_metadata.read_bootstrap(state.path)
        except OSError as error:
            not_a_file(state.path, error)  # check_quorum reports it
            return None
        return bootstrap if bootstrap is not None and bootstrap.topics else None
    return metadata


def check_identity(
    dirs: Sequence[LogDirState], metadata_dir: LogDirState, given: BrokerProperties | None
) -> Iterator[Prediction]:
    """Check meta.properties: present, readable, of one cluster and one node, with different directory ids."""
    named = given.log_dirs if given is not None and given.is_kraft else ()
    gone = [path for path in named if not exists(path)]
    for path in gone if len(gone) < len(named) else ():  # otherwise the paths are another machine's
        yield Prediction(
            "meta-properties-missing",
            Reaction.REFUSES,
            path,
            "log.dirs names this directory, and it is not there",
            "does not start: No `meta.properties` found",
            "Mount its disk, or put the directory back",
        )
    first: MetaProperties | None = None
    ids: dict[str, Path] = {}
    for state in dirs:
        path = state.path / names.META_PROPERTIES
        if state.meta_problem is not None or state.meta is None:
            yield _unidentified(state, metadata_dir)
            continue
        meta = state.meta
        if meta.version == 0:
            yield Prediction(
                "meta-properties-v0",
                Reaction.IGNORES,
                path,
                "version 0, as of a broker with ZooKeeper",
                "takes it as it is; topics that only ZooKeeper knew become strays",
                f"Migrate with Kafka 3.9, or: {REVIVE}",
            )
        if meta.directory_id is not None and not _is_id(meta.directory_id):  # then it reads nothing else in the file
            refuses = state is metadata_dir
            yield Prediction(
                "directory-id-corrupt",
                Reaction.REFUSES if refuses else Reaction.OFFLINE,
                path,
                f"directory.id {meta.directory_id!r} is no id of 22 characters",
                "does not start: Unable to read directory.id as a Uuid" if refuses else "takes this directory offline",
                "Restore the line: under a new id, partitions that the metadata place here stay offline",
            )
            continue
        # A file without a version is of version 0, whose node id is `broker.id`.
        if meta.node_id is None or meta.cluster_id is None:
            missing = "node ID" if meta.node_id is None else "cluster ID"
            yield Prediction(
                "meta-properties-corrupt",
                Reaction.REFUSES,
                path,
                f"the file has no {missing}",
                f"does not start: {missing} not found",
                f"Restore the file from another directory of the broker (but not its directory.id), or: {REVIVE}",
            )
            continue
        expected_node = given.node_id if given is not None and given.node_id is not None else None
        if expected_node is None and first is not None:
            expected_node = first.node_id
        if expected_node is not None and meta.node_id != expected_node:
            yield Prediction(
                "node-id-differs",
                Reaction.REFUSES,
                path,
                f"node.id is {meta.node_id}, expected {expected_node}",
                "does not start: Stored node id does not match",
                "Correct node.id in server.properties, or give the broker its own directories",
            )
        if first is not None and meta.cluster_id != first.cluster_id:
            yield Prediction(
                "cluster-id-differs",
                Reaction.REFUSES,
                path,
                f"cluster.id is {meta.cluster_id}, in the other directories {first.cluster_id}",
                "does not start: Invalid cluster.id",
                f"Give the broker the directories of one cluster. {REVIVE}",
            )
        if given is not None and given.has_others and not _CLUSTER_ID.fullmatch(meta.cluster_id):
            yield Prediction(
                "cluster-id-corrupt",
                Reaction.REFUSES,
                path,
                f"cluster.id {meta.cluster_id!r} has characters that no id has",
                "does not start: the other nodes answer INCONSISTENT_CLUSTER_ID",
                "Restore the line from another node's file",
            )
        if meta.directory_id is not None:
            if _is_reserved(meta.directory_id):
                yield Prediction(
                    "directory-id-reserved",
                    Reaction.REFUSES,
                    path,
                    f"directory.id {meta.directory_id} is one that Kafka reserves",
                    "does not start: Invalid reserved directory ID",
                    "Remove the line directory.id: the broker writes a new one",
                )
            if meta.directory_id in ids:
                yield Prediction(
                    "directory-id-shared",
                    Reaction.REFUSES,
                    path,
                    f"directory.id is also that of {ids[meta.directory_id]}",
                    "does not start: Duplicate directory ID",
                    "Remove the line directory.id from the copy's meta.properties: the broker writes a new one",
                )
            ids.setdefault(meta.directory_id, state.path)
        first = meta if first is None else first


def _is_id(text: str) -> bool:
    try:
        return bool(id_bytes(text))
    except ValueError:
        return False


def _is_reserved(directory_id: str) -> bool:
    """Whether an id is one of the first hundred, which stand for lost and unassigned directories (DirectoryId)."""
    try:
        return int.from_bytes(id_bytes(directory_id), "big") < _RESERVED_IDS
    except ValueError:
        return False


def _unidentified(state: LogDirState, metadata_dir: LogDirState) -> Prediction:
    path = state.path / names.META_PROPERTIES
    advice = f"Restore the file from another directory of the broker (but not its directory.id), or: {REVIVE}"
    if state.meta_problem is not None:
        if isinstance(state.meta_problem.found, PermissionError):
            return of_denied(state.meta_problem.found, path)
        refuses = state is metadata_dir
        return Prediction(
            "meta-properties-corrupt",
            Reaction.REFUSES if refuses else Reaction.OFFLINE,
            path,
            str(state.meta_problem.what),
            "does not start: it cannot read the file" if refuses else "takes this directory offline",
            advice,
        )
    what = "there is no meta.properties: the directory is not formatted"
    if state is not metadata_dir:
        advice = f"kafka-storage.sh format --ignore-formatted formats it. {advice}"
    return Prediction(
        "meta-properties-missing", Reaction.REFUSES, path, what, "does not start: No `meta.properties` found", advice
    )


def check_lock(state: LogDirState) -> Iterator[Prediction]:
    """Check that no process holds `.lock`."""
    holder = dir_lock.holder(state.path)
    if holder is not None:
        yield Prediction(
            "locked",
            Reaction.REFUSES,
            state.path / dir_lock.NAME,
            f"{dir_lock.describe_process(holder)} holds the directory",
            "does not start: Failed to acquire lock",
            "Stop that process; what is said below may change while it runs",
        )


def check_names(dirs: Sequence[LogDirState]) -> Iterator[Prediction]:
    """Check that every directory is a partition's, or another one that a broker knows."""
    places: dict[TopicPartition, Path] = {}
    loaded = {tp for state in dirs for tp in state.partitions}
    for state in dirs:
        places_here = {place for _, place in state.loaded()}
        for entry in paths_in(state.path):
            if not entry.is_dir() or (entry.name == names.META_PROPERTIES and state.meta_problem is not None):
                continue
            if entry.name == names.CLEAN_SHUTDOWN and not paths_in(entry):
                continue  # the broker removes it before it looks at the others
            parsed = names.parse_dir(entry.name)
            if parsed.kind is DirKind.UNPARSABLE and not _is_taken(entry.name):
                yield Prediction(
                    "name-unparsable",
                    Reaction.REFUSES,
                    entry,
                    f"directory {parsed.reason.split(';')[0]}",
                    "does not start: Found directory, not in the form of topic-partition",
                    "Move it elsewhere",
                )
            elif parsed.kind is DirKind.UNPARSABLE and entry not in places_here:
                yield Prediction(
                    "topic-unknown",
                    Reaction.STRAY,
                    entry,
                    f"directory {parsed.reason.split(';')[0]}",
                    "renames the directory to a stray (-stray)",
                    "Move it elsewhere",
                )
            elif parsed.kind is DirKind.DELETED:
                yield Prediction(
                    "being-deleted", Reaction.REMOVES, entry, "a partition that was deleted", "removes it",
                    "Move it elsewhere if it is still wanted: `kafkafs revive` takes such directories",
                    parsed.partition,
                )  # fmt: skip
            elif parsed.kind is DirKind.STRAY:
                yield Prediction(
                    "stray", Reaction.IGNORES, entry, "a partition that a broker has set aside", "leaves it unused",
                    "`kafkafs revive` takes such directories", parsed.partition,
                )  # fmt: skip
        for tp, place in state.loaded():
            if place.name != tp.dir_name and tp not in loaded:
                yield Prediction(
                    "name-not-canonical",
                    Reaction.IGNORES,
                    place,
                    f"a directory of {tp} whose number has zeros before it",
                    f"takes it for {tp}",
                    f"Rename it to {tp.dir_name}: kafkafs does not show it under this name",
                    tp,
                )
            if tp in places:
                yield Prediction(
                    "partition-twice",
                    Reaction.REFUSES,
                    place,
                    f"{tp} is also in {places[tp]}",
                    "does not start: Duplicate log directories found",
                    "Move one of them elsewhere: the shorter one, by `kafkafs topics describe`",
                    tp,
                )
            places.setdefault(tp, place)


def _is_taken(name: str) -> bool:
    """Whether a broker accepts a name that is not a topic's: it only looks for the number after the last dash."""
    topic, dash, number = name.rpartition("-")
    digits = number.removeprefix("+")
    return bool(topic and dash and digits.isascii() and digits.isdigit() and int(digits) < 2**31)


def check_placement(
    dirs: Sequence[LogDirState], metadata: ClusterMetadata | None, node_id: int | None
) -> Iterator[Prediction]:
    """Check that the directories which the metadata name for partitions in these directories are among them, by id."""
    ids = {state.meta.directory_id for state in dirs if state.meta is not None}
    placed: dict[str, list[TopicPartition]] = {}
    named = set()
    loaded = {tp for state in dirs for tp in state.partitions}
    for topic in () if metadata is None else metadata.topics.values():
        for number, known in topic.partitions.items():
            for node, directory in zip(known.replicas, known.directories, strict=False):
                tp = TopicPartition(topic.name, number)
                if node == node_id:
                    named.add(directory)
                    if directory not in ids and tp in loaded and not _is_reserved(directory):
                        placed.setdefault(directory, []).append(tp)
    others = [state for state in dirs if state.meta is None or state.meta.directory_id not in named] or dirs
    for directory, tps in sorted(placed.items()):
        yield Prediction(
            "directory-id-unknown",
            Reaction.UNNOTICED,
            others[0].path / names.META_PROPERTIES,
            f"the metadata place {len(tps)} partitions, {min(tps)} among them, in a directory with the id {directory},"
            " which none has",
            "starts; these partitions may stay offline, without a leader",
            f"Write directory.id={directory} into the meta.properties of the directory that had it",
        )


def check_checkpoints(state: LogDirState, *, has_topics: bool) -> Iterator[Prediction]:
    """Check that the offset checkpoints parse. `has_topics`: whether the broker has topics when it starts; one without
    reads no high watermark."""
    for name in (*_CHECKPOINTS, *_READ_LATER):
        path = state.path / name
        problem: CorruptCheckpoint | None = None
        try:
            checkpoints.read(path)
        except CorruptCheckpoint as error:
            problem = error
        except PermissionError as error:
            yield of_denied(error, path)
        except OSError as error:
            problem = not_a_file(path, error)
        if problem is None:
            continue
        then = _CHECKPOINTS.get(name, "begins it anew")
        advice = f"Remove the file: the broker then {then}"
        reaction, broker = Reaction.OFFLINE, "takes the directory offline; without another one it stops"
        is_wrong_number = _has_wrong_number(path)
        if name in _CHECKPOINTS and is_wrong_number:
            # no IOException, and LogManager continues without the file
            reaction, broker, advice = Reaction.RECOVERS, then, ""
        elif is_wrong_number:  # the same error, but what reads the file does not catch it
            reaction, broker = Reaction.UNNOTICED, f"starts, but {_READ_LATER[name]}: NumberFormatException"
        elif name == names.REPLICATION_CHECKPOINT and not has_topics:
            broker = f"does not read it, unless it gets topics from other controllers; then {broker}"
            reaction = Reaction.UNNOTICED
        yield Prediction("checkpoint-corrupt", reaction, path, problem.what, broker, advice)


def _has_wrong_number(path: Path) -> bool:
    """Whether a broker meets a wrong number in a checkpoint's line before anything else that is wrong: it reads line by
    line, and counts the lines last."""
    try:
        text = (read_whole(path) or b"").decode().replace("\r\n", "\n").replace("\r", "\n")
        lines = text.removesuffix("\n").split("\n")
        version, *_ = (checkpoints.parse_integer(line, 2**31 - 1, line, path) for line in lines[:2])
        if version != checkpoints.VERSION:
            return False
    except (CorruptCheckpoint, OSError, UnicodeDecodeError):
        return False
    for line in lines[2:]:
        fields = line.split()
        if len(fields) != 3 or line[0].isspace():
            return False
        try:
            checkpoints.parse_integer(fields[1], 2**31 - 1, line, path)
            checkpoints.parse_integer(fields[2], MAX_OFFSET, line, path)
        except CorruptCheckpoint:
            return True
    return False


def check_space(state: LogDirState) -> Iterator[Prediction]:
    """Check that there is space for the files that a broker makes when it starts."""
    status = os.statvfs(state.path)
    free = status.f_bavail * status.f_frsize
    if free < _LITTLE_SPACE_BYTES:
        yield Prediction(
            "disk-full",
            Reaction.OFFLINE,
            state.path,
            f"{free} bytes are free",
            "takes the directory offline at the first file that it cannot write",
            "Make space: `kafkafs retain` removes old segments by their topics' retention",
        )
