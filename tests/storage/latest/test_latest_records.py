"""The offsets of the latest records against a dict: any logs, both isolations, too little memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptBatch, TooManyKeys
from storage.format.block import Record
from storage.latest.latest_records import latest_offsets, rows_among
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, BuiltRecord, Item, Partition, abort, build_log_dir, commit

MEMORY = 1 << 20
KEYS = st.none() | st.binary(max_size=2) | st.sampled_from([b"k1", b"k2", b"k" * 300])
PAIRS = st.tuples(KEYS, st.none() | st.binary(max_size=3))
RECORDS = st.lists(PAIRS.map(lambda pair: Record(*pair)), min_size=1, max_size=8)
TRANSACTIONS = st.tuples(RECORDS, st.sampled_from([1, 2]))
ITEMS = st.one_of(
    RECORDS.map(Batch),
    TRANSACTIONS.map(lambda drawn: Batch(drawn[0], producer_id=drawn[1], transactional=True)),
    st.sampled_from([1, 2]).map(commit),
    st.sampled_from([1, 2]).map(abort),
    st.just(ROLL),
)


def expected(records: list[BuiltRecord]) -> list[int]:
    """By the plainest rule there is."""
    last: dict[bytes, BuiltRecord] = {record.key: record for record in records if record.key is not None}
    return sorted(record.offset for record in last.values() if record.value is not None)


def snapshot_of(path: Path) -> LogSnapshot:
    return LogDir.open_read_only(path).log(TopicPartition("t", 0)).snapshot()


@settings(max_examples=60)
@given(st.lists(ITEMS, max_size=12), st.integers(0, 20))
def test_any_log(items: list[Item], start: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        written = build_log_dir(Path(path), {"t": [Partition(items)]})["t", 0]
        start = min(start, written.log_end_offset)
        built = build_log_dir(Path(path) / "again", {"t": [Partition(items, log_start_offset=start)]})["t", 0]
        snapshot = snapshot_of(built.path.parent)
        for isolation, records in (
            (Isolation.READ_UNCOMMITTED, built.records),
            (Isolation.READ_COMMITTED, built.read_committed),
        ):
            assert latest_offsets(snapshot, isolation, MEMORY).tolist() == expected(records)


def keyed(count: int, keys: int, first: int = 0) -> list[Record]:
    return [Record(b"key-%d" % ((first + i) * 7919 % keys), b"v") for i in range(count)]


def test_too_many_keys_name_the_way_out(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [Partition([Batch(keyed(3_000, 10**9))])]})["t", 0]
    with pytest.raises(TooManyKeys, match=r"t/0 has more keys.*latest_memory=.*kafkafs spark latest"):
        latest_offsets(snapshot_of(built.path.parent), Isolation.READ_UNCOMMITTED, 32 << 10)


def test_damage_may_hide_the_latest(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [Partition([Batch(keyed(5, 3)), Batch(keyed(5, 3)), ROLL])]})["t", 0]
    data = bytearray(built.log(0).read_bytes())
    data[-3] ^= 1
    built.log(0).write_bytes(data)
    with pytest.raises(CorruptBatch):
        latest_offsets(snapshot_of(built.path.parent), Isolation.READ_UNCOMMITTED, MEMORY)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_rows_among(offsets: set[int], chosen: set[int]) -> None:
    of, among = np.array(sorted(offsets), np.int64), np.array(sorted(chosen), np.int64)
    assert rows_among(of, among).tolist() == [offset in chosen for offset in sorted(offsets)]
