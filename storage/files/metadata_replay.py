"""The state that the records of KRaft's metadata log describe: topics, partitions, configurations, brokers, and what is
carried over to another cluster as it is.

Sources: Kafka's TopicsDelta, TopicDelta, PartitionRegistration.merge, ConfigurationsDelta, ClusterDelta.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from storage.errors import (
    CorruptCheckpoint,
    StorageError,
)
from storage.files.metadata_records import (
    BROKER,
    CONTROLLER,
    FEATURE,
    PRODUCER_IDS,
    MetadataRecord,
    ResourceType,
    VerbatimKind,
    VerbatimRecord,
)
from storage.format.messages import Held

Data = Mapping[str, Any]
Key = tuple[Hashable, ...]
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
        f"{part['entityType']} {'<default>' if part['entityName'] is None else part['entityName']}"
        for part in data["entity"]
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
        """The partition in a PartitionRecord's data."""
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
    `other_configs`: those of other resources, by resource type and name. `verbatim`: ACLs, credentials, quotas and
    tokens. `features`: levels by name, those that are off left out. Producer ids below `next_producer_id` were given
    out. `problem`: why nothing beyond `end_offset` could be read; None when everything was read.
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

    def apply(self, record: MetadataRecord) -> None:
        """Applies one record, those of a transaction at its end. CorruptCheckpoint if it contradicts earlier ones."""
        match record.kind:
            case "BEGIN_TRANSACTION_RECORD" | "ABORT_TRANSACTION_RECORD":
                self._in_transaction = record.kind == "BEGIN_TRANSACTION_RECORD"
                self._transaction.clear()
            case "END_TRANSACTION_RECORD":
                ended = self._transaction.copy()
                self._in_transaction = False
                self._transaction.clear()
                for each in ended:
                    self._apply(each)
            case _ if self._in_transaction:
                self._transaction.append(record)
            case _:
                self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        kind, data, raw = record
        match kind:
            case "TOPIC_RECORD":
                self._changed.add(data["name"])
                self.topics[data["topicId"]] = data
            case "REMOVE_TOPIC_RECORD":
                topic = self._topic(data["topicId"])
                del self.topics[data["topicId"]]
                self.partitions.pop(data["topicId"], None)
                self.configs.pop((ResourceType.TOPIC, topic["name"]), None)
                self._changed.add(topic["name"])
            case "PARTITION_RECORD":
                self._partition(data, data)
            case "PARTITION_CHANGE_RECORD":
                self._partition_change(data)
            case "CONFIG_RECORD":
                self._config(data)
            case "BROKER_REGISTRATION_CHANGE_RECORD" | "FENCE_BROKER_RECORD" | "UNFENCE_BROKER_RECORD":
                self._broker_change(kind, data)
            case "CLEAR_ELR_RECORD":
                self._clear_elr(data["topicName"])
            case "CLIENT_QUOTA_RECORD":
                entity = tuple(sorted(((part["entityType"], part["entityName"]) for part in data["entity"]), key=str))
                self._other(VerbatimKind.QUOTA, (entity, data["key"]), None if data["remove"] else data, raw)
        if kind in _SET:
            name, fields = _SET[kind]
            after = None if kind == "FEATURE_LEVEL_RECORD" and data["featureLevel"] == 0 else data
            self._other(name, tuple(data[each] for each in fields), after, raw)
        if kind in _REMOVED:
            name, fields = _REMOVED[kind]
            self._other(name, tuple(data[each] for each in fields), None, raw)

    def _other(self, kind: str, key: Key, after: Data | None, raw: bytes = b"") -> None:
        self.others.pop((kind, key), None)
        self._raw.pop((kind, key), None)
        if after is not None:
            self.others[kind, key] = after
            if kind in _NAMED:
                self._raw[kind, key] = raw

    def _config(self, data: Data) -> None:
        resource = data["resourceType"], data["resourceName"]
        values = self.configs.setdefault(resource, {})
        values.pop(data["name"], None)
        if data["value"] is not None:
            values[data["name"]] = data["value"]
        if resource[0] == ResourceType.TOPIC:
            self._changed.add(resource[1])

    def _partition(self, data: Data, after: Data) -> None:
        topic = self._topic(data["topicId"])
        self.partitions.setdefault(data["topicId"], {})[data["partitionId"]] = after
        self._changed.add(topic["name"])

    def _partition_change(self, data: Data) -> None:
        topic = self._topic(data["topicId"])
        before = self.partitions.get(data["topicId"], {}).get(data["partitionId"])
        if before is None:
            raise CorruptCheckpoint(
                f"metadata changes partition {data['partitionId']} of {topic['name']}, which is not there"
            )
        # A field that a change leaves as it is, is missing or null in the change.
        after = {**before, **{name: value for name, value in data.items() if value is not None}}
        after["leaderEpoch"] = before["leaderEpoch"] + ("leader" in data)
        after["partitionEpoch"] = before["partitionEpoch"] + 1
        self._partition(data, after)

    def _clear_elr(self, name: str) -> None:
        """Clears the eligible leader replicas of a topic, or of all topics."""
        for topic_id, topic in self.topics.items():
            if name in ("", topic["name"]):
                for data in list(self.partitions.get(topic_id, {}).values()):
                    self._partition(data, {field: value for field, value in data.items() if field not in _ELR})

    def _broker_change(self, kind: str, data: Data) -> None:
        number = data["brokerId" if "brokerId" in data else "id"]
        before = self.others.get((BROKER, (number,)))
        if before is None:  # its registration was passed over
            return
        after = dict(before)
        if kind != "BROKER_REGISTRATION_CHANGE_RECORD":
            after["fenced"] = kind == "FENCE_BROKER_RECORD"
        for name in ("fenced", "inControlledShutdown"):
            if data.get(name, 0):  # 1: set, -1: cleared
                after[name] = data[name] > 0
        after |= {name: data[name] for name in ("logDirs", "cordonedLogDirs") if data.get(name) is not None}
        self._other(BROKER, (number,), after)

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
