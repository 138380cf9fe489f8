"""What a broker makes of the log directories themselves: identity, lock, names, checkpoints, space.

Sources: Kafka's KafkaRaftServer.initializeLogDirs, MetaPropertiesEnsemble, LogManager, FileQuorumStateStore.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import CorruptCheckpoint, InvalidConfig, StorageError
from storage.files import checkpoints, cluster_metadata, dir_lock, meta_properties, names
from storage.files.cluster_metadata import ClusterMetadata, ClusterMetadataReader
from storage.files.log_file import paths_in, read_existing, read_whole
from storage.files.meta_properties import MetaProperties
from storage.files.names import DirKind
from storage.files.opening import exists, real_place
from storage.files.partition_metadata import id_bytes
from storage.format import properties
from storage.types import TopicPartition

# What a broker's server.properties says about its log directories and its node.

_KRAFT_ROLES = frozenset({"broker", "controller"})


@dataclass(frozen=True, slots=True)
class BrokerProperties:
    """`node_id`: None if it is not set. `metadata_dir`: where the metadata log lies. `is_kraft`: process.roles is set.
    `is_tiered`: tiered storage is configured."""

    path: Path
    node_id: int | None
    log_dirs: tuple[Path, ...]
    metadata_dir: Path | None
    is_kraft: bool
    is_tiered: bool


def read(path: Path) -> BrokerProperties:
    """Reads a server.properties. OSError; CorruptCheckpoint; InvalidConfig for a node id that is no number."""
    found = properties.parse(read_existing(real_place(path)), path)
    text = found.get("node.id", found.get("broker.id"))
    try:
        node_id = None if text is None or not text.strip() else int(text)
    except ValueError:
        raise InvalidConfig("node.id is no number", path=path, found=repr(text)) from None
    listed = found.get("log.dirs") or found.get("log.dir") or "/tmp/kafka-logs"
    log_dirs = tuple(Path(part.strip()) for part in listed.split(",") if part.strip())
    roles = {role.strip() for role in found.get("process.roles", "").split(",")} & _KRAFT_ROLES
    metadata_dir = found.get("metadata.log.dir", "").strip()
    return BrokerProperties(
        path,
        node_id if node_id is None or node_id >= 0 else None,
        log_dirs,
        Path(metadata_dir) if metadata_dir else (log_dirs[0] if log_dirs else None),
        bool(roles),
        found.get("remote.log.storage.system.enable", "").strip().lower() == "true",
    )


# What a broker makes of its quorum's files: the metadata log, its snapshots, quorum-state and bootstrap.checkpoint.
#
# Sources: Kafka's KafkaRaftServer, FileQuorumStateStore, Snapshots, MetadataLoader, BootstrapDirectory.

_LEAST_METADATA_VERSION = 7  # 3.3-IV3: brokers from 4.0 on refuse older ones
# The least metadata.version that a release introduced, and the release (MetadataVersion). 4.3 knows the name of
# 31, and does not start with it.
_RELEASES = ((31, "4.4"), (30, "4.3"), (28, "4.2"), (26, "4.1"), (22, "4.0"))
_LATEST_METADATA_VERSION = 33  # 4.4-IV2
# The numbers that a quorum-state must have, by its version (QuorumStateData).
_QUORUM_STATE_NUMBERS = {
    0: ("leaderId", "leaderEpoch", "votedId", "appliedOffset"),
    1: ("leaderId", "leaderEpoch", "votedId"),
}
# A snapshot of any state, and what a broker takes the offset and epoch in its name from (Snapshots.parse).
_SNAPSHOT_END = re.compile(r".*\.checkpoint(\.part|\.deleted)?")
_SNAPSHOT_BEGIN = re.compile(r"[0-9]{20}.[0-9]{10}.*")


def check_quorum(
    dirs: Sequence[LogDirState], metadata_dir: LogDirState, metadata: ClusterMetadata | None
) -> Iterator[Prediction]:
    """The metadata log is where it should be, and can be read."""
    for one in dirs:
        if one is not metadata_dir and one.metadata_log.is_dir():
            yield Prediction(
                "metadata-log-elsewhere",
                Reaction.REFUSES,
                one.metadata_log,
                "a metadata log outside of the metadata directory",
                f"does not start: it expects the metadata log in {metadata_dir.path} alone",
                "Correct metadata.log.dir, or the order of log.dirs: the first one has the metadata log",
            )
    yield from _check_quorum_state(metadata_dir.metadata_log / names.QUORUM_STATE)
    bootstrap = metadata_dir.path / names.BOOTSTRAP_CHECKPOINT
    what = "the file holds no metadata.version"
    try:
        began = cluster_metadata.read_bootstrap(metadata_dir.path)
    except OSError as error:
        began, what = ClusterMetadata(), not_a_file(bootstrap, error).what
    if began is not None and "metadata.version" not in began.features:
        yield Prediction(
            "bootstrap-corrupt",
            Reaction.REFUSES,
            bootstrap,
            what,
            "does not start: it cannot read it, or: No FeatureLevelRecord for metadata.version was found",
            "Move the file elsewhere, if there is a metadata log: what it said is in it",
        )
    yield from _check_snapshots(metadata_dir)
    if metadata is not None and metadata.problem is not None and not _is_snapshot(metadata.problem.path):
        yield Prediction(
            "metadata-log-damaged",
            Reaction.CUTS,
            metadata.problem.path or metadata_dir.metadata_log,
            f"the metadata can be read up to offset {metadata.end_offset}: {metadata.problem.what}",
            "cuts the metadata log there, or does not start; topics that it forgets become strays",
            f"Take the metadata log of another controller, or: {REVIVE}",
        )
    known = metadata or began
    version = 0 if known is None else known.features.get("metadata.version", 0)
    if 0 < version < _LEAST_METADATA_VERSION:
        yield Prediction(
            "metadata-version-old",
            Reaction.REFUSES,
            metadata_dir.metadata_log,
            f"metadata.version is {version}, before 3.3-IV3",
            "does not start, if it is Kafka 4.0 or later",
            "Start Kafka 3.9 and raise it: kafka-features.sh upgrade",
        )

    release = next((name for least, name in _RELEASES if version >= least), None)
    if version > _LATEST_METADATA_VERSION:
        yield Prediction(
            "metadata-version-new",
            Reaction.IGNORES,
            metadata_dir.metadata_log,
            f"metadata.version is {version}, not known to this version of kafkafs",
            "starts if it is a later Kafka than 4.4 and knows that version; Kafka 4.4 does not start",
        )
    elif release is not None:
        yield Prediction(
            "metadata-version-new",
            Reaction.IGNORES,
            metadata_dir.metadata_log,
            f"metadata.version is {version}",
            f"starts if it is Kafka {release} or later; an earlier one does not",
        )


def _check_quorum_state(path: Path) -> Iterator[Prediction]:
    what = "the file does not parse, or is of a version that is not known, or lacks what that version must have"
    try:
        data = read_whole(path)
    except OSError as error:
        data, what = b"", not_a_file(path, error).what
    if data is not None and not _is_quorum_state(data):
        yield Prediction(
            "quorum-state-corrupt",
            Reaction.REFUSES,
            path,
            what,
            "does not start: Error while reading the Quorum status, or: data_version is not within the supported ones,"
            " or: unable to locate a field",
            "Remove the file, if this is the only controller",
        )


def _is_quorum_state(data: bytes) -> bool:
    """Whether FileQuorumStateStore reads it. A version that is no number is 0 to it."""
    try:
        state = json.loads(data)
        if not isinstance(state, dict) or "data_version" not in state:
            return False
        number = state["data_version"]
        version = int(number) if isinstance(number, int | float) else 0
        wanted = _QUORUM_STATE_NUMBERS.get(version)
        has_voters = isinstance(state.get("currentVoters", ""), list | None)
        named = has_voters and isinstance(state.get("clusterId"), str) if version == 0 else "votedDirectoryId" in state
        return wanted is not None and named and all(isinstance(state.get(one), int) for one in wanted)
    except (ValueError, OverflowError, RecursionError):
        return False


def _check_snapshots(metadata_dir: LogDirState) -> Iterator[Prediction]:
    """A broker looks at the names of all snapshots and loads the newest one, whatever an older one and the log say."""
    directory = metadata_dir.metadata_log
    if not directory.is_dir():
        return
    for path in paths_in(directory):
        if _SNAPSHOT_END.fullmatch(path.name) and not _SNAPSHOT_BEGIN.fullmatch(path.name):
            yield Prediction(
                "file-misnamed", Reaction.REFUSES, path, "a snapshot's name without an offset and an epoch",
                "does not start: it cannot parse the name", "Move the file elsewhere",
            )  # fmt: skip
    problem = ClusterMetadataReader(metadata_dir.path).problem_of_newest_snapshot()
    if problem is None:
        return
    older = "Move the file elsewhere, if an older snapshot or the log from its beginning is there"
    is_cut = isinstance(problem, CorruptCheckpoint) and bool(problem.position)
    yield Prediction(
        "metadata-snapshot-damaged",
        Reaction.CUTS if is_cut else Reaction.REFUSES,
        problem.path or directory,
        problem.what,
        "takes what is before the cut for all of it; topics that are missing there become strays"
        if is_cut
        else "does not start: it cannot load the snapshot",
        f"{older}; or: {REVIVE}",
    )


def _is_snapshot(path: Path | None) -> bool:
    return path is not None and names.parse_metadata_snapshot(path.name) is not None


REVIVE = "`kafkafs revive` makes a directory of it on which a broker starts"
_RESERVED_IDS = 100
_NOT_A_FILE = (errno.EISDIR, errno.EINVAL, errno.ELOOP)  # of opening
_LITTLE_SPACE_BYTES = 64 << 20
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
    """One log directory. `meta`: None where there is no meta.properties, or it cannot be read (`meta_problem`).
    `clean`: it was shut down cleanly. `partitions`: those that a broker loads."""

    path: Path
    meta: MetaProperties | None
    meta_problem: StorageError | None
    clean: bool
    partitions: tuple[TopicPartition, ...]

    @staticmethod
    def of(path: Path) -> LogDirState:
        """Reads it. OSError."""
        path, meta, problem = real_place(path), None, None
        try:
            meta = meta_properties.read(path / names.META_PROPERTIES)
        except CorruptCheckpoint as error:
            problem = error
        except OSError as error:
            problem = not_a_file(path / names.META_PROPERTIES, error)
        parsed = [names.parse_dir(entry.name) for entry in paths_in(path) if entry.is_dir()]
        loaded = [one.partition for one in parsed if one.kind is DirKind.PARTITION and one.partition is not None]
        return LogDirState(path, meta, problem, exists(path / names.CLEAN_SHUTDOWN), tuple(sorted(loaded)))

    def loaded(self) -> list[tuple[TopicPartition, Path]]:
        """The partitions that a broker loads, and their directories: also where the number has zeros before it."""
        found = [(tp, self.path / tp.dir_name) for tp in self.partitions]
        for entry in paths_in(self.path):
            topic, dash, number = entry.name.rpartition("-")
            is_taken = bool(topic and dash) and names.topic_name_problem(topic) is None and entry.is_dir()
            if is_taken and _ZEROS.fullmatch(number):
                found.append((TopicPartition(topic, int(number)), entry))
        return found

    @property
    def metadata_log(self) -> Path:
        return self.path / f"{names.CLUSTER_METADATA_TOPIC}-0"


def not_a_file(path: Path, error: OSError) -> CorruptCheckpoint:
    """What is wrong with a path that should be a file and is a directory, say. Other errors are raised."""
    if error.errno not in _NOT_A_FILE:
        raise error
    return CorruptCheckpoint(f"{path.name} is no regular file", path=path)


def metadata_dir_of(dirs: Sequence[LogDirState], given: BrokerProperties | None) -> LogDirState:
    """The directory whose metadata log the broker uses: the one that is configured, else the one that has it."""
    if given is not None and given.metadata_dir is not None:
        for one in dirs:
            if one.path.resolve() == given.metadata_dir.resolve():
                return one
    return next((one for one in dirs if one.metadata_log.is_dir()), dirs[0])


def metadata_of(state: LogDirState) -> ClusterMetadata | None:
    """The metadata with which a broker starts: its log or, where it has none, bootstrap.checkpoint if that has topics.
    None where nothing tells of topics. OSError."""
    metadata = ClusterMetadataReader(state.path).refresh()
    if metadata is None or (not metadata.end_offset and metadata.problem is None):
        try:
            bootstrap = cluster_metadata.read_bootstrap(state.path)
        except OSError as error:
            not_a_file(state.path, error)  # check_quorum tells
            return None
        return bootstrap if bootstrap is not None and bootstrap.topics else None
    return metadata


def check_identity(
    dirs: Sequence[LogDirState], metadata_dir: LogDirState, given: BrokerProperties | None
) -> Iterator[Prediction]:
    """meta.properties: there, readable, of one cluster and one node, directory ids that differ."""
    named = given.log_dirs if given is not None and given.is_kraft else ()
    gone = [path for path in named if not exists(path)]
    for path in gone if len(gone) < len(named) else ():  # otherwise they are those of another machine
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
    for one in dirs:
        path = one.path / names.META_PROPERTIES
        if one.meta_problem is not None or one.meta is None:
            yield _unidentified(one, metadata_dir)
            continue
        meta = one.meta
        if meta.version == 0:
            yield Prediction(
                "meta-properties-v0",
                Reaction.IGNORES,
                path,
                "version 0, as of a broker with ZooKeeper",
                "takes it as it is; topics that only ZooKeeper knew become strays",
                f"Migrate with Kafka 3.9, or: {REVIVE}",
            )
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
        if meta.directory_id is not None:
            if not _is_id(meta.directory_id):
                refuses = one is metadata_dir
                yield Prediction(
                    "directory-id-corrupt",
                    Reaction.REFUSES if refuses else Reaction.OFFLINE,
                    path,
                    f"directory.id {meta.directory_id!r} is no id of 22 characters",
                    "does not start: Unable to read directory.id as a Uuid"
                    if refuses
                    else "takes this directory offline",
                    "Restore the line: under a new id, partitions that the metadata place here stay offline",
                )
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
            ids.setdefault(meta.directory_id, one.path)
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


def _unidentified(one: LogDirState, metadata_dir: LogDirState) -> Prediction:
    path = one.path / names.META_PROPERTIES
    advice = f"Restore the file from another directory of the broker (but not its directory.id), or: {REVIVE}"
    if one.meta_problem is not None:
        refuses = one is metadata_dir
        return Prediction(
            "meta-properties-corrupt",
            Reaction.REFUSES if refuses else Reaction.OFFLINE,
            path,
            str(one.meta_problem.what),
            "does not start: it cannot read the file" if refuses else "takes this directory offline",
            advice,
        )
    what = "there is no meta.properties: the directory is not formatted"
    if one is not metadata_dir:
        advice = f"kafka-storage.sh format --ignore-formatted formats it. {advice}"
    return Prediction(
        "meta-properties-missing", Reaction.REFUSES, path, what, "does not start: No `meta.properties` found", advice
    )


def check_lock(one: LogDirState) -> Iterator[Prediction]:
    """`.lock`: no process holds it."""
    holder = dir_lock.holder(one.path)
    if holder is not None:
        yield Prediction(
            "locked",
            Reaction.REFUSES,
            one.path / dir_lock.NAME,
            f"{dir_lock.describe_process(holder)} holds the directory",
            "does not start: Failed to acquire lock",
            "Stop that process; what is said below may change while it runs",
        )


def check_names(dirs: Sequence[LogDirState]) -> Iterator[Prediction]:
    """Every directory is a partition's, or one that a broker knows."""
    places: dict[TopicPartition, Path] = {}
    loaded = {tp for one in dirs for tp in one.partitions}
    for one in dirs:
        places_here = {place for _, place in one.loaded()}
        for entry in paths_in(one.path):
            if not entry.is_dir() or (entry.name == names.META_PROPERTIES and one.meta_problem is not None):
                continue
            if entry.name == names.CLEAN_SHUTDOWN and not paths_in(entry):
                continue  # it removes it before it looks at the others
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
            elif parsed.kind is DirKind.FUTURE:
                moves = parsed.partition in loaded
                yield Prediction(
                    "being-moved", Reaction.IGNORES, entry,
                    "a partition that was being moved here from another log directory",
                    "goes on with the move" if moves else "takes it for the partition, which is nowhere else",
                    "", parsed.partition,
                )  # fmt: skip
            elif parsed.kind is DirKind.STRAY:
                yield Prediction(
                    "stray", Reaction.IGNORES, entry, "a partition that a broker has set aside", "leaves it unused",
                    "`kafkafs revive` takes such directories", parsed.partition,
                )  # fmt: skip
        for tp, place in one.loaded():
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
    """Whether a broker takes a name that is no topic's: it looks for the number behind the last dash only."""
    topic, dash, number = name.rpartition("-")
    digits = number.removeprefix("+")
    return bool(topic and dash and digits.isascii() and digits.isdigit() and int(digits) < 2**31)


def check_placement(
    dirs: Sequence[LogDirState], metadata: ClusterMetadata | None, node_id: int | None
) -> Iterator[Prediction]:
    """The log directories that the metadata name for partitions that are here are here too, by their ids."""
    ids = {one.meta.directory_id for one in dirs if one.meta is not None}
    placed: dict[str, list[TopicPartition]] = {}
    named = set()
    loaded = {tp for one in dirs for tp in one.partitions}
    for topic in () if metadata is None else metadata.topics.values():
        for number, known in topic.partitions.items():
            for node, directory in zip(known.replicas, known.directories, strict=False):
                tp = TopicPartition(topic.name, number)
                if node == node_id:
                    named.add(directory)
                    if directory not in ids and tp in loaded and not _is_reserved(directory):
                        placed.setdefault(directory, []).append(tp)
    others = [one for one in dirs if one.meta is None or one.meta.directory_id not in named] or dirs
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


def check_checkpoints(one: LogDirState) -> Iterator[Prediction]:
    """The offset checkpoints parse."""
    for name in (*_CHECKPOINTS, *_READ_LATER):
        path = one.path / name
        problem: CorruptCheckpoint | None = None
        try:
            checkpoints.read(path)
        except CorruptCheckpoint as error:
            problem = error
        except OSError as error:
            problem = not_a_file(path, error)
        if problem is None:
            continue
        then = _CHECKPOINTS.get(name, "begins it anew")
        if name in _CHECKPOINTS and _is_of_lines(path):
            # Only a line's number is wrong: no IOException, and LogManager goes on without the file.
            yield Prediction("checkpoint-corrupt", Reaction.RECOVERS, path, problem.what, then)
            continue
        if name in _READ_LATER and _is_of_lines(path):  # nor here, but it is not caught
            what = f"starts, but {_READ_LATER[name]}: NumberFormatException"
            advice = f"Remove the file: the broker then {then}"
            yield Prediction("checkpoint-corrupt", Reaction.UNNOTICED, path, problem.what, what, advice)
            continue
        yield Prediction(
            "checkpoint-corrupt",
            Reaction.OFFLINE,
            path,
            problem.what,
            "takes the directory offline; without another one it stops",
            f"Remove the file: the broker then {then}",
        )


def _is_of_lines(path: Path) -> bool:
    """Whether a checkpoint's lines have as many fields as they should, whatever is in them."""
    try:
        return bool(checkpoints.parse_frame(read_whole(path) or b"", 3, path))
    except (CorruptCheckpoint, OSError):
        return False


def check_space(one: LogDirState) -> Iterator[Prediction]:
    """There is space for the files that a broker makes when it starts."""
    status = os.statvfs(one.path)
    free = status.f_bavail * status.f_frsize
    if free < _LITTLE_SPACE_BYTES:
        yield Prediction(
            "disk-full",
            Reaction.OFFLINE,
            one.path,
            f"{free} bytes are free",
            "takes the directory offline at the first file that it cannot write",
            "Make space: `kafkafs retain` removes old segments by their topics' retention",
        )
