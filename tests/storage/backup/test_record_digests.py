"""Digests of logs: equal for the same records however they are stored, different otherwise; and where logs differ."""

import random

import pytest

from storage.backup.record_digests import LogDiff, Stored, diff_records, digest_records, stored_as
from storage.errors import CorruptBatch, OffsetOutOfRange
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.types import MAX_OFFSET, Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.damaged_bytes import flip

TP = TopicPartition("t", 0)


def snapshot_of(path, items):
    build_log_dir(path, {"t": [items]})
    return LogDir.open_read_only(path).log(TP).snapshot()


def digest_of(snapshot, by=None):
    return digest_records(snapshot, snapshot.log_start_offset, by=by)


def stamped(count, size=20, **more):
    return [record._replace(timestamp=1000 + n) for n, record in enumerate(many(count, size, **more))]


def in_batches(records, dice):
    row = 0
    while row < len(records):
        size = dice.randrange(1, 9)
        yield Batch(records[row : row + size], dice.choice(list(Codec)))
        yield from dice.choice(([], [], [ROLL]))
        row += size


def test_batches_codecs_formats_and_segments_do_not_matter(tmp_path):
    records = stamped(100, 50, keys=7, headers=((b"h", b"x"),))
    logs = [snapshot_of(tmp_path / str(n), [*in_batches(records, random.Random(n))]) for n in range(5)]
    digests = [digest_of(log, 10) for log in logs]
    assert len(set(digests)) == 1
    assert digests[0].whole.records == 100
    assert [(span.start_offset, span.end_offset, span.records) for span in digests[0].ranges] == [
        (n, n + 10, 10) for n in range(0, 100, 10)
    ]
    assert len({span.digest for span in digests[0].ranges}) == 10
    records = stamped(20, 50, keys=3)
    logs = [
        snapshot_of(tmp_path / f"{magic}-{codec.name}", [Batch(records, codec, magic)])
        for magic in (1, 2)
        for codec in (Codec.NONE, Codec.GZIP)
    ]
    assert len({digest_of(log) for log in logs}) == 1
    old = snapshot_of(tmp_path / "v0", [Batch(records, magic=0)])
    without = snapshot_of(tmp_path / "none", [Batch([record._replace(timestamp=-1) for record in records])])
    assert digest_of(old) == digest_of(without) != digest_of(logs[0])


@pytest.mark.parametrize(
    ("field", "value"), [("key", b"other"), ("value", None), ("headers", ((b"h", None),)), ("timestamp", 999)]
)
def test_each_field_counts(tmp_path, field, value):
    records = stamped(50, 30, keys=3)
    others = [*records[:33], records[33]._replace(**{field: value}), *records[34:]]
    left, right = snapshot_of(tmp_path / "a", [Batch(records)]), snapshot_of(tmp_path / "b", [Batch(others)])
    assert digest_of(left) != digest_of(right)
    diff = diff_records(left, right, by=10)
    assert (diff.ranges, diff.first.offset) == (((30, 39),), 33)
    assert getattr(diff.first.left, field) != getattr(diff.first.right, field) == value


def test_the_offset_counts(tmp_path):
    items = [Batch([Record(None, b"a", (), 1)])]
    left, right = snapshot_of(tmp_path / "a", items), snapshot_of(tmp_path / "b", Partition(items, start_offset=1))
    assert digest_of(left).whole.digest != digest_of(right).whole.digest
    first = diff_records(left, right).first
    assert (first.offset, first.right) == (0, None)


def test_a_record_that_one_side_lacks(tmp_path):
    records = stamped(50)
    whole = snapshot_of(tmp_path / "a", [Batch(records)])
    parts = snapshot_of(tmp_path / "b", [Batch(records[:20]), Batch(records[21:40], base_offset=21)])
    for left, right in ((whole, parts), (parts, whole)):
        diff = diff_records(left, right, by=10)
        assert (diff.ranges, diff.first.offset) == (((20, 29), (40, 49)), 20)
        assert (diff.first.left is None) == (left is parts)
    assert diff_records(whole, parts, 21, 40) == diff_records(whole, whole) == LogDiff()


def test_control_records_and_isolation(tmp_path):
    """Markers take offsets and are not records; aborted and open transactions count only without isolation."""
    items = [
        Batch(many(2), producer_id=1, transactional=True), abort(1), Batch(many(3), producer_id=2, transactional=True),
        commit(2), Batch(many(4)), Batch(many(2), producer_id=3, transactional=True), Batch(many(2)),
    ]  # fmt: skip
    log = snapshot_of(tmp_path / "log", items)
    assert digest_of(log).whole.records == 13
    committed = digest_records(log, 0, isolation=Isolation.READ_COMMITTED).whole
    assert (committed.records, committed.end_offset) == (7, log.log_end_offset)


def test_ranges_begin_at_multiples(tmp_path):
    log = snapshot_of(tmp_path / "log", Partition([Batch(many(30))], start_offset=95))
    found = digest_records(log, 98, 121, by=10)
    bounds = [(one.start_offset, one.end_offset, one.records) for one in found.ranges]
    assert bounds == [(98, 100, 2), (100, 110, 10), (110, 120, 10), (120, 121, 1)]
    assert (found.whole.start_offset, found.whole.end_offset, found.whole.records) == (98, 121, 23)
    assert digest_records(log, 98, MAX_OFFSET).whole.end_offset == 125
    with pytest.raises(OffsetOutOfRange):
        digest_records(log, 94)


def test_damage_is_an_error(tmp_path):
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5))]]})["t", 0]
    flip(built.log(), -1)
    with pytest.raises(CorruptBatch):
        digest_of(LogDir.open_read_only(tmp_path / "log").log(TP).snapshot())


def keyed(*numbers):
    """Records with the offsets as values and keys from the numbers; a deletion below 0."""
    return [
        Record(b"%d" % abs(number), b"%d" % offset if number >= 0 else None, timestamp=offset)
        for offset, number in enumerate(numbers)
    ]


def test_what_compaction_removed_is_told_apart(tmp_path):
    records = keyed(1, 2, -3, 1, 4, 5)
    whole = snapshot_of(tmp_path / "whole", [Batch(records)])
    kept = [Batch([records[1]], base_offset=1), Batch([records[3]], base_offset=3), Batch([records[5]], base_offset=5)]
    compacted = snapshot_of(tmp_path / "compacted", kept)
    found = diff_records(whole, compacted).differences
    # 0 has a later message with its key, 2 is a deletion; 4 is lost.
    assert (found.only, found.superseded, found.changed, found.whole) == ((3, 0), (2, 0), 0, True)
    assert diff_records(compacted, whole).differences.superseded == (0, 2)


def test_what_differs_is_named(tmp_path):
    records = keyed(1, 2, 3, 4)
    other = [records[0]._replace(timestamp=7), records[1], records[2]._replace(key=b"x", headers=((b"h", None),))]
    found = diff_records(
        snapshot_of(tmp_path / "a", [Batch(records)]), snapshot_of(tmp_path / "b", [Batch([*other, records[3]])])
    ).differences
    assert (found.changed, found.fields, found.only) == (2, ("timestamp", "key", "headers"), (0, 0))


def test_how_messages_are_stored(tmp_path):
    records = many(6, 20)
    items = [Batch(records[:2], Codec.NONE, 1), ROLL, Batch(records[2:4], Codec.ZSTD), Batch(records[4:])]
    log = snapshot_of(tmp_path, items)
    assert stored_as(log) == Stored(4, (1, 2), ("uncompressed", "zstd"))
    assert stored_as(log, 3, 4) == Stored(1, (2,), ("zstd",))
