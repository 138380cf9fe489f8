"""The directories of a cluster of three nodes at several moments, and what was acknowledged.

    early   copied while all run; the topic `again` has its first life
    later   one node was killed, and copied so; the others run; `again` was deleted and has begun anew, with less
    end     that node is back, another one was stopped in order, more was written, a transaction is open; all are killed
    alien   another cluster, with topics of the same names

Brokers make them once; they stay beside the downloads. `acknowledged` holds values by topic id, topic, partition and
offset.
"""

import asyncio
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer

from tests.interop.client import Client, Message
from tests.interop.clusters import Cluster
from tests.interop.kafka import BROKER_VERSION, Broker
from tests.interop.reviving import left_open
from tests.support.downloads import DOWNLOADS
from tests.support.waiting import wait_for

SMALL = {"internal.segment.bytes": 12_000, "segment.index.bytes": 100_000, "index.interval.bytes": 1000}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 2000}
TOPICS = {"orders": (3, SMALL), "plain": (2, SMALL), "state": (1, COMPACTED), "pay": (2, SMALL)}
AGAIN = {"again": (1, SMALL)}
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
}
MOMENTS = ("early", "later", "end")
DIRS = ("d0", "d1")


class Writer:
    """Writes to the topics and notes what was acknowledged: values by topic, life of the topic, partition, offset."""

    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._number = 0
        self.acknowledged = {}

    def write(self, count, topics, life=1):
        """`count` messages to each partition of these topics, in batches of a few."""
        asyncio.run(self._write(count, topics, life))

    async def _write(self, count, topics, life):
        plain = {"bootstrap_servers": self._bootstrap, "acks": "all", "request_timeout_ms": 60_000}
        kinds = {"plain": {"compression_type": "gzip"}, "state": {}, "pay": {"transactional_id": "pay"}}
        for topic in topics:
            kind = kinds.get(topic, {"enable_idempotence": True})
            async with AIOKafkaProducer(**plain, **kind) as producer:
                for first in range(0, count, 6):
                    if topic == "pay":
                        await producer.begin_transaction()
                    sent = []
                    for partition in range({**TOPICS, **AGAIN}[topic][0]):
                        for _ in range(6):
                            value = self._value(topic, life, partition)
                            key = b"k%d" % (self._number % 40) if topic == "state" else None
                            told = await producer.send(topic, value, key, partition)
                            sent.append(((topic, life, partition), value, told))
                    for place, value, told in sent:
                        self.acknowledged.setdefault(place, {})[(await told).offset] = value.decode()
                    if topic == "pay":
                        await (producer.abort_transaction() if first % 5 == 0 else producer.commit_transaction())

    def _value(self, topic, life, partition):
        self._number += 1
        return f"{topic}/{life}/{partition}/{self._number}/".encode() + b"x" * (self._number * 37 % 150)


def _copy(cluster, place):
    """Copies the nodes' directories as `cp -a` does; files of a running broker may disappear meanwhile."""
    for number, node in cluster.nodes.items():
        for name in DIRS:
            target = place / f"n{number}" / name
            while True:
                try:
                    shutil.copytree(node.directory / name, target, ignore=shutil.ignore_patterns(".lock"))
                    break
                except shutil.Error:
                    shutil.rmtree(target)


def _ids(place):
    """Topic ids by topic, of the directories of one moment."""
    found = {}
    for path in place.rglob("partition.metadata"):
        topic = path.parent.name.rpartition("-")[0]
        if not path.parent.name.endswith("-delete"):
            found[topic] = path.read_text().split("topic_id: ")[1].strip()
    return found


def _make(place, room):
    cluster = Cluster(room, SETTINGS, DIRS)
    try:
        cluster.start()
        client, writer = Client(cluster.bootstrap), Writer(cluster.bootstrap)
        client.create_topics({**TOPICS, **AGAIN}, replicas=3)
        every = [*TOPICS, *AGAIN]
        writer.write(240, every)
        _copy(cluster, place / "early")
        client.delete_topic("again")
        wait_for("the end of the topic", lambda: "again" not in client.topics())
        cluster.nodes[1].kill()
        time.sleep(8)  # until it is out of sync, and others lead
        client = Client(cluster.nodes[2].address)
        client.create_topics(AGAIN, replicas=2)
        writer.write(120, TOPICS)
        writer.write(90, AGAIN, life=2)
        _copy(cluster, place / "later")
        cluster.nodes[1].start()
        writer.write(120, TOPICS)
        cluster.nodes[3].stop()
        writer.write(60, TOPICS)
        messages = [Message(b"pay/1/0/open/%d" % number) for number in range(4)]
        left_open(Client(cluster.nodes[2].address), "pay", messages, 0, "open")
        time.sleep(2)
    finally:
        cluster.close()
    _copy(cluster, place / "end")
    ids = [_ids(place / "early"), _ids(place / "end")]
    rows = [
        (ids[life - 1][topic], topic, partition, offsets)
        for (topic, life, partition), offsets in writer.acknowledged.items()
    ]
    (place / "acknowledged.json").write_text(json.dumps(rows))


def _make_alien(place, room):
    with Broker(room) as broker:
        broker.start()
        Client(broker.address).create_topics({**TOPICS, **AGAIN})
        Writer(broker.address).write(60, ["orders", "plain", "state"], life=9)
        broker.stop()
        shutil.copytree(broker.log_dir, place / "alien" / "n1" / "d0")


def moments():
    """The directory with all of them, made if it is not there yet."""
    place = DOWNLOADS / f"piles-{BROKER_VERSION}"
    if not place.exists():
        with tempfile.TemporaryDirectory(prefix="kafkafs-piles-") as room:
            made = Path(room) / "made"
            _make(made, Path(room) / "cluster")
            _make_alien(made, Path(room) / "alien")
            unfinished = place.with_name(f"{place.name}.{os.getpid()}")
            shutil.copytree(made, unfinished)
            unfinished.rename(place)
    return place


def acknowledged(place):
    """Values by topic id, topic, partition and offset."""
    rows = json.loads((place / "acknowledged.json").read_text())
    return {
        (topic_id, topic, partition): {int(offset): value.encode() for offset, value in offsets.items()}
        for topic_id, topic, partition, offsets in rows
    }
