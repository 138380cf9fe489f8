"""What the programs with several brokers share: nodes, work that goes on beside them, and what must be there later."""

import asyncio
import hashlib
import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.interop.kafka import Broker


class Cluster:
    """Nodes by id, of which each is a broker and a controller unless `config` says otherwise. `dirs`: of each."""

    def __init__(self, directory, config, dirs=("log",)):
        self.directory = directory
        self.nodes = {number: Broker(directory / f"n{number}", config) for number in (1, 2, 3)}
        voters = ",".join(f"{number}@{node.controller_address}" for number, node in self.nodes.items())
        for number, node in self.nodes.items():
            log_dirs = ",".join(str(node.directory / name) for name in dirs)
            node.log_dir = node.directory / dirs[0]
            node.reconfigure({"node.id": number, "controller.quorum.voters": voters, "log.dirs": log_dirs})
        self.bootstrap = ",".join(node.address for node in self.nodes.values())

    def start(self):
        with ThreadPoolExecutor() as pool:
            list(pool.map(Broker.start, self.nodes.values()))

    def close(self):
        for node in self.nodes.values():
            node.kill()


def partition_state(address, topic):
    """The leader of partition 0, and the replicas in sync; -1 and none where nobody tells."""
    command = ["kcat", "-L", "-J", "-b", address, "-t", topic, "-m", "5"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    for row in json.loads(done.stdout)["topics"][0]["partitions"] if done.returncode == 0 else ():
        return row["leader"], [node["id"] for node in row["isrs"]]
    return -1, []


@dataclass
class Done:
    """What brokers have acknowledged: keys and values by partition and offset; values of transactions that were
    committed and that were aborted; offsets that the group `live` has committed."""

    records: dict = field(default_factory=dict)
    committed: list = field(default_factory=list)
    aborted: list = field(default_factory=list)
    offsets: dict = field(default_factory=dict)

    def copy(self):
        records = {place: dict(found) for place, found in list(self.records.items())}
        return Done(records, list(self.committed), list(self.aborted), dict(self.offsets))


LOAD_TOPICS = {"orders": 3, "state": 1, "pay": 2}


class Load:
    """Producers to LOAD_TOPICS, transactions and a group at work, on a thread of its own, until `close`."""

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
        works = [lambda number=number: self._send("orders", number, keys=0) for number in range(3)]
        works += [lambda: self._send("state", 0, keys=7), self._pay, self._live]
        tasks = [asyncio.create_task(self._again(work)) for work in works]
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

    async def _send(self, topic, partition, keys):
        async with self._producer(enable_idempotence=not keys) as producer:
            while True:
                rows = [
                    (b"key-%d" % (number % keys) if keys else None, b"%d-%d" % (time.monotonic_ns(), number))
                    for number in range(20)
                ]
                sent = [await producer.send(topic, value, key=key, partition=partition) for key, value in rows]
                for row, told in zip(rows, await asyncio.gather(*sent), strict=True):
                    self.done.records.setdefault((topic, partition), {})[told.offset] = row

    async def _pay(self):
        async with self._producer(transactional_id="load-tx") as producer:
            while True:
                values = [b"pay-%d-%d" % (time.monotonic_ns(), number) for number in range(4)]
                await producer.begin_transaction()
                for number, value in enumerate(values):
                    await producer.send_and_wait("pay", value, partition=number % 2)
                if random.random() < 0.3:
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
                for tp, found in (await consumer.getmany(timeout_ms=500, max_records=200)).items():
                    for last in found[-1:]:
                        await consumer.commit({tp: last.offset + 1})
                        self.done.offsets[tp.topic, tp.partition] = last.offset + 1


def files_of(directories):
    """Times and digests of all files, by path."""
    return {
        path: (path.stat().st_mtime_ns, hashlib.md5(path.read_bytes()).hexdigest())
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
