"""A backup of a broker that is written to, cut at one moment, and restored into another broker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.commands import output_of
from tests.support.waiting import wait_for

pytestmark = [requires_kafka]

TOPICS = {"cut": "CreateTime", "cut-append": "LogAppendTime"}
PARTITIONS = 2
TOGETHER = 5  # messages that a producer sends at once to a partition


class Writing:
    """A producer in a thread of its own. `acknowledged`: by topic and partition, the timestamp of its latest message
    that the broker has."""

    def __init__(self, address: str, number: int, stop: threading.Event) -> None:
        self.acknowledged: dict[tuple[str, int], int] = {}
        self._address, self._number, self._stop = address, number, stop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        codec = (None, "gzip", "lz4", None)[self._number % 4]
        async with AIOKafkaProducer(
            bootstrap_servers=self._address, compression_type=codec, linger_ms=2, enable_idempotence=True
        ) as producer:
            count = 0
            while not self._stop.is_set():
                for topic in TOPICS:
                    for partition in range(PARTITIONS):
                        sent = []
                        for _ in range(TOGETHER):
                            value, headers = b"%d of %d" % (count, self._number), [("n", b"%d" % count)]
                            sent.append(await producer.send(topic, value, b"key", partition, headers=headers))
                            count += 1
                        told = await asyncio.gather(*sent)
                        self.acknowledged[topic, partition] = max(one.timestamp for one in told)

    def join(self) -> None:
        self._thread.join()


@pytest.fixture
def writing(client: Client) -> Iterator[list[Writing]]:
    """Four producers that write to every partition until the end of the test."""
    for topic, kind in TOPICS.items():
        client.create_topic(topic, PARTITIONS, {"message.timestamp.type": kind, "internal.segment.bytes": 100_000})
    stop = threading.Event()
    producers = [Writing(client.address, number, stop) for number in range(4)]
    yield producers
    stop.set()
    for producer in producers:
        producer.join()


def test_a_consistent_cut_is_restored(broker: Broker, client: Client, writing: list[Writing], tmp_path: Path) -> None:
    copy, manifest = tmp_path / "copy", tmp_path / "m.json"
    everywhere = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]

    def all_are_past(moment: int) -> bool:
        return all(one.acknowledged.get(place, 0) > moment for one in writing for place in everywhere)

    wait_for("every producer writes to every partition", lambda: all_are_past(0))
    first = int(time.time() * 1000)
    wait_for("all have written something later", lambda: all_are_past(first))
    output_of("mirror", broker.log_dir, copy, "cut*", "--until", first, "--manifest", manifest)
    moment = int(time.time() * 1000)
    wait_for("all have written something later again", lambda: all_are_past(moment))
    # An increment, up to a later moment, while they write on.
    told = json.loads(
        output_of("mirror", broker.log_dir, copy, "cut*", "--until", moment, "--manifest", manifest, "--json")
    )
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"

    other = Broker(tmp_path / "other")
    try:
        restored = Client(other.start().address)
        for topic, kind in TOPICS.items():
            restored.create_topic(topic, PARTITIONS, {"message.timestamp.type": kind, "internal.segment.bytes": 50_000})
        other.stop()
        output_of("mirror", copy, other.log_dir)
        assert output_of("verify", other.log_dir, "cut*", "--manifest", manifest) == b"nothing wrong\n"
        dumps_without_a_finding([other.log_dir / f"{topic}-{partition}" for topic, partition in everywhere])
        said = len(other.log_text())
        restored = Client(other.start().address)
        adopted_as_it_is(told_since(other, said))
        for row in told["partitions"]:
            topic, partition, mixed = row["topic"], row["partition"], row["mixed_batch"]
            here = restored.consume(topic, partition)
            there = client.consume(topic, partition, end=row["log_end_offset"])
            assert here == there
            # Everything of that moment is in it, and nothing after the last batch that has some of it.
            later = client.consume(topic, partition, start=row["log_end_offset"])
            assert later
            assert all(record.timestamp > moment for record in later)
            last = max(record.offset for record in here if record.timestamp <= moment)
            if mixed is None:
                assert row["log_end_offset"] == last + 1
            else:
                assert mixed["base_offset"] <= last < mixed["last_offset"] == row["log_end_offset"] - 1
                batch = [record for record in here if record.offset >= mixed["base_offset"]]
                assert mixed["later"] == sum(record.timestamp > moment for record in batch)
        restored.produce("cut", [Message(b"after")])
        assert restored.consume("cut")[-1].value == b"after"
        other.stop()
        assert other.complaints() == []
        assert output_of("verify", other.log_dir, "cut*", "--manifest", manifest) == b"nothing wrong\n"
    finally:
        other.kill()
