"""The directory of a running broker, which producers, retention and its cleaner change: by the engine, and mounted."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from storage.append.partitioner import in_order_for_key
from storage.errors import SegmentGone
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.reader import read_range
from storage.types import Isolation, TopicPartition
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, on_broker, requires_kafka, run_tool
from tests.support.fixtures import read_jsonl
from tests.support.mounts import requires_fuse, run_kafkafs
from tests.support.readers import read_all, records_of
from tests.support.waiting import wait_for

pytestmark = on_broker

# The engine on a running broker's directory: a snapshot at any moment shows exactly what was written.

_SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500, "segment.index.bytes": 100_000}


def _value(number):
    return b"%08d " % number + b"x" * (number % 97)


def _follow(log_dir, topic, writes, check):
    """Runs `writes` in a thread, and `check` on snapshots meanwhile and once after them; returns the number of checks.

    Checks are made between the writes too, however slow: each write waits until there was one more check.
    """
    log = log_dir.log(TopicPartition(topic, 0))
    failures = []
    checked = threading.Semaphore(0)

    def run():
        try:
            for write in writes:
                assert checked.acquire(timeout=120)
                write()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)

    writer = threading.Thread(target=run)
    writer.start()
    looks = 0
    while writer.is_alive():
        try:
            check(log.snapshot())
            looks += 1
            checked.release()
        except SegmentGone:
            continue  # retention or compaction was faster; the next snapshot shows it
    writer.join()
    if failures:
        raise failures[0]
    check(log.snapshot())
    return looks


def _open(broker, topic):
    log_dir = LogDir.open_read_only(broker.log_dir)
    assert topic in log_dir.topics()
    return log_dir


@requires_kafka
@pytest.mark.parametrize("preallocate", ["false", pytest.param("true", marks=pytest.mark.nightly)])
def test_appends_rolls_and_retention(broker, client, preallocate):
    topic = f"log-retention-{preallocate}"
    client.create_topic(topic, config={**_SMALL, "retention.bytes": 60_000, "preallocate": preallocate})
    seen = set()
    removed = [0]

    def first_segment():
        return min(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))

    def check(snapshot):
        start = snapshot.log_start_offset
        records = read_all(snapshot, start)
        assert [record.offset for record in records] == list(range(start, snapshot.log_end_offset))
        assert all(record.value == _value(record.offset) for record in records)
        seen.add((start, snapshot.log_end_offset))

    def write(first):
        client.produce(topic, [Message(_value(n)) for n in range(first, first + 300)], batch=7)
        if first % 1500 == 1200:  # since the last time more has come than a pass leaves
            wait_for("a retention pass", lambda: first_segment() > removed[-1])
            removed.append(first_segment())

    writes = [partial(write, first) for first in range(0, 6000, 300)]
    assert _follow(_open(broker, topic), topic, writes, check) > 10
    assert len({start for start, _ in seen}) > 2
    assert max(end for _, end in seen) == 6000


@requires_kafka
def test_compaction(broker, client):
    topic = "log-compaction"
    config = {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 1000}
    client.create_topic(topic, config=config)
    sizes = []

    def check(snapshot):
        latest = {}
        offsets = []
        for block in read_range(snapshot, snapshot.log_start_offset):
            assert block.damage is None
            for record in records_of(block):
                assert record.value == _value(record.offset)
                assert record.key == b"%d" % (record.offset % 50)
                latest[record.key] = record.offset
                offsets.append(record.offset)
        assert offsets == sorted(set(offsets))
        end = snapshot.log_end_offset
        assert {int(key or b""): offset for key, offset in latest.items()} == {
            offset % 50: offset for offset in range(max(end - 50, 0), end)
        }
        sizes.append(len(offsets))

    def write(first):
        messages = [Message(_value(n), b"%d" % (n % 50)) for n in range(first, first + 250)]
        client.produce(topic, messages, batch=9)

    writes = [partial(write, first) for first in range(0, 5000, 250)]
    log_dir = _open(broker, topic)
    assert _follow(log_dir, topic, writes, check) > 10
    first = 5000
    while all(after >= before for before, after in itertools.pairwise(sizes)):  # the cleaner is slower than we are
        assert first < 50_000
        _follow(log_dir, topic, [partial(write, first)], check)
        first += 250


@requires_kafka
def test_transactions(broker, client):
    topic = "log-transactions"
    client.create_topic(topic, config=_SMALL)

    def check(snapshot):
        stable = last_stable_offset(snapshot)
        committed = read_all(snapshot, isolation=Isolation.READ_COMMITTED)
        assert all(record.value is not None and record.value.startswith(b"keep") for record in committed)
        whole = [record for record in read_all(snapshot, 0, stable) if (record.value or b"").startswith(b"keep")]
        assert committed == whole

    def write(turn):
        rounds = [
            (number % 3 != 0, [Message(b"%s %d" % (b"drop" if number % 3 == 0 else b"keep", n)) for n in range(20)])
            for number in range(6)
        ]
        client.transactions(topic, rounds, id=f"tx-{turn % 2}")

    log_dir = _open(broker, topic)
    assert _follow(log_dir, topic, [partial(write, turn) for turn in range(12)], check) > 10
    snapshot = log_dir.log(TopicPartition(topic, 0)).snapshot()
    assert last_stable_offset(snapshot) == snapshot.log_end_offset
    for isolation in Isolation:
        assert read_all(snapshot, isolation=isolation) == client.consume(
            topic, committed=isolation is Isolation.READ_COMMITTED
        )


@requires_kafka
def test_deleted_records_and_times(broker, client):
    topic = "log-start"
    client.create_topic(topic, config={**_SMALL, "message.timestamp.before.max.ms": 2**62, "retention.ms": -1})
    client.produce(topic, [Message(_value(n), timestamp=10**12 + n * 10 + n % 7 * 30) for n in range(900)], batch=11)
    log = _open(broker, topic).log(TopicPartition(topic, 0))
    assert log.snapshot().log_start_offset == 0
    client.delete_records(topic, 0, 505)
    deadline = time.monotonic() + 120
    while log.snapshot().log_start_offset != 505 and time.monotonic() < deadline:
        time.sleep(0.1)
    snapshot = log.snapshot()
    assert [record.offset for record in read_all(snapshot)] == list(range(505, 900))
    assert (snapshot.log_start_offset, snapshot.log_end_offset) == client.offsets(topic)
    for timestamp in range(10**12 - 100, 10**12 + 9500, 613):
        found = offset_for_timestamp(snapshot, timestamp)
        answer = None if found is None else (found.offset, found.timestamp)
        assert client.offset_for_time(topic, timestamp) == answer


@pytest.mark.nightly
@requires_kafka
def test_a_topic_made_anew(broker, client):
    log_dir = LogDir.open_read_only(broker.log_dir)
    for turn in range(2):
        client.create_topic("log-again")
        client.produce("log-again", [Message(b"turn %d" % turn)] * (turn + 1))
        log_dir.refresh()
        snapshot = log_dir.log(TopicPartition("log-again", 0)).snapshot()
        assert [record.value for record in read_all(snapshot)] == [b"turn %d" % turn] * (turn + 1)
        client.delete_topic("log-again")
        deadline = time.monotonic() + 120
        while "log-again" in log_dir.topics() and time.monotonic() < deadline:
            time.sleep(0.1)
            log_dir.refresh()
        assert not Path(broker.log_dir / "log-again-0").exists()


# A running broker's directory, mounted read-only while producers write: files hold what a consumer gets.

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def any_messages(rng, count):
    """Nulls, empty values, bytes that are not UTF-8, headers; never both a null key and a null value (aiokafka)."""
    keys = (None, b"", b"k", "ключ".encode(), b"\xff\x00")
    headers = ((), (("h", b"x"),), (("", None), ("größe", b"\xfe"), ("h", b"")))
    values = (None, b"", b"plain", b'quo"te\\\n\t', b"\x80\x81", rng.randbytes(500), b"text " * 40)
    pairs = [(rng.choice(values), rng.choice(keys)) for _ in range(count)]
    return [Message(v, b"" if v is None and k is None else k, rng.choice(headers)) for v, k in pairs]


def as_txt(records):
    return b"".join((record.value or b"") + b"\n" for record in records)


@requires_kafka
@requires_fuse
def test_readers_beside_producers(broker, client, live):
    """Five codecs into two partitions, segments rolling; every read is a prefix of what a consumer gets."""
    client.create_topic("busy", 2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 500})
    seen = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            for partition in (0, 1):
                data = (live.path / "busy" / str(partition) / "messages.jsonl").read_bytes()
                seen.append((partition, read_jsonl(data)))

    def seen_since(count):
        return {partition for partition, _ in seen[count + 1 :]} == {0, 1} or not reader.is_alive()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        rng = random.Random(1)
        for round_ in range(30):
            client.produce("busy", any_messages(rng, 60), round_ % 2, batch=7, compression_type=CODECS[round_ % 5])
            if round_ % 6 == 5:  # however slow the reader is, it sees several states of each
                wait_for("both were read", partial(seen_since, len(seen)))
    finally:
        stop.set()
        reader.join()
    for partition in (0, 1):
        consumed = client.consume("busy", partition)
        assert len(consumed) == 900
        tree = live.path / "busy" / str(partition)
        assert read_jsonl((tree / "messages.jsonl").read_bytes()) == consumed
        assert (tree / "messages.txt").read_bytes() == as_txt(consumed)
        assert len(list((tree / "segments").glob("*.log"))) > 2
        reads = [records for number, records in seen if number == partition]
        assert len({len(records) for records in reads}) > 2  # it really grew under the reader
        assert all(records == consumed[: len(records)] for records in reads)
    for name in ("messages.jsonl", "messages.txt"):
        assert (live.path / "busy" / "0" / name).stat().st_size == len((live.path / "busy/0" / name).read_bytes())
    assert run_kafkafs("count", broker.log_dir, "busy").stdout.split()[-1] == b"1800"


@requires_kafka
@requires_fuse
def test_the_segments_are_the_brokers_own(broker, client, live):
    """messages.log and segments/*.log hold the broker's bytes; nothing of the active segment's zero-filled indexes."""
    client.create_topic("verbatim", 1, {"internal.segment.bytes": 10_000})
    client.produce("verbatim", any_messages(random.Random(2), 300), batch=5)
    files = sorted((broker.log_dir / "verbatim-0").glob("*.log"))
    assert len(files) > 2
    whole = b"".join(path.read_bytes() for path in files)
    assert (live.path / "verbatim/0/messages.log").read_bytes() == whole
    assert {path.name: path.read_bytes() for path in (live.path / "verbatim/0/segments").glob("*.log")} == {
        path.name: path.read_bytes() for path in files
    }
    assert run_kafkafs("cat", broker.log_dir, "verbatim/0", "--format", "log").stdout == whole


@requires_kafka
@requires_fuse
def test_new_messages_at_once(client, live):
    """Acknowledged messages are there at the next look, also through a handle that was opened before."""
    client.create_topic("prompt")
    view = live.path / "prompt/0/messages.txt"
    expected = b""
    with view.open("rb", buffering=0) as opened:
        for number in range(3):
            client.produce("prompt", [Message(b"message %d" % number)])
            expected += b"message %d\n" % number
            assert view.stat().st_size == len(expected)
            assert opened.read() == b"message %d\n" % number
    assert view.read_bytes() == expected


@requires_kafka
@requires_fuse
def test_new_topics_are_there_at_once(client, live):
    """Immediately after creation, also several within one tick of the directory's mtime."""
    for number in range(12):
        missing = live.path / f"new-{number}"
        assert not missing.exists()
        client.create_topic(f"new-{number}")
        assert (missing / "0/messages.txt").read_bytes() == b""
        assert missing.name in {path.name for path in live.path.iterdir()}


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_internal_topics_and_deleted_ones(client, live):
    """__consumer_offsets and __transaction_state are readable like any topic; a deleted topic disappears."""
    client.create_topic("short-lived")
    client.transactions("short-lived", [(True, [Message(b"x")])], id="for-state")
    assert (live.path / "short-lived").is_dir()
    internal = "__transaction_state"
    view = live.path / internal / "0/messages.jsonl"
    # The broker writes that a transaction is complete after it has answered the commit.
    wait_for("both show the same", lambda: read_jsonl(view.read_bytes()) == client.consume(internal))
    client.delete_topic("short-lived")
    wait_for("the topic is gone", lambda: "short-lived" not in {path.name for path in live.path.iterdir()})
    assert not [path.name for path in live.path.iterdir() if path.name.endswith("-delete")]


@requires_kafka
@requires_fuse
def test_nothing_is_held_open(client, live):
    """Between reads kafkafs has none of the broker's files open, and no lock on the directory."""
    client.create_topic("unheld")
    client.produce("unheld", [Message(b"x")])
    with (live.path / "unheld/0/messages.txt").open("rb") as opened:
        assert opened.read() == b"x\n"
        held = [Path(file.path) for file in psutil.Process(live.pid).open_files()]
        assert not [path for path in held if path.suffix in (".log", ".index", ".timeindex") or path.name == ".lock"]


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_after_a_kill(tmp_path):
    """A broker killed with -9 leaves no clean shutdown and full-size indexes; everything acknowledged is readable."""
    broker = Broker(tmp_path / "killed")
    try:
        client = Client(broker.start().address)
        client.create_topic("acked", 1, {"internal.segment.bytes": 8_000})
        client.produce("acked", any_messages(random.Random(5), 200), batch=9, compression_type="lz4")
        client.transactions("acked", [(True, [Message(b"in")]), (False, [Message(b"out")])])
        consumed, committed = client.consume("acked"), client.consume("acked", committed=True)
    finally:
        broker.kill()
    cat = ("cat", broker.log_dir, "acked", "--format", "jsonl", "--isolation")
    assert read_jsonl(run_kafkafs(*cat, "read_uncommitted").stdout) == consumed
    assert read_jsonl(run_kafkafs(*cat, "read_committed").stdout) == committed


# `keys/<key>.EXT` on a live broker's directory, mounted read-only.

START = 1_795_000_000_000
KEYS = 40


def of_key(client, key):
    """What consumers see of a key, by partition."""
    return [[record for record in client.consume("keyed", number) if record.key == key] for number in range(2)]


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_a_key_shows_as_soon_as_its_message_is_acknowledged(client, live):
    """Of a compacted topic under load that rolls: what a consumer gets of the key, in the partitions' order."""
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": 20_000, "min.cleanable.dirty.ratio": 0.99}
    client.create_topic("keyed", 2, settings)
    keys = live.path / "keyed" / "keys"
    for turn in range(3):
        messages = [
            Message(b"%d of turn %d" % (number, turn), b"key-%d" % (number % KEYS), (), START + number)
            for number in range(400)
        ]
        for number in range(2):
            client.produce("keyed", messages[number::2], partition=number)
        key = b"new-%d" % turn
        assert not (keys / f"new-{turn}.txt").exists()
        for number in range(2):
            client.produce("keyed", [Message(b"first in %d" % number, key, (), START)], partition=number)
            lines = read_jsonl((live.path / "keyed" / str(number) / "keys" / f"new-{turn}.jsonl").read_bytes())
            assert [line.value for line in lines] == [b"first in %d" % number]
        order = in_order_for_key(key, [0, 1], 2)
        assert (keys / f"new-{turn}.txt").read_bytes() == b"".join(b"first in %d\n" % number for number in order)
        for known in (b"key-0", b"key-39"):
            parts = of_key(client, known)
            expected = [record for number in in_order_for_key(known, [0, 1], 2) for record in parts[number]]
            assert read_jsonl((keys / f"{known.decode()}.jsonl").read_bytes()) == expected
    names = {path.name for path in keys.iterdir()}
    assert names == {f"key-{number}.txt" for number in range(KEYS)} | {f"new-{turn}.txt" for turn in range(3)}


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_an_open_file_gets_what_is_produced(client, live):
    client.create_topic("keyed-open", 1, {})
    client.produce("keyed-open", [Message(b"0", b"k", (), START)])
    with (live.path / "keyed-open" / "keys" / "k.txt").open("rb", buffering=0) as file:
        assert file.read(100) == b"0\n"
        for number in range(1, 6):
            client.produce("keyed-open", [Message(b"other", b"o", (), START), Message(b"%d" % number, b"k", (), START)])
            assert file.read(100) == b"%d\n" % number


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_a_key_that_nobody_has(client, live):
    client.create_topic("keyed-none", 1, {})
    client.produce("keyed-none", [Message(b"0", b"k", (), START)])
    with pytest.raises(FileNotFoundError):
        (live.path / "keyed-none" / "keys" / "nobody.txt").read_bytes()


# `latest.jsonl` of a compacted topic that a broker writes, rolls and cleans meanwhile.

CONFIG = {
    "cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.01, "delete.retention.ms": 0,
    "max.compaction.lag.ms": 1000,
}  # fmt: skip


def latest(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    offsets = [line["offset"] for line in lines]
    assert offsets == sorted(offsets)
    found = {line["key"]: int(line["value"]) for line in lines}
    assert len(found) == len(lines)
    return found


@requires_kafka
@requires_fuse
def test_no_value_is_older_than_one_that_was_there_at_the_open(client, live):
    client.create_topic("latest-under-load", 1, CONFIG)
    acknowledged = {}
    rounds, ended, looked = 25, threading.Event(), threading.Semaphore(0)

    def write():
        try:
            for number in range(rounds):
                assert number == 0 or looked.acquire(timeout=120)  # once more since the last write
                values = {f"key-{(number * 7 + n) % KEYS}": number * KEYS + n for n in range(KEYS // 2)}
                client.produce(
                    "latest-under-load",
                    [Message(str(value).encode(), key.encode()) for key, value in values.items()],
                    batch=3,
                )
                acknowledged.update(values)
        finally:
            ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    path = live.path / "latest-under-load" / "latest.jsonl"
    try:
        while not ended.is_set():
            before = dict(acknowledged)
            found = latest(path)
            assert all(found[key] >= value for key, value in before.items())
            looked.release()
    finally:
        looked.release(rounds)
        writer.join()
    assert len(acknowledged) == KEYS
    assert latest(path) == acknowledged


# The content of __cluster_metadata-0, as kafkafs reads it, equals what the broker's admin interface reports.


@requires_kafka
@requires_fuse
def test_topics_ids_partitions_configs(broker, client):
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
        assert ours[topic]["topic_id"] == ids[topic]
        assert ours[topic]["partition_count"] == partitions[topic]
        assert ours[topic]["config"] == client.topic_config(topic)


@pytest.mark.nightly
@requires_kafka
@requires_fuse
def test_the_tree_shows_them(client, live):
    client.create_topic("shown", 4, {"retention.bytes": 1_000_000, "segment.bytes": 2_000_000})
    topic = live.path / "shown"
    assert {path.name for path in topic.iterdir() if path.name.isdigit()} == {"0", "1", "2", "3"}
    config = dict(line.split("=", 1) for line in (topic / "@config").read_text().splitlines() if line[:1] != "#")
    assert client.topic_config("shown").items() <= config.items()


# `tail -f messages.txt` on a live topic while the broker's retention and cleaner change the log.

DELETE = {"cleanup.policy": "delete", "internal.segment.bytes": 10_000, "retention.bytes": 40_000}
# The lag lets tail, which polls once a second, see a message before compaction removes it.
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 10_000,
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": 4_000,
}


@contextmanager
def tail(view, output):
    """`tail -n +1 -f VIEW`; `lines` returns what it has printed so far."""
    with output.open("wb") as out:
        process = subprocess.Popen(["tail", "-n", "+1", "-f", str(view)], stdout=out, stderr=subprocess.PIPE)
    try:
        yield lambda: output.read_bytes().splitlines()
    finally:
        process.terminate()
        errors = process.communicate()[1].decode()
        assert not errors, errors


def deleted_files_open(pid):
    """The deleted files, and those that await deletion, that a process holds open."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return [target for target in targets if "deleted" in target]


@requires_kafka
@requires_fuse
@pytest.mark.timeout(240)
def test_each_message_once_and_the_space_is_freed(broker, client, live, tmp_path):
    client.create_topic("tailed", 1, DELETE)
    log = broker.log_dir / "tailed-0"
    sent = []

    def produce(count, keys):
        start = len(sent)
        sent.extend(b"%06d " % number + b"x" * 90 for number in range(start, start + count))
        client.produce("tailed", [Message(v, b"%d" % (n % keys)) for n, v in enumerate(sent[start:])], batch=10)

    def first_segment():
        return min(int(path.stem) for path in log.glob("*.log"))

    with tail(live.path / "tailed/0/messages.txt", tmp_path / "tailed") as printed:
        produce(300, 7)  # nearly retention.bytes: from here on each round removes segments that tail has read
        wait_for("the first messages", lambda: len(printed()) >= len(sent))
        for _ in range(10):
            start = len(sent)
            produce(200, 7)
            wait_for("this round's messages", lambda: len(printed()) >= len(sent))
            # at most retention.bytes and a segment remain: about 430 messages
            wait_for("a retention pass", lambda: first_segment() > start - 300)  # noqa: B023 - called at once
            wait_for("the files' deletion", lambda: not list(log.glob("*.deleted")))
            assert deleted_files_open(live.pid) == []
            assert printed() == sent
        client.alter_topic("tailed", COMPACT)
        batches = sum(path.stat().st_size for path in log.glob("*.log"))
        produce(300, 3)
        wait_for("the messages before the compaction", lambda: len(printed()) >= len(sent))
        wait_for("a compaction", lambda: sum(path.stat().st_size for path in log.glob("*.log")) < batches)
        wait_for("the files' deletion", lambda: not list(log.glob("*.deleted")))
        produce(150, 3)
        wait_for("the messages after the compaction", lambda: len(printed()) >= len(sent))
        assert deleted_files_open(live.pid) == []
        produce(1, 3)  # for one more poll of tail, which must not print anything twice
        wait_for("the last message", lambda: len(printed()) >= len(sent))
        assert printed() == sent

    # all handles are closed: positions begin again at the log start, and what remains is what a consumer gets
    def left():
        return b"".join((record.value or b"") + b"\n" for record in client.consume("tailed"))

    wait_for("the compacted view", lambda: (live.path / "tailed/0/messages.txt").read_bytes() == left())
