"""What is asked of whole logs, as brokers answer it and against plain scans: offsets, cuts, counts, histograms."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter

import pytest

from storage.errors import CorruptBatch
from storage.format.block import Record
from storage.log.counting import count_messages, histogram, nth_message
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import (
    MixedBatch,
    cut_at,
    greatest_timestamp,
    offset_for_timestamp,
)
from storage.log.scanning import scan_batches
from storage.types import MAX_OFFSET, Isolation, TimestampOffset, TopicPartition
from tests.support.builders import (
    ROLL,
    START_MS,
    Batch,
    Codec,
    Partition,
    build_log_dir,
    commit,
    many,
)
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, case_params, copy_log_dir, golden_cases, requires_fixtures
from tests.support.readers import open_log, read_all

# ListOffsets: as brokers answered it, and against a plain scan on logs of every kind.


@requires_fixtures
@pytest.mark.parametrize("indexes", ["as they are", "no .timeindex", "no index", "garbage .timeindex", "cut"])
def test_answers_equal_the_brokers(tmp_path, indexes):
    source = FIXTURES / "times/log"
    path = source if indexes == "as they are" else copy_log_dir(source, tmp_path / "log")
    rng = random.Random(indexes)
    for index in path.glob("*/*index") if path != source else ():
        if indexes == "no index" or (indexes == "no .timeindex" and index.suffix == ".timeindex"):
            index.unlink()
        elif index.suffix == ".timeindex" and indexes == "garbage .timeindex":
            # Ascending, so that only the log can tell that it lies.
            index.write_bytes(b"".join(struct.pack(">qi", 10**12 + i, rng.randint(0, 9) + i * 10) for i in range(5)))
        elif index.suffix == ".timeindex" and indexes == "cut":
            index.write_bytes(index.read_bytes()[:-7])
    log_dir = LogDir.open_read_only(path)
    golden = json.loads((FIXTURES / "times/golden/list-offsets.json").read_text())
    asked = 0
    for name, expected in golden.items():
        topic, _, partition = name.rpartition("-")
        snapshot = log_dir.log(TopicPartition(topic, int(partition))).snapshot()
        assert (snapshot.log_start_offset, snapshot.log_end_offset) == (expected["earliest"], expected["latest"])
        for timestamp, offset, found_timestamp in expected["for_timestamp"]:
            found = offset_for_timestamp(snapshot, timestamp)
            expected_answer = None if offset == -1 else TimestampOffset(found_timestamp, offset)
            assert found == expected_answer, f"{name} at {timestamp}"
            asked += 1
    assert asked == 160


def _disordered(tmp_path, seed, *, clean=True, interval=200):
    rng = random.Random(seed)
    items = []
    for number in range(80):
        if number in (30, 31, 60):
            items.append(ROLL)
        records = [
            Record(None, bytes(rng.randint(0, 60)), (), 10**12 + number * 10 + rng.randint(-300, 300))
            for _ in range(rng.randint(1, 4))
        ]
        items.append(Batch(records, log_append_time_ms=10**12 + number * 10 if number % 17 == 3 else None))
    return build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=interval)]}, clean=clean)["t", 0]


def _by_scan(partition, timestamp):
    """Kafka's rule, on plain lists."""
    bounds = [*partition.segments[1:], partition.log_end_offset]
    for base, end in zip(partition.segments, bounds, strict=True):
        records = [record for record in partition.records if base <= record.offset < end]
        if max((record.timestamp for record in records), default=-1) >= timestamp:
            first = next(record for record in records if record.timestamp >= timestamp)
            return TimestampOffset(first.timestamp, first.offset)
    return None


@pytest.mark.parametrize("seed", range(6))
def test_disordered_timestamps(tmp_path, seed):
    partition = _disordered(tmp_path, seed, clean=seed % 2 == 0, interval=(0, 200, 4096)[seed % 3])
    snapshot = open_log(partition.path).snapshot()
    for timestamp in range(10**12 - 400, 10**12 + 1200, 7):
        assert offset_for_timestamp(snapshot, timestamp) == _by_scan(partition, timestamp)


def _without(data):
    return None


def _empty(data):
    return b""


def _lacking_the_last(data):
    return data[:-12]


def _later(data):
    """Every time a little later than it is: earlier messages would be passed over."""
    return b"".join(struct.pack(">qi", timestamp + 5, offset) for timestamp, offset in struct.iter_unpack(">qi", data))


def _further(data):
    """Every offset too far along."""
    return b"".join(struct.pack(">qi", timestamp, offset + 3) for timestamp, offset in struct.iter_unpack(">qi", data))


@pytest.mark.parametrize("damage", [_without, _empty, _lacking_the_last, _later, _further])
def test_damaged_time_index(tmp_path, damage):
    partition = _disordered(tmp_path, 11)
    for index in partition.path.glob("*.timeindex"):
        data = damage(index.read_bytes())
        if data is None:
            index.unlink()
        else:
            index.write_bytes(data)
    snapshot = open_log(partition.path).snapshot()
    for timestamp in range(10**12 - 400, 10**12 + 1200, 13):
        assert offset_for_timestamp(snapshot, timestamp) == _by_scan(partition, timestamp)


def test_greatest_timestamp_follows_growth(tmp_path):
    partition = _disordered(tmp_path, 2)
    path = tmp_path / "live" / "t-0"
    path.mkdir(parents=True)
    data = partition.log().read_bytes()
    target = path / partition.log().name
    target.write_bytes(b"")
    log = open_log(path)
    greatest = -1
    for batch in partition.batches[:30]:
        target.write_bytes(data[: batch.position + batch.size])
        greatest = max(greatest, *(r.timestamp for r in partition.records if r.offset in _offsets(batch.stored)))
        snapshot = log.snapshot()
        assert greatest_timestamp(snapshot, snapshot.segments[0]).timestamp == greatest


def _offsets(stored):
    return range(stored.base_offset, stored.last_offset + 1)


def test_records_below_the_log_start_are_no_answer(tmp_path):
    records = [Record(None, b"v", (), 1000 + i) for i in range(10)]
    items = [Batch(records[:4]), Batch(records[4:8]), ROLL, Batch(records[8:])]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path, log_start=6).snapshot()
    assert offset_for_timestamp(snapshot, 0) == TimestampOffset(1006, 6)
    assert offset_for_timestamp(snapshot, 1007) == TimestampOffset(1007, 7)
    assert offset_for_timestamp(snapshot, 1008) == TimestampOffset(1008, 8)
    assert offset_for_timestamp(snapshot, 1010) is None
    # Kafka asks only the first segment that reaches the time, even if it lies below the log start.
    assert offset_for_timestamp(open_log(partition.path, log_start=8).snapshot(), 1003) is None


def test_what_is_not_stable_is_unknown_to_read_committed(tmp_path):
    items = [Batch(many(2)), Batch(many(2), producer_id=1, transactional=True), Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    late = partition.records[3].timestamp
    assert offset_for_timestamp(snapshot, late) == TimestampOffset(late, 3)
    assert offset_for_timestamp(snapshot, late, Isolation.READ_COMMITTED) is None


def test_messages_without_timestamps_and_the_mtime(tmp_path):
    """A v0 segment counts by its mtime; it hides later segments, as it does at a broker."""
    items = [Batch(many(3), magic=0), ROLL, Batch([Record(None, b"v", (), 5000)])]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, mtime=1_700_000_000)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert greatest_timestamp(snapshot, snapshot.segments[0]).timestamp == -1
    assert offset_for_timestamp(snapshot, 4000) is None


def test_an_empty_log_knows_no_time(tmp_path):
    partition = build_log_dir(tmp_path, {"t": [Partition([], start_offset=9)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert offset_for_timestamp(snapshot, 0) is None


def test_markers_have_timestamps_too(tmp_path):
    """Kafka's search does not leave control records out."""
    items = [Batch([Record(None, b"v", (), 1000)], producer_id=1, transactional=True), commit(1)]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    found = offset_for_timestamp(snapshot, 1001)
    assert found is not None
    assert found.offset == 1


def test_damage_in_the_batch_that_decides(tmp_path):
    partition = build_log_dir(tmp_path, {"t": [[Batch(many(3)), ROLL, Batch(many(1))]]})["t", 0]
    overwrite(partition.log(), 90, b"\xff\xff")
    with pytest.raises(CorruptBatch) as error:
        offset_for_timestamp(open_log(partition.path).snapshot(), 0)
    assert error.value.path == partition.log()


@pytest.mark.parametrize(("harm", "indexed"), [("zeros", True), ("zeros", False), ("crc", True)])
def test_damage_that_may_hide_the_answer(tmp_path, harm, indexed):
    """The end of a segment is destroyed: the next segment is not where messages of that time begin."""
    items = [Batch([Record(None, b"v", (), 1000 * n)]) for n in (1, 2, 3)]
    items += [ROLL, Batch([Record(None, b"v", (), 4000)])]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    batch = partition.batches[2]
    with partition.log().open("r+b") as file:
        file.seek(batch.position if harm == "zeros" else batch.position + 35)
        file.write(bytes(batch.size if harm == "zeros" else 8))  # 35: the greatest timestamp
    if not indexed:
        partition.log().with_suffix(".timeindex").unlink()
    snapshot = open_log(partition.path).snapshot()
    with pytest.raises(CorruptBatch):
        offset_for_timestamp(snapshot, 2500)
    assert offset_for_timestamp(snapshot, 1500) == TimestampOffset(2000, 1)
    assert offset_for_timestamp(snapshot, 4001) is None


# Where a log is cut at a moment: against a rule in plain Python over all batches.

TP = TopicPartition("t", 0)


def snapshot_of(path, items):
    build_log_dir(path, {"t": [items]})
    return LogDir.open_read_only(path).log(TP).snapshot()


def stamped(*timestamps):
    return [Record(None, b"at %d" % stamp, (), stamp) for stamp in timestamps]


def test_the_last_batch_with_a_message_of_that_time_is_the_last(tmp_path):
    items = [
        Batch(stamped(10, 20)),
        ROLL,
        Batch(stamped(30, 40)),
        Batch(stamped(50)),
        ROLL,
        Batch(stamped(60)),
    ]
    whole = snapshot_of(tmp_path / "log", items)
    ends = {9: 0, 10: 2, 19: 2, 20: 2, 29: 2, 30: 4, 39: 4, 40: 4, 49: 4, 50: 5, 59: 5, 60: 6, 1000: 6}
    for until, end in ends.items():
        cut = cut_at(whole, until)
        assert cut.snapshot.log_end_offset == end, until
        assert [r.offset for r in read_all(cut.snapshot)] == list(range(end))
        assert cut.mixed == {10: MixedBatch(0, 1, 1), 19: MixedBatch(0, 1, 1), 30: MixedBatch(2, 3, 1),
                             39: MixedBatch(2, 3, 1)}.get(until)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_timestamps_in_any_order(tmp_path, seed):
    dice = random.Random(seed)
    batches = [[dice.randrange(100) for _ in range(dice.randrange(1, 5))] for _ in range(30)]
    items = []
    for batch in batches:
        codec, append_time = dice.choice((Codec.NONE, Codec.LZ4)), dice.choice((None, None, dice.randrange(100)))
        if append_time is not None:
            batch[:] = [append_time] * len(batch)
        items += [Batch(stamped(*batch), codec=codec, log_append_time_ms=append_time), *dice.choice(([], [], [ROLL]))]
    whole = snapshot_of(tmp_path / "log", items)
    for until in (-1, 0, 5, 50, 99, *dice.choices(range(100), k=5)):
        kept = max((n for n, batch in enumerate(batches) if min(batch) <= until), default=-1)
        cut = cut_at(whole, until)
        assert cut.snapshot.log_end_offset == sum(map(len, batches[: kept + 1]))
        later = sum(stamp > until for stamp in batches[kept]) if kept >= 0 else 0
        assert (0 if cut.mixed is None else cut.mixed.later) == later
        assert len(read_all(cut.snapshot)) == cut.snapshot.log_end_offset


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(tmp_path, magic, codec):
    """Messages of format v0 have no timestamp: they are from before any moment."""
    whole = snapshot_of(tmp_path / "log", [Batch(stamped(10, 20), codec, magic), Batch(stamped(30, 40), codec, magic)])
    assert cut_at(whole, 5).snapshot.log_end_offset == (4 if magic == 0 else 0)
    expected = 4 if magic == 0 else 4 if codec else 3
    assert cut_at(whole, 30).snapshot.log_end_offset == expected


def test_a_commit_of_that_time_belongs_to_it(tmp_path):
    items = [Batch(many(2), producer_id=7, transactional=True), commit(7), Batch(many(1))]
    whole = snapshot_of(tmp_path / "log", items)
    assert cut_at(whole, START_MS + 2000).snapshot.log_end_offset == 3
    assert cut_at(whole, START_MS + 1999).snapshot.log_end_offset == 2


def test_nothing_of_that_time_and_nothing_at_all(tmp_path):
    later = snapshot_of(tmp_path / "later", Partition([Batch(stamped(10))], start_offset=100))
    cut = cut_at(later, 9).snapshot
    assert (cut.log_start_offset, cut.log_end_offset, cut.size_bytes) == (100, 100, 0)
    empty = snapshot_of(tmp_path / "empty", [])
    assert cut_at(empty, 9).snapshot.log_end_offset == 0


def test_messages_below_the_log_start_count(tmp_path):
    items = [Batch(stamped(10)), Batch(stamped(20)), Batch(stamped(30))]
    whole = snapshot_of(tmp_path / "log", Partition(items, log_start_offset=2))
    cut = cut_at(whole, 15).snapshot
    assert (cut.log_start_offset, cut.log_end_offset) == (1, 1)


def test_damage_after_the_cut_is_an_error(tmp_path):
    """It may hide a message of that time."""
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(stamped(10)), Batch(stamped(30)), ROLL, Batch(stamped(40))]]})
    flip(built["t", 0].log(), -1)
    with pytest.raises(CorruptBatch):
        cut_at(LogDir.open_read_only(built.path).log(TP).snapshot(), 20)


# Counts from headers against what consumers saw, and against built logs.

# A batch of these fails for Kafka's consumer too, and their golden files end before it.
DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}
SOUND = [case for case in golden_cases() if case.topic not in DAMAGED]


def counting_snapshot_of(path, topic, partition=0):
    return LogDir.open_read_only(path).log(TopicPartition(topic, partition)).snapshot()


@pytest.mark.parametrize("case", case_params(SOUND))
def test_counts_equal_golden(case):
    snapshot = counting_snapshot_of(case.log_dir, case.topic, case.partition)
    isolation = Isolation(case.isolation)
    offsets = [record.offset for record in case.records()]
    assert count_messages(snapshot, 0, MAX_OFFSET, isolation) == len(offsets)
    rng = random.Random(str(case))
    for _ in range(8):
        start = rng.randint(snapshot.log_start_offset, snapshot.log_end_offset)
        end = rng.randint(start, snapshot.log_end_offset + 1)
        inside = [offset for offset in offsets if start <= offset < end]
        assert count_messages(snapshot, start, end, isolation) == len(inside)
        after = [offset for offset in offsets if offset >= start]
        number = rng.randint(1, len(after) + 1)
        assert nth_message(snapshot, start, number, isolation) == (after[number - 1] if number <= len(after) else None)


def test_damage_is_an_error(tmp_path):
    items = [Batch(many(3)), ROLL, Batch(many(3)), ROLL, Batch(many(3))]
    built = build_log_dir(tmp_path, {"t": [Partition(items)]})["t", 0]
    log = built.log(1)
    data = bytearray(log.read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"  # a length that no batch has
    log.write_bytes(data)
    snapshot = counting_snapshot_of(tmp_path, "t")
    assert count_messages(snapshot, 6, 9, Isolation.READ_UNCOMMITTED) == 3
    with pytest.raises(CorruptBatch, match=log.name):
        count_messages(snapshot, 0, 9, Isolation.READ_UNCOMMITTED)
    flip(built.log(2), 70)  # within the records
    with pytest.raises(CorruptBatch, match="checksum"):
        count_messages(snapshot, 7, 9, Isolation.READ_UNCOMMITTED)


# Histograms of real logs against a look at every batch.

LOGS = [
    ("codecs", "c-none-0"),
    ("codecs", "c-zstd-1"),
    ("times", "t-create-0"),
    ("times", "t-append-0"),
    ("times", "t-deleted-1"),
    ("roll", "roll-ms-0"),
    ("roll", "index-interval-0-0"),
    ("roll", "index-interval-100-0"),
    ("transactions", "tx-aborts-0"),
    ("compaction-after", "cmp-plain-0"),
    ("v0", "v0-none-0"),
    ("v0", "v0-v1-v2-0"),
    ("v1", "v1-gzip-0"),
]


def histogram_snapshot_of(logs, partition):
    topic, _, number = partition.rpartition("-")
    return LogDir.open_read_only(logs).log(TopicPartition(topic, int(number))).snapshot()


def batches_of(snapshot):
    """(greatest timestamp so far within the segment, bytes, last offset) of every batch above the log start."""
    found = []
    for segment in snapshot.segments:
        greatest = -1
        for window in scan_batches(snapshot, segment, 0):
            table = window.table
            for timestamp, size, last in zip(
                table.max_timestamp.tolist(), table.size.tolist(), table.last_offset.tolist(), strict=True
            ):
                greatest = max(greatest, timestamp)
                if last >= snapshot.log_start_offset:
                    found.append((greatest, size, last))
    return found


def by_bucket(batches, width):
    sizes = Counter()
    for timestamp, size, _ in batches:
        sizes[timestamp // width * width if timestamp >= 0 else -1] += size
    return sizes


def stored(found):
    sizes = Counter(
        {start: size for start, size in zip(found.starts_ms.tolist(), found.size_bytes.tolist(), strict=True) if size}
    )
    if found.undated_bytes:
        sizes[-1] = found.undated_bytes
    return sizes


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), LOGS)
@pytest.mark.parametrize("buckets", [3, 40, 500])
def test_against_every_batch(fixture, partition, buckets):
    snapshot = histogram_snapshot_of(FIXTURES / fixture / "log", partition)
    batches = batches_of(snapshot)
    found = histogram([snapshot], buckets=buckets)
    assert len(found.messages) <= buckets
    assert int(found.size_bytes.sum()) + found.undated_bytes == sum(size for _, size, _ in batches)
    assert (found.messages >= 0).all()
    assert stored(found) == by_bucket(batches, found.width_ms)


def at(timestamp):
    """Messages of one moment."""
    return Batch([Record(None, b"message", (), timestamp)] * 3)


def made(path, items):
    build_log_dir(path, {"t": [Partition(items, index_interval_bytes=500)]})
    return histogram_snapshot_of(path, "t-0")


def test_without_an_index_headers_tell(tmp_path):
    items = [at(1_700_000_000_000 + n * 3000) for n in range(400)]
    snapshot = made(tmp_path, items)
    with_index = histogram([snapshot])
    for path in (tmp_path / "t-0").glob("*index"):
        path.write_bytes(b"garbage that is no index at all")
    without = histogram([histogram_snapshot_of(tmp_path, "t-0")])
    assert stored(without) == stored(with_index)


def test_several_logs_are_added_up(tmp_path):
    snapshot = made(tmp_path, [at(1_700_000_000_000 + n * 3000) for n in range(50)])
    one, two = histogram([snapshot]), histogram([snapshot, snapshot])
    assert (two.messages == 2 * one.messages).all()
    assert (two.starts_ms == one.starts_ms).all()
