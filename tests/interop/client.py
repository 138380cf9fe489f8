"""Simple calls to a broker: create topics, produce, consume, list offsets. With aiokafka and kcat."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.fixtures import Golden

T = TypeVar("T")
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

    def create_topic(self, topic, partitions=1, config=None):
        """Creates a topic with one replica and waits for its partitions; error codes are raised."""
        self.create_topics({topic: (partitions, config or {})})
        for partition in range(partitions):
            self.offsets(topic, partition)

    def create_topics(self, topics, replicas=1):
        """Creates many topics, of (partitions, configuration), in one request, and waits for their partitions."""
        new = [
            NewTopic(topic, partitions, replicas, topic_configs={key: str(value) for key, value in config.items()})
            for topic, (partitions, config) in topics.items()
        ]

        async def work(admin):
            answer = await admin.create_topics(new, timeout_ms=120_000)
            errors = [error for error in answer.topic_errors if error[1]]
            # Before Kafka 4.1 segment.bytes itself may be as small.
            if errors and all("Unknown topic config name: internal.segment.bytes" in str(error) for error in errors):
                refused = [topic for topic in new if topic.name in {error[0] for error in errors}]
                for topic in refused:
                    topic.topic_configs["segment.bytes"] = topic.topic_configs.pop("internal.segment.bytes")
                answer = await admin.create_topics(refused, timeout_ms=120_000)
                errors = [error for error in answer.topic_errors if error[1]]
            if errors:
                raise AssertionError(errors)

        self._with_admin(work)
        for topic, (partitions, _) in topics.items():
            self.offsets(topic, partitions - 1)

    def delete_topic(self, topic):
        """Delete a topic."""
        self._with_admin(lambda admin: admin.delete_topics([topic]))

    def delete_records(self, topic, partition, before):
        """Move the log start offset (kafka-delete-records)."""
        from aiokafka.admin import RecordsToDelete

        target = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
        self._with_admin(lambda admin: admin.delete_records(target))

    def topics(self):
        """Number of partitions by topic, internal ones included."""

        async def work(admin):
            described = await admin.describe_topics()
            return {topic["topic"]: len(topic["partitions"]) for topic in described}

        return self._with_admin(work)

    def topic_config(self, topic):
        """A topic's own settings (config source 1: DYNAMIC_TOPIC_CONFIG)."""

        async def work(admin):
            answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            (resource,) = answers[0].resources
            return {entry[0]: entry[1] for entry in resource[4] if entry[3] == 1}

        return self._with_admin(work)

    def alter_topic(self, topic, config):
        """Replace a topic's own settings."""
        settings = {key: str(value) for key, value in config.items()}

        async def work(admin):
            answers = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
            errors = [resource for answer in answers for resource in answer.resources if resource[0]]
            if errors:
                raise AssertionError(errors)

        self._with_admin(work)

    def produce(self, topic, messages, partition=0, *, batch=50, **options):
        """Produce to one partition, `batch` messages per record batch; `options` are passed to the producer."""

        async def run():
            async with AIOKafkaProducer(bootstrap_servers=self.address, **options) as producer:
                await send(producer, topic, messages, partition, batch=batch)

        asyncio.run(run())

    def produce_keyed(self, topic, messages):
        """Produce to the partitions that the client chooses by key."""

        async def run():
            async with AIOKafkaProducer(bootstrap_servers=self.address) as producer:
                for message in messages:
                    await producer.send_and_wait(topic, message.value, key=message.key)

        asyncio.run(run())

    def transactions(self, topic, rounds, partition=0, *, id="tx"):
        """One transaction per entry: (commit or abort, its messages)."""

        async def run():
            async with AIOKafkaProducer(bootstrap_servers=self.address, transactional_id=id) as producer:
                for commit, messages in rounds:
                    await producer.begin_transaction()
                    await send(producer, topic, messages, partition)
                    await (producer.commit_transaction() if commit else producer.abort_transaction())

        asyncio.run(run())

    def consume(self, topic, partition=0, *, committed=False, start=None, end=None):
        """Everything that a consumer gets now from `start` (default: log start) to `end` (default: log end)."""
        isolation = "read_committed" if committed else "read_uncommitted"

        async def run():
            tp = TopicPartition(topic, partition)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                isolation_level=isolation,
                enable_auto_commit=False,
                request_timeout_ms=120_000,
            )
            await consumer.start()
            try:
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
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def commit(self, group, topic, partition, offset):
        """Commit a group's offset."""

        async def run():
            tp = TopicPartition(topic, partition)
            async with AIOKafkaConsumer(
                bootstrap_servers=self.address, group_id=group, enable_auto_commit=False, request_timeout_ms=120_000
            ) as consumer:
                consumer.assign([tp])
                await consumer.commit({tp: offset})

        asyncio.run(run())

    def offsets(self, topic, partition=0):
        """(log start offset, high watermark)."""

        async def work(consumer, tp):
            return (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]

        return self._with_consumer(topic, partition, work)

    def offset_for_time(self, topic, timestamp_ms, partition=0):
        """ListOffsets by timestamp: (offset, its timestamp) of the first record at or after it, or None."""

        async def work(consumer, tp):
            found = (await consumer.offsets_for_times({tp: timestamp_ms}))[tp]
            return None if found is None else (found.offset, found.timestamp)

        return self._with_consumer(topic, partition, work)

    def _with_consumer(self, topic, partition, work):
        async def run():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address, enable_auto_commit=False, request_timeout_ms=120_000
            )
            await consumer.start()
            try:
                return await work(consumer, TopicPartition(topic, partition))
            finally:
                await consumer.stop()

        return asyncio.run(run())


async def send(producer, topic, messages, partition, *, batch=50):
    """Send in order and wait; at most `batch` messages go into a record batch."""
    waiting = []
    for message in messages:
        waiting.append(
            await producer.send(
                topic,
                message.value,
                key=message.key,
                partition=partition,
                timestamp_ms=message.timestamp,
                headers=list(message.headers),
            )
        )
        if len(waiting) == batch:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


def golden(record):
    """A consumer's record in the form of the golden files."""
    headers = tuple((name.encode(), value) for name, value in record.headers)
    return Golden(record.offset, record.timestamp, TYPES[record.timestamp_type], record.key, record.value, headers)
