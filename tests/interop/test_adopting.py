"""A real broker on what we wrote: it serves it, repairs nothing, sets nothing aside, and appends after us."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer

from storage.append.appender import Appender
from storage.clock import SystemClock
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import commit_ledger, names
from storage.files.commit_ledger import WriteId
from storage.files.disk import RealDisk
from storage.format.block import Record, RecordColumns
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.staged_writes import commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, faults, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import (
    LATER_VERSION,
    OLDER_VERSION,
    VERSION,
    Broker,
    DidNotStart,
    on_broker,
    requires_kafka,
    requires_later_kafka,
    requires_older_kafka,
)
from tests.support.commands import output_of, process, run
from tests.support.faults import Crash, FaultyDisk
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures
from tests.support.mounted_logs import state_of
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.random_damages import batch_of, hurt, last_offset
from tests.support.record_headers import batches

pytestmark = on_broker

# A real broker on what we wrote: it serves it, repairs nothing, sets nothing aside, and appends after us.

A = TopicPartition("adopted", 0)
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def stopped(tmp_path):
    """A broker with a topic, stopped."""
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic("adopted", 2, {"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
        broker.stop()
        yield broker
        assert broker.complaints() == []
    finally:
        broker.kill()


def append(owned, tp, records):
    outcome = Appender(owned.appendable(tp), clock=owned.clock).append(records)
    assert outcome.error is None


@pytest.mark.nightly
@requires_kafka
def test_every_codec_of_ours_is_read(stopped):
    owned = OwnedDir.open(stopped.log_dir)
    now_ms = owned.clock.now_ms()  # the broker's retention is a week
    written = []
    for codec in CODECS:
        owned.alter_config("adopted", {"compression.type": codec})
        records = [
            Record(b"k%d" % n, codec.encode() + b" %d " % n * 30, ((b"h", None),), now_ms + n) for n in range(500)
        ]
        append(owned, TopicPartition("adopted", 1), records)
        written += records
    assert owned.close().clean
    client = Client(stopped.start().address)
    found = client.consume("adopted", 1)
    assert [(r.key, r.value, r.timestamp) for r in found] == [(r.key, r.value, r.timestamp) for r in written]
    stopped.stop()


# A stopped broker's directory, mounted for writing: its configuration is followed, and the broker continues.

HOUR_MS = 3_600_000
T = TopicPartition("t", 0)
INTERNAL = ("__consumer_offsets-0", "__cluster_metadata-0")
SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500}


@pytest.fixture
def mine(tmp_path):
    """A broker whose own retention does not run."""
    running = Broker(tmp_path / "broker", {"log.initial.task.delay.ms": str(HOUR_MS)})
    try:
        yield running
        assert running.complaints() == []
    finally:
        running.kill()


def commit_offset(address, topic, group):
    """A group that has read to offset 7."""

    async def run():
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            (tp,) = consumer.assignment() or {None}
            while tp is None:
                await consumer.getmany(timeout_ms=200)
                (tp,) = consumer.assignment() or {None}
            await consumer.commit({tp: 7})
        finally:
            await consumer.stop()

    asyncio.run(run())


def internal(log_dir):
    """Everything about the directories that are the brokers' own, times included."""
    return {name: state_of(log_dir / name) for name in INTERNAL}


def bases(log_dir, partition):
    return sorted(int(path.stem) for path in (log_dir / partition).glob("*.log"))


@requires_kafka
@requires_fuse
def test_appended_through_the_mount(mine, tmp_path):
    client = Client(mine.start().address)
    client.create_topic("through", 2, SMALL)
    client.create_topic("kept", 1, {**SMALL, "retention.ms": -1})
    client.create_topic("expiring", 1, {**SMALL, "retention.ms": HOUR_MS})
    long_ago = int(time.time() * 1000) - 30 * 24 * HOUR_MS
    old = [Message(b"%04d" % n + b"." * 300, timestamp=long_ago + n) for n in range(300)]
    for topic in ("kept", "expiring"):
        client.produce(topic, old)
    client.produce("through", [Message(b"theirs %d" % n) for n in range(100)], 0)
    commit_offset(mine.address, "kept", "readers")
    mine.stop()
    before = internal(mine.log_dir)
    assert all(before.values())
    kept = bases(mine.log_dir, "kept-0")
    assert len(bases(mine.log_dir, "expiring-0")) > 3
    assert len(kept) > 3

    ours = [b"ours %d" % n for n in range(3000)]
    keyed = [{"key": f"key {n}", "value": f"keyed {n}", "headers": [["h", "x"]]} for n in range(500)]
    with mounted(mine.log_dir, tmp_path / "mnt", write=True) as mount:
        topic = mount.path / "through"
        with subprocess.Popen(
            ["tee", topic / "0" / "@append"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as tee:
            tee.communicate(b"".join(value + b"\n" for value in ours))
        assert tee.returncode == 0
        with (topic / "@append.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in keyed)
        subprocess.run(["bash", "-c", f"echo one line >> {topic}/0/@append"], check=True, timeout=120)
        assert (topic / "0" / "messages.txt").read_bytes().splitlines()[100:3100] == ours
    run_kafkafs("retain", mine.log_dir)
    assert internal(mine.log_dir) == before
    assert bases(mine.log_dir, "kept-0") == kept
    assert bases(mine.log_dir, "expiring-0")[0] > 0
    assert not faults(mine.log_dir)
    assert len(bases(mine.log_dir, "through-0")) > 2
    dumps_without_a_finding([mine.log_dir / name for name in ("through-0", "through-1", "kept-0", "expiring-0")])

    said = len(mine.log_text())
    client = Client(mine.start().address)
    consumed = {partition: client.consume("through", partition) for partition in (0, 1)}
    adopted_as_it_is(told_since(mine, said))
    values = [record.value for record in consumed[0]]
    keys_of_0 = [record.value for record in consumed[0] if record.key is not None]
    assert values == [b"theirs %d" % n for n in range(100)] + ours + keys_of_0 + [b"one line"]
    found = sorted((record.key, record.value, record.headers) for p in (0, 1) for record in consumed[p] if record.key)
    assert found == sorted((b"key %d" % n, b"keyed %d" % n, ((b"h", b"x"),)) for n in range(500))
    assert {len(consumed[1]), len(keys_of_0)} == {len(consumed[1]), 500 - len(consumed[1])}
    assert [record.value for record in client.consume("kept")] == [message.value for message in old]
    # The broker's own partitioner sends a key where ours did.
    place = {record.key: p for p in (0, 1) for record in consumed[p] if record.key}
    client.produce_keyed("through", [Message(b"again", key=b"key %d" % n) for n in range(40)])
    for p in (0, 1):
        again = client.consume("through", p, start=len(consumed[p]))
        assert all(place[record.key] == p for record in again if record.key is not None)
        consumed[p] += again
    assert sum(record.value == b"again" for p in (0, 1) for record in consumed[p]) == 40
    mine.stop()

    with mounted(mine.log_dir, tmp_path / "mnt", write=True) as mount:
        for p in (0, 1):
            lines_read = (mount.path / "through" / str(p) / "messages.txt").read_bytes().splitlines()
            assert lines_read == [record.value for record in consumed[p]]
        (mount.path / "through" / "1" / "@append").write_bytes(b"and again\n")
    assert not faults(mine.log_dir)
    said = len(mine.log_text())
    client = Client(mine.start().address)
    last = client.consume("through", 1)[-1]
    assert (last.value, last.offset) == (b"and again", len(consumed[1]))
    adopted_as_it_is(told_since(mine, said))
    mine.stop()


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_killed_while_it_writes(mine):
    """kill -9 in mid-write, `kafkafs recover`, then the broker: it has nothing to recover, and finds what we found."""
    client = Client(mine.start().address)
    client.create_topic("t", 1, {**SMALL, "internal.segment.bytes": 2_000_000})
    command = ["kcat", "-P", "-b", mine.address, "-t", "t", "-p", "0", "-z", "lz4"]
    lines = subprocess.Popen(["awk", 'BEGIN { for (;;) printf("line %d %0200d\\n", ++n, n) }'], stdout=subprocess.PIPE)
    kcat = subprocess.Popen(command, stdin=lines.stdout, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while len(list((mine.log_dir / "t-0").glob("*.log"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        mine.kill()
    finally:
        for process in (lines, kcat):
            process.kill()
            process.communicate()
    assert not (mine.log_dir / names.CLEAN_SHUTDOWN).exists()
    run_kafkafs("recover", mine.log_dir)
    assert not faults(mine.log_dir)
    assert not verify_log_dir(mine.log_dir, [T])
    snapshot = LogDir.open_read_only(mine.log_dir).log(T).snapshot()
    found = [block.value(row) for block in read_range(snapshot, 0) for row in range(len(block))]
    assert len(found) > 1000
    before = {path.name: path.read_bytes() for path in (mine.log_dir / "t-0").glob("*.log")}
    said = len(mine.log_text())
    client = Client(mine.start().address)
    assert [record.value for record in client.consume("t")] == found
    adopted_as_it_is(told_since(mine, said))
    assert {path.name: path.read_bytes() for path in (mine.log_dir / "t-0").glob("*.log")} == before
    client.produce("t", [Message(b"after")])
    assert client.consume("t")[-1].offset == len(found)
    mine.stop()


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_each_refuses_while_the_other_holds_the_directory(tmp_path):
    """Both use the same lock, and the one that is refused names its holder."""
    broker = Broker(tmp_path / "broker")
    try:
        broker.start()
        (tmp_path / "mnt").mkdir()
        for command in (["mount", "--write", broker.log_dir, tmp_path / "mnt"], ["recover", broker.log_dir]):
            refused = run_kafkafs(*command, check=False)
            assert refused.returncode == 3
            assert f"held by kafka.Kafka (process {broker.pid})" in refused.stderr.decode()
        broker.stop()
        with mounted(broker.log_dir, tmp_path / "mnt", write=True) as mount:
            with pytest.raises(DidNotStart):
                broker.start()
            assert "Failed to acquire lock on file .lock" in broker.log_text()
            assert b'"read-write"' in (mount.path / "@status.json").read_bytes()
        assert not faults(broker.log_dir)
        broker.start()
        broker.stop()
    finally:
        broker.kill()


# A real broker on what a commit wrote, and on what one left that was killed: of each partition's share it serves all
# or nothing, it is not disturbed by what waits, and what it did not get it gets when we open the directory again.

FEW = TopicPartition("written", 0)
LARGE = TopicPartition("written", 1)  # its share takes several segments
QUERY = "0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c"
SHARES = {FEW: 30, LARGE: 400}


@pytest.fixture
def with_two_partitions(tmp_path):
    """A broker with a topic of two partitions, a message in each; stopped."""
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic("written", 2, {"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
        for partition in range(2):
            client.produce("written", [Message(b"theirs")], partition)
        broker.stop()
        yield broker
        assert broker.complaints() == []
    finally:
        broker.kill()


def values(batch, tp):
    return [b"batch %d message %04d %s" % (batch, n, b"." * 100) for n in range(SHARES[tp])]


def stage(path, batch, disk=None):
    config = LogDir.open_read_only(path).topic_info("written").config
    files = []
    for tp in SHARES:
        writer = StagedFileWriter(
            disk or RealDisk(), path, tp, WriteId(QUERY, batch), config=config, clock=SystemClock()
        )
        share = values(batch, tp)
        for first in range(0, len(share), 15):
            writer.append(RecordColumns.from_records([Record(b"k", value) for value in share[first : first + 15]]))
        staged = writer.finish()
        assert staged is not None
        files.append(staged)
    return files


@pytest.mark.nightly
@requires_kafka
def test_a_broker_serves_what_was_committed(with_two_partitions):
    """It finds nothing to repair, also not in segments that were created at once."""
    owned = OwnedDir.open(with_two_partitions.log_dir)
    assert commit.commit(owned, WriteId(QUERY, 0), stage(with_two_partitions.log_dir, 0)).appended
    assert len(owned.log(LARGE).snapshot().segments) > 2
    assert owned.close().clean
    dumps_without_a_finding([with_two_partitions.log_dir / tp.dir_name for tp in SHARES])
    said = len(with_two_partitions.log_text())
    client = Client(with_two_partitions.start().address)
    for tp in SHARES:
        found = [record.value for record in client.consume(tp.topic, tp.partition)]
        assert found == [b"theirs", *values(0, tp)]
        client.produce(tp.topic, [Message(b"after")], tp.partition)
    adopted_as_it_is(told_since(with_two_partitions, said))
    with_two_partitions.stop()
    assert commit_ledger.read(with_two_partitions.log_dir).queries[QUERY].batch == 0
    assert not verify_log_dir(with_two_partitions.log_dir, list(SHARES))


# When a commit is killed, and which shares a broker serves then: before anything was appended; with a share whose first
# batch has no length yet; with new segments of which some are ready; with all of them ready and none in its place.
Moment = tuple[Callable[[str], bool], dict[TopicPartition, bool]]
MOMENTS = [
    (lambda what: what.startswith("write") and what.endswith(".log"), {FEW: False, LARGE: False}),
    (lambda what: what.startswith("sync") and what.endswith(".log"), {FEW: False, LARGE: False}),
    (lambda what: what.startswith("rename") and what.endswith(".log.swap"), {FEW: True, LARGE: False}),
    (lambda what: what.startswith("rename") and what.endswith(".log"), {FEW: True, LARGE: True}),
]


@requires_kafka
@pytest.mark.parametrize(
    "moments",
    [pytest.param(MOMENTS[2:3], id="some segments ready"), pytest.param(MOMENTS, id="all", marks=pytest.mark.nightly)],
)
def test_a_broker_where_a_commit_was_killed(with_two_partitions, moments):
    expected = {tp: [b"theirs"] for tp in SHARES}
    for batch, (moment, there) in enumerate(moments):
        _killed(with_two_partitions.log_dir, batch, moment)
        client = Client(with_two_partitions.start().address)
        for tp, share in SHARES.items():
            found = [record.value for record in client.consume(tp.topic, tp.partition)]
            wanted = [*expected[tp], *(values(batch, tp) if there[tp] else [])]
            assert found == wanted, f"moment {batch}, {tp}: {len(found)} of {share} more"
            client.produce(tp.topic, [Message(b"theirs again")], tp.partition)
            expected[tp] = [*wanted, b"theirs again", *([] if there[tp] else values(batch, tp))]
        with_two_partitions.stop()
        owned = OwnedDir.open(with_two_partitions.log_dir)
        assert not owned.unfinished
        assert not commit.commit(owned, WriteId(QUERY, batch), stage(with_two_partitions.log_dir, batch)).appended
        assert owned.close().clean
        assert not verify_log_dir(with_two_partitions.log_dir, list(SHARES))
        assert not list(with_two_partitions.log_dir.rglob("*" + names.STAGED_SUFFIX))
    client = Client(with_two_partitions.start().address)
    for tp in SHARES:
        assert [record.value for record in client.consume(tp.topic, tp.partition)] == expected[tp]
    with_two_partitions.stop()


def _killed(path, batch, moment):
    """Leaves the directory as a commit that was killed at a moment after its intent was recorded."""
    disk = FaultyDisk(path)
    owned = OwnedDir.open(path, Opening(), disk=disk)
    files = stage(path, batch, disk)
    begun = False

    def stop(what, _path):
        nonlocal begun
        if begun and moment(what):
            disk.stopped = True
            raise Crash(what)
        begun = begun or what.startswith(f"sync {names.COMMITS}")
        return

    disk.fail = stop
    with pytest.raises(Crash):
        commit.commit(owned, WriteId(QUERY, batch), files)
    owned._logs.abandon()
    with pytest.raises(Crash):
        owned._dir_lock.release()
    if not commit_ledger.read(path).pending:
        pytest.fail("the write was not pending")


# A real broker serves what was salvaged from a damaged log.

TP = TopicPartition("c-lz4", 0)


@pytest.mark.nightly
@requires_kafka
@requires_fixtures
def test_a_broker_serves_what_was_salvaged(tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(FIXTURES / "codecs" / "log" / TP.dir_name, damaged / TP.dir_name)
    for path in (damaged / TP.dir_name).iterdir():
        path.chmod(0o644)
    files = sorted((damaged / TP.dir_name).glob("*.log"))
    lasts = [last_offset(part) for log in files for part in batches(log.read_bytes())]
    (golden,) = (FIXTURES / "codecs" / "golden").glob("c-lz4-0*.jsonl.gz")
    gone = hurt(files, random.Random(7))
    expected = [one for one in read_golden(golden) if batch_of(lasts, one.offset) not in gone]
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic(TP.topic, 1, {"retention.ms": -1, "max.message.bytes": 5_000_000})
        broker.stop()
        told = json.loads(output_of("salvage", damaged, str(TP), "--to", broker.log_dir, "--json"))
        assert told["failed"] == []
        assert told["partitions"][0]["lost"]
        assert not verify_log_dir(broker.log_dir, [TP])
        dumps_without_a_finding([broker.log_dir / TP.dir_name])
        said = len(broker.log_text())
        client = Client(broker.start().address)
        consumed = {one.offset: one for one in client.consume(TP.topic)}
        assert expected
        assert {one.offset: one for one in expected}.items() <= consumed.items()
        adopted_as_it_is(told_since(broker, said))
        client.produce(TP.topic, [Message(b"after")], 0)
        assert client.consume(TP.topic)[-1].value == b"after"
        broker.stop()
        assert broker.complaints() == []
    finally:
        broker.kill()


# Brokers of each version that is named as tested: their logs are read and appended to, and they go on with them.

ALL_CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def loses_nothing(log_dir):
    """What doctor says of a broker that starts on it."""
    return bool(json.loads(run("doctor", log_dir, "--json").stdout)["loses_nothing"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(OLDER_VERSION, marks=requires_older_kafka),
        pytest.param(VERSION, marks=requires_kafka),
        pytest.param(LATER_VERSION, marks=requires_later_kafka),
    ],
)
def test_a_broker_and_kafkafs_take_turns(version, tmp_path):
    broker = Broker(tmp_path, version=version)
    try:
        client = Client(broker.start().address)
        client.create_topic("t", len(ALL_CODECS) + 1, {"retention.ms": -1})
        for partition, codec in enumerate(ALL_CODECS):
            messages = [Message(b"%d of %d" % (number, partition), b"k") for number in range(200)]
            client.produce("t", messages, partition, compression_type=codec)
        client.transactions("t", [(True, [Message(b"committed")]), (False, [Message(b"aborted")])], len(ALL_CODECS))
        broker.stop()
        assert run("verify", broker.log_dir).exit_code == 0
        assert loses_nothing(broker.log_dir)
        for partition in range(len(ALL_CODECS)):
            expected = b"".join(b"%d of %d\n" % (number, partition) for number in range(200))
            assert output_of("cat", broker.log_dir, f"t/{partition}") == expected
        assert (
            output_of("cat", broker.log_dir, f"t/{len(ALL_CODECS)}", "--isolation", "read_committed") == b"committed\n"
        )
        with process("append", broker.log_dir, "t/0", stdin=subprocess.PIPE) as appending:
            assert appending.communicate(b"by kafkafs\n")[1] == b""
        assert appending.returncode == 0
        broker.start()
        client.produce("t", [Message(b"after it")], 0)
        values = [record.value for record in client.consume("t", 0)]
        assert values[-2:] == [b"by kafkafs", b"after it"]
        assert len(values) == 202
        broker.stop()
        assert broker.complaints() == []
        assert output_of("cat", broker.log_dir, "t/0").splitlines()[-2:] == [b"by kafkafs", b"after it"]
    finally:
        broker.kill()
