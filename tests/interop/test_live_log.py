"""The engine on a running broker's directory: a snapshot at any moment shows exactly what was written."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from storage.errors import SegmentGone
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import SpecialTimestamp, list_offset, offset_for_timestamp
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TopicPartition
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.readers import read_all, records_of
from tests.support.waiting import wait_for

pytestmark = requires_kafka

_SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500, "segment.index.bytes": 100_000}


def _value(number: int) -> bytes:
    return b"%08d " % number + b"x" * (number % 97)


def _follow(
    log_dir: LogDir, topic: str, writes: Sequence[Callable[[], None]], check: Callable[[LogSnapshot], None]
) -> int:
    """Runs `writes` in a thread, and `check` on snapshots meanwhile and once after them; returns the number of checks.

    Checks are made between the writes too, however slow: each write waits until there was one more check.
    """
    log = log_dir.log(TopicPartition(topic, 0))
    failures: list[BaseException] = []
    checked = threading.Semaphore(0)

    def run() -> None:
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
    time.sleep(1.5)  # for the broker's background tasks
    check(log.snapshot())
    return looks


def _open(broker: Broker, topic: str) -> LogDir:
    log_dir = LogDir.open_read_only(broker.log_dir)
    assert topic in log_dir.topics()
    return log_dir


@pytest.mark.parametrize("preallocate", ["false", "true"])
def test_appends_rolls_and_retention(broker: Broker, client: Client, preallocate: str) -> None:
    topic = f"log-retention-{preallocate}"
    client.create_topic(topic, config={**_SMALL, "retention.bytes": 60_000, "preallocate": preallocate})
    seen: set[tuple[int, int]] = set()
    removed = [0]

    def first_segment() -> int:
        return min(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))

    def check(snapshot: LogSnapshot) -> None:
        start = snapshot.log_start_offset
        records = read_all(snapshot, start)
        assert [record.offset for record in records] == list(range(start, snapshot.log_end_offset))
        assert all(record.value == _value(record.offset) for record in records)
        seen.add((start, snapshot.log_end_offset))

    def write(first: int) -> None:
        client.produce(topic, [Message(_value(n)) for n in range(first, first + 300)], batch=7)
        if first % 1500 == 1200:  # since the last time more has come than a pass leaves
            wait_for("a retention pass", lambda: first_segment() > removed[-1])
            removed.append(first_segment())

    writes = [partial(write, first) for first in range(0, 6000, 300)]
    assert _follow(_open(broker, topic), topic, writes, check) > 10
    assert len({start for start, _ in seen}) > 2
    assert max(end for _, end in seen) == 6000


def test_compaction(broker: Broker, client: Client) -> None:
    topic = "log-compaction"
    config = {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 1000}
    client.create_topic(topic, config=config)
    sizes: list[int] = []

    def check(snapshot: LogSnapshot) -> None:
        latest: dict[bytes | None, int] = {}
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

    def write(first: int) -> None:
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


def test_transactions(broker: Broker, client: Client) -> None:
    topic = "log-transactions"
    client.create_topic(topic, config=_SMALL)

    def check(snapshot: LogSnapshot) -> None:
        stable = last_stable_offset(snapshot)
        committed = read_all(snapshot, isolation=Isolation.READ_COMMITTED)
        assert all(record.value is not None and record.value.startswith(b"keep") for record in committed)
        whole = [record for record in read_all(snapshot, 0, stable) if (record.value or b"").startswith(b"keep")]
        assert committed == whole

    def write(turn: int) -> None:
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


def test_deleted_records_and_times(broker: Broker, client: Client) -> None:
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
    assert list_offset(snapshot, SpecialTimestamp.EARLIEST).offset == 505  # type: ignore[union-attr]


def test_a_topic_made_anew(broker: Broker, client: Client) -> None:
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
