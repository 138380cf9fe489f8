"""A real broker on what we wrote: it serves it, repairs nothing, sets nothing aside, and appends after us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.append.appender import Appender
from storage.backup.mirror import Mirror
from storage.directory.owned_dir import Opening, OwnedDir
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka

pytestmark = [requires_kafka]

A = TopicPartition("adopted", 0)
M = TopicPartition("mirrored", 0)
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Broker]:
    """A broker with two topics, stopped."""
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic("adopted", 2, {"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
        client.create_topic("mirrored", 1, {"internal.segment.bytes": 20_000})
        client.produce("adopted", [Message(b"theirs %d" % n) for n in range(100)], 0)
        broker.stop()
        yield broker
        assert broker.complaints() == []
    finally:
        broker.kill()


def append(owned: OwnedDir, tp: TopicPartition, records: list[Record]) -> None:
    outcome = Appender(owned.appendable(tp), clock=owned.clock).append(records)
    assert outcome.error is None


def test_a_broker_goes_on_with_what_we_appended(stopped: Broker, tmp_path: Path) -> None:
    own = OwnedDir.open(tmp_path / "own", Opening(create=True))
    own.create_topic("mirrored", 1, {"segment.bytes": "5000"})
    for n in range(200):
        append(own, M, [Record(b"k%d" % n, b"mine %d" % n, ((b"h", b"x"),))] * 3)
    assert own.close().clean

    owned = OwnedDir.open(stopped.log_dir)
    for n in range(300):
        append(owned, A, [Record(None, b"ours %d" % n)] * 2)
    mirror = Mirror(LogDir.open_read_only(tmp_path / "own"), owned, lambda _: [M])
    mirror.run()
    assert mirror.results[M].error is None
    assert owned.close().clean
    assert len(list((stopped.log_dir / "adopted-0").glob("*.log"))) > 1
    dumps_without_a_finding([stopped.log_dir / tp.dir_name for tp in (A, M)])

    said = len(stopped.log_text())
    client = Client(stopped.start().address)
    consumed = [record.value for record in client.consume("adopted", 0)]
    expected = [b"theirs %d" % n for n in range(100)] + [b"ours %d" % (n // 2) for n in range(600)]
    assert consumed == expected
    assert len(client.consume("mirrored")) == 600
    adopted_as_it_is(told_since(stopped, said))
    client.produce("adopted", [Message(b"after")], 0)
    client.produce("mirrored", [Message(b"after")])
    assert client.consume("adopted", 0)[-1].offset == 700
    assert client.consume("mirrored")[-1].offset == 600
    stopped.stop()

    owned = OwnedDir.open(stopped.log_dir)
    append(owned, A, [Record(None, b"again")])
    assert owned.close().clean
    assert not verify_log_dir(stopped.log_dir, [A, M])
    client = Client(stopped.start().address)
    assert [record.value for record in client.consume("adopted", 0)] == [*expected, b"after", b"again"]
    stopped.stop()


def test_after_our_recovery_the_broker_has_nothing_to_do(stopped: Broker) -> None:
    client = Client(stopped.start().address)
    for codec in (None, "lz4", "zstd"):
        client.produce("adopted", [Message(b"x" * 500) for _ in range(100)], 1, compression_type=codec)
    before = client.consume("adopted", 1)
    stopped.kill()
    owned = OwnedDir.open(stopped.log_dir)
    assert not owned.failures()
    assert owned.close().clean
    assert not verify_log_dir(stopped.log_dir, owned.partitions())
    said = len(stopped.log_text())
    client = Client(stopped.start().address)
    assert client.consume("adopted", 1) == before
    adopted_as_it_is(told_since(stopped, said))
    stopped.stop()


def test_every_codec_of_ours_is_read(stopped: Broker) -> None:
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
