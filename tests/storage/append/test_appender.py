"""Records on their way into a log: what a topic takes, how large a batch may be, timestamps, old formats."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.append import batch_encoder
from storage.append.appender import Appended, Appender
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidRecord, PartitionOffline, RecordTooLarge
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordColumns
from storage.types import TopicPartition
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, StandingClock, opened, values_of
from tests.support.readers import read_all

TP = TopicPartition("t", 0)
CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[OwnedDir]:
    """A directory with the topic t."""
    directory = opened(tmp_path)
    directory.create_topic("t", 1)
    yield directory
    assert directory.close().clean


def appended(owned: OwnedDir, records: list[Record] | RecordColumns, **config: str) -> Appended:
    """Appends under a configuration, names with `_` for `.`."""
    if config:
        owned.alter_config("t", {key.replace("_", "."): value for key, value in config.items()})
    return Appender(owned.log(TP), clock=StandingClock()).append(records)


def headers_of(owned: OwnedDir) -> BatchTable:
    """The batch headers of the last segment."""
    data = owned.log(TP).snapshot().segments[-1].log.path.read_bytes()
    table = BatchTable.empty(10_000)
    scan(data, 0, table)
    return table


def lines(count: int, size: int = 100) -> RecordColumns:
    """Lines of one buffer, as @append has them: one timestamp for all."""
    return RecordColumns(
        b"".join(b"%0*d\n" % (size, n) for n in range(count)),
        np.arange(count, dtype=np.int64) * (size + 1),
        np.full(count, size, np.int64),
        np.full(1, -1, np.int64),
    )


def test_one_call_is_one_batch(owned: OwnedDir) -> None:
    assert appended(owned, lines(1000)) == Appended(1000, 0, 999, None)
    assert appended(owned, lines(5)) == Appended(5, 1000, 1004, None)
    table = headers_of(owned)
    assert table.count.tolist() == [1000, 5]
    assert table.max_timestamp.tolist() == [NOW_MS] * 2
    assert len(values_of(owned.log(TP).snapshot())) == 1005


def test_nothing_is_fine(owned: OwnedDir) -> None:
    assert appended(owned, []) == Appended(0, -1, -1, None)


@pytest.mark.parametrize(
    ("codec", "version"), [*((codec, "3.0") for codec in CODECS), *((codec, "0.10.0") for codec in CODECS[1:4])]
)
def test_no_batch_has_more_records_than_are_read(
    owned: OwnedDir, codec: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batch_encoder, batch_encoder):
        monkeypatch.setattr(module, "MOST_RECORDS", 400)
    monkeypatch.setattr(batch_encoder, "_ALWAYS_READ", 2800)
    records = [Record(None, b"") for _ in range(1000)]
    assert appended(owned, records, compression_type=codec, message_format_version=version).taken == 1000
    assert headers_of(owned).last_offset.tolist() == [399, 799, 999]


@pytest.mark.parametrize("codec", CODECS)
def test_no_batch_has_more_headers_than_are_read(owned: OwnedDir, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_encoder, "MOST_HEADERS", 10)
    monkeypatch.setattr(batch_encoder, "_ALWAYS_READ", 20)
    records = [Record(None, b"v", ((b"", None),) * number) for number in (3, 3, 4, 1, 0, 10, 2, 11)]
    result = appended(owned, records, compression_type=codec)
    assert result.taken == 7
    assert isinstance(result.error, RecordTooLarge)
    assert (result.error.expected, result.error.found) == ("at most 10", 11)
    assert headers_of(owned).count.tolist() == [3, 2, 1, 1]


def test_plain_lines_are_bounded_too(owned: OwnedDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Appender(owned.log(TP), clock=StandingClock()).append_lines(b"", b"\n" * 50) == (50, 50)
    monkeypatch.setattr(batch_encoder, "_ALWAYS_READ", 100)
    owned.alter_config("t", {"flush.messages": "100"})  # another configuration
    assert Appender(owned.log(TP), clock=StandingClock()).append_lines(b"", b"\n" * 50) is None


def test_all_of_a_record_is_kept(owned: OwnedDir) -> None:
    records = [
        Record(b"k", b"v", ((b"h", b"x"), (b"n", None)), 5),
        Record(None, None),
        Record(b"", b"", (), 7),
        Record(b"\xff\0", os.urandom(300)),
    ]
    assert appended(owned, records).error is None
    found = read_all(owned.log(TP).snapshot())
    assert [(r.key, r.value, r.headers, r.timestamp) for r in found] == [
        (r.key, r.value, tuple(r.headers), NOW_MS if r.timestamp < 0 else r.timestamp) for r in records
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(owned: OwnedDir, codec: str) -> None:
    assert appended(owned, lines(500), compression_type=codec).error is None
    assert headers_of(owned).codec.tolist() == [CODECS.index(codec)]
    assert values_of(owned.log(TP).snapshot()) == [b"%0100d" % n for n in range(500)]


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_a_batch_takes_several(owned: OwnedDir, codec: str) -> None:
    """Whatever fits max.message.bytes as stored, with incompressible values too."""
    records = [Record(None, os.urandom(100)) for _ in range(300)]
    outcome = appended(owned, records, compression_type=codec, max_message_bytes="5000")
    assert outcome == Appended(300, 0, 299, None)
    table = headers_of(owned)
    assert int(table.size.max()) <= 5000
    assert int(table.count.min()) > 8
    assert values_of(owned.log(TP).snapshot()) == [record.value for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_that_is_too_large_ends_it(owned: OwnedDir, codec: str) -> None:
    records = [Record(None, b"fits"), Record(None, os.urandom(6000)), Record(None, b"never")]
    outcome = appended(owned, records, compression_type=codec, max_message_bytes="5000")
    assert outcome.taken == 1
    assert isinstance(outcome.error, RecordTooLarge)
    assert "max.message.bytes = 5000" in str(outcome.error)
    assert values_of(owned.log(TP).snapshot()) == [b"fits"]


def test_the_stored_size_counts(owned: OwnedDir) -> None:
    """A large message that compresses well is taken (UnifiedLog.analyzeAndValidateRecords)."""
    outcome = appended(owned, [Record(None, b"x" * 100_000)], compression_type="zstd", max_message_bytes="5000")
    assert outcome.error is None
    assert int(headers_of(owned).size[0]) < 5000


def test_the_limit_is_exact(owned: OwnedDir) -> None:
    assert appended(owned, [Record(None, b"x" * 50)]).error is None
    size = int(headers_of(owned).size[0])
    assert appended(owned, [Record(None, b"x" * 50)], max_message_bytes=str(size)).error is None
    assert isinstance(appended(owned, [Record(None, b"x" * 50)], max_message_bytes=str(size - 1)).error, RecordTooLarge)


def test_segment_bytes_limits_too(owned: OwnedDir) -> None:
    outcome = appended(owned, lines(100), segment_bytes="1000")
    assert outcome.error is None
    assert len(owned.log(TP).snapshot().segments) > 10
    too_large = appended(owned, [Record(None, b"x" * 1000)])
    assert "segment.bytes = 1000" in str(too_large.error)


def test_a_compacted_topic_takes_keys_only(owned: OwnedDir) -> None:
    records = [Record(b"a", b"1"), Record(b"", b"2"), Record(None, b"3"), Record(b"b", b"4")]
    outcome = appended(owned, records, cleanup_policy="compact")
    assert outcome.taken == 2
    assert isinstance(outcome.error, InvalidRecord)
    assert values_of(owned.log(TP).snapshot()) == [b"1", b"2"]
    assert appended(owned, lines(3)).taken == 0


@pytest.mark.parametrize(
    ("timestamp", "taken"),
    [
        (NOW_MS - 1000, True),
        (NOW_MS - 1001, False),
        (NOW_MS + 500, True),
        (NOW_MS + 501, False),
        (-1, True),
        (-2, False),
        (2**63 - 1, False),
        (0, False),
    ],
)
def test_timestamps_have_bounds(owned: OwnedDir, timestamp: int, taken: bool) -> None:
    outcome = appended(
        owned,
        [Record(None, b"x"), Record(None, b"y", (), timestamp)],
        message_timestamp_before_max_ms="1000",
        message_timestamp_after_max_ms="500",
    )
    assert outcome.taken == 1 + taken
    assert (outcome.error is None) == taken


def test_by_default_the_past_is_open(owned: OwnedDir) -> None:
    assert appended(owned, [Record(None, b"x", (), 0)]).error is None
    assert appended(owned, [Record(None, b"x", (), NOW_MS + 3_600_001)]).taken == 0


def test_log_append_time(owned: OwnedDir) -> None:
    records = [Record(None, b"x", (), 5), Record(None, b"y", (), 2**62)]
    assert appended(owned, records, message_timestamp_type="LogAppendTime").error is None
    found = read_all(owned.log(TP).snapshot())
    assert [(r.timestamp, r.timestamp_type) for r in found] == [(NOW_MS, "LogAppendTime")] * 2
    table = headers_of(owned)
    assert (int(table.base_timestamp[0]), int(table.max_timestamp[0])) == (NOW_MS, NOW_MS)


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1), ("0.11.0", 2)])
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_old_formats(owned: OwnedDir, version: str, magic: int, codec: str, kind: str) -> None:
    records = [Record(b"k%d" % n, b"value %d" % n, (), 1000 + n) for n in range(40)]
    config = {"message_format_version": version, "compression_type": codec, "message_timestamp_type": kind}
    for _ in range(2):  # offsets within a wrapper begin at 0 only once
        assert appended(owned, records, **config).error is None
    found = read_all(owned.log(TP).snapshot())
    assert [r.offset for r in found] == list(range(80))
    assert [(r.key, r.value) for r in found] == [(r.key, r.value) for r in records] * 2
    assert set(headers_of(owned).magic.tolist()) == {magic}
    if magic == 0:
        assert {r.timestamp for r in found} == {-1}
    elif kind == "LogAppendTime":
        assert {r.timestamp for r in found} == {NOW_MS}
    else:
        assert [r.timestamp for r in found[:40]] == list(range(1000, 1040))


def test_old_formats_have_no_headers(owned: OwnedDir) -> None:
    records = [Record(b"k", b"v"), Record(b"k", b"w", ((b"h", b"x"),))]
    outcome = appended(owned, records, message_format_version="0.10.0")
    assert outcome.taken == 1
    assert isinstance(outcome.error, InvalidRecord)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
def test_old_formats_have_limits_too(owned: OwnedDir, codec: str) -> None:
    records = [Record(None, os.urandom(500)) for _ in range(30)] + [Record(None, os.urandom(3000))]
    config = {"message_format_version": "0.10.0", "compression_type": codec, "max_message_bytes": "2000"}
    outcome = appended(owned, records, **config)
    assert outcome.taken == 30
    assert isinstance(outcome.error, RecordTooLarge)
    assert int(headers_of(owned).size.max()) <= 2000
    assert values_of(owned.log(TP).snapshot()) == [record.value for record in records[:30]]


def test_a_full_disk_tells_what_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    first = opened(path)
    first.create_topic("t", 1, {"max.message.bytes": "1000"})
    first.close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    written = 0

    def fail(what: str, _path: Path) -> int | None:
        nonlocal written
        written += what.startswith("write ") and what.endswith(".log")
        return errno.ENOSPC if what.startswith("write ") and written > 2 else None

    owned.log(TP)
    disk.fail = fail
    outcome = appended(owned, lines(30))
    assert isinstance(outcome.error, OSError)
    assert 0 < outcome.taken < 30
    assert outcome.last_offset == outcome.taken - 1
    assert len(values_of(owned.log(TP).snapshot())) == outcome.taken
    disk.fail = lambda _what, _path: None
    assert owned.close().clean


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    writer = Appender(owned.log(TP), clock=StandingClock())
    owned.close()
    outcome = writer.append(lines(3))
    assert outcome.taken == 0
    assert isinstance(outcome.error, PartitionOffline)
