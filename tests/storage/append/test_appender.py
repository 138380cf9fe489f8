"""Records on their way into a log: what a topic takes, times, old formats; when segments roll, and index entries."""

import errno
import os
import random

import numpy as np
import pytest

from storage.append import batch_encoder, message_sets
from storage.append.appender import Appended, Appender
from storage.errors import InvalidRecord, RecordTooLarge
from storage.format.block import Record, RecordColumns
from storage.types import TopicPartition
from tests.support.faults import FaultyDisk, full_disk
from tests.support.owned_dirs import NOW_MS, StandingClock, close_clean, opened, tree_of, values_of
from tests.support.readers import read_all, table_of
from tests.support.replayed_logs import BESIDE

TP = TopicPartition("t", 0)
CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def owned(tmp_path):
    directory = opened(tmp_path)
    directory.create_topic("t", 1)
    yield directory
    assert directory.close().clean


def appended(owned, records, **config):
    if config:
        owned.alter_config("t", {key.replace("_", "."): value for key, value in config.items()})
    return Appender(owned.log(TP), clock=StandingClock()).append(records)


def values(owned):
    return values_of(owned.log(TP).snapshot())


def headers_of(owned):
    return table_of(owned.log(TP).snapshot().segments[-1].log.path.read_bytes())


def lines(count):
    """Lines of one buffer, as @append has them: one timestamp for all."""
    return RecordColumns(
        b"".join(b"%0100d\n" % n for n in range(count)),
        np.arange(count, dtype=np.int64) * 101,
        np.full(count, 100, np.int64),
        np.full(1, -1, np.int64),
    )


def test_one_call_is_one_batch(owned):
    assert appended(owned, lines(1000)) == Appended(1000, 0, 999, None)
    assert appended(owned, lines(5)) == Appended(5, 1000, 1004, None)
    table = headers_of(owned)
    assert table.count.tolist() == [1000, 5]
    assert table.max_timestamp.tolist() == [NOW_MS] * 2
    assert len(values(owned)) == 1005


@pytest.mark.parametrize(
    ("codec", "version"), [*((codec, "3.0") for codec in CODECS), *((codec, "0.10.0") for codec in CODECS[1:4])]
)
def test_no_batch_has_more_records_or_headers_than_are_read(owned, codec, version, monkeypatch):
    for module in (batch_encoder, message_sets):
        monkeypatch.setattr(module, "MOST_RECORDS", 400)
    monkeypatch.setattr(batch_encoder, "ALWAYS_READ", 2800)
    config = {"compression_type": codec, "message_format_version": version}
    assert appended(owned, [Record(None, b"")] * 1000, **config).taken == 1000
    assert headers_of(owned).last_offset.tolist() == [399, 799, 999]
    if version == "3.0":
        monkeypatch.setattr(batch_encoder, "MOST_HEADERS", 10)
        monkeypatch.setattr(batch_encoder, "ALWAYS_READ", 20)
        records = [Record(None, b"v", ((b"", None),) * number) for number in (3, 3, 4, 1, 0, 10, 2, 11)]
        result = appended(owned, records)
        assert result.taken == 7
        assert isinstance(result.error, RecordTooLarge)
        assert (result.error.expected, result.error.found) == ("at most 10", 11)
        assert headers_of(owned).count.tolist()[3:] == [3, 2, 1, 1]


def test_plain_lines_are_bounded_too(owned, monkeypatch):
    assert Appender(owned.log(TP), clock=StandingClock()).append_lines(b"", b"\n" * 50) == (50, 50)
    monkeypatch.setattr(batch_encoder, "ALWAYS_READ", 100)
    owned.alter_config("t", {"flush.messages": "100"})  # another configuration
    assert Appender(owned.log(TP), clock=StandingClock()).append_lines(b"", b"\n" * 50) is None


@pytest.mark.parametrize(("codec", "version"), [*((codec, "3.0") for codec in CODECS), ("gzip", "0.10.0")])
def test_more_than_a_batch_takes_several_up_to_a_message_that_is_too_large(owned, codec, version):
    """Whatever fits max.message.bytes as stored, with incompressible values too."""
    records = [Record(None, os.urandom(100)) for _ in range(300)]
    config = {"compression_type": codec, "max_message_bytes": "5000", "message_format_version": version}
    assert appended(owned, records, **config) == Appended(300, 0, 299, None)
    table = headers_of(owned)
    assert int(table.size.max()) <= 5000
    assert version != "3.0" or int(table.count.min()) > 8
    outcome = appended(owned, [Record(None, b"fits"), Record(None, os.urandom(6000)), Record(None, b"never")])
    assert outcome.taken == 1
    assert isinstance(outcome.error, RecordTooLarge)
    assert "max.message.bytes = 5000" in str(outcome.error)
    assert values(owned) == [*(record.value for record in records), b"fits"]


def test_limits(owned):
    # The size as stored counts (UnifiedLog.analyzeAndValidateRecords), to the byte.
    large = [Record(None, b"x" * 100_000)]
    assert appended(owned, large, compression_type="zstd", max_message_bytes="5000").error is None
    assert int(headers_of(owned).size[0]) < 5000
    record = [Record(None, b"x" * 50)]
    assert appended(owned, record, compression_type="uncompressed").error is None
    size = int(headers_of(owned).size[1])
    assert appended(owned, record, max_message_bytes=str(size)).error is None
    assert isinstance(appended(owned, record, max_message_bytes=str(size - 1)).error, RecordTooLarge)
    # segment.bytes limits too.
    assert appended(owned, lines(100), max_message_bytes="5000", segment_bytes="1000").error is None
    assert len(owned.log(TP).snapshot().segments) > 10
    assert "segment.bytes = 1000" in str(appended(owned, [Record(None, b"x" * 1000)]).error)


def test_limits_of_message_sets(owned):
    """To the byte as stored; before they are compressed, keys and values are not more than that either."""
    config = {"compression_type": "gzip", "max_message_bytes": "5000", "message_format_version": "0.10.0"}
    assert appended(owned, [Record(b"k" * 40, b"x" * 60)] * 100, **config).error is None
    assert headers_of(owned).last_offset.tolist() == [49, 99]
    size = int(headers_of(owned).size[1])
    again = [Record(b"k" * 40, b"x" * 60)] * 50
    assert appended(owned, again, max_message_bytes="5000").error is None
    assert headers_of(owned).size.tolist()[2:] == [size]
    single = [Record(None, b"x" * 50)]
    assert appended(owned, single, compression_type="uncompressed").error is None
    size = int(headers_of(owned).size[-1])
    assert appended(owned, single, max_message_bytes=str(size)).error is None
    assert isinstance(appended(owned, single, max_message_bytes=str(size - 1)).error, RecordTooLarge)


def test_what_a_topic_does_not_take(owned):
    records = [Record(b"k", b"v"), Record(b"k", b"w", ((b"h", b"x"),))]
    outcome = appended(owned, records, message_format_version="0.10.0")  # which has no headers
    assert outcome.taken == 1
    assert isinstance(outcome.error, InvalidRecord)
    records = [Record(b"a", b"1"), Record(b"", b"2"), Record(None, b"3"), Record(b"b", b"4")]
    outcome = appended(owned, records, cleanup_policy="compact")
    assert outcome.taken == 2
    assert isinstance(outcome.error, InvalidRecord)
    assert values(owned) == [b"v", b"1", b"2"]
    assert appended(owned, lines(3)).taken == 0


def test_timestamps_have_bounds(owned):
    owned.alter_config("t", {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "500"})
    for timestamp, taken in (
        (NOW_MS - 1000, True), (NOW_MS - 1001, False), (NOW_MS + 500, True), (NOW_MS + 501, False),
        (-1, True), (-2, False), (2**63 - 1, False), (0, False),
    ):  # fmt: skip
        outcome = appended(owned, [Record(None, b"x"), Record(None, b"y", (), timestamp)])
        assert outcome.taken == 1 + taken, timestamp
        assert (outcome.error is None) == taken, timestamp


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1), ("0.11.0", 2)])
@pytest.mark.parametrize("codec", CODECS[:4])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_old_formats(owned, version, magic, codec, kind):
    records = [Record(b"k%d" % n, b"value %d" % n, (), 1000 + n) for n in range(40)]
    config = {"message_format_version": version, "compression_type": codec, "message_timestamp_type": kind}
    for _ in range(2):  # offsets within a wrapper begin at 0 only once
        assert appended(owned, records, **config).error is None
    messages = read_all(owned.log(TP).snapshot())
    assert [r.offset for r in messages] == list(range(80))
    assert [(r.key, r.value) for r in messages] == [(r.key, r.value) for r in records] * 2
    assert set(headers_of(owned).magic.tolist()) == {magic}
    by_kind = [NOW_MS] * 40 if kind == "LogAppendTime" else list(range(1000, 1040))
    assert [r.timestamp for r in messages[:40]] == ([-1] * 40 if magic == 0 else by_kind)


@pytest.mark.parametrize(("codec", "fastest", "smallest"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -7, 19)])
def test_a_batch_is_compressed_at_the_topic_s_level(owned, codec, fastest, smallest):
    dice = random.Random(1)
    words = [dice.randbytes(dice.randint(2, 9)).hex().encode() for _ in range(300)]
    records = [Record(None, b" ".join(dice.choices(words, k=400))) for _ in range(20)]
    sizes = []
    for level in (fastest, smallest):
        levels = {f"compression_{codec}_level": str(level)}
        assert appended(owned, records, compression_type=codec, **levels).error is None
        sizes.append(int(headers_of(owned).size[-1]))
    assert sizes[1] < 0.97 * sizes[0]


def test_a_full_disk_tells_what_was_taken(tmp_path):
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1, {"max.message.bytes": "1000"})
    owned.log(TP)
    disk.fail = full_disk(2)
    outcome = appended(owned, lines(30))
    assert isinstance(outcome.error, OSError)
    assert 0 < outcome.taken < 30
    assert outcome.last_offset == outcome.taken - 1
    assert len(values(owned)) == outcome.taken
    disk.fail = lambda _what, _path: None
    assert owned.close().clean


BATCH_BYTES = 170  # of one message of 100 bytes


@pytest.mark.parametrize(
    "config",
    [
        {"segment.bytes": str(BATCH_BYTES)},
        {"segment.bytes": str(5 * BATCH_BYTES)},
        {"segment.bytes": str(5 * BATCH_BYTES - 1)},
        {"segment.ms": "1000"},
        {"segment.index.bytes": "40"},
        {"segment.bytes": "3000", "segment.ms": "2500", "segment.index.bytes": "100"},
    ],
)
@pytest.mark.parametrize("interval_bytes", [0, BATCH_BYTES, 3 * BATCH_BYTES - 1])
@pytest.mark.parametrize("fails", [False, True])
def test_messages_one_by_one_leave_the_files_of_all_at_once(tmp_path, config, interval_bytes, fails):
    """Segments, and index entries at the interval; also when the disk is full now and then. (That the files of all at
    once are Kafka's is in test_partition_log.)"""
    config = {**config, "index.interval.bytes": str(interval_bytes)}
    (tmp_path / "one by one").mkdir()
    disk = FaultyDisk(tmp_path / "one by one")
    owned = opened(disk.root, disk=disk)
    owned.create_topic("t", 1, config)
    dice, timestamp = random.Random(7), NOW_MS
    for _ in range(80):
        timestamp += dice.choice((0, 0, 250, 250, 500, 1000, 1001, -300))
        if fails:
            disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write") and "index" in what else None
            outcome = appended(owned, [Record(None, b"x" * 100, (), timestamp)])
            disk.fail = lambda _what, _path: None
            if outcome.error is None:
                continue
        assert appended(owned, [Record(None, b"x" * 100, (), timestamp)]).error is None
    logs = [segment.log.path.read_bytes() for segment in owned.log(TP).snapshot().segments]
    assert len(logs) > 1
    assert {len(log) % BATCH_BYTES for log in logs} == {0}
    at_once = opened(tmp_path / "at once")
    at_once.create_topic("t", 1, config)
    at_once.log(TP).append_batches(memoryview(b"".join(logs)))
    for directory in (owned, at_once):
        close_clean(directory)
    assert tree_of(owned.path / "t-0", BESIDE) == tree_of(at_once.path / "t-0", BESIDE)
