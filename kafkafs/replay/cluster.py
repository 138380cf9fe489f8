"""The cluster that is replayed into, by confluent-kafka: topics, the ends of logs, producing, reading back, groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from storage.errors import StorageError, UnknownTopicOrPartition
from storage.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_TIMEOUT_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.1
# Errors of a partition that is there, but whose leader is about to be elected, or was a moment ago, or which not every
# broker knows yet. Names with _ are librdkafka's own.
_NOT_READY: Final = frozenset({
    "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
})  # fmt: skip
# What one request of a broker can hold (socket.request.max.bytes, 100 MiB). The broker says which message is too large.
_MAX_REQUEST_BYTES: Final = 104_000_000
_MAX_BATCH_BYTES: Final = 1_000_000
# A queue of 64 MiB that is sent in large batches.
_PRODUCER: Final[Mapping[str, Any]] = {
    "linger.ms": 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
    "message.max.bytes": _MAX_REQUEST_BYTES,
}
_FIXED: Final[Mapping[str, Any]] = {"acks": "all", "enable.idempotence": True, "enable.gapless.guarantee": True}
# Kafka's defaults of a topic's configuration, where the cluster does not show it.
_MAX_MESSAGE_BYTES: Final = "1048588"


class ClusterMessage(NamedTuple):
    """A message. `headers` None: it has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the cluster: its partitions, and its configuration as far as the cluster shows it."""

    name: str
    partitions: int
    config: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        return int(self.config.get("max.message.bytes", _MAX_MESSAGE_BYTES))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def retention_ms(self) -> int:
        """How long the topic keeps messages; -1: for ever, or until it compacts them."""
        deletes = "delete" in self.config.get("cleanup.policy", "")
        return int(self.config.get("retention.ms", -1)) if deletes else -1

    @property
    def has_append_time(self) -> bool:
        return self.config.get("message.timestamp.type") == "LogAppendTime"


class Cluster:
    """A running cluster. Methods raise StorageError with what the cluster, or the client library, says. ImportError
    without the extra."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        import confluent_kafka
        import confluent_kafka.admin as admin

        self._servers, self._last = servers, ""
        self._library: Any = confluent_kafka
        self._admin_library: Any = admin
        self._admin: Any = None
        quiet = logging.getLogger("kafkafs.librdkafka")  # what it logs comes as errors too
        quiet.disabled = True
        own = {"bootstrap.servers": servers, "logger": quiet, "error_cb": self._note}
        self._config: dict[str, Any] = {**properties, **own}
        with self._explained("is not a configuration"):
            self._admin = self._admin_library.AdminClient(self._config)
        consumer = {"group.id": "kafkafs-replay", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        with self._explained("is not a configuration"):
            self._consumer = self._library.Consumer(
                {**self._config, **consumer, "auto.offset.reset": "error", "check.crcs": True}
            )

    def _note(self, error: KafkaError) -> None:
        self._last = error.str()

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._library.KafkaException as error:
            raise self._error(what, error.args[0]) from None

    def _error(self, what: str, error: Any) -> StorageError:
        if self._admin is not None:
            with suppress(self._library.KafkaException):
                self._admin.poll(0)  # the library calls `_note` with why there is no connection
        said = error.str() if hasattr(error, "str") else str(error)
        more = f" ({self._last})" if self._last and self._last != said else ""
        return StorageError(f"{self._servers}: {what}: {said}{more}")

    def topics(self, names: set[str]) -> dict[str, TargetTopic]:
        """The existing topics among these names. Also sets `cluster_id`."""
        with self._explained("its topics cannot be listed"):
            metadata = self._admin.list_topics(timeout=_TIMEOUT_S)
        self.cluster_id = str(metadata.cluster_id)
        existing = {name: len(metadata.topics[name].partitions) for name in sorted(names & metadata.topics.keys())}
        kind = self._admin_library.ConfigResource.Type.TOPIC
        asked = [self._admin_library.ConfigResource(kind, name) for name in existing]
        configs: dict[str, dict[str, str]] = {name: {} for name in existing}
        for resource, answer in (
            self._admin.describe_configs(asked, request_timeout=_TIMEOUT_S) if asked else {}
        ).items():
            try:
                entries = answer.result()
            except self._library.KafkaException:
                continue  # DescribeConfigs needs a permission of its own
            configs[resource.name] = {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        return {name: TargetTopic(name, count, configs[name]) for name, count in existing.items()}

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Creates a topic with the cluster's default replication, and waits until it has leaders."""
        topic = self._admin_library.NewTopic(name, partitions, config=dict(config))
        with self._explained(f"topic {name} cannot be created"):
            self._admin.create_topics([topic], operation_timeout=_TIMEOUT_S)[name].result()
            deadline = time.monotonic() + _TIMEOUT_S
            while time.monotonic() < deadline:
                known = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(name)
                leaders = [] if known is None else [place.leader for place in known.partitions.values()]
                if len(leaders) == partitions and min(leaders) >= 0:
                    return
                time.sleep(_LOOK_AGAIN_S)
        raise StorageError(f"{self._servers}: topic {name} was created, but has no leaders yet", advice="Run it again")

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """The log start and the high watermark of a partition. Waits while it has no leader or another one,
        or a broker does not know it yet."""
        deadline = time.monotonic() + _TIMEOUT_S
        with self._explained(f"the end of {tp} cannot be found"):
            while True:
                try:
                    low, high = self._consumer.get_watermark_offsets(self._place(tp), timeout=_TIMEOUT_S, cached=False)
                    return low, high
                except self._library.KafkaException as error:
                    if error.args[0].name() not in _NOT_READY or time.monotonic() >= deadline:
                        raise
                    time.sleep(_LOOK_AGAIN_S)

    def messages(self, tp: TopicPartition, start: int, end: int) -> Iterator[ClusterMessage]:
        """The messages of a partition, those of aborted transactions too, from `start` to `end` (excluded)."""
        if start >= end:
            return
        with self._explained(f"{tp} cannot be read back"):
            self._consumer.assign([self._place(tp, start)])
            try:
                while start < end:
                    messages = self._consumer.consume(1000, timeout=1.0)
                    for message in messages:
                        if message.error() is not None:
                            raise self._library.KafkaException(message.error())
                        offset = message.offset()
                        if offset >= end:
                            return
                        start = offset + 1
                        _, timestamp = message.timestamp()
                        headers = message.headers() or None
                        yield ClusterMessage(offset, timestamp, message.key(), message.value(), headers)
                    if not messages:
                        (place,) = self._consumer.position([self._place(tp)])
                        start = max(start, place.offset)
            finally:
                self._consumer.unassign()

    def producer(self, batch_bytes: int) -> Producer:
        """An idempotent producer with acks=all, whose batches have at most so many bytes unless they have one message.
        When a message fails the producer ends, and produces nothing after it."""
        more = {"batch.size": min(batch_bytes, _MAX_BATCH_BYTES)}
        config = {**_PRODUCER, **self._config, **_FIXED, **more}
        del config["error_cb"]  # with it an error that ends the producer is raised within its callbacks
        with self._explained("is not a configuration"):
            producer: Producer = self._library.Producer(config)
        return producer

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits the next offset, and the metadata, of each partition for a group without active members."""
        places = [self._place(tp, offset, metadata) for tp, (offset, metadata) in sorted(offsets.items())]
        request = self._library.ConsumerGroupTopicPartitions(group, places)
        with self._explained(f"group {group!r}: its offsets cannot be committed (it must have no active members)"):
            answer = self._admin.alter_consumer_group_offsets([request])[group].result()
            for place in answer.topic_partitions:
                if place.error is not None:
                    raise self._library.KafkaException(place.error)

    def _place(self, tp: TopicPartition, offset: int = -1001, metadata: str = "") -> Any:
        return self._library.TopicPartition(tp.topic, tp.partition, offset, metadata)

    def close(self) -> None:
        self._consumer.close()


def check_topic(topic: TargetTopic | None, tp: TopicPartition, servers: str) -> TargetTopic:
    """The topic. Raises UnknownTopicOrPartition if the target does not have this partition."""
    if topic is None:
        advice = "--create creates it with the partitions and the configuration of the source"
        raise UnknownTopicOrPartition(f"{servers} has no topic {tp.topic}", advice=advice)
    if tp.partition >= topic.partitions:
        advice = "kafka-topics.sh --alter --partitions adds some"
        what = f"{tp.topic} has {topic.partitions} partitions at {servers}, and no partition {tp.partition}"
        raise UnknownTopicOrPartition(what, advice=advice)
    return topic
