"""Simple calls to a broker: create topics, produce, consume, list offsets. With aiokafka."""

import asyncio
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.interop.kafka import BROKER_VERSION
from tests.support.fixtures import Golden

# Before Kafka 4.1 segment.bytes itself may be as small.
SETTINGS = {"internal.segment.bytes": "segment.bytes"} if BROKER_VERSION < "4.1" else {}
TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


class Message(NamedTuple):
    """What to produce: `timestamp` None lets the client choose."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


class Client:
    """Synchronous calls to one broker. Each opens its own connections: slow, but simple, with nothing to close."""

    def __init__(self, address):
        self.address = address

    def _with_admin(self, work):
        async def run():
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                return await work(admin)
            finally:
                await admin.close()

        return asyncio.run(run())

    def with_consumer(self, work, **options):
        """What `work` returns for a consumer."""

        async def run():
            async with AIOKafkaConsumer(
                bootstrap_servers=self.address, enable_auto_commit=False, request_timeout_ms=120_000, **options
            ) as consumer:
                return await work(consumer)

        return asyncio.run(run())

    def with_producer(self, work, **options):
        """What `work` returns for a producer."""

        async def run():
            async with AIOKafkaProducer(bootstrap_servers=self.address, **options) as producer:
                return await work(producer)

        return asyncio.run(run())

    def create_topic(self, topic, partitions=1, config=None):
        """Creates a topic with one replica and waits for its partitions; error codes are raised."""
        self.create_topics({topic: (partitions, config or {})})

    def create_topics(self, topics, replicas=1):
        """Creates many topics, of (partitions, configuration), in one request, and waits for their partitions.

        `replicas`: their number, or the brokers of all partitions."""
        new = []
        for topic, (partitions, config) in topics.items():
            chosen = {} if isinstance(replicas, int) else dict.fromkeys(range(max(partitions, 1)), replicas)
            shape = (-1, -1, chosen) if chosen else (partitions, replicas)
            new.append(NewTopic(topic, *shape))
            new[-1].topic_configs = {SETTINGS.get(key, key): str(value) for key, value in config.items()}
        answer = self._with_admin(lambda admin: admin.create_topics(new, timeout_ms=120_000))
        errors = [error for error in answer.topic_errors if error[1]]
        assert not errors, errors
        places = [TopicPartition(topic, number) for topic, (n, _) in topics.items() for number in range(max(n, 1))]
        self.with_consumer(lambda consumer: consumer.end_offsets(places))

    def delete_topic(self, topic):
        self._with_admin(lambda admin: admin.delete_topics([topic]))

    def delete_records(self, topic, partition, before):
        """Move the log start offset (kafka-delete-records)."""
        target = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
        self._with_admin(lambda admin: admin.delete_records(target))

    def topics(self):
        """Number of partitions by topic, internal ones included."""
        described = self._with_admin(lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    def topic_config(self, topic):
        """A topic's own settings (config source 1: DYNAMIC_TOPIC_CONFIG)."""
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        answers = self._with_admin(lambda admin: admin.describe_configs(asked))
        (resource,) = answers[0].resources
        return {entry[0]: entry[1] for entry in resource[4] if entry[3] == 1}

    def alter_topic(self, topic, config):
        """Replace a topic's own settings."""
        settings = {SETTINGS.get(key, key): str(value) for key, value in config.items()}
        altered = [ConfigResource(ConfigResourceType.TOPIC, topic, settings)]
        answers = self._with_admin(lambda admin: admin.alter_configs(altered))
        errors = [resource for answer in answers for resource in answer.resources if resource[0]]
        assert not errors, errors

    def produce(self, topic, messages, partition=0, *, batch=50, **options):
        """Produce to one partition (None: to those that the client chooses by key), `batch` messages per record batch;
        `options` are passed to the producer."""
        self.with_producer(lambda producer: send(producer, topic, messages, partition, batch=batch), **options)

    def transactions(self, topic, rounds, partition=0, *, id="tx"):
        """One transaction per entry: (commit or abort, its messages)."""

        async def work(producer):
            for commit, messages in rounds:
                await producer.begin_transaction()
                await send(producer, topic, messages, partition)
                await (producer.commit_transaction() if commit else producer.abort_transaction())

        self.with_producer(work, transactional_id=id)

    def consume(self, topic, partition=0, *, committed=False, start=None, end=None):
        """Everything that a consumer gets now from `start` (default: log start) to `end` (default: log end)."""
        tp = TopicPartition(topic, partition)

        async def work(consumer):
            consumer.assign([tp])
            first = (await consumer.beginning_offsets([tp]))[tp] if start is None else start
            # under read_committed this is the last stable offset
            last = (await consumer.end_offsets([tp]))[tp] if end is None else end
            consumer.seek(tp, first)
            found = []
            while await consumer.position(tp) < last:
                got = await consumer.getmany(tp, timeout_ms=500)
                found.extend(golden(record) for record in got.get(tp, ()) if record.offset < last)
            return found

        return self.with_consumer(work, isolation_level="read_committed" if committed else "read_uncommitted")

    def commit(self, group, offsets):
        """Commit a group's offsets, by topic and partition."""
        positions = {TopicPartition(*place): offset for place, offset in offsets.items()}

        async def work(consumer):
            consumer.assign(list(positions))
            await consumer.commit(positions)

        self.with_consumer(work, group_id=group)

    def committed(self, group, *places):
        """A group's committed offsets, by topic and partition; None where it has none."""

        async def work(consumer):
            return {place: await consumer.committed(TopicPartition(*place)) for place in places}

        return self.with_consumer(work, group_id=group)

    def offsets(self, topic, partition=0):
        """(log start offset, high watermark)."""
        tp = TopicPartition(topic, partition)

        async def work(consumer):
            return (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]

        return self.with_consumer(work)


async def send(producer, topic, messages, partition, *, batch=50):
    """Send in order and wait; at most `batch` messages go into a record batch."""
    for first in range(0, len(messages), batch):
        sent = [
            await producer.send(topic, one.value, one.key, partition, one.timestamp, list(one.headers))
            for one in messages[first : first + batch]
        ]
        await asyncio.gather(*sent)


def golden(record):
    """A consumer's record in the form of the golden files; format v0 has no timestamps."""
    old = record.timestamp is None or record.timestamp_type is None or record.timestamp < 0
    headers = tuple((name.encode(), value) for name, value in record.headers)
    kind = TYPES[-1 if old else record.timestamp_type]
    return Golden(record.offset, -1 if old else record.timestamp, kind, record.key, record.value, headers)
