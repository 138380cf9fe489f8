"""A real broker on what our cleaner left: it serves it and finds nothing to clean; and every step of a replacement that
was interrupted becomes the same log with its recovery as with ours."""

from __future__ import annotations

import random
import shutil

import pytest

from storage.append import swap
from storage.append.swap import CleanedSegment
from storage.compaction.cleaner import compact_partition
from storage.directory.owned_dir import OwnedDir
from storage.files.names import FileKind, FileState, parse_segment_file
from storage.format.batches import BatchTable, scan
from storage.log.log_dir import LogDir
from storage.log.read_only_log import ReadOnlyLog
from storage.types import Isolation, TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, on_broker, requires_kafka
from tests.support.faults import Crash, FaultyDisk
from tests.support.readers import read_all
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, *on_broker]

SMALL = {"cleanup.policy": "compact", "internal.segment.bytes": 20_000, "index.interval.bytes": 500}
OURS = TopicPartition("ours", 0)


@pytest.fixture
def own(tmp_path):
    """A broker whose own cleaner is off until a test turns it on."""
    running = Broker(tmp_path / "broker", {"log.cleaner.enable": "false"})
    try:
        running.start()
        yield running
        assert running.complaints() == []
    finally:
        running.kill()


def produce(client, topic):
    """Updates of sixty keys, deletes, every codec, transactions of both ends; then what fills the last segment."""
    dice = random.Random(5)

    def updates(count):
        return [
            Message(None if dice.random() < 0.15 else b"v%d" % n * dice.randrange(1, 30), b"k%d" % dice.randrange(60))
            for n in range(count)
        ]

    for codec in (None, "gzip", "snappy", "lz4", "zstd", None):
        client.produce(topic, updates(150), compression_type=codec)
    client.transactions(topic, [(n % 3 != 1, updates(40)) for n in range(6)], id=f"tx-{topic}")
    client.produce(topic, [Message(b"x" * 400, b"last%d" % n) for n in range(80)], batch=5)


@pytest.mark.nightly
def test_the_broker_finds_nothing_to_do(own):
    client = Client(own.address)
    for topic in ("ours", "theirs"):
        client.create_topic(topic, 1, {**SMALL, "min.cleanable.dirty.ratio": "0.001"})
        produce(client, topic)
    own.stop()

    owned = OwnedDir.open(own.log_dir)
    before = len(read_all(owned.log(OURS).snapshot()))
    result = compact_partition(owned, OURS)
    assert result.is_complete
    for path in result.files:
        owned.disk.unlink(path)
    assert owned.close().clean
    assert not verify_log_dir(own.log_dir, [OURS])
    log = LogDir.open_read_only(own.log_dir).log(OURS)
    expected = {
        committed: read_all(log.snapshot(), isolation=isolation)
        for committed, isolation in ((False, Isolation.READ_UNCOMMITTED), (True, Isolation.READ_COMMITTED))
    }
    assert len(expected[True]) == len(expected[False]) < before / 3

    own.reconfigure({"log.cleaner.enable": "true"})
    said = len(own.log_text())
    client = Client(own.start().address)
    wait_for("the cleaner to begin", lambda: "Beginning cleaning of log theirs-0" in own.log_text()[said:])
    for committed, records in expected.items():
        assert client.consume("ours", committed=committed) == records
    # Its own cleaner produced the same result from the same log.
    wanted = [(r.offset, r.key, r.value) for r in expected[False]]
    wait_for("the same", lambda: [(r.offset, r.key, r.value) for r in client.consume("theirs")] == wanted)
    own.stop()
    text = own.log_text()[said:]
    assert "cleaning of log ours-0" not in text
    assert "Recovering unflushed segment" not in "".join(line for line in text.splitlines() if "ours-0" in line)

    # It continues where we stopped, once there are new messages.
    said = len(own.log_text())
    client = Client(own.start().address)
    client.produce("ours", [Message(b"y" * 500, b"k%d" % n) for n in range(60)], batch=5)
    wait_for("a pass of the cleaner", lambda: "cleaned log ours-0 (dirty section" in own.log_text()[said:])
    own.stop()
    # If it was stopped in the middle of another pass, a .cleaned file is left until its next start.
    own.reconfigure({"log.cleaner.enable": "false"})
    own.start()
    own.stop()
    findings = verify_log_dir(own.log_dir, [OURS])
    assert {finding.severity for finding in findings} <= {Severity.NOTE}  # its `.deleted` files


def replace(directory, disk):
    """All steps for a group of segments; every other batch of them stays."""
    topic, _, number = directory.name.rpartition("-")
    segments = ReadOnlyLog(TopicPartition(topic, int(number)), directory).snapshot().segments
    sources = segments[1:4]
    base_offset = sources[0].base_offset
    cleaned = CleanedSegment(disk, directory, base_offset, interval_bytes=500)
    for source in sources:
        data = source.log.read(0, source.size)
        table = BatchTable.empty(512)
        scan(data, 0, table)
        for row in range(1, table.rows, 2):
            batch = data[int(table.position[row]) : int(table.end[row])]
            one = BatchTable.empty(1)
            scan(batch, 0, one)
            cleaned.append(batch, one)
    cleaned.finish([], sources[-1].log.stat().st_mtime_ns)
    swap.make_ready(disk, directory, base_offset)
    _, removed = swap.replace(disk, directory, sources, tuple(segments))
    for path in removed:
        disk.unlink(path)


def live_files(directory):
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if (part := parse_segment_file(path.name)) is not None and part.kind is not FileKind.PRODUCER_SNAPSHOT
    }


def test_every_step_is_recovered_as_the_broker_recovers_it(own, tmp_path):
    client = Client(own.address)
    client.create_topic("whole", 1, SMALL)
    client.produce("whole", [Message(b"v" * 300, b"k%d" % n) for n in range(360)], batch=4)
    own.stop()
    whole = own.log_dir / "whole-0"
    assert len(list(whole.glob("*.log"))) >= 6
    trial = FaultyDisk(shutil.copytree(whole, tmp_path / "trial-0"))
    replace(tmp_path / "trial-0", trial)
    steps = trial.operations
    # While batches are appended only the progress changes, so only the last of these steps is tested.
    first = max(number for number, what in enumerate(steps) if what.startswith("write")) - 1
    topics = {f"s{number}": number for number in range(first, len(steps) + 1)}
    client = Client(own.start().address)
    for topic in topics:
        client.create_topic(topic, 1, SMALL)
    own.stop()

    for topic, number in topics.items():
        directory = own.log_dir / f"{topic}-0"
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in whole.iterdir():
            if path.name != "partition.metadata":
                shutil.copy2(path, directory / path.name)
        try:
            replace(directory, FaultyDisk(directory, stop_at=number))
        except Crash:
            assert number < len(steps)
    states = {
        frozenset(
            (part.state, part.kind)
            for path in (own.log_dir / f"{topic}-0").iterdir()
            if (part := parse_segment_file(path.name)) is not None and part.state is not FileState.LIVE
        )
        for topic in topics
    }
    assert len(states) >= 10  # the number of different states
    (own.log_dir / ".kafka_cleanshutdown").unlink()
    ours = shutil.copytree(own.log_dir, tmp_path / "recovered")

    client = Client(own.start().address)
    consumed = {topic: client.consume(topic) for topic in topics}
    own.stop()
    owned = OwnedDir.open(ours)
    assert not owned.failures()
    assert owned.close().clean
    assert not verify_log_dir(ours, [TopicPartition(topic, 0) for topic in topics])
    log_dir = LogDir.open_read_only(ours)
    lengths = set()
    for topic, number in topics.items():
        what = f"step {number}: {steps[number] if number < len(steps) else 'the end'}"
        assert read_all(log_dir.log(TopicPartition(topic, 0)).snapshot()) == consumed[topic], what
        mine, theirs = live_files(ours / f"{topic}-0"), live_files(own.log_dir / f"{topic}-0")
        theirs = {name: data for name, data in theirs.items() if not name.endswith(".deleted")}
        assert mine == theirs, what
        lengths.add(len(consumed[topic]))
    assert len(lengths) == 2  # the old messages or the new
