"""Failovers of two brokers in the middle of uploads to one LocalTieredStorage, while mounts with the tier are read.

    python -m tests.interop.tiered_failovers --rounds 6 --seed 1

A third node, which has no replica, is the controller. In each round the follower catches up in larger steps than the
leader appended in, so that its segments end elsewhere, and the leader is killed while it uploads: the other one uploads
the same offsets in other segments. In some rounds the follower's log was removed before, or the leader alone has
accepted and uploaded messages that an unclean election takes back. After each round `cat --tier` of both directories
and a consumer must have what was acknowledged and not taken back, and so must, at any time, what readers are given
through mounts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from threading import Event, Thread

from aiokafka import AIOKafkaProducer

from storage.log.log_dir import LogDir
from storage.log.remote_metadata import RemoteState
from storage.types import TopicPartition
from tests.interop.client import Client
from tests.interop.failovers import CONFIG, eventually
from tests.interop.kafka import Broker, run_tool
from tests.support.fixtures import read_jsonl
from tests.support.mounts import mounted, run_kafkafs

PARTITION = TopicPartition("t", 0)
WAYS = ("killed", "rebuilt", "unclean")
READERS = 8
_TIERING = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "replica.fetch.max.bytes": "12000",
    "replica.lag.time.max.ms": "20000",
    "broker.session.timeout.ms": "12000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
_TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "segment.index.bytes": "100000",
    "index.interval.bytes": "500",
    "local.retention.ms": "4000",
    "min.insync.replicas": "1",
}


class TieredFailovers:
    """The brokers. `truth`: values by offset that were acknowledged and not taken back; of them those below `safe` are
    in both replicas."""

    def __init__(self, directory, seed):
        self._random = random.Random(seed)
        self.tier = directory / "tier"
        self.tier.mkdir()
        config = {**CONFIG, **_TIERING, "rsm.config.dir": str(self.tier)}
        self._controller = Broker(directory / "n3", {**config, "node.id": "3"})
        voters = {"controller.quorum.voters": f"3@{self._controller.controller_address}"}
        self._controller.reconfigure(voters)
        self.nodes = {number: Broker(directory / f"n{number}", {**config, **voters}) for number in (1, 2)}
        for number, node in self.nodes.items():
            own = {"process.roles": "broker", "node.id": str(number), "listeners": f"PLAINTEXT://{node.address}"}
            node.reconfigure(own)
        self._bootstrap = ",".join(one.address for one in (self._controller, *self.nodes.values()))
        self.truth = {}
        self.safe = 0
        self.made_anew = None  # the node whose log is being made anew, and so may lack messages
        self.mounts = {}  # of the nodes' directories
        self._written = 0

    def begin(self):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(), (self._controller, *self.nodes.values())))
        run_tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self._controller.address, "--create",
            "--topic", PARTITION.topic, "--replica-assignment", "1:2",
            *(word for key, value in _TOPIC_CONFIG.items() for word in ("--config", f"{key}={value}")),
        )  # fmt: skip
        self._wait_for(lambda leader, in_sync: leader == 1 and len(in_sync) == 2)
        self._write(200)
        self._wait_for_uploads_to_end()

    def round(self, way):
        """Ends with both replicas in sync, and everything uploaded. Returns what was done."""
        leader, _ = self._state()
        follower = 3 - leader
        if way == "rebuilt":
            self._rebuild(leader, follower)
        os.kill(self.nodes[follower].pid, signal.SIGSTOP)
        try:
            if way == "unclean":
                self._wait_for(lambda leader, in_sync: in_sync == [leader])
            # By the leader alone: what it loses of them another one gets.
            written = self._write(600, acks=1)
            if way == "unclean":
                uploads = self._wait_for_uploads()
                self.nodes[leader].kill()
        finally:
            os.kill(self.nodes[follower].pid, signal.SIGCONT)
        if way != "unclean":
            uploads = self._wait_for_uploads()
            self.nodes[leader].kill()
        self._wait_for(lambda leader, _: leader == follower)
        more = self._write(200)
        taken_back = sum(offset >= min(more) for offset in written)
        self.truth = {offset: one for offset, one in self.truth.items() if offset < min(more)} | more
        self._start(leader)
        self._wait_for_uploads_to_end()
        return f"{leader} was killed after {uploads} uploads, {taken_back} messages taken back"

    def check(self):
        """A consumer and both directories, with the tier, have what they should have."""
        expected = dict(sorted(self.truth.items()))
        leader, _ = self._state()

        def same(found, who):
            offsets = sorted(expected.keys() | found.keys())
            differing = [offset for offset in offsets if expected.get(offset) != found.get(offset)]
            assert not differing, f"{who} differs at {len(differing)} offsets from {differing[0]} to {differing[-1]}"

        consumed = Client(self.nodes[leader].address).consume(PARTITION.topic, 0)
        same({one.offset: one.value or b"" for one in consumed}, "the consumer")
        for number, node in self.nodes.items():
            done = run_kafkafs("cat", node.log_dir, str(PARTITION), "--format", "jsonl", "--tier", self.tier)
            assert read_jsonl(done.stdout) == consumed, f"node {number}"
            verified = run_kafkafs("verify", node.log_dir, str(PARTITION), "--tier", self.tier, "--json", check=False)
            findings = json.loads(verified.stdout)["findings"]
            assert "remote-segment" not in [one["name"] for one in findings], f"node {number}"
        self.safe = len(expected)

    def overlaps(self):
        """Remote segments that have some of the same offsets, as the events tell them."""
        return [
            (one, other)
            for one, other in combinations(sorted(self._known(1), key=lambda one: (one.base_offset, one.order)), 2)
            if one.base_offset < other.end_offset and other.base_offset < one.end_offset
        ]

    def _rebuild(self, leader, follower):
        """The follower loses its log; what it then has begins where the leader's local log does."""
        self.nodes[follower].kill()
        self._wait_for(lambda _, in_sync: in_sync == [leader])
        self._wait_for_uploads_to_end()
        self.made_anew = follower
        shutil.rmtree(self.nodes[follower].log_dir / PARTITION.dir_name)
        self._start(follower)

    def _start(self, number):
        """A replica that cuts its log below its local start, or has none, begins anew at the other one's."""
        self.made_anew = number
        self.nodes[number].start()
        self._wait_for(lambda _, in_sync: len(in_sync) == 2)
        eventually(lambda: self._shows_all(number), f"the mount of node {number} does not show all messages")
        self.made_anew = None

    def _shows_all(self, number):
        """Whether the mount of a node shows all messages that both replicas have."""
        offsets = self.mounts[number].path / PARTITION.topic / "0" / "offsets"
        try:
            found = read_jsonl((offsets / f"0-{self.safe - 1}.jsonl").read_bytes())
        except OSError:
            return False
        return [one.offset for one in found] == list(range(self.safe))

    def _write(self, count, acks="all"):
        """Writes messages in small batches; returns them by offset when all are acknowledged."""
        values = [self._value() for _ in range(count)]

        async def run():
            async with AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, acks=acks, request_timeout_ms=90_000, max_batch_size=3000
            ) as producer:
                sent = [await producer.send(PARTITION.topic, value, partition=0) for value in values]
                return {told.offset: value for told, value in zip(await asyncio.gather(*sent), values, strict=True)}

        found = asyncio.run(run())
        self.truth |= found
        return found

    def _value(self):
        self._written += 1
        return b"%07d " % self._written + b"x" * self._random.randint(10, 900)

    def _state(self):
        """The leader, and the replicas in sync; -1 where nobody tells."""
        command = ["kcat", "-L", "-J", "-b", self._controller.address, "-t", PARTITION.topic, "-m", "5"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        for one in json.loads(done.stdout)["topics"][0]["partitions"] if done.returncode == 0 else ():
            return one["leader"], [node["id"] for node in one["isrs"]]
        return -1, []

    def _wait_for(self, condition):
        eventually(lambda: condition(*self._state()), "the partition has not the leader and replicas that it should")

    def _uploads(self):
        return sum(1 for _ in self.tier.rglob("*.log"))

    def _wait_for_uploads(self):
        """Waits until some more segments are in the tier; the last of them may not be whole. Returns their number."""
        before, wanted = self._uploads(), self._random.randint(2, 8)
        deadline = time.monotonic() + 60
        while self._uploads() < before + wanted:
            assert time.monotonic() < deadline, "nothing is uploaded"
            time.sleep(0.002)
        return wanted

    def _wait_for_uploads_to_end(self):
        eventually(self._all_are_uploaded, "not all segments before the active one are uploaded")

    def _all_are_uploaded(self):
        """Whether the leader's last segment before the active one is in the tier, with what its leader wrote."""
        leader, _ = self._state()
        if leader not in self.nodes:
            return False
        snapshot = LogDir.open_read_only(self.nodes[leader].log_dir).log(PARTITION).snapshot()
        active = snapshot.segments[-1].base_offset
        epoch = snapshot.epochs.epoch_at(active - 1)
        return any(
            (one.end_offset, one.epochs[-1][0], one.state) == (active, epoch, RemoteState.FINISHED)
            for one in self._known(leader)
        )

    def _known(self, node):
        """The remote segments, as the events in a node's directory tell them."""
        log_dir = LogDir.open_read_only(self.nodes[node].log_dir)
        topic_id = log_dir.topic_info(PARTITION.topic).topic_id
        assert topic_id is not None
        return list((log_dir.remote_metadata.segments(topic_id, 0) or {}).values())

    def close(self):
        for node in (*self.nodes.values(), self._controller):
            node.kill()


def _told(one):
    epochs = " ".join(f"{epoch}@{offset}" for epoch, offset in one.epochs)
    return f"{one.base_offset}-{one.end_offset - 1} [{epochs}] {one.state.name.lower()}"


class Reader:
    """Reads ranges of messages that are in both replicas through a mount of one of them, again and again.

    `wrong`: what it was given instead. `short`: ranges that a replica which is being made anew did not have, or not to
    their end: `check` reads them again.
    """

    def __init__(self, cluster, node, mount, seed):
        self._cluster = cluster
        self._node = node
        self._path = mount.path / PARTITION.topic / "0" / "offsets"
        self._random = random.Random(seed)
        self._end = Event()
        self.read = 0
        self.wrong = []
        self.short = set()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._end.wait(0.2):
            first = self._random.randrange(self._cluster.safe)
            self._read(range(first, min(self._cluster.safe, first + self._random.choice((1, 10, 100, 1000)))))

    def check(self):
        for wanted in list(self.short):
            self._read(wanted)
        assert not self.wrong, self.wrong[:3]

    def _read(self, wanted):
        began = self._cluster.made_anew
        name, found, error = f"{wanted[0]}-{wanted[-1]}.jsonl", [], None
        try:
            found = [(one.offset, one.value) for one in read_jsonl((self._path / name).read_bytes())]
        except OSError as failed:
            error = failed.strerror
        truth = self._cluster.truth
        expected = [(offset, truth.get(offset)) for offset in wanted]
        self.read += len(found)
        if error is not None or found != expected:
            if self._node in (began, self._cluster.made_anew) and found == expected[: len(found)]:
                self.short.add(wanted)
            else:
                self.wrong.append(f"node {self._node}, {name}: {error or found[:1]}, {len(found)} messages")

    def close(self):
        self._end.set()
        self._thread.join()


def run(directory, ways, seed, say=lambda line: None):
    """A round of each of these ways. Returns which uploads have some of the same offsets; AssertionError."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of nodes that were killed
    with ExitStack() as stack:
        cluster = TieredFailovers(directory, seed)
        stack.callback(cluster.close)
        cluster.begin()
        cluster.check()
        mounts = [
            stack.enter_context(mounted(node.log_dir, directory / f"mnt{number}", "--tier", str(cluster.tier)))
            for number, node in cluster.nodes.items()
        ]
        cluster.mounts = dict(zip(cluster.nodes, mounts, strict=True))
        readers = [Reader(cluster, 1 + number % 2, mounts[number % 2], number) for number in range(READERS)]
        try:
            for number, way in enumerate(ways):
                told = cluster.round(way)
                cluster.check()
                for reader in readers:
                    reader.check()
                say(f"round {number}, {way}: {told}; {cluster.safe} messages")
        finally:
            for reader in readers:
                reader.close()
        say(f"{sum(reader.read for reader in readers)} messages read, nothing skipped, doubled or made up")
        return cluster.overlaps()


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.tiered_failovers")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    ways = [WAYS[number % len(WAYS)] for number in range(chosen.rounds)]
    with tempfile.TemporaryDirectory() as name:
        for one, other in run(Path(name), ways, chosen.seed, partial(print, flush=True)):
            print(f"{_told(one)} overlaps {_told(other)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
