"""Topics, partitions and configurations of a KRaft broker's directory, as read from `__cluster_metadata-0`.

The latest snapshot (`<end offset>-<epoch>.checkpoint`) is read first, then the log from there on. The directory is only
read. A running broker appends to the log all the time, so each refresh reads only what is new. Records above the high
watermark, which a controller may still take back, are included. See storage/DESIGN.md, "Cluster metadata". Source:
Kafka's MetadataLoader.

Nothing here locks: a reader belongs to one thread at a time; what it returns is immutable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from storage.errors import (
    CorruptBatch,
    CorruptCheckpoint,
    SegmentGone,
    StorageError,
    TooManyKeys,
    UnsupportedFormat,
)
from storage.files import names
from storage.files.log_file import FileIdentity, LogFile, scan_quietly
from storage.files.names import CLUSTER_METADATA_TOPIC, FileKind, FileState
from storage.format.batches import BATCH_HEADER_SIZE, LENGTH, LOG_OVERHEAD, MOST_BATCH_BYTES, BatchTable, ScanStop, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.format.messages import Held, UnknownRecordType, messages
from storage.types import MAX_OFFSET

# Records of KRaft's metadata log: as they are read by definition, and those with which a new cluster begins.
#
# `metadata_checkpoint` writes these. ACLs, SCRAM credentials, quotas and delegation tokens are carried over as they
# are. Sources: MetadataRecordSerde, and the schemas `common/metadata/*.json` of Kafka.

# Types of which a later version is passed over: they say nothing of topics, or of what a new cluster takes over.
# Brokers, controllers, NoOp, ZkMigrationState, ClearElr.
_PASSED_OVER = {bytes([number]) for number in (0, 1, 7, 8, 17, 20, 21, 27, 28, 29)}


class ResourceType(IntEnum):
    """What a ConfigRecord configures (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A key was set, or deleted when `value` is None. `resource_type` may be missing from ResourceType."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """A feature, for example metadata.version, has this level from now on; 0: it is off."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` have been given out."""

    next_producer_id: int


class VerbatimKind(StrEnum):
    """What a VerbatimRecord holds, in words."""

    ACL = "ACLs"
    SCRAM = "SCRAM credentials"
    QUOTA = "quotas"
    TOKEN = "delegation tokens"


@dataclass(frozen=True, slots=True)
class VerbatimRecord:
    """A record whose bytes stay as they are. `name`: whom it concerns, for a person; never a secret."""

    kind: VerbatimKind
    name: str
    value: bytes


class MetadataRecord(NamedTuple):
    """A record of the log: its type, for example TOPIC_RECORD, its fields, and its bytes."""

    kind: str
    data: dict[str, Any]
    raw: bytes


def decode_block(block: RecordBlock, held: Held | None = None) -> Iterator[MetadataRecord | StorageError | None]:
    """The record in each row; None for a type that is not defined here; CorruptCheckpoint when it does not parse,
    UnsupportedFormat for an undefined version. `held`: as of `Messages.objects`. TooManyKeys."""
    for row, (_, value, error) in enumerate(messages(CLUSTER_METADATA_TOPIC).objects(block, held=held)):
        if value is not None:
            yield MetadataRecord(value["type"], value["data"], block.value(row) or b"")
        else:
            yield _unread(error, block.value(row))


def _unread(error: StorageError | None, raw: bytes | None) -> StorageError | None:
    if isinstance(error, UnknownRecordType):
        return None
    if isinstance(error, UnsupportedFormat) and raw is not None and raw[1:2] in _PASSED_OVER:
        return None
    what = "metadata record is null" if error is None else f"metadata {error.what}"
    return (UnsupportedFormat if isinstance(error, UnsupportedFormat) else CorruptCheckpoint)(what)


# The state that the records of KRaft's metadata log describe: topics, partitions, configurations, brokers, and what is
# carried over to another cluster as it is.
#
# Sources: Kafka's TopicsDelta, TopicDelta, PartitionRegistration.merge, ConfigurationsDelta, ClusterDelta.

Data = Mapping[str, Any]
Key = tuple[Hashable, ...]

BROKER, CONTROLLER, FEATURE, PRODUCER_IDS = "broker", "controller", "feature", "producer ids"
TOPIC, PARTITION, CONFIG = "topic", "partition", "configuration"
# What the records of a type describe, and the fields that identify it.
_SET: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "REGISTER_BROKER_RECORD": (BROKER, ("brokerId",)),
    "REGISTER_CONTROLLER_RECORD": (CONTROLLER, ("controllerId",)),
    "FEATURE_LEVEL_RECORD": (FEATURE, ("name",)),
    "PRODUCER_IDS_RECORD": (PRODUCER_IDS, ()),
    "ACCESS_CONTROL_ENTRY_RECORD": (VerbatimKind.ACL, ("id",)),
    "USER_SCRAM_CREDENTIAL_RECORD": (VerbatimKind.SCRAM, ("name", "mechanism")),
    "DELEGATION_TOKEN_RECORD": (VerbatimKind.TOKEN, ("tokenId",)),
}
_REMOVED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "UNREGISTER_BROKER_RECORD": (BROKER, ("brokerId",)),
    "UNREGISTER_CONTROLLER_RECORD": (CONTROLLER, ("controllerId",)),
    "REMOVE_ACCESS_CONTROL_ENTRY_RECORD": (VerbatimKind.ACL, ("id",)),
    "REMOVE_USER_SCRAM_CREDENTIAL_RECORD": (VerbatimKind.SCRAM, ("name", "mechanism")),
    "REMOVE_DELEGATION_TOKEN_RECORD": (VerbatimKind.TOKEN, ("tokenId",)),
}
_ELR: Final = {"eligibleLeaderReplicas", "lastKnownElr"}
# Whom a record of this kind concerns.
_NAMED: Final[dict[str, Callable[[Data], str]]] = {
    VerbatimKind.ACL: lambda data: str(data["principal"]),
    VerbatimKind.SCRAM: lambda data: str(data["name"]),
    VerbatimKind.TOKEN: lambda data: str(data["owner"]),
    VerbatimKind.QUOTA: lambda data: ", ".join(
        f"{one['entityType']} {'<default>' if one['entityName'] is None else one['entityName']}"
        for one in data["entity"]
    ),
}


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The nodes of a partition, as node ids. Leader -1: none at the moment. `directories`: the log directories' ids, in
    the order of the replicas."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    directories: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Data) -> PartitionMetadata:
        """From a PartitionRecord's data."""
        replicas, isr = tuple(data["replicas"]), tuple(data["isr"])
        return cls(replicas, isr, data["leader"], data["leaderEpoch"], tuple(data.get("directories", ())))


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic of the cluster. `configs`: its own keys and texts; `partitions`: by number."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionMetadata]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The cluster's metadata before `end_offset`.

    `broker_defaults` and `brokers` (by node id) are dynamic broker configurations, which override server.properties.
    `other_configs`: by resource type and name, of what is neither a topic nor a broker. `verbatim`: ACLs, credentials,
    quotas and tokens. `features`: levels by name, those that are off left out. Producer ids below `next_producer_id`
    were given out.
    `problem`: why nothing beyond `end_offset` could be read; None when everything was read.
    """

    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    broker_defaults: Mapping[str, str] = field(default_factory=dict)
    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    end_offset: int = 0
    problem: StorageError | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    other_configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    verbatim: tuple[VerbatimRecord, ...] = ()

    def broker_values(self, node_id: int | None) -> dict[str, str]:
        """The dynamic configuration of one broker, the cluster's defaults included."""
        own = {} if node_id is None else self.brokers.get(node_id, {})
        return {**self.broker_defaults, **own}


class Change(NamedTuple):
    """What a record has changed: the state of something before and after it, None while it is not there."""

    kind: str
    key: Key
    before: Data | None
    after: Data | None


class MetadataReplay:
    """Applies metadata records one after the other. States are the data of the records that set them, and are never
    changed once they are there."""

    def __init__(self) -> None:
        self.topics: dict[str, Data] = {}  # by topic id
        self.partitions: dict[str, dict[int, Data]] = {}  # by topic id
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.others: dict[tuple[str, Key], Data] = {}
        self._raw: dict[tuple[str, Key], bytes] = {}
        self._in_transaction = False
        self._transaction: list[MetadataRecord] = []
        self.held = Held(self.topics, self.partitions, self.configs, self.others, self._raw, self._transaction)
        # The topics returned last; those whose names are in _changed must be built again.
        self._shown: dict[str, TopicMetadata] = {}
        self._changed: set[str] = set()

    def apply(self, record: MetadataRecord) -> list[Change]:
        """Applies one record; what that has changed, which is nothing within a transaction, and all of it at its end.
        CorruptCheckpoint when it contradicts earlier ones."""
        match record.kind:
            case "BEGIN_TRANSACTION_RECORD" | "ABORT_TRANSACTION_RECORD":
                self._in_transaction = record.kind == "BEGIN_TRANSACTION_RECORD"
                self._transaction.clear()
            case "END_TRANSACTION_RECORD":
                ended = self._transaction.copy()
                self._in_transaction = False
                self._transaction.clear()
                return [change for each in ended for change in self._apply(each)]
            case _ if self._in_transaction:
                self._transaction.append(record)
            case _:
                return self._apply(record)
        return []

    def _apply(self, record: MetadataRecord) -> list[Change]:
        kind, data, raw = record
        match kind:
            case "TOPIC_RECORD":
                self._changed.add(data["name"])
                self.topics[data["topicId"]] = data
                return [Change(TOPIC, (data["topicId"],), None, data)]
            case "REMOVE_TOPIC_RECORD":
                topic = self._topic(data["topicId"])
                del self.topics[data["topicId"]]
                self.partitions.pop(data["topicId"], None)
                self.configs.pop((ResourceType.TOPIC, topic["name"]), None)
                self._changed.add(topic["name"])
                return [Change(TOPIC, (data["topicId"],), topic, None)]
            case "PARTITION_RECORD":
                return [self._partition(data, data)]
            case "PARTITION_CHANGE_RECORD":
                return [self._partition_change(data)]
            case "CONFIG_RECORD":
                return [self._config(data)]
            case "BROKER_REGISTRATION_CHANGE_RECORD" | "FENCE_BROKER_RECORD" | "UNFENCE_BROKER_RECORD":
                return self._broker_change(kind, data)
            case "CLEAR_ELR_RECORD":
                return self._clear_elr(data["topicName"])
            case "CLIENT_QUOTA_RECORD":
                entity = tuple(sorted(((one["entityType"], one["entityName"]) for one in data["entity"]), key=str))
                return [self._other(VerbatimKind.QUOTA, (entity, data["key"]), None if data["remove"] else data, raw)]
        if kind in _SET:
            name, fields = _SET[kind]
            after = None if kind == "FEATURE_LEVEL_RECORD" and data["featureLevel"] == 0 else data
            return [self._other(name, tuple(data[each] for each in fields), after, raw)]
        if kind in _REMOVED:
            name, fields = _REMOVED[kind]
            return [self._other(name, tuple(data[each] for each in fields), None, raw)]
        return []

    def _other(self, kind: str, key: Key, after: Data | None, raw: bytes = b"") -> Change:
        before = self.others.pop((kind, key), None)
        self._raw.pop((kind, key), None)
        if after is not None:
            self.others[kind, key] = after
            if kind in _NAMED:
                self._raw[kind, key] = raw
        return Change(kind, key, before, after)

    def _config(self, data: Data) -> Change:
        resource = data["resourceType"], data["resourceName"]
        values = self.configs.setdefault(resource, {})
        before = values.pop(data["name"], None)
        if data["value"] is not None:
            values[data["name"]] = data["value"]
        if resource[0] == ResourceType.TOPIC:
            self._changed.add(resource[1])
        return Change(
            CONFIG,
            (*resource, data["name"]),
            None if before is None else {**data, "value": before},
            None if data["value"] is None else data,
        )

    def _partition(self, data: Data, after: Data) -> Change:
        topic = self._topic(data["topicId"])
        partitions = self.partitions.setdefault(data["topicId"], {})
        before = partitions.get(data["partitionId"])
        partitions[data["partitionId"]] = after
        self._changed.add(topic["name"])
        return Change(PARTITION, (data["topicId"], data["partitionId"]), before, after)

    def _partition_change(self, data: Data) -> Change:
        topic = self._topic(data["topicId"])
        before = self.partitions.get(data["topicId"], {}).get(data["partitionId"])
        if before is None:
            raise CorruptCheckpoint(
                f"metadata changes partition {data['partitionId']} of {topic['name']}, which is not there"
            )
        # What a change leaves as it is, is not in it or null.
        after = {**before, **{name: value for name, value in data.items() if value is not None}}
        after["leaderEpoch"] = before["leaderEpoch"] + ("leader" in data)
        after["partitionEpoch"] = before["partitionEpoch"] + 1
        return self._partition(data, after)

    def _clear_elr(self, name: str) -> list[Change]:
        """Of a topic, or of all."""
        chosen = [number for number, topic in self.topics.items() if name in ("", topic["name"])]
        return [
            self._partition(data, {name: value for name, value in data.items() if name not in _ELR})
            for topic_id in chosen
            for data in list(self.partitions.get(topic_id, {}).values())
            if not _ELR.isdisjoint(data)
        ]

    def _broker_change(self, kind: str, data: Data) -> list[Change]:
        number = data["brokerId" if "brokerId" in data else "id"]
        before = self.others.get((BROKER, (number,)))
        if before is None:  # its registration was passed over
            return []
        after = dict(before)
        if kind != "BROKER_REGISTRATION_CHANGE_RECORD":
            after["fenced"] = kind == "FENCE_BROKER_RECORD"
        for name in ("fenced", "inControlledShutdown"):
            if data.get(name, 0):  # 1: set, -1: cleared
                after[name] = data[name] > 0
        after |= {name: data[name] for name in ("logDirs", "cordonedLogDirs") if data.get(name) is not None}
        return [self._other(BROKER, (number,), after)]

    def _topic(self, topic_id: str) -> Data:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise CorruptCheckpoint(f"metadata changes the topic with id {topic_id}, which is not there")
        return topic

    def show(self, end_offset: int, problem: StorageError | None) -> ClusterMetadata:
        """The state as an immutable value; it shares unchanged topics with the value before."""
        if self._changed:
            shown = {name: topic for name, topic in self._shown.items() if name not in self._changed}
            for topic_id, topic in self.topics.items():
                name = topic["name"]
                if name in self._changed:
                    partitions = sorted(self.partitions.get(topic_id, {}).items())
                    shown[name] = TopicMetadata(
                        name,
                        topic_id,
                        MappingProxyType({number: PartitionMetadata.of(data) for number, data in partitions}),
                        MappingProxyType(dict(self.configs.get((ResourceType.TOPIC, name), {}))),
                    )
            self._shown = shown
            self._changed = set()
        brokers = {
            int(name): MappingProxyType(dict(values))
            for (kind, name), values in self.configs.items()
            if kind == ResourceType.BROKER and name.isascii() and name.isdigit()
        }
        defaults = self.configs.get((ResourceType.BROKER, ""), {})
        others = self.others.items()
        return ClusterMetadata(
            MappingProxyType(self._shown),
            MappingProxyType(dict(defaults)),
            MappingProxyType(brokers),
            end_offset,
            problem,
            MappingProxyType({data["name"]: data["featureLevel"] for (kind, _), data in others if kind == FEATURE}),
            self.others.get((PRODUCER_IDS, ()), {}).get("nextProducerId", 0),
            MappingProxyType(
                {
                    resource: MappingProxyType(dict(values))
                    for resource, values in self.configs.items()
                    if resource[0] not in (ResourceType.TOPIC, ResourceType.BROKER)
                }
            ),
            tuple(
                VerbatimRecord(VerbatimKind(kind), _NAMED[kind](data), self._raw[kind, key])
                for (kind, key), data in others
                if kind in _NAMED
            ),
        )


__all__ = ["ClusterMetadata", "ClusterMetadataReader", "PartitionMetadata", "TopicMetadata", "read_bootstrap"]

_WINDOW_BYTES = 1024 * 1024
_WINDOW_ROWS = 4096


@dataclass(frozen=True, slots=True)
class _Segment:
    base_offset: int
    file: LogFile
    size_bytes: int


class ClusterMetadataReader:
    """Follows the `__cluster_metadata-0` of one log directory."""

    def __init__(self, log_dir: Path) -> None:
        self._directory = log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0"
        self._decoder = Decoder()
        self._table = BatchTable.empty(_WINDOW_ROWS)
        self._forget()
        self._shown: ClusterMetadata | None = None
        self._limit = MAX_OFFSET

    def _forget(self) -> None:
        self._replay = MetadataReplay()
        self._end_offset = 0
        # The segment read last, and the position where the next read in it begins.
        self._identity: FileIdentity | None = None
        self._base_offset = 0
        self._position = 0
        # The position and header of the last batch read. The inode number alone does not prove that the batch is still
        # there: a quorum's log may be truncated and appended to again, and a directory may be formatted again.
        self._last_batch: tuple[int, bytes] | None = None
        # Why the latest snapshot was not read. The log from its beginning tells as much, if it is still there.
        self._unread: StorageError | None = None
        # The error of an intact batch with invalid records: reading it again would not help.
        self._stuck: StorageError | None = None

    def refresh(self) -> ClusterMetadata | None:
        """The current metadata; None when the directory has none (a broker may keep it in another directory).

        Damage is reported in `problem`. OSError when the directory or the log cannot be read.
        """
        try:
            segments, snapshots = self._list()
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
            self._shown = None
            return None
        problem = self._stuck
        try:
            if not self._follows(segments):
                self._forget()
                problem, self._unread = None, self._start(snapshots)
            is_whole = self._unread is None or (bool(segments) and segments[0].base_offset <= self._end_offset)
            if problem is None and is_whole:
                problem = self._read_log(segments)
            problem = problem or self._unread
        except SegmentGone as gone:
            # A running broker removes segments and snapshots; the next refresh starts over with the files there are
            # then.
            self._forget()
            return ClusterMetadata(problem=gone) if self._shown is None else self._shown
        before = self._shown
        if before is None or before.end_offset != self._end_offset or str(before.problem) != str(problem):
            self._shown = self._replay.show(self._end_offset, problem)
        return self._shown

    def state_before(self, end_offset: int) -> tuple[MetadataReplay, int, StorageError | None]:
        """The state that the records below an offset describe, from the newest snapshot that ends there or earlier; the
        offset that it ends before, and why it ends below the one that was asked for. This reader does not refresh any
        more. FileNotFoundError, OSError."""
        segments, snapshots = self._list()
        self._forget()
        # All records of a snapshot count: their offsets are those in its file, not the log's.
        problem = self._start([one for one in snapshots if one[0].end_offset <= end_offset])
        self._limit = end_offset
        problem = self._read_log(segments) or problem
        return self._replay, min(self._end_offset, end_offset), problem

    def problem_of_newest_snapshot(self) -> StorageError | None:
        """Why the newest snapshot cannot be read as a whole, whatever older ones say; None also where there is none.
        This reader does not refresh any more. FileNotFoundError, OSError."""
        _, snapshots = self._list()
        self._forget()
        return self._read_snapshot(snapshots[0][1]) if snapshots else None

    def bootstrap(self, path: Path) -> ClusterMetadata:
        """What the records of a checkpoint file outside of `__cluster_metadata-0` describe. OSError."""
        self._forget()
        problem = self._read_snapshot(LogFile(path))
        return self._replay.show(0, problem)

    def _list(self) -> tuple[list[_Segment], list[tuple[names.MetadataSnapshotName, LogFile]]]:
        segments = []
        snapshots = []
        with scan_quietly(self._directory) as entries:
            for entry in entries:
                name = names.parse_segment_file(entry.name)
                snapshot = names.parse_metadata_snapshot(entry.name)
                try:
                    if name is not None and name.kind is FileKind.LOG and name.state is FileState.LIVE:
                        status = entry.stat(follow_symlinks=False)
                        file = LogFile(self._directory / entry.name, FileIdentity.of(status))
                        segments.append(_Segment(name.offset, file, status.st_size))
                    elif snapshot is not None:
                        snapshots.append((snapshot, LogFile(self._directory / entry.name)))
                except FileNotFoundError:
                    continue
        segments.sort(key=lambda segment: segment.base_offset)
        snapshots.sort(key=lambda pair: pair[0], reverse=True)
        return segments, snapshots

    def _follows(self, segments: list[_Segment]) -> bool:
        """Whether the segment read last, and the batches read from it, are still there."""
        for segment in segments:
            if segment.file.identity == self._identity and segment.size_bytes >= self._position:
                if self._last_batch is None:
                    return segment.base_offset == self._base_offset
                position, header = self._last_batch
                return bytes(segment.file.read(position, len(header))) == header
        return False

    def _start(self, snapshots: list[tuple[names.MetadataSnapshotName, LogFile]]) -> StorageError | None:
        """Starts from the latest snapshot that can be read, or from an empty state when there is none."""
        problem: StorageError | None = None
        for name, file in snapshots:
            self._replay = MetadataReplay()
            found = self._read_snapshot(file)
            if found is None:
                self._end_offset = name.end_offset
                return None
            problem, self._stuck = problem or found, None
            if isinstance(found, TooManyKeys):
                break
        self._replay = MetadataReplay()
        return problem

    def _read_snapshot(self, file: LogFile) -> StorageError | None:
        position = 0
        complete = False
        try:
            for end, problem in self._read_file(file, 0, 0):
                if problem is not None:
                    return problem
                position = end
                # The last batch holds the footer, a control record.
                complete = bool(self._table.is_control[self._table.rows - 1])
            if complete and position == file.stat().st_size:
                return None
        except OSError as error:
            # Brokers make snapshots readable for their own user alone. Or it is a directory, say.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.ELOOP):
                raise
            return CorruptCheckpoint(f"metadata snapshot cannot be read: {error.strerror}", path=file.path)
        return CorruptCheckpoint("metadata snapshot is cut off", path=file.path, position=position)

    def _read_log(self, segments: list[_Segment]) -> StorageError | None:
        """Continues where the last call stopped."""
        for index, segment in enumerate(segments):
            following = segments[index + 1].base_offset if index + 1 < len(segments) else MAX_OFFSET
            if segment.file.identity == self._identity:
                pass
            elif following <= self._end_offset or segment.base_offset < self._base_offset:
                continue
            elif segment.base_offset > self._end_offset:
                return CorruptCheckpoint(
                    "metadata log has a gap",
                    path=segment.file.path,
                    expected=f"offset {self._end_offset}",
                    found=f"a segment from {segment.base_offset} on",
                )
            else:
                self._identity, self._base_offset, self._position = segment.file.identity, segment.base_offset, 0
                self._last_batch = None
            for end, problem in self._read_file(segment.file, self._position, self._end_offset):
                self._position = end
                if self._table.rows:
                    last = int(self._table.position[self._table.rows - 1])
                    self._last_batch = last, bytes(segment.file.read(last, BATCH_HEADER_SIZE))
                    self._end_offset = max(self._end_offset, int(self._table.last_offset[self._table.rows - 1]) + 1)
                if self._stuck is not None and self._stuck.offset is not None:
                    self._end_offset = self._stuck.offset
                if problem is not None:
                    return problem
        return None

    def _read_file(self, file: LogFile, position: int, first_offset: int) -> Iterator[tuple[int, StorageError | None]]:
        """Replays the records from a byte position on, window by window, without those below `first_offset`.

        Yields the next position and the problem found there, if any; the table then holds the batches that were
        replayed. A batch that is cut off at the end is still being written; zeros are preallocated space.
        """
        window = _WINDOW_BYTES
        while True:
            data = file.read(position, window)
            self._table.clear()
            stop = scan(data, position, self._table).stop
            if not self._table.rows:
                if stop is ScanStop.END and len(data) == window:  # a batch larger than the window
                    needed = LOG_OVERHEAD + int.from_bytes(data[LENGTH], "big")
                    if needed <= MOST_BATCH_BYTES:
                        window = max(needed, 2 * window)
                        continue
                    expected = f"at most {MOST_BATCH_BYTES} bytes"
                    where: dict[str, Any] = {"path": file.path, "position": position}
                    yield position, CorruptBatch("metadata batch", **where, expected=expected, found=needed)
                    return
                if stop is not ScanStop.END and any(data):
                    yield position, CorruptBatch("metadata holds what is no batch", path=file.path, position=position)
                return
            window = _WINDOW_BYTES
            block = self._decoder.decode(data, self._table, origin=position)
            self._table.rows = block.next_row
            if block.next_row:
                position = int(self._table.end[block.next_row - 1])
            problem = self._take(block, first_offset, file)
            if problem is None and block.damage is not None:
                problem = block.damage.error
                problem.path = file.path
            yield position, problem
            if problem is not None:
                return

    def _take(self, block: RecordBlock, first_offset: int, file: LogFile) -> StorageError | None:
        offsets = block.offset
        row = 0
        try:
            for record in decode_block(block, self._replay.held):
                if first_offset <= offsets[row] < self._limit and record is not None:
                    if isinstance(record, StorageError):
                        raise record
                    self._replay.apply(record)
                row += 1
        except StorageError as error:
            error.path, error.offset = file.path, int(offsets[row])
            self._stuck = error
            return error
        return None


def read_bootstrap(log_dir: Path) -> ClusterMetadata | None:
    """What `bootstrap.checkpoint` describes: what a cluster began with, at least its features, or in a copy what it had
    besides topics. None without the file; OSError when it cannot be read."""
    try:
        return ClusterMetadataReader(log_dir).bootstrap(log_dir / names.BOOTSTRAP_CHECKPOINT)
    except FileNotFoundError:
        return None
