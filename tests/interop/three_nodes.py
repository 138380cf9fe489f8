"""The worst day of a cluster: three KRaft nodes of two directories each, killed under load, and what revives of them.

    python -m tests.interop.three_nodes
    python -m tests.interop.three_nodes --ways backups

Groups of the classic protocol, of KIP-848 and share groups have read something, ACLs, SCRAM users and quotas are there,
and producers, transactions and a group are at work while `mirror --manifest` copies each directory and while the nodes
are killed one after the other. Then `revive` makes a new cluster in each of WAYS, and in each of them
every acknowledged message is at its offset, committed transactions are whole, clients of all kinds go on where they
were, a second broker joins and takes over a partition, and a second start is clean. One line of a table a way.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition
from aiokafka.errors import KafkaError

from tests.interop.client import Client, Message
from tests.interop.failovers import eventually
from tests.interop.kafka import Broker, DidNotStart, run_tool
from tests.interop.reviving import (
    AUTHORIZER,
    TOOLS,
    Place,
    asked,
    configured,
    read_by_java,
    read_by_share_group,
    revived,
    second_start_is_clean,
    topic_ids,
    transacted,
)
from tests.support.commands import output_of

_RECORDS = 40
_GROUPS = {"g-classic": 11, "g-848": 9, "g-share": 7}  # and how many records of the topic `t` each has read
_TRANSACTIONAL_ID = "java-tx"
_SETTINGS = {
    **AUTHORIZER,
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    **{
        f"{topic}.{name}": value
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        for name, value in (("replication.factor", "3"), ("min.isr", "2"))
        if (topic, name) != ("offsets.topic", "min.isr")
    },
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
}


class Node(Broker):
    """One of the three, with two log directories."""

    def __init__(self, directory, number):
        self.dirs = (directory / "d0", directory / "d1")
        dirs = ",".join(map(str, self.dirs))
        super().__init__(directory, {**_SETTINGS, "node.id": str(number), "log.dirs": dirs})
        self.log_dir = self.dirs[0]


@dataclass
class Done:
    """What brokers have acknowledged: keys and values by partition and offset; values of transactions that were
    committed and that were aborted; offsets that the group `live` has committed."""

    records: dict[Place, dict[int, tuple[bytes | None, bytes]]] = field(default_factory=dict)
    committed: list[bytes] = field(default_factory=list)
    aborted: list[bytes] = field(default_factory=list)
    offsets: dict[Place, int] = field(default_factory=dict)

    def copy(self):
        records = {place: dict(found) for place, found in list(self.records.items())}
        return Done(records, list(self.committed), list(self.aborted), dict(self.offsets))


class Load:
    """Producers, transactions and a group at work, on a thread of its own, until `close`."""

    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._end = Event()
        self.done = Done()
        self._thread = Thread(target=lambda: asyncio.run(self._work()))
        self._thread.start()

    def close(self):
        self._end.set()
        self._thread.join()

    async def _work(self):
        tasks = [asyncio.create_task(self._again(one)) for one in (self._orders, self._states, self._pay, self._live)]
        while not self._end.is_set():
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=20)

    async def _again(self, work):
        """Each failover ends one client, and the next one goes on."""
        while True:
            with suppress(KafkaError, OSError, AssertionError):
                await work()
            await asyncio.sleep(0.2)

    def _producer(self, **options):
        return AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", request_timeout_ms=5000, **options)

    async def _send(self, topic, partition, keyed, **options):
        async with self._producer(**options) as producer:
            number = 0
            while True:
                values = [b"%s-%d-%d" % (topic.encode(), time.monotonic_ns(), number + more) for more in range(20)]
                keys = [b"key-%d" % (one % 7) if keyed else None for one in range(20)]
                sent = [
                    await producer.send(topic, value, key=key, partition=partition)
                    for key, value in zip(keys, values, strict=True)
                ]
                for key, value, told in zip(keys, values, await asyncio.gather(*sent), strict=True):
                    self.done.records.setdefault((topic, partition), {})[told.offset] = key, value
                number += 20

    async def _orders(self):
        await asyncio.gather(*(self._send("orders", number, False, enable_idempotence=True) for number in range(3)))

    async def _states(self):
        await self._send("state", 0, True)

    async def _pay(self):
        async with self._producer(transactional_id="load-tx") as producer:
            for number in range(1_000_000):
                values = [b"pay-%d-%d" % (time.monotonic_ns(), one) for one in range(4)]
                await producer.begin_transaction()
                for one, value in enumerate(values):
                    await producer.send_and_wait("pay", value, partition=one % 2)
                if number % 3 == 2:
                    await producer.abort_transaction()
                    self.done.aborted += values
                else:
                    await producer.commit_transaction()
                    self.done.committed += values

    async def _live(self):
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=self._bootstrap, group_id="live", enable_auto_commit=False,
            auto_offset_reset="earliest", request_timeout_ms=5000, session_timeout_ms=6000,
        )  # fmt: skip
        async with consumer:
            while True:
                got = await consumer.getmany(timeout_ms=500, max_records=200)
                offsets = {tp: found[-1].offset + 1 for tp, found in got.items() if found}
                if offsets:
                    await consumer.commit(offsets)
                    self.done.offsets |= {(tp.topic, tp.partition): offset for tp, offset in offsets.items()}


class Cluster:
    """The three nodes. `said`: what Kafka's tools said of the metadata; `ids`: of topics; `backed_up`, `killed`: what
    had been acknowledged when the backups began, and at the end."""

    def __init__(self, directory):
        self.directory = directory
        self.nodes = [Node(directory / f"n{number}", number) for number in (1, 2, 3)]
        voters = ",".join(f"{n}@{node.controller_address}" for n, node in enumerate(self.nodes, 1))
        for node in self.nodes:
            node.reconfigure({"controller.quorum.voters": voters})
        self.bootstrap = ",".join(node.address for node in self.nodes)
        self.said = {}
        self.ids = {}
        self.backed_up, self.killed = Done(), Done()

    def begin(self):
        """Starts it, with topics, groups, security and transactions."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(), self.nodes))
        address = self.nodes[0].address
        client = Client(address)
        topics = {
            "t": (1, {}),
            "orders": (3, {"segment.ms": 3000}),
            "state": (1, {"cleanup.policy": "compact", "segment.ms": 2000, "min.cleanable.dirty.ratio": 0.01}),
            "pay": (2, {}),
        }
        in_sync = {name: (count, {**config, "min.insync.replicas": 2}) for name, (count, config) in topics.items()}
        client.create_topics(in_sync, replicas=3)
        client.produce("t", [Message(b"%d" % number) for number in range(_RECORDS)], batch=5, acks="all")
        configured(address, "g-848", "g-share", "t")
        transacted(address, 5, "pay", _TRANSACTIONAL_ID)
        for group, count in _GROUPS.items():
            assert next_offsets(client, group, count) == list(range(count))
        self.said, self.ids = asked(address), topic_ids(address)

    def back_up(self, load):
        """A copy of each directory, made while the nodes run."""
        self.backed_up = load.done.copy()
        copies = []
        for node in self.nodes:
            for one in node.dirs:
                copy = self.directory / "backups" / f"{node.directory.name}-{one.name}"
                copy.parent.mkdir(exist_ok=True)
                output_of("mirror", one, copy, "--manifest", f"{copy}.json")
                output_of("verify", copy, "--manifest", f"{copy}.json")
                copies.append(copy)
        return copies

    def kill(self, load):
        """kill -9, one after the other: when the second one is gone nothing more is acknowledged."""
        for node in self.nodes:
            node.kill()
            time.sleep(2)
        load.close()
        self.killed = load.done.copy()

    def close(self):
        for node in self.nodes:
            node.kill()


def next_offsets(client, group, count):
    """The offsets of the next `count` records of `t` that a member of a group of _GROUPS is given."""
    if group == "g-share":
        return read_by_share_group(client.address, group, "t", count)
    protocol = "consumer" if group == "g-848" else "classic"
    return read_by_java(client, group, "t", count, protocol=protocol)


@dataclass(frozen=True)
class Way:
    """Out of what a cluster is revived. `nodes`: whose directories; `copies`: their backups instead; `metadata`: with
    the metadata log."""

    nodes: Sequence[int]
    copies: bool = False
    metadata: bool = True


WAYS = {
    "all": Way((1, 2, 3)),
    "two": Way((2, 3)),
    "one": Way((3,)),
    "backups": Way((1, 2, 3), copies=True),
    "backups of two": Way((2, 3), copies=True),
    "data": Way((1, 2, 3), metadata=False),
}


def sources_of(cluster, way, room):
    dirs = [one for number in way.nodes for one in cluster.nodes[number - 1].dirs]
    if way.copies:
        return [cluster.directory / "backups" / f"{one.parent.name}-{one.name}" for one in dirs]
    if way.metadata:
        return dirs
    rest = []
    for one in dirs:
        target = room / "rest" / f"{one.parent.name}-{one.name}"
        shutil.copytree(one, target, ignore=shutil.ignore_patterns("__cluster_metadata-0", "bootstrap.checkpoint"))
        rest.append(target)
    return rest


def restore(cluster, way, room):
    """Revives in one way and checks the new cluster; returns what was seen, by column of the table."""
    sources = sources_of(cluster, way, room)
    before = state_of(sources)
    began = time.monotonic()
    broker, told = revived(room, sources, config=AUTHORIZER)
    row = {"revive s": f"{time.monotonic() - began:.1f}", "notes": str(len(told["notes"]))}
    assert state_of(sources) == before
    done = cluster.backed_up if way.copies else cluster.killed
    try:
        client = Client(broker.start().address)
        row |= check_data(client, done)
        assert {name: cluster.ids[name] for name in ("t", "orders", "state", "pay")}.items() <= topic_ids(
            client.address
        ).items()
        row["topic ids"] = "kept"
        if way.metadata:
            now = asked(client.address)
            others = {name: (said, now[name]) for name, said in cluster.said.items() if said != now[name]}
            assert not others, others
            row["security, quotas, features"] = "equal"
        else:
            assert [note for note in told["notes"] if "no source tells" in note]
            row["security, quotas, features"] = "named as lost; features by the data"
        row |= go_on(client)
        row["second broker"] = joined(broker, room)
        second_start_is_clean(broker)
        row["second start"] = "clean"
    finally:
        broker.kill()
    return row


def state_of(directories):
    """Sizes, times and digests of all files."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns, hashlib.md5(path.read_bytes()).hexdigest())
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def check_data(client, done):
    """Everything that was acknowledged is there."""
    found = 0
    for (topic, partition), expected in done.records.items():
        served = {one.offset: (one.key, one.value) for one in client.consume(topic, partition)}
        if topic == "state":  # compacted
            latest = {key: offset for offset, (key, _) in sorted(served.items())}
            superseded = [offset for offset, (key, _) in expected.items() if offset < latest.get(key, -1)]
            expected = {offset: one for offset, one in expected.items() if offset not in superseded or offset in served}
        missing = [offset for offset, one in expected.items() if served.get(offset) != one]
        assert not missing, f"{topic}/{partition}: {len(missing)} of {len(expected)} from {missing[0]} on"
        found += len(expected)
    values = {one.value for partition in (0, 1) for one in client.consume("pay", partition, committed=True)}
    assert values >= set(done.committed)
    assert not values & set(done.aborted)
    offsets = {}
    for place, offset in done.offsets.items():
        offsets[place] = committed_by(client, "live", *place)
        assert offsets[place] >= offset, (place, offset, offsets)
    return {
        "records": f"{found} of {found}",
        "committed, aborted": f"{len(done.committed)}, {len(done.aborted)}",
        "group under load": f"{len(offsets)} of {len(done.offsets)}",
    }


def committed_by(client, group, topic, partition):
    async def run():
        consumer = AIOKafkaConsumer(bootstrap_servers=client.address, group_id=group, enable_auto_commit=False)
        async with consumer:
            consumer.assign([ClientPartition(topic, partition)])
            return await consumer.committed(ClientPartition(topic, partition)) or 0

    return asyncio.run(run())


def go_on(client):
    """Producers write, and each group is given the first record that it had not read, and all others to the last."""
    client.produce("t", [Message(b"afterwards")] * 5, enable_idempotence=True, acks="all")
    row = {}
    for group, count in _GROUPS.items():
        rest = next_offsets(client, group, _RECORDS + 5 - count)
        assert rest == list(range(count, _RECORDS + 5)), (group, rest)
        row[group] = f"{rest[0]} to {rest[-1]}"
    transacted(client.address, 5, "pay", _TRANSACTIONAL_ID)
    client.transactions("pay", [(True, [Message(b"afterwards")])], 1, id="load-tx")
    assert client.consume("pay", 1, committed=True)[-1].value == b"afterwards"
    return {**row, "transactional ids": "2 of 2"}


def joined(first, room):
    """A second broker joins the revived one, and takes over orders/0: the same records, and new ones."""
    client = Client(first.address)
    before = client.consume("orders", 0)
    second = SecondBroker(room / "second", first)
    try:
        second.start()
        plan = room / "plan.json"
        partition = {"topic": "orders", "partition": 0, "replicas": [second.node_id]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        run_tool(
            f"{TOOLS}.reassign.ReassignPartitionsCommand", "--bootstrap-server", first.address,
            "--reassignment-json-file", plan, "--execute",
        )  # fmt: skip

        def taken():
            command = ["kcat", "-L", "-J", "-b", first.address, "-t", "orders", "-m", "5"]
            done = subprocess.run(command, capture_output=True, timeout=60, check=True)
            state = next(one for one in json.loads(done.stdout)["topics"][0]["partitions"] if one["partition"] == 0)
            return (state["leader"], [one["id"] for one in state["replicas"]]) == (second.node_id, [second.node_id])

        eventually(taken, "the second broker has not taken the partition over")
        assert client.consume("orders", 0) == before
        client.produce("orders", [Message(b"to the second one")], acks="all")
        assert client.consume("orders", 0)[-1].value == b"to the second one"
        second.stop()
        assert second.complaints() == []
    finally:
        second.kill()
    return f"took over {len(before)} records"


class SecondBroker(Broker):
    """A broker without a controller, formatted for the cluster of a revived one."""

    def __init__(self, directory, first):
        identity = dict(
            line.split("=", 1) for line in (first.log_dir / "meta.properties").read_text().splitlines() if "=" in line
        )
        self.cluster_id = identity["cluster.id"]
        self.node_id = int(identity["node.id"]) + 10
        text = (first.log_dir / "server.properties").read_text()
        controller = re.search("^controller.quorum.bootstrap.servers=(.*)$", text, re.MULTILINE)
        assert controller is not None
        super().__init__(directory, {"controller.quorum.bootstrap.servers": controller[1], **AUTHORIZER})
        self.reconfigure(
            {
                "process.roles": "broker",
                "node.id": str(self.node_id),
                "listeners": f"PLAINTEXT://{self.address}",
                "controller.quorum.voters": "",
            }
        )

    def complaints(self):
        """Not what every broker says that is given a partition of an older topic."""
        return [line for line in super().complaints() if "to exist, but it was missing. Creating..." not in line]

    def _format(self):
        run_tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", self._properties)


@contextmanager
def worst_day(directory, seconds):
    """A cluster that was loaded, backed up and killed."""
    cluster = Cluster(directory)
    try:
        cluster.begin()
        load = Load(cluster.bootstrap)
        try:
            time.sleep(seconds)
            cluster.back_up(load)
            time.sleep(seconds)
        finally:
            cluster.kill(load)
        yield cluster
    finally:
        cluster.close()


def table(rows):
    """As Markdown; ways are columns."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [["", *rows], ["---"] * (len(rows) + 1)]
    lines += [[name, *(row.get(name, "") for row in rows.values())] for name in names]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.three_nodes")
    parser.add_argument("--seconds", type=float, default=5, help="of load, before the backups and after them")
    parser.add_argument("--ways", default=",".join(WAYS))
    chosen = parser.parse_args(arguments)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of nodes that were killed
    rows = {}
    with tempfile.TemporaryDirectory() as name, worst_day(Path(name), chosen.seconds) as cluster:
        for way in chosen.ways.split(","):
            room = Path(name) / f"of {way}"
            room.mkdir()
            try:
                rows[way] = restore(cluster, WAYS[way], room)
            except (AssertionError, DidNotStart):
                rows[way] = {"failed": traceback.format_exc(limit=-3)}
            print(way, rows[way], flush=True)  # noqa: T201
    print(table(rows))  # noqa: T201
    return 1 if any("failed" in row for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
