"""A real broker starts on what `kafkafs revive` makes of dead directories and of backups, and serves all of it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import BROKER_VERSION, OLDER_VERSION, Broker, on_broker, requires_kafka, requires_older_kafka
from tests.interop.reviving import (
    AUTHORIZER,
    Expected,
    RevivedBroker,
    asked,
    configured,
    group_continues,
    left_open,
    port_pair,
    producers_write_on,
    read_by_java,
    read_by_share_group,
    revived,
    second_start_is_clean,
    served_as_expected,
    topic_ids,
    transacted,
)
from tests.support.commands import output_of, run
from tests.support.tiers import TIERS, golden_of, partitions, tier_options
from tests.support.waiting import wait_for

pytestmark = on_broker

# A real broker starts on what `kafkafs revive` makes of the directories of a dead one, and serves all of it.

ROOT = Path(__file__).resolve().parent.parent.parent

KEEP = {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1}
TOPICS = {"orders": 3, "clicks": 1, "state": 1, "payments": 2}
START_MS = 1_763_683_200_000


@dataclass
class Dead:
    """The directory of a broker that was shut down, one that was killed, and what the broker served before."""

    version: str
    clean: Path
    killed: Path
    expected: Expected


def messages(seed, count, *, keys=40):
    rng = random.Random(seed)
    return [
        Message(
            rng.randbytes(rng.randrange(300)),
            None if rng.random() < 0.2 else b"key-%d" % rng.randrange(keys),
            (("h", rng.randbytes(4)), ("null", None)) if rng.random() < 0.5 else (),
            START_MS + seed * 1000 + number,
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def dead(request, tmp_path_factory):
    version = getattr(request, "param", BROKER_VERSION)
    root = tmp_path_factory.mktemp("dead")
    config = {"offsets.topic.num.partitions": "7", "transaction.state.log.num.partitions": "3"}
    broker = Broker(root / "broker", config, version=version)
    try:
        client = Client(broker.start().address)
        client.create_topic("orders", 3, {**KEEP, "internal.segment.bytes": 16_000, "index.interval.bytes": 1024})
        client.create_topic("clicks", 1, {**KEEP, "compression.type": "zstd"})
        client.create_topic("state", 1, {**KEEP, "cleanup.policy": "compact", "internal.segment.bytes": 20_000})
        client.create_topic("payments", 2, KEEP)
        for partition in range(3):
            client.produce("orders", messages(partition, 400 - 100 * partition), partition, batch=20)
        client.delete_records("orders", 1, 123)
        client.produce("clicks", messages(7, 200))
        client.produce("state", [one for one in messages(8, 300) if one.key is not None], batch=10)
        client.transactions("payments", [(True, messages(20, 5)), (False, messages(21, 5)), (True, messages(22, 3))])
        client.commit("billing", "orders", 0, 250)
        client.commit("shipping", "clicks", 0, 17)
        left_open(client, "payments", messages(23, 4), 1, "unfinished")
        client.produce("payments", messages(24, 3), 1)
        expected = Expected(client, TOPICS)
        broker.kill()
        killed = root / "killed"
        shutil.copytree(broker.log_dir, killed)
        # In a later epoch than the first.
        assert read_by_java(Client(broker.start().address), "java", "clicks", 60) == list(range(60))
        broker.stop()
        yield Dead(version, broker.log_dir, killed, expected)
    finally:
        broker.kill()


# Also on a broker of the oldest version that `kafkafs doctor` knows.
with_an_older_broker = pytest.mark.parametrize(
    "dead",
    [BROKER_VERSION, pytest.param(OLDER_VERSION, marks=[pytest.mark.nightly, requires_older_kafka])],
    indirect=True,
)


def sound(log_dir):
    """kafkafs itself finds nothing wrong."""
    found = verify_log_dir(log_dir)
    assert not [one for one in found if one.severity is Severity.FINDING]


def state_of(directory):
    """Everything about the files that a reader must not change."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns)
    return found


def serves(broker, expected, *, groups=True, transactional_id="tx"):
    """The whole check of a revived directory."""
    sound(broker.log_dir)
    try:
        client = Client(broker.start().address)
        served_as_expected(client, expected)
        if groups:
            group_continues(client, "billing", "orders", 0, 250)
            group_continues(client, "shipping", "clicks", 0, 17)
        producers_write_on(client, "orders", 2, transactional_id)
        second_start_is_clean(broker)
    finally:
        broker.kill()
    sound(broker.log_dir)


def without_metadata(source, target):
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__cluster_metadata-0", "bootstrap.checkpoint"))
    return target


@requires_kafka
@with_an_older_broker
def test_a_whole_directory(dead, tmp_path):
    """With its metadata log: features, ids, counts and configurations are those of the cluster."""
    before = state_of(dead.clean)
    broker, told = revived(tmp_path, [dead.clean], version=dead.version)
    assert state_of(dead.clean) == before
    by_name = {one["topic"]: one for one in told["topics"]}
    assert by_name["__consumer_offsets"]["partitions"] == 7
    assert by_name["state"]["config"]["cleanup.policy"] == "compact"
    assert not [note for note in told["notes"] if "retention" in note or "features" in note]
    serves(broker, dead.expected)


@pytest.mark.nightly
@requires_kafka
def test_a_directory_without_its_metadata_log(dead, tmp_path):
    """The numbers of partitions of the coordinators' topics are found from their keys; links instead of copies."""
    source = without_metadata(dead.clean, tmp_path / "source")
    shutil.rmtree(source / "orders-1")
    broker, told = revived(tmp_path, [source], "--link", "--config", "state:cleanup.policy=compact")
    assert {one["topic"]: one["partitions"] for one in told["topics"]} == {
        "__consumer_offsets": 7, "__transaction_state": 3, **TOPICS,
    }  # fmt: skip
    assert sum(one["linked_bytes"] for one in told["partitions"]) > 0
    assert next(one for one in told["topics"] if one["topic"] == "orders")["missing"] == [1]
    assert any("keeps everything" in note for note in told["notes"])
    contents = {path: path.read_bytes() for path in source.glob("*/*.log")}
    expected = dead.expected
    gone = ("orders", 1)
    here = Expected.__new__(Expected)
    here.offsets = {**expected.offsets, gone: (0, 0)}
    here.records = {key: value if key[0] != gone else [] for key, value in expected.records.items()}
    try:
        assert read_by_java(Client(broker.start().address), "java", "clicks", 140) == list(range(60, 200))
    finally:
        broker.stop()
    serves(broker, here)
    assert {path: path.read_bytes() for path in contents} == contents  # the broker wrote to none of them


@pytest.mark.nightly
@requires_kafka
@with_an_older_broker
@pytest.mark.parametrize("with_ids", [True, False])
def test_bare_partition_directories(dead, tmp_path, with_ids):
    """Nothing but the segments of some partitions: no checkpoint, no metadata, perhaps no partition.metadata."""
    bare = tmp_path / "rescued"
    for path in dead.clean.iterdir():
        if path.is_dir() and path.name != "__cluster_metadata-0":
            shutil.copytree(path, bare / path.name)
            if not with_ids:
                (bare / path.name / "partition.metadata").unlink()
    broker, told = revived(tmp_path, sorted(bare.iterdir()), version=dead.version)
    ids = {one["topic"]: one["topic_id"] for one in told["topics"]}
    named = (dead.clean / "orders-0" / "partition.metadata").read_text()
    assert (ids["orders"] in named) == with_ids
    try:  # committed offsets name the topic's id, which is a new one without partition.metadata
        assert read_by_java(Client(broker.start().address), "java", "clicks", 140) == list(range(60, 200))
    finally:
        broker.stop()
    serves(broker, dead.expected)


@requires_kafka
@with_an_older_broker
def test_a_killed_and_damaged_directory(dead, tmp_path):
    """Torn tails are left out; damage is refused, and salvaged on request: everything around it is served."""
    source = without_metadata(dead.killed, tmp_path / "source")
    with (source / "clicks-0" / f"{0:020}.log").open("ab") as log:
        log.write(b"\0\0\0\0\0\0\0\xff torn")
    segments = sorted((source / "orders-0").glob("*.log"))
    position = segments[1].stat().st_size // 2
    with segments[1].open("r+b") as log:
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ 0x55]))
    refused = run("revive", source, "--to", tmp_path / "refused")
    assert refused.exit_code == 4
    assert "salvage" in refused.stderr
    assert str(segments[1]) in refused.stderr
    assert not (tmp_path / "refused").exists()
    assert not (tmp_path / "refused.reviving").exists()
    broker, told = revived(tmp_path, [source], "--salvage", version=dead.version)
    assert [one["partition"] for one in told["partitions"] if one["salvaged"]] == [0]
    assert any("torn" in note or "no whole batches" in note for note in told["notes"])
    try:
        client = Client(broker.start().address)
        for place, offsets in dead.expected.offsets.items():
            got = client.consume(*place)
            wanted = dead.expected.records[place, False]
            if place == ("orders", 0):
                assert client.offsets(*place) == offsets
                kept = {one.offset: one for one in got}
                lost = [one for one in wanted if one.offset not in kept]
                assert 0 < len(lost) <= 20  # one batch
                wanted = [one for one in wanted if one.offset in kept]
            assert got == wanted
        group_continues(client, "billing", "orders", 0, 250)
        producers_write_on(client, "orders", 0, "tx")
        second_start_is_clean(broker)
    finally:
        broker.kill()


@pytest.mark.nightly
@requires_kafka
def test_without_transactions(dead, tmp_path):
    """Where the coordinator's topic is lost, an open transaction would hold back committed messages for ever."""
    source = without_metadata(dead.clean, tmp_path / "source")
    broker, told = revived(tmp_path, [source], "--without-transactions")
    aborted = {(one["topic"], one["partition"]): one["aborted_transactions"] for one in told["partitions"]}
    assert aborted["payments", 1] == 1
    assert sum(aborted.values()) == 1
    assert "__transaction_state" not in {one["topic"] for one in told["topics"]}
    try:
        client = Client(broker.start().address)
        start, end = dead.expected.offsets["payments", 1]
        assert client.offsets("payments", 1) == (start, end + 1)  # the marker
        uncommitted = dead.expected.records[("payments", 1), False]
        assert client.consume("payments", 1) == uncommitted
        assert client.consume("payments", 1, committed=True) == uncommitted[4:]
        assert not dead.expected.records[("payments", 1), True]
        producers_write_on(client, "payments", 1, "unfinished")
        second_start_is_clean(broker)
    finally:
        broker.kill()


@pytest.mark.nightly
@requires_kafka
def test_old_messages_are_not_removed(dead, tmp_path):
    """Messages of 2025, whose retention nobody knows, outlive the broker's retention."""
    source = without_metadata(dead.clean, tmp_path / "source")
    quick = {"log.initial.task.delay.ms": "500", "log.retention.check.interval.ms": "500", "log.retention.ms": "1000"}
    broker, _ = revived(tmp_path, [source], "orders", config=quick)
    try:
        client = Client(broker.start().address)
        client.create_topic("young", 1, {"retention.ms": "1000", "internal.segment.bytes": 2000})
        client.produce("young", messages(1, 100), batch=5)
        wait_for("retention", lambda: client.offsets("young")[0] >= 80)
        for partition in range(3):
            assert client.offsets("orders", partition) == dead.expected.offsets["orders", partition]
    finally:
        broker.kill()


@pytest.mark.nightly
@requires_kafka
def test_the_page_about_dead_brokers(dead, tmp_path):
    """The commands of examples/dead-broker.md, in order, on the disk of a killed broker whose metadata log is lost."""
    place = tmp_path / "var"
    place.mkdir()
    without_metadata(dead.killed, place / "kafka")
    page = (ROOT / "examples" / "dead-broker.md").read_text()
    commands = [line for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 7
    port = port_pair()
    for command in commands:
        words = shlex.split(command.replace("/var/", f"{place}/").replace("orders/3", "orders/2"))
        if words[0] == "kafka-server-start.sh":
            log_dir = Path(words[1]).parent
            assert Path(words[1]).name == "server.properties"
            broker = RevivedBroker(tmp_path / "broker", log_dir, port)
            try:
                served_as_expected(Client(broker.start().address), dead.expected)
                broker.stop()
                assert broker.complaints() == []
            finally:
                broker.kill()
            continue
        assert words.pop(0) == "kafkafs"
        if words[0] == "revive":
            words += ["--listener", f"127.0.0.1:{port}"]
        result = run(*words)
        lost = words[0] == "doctor" and words[1] == f"{place}/kafka"  # the only finding: the metadata
        assert result.exit_code == (1 if lost else 0), result.output
        assert ("metadata-lost" in result.stdout) == lost
    count = sum(len(dead.expected.records[("orders", number), False]) for number in range(3))
    assert output_of("count", place / "before", "orders").split()[-1] == str(count).encode()  # TIME is after them


# A backup that `kafkafs revive` restores is the cluster that was.
#
# Topic ids, features, transactional ids, groups of the newer protocols, ACLs, SCRAM credentials, quotas and dynamic
# configuration: Kafka's own tools say so before and after.

GROUP, SHARE_GROUP, TRANSACTIONAL_ID = "g-848", "g-share", "java-tx"


@dataclass
class Old:
    """The directory of the cluster, stopped, and what Kafka's tools said of it before. `said`: by question."""

    directory: Path
    topic_id: str
    said: dict[str, list[str]]


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    config = {
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **AUTHORIZER,
    }
    broker = Broker(tmp_path_factory.mktemp("old"), config)
    try:
        address = broker.start().address
        client = Client(address)
        client.create_topic("t", 1, {"retention.ms": -1})
        client.produce("t", [Message(b"%d" % number) for number in range(40)])
        configured(address, GROUP, SHARE_GROUP, "t")
        transacted(address, 5, "t", TRANSACTIONAL_ID)
        assert read_by_java(Client(address), GROUP, "t", 10, protocol="consumer") == list(range(10))
        assert read_by_share_group(address, SHARE_GROUP, "t", 7) == list(range(7))
        said, topic_id = asked(address), topic_ids(address)["t"]
        broker.stop()
        yield Old(broker.log_dir, topic_id, said)
    finally:
        broker.kill()


def goes_on(broker, old):
    """Clients of all kinds go on where they stopped, and the tools say what they said before."""
    try:
        address = broker.start().address
        assert topic_ids(address)["t"] == old.topic_id
        assert asked(address) == old.said
        assert read_by_java(Client(address), GROUP, "t", 3, protocol="consumer") == [10, 11, 12]
        assert read_by_share_group(address, SHARE_GROUP, "t", 3) == [7, 8, 9]
        transacted(address, 5, "t", TRANSACTIONAL_ID)
        second_start_is_clean(broker)
    finally:
        broker.kill()


@pytest.mark.nightly
@requires_kafka
def test_from_a_backup(old, tmp_path):
    output_of("mirror", old.directory, tmp_path / "copy", "--manifest", tmp_path / "manifest.json")
    assert (tmp_path / "copy" / "bootstrap.checkpoint").stat().st_mode & 0o777 == 0o600
    broker, told = revived(tmp_path, [tmp_path / "copy"], config=AUTHORIZER)
    assert not [note for note in told["notes"] if "no source tells" in note]
    goes_on(broker, old)


@pytest.mark.nightly
@requires_kafka
def test_without_metadata_the_data_decide_the_features(old, tmp_path):
    rest = tmp_path / "rest"
    shutil.copytree(old.directory, rest, ignore=shutil.ignore_patterns("__cluster_metadata-0", "bootstrap.checkpoint"))
    failed = run("revive", rest, "--to", tmp_path / "never", "--release", "4.1")
    assert failed.exit_code == 4
    assert "share.version" in failed.stderr
    broker, told = revived(tmp_path, [rest], config=AUTHORIZER)
    levels = {"metadata.version": 29, "transaction.version": 2, "group.version": 1, "share.version": 1}
    assert told["features"] == levels
    assert [note for note in told["notes"] if "no source tells" in note]
    try:
        address = broker.start().address
        assert read_by_java(Client(address), GROUP, "t", 3, protocol="consumer") == [10, 11, 12]
        assert read_by_share_group(address, SHARE_GROUP, "t", 3) == [7, 8, 9]
        transacted(address, 5, "t", TRANSACTIONAL_ID)
        second_start_is_clean(broker)
    finally:
        broker.kill()


@pytest.mark.nightly
@requires_kafka
def test_without_security(old, tmp_path):
    told = json.loads(output_of("revive", old.directory, "--to", tmp_path / "new", "--without-security", "--json"))
    assert [note for note in told["notes"] if note.startswith("ACLs: 0 of 1 carried over")]
    assert b"alice" not in (tmp_path / "new" / "bootstrap.checkpoint").read_bytes().replace(b"user\x06alice", b"")


# `kafkafs revive --tier`: a broker without tiered storage serves all that the tiered one did.


@pytest.mark.nightly
@requires_kafka
@pytest.mark.timeout(600)
def test_a_broker_without_tiering_serves_all(tmp_path):
    broker, told = revived(tmp_path, [TIERS / "log"], *tier_options("tier-aiven-enc"))
    ends = {(one["topic"], one["partition"]): one["log_end_offset"] for one in told["partitions"]}
    broker.start()
    try:
        client = Client(broker.address)
        for tp in partitions():
            start, end = client.offsets(tp.topic, tp.partition)
            assert (start, end) == (517 if tp.topic == "cut" else 0, ends[tp.topic, tp.partition])
            for isolation in ("read_uncommitted", "read_committed"):
                got = client.consume(tp.topic, tp.partition, committed=isolation == "read_committed")
                assert got == golden_of(tp, isolation), (tp, isolation)
        assert "remote.storage.enable" not in client.topic_config("gone")
        assert broker.complaints() == []
    finally:
        broker.stop()


# A backup of a broker that is written to, cut at one moment, and restored into another broker.

BACKUP_TOPICS = {"cut": "CreateTime", "cut-append": "LogAppendTime"}
PARTITIONS = 2
TOGETHER = 5  # messages that a producer sends at once to a partition


class Writing:
    """A producer in a thread of its own. `acknowledged`: by topic and partition, the timestamp of its latest message
    that the broker has."""

    def __init__(self, address, number, stop):
        self.acknowledged = {}
        self._address, self._number, self._stop = address, number, stop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self):
        codec = (None, "gzip", "lz4", None)[self._number % 4]
        async with AIOKafkaProducer(
            bootstrap_servers=self._address, compression_type=codec, linger_ms=2, enable_idempotence=True
        ) as producer:
            count = 0
            while not self._stop.is_set():
                for topic in BACKUP_TOPICS:
                    for partition in range(PARTITIONS):
                        sent = []
                        for _ in range(TOGETHER):
                            value, headers = b"%d of %d" % (count, self._number), [("n", b"%d" % count)]
                            sent.append(await producer.send(topic, value, b"key", partition, headers=headers))
                            count += 1
                        told = await asyncio.gather(*sent)
                        self.acknowledged[topic, partition] = max(one.timestamp for one in told)

    def join(self):
        self._thread.join()


@pytest.fixture
def writing(client):
    """Four producers that write to every partition until the end of the test."""
    for topic, kind in BACKUP_TOPICS.items():
        client.create_topic(topic, PARTITIONS, {"message.timestamp.type": kind, "internal.segment.bytes": 100_000})
    stop = threading.Event()
    producers = [Writing(client.address, number, stop) for number in range(4)]
    yield producers
    stop.set()
    for producer in producers:
        producer.join()


@requires_kafka
def test_a_consistent_cut_is_restored(broker, client, writing, tmp_path):
    copy, manifest = tmp_path / "copy", tmp_path / "m.json"
    everywhere = [(topic, partition) for topic in BACKUP_TOPICS for partition in range(PARTITIONS)]

    def all_are_past(moment):
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
        for topic, kind in BACKUP_TOPICS.items():
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
