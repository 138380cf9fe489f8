"""Counts from headers against what consumers saw, and against built logs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.format.compression import Codec
from storage.log.counting import count_messages, nth_message, visible_end
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import MAX_OFFSET, Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.fixtures import GoldenCase, case_params, golden_cases

# A batch of these fails for Kafka's consumer too, and their golden files end before it.
DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}
SOUND = [case for case in golden_cases() if case.topic not in DAMAGED]


def snapshot_of(path: Path, topic: str, partition: int = 0) -> LogSnapshot:
    return LogDir.open_read_only(path).log(TopicPartition(topic, partition)).snapshot()


@pytest.mark.parametrize("case", case_params(SOUND))
def test_counts_equal_golden(case: GoldenCase) -> None:
    snapshot = snapshot_of(case.log_dir, case.topic, case.partition)
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


def test_transactions_and_rolls(tmp_path: Path) -> None:
    items = [
        Batch(many(5)),
        Batch(many(3), producer_id=7, transactional=True),
        ROLL,
        Batch(many(2), producer_id=8, transactional=True, codec=Codec.ZSTD),
        abort(7),
        commit(8),
        Batch(many(4, keys=2), codec=Codec.LZ4),
        Batch(many(1), producer_id=9, transactional=True),
    ]
    built = build_log_dir(tmp_path, {"t": [Partition(items, log_start_offset=2)]})["t", 0]
    snapshot = snapshot_of(tmp_path, "t")
    for isolation, records in (
        (Isolation.READ_UNCOMMITTED, built.records),
        (Isolation.READ_COMMITTED, built.read_committed),
    ):
        offsets = [record.offset for record in records]
        assert visible_end(snapshot, isolation) == (16 if isolation is Isolation.READ_COMMITTED else 17)
        for start in range(18):
            for end in range(start, 19):
                assert count_messages(snapshot, start, end, isolation) == len([o for o in offsets if start <= o < end])
            after = [offset for offset in offsets if offset >= start]
            for number in range(1, len(after) + 2):
                expected = after[number - 1] if number <= len(after) else None
                assert nth_message(snapshot, start, number, isolation) == expected


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(tmp_path: Path, magic: int, codec: Codec) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(7), codec=codec, magic=magic), Batch(many(7), magic=magic)])]})
    snapshot = snapshot_of(tmp_path, "t")
    for start in range(15):
        for end in range(start, 16):
            assert count_messages(snapshot, start, end, Isolation.READ_UNCOMMITTED) == min(end, 14) - min(start, 14)


def test_empty_log(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([])]})
    snapshot = snapshot_of(tmp_path, "t")
    assert count_messages(snapshot, 0, MAX_OFFSET, Isolation.READ_COMMITTED) == 0
    assert nth_message(snapshot, 0, 1, Isolation.READ_UNCOMMITTED) is None


def test_damage_is_an_error(tmp_path: Path) -> None:
    items = [Batch(many(3)), ROLL, Batch(many(3)), ROLL, Batch(many(3))]
    built = build_log_dir(tmp_path, {"t": [Partition(items)]})["t", 0]
    log = built.log(1)
    data = bytearray(log.read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"  # a length that no batch has
    log.write_bytes(data)
    snapshot = snapshot_of(tmp_path, "t")
    assert count_messages(snapshot, 6, 9, Isolation.READ_UNCOMMITTED) == 3
    with pytest.raises(CorruptBatch, match=log.name):
        count_messages(snapshot, 0, 9, Isolation.READ_UNCOMMITTED)
    data = bytearray(built.log(2).read_bytes())
    data[70] ^= 1  # within the records
    built.log(2).write_bytes(data)
    with pytest.raises(CorruptBatch, match="checksum"):
        count_messages(snapshot, 7, 9, Isolation.READ_UNCOMMITTED)
