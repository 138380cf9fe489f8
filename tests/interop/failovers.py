"""Failovers of two brokers that replicate two topics, while their directories are read on and through mounts.

The segments of the topic `tiered` are uploaded to one LocalTieredStorage, those of `plain` stay. A third node, which
has no replica, is the controller. In each round the follower catches up in larger steps than the leader appended in, so
that its segments end elsewhere, and the leader is killed while it uploads: the other one uploads the same offsets in
other segments. In some rounds the follower's log was removed before, or the leader alone has accepted and uploaded
messages that an unclean election takes back, so that it truncates its log.

After each round consumers and `cat` of both directories must have what was acknowledged and not taken back, and so
must, at any time, what readers are given through mounts. `cat --follow` of `plain` must have exactly what the log
holds, by a note wherever it had something else.
"""

import asyncio
import errno
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event

from aiokafka import AIOKafkaProducer

from storage.log.log_dir import LogDir
from storage.log.remote_metadata import RemoteState
from storage.types import TopicPartition
from tests.interop.client import Client
from tests.interop.clusters import Cluster, partition_state
from tests.support.commands import process
from tests.support.fixtures import read_jsonl
from tests.support.mounts import mounted, run_kafkafs
from tests.support.waiting import wait_for

TIERED, PLAIN = TOPICS = ("tiered", "plain")
PARTITION = TopicPartition(TIERED, 0)
LAG_S = 60
WAYS = ("unclean", "killed", "rebuilt")
READERS = 8
CONFIG = {
    "unclean.leader.election.enable": "true",
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": "12000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.fetch.max.bytes": "12000",
    "replica.lag.time.max.ms": "20000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
}
SMALL = {"internal.segment.bytes": 20_000, "segment.index.bytes": 100_000, "index.interval.bytes": 500}
TIERED_CONFIG = {**SMALL, "remote.storage.enable": "true", "local.retention.ms": 4000}


class Failovers(Cluster):
    """The brokers. `truth`: by topic, values by offset that were acknowledged and not taken back; of those of `tiered`
    the ones below `safe` are in both replicas."""

    def __init__(self, directory, seed):
        self._random = random.Random(seed)
        self.tier = directory / "tier"
        self.tier.mkdir()
        super().__init__(directory, {**CONFIG, "rsm.config.dir": str(self.tier)})
        self._controller = self.nodes[3]
        voters = {"controller.quorum.voters": f"3@{self._controller.controller_address}"}
        self._controller.reconfigure(voters)
        self.replicas = {number: self.nodes[number] for number in (1, 2)}
        for node in self.replicas.values():
            node.reconfigure({"process.roles": "broker", "listeners": f"PLAINTEXT://{node.address}", **voters})
        self.truth = {topic: {} for topic in TOPICS}
        self.safe = 0
        self.made_anew = None  # the node whose log is being made anew, and so may lack messages
        self.mounts, self.followers = {}, {}  # of the replicas' directories
        self.end = Event()  # of what reads ranges
        self.wrong = []  # what it was given instead
        self._numbers = itertools.count()

    def begin(self):
        self.start()
        topics = {TIERED: (-1, TIERED_CONFIG), PLAIN: (-1, SMALL)}
        Client(self._controller.address).create_topics(topics, replicas=[1, 2])
        self._wait_for(lambda leader, in_sync: leader == 1 and len(in_sync) == 2)
        self._write(200)
        wait_for("the end of the uploads", self._all_are_uploaded)

    def round(self, way):
        """Ends with both replicas in sync, and everything uploaded. Returns what was done."""
        leader = self._leader()
        follower = 3 - leader
        if way == "rebuilt":
            self._rebuild(leader, follower)
        os.kill(self.nodes[follower].pid, signal.SIGSTOP)
        try:
            if way == "unclean":
                self._wait_for(lambda leader, in_sync: in_sync == [leader])
            before = self._uploads()
            # By the leader alone: what it loses of them another one gets.
            written = self._write(600, acks=1)
            if way == "unclean":
                uploads = self._wait_for_uploads(before)
                # What it alone has accepted.
                wait_for("the follower", lambda: self.followers[leader].has(self.truth[PLAIN]))
                self.nodes[leader].kill()
        finally:
            os.kill(self.nodes[follower].pid, signal.SIGCONT)
        if way != "unclean":
            uploads = self._wait_for_uploads(before)
            self.nodes[leader].kill()
        self._wait_for(lambda leader, _: leader == follower)
        taken_back = 0
        for topic, more in self._write(200).items():
            taken_back += sum(offset >= min(more) for offset in written[topic])
            kept = {offset: value for offset, value in self.truth[topic].items() if offset < min(more)}
            self.truth[topic] = kept | more
        self._start_again(leader)
        wait_for("the end of the uploads", self._all_are_uploaded)
        assert way != "unclean" or taken_back
        return f"{leader} was killed after {uploads} uploads, {taken_back} messages taken back"

    def check(self):
        """A consumer and both directories, with the tier, have what they should have."""
        for topic, truth in self.truth.items():
            consumed = Client(self.nodes[self._leader()].address).consume(topic, 0)
            found = {record.offset: record.value for record in consumed}
            differing = sorted(dict(truth.items() ^ found.items()))
            assert not differing, (topic, differing[0], differing[-1])
            for number, node in self.replicas.items():
                done = run_kafkafs("cat", node.log_dir, f"{topic}/0", "--format", "jsonl", "--tier", self.tier)
                assert read_jsonl(done.stdout) == consumed, f"node {number}"
        for number, node in self.replicas.items():
            verified = run_kafkafs("verify", node.log_dir, str(PARTITION), "--tier", self.tier, "--json", check=False)
            names = [finding["name"] for finding in json.loads(verified.stdout)["findings"]]
            assert "remote-segment" not in names, f"node {number}"
        self.safe = len(self.truth[TIERED])

    def overlaps(self):
        """Remote segments that have some of the same offsets, as the events tell them."""
        known = sorted(self._known(1), key=lambda segment: (segment.base_offset, segment.order))
        return [
            (one, other)
            for one, other in itertools.combinations(known, 2)
            if one.base_offset < other.end_offset and other.base_offset < one.end_offset
        ]

    def _state(self, topic):
        return partition_state(self._controller.address, topic)

    def _leader(self):
        return self._state(TIERED)[0]

    def _wait_for(self, condition):
        for topic in TOPICS:
            wait_for(f"leader and replicas of {topic}", lambda: condition(*self._state(topic)))  # noqa: B023

    def _rebuild(self, leader, follower):
        """The follower loses its log; what it then has begins where the leader's local log does."""
        self.nodes[follower].kill()
        self._wait_for(lambda _, in_sync: in_sync == [leader])
        wait_for("the end of the uploads", self._all_are_uploaded)
        self.made_anew = follower
        shutil.rmtree(self.nodes[follower].log_dir / PARTITION.dir_name)
        self._start_again(follower)

    def _start_again(self, number):
        """A replica that cuts its log below its local start, or has none, begins anew at the other one's. So first that
        one must have no local messages: where it has those from the cut on, a broker gives the replica them alone, and
        the cut becomes its log start (4.3.0)."""
        wait_for("the other one's local retention", lambda: self._is_all_remote(3 - number))
        self.made_anew = number
        self.nodes[number].start()
        self._wait_for(lambda _, in_sync: len(in_sync) == 2)
        with suppress(AssertionError):  # the next line says more
            wait_for("all messages in the mount", lambda: self._fault_of(number) is None)
        fault = self._fault_of(number)
        assert fault is None, f"the mount of node {number}: {fault}"
        self.made_anew = None

    def _fault_of(self, number):
        """How the messages in a node's mount differ from those that both replicas have; None if they do not."""
        view = self.mounts[number].path / TIERED / "0" / "offsets" / f"0-{self.safe - 1}.jsonl"
        try:
            shown = [record.offset for record in read_jsonl(view.read_bytes())]
        except OSError as error:
            return error
        expected = list(range(self.safe))
        return None if shown == expected else sorted(set(expected) ^ set(shown)) or "they are not in order"

    def _write(self, count, acks="all"):
        """Writes messages to each topic in small batches; returns them by offset when all are acknowledged."""

        async def run():
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, acks=acks, request_timeout_ms=90_000, max_batch_size=3000
            ) as producer:
                sent = {}
                for topic in TOPICS:
                    sizes = [self._random.randint(10, 900) for _ in range(count)]
                    values = [b"%07d " % next(self._numbers) + b"x" * size for size in sizes]
                    sent[topic] = [(await producer.send(topic, value, partition=0), value) for value in values]
                return {topic: {(await told).offset: value for told, value in rows} for topic, rows in sent.items()}

        found = asyncio.run(run())
        for topic in TOPICS:
            self.truth[topic] |= found[topic]
        return found

    def _uploads(self):
        return len(list(self.tier.rglob("*.log")))

    def _wait_for_uploads(self, before):
        """Waits until some more segments than `before` are in the tier; the last of them may not be whole. Returns
        their number."""
        more = self._random.randint(2, 8)
        wait_for("uploads", lambda: self._uploads() >= before + more)
        return more

    def _all_are_uploaded(self):
        """Whether the leader's last segment before the active one is in the tier, with what its leader wrote."""
        leader = self._leader()
        if leader not in self.replicas:
            return False
        snapshot = LogDir.open_read_only(self.nodes[leader].log_dir).log(PARTITION).snapshot()
        active = snapshot.segments[-1].base_offset
        expected = (active, snapshot.epochs.epoch_at(active - 1), RemoteState.FINISHED)
        known = self._known(leader)
        return any((segment.end_offset, segment.epochs[-1][0], segment.state) == expected for segment in known)

    def _is_all_remote(self, node):
        """Whether a node has no messages of its own any more, but only those in the tier."""
        snapshot = LogDir.open_read_only(self.nodes[node].log_dir).log(PARTITION).snapshot()
        return snapshot.segments[0].base_offset == snapshot.log_end_offset

    def _known(self, node):
        """The remote segments, as the events in a node's directory tell them."""
        log_dir = LogDir.open_read_only(self.nodes[node].log_dir)
        topic_id = log_dir.topic_info(TIERED).topic_id
        return list((log_dir.remote_metadata.segments(topic_id, 0) or {}).values())


class Follower:
    """`cat --follow` of `plain`: its messages, without those that a note has taken back."""

    def __init__(self, directory):
        self.notes = 0
        self._output = directory.with_name("followed")
        with self._output.open("wb") as output:
            options = ("-f", "--format", r"%o %s\n")
            self._process = process("cat", directory, PLAIN, *options, stdout=output, stderr=subprocess.STDOUT)

    def has(self, truth):
        given, self.notes = [], 0
        for line in self._output.read_bytes().splitlines():
            note = re.search(rb"truncated to (\d+)", line)
            if note:
                self.notes += 1
                given = [line for line in given if int(line.split()[0]) < int(note[1])]
            else:
                given.append(line)
        return given == [b"%d %s" % row for row in sorted(truth.items())]

    def close(self):
        self._process.terminate()
        self._process.communicate()


def read_ranges(cluster, node, seed):
    """Reads ranges of messages that are in both replicas through a mount of one of them, until the end; returns how
    many. A replica that is being made anew may lack what comes later, or fail."""
    dice, count = random.Random(seed), 0
    while not cluster.end.wait(0.2):
        first = dice.randrange(cluster.safe)
        last = min(cluster.safe, first + dice.choice((1, 10, 100, 1000))) - 1
        view = cluster.mounts[node].path / TIERED / "0" / "offsets" / f"{first}-{last}.jsonl"
        began = cluster.made_anew
        found, error = _read(view, cluster.end)
        if error is not None and error.errno == errno.ESTALE:
            continue  # something behind the range was truncated meanwhile
        expected = [(offset, cluster.truth[TIERED].get(offset)) for offset in range(first, last + 1)]
        count += len(found)
        anew = node in (began, cluster.made_anew)
        if found != expected and not (anew and found == expected[: len(found)]):
            cluster.wrong.append(f"node {node}, {view.name}: {error or found[:1]}, {len(found)} messages")
    return count


def _read(view, end):
    """The messages in a range, or its error. A broker learns from another one's log that a segment was uploaded, and
    removes it from its disk, perhaps before that event is in its own log: until then reading fails."""
    for _ in range(LAG_S * 5):
        try:
            return [(record.offset, record.value) for record in read_jsonl(view.read_bytes())], None
        except OSError as failed:
            error = failed
        if error.errno != errno.EIO or end.wait(0.2):
            break
    return [], error


def run(directory, *, rounds, seed, **_):
    ways = [WAYS[number % len(WAYS)] for number in range(rounds)]
    with ExitStack() as stack:
        cluster = Failovers(directory, seed)
        stack.callback(cluster.close)
        cluster.begin()
        cluster.check()
        for number, node in cluster.replicas.items():
            mount = mounted(node.log_dir, directory / f"mnt{number}", "--tier", str(cluster.tier))
            cluster.mounts[number] = stack.enter_context(mount)
            cluster.followers[number] = Follower(node.log_dir)
            stack.callback(cluster.followers[number].close)
        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        stack.callback(cluster.end.set)
        reading = [pool.submit(read_ranges, cluster, 1 + number % 2, number) for number in range(READERS)]
        for number, way in enumerate(ways):
            told = cluster.round(way)
            cluster.check()
            assert not cluster.wrong, cluster.wrong[:3]
            for follower in cluster.followers.values():
                wait_for(f"what {PLAIN} holds", lambda: follower.has(cluster.truth[PLAIN]))  # noqa: B023
            yield f"round {number}, {way}: {told}; {cluster.safe} messages"
        assert "unclean" not in ways or any(follower.notes for follower in cluster.followers.values())
        cluster.end.set()
        read = sum(future.result() for future in reading)
        assert not cluster.wrong, cluster.wrong[:3]
        yield f"{read} messages read, nothing skipped, doubled or made up"
        overlaps = cluster.overlaps()
        # Not only what was uploaded again because nobody knew that it was there.
        assert "unclean" not in ways or any(one.end_offset != other.end_offset for one, other in overlaps)
        yield f"{len(overlaps)} pairs of uploads have some of the same offsets"
