"""A real broker starts on what `kafkafs revive` makes of dead directories and of backups, and serves all of it."""

import asyncio
import json
import random
import re
import shlex
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer

from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop import reviving
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding
from tests.interop.client import Client, Message
from tests.interop.clusters import files_of
from tests.interop.kafka import BROKER_VERSION, Broker, on_broker, requires_kafka
from tests.support.commands import output_of, run
from tests.support.fixtures import ROOT
from tests.support.tiers import TIERS, golden_of, partitions, tier_options
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, on_broker]

KEEP = {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1}
TOPICS = {"orders": 3, "clicks": 1, "state": 1, "payments": 2}
START_MS = 1_763_683_200_000


def messages(seed, count):
    rng = random.Random(seed)
    return [
        Message(
            rng.randbytes(rng.randrange(300)),
            None if rng.random() < 0.2 else b"key-%d" % rng.randrange(40),
            (("h", rng.randbytes(4)), ("null", None)) if rng.random() < 0.5 else (),
            START_MS + seed * 1000 + number,
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    """The directory of a broker that was shut down, one that was killed, and what the broker served before."""
    root = tmp_path_factory.mktemp("dead")
    config = {"offsets.topic.num.partitions": "7", "transaction.state.log.num.partitions": "3"}
    with Broker(root / "broker", config) as broker:
        client = Client(broker.start().address)
        client.create_topic("orders", 3, {**KEEP, "internal.segment.bytes": 16_000, "index.interval.bytes": 1024})
        client.create_topic("clicks", 1, {**KEEP, "compression.type": "zstd"})
        client.create_topic("state", 1, {**KEEP, "cleanup.policy": "compact", "internal.segment.bytes": 20_000})
        client.create_topic("payments", 2, KEEP)
        for partition in range(3):
            client.produce("orders", messages(partition, 400 - 100 * partition), partition, batch=20)
        client.delete_records("orders", 1, 123)
        client.produce("clicks", messages(7, 200))
        client.produce("state", [message for message in messages(8, 300) if message.key is not None], batch=10)
        client.transactions("payments", [(True, messages(20, 5)), (False, messages(21, 5)), (True, messages(22, 3))])
        client.commit("billing", {("orders", 0): 250})
        client.commit("shipping", {("clicks", 0): 17})
        reviving.left_open(client, "payments", messages(23, 4), 1, "unfinished")
        client.produce("payments", messages(24, 3), 1)
        places = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
        expected = {place: reviving.served(client, place) for place in places}
        broker.kill()
        killed = root / "killed"
        shutil.copytree(broker.log_dir, killed)
        # In a later epoch than the first.
        assert reviving.read_by_java(Client(broker.start().address), "java", "clicks", 60) == list(range(60))
        broker.stop()
        yield SimpleNamespace(clean=broker.log_dir, killed=killed, expected=expected)


def is_sound(log_dir):
    """kafkafs itself finds nothing wrong."""
    findings = [finding for finding in verify_log_dir(log_dir) if finding.severity is Severity.FINDING]
    assert findings == []


def serves(broker, expected):
    """The whole check of a revived directory."""
    is_sound(broker.log_dir)
    with broker:
        client = Client(broker.start().address)
        reviving.served_as_expected(client, expected)
        reviving.group_continues(client, "billing", "orders", 0, 250)
        reviving.group_continues(client, "shipping", "clicks", 0, 17)
        reviving.producers_write_on(client, "orders", 2, "tx")
        reviving.second_start_is_clean(broker)
    is_sound(broker.log_dir)


def test_a_whole_directory(dead, tmp_path):
    """With its metadata log: features, ids, counts and configurations are those of the cluster."""
    before = files_of([dead.clean])
    broker, told = reviving.revived(tmp_path, [dead.clean])
    assert files_of([dead.clean]) == before
    by_name = {topic["topic"]: topic for topic in told["topics"]}
    assert by_name["__consumer_offsets"]["partitions"] == 7
    assert by_name["state"]["config"]["cleanup.policy"] == "compact"
    assert not [note for note in told["notes"] if "retention" in note or "features" in note]
    serves(broker, dead.expected)


@pytest.mark.nightly
@pytest.mark.parametrize("with_ids", [True, False])
def test_bare_partition_directories(dead, tmp_path, with_ids):
    """Nothing but the segments of some partitions: no checkpoint, no metadata, perhaps no partition.metadata. The
    numbers of partitions of the coordinators' topics are found from their keys; links instead of copies. The broker's
    retention runs, but messages of 2025 in topics whose retention nobody knows outlive it."""
    bare = tmp_path / "rescued"
    for path in dead.clean.glob("*-*/"):
        if path.is_dir() and path.name not in ("__cluster_metadata-0", "orders-1"):
            shutil.copytree(path, bare / path.name)
            if not with_ids:
                (bare / path.name / "partition.metadata").unlink()
    options = ("--link", "--config", "state:cleanup.policy=compact")
    quick = {"log.initial.task.delay.ms": "500", "log.retention.check.interval.ms": "500", "log.retention.ms": "1000"}
    broker, told = reviving.revived(tmp_path, sorted(bare.iterdir()), *options, config=quick)
    topics = {topic["topic"]: topic for topic in told["topics"]}
    counts = {"__consumer_offsets": 7, "__transaction_state": 3, **TOPICS}
    assert {name: topic["partitions"] for name, topic in topics.items()} == counts
    assert topics["orders"]["missing"] == [1]
    named = (dead.clean / "orders-0" / "partition.metadata").read_text()
    assert (topics["orders"]["topic_id"] in named) == with_ids
    assert sum(partition["linked_bytes"] for partition in told["partitions"]) > 0
    assert any("keeps everything" in note for note in told["notes"])
    contents = {path: path.read_bytes() for path in bare.glob("*/*.log")}
    try:
        client = Client(broker.start().address)
        # Committed offsets name the topic's id, which is a new one without partition.metadata.
        assert reviving.read_by_java(client, "java", "clicks", 140) == list(range(60, 200))
        client.create_topic("young", 1, {"retention.ms": "1000", "internal.segment.bytes": 2000})
        client.produce("young", messages(1, 100), batch=5)
        wait_for("retention", lambda: client.offsets("young")[0] >= 80)
    finally:
        broker.stop()
    serves(broker, {**dead.expected, ("orders", 1): ((0, 0), [], [])})
    assert {path: path.read_bytes() for path in contents} == contents  # the broker wrote to none of them


def test_a_killed_and_damaged_directory(dead, tmp_path):
    """Torn tails are left out; damage is refused, and salvaged on request: everything around it is served."""
    source = reviving.without_metadata(dead.killed, tmp_path / "source")
    with (source / "clicks-0" / f"{0:020}.log").open("ab") as log:
        log.write(b"\0\0\0\0\0\0\0\xff torn")
    damaged = sorted((source / "orders-0").glob("*.log"))[1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0x55
    damaged.write_bytes(data)
    refused = run("revive", source, "--to", tmp_path / "refused")
    assert refused.exit_code == 4
    assert "salvage" in refused.stderr
    assert str(damaged) in refused.stderr
    assert not list(tmp_path.glob("refused*"))
    broker, told = reviving.revived(tmp_path, [source], "--salvage")
    # `state` was compacted; without the metadata its gaps may be losses.
    salvaged = [(part["topic"], part["partition"]) for part in told["partitions"] if part["salvaged"]]
    assert salvaged == [("orders", 0), ("state", 0)]
    assert [note for note in told["notes"] if "clicks" in note and ("torn" in note or "no whole batches" in note)]
    with broker:
        client = Client(broker.start().address)
        for place, (offsets, expected, _) in dead.expected.items():
            got = client.consume(*place)
            if place == ("orders", 0):
                assert client.offsets(*place) == offsets
                kept = {record.offset for record in got}
                assert 0 < len(expected) - len(kept) <= 20  # one batch
                expected = [record for record in expected if record.offset in kept]
            assert got == expected
        reviving.group_continues(client, "billing", "orders", 0, 250)
        reviving.producers_write_on(client, "orders", 0, "tx")
        reviving.second_start_is_clean(broker)


@pytest.mark.nightly
def test_without_transactions(dead, tmp_path):
    """Where the coordinator's topic is lost, an open transaction would hold back committed messages for ever."""
    source = reviving.without_metadata(dead.clean, tmp_path / "source")
    broker, told = reviving.revived(tmp_path, [source], "--without-transactions")
    aborted = {(part["topic"], part["partition"]): part["aborted_transactions"] for part in told["partitions"]}
    assert {place: count for place, count in aborted.items() if count} == {("payments", 1): 1}
    assert "__transaction_state" not in {topic["topic"] for topic in told["topics"]}
    with broker:
        client = Client(broker.start().address)
        (start, end), uncommitted, committed = dead.expected["payments", 1]
        assert client.offsets("payments", 1) == (start, end + 1)  # the marker
        assert client.consume("payments", 1) == uncommitted
        assert client.consume("payments", 1, committed=True) == uncommitted[4:]
        assert not committed
        reviving.producers_write_on(client, "payments", 1, "unfinished")
        reviving.second_start_is_clean(broker)


@pytest.mark.nightly
def test_the_page_about_dead_brokers(dead, tmp_path):
    """The commands of examples/dead-broker.md, in order, on the disk of a killed broker whose metadata log is lost."""
    place = tmp_path / "var"
    place.mkdir()
    reviving.without_metadata(dead.killed, place / "kafka")
    page = (ROOT / "examples" / "dead-broker.md").read_text()
    commands = [line for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 10
    port = reviving.port_pair()
    for command in commands:
        words = shlex.split(command.replace("/var/", f"{place}/").replace("orders/3", "orders/2"))
        if words[0] == "kafka-server-start.sh":
            log_dir = Path(words[1]).parent
            assert Path(words[1]).name == "server.properties"
            with reviving.RevivedBroker(tmp_path / "broker", log_dir, port) as broker:
                reviving.served_as_expected(Client(broker.start().address), dead.expected)
                broker.stop()
                assert broker.complaints() == []
            continue
        assert words.pop(0) == "kafkafs"
        if words[0] == "revive":
            words += ["--listener", f"127.0.0.1:{port}"]
        result = run(*words)
        lost = words[0] == "doctor" and words[1] == f"{place}/kafka"  # the only finding: the metadata
        assert result.exit_code == (1 if lost else 0), result.output
        assert ("metadata-lost" in result.stdout) == lost
    count = sum(len(dead.expected["orders", number][1]) for number in range(3))
    assert output_of("count", place / "before", "orders").split()[-1] == str(count).encode()  # TIME is after them


@pytest.mark.nightly
@pytest.mark.skipif(BROKER_VERSION < "4.3", reason="the log is of a 4.3.0, whose metadata version older brokers lack")
@pytest.mark.timeout(600)
def test_a_broker_without_tiering_serves_all(tmp_path):
    """`kafkafs revive --tier`: a broker without tiered storage serves all that the tiered one did."""
    broker, told = reviving.revived(tmp_path, [TIERS / "log"], *tier_options("tier-aiven-enc"))
    ends = {(part["topic"], part["partition"]): part["log_end_offset"] for part in told["partitions"]}
    with broker:
        client = Client(broker.start().address)
        for tp in partitions():
            start = 517 if tp.topic == "cut" else 0
            assert client.offsets(tp.topic, tp.partition) == (start, ends[tp.topic, tp.partition])
            for isolation in ("read_uncommitted", "read_committed"):
                got = client.consume(tp.topic, tp.partition, committed=isolation == "read_committed")
                assert got == golden_of(tp, isolation), (tp, isolation)
        assert "remote.storage.enable" not in client.topic_config("gone")
        broker.stop()
        assert broker.complaints() == []


# A backup of a broker that is written to, cut at one moment, and restored into another broker.

CUT = [(topic, partition) for topic in ("cut", "cut-append") for partition in range(2)]


def create_cut_topics(client, segment_bytes):
    for topic, kind in (("cut", "CreateTime"), ("cut-append", "LogAppendTime")):
        client.create_topic(topic, 2, {"message.timestamp.type": kind, "internal.segment.bytes": segment_bytes})


async def write(address, codec, acknowledged, end):
    """Five messages at once for each partition, until the end. `acknowledged` gets, by topic and partition, the
    timestamp of the latest message that the broker has."""
    options = {"compression_type": codec, "linger_ms": 2, "enable_idempotence": True}
    async with AIOKafkaProducer(bootstrap_servers=address, **options) as producer:
        while not end.is_set():
            for topic, partition in CUT:
                headers = [("codec", str(codec).encode())]
                sent = [await producer.send(topic, b"%d" % n, b"key", partition, headers=headers) for n in range(5)]
                told = await asyncio.gather(*sent)
                acknowledged[topic, partition] = max(metadata.timestamp for metadata in told)


@pytest.fixture
def writing(client):
    """What four producers have got acknowledged, that write to every partition until the end of the test."""
    create_cut_topics(client, 100_000)
    producers = [(codec, dict.fromkeys(CUT, 0)) for codec in (None, "gzip", "lz4", "snappy")]
    end = threading.Event()
    with ThreadPoolExecutor(len(producers)) as pool:
        writers = [pool.submit(asyncio.run, write(client.address, *producer, end)) for producer in producers]
        yield [acknowledged for _, acknowledged in producers]
        end.set()
    assert not any(writer.result() for writer in writers)


def test_a_consistent_cut_is_restored(broker, client, writing, tmp_path):
    backup, manifest = tmp_path / "copy", tmp_path / "m.json"

    def wait_until_all_are_past(moment):
        for acknowledged in writing:
            wait_for("a producer", lambda: min(acknowledged.values()) > moment)  # noqa: B023 - called at once

    def mirrored():
        """A mirror up to this moment, when everybody has written something later; the moment, and its report."""
        moment = int(time.time() * 1000)
        wait_until_all_are_past(moment)
        options = ("--until", moment, "--manifest", manifest, "--json")
        return moment, json.loads(output_of("mirror", broker.log_dir, backup, "cut*", *options))

    wait_until_all_are_past(0)
    mirrored()
    moment, told = mirrored()  # an increment, while they write on
    assert output_of("verify", backup, "--manifest", manifest) == b"nothing wrong\n"

    with Broker(tmp_path / "other") as other:
        create_cut_topics(Client(other.start().address), 50_000)
        other.stop()
        output_of("mirror", backup, other.log_dir)
        assert output_of("verify", other.log_dir, "cut*", "--manifest", manifest) == b"nothing wrong\n"
        dumps_without_a_finding([other.log_dir / f"{topic}-{partition}" for topic, partition in CUT])
        restored = Client(other.start().address)
        adopted_as_it_is(other)
        for row in told["partitions"]:
            place, end, mixed = (row["topic"], row["partition"]), row["log_end_offset"], row["mixed_batch"]
            here = restored.consume(*place)
            assert here == client.consume(*place, end=end)
            # Everything of that moment is in it, and nothing after the last batch that has some of it.
            later = client.consume(*place, start=end)
            assert later
            assert all(record.timestamp > moment for record in later)
            last = max(record.offset for record in here if record.timestamp <= moment)
            if mixed is None:
                assert end == last + 1
            else:
                assert mixed["base_offset"] <= last < mixed["last_offset"] == end - 1
                batch = [record for record in here if record.offset >= mixed["base_offset"]]
                assert mixed["later"] == sum(record.timestamp > moment for record in batch)
        restored.produce("cut", [Message(b"after")])
        assert restored.consume("cut")[-1].value == b"after"
        other.stop()
        assert other.complaints() == []
        assert output_of("verify", other.log_dir, "cut*", "--manifest", manifest) == b"nothing wrong\n"
