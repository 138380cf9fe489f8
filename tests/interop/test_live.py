"""A running broker's directory, mounted read-only while producers write: files hold what a consumer gets."""

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.interop.client import Message
from tests.interop.kafka import on_broker, requires_kafka, run_tool
from tests.support.fixtures import read_jsonl
from tests.support.mounts import requires_fuse, run_kafkafs
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, on_broker]


def any_messages(rng, count):
    """Nulls, empty values, bytes that are not UTF-8, headers; never both a null key and a null value (aiokafka)."""
    keys = (None, b"", b"k", "ключ".encode(), b"\xff\x00")
    headers = ((), (("h", b"x"),), (("", None), ("größe", b"\xfe"), ("h", b"")))
    values = (None, b"", b"plain", b'quo"te\\\n\t', b"\x80\x81", rng.randbytes(500), b"text " * 40)
    pairs = [(rng.choice(values), rng.choice(keys)) for _ in range(count)]
    return [Message(v, b"" if v is None and k is None else k, rng.choice(headers)) for v, k in pairs]


@requires_fuse
def test_readers_beside_producers(broker, client, live):
    """Five codecs into two partitions, segments rolling; every read is a prefix of what a consumer gets, and raw files
    are the broker's, without the zeros of the active segment's indexes."""
    client.create_topic("busy", 2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 500})
    rng = random.Random(1)
    seen = {0: [], 1: []}
    end = threading.Event()

    def read():
        while not end.is_set():
            for partition, reads in seen.items():
                reads.append(read_jsonl((live.path / "busy" / str(partition) / "messages.jsonl").read_bytes()))

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        try:
            for number in range(30):
                codec = (None, "gzip", "snappy", "lz4", "zstd")[number % 5]
                client.produce("busy", any_messages(rng, 60), number % 2, batch=7, compression_type=codec)
                begun = len(seen[0]) + 1
                wait_for("another look", lambda: len(seen[1]) > begun or reading.done())  # noqa: B023 - called at once
        finally:
            end.set()
        reading.result()
    for partition, reads in seen.items():
        consumed = client.consume("busy", partition)
        assert len(consumed) == 900
        assert len({len(records) for records in reads}) > 10
        assert all(records == consumed[: len(records)] for records in reads)
        tree = live.path / "busy" / str(partition)
        assert read_jsonl((tree / "messages.jsonl").read_bytes()) == consumed
        assert (tree / "messages.txt").read_bytes() == b"".join((record.value or b"") + b"\n" for record in consumed)
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
        client.create_topic(topic.name, config={"preallocate": "true", "segment.bytes": str(1 << 20)})
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
