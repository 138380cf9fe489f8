"""The groups of `__consumer_offsets`: their records, and what they hold now."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from storage.errors import InvalidRecord, StorageError, UnknownTopicOrPartition
from storage.files.names import CONSUMER_OFFSETS_TOPIC
from storage.format.block import RecordBlock
from storage.format.control_records import ControlType, parse_marker
from storage.format.hashing import group_partition
from storage.format.messages import Held, UnknownRecordType, messages
from storage.log.log_dir import LogDir
from storage.log.reader import Follower, Replay
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

# Records of `__consumer_offsets`: which kinds there are, and committed offsets as they are written here. `messages`
# reads them all.
#
# Sources: the schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey of Kafka 4.3, OffsetAndMetadata,
# GroupCoordinatorRecordHelpers. See storage/DESIGN.md, "Consumer groups".

NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

OFFSET_KINDS: Final = (0, 1)
METADATA_KIND: Final = 2  # of a classic group
_VERSION: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_WRITTEN_KEY: Final = 1
# Brokers from 2.1 on read version 3; version 4, which 4.3 writes, only those from 3.5 on.
_WRITTEN_VALUE: Final = 3
_MAX_STRING_BYTES: Final = 2**15 - 1


class GroupType(StrEnum):
    """Kafka's Group.GroupType: the protocol of a group's members."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071


def group_type(kind: int) -> GroupType:
    """The type of the group that a record of this type belongs to."""
    if kind <= METADATA_KIND:
        return GroupType.CLASSIC
    return GroupType.SHARE if 10 <= kind <= 15 else GroupType.STREAMS if kind >= 17 else GroupType.CONSUMER


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The next offset that a group will read. `leader_epoch` -1: unknown. Timestamps are in epoch ms;
    `expire_timestamp` -1: the broker's retention applies."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CommittedOffset:
        """From an OffsetCommitValue of any version, as `messages` reads it."""
        return cls(
            data["offset"],
            data.get("leaderEpoch", NO_LEADER_EPOCH),
            data["metadata"],
            data["commitTimestamp"],
            data.get("expireTimestamp", NO_EXPIRY),
        )


def encode_offset_key(key: OffsetKey) -> bytes:
    """An OffsetCommitKey as brokers write it, version 1. InvalidRecord for texts that do not fit."""
    return _VERSION.pack(_WRITTEN_KEY) + _string(key.group) + _string(key.topic) + struct.pack(">i", key.partition)


def encode_commit(committed: CommittedOffset) -> bytes:
    """An OffsetCommitValue, version 3 (without `expire_timestamp`). InvalidRecord as `encode_offset_key`."""
    head = struct.pack(">hqi", _WRITTEN_VALUE, committed.offset, committed.leader_epoch)
    return head + _string(committed.metadata) + _INT64.pack(committed.commit_timestamp)


def _string(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("a group's name or metadata is not valid Unicode text", found=ascii(text)) from None
    if len(data) > _MAX_STRING_BYTES:
        raise InvalidRecord("a group's name or metadata is too long", expected=f"at most {_MAX_STRING_BYTES} bytes")
    return struct.pack(">h", len(data)) + data


# What consumer groups have committed: `__consumer_offsets` read as a group coordinator reads it.
#
# The latest record of a key counts, a null value deletes it, offsets committed in a transaction count once it commits
# (OffsetMetadataManager.replay, replayEndTransactionMarker). What was read is kept, and new records are read from where
# the last read ended. Where segments that were read have been removed (compaction, retention) or truncated, everything
# is read again: a tombstone that was never read may have been removed with them.

_NO_PRODUCER: Final = -1
_ROWS: Final = 4096  # of a batch with millions, as Python objects
_PROBLEMS_KEPT: Final = 20

Offsets = Mapping[str, Mapping[int, CommittedOffset]]
_NO_OFFSETS: Final[Offsets] = MappingProxyType({})


class GroupRecord(NamedTuple):
    """A record that a coordinator stores for a group besides its offsets: type, key's bytes, data of key and value."""

    kind: int
    raw_key: bytes
    key: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group at one moment. `offsets`: by topic, then partition. Share groups have none here.

    `log`: the partition of `__consumer_offsets` that has it. `records`: by type and key.
    """

    name: str
    log: int
    offsets: Offsets = field(default_factory=lambda: _NO_OFFSETS)
    records: tuple[GroupRecord, ...] = ()

    @property
    def type(self) -> GroupType:
        """Of a group that has only committed offsets: classic."""
        return group_type(max((record.kind for record in self.records), default=METADATA_KIND))

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """A GroupMetadataValue's data; None for groups without classic members, and if it cannot be read."""
        return next((record.data for record in self.records if record.kind == METADATA_KIND), None) or None

    @property
    def commit_timestamp(self) -> int:
        """When an offset was last committed, epoch ms; -1 if never."""
        stamps = (known.commit_timestamp for topic in self.offsets.values() for known in topic.values())
        return max(stamps, default=-1)


class GroupOffsets:
    """The groups of a log directory, as of each call; its partitions as of its last refresh. Thread-safe."""

    def __init__(self, log_dir: LogDir) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        # Guarded by the lock.
        self._lock = Lock()
        self._followers: dict[int, _Follower] = {}
        self._count: tuple[list[int], int | None] = ([], None)

    def groups(self) -> dict[str, ConsumerGroup]:
        """All groups by name. Those in a partition that cannot be read are left out; see `problems`."""
        found: dict[str, ConsumerGroup] = {}
        for partition in self.partitions():
            follower = self._follower(partition)
            try:
                found |= follower.refreshed()
            except (StorageError, OSError) as error:
                follower.add_problem(error)
        return found

    def group(self, name: str) -> ConsumerGroup | None:
        """One group; None if there is none. StorageError or OSError when its partition cannot be read."""
        for partition in self._places(name):
            group = self._follower(partition).refreshed().get(name)
            if group is not None:
                return group
        return None

    def place(self, name: str) -> int | None:
        """The partition of `__consumer_offsets` for a group; None when it is not known here: only the broker knows the
        number of partitions, and the group is in none of those that are here."""
        if self._partition_count() is not None:
            return self._places(name)[0]
        group = self.group(name)
        return None if group is None else group.log

    def partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` that are here."""
        try:
            return self._log_dir.partitions(CONSUMER_OFFSETS_TOPIC)
        except UnknownTopicOrPartition:
            return []

    def problems(self) -> list[str]:
        """The latest errors of records and partitions that were left out."""
        with self._lock:
            followers = list(self._followers.values())
        return [problem for follower in followers for problem in follower.problems]

    def _places(self, name: str) -> list[int]:
        """The partitions where a group may be."""
        count = self._partition_count()
        if count is None:
            return self.partitions()
        return [group_partition(name, count)]

    def _partition_count(self) -> int | None:
        here = self.partitions()
        with self._lock:
            if self._count[0] != here or self._count[1] is None:  # a broker may add it later
                count = self._log_dir.topic_info(CONSUMER_OFFSETS_TOPIC).partition_count if here else None
                self._count = here, count
            return self._count[1]

    def _follower(self, partition: int) -> _Follower:
        with self._lock:
            follower = self._followers.get(partition)
            if follower is None:
                follower = self._followers[partition] = _Follower(self._log_dir, partition)
            return follower


class _Follower:
    """One partition of `__consumer_offsets`: its groups as of the last read."""

    def __init__(self, log_dir: LogDir, partition: int) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        self._partition = partition
        # Guarded by the lock, which is held while records are read: other callers need the same answer.
        self._lock = Lock()
        self._groups: Mapping[str, ConsumerGroup] = {}
        self._follower = Follower(self._made)
        self.problems: list[str] = []

    def refreshed(self) -> Mapping[str, ConsumerGroup]:
        """The groups as of now; the mapping never changes. StorageError, OSError."""
        log = self._log_dir.log(TopicPartition(CONSUMER_OFFSETS_TOPIC, self._partition))
        with self._lock:
            if self._follower.refresh(log, self.add_problem):
                self._groups = self._follower.replay.groups(self._groups)
            return self._groups

    def _made(self) -> GroupReplay:
        self._groups = {}
        return GroupReplay(self._partition)

    def add_problem(self, error: object) -> None:
        """Adds an error to `problems`."""
        text = str(error)
        if text not in self.problems:
            self.problems = [*self.problems, text][-_PROBLEMS_KEPT:]


class GroupReplay(Replay):
    """The state that results from the records of one partition. Not thread-safe."""

    control = True

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._offsets: dict[str, dict[OffsetKey, tuple[int, CommittedOffset]]] = {}
        # Offsets committed in transactions that have not ended, by producer.
        self._pending: dict[int, dict[OffsetKey, tuple[int, CommittedOffset]]] = {}
        self._records: dict[str, dict[bytes, GroupRecord]] = {}
        self._touched: set[str] = set()
        self._held = Held(self._offsets, self._pending, self._records)

    def groups(self, before: Mapping[str, ConsumerGroup]) -> Mapping[str, ConsumerGroup]:
        """All groups as of now; `before` is the result of the last call."""
        if not self._touched:
            return before
        groups = {name: group for name, group in before.items() if name not in self._touched}
        for name in self._touched:
            if name in self._offsets or name in self._records:
                known = self._records.get(name, {}).values()
                records = tuple(sorted(known, key=lambda one: (one.kind, one.raw_key)))
                groups[name] = ConsumerGroup(name, self._partition, self._by_topic(name), records)
        self._touched.clear()
        return groups

    def _by_topic(self, name: str) -> Offsets:
        topics: dict[str, dict[int, CommittedOffset]] = {}
        for key, (_, committed) in self._offsets.get(name, {}).items():
            topics.setdefault(key.topic, {})[key.partition] = committed
        return topics

    def apply_block(self, block: RecordBlock, snapshot: LogSnapshot) -> Iterator[StorageError]:
        table = block.table
        data = bytes(block.buffer)  # slices of bytes are bytes; of a memoryview they cost twice as much
        transactional, control = table.is_transactional, table.is_control
        plain = not (transactional | control).any()
        batches = None if plain else block.batch.tolist()
        columns = np.stack((block.offset, block.key_start, block.key_length, block.value_start, block.value_length), 1)
        rows = (row for first in range(0, len(block), _ROWS) for row in columns[first : first + _ROWS].tolist())
        read = messages(CONSUMER_OFFSETS_TOPIC).objects(block, held=self._held)
        for row, ((offset, key_start, key_length, start, length), (key, value, error)) in enumerate(
            zip(rows, read, strict=True)
        ):
            raw = data[key_start : key_start + key_length]
            producer = _NO_PRODUCER
            try:
                if batches is not None:
                    batch = batches[row]
                    if transactional[batch]:
                        producer = int(table.producer_id[batch])
                    if control[batch]:
                        self._end_transaction(producer, raw, data[start : start + length])
                        continue
                if isinstance(error, UnknownRecordType):
                    continue  # a type that a coordinator passes over, too
                if key is not None and (error is None or key["type"] not in OFFSET_KINDS):
                    # A record whose value cannot be read is one nevertheless: it is deleted with its group.
                    self._apply_one(offset, producer, raw, key, value if error is None else {"data": {}})
                if error is not None:
                    raise error
            except StorageError as error:
                error.path, error.offset = error.path or snapshot.segments[-1].directory, offset
                yield error

    def _apply_one(self, offset: int, producer: int, raw: bytes, key: Any, value: Any) -> None:
        kind, named = key["type"], key["data"]
        if kind in OFFSET_KINDS:
            place = OffsetKey(**named)
            if value is None:
                self._forget(place)
                return
            committed = offset, CommittedOffset.of(value["data"])
            if producer != _NO_PRODUCER:
                self._pending.setdefault(producer, {})[place] = committed
                return
            self._offsets.setdefault(place.group, {})[place] = committed
            self._touched.add(place.group)
            return
        group = named["group" if kind == METADATA_KIND else "groupId"]
        if value is not None:
            self._records.setdefault(group, {})[raw] = GroupRecord(kind, raw, named, value["data"])
        elif group in self._records:
            self._records[group].pop(raw, None)
            if not self._records[group]:
                del self._records[group]
        self._touched.add(group)

    def _forget(self, key: OffsetKey) -> None:
        committed = self._offsets.get(key.group)
        if committed is not None:
            committed.pop(key, None)
            if not committed:
                del self._offsets[key.group]
        for pending in self._pending.values():
            pending.pop(key, None)
        self._touched.add(key.group)

    def _end_transaction(self, producer: int, raw: bytes, value: bytes) -> None:
        marker = parse_marker(raw, value)
        if marker is None:
            return
        pending = self._pending.pop(producer, {})
        if marker.type is not ControlType.COMMIT:
            return
        for key, (offset, committed) in pending.items():
            known = self._offsets.setdefault(key.group, {})
            if key not in known or known[key][0] < offset:
                known[key] = offset, committed
                self._touched.add(key.group)


# A group's members and what they are assigned, as its coordinator would describe it after a start.
#
# Of the classic protocol the last rebalance is recorded; of the newer ones (KIP-848, KIP-932, KIP-1071) each member
# with its target and its current assignment. Sources: Kafka's ClassicGroup, ConsumerGroup.maybeUpdateGroupState,
# ShareGroup, StreamsGroup, MemberState.

# By type of group: the types of the records with its epoch, its assignment's epoch, and of a member: what it is, its
# target assignment, its current one.
_KINDS: Final = {GroupType.CONSUMER: (3, 6, 5, 7, 8), GroupType.SHARE: (11, 12, 10, 13, 14),
                 GroupType.STREAMS: (17, 20, 19, 21, 22)}  # fmt: skip
_REGULAR_EXPRESSION, _TOPOLOGY, _SHARE_PARTITIONS = 16, 23, 15
_MEMBER_STATES: Final = {0: "Stable", 1: "UnrevokedPartitions", 2: "UnreleasedPartitions", 127: "Unknown"}
_TASKS: Final = ("activeTasks", "standbyTasks", "warmupTasks")

_Names = Mapping[str, str]


def state_of(group: ConsumerGroup, topics_by_id: Callable[[], _Names]) -> dict[str, Any]:
    """The content of `@state.json` (kafkafs/CONTRACT.md, "Groups"). `topics_by_id`: called where ids are recorded."""
    if group.type is GroupType.CLASSIC:
        return {"group": group.name, "type": "classic", **_classic(group)}
    names = topics_by_id()
    epoch_kind, target_kind, *member_kinds = _KINDS[group.type]
    whole = {record.kind: record.data for record in group.records}
    epoch, target = whole.get(epoch_kind, {}).get("epoch"), whole.get(target_kind, {}).get("assignmentEpoch")
    parts: dict[str, dict[int, Mapping[str, Any]]] = {}
    for record in group.records:
        if record.kind in member_kinds:
            parts.setdefault(record.key["memberId"], {})[record.kind] = record.data
    members = [_member(name, [of.get(kind, {}) for kind in member_kinds], names) for name, of in sorted(parts.items())]
    state: dict[str, Any] = {
        "group": group.name,
        "type": str(group.type),
        "state": _state(group.type, epoch, target, members),
        "epoch": epoch,
        "assignment_epoch": target,
        "members": members,
    }
    expressions = {
        one.key["regularExpression"]: one.data.get("topics") for one in group.records if one.kind == _REGULAR_EXPRESSION
    }
    if expressions:
        state["regular_expressions"] = expressions
    if _TOPOLOGY in whole:
        state["topology"] = whole[_TOPOLOGY]
    if _SHARE_PARTITIONS in whole:
        state["initialized_partitions"] = [
            {"topic": one["topicName"], "topic_id": one["topicId"], "partitions": one["partitions"]}
            for one in whole[_SHARE_PARTITIONS].get("initializedTopics", ())
        ]
    return state


def _classic(group: ConsumerGroup) -> dict[str, Any]:
    known = group.metadata
    if known is None:  # of a consumer that only commits
        return {"state": "Empty", "protocol_type": None, "protocol": None, "generation": None, "leader": None,
                "members": []}  # fmt: skip
    is_consumers = known["protocolType"] == "consumer"
    members = []
    for one in known["members"]:
        subscription = _opened("subscription", one["subscription"], is_consumers)
        assignment = _opened("assignment", one["assignment"], is_consumers)
        member = {
            "member_id": one["memberId"],
            "group_instance_id": one.get("groupInstanceId"),
            "client_id": one["clientId"],
            "client_host": one["clientHost"],
        }
        if isinstance(subscription, Mapping):
            member["subscribed_topics"] = subscription["topics"]
        else:
            member["subscription"] = subscription
        if isinstance(assignment, Mapping):
            assignment = assignment["assignedPartitions"]
        members.append({**member, "assignment": assignment})
    return {
        "state": "Stable" if members else "Empty",
        "protocol_type": known["protocolType"],
        "protocol": known["protocol"],
        "generation": known["generation"],
        "leader": known["leader"],
        "members": members,
    }


def _opened(what: str, text: str, is_consumers: bool) -> Any:
    """What a client of the consumer protocol has sent; the base64 of what others send, or what cannot be read."""
    data = base64.b64decode(text)
    if not is_consumers:
        return text
    try:
        return messages(what).one(None, data)[1]["data"] if data else {"topics": [], "assignedPartitions": []}
    except StorageError:
        return text


def _member(name: str, parts: Sequence[Mapping[str, Any]], names: _Names) -> dict[str, Any]:
    about, target, current = parts
    member = {
        "member_id": name,
        "group_instance_id": about.get("instanceId"),
        "client_id": about.get("clientId"),
        "client_host": about.get("clientHost"),
        "rack": about.get("rackId"),
        "state": _MEMBER_STATES.get(current.get("state", 127), "Unknown"),
        "member_epoch": current.get("memberEpoch"),
    }
    if "subscribedTopicNames" in about:
        member["subscribed_topics"] = about["subscribedTopicNames"]
        if about.get("subscribedTopicRegex"):
            member["subscribed_expression"] = about["subscribedTopicRegex"]
        member["assignment"] = _partitions(current.get("assignedPartitions", ()), names)
        member["target_assignment"] = _partitions(target.get("topicPartitions", ()), names)
    else:
        member["process_id"], member["topology_epoch"] = about.get("processId"), about.get("topologyEpoch")
        for side, of in (("assignment", current), ("target_assignment", target)):
            member[side] = {
                kind.removesuffix("Tasks"): [
                    {"subtopology": one["subtopologyId"], "partitions": one["partitions"]} for one in of.get(kind, ())
                ]
                for kind in _TASKS
            }
    return member


def _partitions(topics: Sequence[Mapping[str, Any]], names: _Names) -> list[dict[str, Any]]:
    return [
        {"topic": names.get(one["topicId"]), "topic_id": one["topicId"], "partitions": one["partitions"]}
        for one in topics
    ]


def _state(kind: GroupType, epoch: int | None, target: int | None, members: Sequence[Mapping[str, Any]]) -> str:
    if not members:
        return "Empty"
    if kind is GroupType.SHARE:
        return "Stable"
    if (epoch or 0) > (target or 0):
        return "Assigning"
    stable = all(one["state"] == "Stable" and one["member_epoch"] == target for one in members)
    return "Stable" if stable else "Reconciling"
