"""ListOffsets: as brokers answered it, and against a plain scan on logs of every kind."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import SpecialTimestamp, greatest_timestamp, list_offset, offset_for_timestamp
from storage.types import Isolation, TimestampOffset, TopicPartition
from tests.support.builders import ROLL, Batch, BuiltPartition, Item, Partition, build_log_dir, commit, many
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.readers import open_log


@requires_fixtures
@pytest.mark.parametrize("indexes", ["as they are", "no .timeindex", "no index", "garbage .timeindex", "cut"])
def test_answers_equal_the_brokers(tmp_path: Path, indexes: str) -> None:
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
        assert list_offset(snapshot, SpecialTimestamp.EARLIEST) == TimestampOffset(-1, expected["earliest"])
        assert list_offset(snapshot, SpecialTimestamp.EARLIEST_LOCAL) == TimestampOffset(-1, expected["earliest"])
        assert list_offset(snapshot, SpecialTimestamp.LATEST) == TimestampOffset(-1, expected["latest"])
        assert list_offset(snapshot, SpecialTimestamp.LATEST_TIERED) is None
        greatest = list_offset(snapshot, SpecialTimestamp.MAX_TIMESTAMP)
        assert greatest is not None
        assert greatest.offset == expected["max_timestamp_offset"]
        for timestamp, offset, found_timestamp in expected["for_timestamp"]:
            found = offset_for_timestamp(snapshot, timestamp)
            expected_answer = None if offset == -1 else TimestampOffset(found_timestamp, offset)
            assert found == expected_answer, f"{name} at {timestamp}"
            asked += 1
    assert asked == 160


def _disordered(tmp_path: Path, seed: int, *, clean: bool = True, interval: int = 200) -> BuiltPartition:
    rng = random.Random(seed)
    items: list[Item] = []
    for number in range(80):
        if number in (30, 31, 60):
            items.append(ROLL)
        records = [
            Record(None, bytes(rng.randint(0, 60)), (), 10**12 + number * 10 + rng.randint(-300, 300))
            for _ in range(rng.randint(1, 4))
        ]
        items.append(Batch(records, log_append_time_ms=10**12 + number * 10 if number % 17 == 3 else None))
    return build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=interval)]}, clean=clean)["t", 0]


def _by_scan(partition: BuiltPartition, timestamp: int) -> TimestampOffset | None:
    """Kafka's rule, on plain lists."""
    bounds = [*partition.segments[1:], partition.log_end_offset]
    for base, end in zip(partition.segments, bounds, strict=True):
        records = [record for record in partition.records if base <= record.offset < end]
        if max((record.timestamp for record in records), default=-1) >= timestamp:
            first = next(record for record in records if record.timestamp >= timestamp)
            return TimestampOffset(first.timestamp, first.offset)
    return None


@pytest.mark.parametrize("seed", range(6))
def test_disordered_timestamps(tmp_path: Path, seed: int) -> None:
    partition = _disordered(tmp_path, seed, clean=seed % 2 == 0, interval=(0, 200, 4096)[seed % 3])
    snapshot = open_log(partition.path).snapshot()
    for timestamp in range(10**12 - 400, 10**12 + 1200, 7):
        assert offset_for_timestamp(snapshot, timestamp) == _by_scan(partition, timestamp)
    greatest = max(partition.records, key=lambda record: (record.timestamp, -record.offset))
    assert list_offset(snapshot, SpecialTimestamp.MAX_TIMESTAMP) == TimestampOffset(greatest.timestamp, greatest.offset)


def _without(data: bytes) -> bytes | None:
    return None


def _empty(data: bytes) -> bytes:
    return b""


def _lacking_the_last(data: bytes) -> bytes:
    return data[:-12]


def _later(data: bytes) -> bytes:
    """Every time a little later than it is: earlier messages would be passed over."""
    return b"".join(struct.pack(">qi", timestamp + 5, offset) for timestamp, offset in struct.iter_unpack(">qi", data))


def _further(data: bytes) -> bytes:
    """Every offset too far along."""
    return b"".join(struct.pack(">qi", timestamp, offset + 3) for timestamp, offset in struct.iter_unpack(">qi", data))


@pytest.mark.parametrize("damage", [_without, _empty, _lacking_the_last, _later, _further])
def test_damaged_time_index(tmp_path: Path, damage: Callable[[bytes], bytes | None]) -> None:
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


def test_greatest_timestamp_follows_growth(tmp_path: Path) -> None:
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


def _offsets(stored: object) -> range:
    return range(stored.base_offset, stored.last_offset + 1)  # type: ignore[attr-defined]


def test_records_below_the_log_start_are_no_answer(tmp_path: Path) -> None:
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


def test_what_is_not_stable_is_unknown_to_read_committed(tmp_path: Path) -> None:
    items = [Batch(many(2)), Batch(many(2), producer_id=1, transactional=True), Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    late = partition.records[3].timestamp
    assert offset_for_timestamp(snapshot, late) == TimestampOffset(late, 3)
    assert offset_for_timestamp(snapshot, late, Isolation.READ_COMMITTED) is None
    assert list_offset(snapshot, SpecialTimestamp.LATEST, Isolation.READ_COMMITTED) == TimestampOffset(-1, 2)
    assert list_offset(snapshot, SpecialTimestamp.LATEST) == TimestampOffset(-1, 6)
    assert list_offset(snapshot, SpecialTimestamp.MAX_TIMESTAMP, Isolation.READ_COMMITTED) is None


def test_messages_without_timestamps_and_the_mtime(tmp_path: Path) -> None:
    """A v0 segment counts by its mtime; it hides later segments, as it does at a broker."""
    items = [Batch(many(3), magic=0), ROLL, Batch([Record(None, b"v", (), 5000)])]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, mtime=1_700_000_000)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert greatest_timestamp(snapshot, snapshot.segments[0]).timestamp == -1
    assert offset_for_timestamp(snapshot, 4000) is None
    assert list_offset(snapshot, SpecialTimestamp.MAX_TIMESTAMP) == TimestampOffset(5000, 3)


def test_an_empty_log_knows_no_time(tmp_path: Path) -> None:
    partition = build_log_dir(tmp_path, {"t": [Partition([], start_offset=9)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert list_offset(snapshot, SpecialTimestamp.MAX_TIMESTAMP) is None
    assert list_offset(snapshot, SpecialTimestamp.LATEST) == TimestampOffset(-1, 9)
    assert offset_for_timestamp(snapshot, 0) is None


def test_markers_have_timestamps_too(tmp_path: Path) -> None:
    """Kafka's search does not leave control records out."""
    items = [Batch([Record(None, b"v", (), 1000)], producer_id=1, transactional=True), commit(1)]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    found = offset_for_timestamp(snapshot, 1001)
    assert found is not None
    assert found.offset == 1


def test_damage_in_the_batch_that_decides(tmp_path: Path) -> None:
    partition = build_log_dir(tmp_path, {"t": [[Batch(many(3)), ROLL, Batch(many(1))]]})["t", 0]
    with partition.log().open("r+b") as file:
        file.seek(90)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptBatch) as error:
        offset_for_timestamp(open_log(partition.path).snapshot(), 0)
    assert error.value.path == partition.log()


@pytest.mark.parametrize(("harm", "indexed"), [("zeros", True), ("zeros", False), ("crc", True)])
def test_damage_that_may_hide_the_answer(tmp_path: Path, harm: str, indexed: bool) -> None:
    """The end of a segment is destroyed: the next segment is not where messages of that time begin."""
    items: list[Item] = [Batch([Record(None, b"v", (), 1000 * n)]) for n in (1, 2, 3)]
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


@pytest.mark.parametrize(("magic", "offset"), [(0, None), (1, 0), (2, 0)])
def test_the_greatest_timestamp_where_there_is_none(tmp_path: Path, magic: int, offset: int | None) -> None:
    """As a broker answers: the first record, unless it has format v0."""
    records = [Record(None, b"x", (), -1)]
    partition = build_log_dir(tmp_path, {"t": [[Batch(records, magic=magic), Batch(records, magic=2)]]})["t", 0]
    found = list_offset(open_log(partition.path).snapshot(), SpecialTimestamp.MAX_TIMESTAMP)
    assert found == (None if offset is None else TimestampOffset(-1, offset))
