"""A real broker on what our cleaner left: it serves it and finds nothing to clean; and every step of a replacement that
was interrupted becomes the same log with its recovery as with ours."""

import random
import shutil

import pytest

from storage.append import swap
from storage.append.swap import CleanedSegment
from storage.compaction.partition_compaction import compact_partition
from storage.directory.owned_dir import OwnedDir
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is
from tests.interop.client import Client, Message
from tests.interop.kafka import on_broker, requires_kafka
from tests.support.faults import Crash, FaultyDisk
from tests.support.readers import open_log, read_all, table_of
from tests.support.record_headers import batches
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, on_broker]

SMALL = {"cleanup.policy": "compact", "internal.segment.bytes": 20_000, "index.interval.bytes": 500}
OURS = TopicPartition("ours", 0)


SETTINGS = {"log.cleaner.enable": "false"}  # until a test turns it on


def produce(client):
    """Updates of sixty keys, deletes, every codec, transactions of both ends; then what fills the last segment."""
    dice = random.Random(5)

    def updates(count):
        return [
            Message(None if dice.random() < 0.15 else b"v%d" % n * dice.randrange(1, 30), b"k%d" % dice.randrange(60))
            for n in range(count)
        ]

    for codec in (None, "gzip", "snappy", "lz4", "zstd", None):
        client.produce("ours", updates(150), compression_type=codec)
    client.transactions("ours", [(n % 3 != 1, updates(40)) for n in range(6)])
    client.produce("ours", [Message(b"x" * 400, b"last%d" % n) for n in range(80)], batch=5)


@pytest.mark.nightly
def test_the_broker_finds_nothing_to_do(own_broker):
    client = Client(own_broker.start().address)
    client.create_topic("ours", 1, {**SMALL, "min.cleanable.dirty.ratio": "0.001"})
    produce(client)
    own_broker.stop()
    owned = OwnedDir.open(own_broker.log_dir)
    before = len(read_all(owned.log(OURS).snapshot()))
    result = compact_partition(owned, OURS)
    assert result.is_complete
    for path in result.files:
        owned.disk.unlink(path)
    assert owned.close().clean
    assert not verify_log_dir(own_broker.log_dir, [OURS])
    snapshot = LogDir.open_read_only(own_broker.log_dir).log(OURS).snapshot()
    expected = {isolation: read_all(snapshot, isolation=isolation) for isolation in Isolation}
    assert [len(records) < before / 3 for records in expected.values()] == [True, True]

    own_broker.reconfigure({"log.cleaner.enable": "true"})
    client = Client(own_broker.start().address)
    for isolation, records in expected.items():
        assert client.consume("ours", committed=isolation is Isolation.READ_COMMITTED) == records
    adopted_as_it_is(own_broker)
    # It continues where we stopped, once there are new messages.
    client.produce("ours", [Message(b"y" * 500, b"k%d" % n) for n in range(60)], batch=5)
    begun = f"cleaned log ours-0 (dirty section = [{result.end_offset}, "
    wait_for("a pass of the cleaner from there", lambda: begun in own_broker.log_since_start())
    own_broker.stop()
    findings = verify_log_dir(own_broker.log_dir, [OURS])
    assert {finding.severity for finding in findings} <= {Severity.NOTE}  # what the cleaner was stopped in


def replace(directory, disk):
    """All steps for a group of segments; every other batch of them stays."""
    segments = open_log(directory).snapshot().segments
    sources = segments[1:4]
    base_offset = sources[0].base_offset
    cleaned = CleanedSegment(disk, directory, base_offset, interval_bytes=500)
    for source in sources:
        for batch in list(batches(source.log.path.read_bytes()))[1::2]:
            cleaned.append(batch, table_of(batch))
    cleaned.finish([], sources[-1].log.stat().st_mtime_ns)
    swap.make_ready(disk, directory, base_offset)
    _, removed = swap.replace(disk, directory, sources, tuple(segments))
    for path in removed:
        disk.unlink(path)


def live_files(directory):
    return {path.name: path.read_bytes() for path in directory.glob("0*") if path.suffix != ".snapshot"}


def test_every_step_is_recovered_as_the_broker_recovers_it(own_broker, tmp_path):
    client = Client(own_broker.start().address)
    client.create_topic("whole", 1, SMALL)
    client.produce("whole", [Message(b"v" * 300, b"k%d" % n) for n in range(360)], batch=4)
    own_broker.stop()
    whole = own_broker.log_dir / "whole-0"
    assert len(list(whole.glob("*.log"))) >= 6
    trial = FaultyDisk(shutil.copytree(whole, tmp_path / "trial-0"))
    replace(tmp_path / "trial-0", trial)
    steps = trial.operations
    # While batches are appended only the progress changes, so only the last of these steps is tested.
    first = max(number for number, what in enumerate(steps) if what.startswith("write")) - 1
    topics = {f"s{number}": number for number in range(first, len(steps) + 1)}
    client = Client(own_broker.start().address)
    for topic in topics:
        client.create_topic(topic, 1, SMALL)
    own_broker.stop()

    for topic, number in topics.items():
        directory = own_broker.log_dir / f"{topic}-0"
        topic_id = (directory / "partition.metadata").read_bytes()
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        (directory / "partition.metadata").write_bytes(topic_id)
        try:
            replace(directory, FaultyDisk(directory, stop_at=number))
        except Crash:
            assert number < len(steps)
    states = {frozenset(path.name for path in (own_broker.log_dir / f"{topic}-0").iterdir()) for topic in topics}
    assert len(states) >= 10
    (own_broker.log_dir / ".kafka_cleanshutdown").unlink()
    ours = shutil.copytree(own_broker.log_dir, tmp_path / "recovered")

    client = Client(own_broker.start().address)
    consumed = {topic: client.consume(topic) for topic in topics}
    own_broker.stop()
    owned = OwnedDir.open(ours)
    assert not owned.failures()
    assert owned.close().clean
    assert not verify_log_dir(ours, [TopicPartition(topic, 0) for topic in topics])
    log_dir = LogDir.open_read_only(ours)
    lengths = set()
    for topic, number in topics.items():
        what = f"step {number}: {steps[number] if number < len(steps) else 'the end'}"
        assert read_all(log_dir.log(TopicPartition(topic, 0)).snapshot()) == consumed[topic], what
        mine, theirs = live_files(ours / f"{topic}-0"), live_files(own_broker.log_dir / f"{topic}-0")
        theirs = {name: data for name, data in theirs.items() if not name.endswith(".deleted")}
        assert mine == theirs, what
        lengths.add(len(consumed[topic]))
    assert len(lengths) == 2  # the old messages or the new
