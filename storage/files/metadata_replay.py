"""The state that the records of KRaft's metadata log describe: topics, partitions, configurations, and what is carried
over to another cluster as it is.

Sources: Kafka's TopicsDelta, TopicDelta, PartitionRegistration.merge, ConfigurationsDelta.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from storage.errors import CorruptCheckpoint, StorageError
from storage.files.metadata_records import (
    NO_LEADER_CHANGE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    VerbatimRecord,
)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The nodes of a partition, as node ids. Leader -1: none at the moment."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


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


@dataclass(slots=True)
class _TopicState:
    name: str
    topic_id: str
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class MetadataReplay:
    """Applies metadata records one after the other."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicState] = {}  # by topic id
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._features: dict[str, int] = {}
        self._next_producer_id = 0
        self._verbatim: dict[tuple[str, Hashable], VerbatimRecord] = {}
        self._transaction: list[MetadataRecord] | None = None
        # The topics returned last; those whose names are in _changed must be built again.
        self._shown: dict[str, TopicMetadata] = {}
        self._changed: set[str] = set()

    def apply(self, record: MetadataRecord) -> None:
        """Applies one record. CorruptCheckpoint when it contradicts earlier ones."""
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case AbortTransactionRecord():
                self._transaction = None
            case EndTransactionRecord():
                held, self._transaction = self._transaction or [], None
                for each in held:
                    self._apply(each)
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self._topics[topic_id] = _TopicState(name, topic_id)
                self._changed.add(name)
            case RemoveTopicRecord(topic_id):
                name = self._topic(topic_id).name
                del self._topics[topic_id]
                self._configs.pop((ResourceType.TOPIC, name), None)
                self._changed.add(name)
            case PartitionRecord():
                topic = self._topic(record.topic_id)
                topic.partitions[record.partition] = PartitionMetadata(
                    record.replicas, record.isr, record.leader, record.leader_epoch
                )
                self._changed.add(topic.name)
            case PartitionChangeRecord():
                self._change(record)
            case ConfigRecord():
                values = self._configs.setdefault((record.resource_type, record.resource_name), {})
                if record.value is None:
                    values.pop(record.name, None)
                else:
                    values[record.name] = record.value
                if record.resource_type == ResourceType.TOPIC:
                    self._changed.add(record.resource_name)

            case FeatureLevelRecord(name, level):
                self._features.pop(name, None)
                if level > 0:
                    self._features[name] = level
            case ProducerIdsRecord(next_producer_id):
                self._next_producer_id = next_producer_id
            case VerbatimRecord(kind, key, _, value):
                self._verbatim.pop((kind, key), None)
                if value is not None:
                    self._verbatim[kind, key] = record

    def _change(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(record.topic_id)
        before = topic.partitions.get(record.partition)
        if before is None:
            raise CorruptCheckpoint(
                f"metadata changes partition {record.partition} of {topic.name}, which is not there"
            )
        after = replace(
            before,
            replicas=before.replicas if record.replicas is None else record.replicas,
            isr=before.isr if record.isr is None else record.isr,
        )
        if record.leader != NO_LEADER_CHANGE:
            after = replace(after, leader=record.leader, leader_epoch=before.leader_epoch + 1)
        topic.partitions[record.partition] = after
        self._changed.add(topic.name)

    def _topic(self, topic_id: str) -> _TopicState:
        topic = self._topics.get(topic_id)
        if topic is None:
            raise CorruptCheckpoint(f"metadata changes the topic with id {topic_id}, which is not there")
        return topic

    def show(self, end_offset: int, problem: StorageError | None) -> ClusterMetadata:
        """The state as an immutable value; it shares unchanged topics with the value before."""
        if self._changed:
            shown = {name: topic for name, topic in self._shown.items() if name not in self._changed}
            for topic in self._topics.values():
                if topic.name in self._changed:
                    configs = self._configs.get((ResourceType.TOPIC, topic.name), {})
                    shown[topic.name] = TopicMetadata(
                        topic.name,
                        topic.topic_id,
                        MappingProxyType(dict(sorted(topic.partitions.items()))),
                        MappingProxyType(dict(configs)),
                    )
            self._shown = shown
            self._changed = set()
        brokers = {
            int(name): MappingProxyType(dict(values))
            for (kind, name), values in self._configs.items()
            if kind == ResourceType.BROKER and name.isascii() and name.isdigit()
        }
        defaults = self._configs.get((ResourceType.BROKER, ""), {})
        return ClusterMetadata(
            MappingProxyType(self._shown),
            MappingProxyType(dict(defaults)),
            MappingProxyType(brokers),
            end_offset,
            problem,
            MappingProxyType(dict(self._features)),
            self._next_producer_id,
            MappingProxyType(
                {
                    resource: MappingProxyType(dict(values))
                    for resource, values in self._configs.items()
                    if resource[0] not in (ResourceType.TOPIC, ResourceType.BROKER)
                }
            ),
            tuple(self._verbatim.values()),
        )
