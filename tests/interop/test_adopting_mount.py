"""A stopped broker's directory, mounted for writing: its configuration is followed, and the broker continues."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.mounted_logs import state_of
from tests.support.mounts import mounted, requires_fuse, run_kafkafs

pytestmark = [requires_kafka, requires_fuse]

HOUR_MS = 3_600_000
T = TopicPartition("t", 0)
INTERNAL = ("__consumer_offsets-0", "__cluster_metadata-0")
SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500}


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose own retention runs once after its start, and not again."""
    running = Broker(tmp_path / "broker", {"log.retention.check.interval.ms": str(HOUR_MS)})
    try:
        yield running
        assert running.complaints() == []
    finally:
        running.kill()


def commit(address: str, topic: str, group: str) -> None:
    """A group that has read to offset 7."""

    async def run() -> None:
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


def internal(log_dir: Path) -> dict[str, object]:
    """Everything about the directories that are the brokers' own, times included."""
    return {name: state_of(log_dir / name) for name in INTERNAL}


def bases(log_dir: Path, partition: str) -> list[int]:
    return sorted(int(path.stem) for path in (log_dir / partition).glob("*.log"))


def test_appended_through_the_mount(mine: Broker, tmp_path: Path) -> None:
    client = Client(mine.start().address)
    client.create_topic("through", 2, SMALL)
    client.create_topic("kept", 1, {**SMALL, "retention.ms": -1})
    client.create_topic("expiring", 1, {**SMALL, "retention.ms": HOUR_MS})
    time.sleep(1)  # its only retention pass
    long_ago = int(time.time() * 1000) - 30 * 24 * HOUR_MS
    old = [Message(b"%04d" % n + b"." * 300, timestamp=long_ago + n) for n in range(300)]
    for topic in ("kept", "expiring"):
        client.produce(topic, old)
    client.produce("through", [Message(b"theirs %d" % n) for n in range(100)], 0)
    commit(mine.address, "kept", "readers")
    mine.stop()
    before = internal(mine.log_dir)
    assert all(before.values())
    kept = bases(mine.log_dir, "kept-0")
    assert len(bases(mine.log_dir, "expiring-0")) > 3
    assert len(kept) > 3

    ours = [b"ours %d" % n for n in range(3000)]
    keyed = [{"key": f"key {n}", "value": f"keyed {n}", "headers": [["h", "x"]]} for n in range(500)]
    with mounted(mine.log_dir, tmp_path / "mnt", read_only=False) as mount:
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
    assert not verify_log_dir(mine.log_dir)
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

    with mounted(mine.log_dir, tmp_path / "mnt", read_only=False) as mount:
        for p in (0, 1):
            lines_read = (mount.path / "through" / str(p) / "messages.txt").read_bytes().splitlines()
            assert lines_read == [record.value for record in consumed[p]]
        (mount.path / "through" / "1" / "@append").write_bytes(b"and again\n")
    assert not verify_log_dir(mine.log_dir)
    said = len(mine.log_text())
    client = Client(mine.start().address)
    last = client.consume("through", 1)[-1]
    assert (last.value, last.offset) == (b"and again", len(consumed[1]))
    adopted_as_it_is(told_since(mine, said))
    mine.stop()


def test_killed_while_it_writes(mine: Broker) -> None:
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
    assert {found.severity for found in verify_log_dir(mine.log_dir)} <= {Severity.NOTE}  # of the metadata log
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


def test_each_refuses_while_the_other_holds_the_directory(tmp_path: Path) -> None:
    """Both use the same lock, and the one that is refused names its holder."""
    broker = Broker(tmp_path / "broker")
    try:
        broker.start()
        (tmp_path / "mnt").mkdir()
        for command in (["mount", broker.log_dir, tmp_path / "mnt"], ["recover", broker.log_dir]):
            refused = run_kafkafs(*command, check=False)
            assert refused.returncode == 3
            assert f"held by kafka.Kafka (process {broker.pid})" in refused.stderr.decode()
        broker.stop()
        with mounted(broker.log_dir, tmp_path / "mnt", read_only=False) as mount:
            with pytest.raises(AssertionError, match="the broker did not start"):
                broker.start()
            assert "Failed to acquire lock on file .lock" in broker.log_text()
            assert b'"read-write"' in (mount.path / "@status.json").read_bytes()
        assert not verify_log_dir(broker.log_dir)
        broker.start()
        broker.stop()
    finally:
        broker.kill()
