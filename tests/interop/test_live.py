"""The directory of a running broker, which producers, retention and its cleaner change: by the engine, and mounted."""

import itertools
import json
import random
import re
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from storage.errors import SegmentGone
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.interop.client import Message
from tests.interop.kafka import on_broker, requires_kafka, run_tool
from tests.support.fixtures import read_jsonl
from tests.support.mounts import requires_fuse, run_kafkafs
from tests.support.readers import read_all, records_of
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, on_broker]

SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500, "segment.index.bytes": 100_000}


def value_of(number):
    return b"%08d " % number + b"x" * (number % 97)


def look_beside(writes, look):
    """Runs `writes` in a thread, and `look` meanwhile and once after them; returns the number of looks.

    It looks between the writes too, however slow: each write waits until there was one more look.
    """
    failures = []
    looked = threading.Semaphore(0)

    def run():
        try:
            for write in writes:
                assert looked.acquire(timeout=120)
                write()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)

    writer = threading.Thread(target=run)
    writer.start()
    looks = 0
    while writer.is_alive():
        try:
            look()
        except SegmentGone:
            continue  # retention or compaction was faster; the next snapshot shows it
        looks += 1
        looked.release()
    writer.join()
    if failures:
        raise failures[0]
    look()
    return looks


def log_of(broker, topic):
    return LogDir.open_read_only(broker.log_dir).log(TopicPartition(topic, 0))


def first_segment(broker, topic):
    return min(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))


@pytest.mark.parametrize("preallocate", ["false", pytest.param("true", marks=pytest.mark.nightly)])
def test_appends_rolls_and_retention(broker, client, preallocate):
    """A snapshot at any moment shows exactly what was written."""
    topic = f"log-retention-{preallocate}"
    client.create_topic(topic, config={**SMALL, "retention.bytes": 60_000, "preallocate": preallocate})
    log = log_of(broker, topic)
    seen = set()
    removed = [0]

    def look():
        snapshot = log.snapshot()
        start = snapshot.log_start_offset
        records = read_all(snapshot, start)
        assert [record.offset for record in records] == list(range(start, snapshot.log_end_offset))
        assert all(record.value == value_of(record.offset) for record in records)
        seen.add((start, snapshot.log_end_offset))

    def write(first):
        client.produce(topic, [Message(value_of(n)) for n in range(first, first + 300)], batch=7)
        if first % 1500 == 1200:  # since the last time more has come than a pass leaves
            wait_for("a retention pass", lambda: first_segment(broker, topic) > removed[-1])
            removed.append(first_segment(broker, topic))

    assert look_beside([partial(write, first) for first in range(0, 6000, 300)], look) > 10
    assert len({start for start, _ in seen}) > 2
    assert max(end for _, end in seen) == 6000


def test_compaction(broker, client):
    topic = "log-compaction"
    config = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 1000}
    client.create_topic(topic, config=config)
    log = log_of(broker, topic)
    sizes = []

    def look():
        snapshot = log.snapshot()
        latest = {}
        offsets = []
        for block in read_range(snapshot, snapshot.log_start_offset):
            assert block.damage is None
            for record in records_of(block):
                assert (record.key, record.value) == (b"%d" % (record.offset % 50), value_of(record.offset))
                latest[int(record.key)] = record.offset
                offsets.append(record.offset)
        assert offsets == sorted(set(offsets))
        end = snapshot.log_end_offset
        assert latest == {offset % 50: offset for offset in range(max(end - 50, 0), end)}
        sizes.append(len(offsets))

    def write(first):
        messages = [Message(value_of(n), b"%d" % (n % 50)) for n in range(first, first + 250)]
        client.produce(topic, messages, batch=9)

    assert look_beside([partial(write, first) for first in range(0, 5000, 250)], look) > 10
    first = 5000
    while all(after >= before for before, after in itertools.pairwise(sizes)):  # the cleaner is slower than we are
        assert first < 50_000
        look_beside([partial(write, first)], look)
        first += 250


# A running broker's directory, mounted read-only while producers write: files hold what a consumer gets.


def any_messages(rng, count):
    """Nulls, empty values, bytes that are not UTF-8, headers; never both a null key and a null value (aiokafka)."""
    keys = (None, b"", b"k", "ключ".encode(), b"\xff\x00")
    headers = ((), (("h", b"x"),), (("", None), ("größe", b"\xfe"), ("h", b"")))
    values = (None, b"", b"plain", b'quo"te\\\n\t', b"\x80\x81", rng.randbytes(500), b"text " * 40)
    pairs = [(rng.choice(values), rng.choice(keys)) for _ in range(count)]
    return [Message(v, b"" if v is None and k is None else k, rng.choice(headers)) for v, k in pairs]


def as_txt(records):
    return b"".join((record.value or b"") + b"\n" for record in records)


@requires_fuse
def test_readers_beside_producers(broker, client, live):
    """Five codecs into two partitions, segments rolling; every read is a prefix of what a consumer gets, and raw files
    are the broker's, without the zeros of the active segment's indexes."""
    client.create_topic("busy", 2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 500})
    rng = random.Random(1)
    seen = {0: [], 1: []}

    def look():
        for partition, reads in seen.items():
            reads.append(read_jsonl((live.path / "busy" / str(partition) / "messages.jsonl").read_bytes()))

    def write(number):
        codec = (None, "gzip", "snappy", "lz4", "zstd")[number % 5]
        client.produce("busy", any_messages(rng, 60), number % 2, batch=7, compression_type=codec)

    look_beside([partial(write, number) for number in range(30)], look)
    for partition, reads in seen.items():
        consumed = client.consume("busy", partition)
        assert len(consumed) == 900
        assert len({len(records) for records in reads}) > 10
        assert all(records == consumed[: len(records)] for records in reads)
        assert reads[-1] == consumed
        tree = live.path / "busy" / str(partition)
        assert (tree / "messages.txt").read_bytes() == as_txt(consumed)
        for view in (tree / "messages.jsonl", tree / "messages.txt"):
            assert view.stat().st_size == len(view.read_bytes())
        files = {path.name: path.read_bytes() for path in (broker.log_dir / f"busy-{partition}").glob("*.log")}
        assert len(files) > 2
        assert {path.name: path.read_bytes() for path in (tree / "segments").glob("*.log")} == files
        whole = b"".join(data for _, data in sorted(files.items()))
        assert (tree / "messages.log").read_bytes() == whole
        assert run_kafkafs("cat", broker.log_dir, f"busy/{partition}", "--format", "log").stdout == whole
    assert run_kafkafs("count", broker.log_dir, "busy").stdout.split()[-1] == b"1800"


@requires_fuse
def test_at_once(client, live):
    """New topics are there immediately after their creation, also several within one tick of the directory's mtime, and
    acknowledged messages at the next look, also through a handle that was opened before. Between reads kafkafs has none
    of the broker's files open, and no lock on the directory."""
    for number in range(12):
        topic = live.path / f"new-{number}"
        assert not topic.exists()
        client.create_topic(topic.name)
        assert (topic / "0/messages.txt").read_bytes() == b""
        assert topic.name in {path.name for path in live.path.iterdir()}
    view = topic / "0/messages.txt"
    expected = b""
    with view.open("rb", buffering=0) as opened:
        for number in range(3):
            client.produce(topic.name, [Message(b"message %d" % number)])
            expected += b"message %d\n" % number
            assert view.stat().st_size == len(expected)
            assert opened.read() == b"message %d\n" % number
        held = [Path(file.path) for file in psutil.Process(live.pid).open_files()]
        assert not [path for path in held if path.suffix in (".log", ".index", ".timeindex") or path.name == ".lock"]
    assert view.read_bytes() == expected


@requires_fuse
def test_topics_ids_partitions_configs(broker, client, live):
    """The content of __cluster_metadata-0, as kafkafs reads it, equals what the broker's admin interface reports."""
    client.create_topic("one")
    client.create_topic("three", 3, {"retention.ms": 86_400_000, "compression.type": "zstd", "segment.ms": 1_000_000})
    client.create_topic("altered", 2, {"cleanup.policy": "compact"})
    client.alter_topic("altered", {"cleanup.policy": "compact,delete", "max.message.bytes": 123_456})
    client.produce("three", [Message(b"x")], 1)
    client.transactions("one", [(True, [Message(b"x")])])
    described = json.loads(run_kafkafs("topics", "describe", broker.log_dir, "--json").stdout)
    ours = {topic["topic"]: topic for topic in described["topics"]}
    told = run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.address, "--describe")
    ids = dict(re.findall(r"^Topic: (\S+)\s+TopicId: (\S+)", told, flags=re.MULTILINE))
    partitions = client.topics()
    assert ours["__transaction_state"]["topic_id"] == ids["__transaction_state"]
    for topic in ("one", "three", "altered"):
        config = client.topic_config(topic)
        assert ours[topic]["topic_id"] == ids[topic]
        assert ours[topic]["partition_count"] == partitions[topic]
        assert ours[topic]["config"] == config
        tree = live.path / topic
        assert {path.name for path in tree.iterdir() if path.name.isdigit()} == set(map(str, range(partitions[topic])))
        lines = (tree / "@config").read_text().splitlines()
        assert config.items() <= dict(line.split("=", 1) for line in lines if line[:1] != "#").items()
