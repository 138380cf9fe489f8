"""read_committed: the last stable offset and aborted transactions, from the log itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from storage.format.batches import BatchTable, scan
from storage.log import isolation as isolation_module
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.reader import read_range
from storage.types import Isolation
from tests.support.builders import ROLL, Batch, BuiltPartition, Item, Partition, abort, build_log_dir, commit, many
from tests.support.readers import built, open_log, read_all, read_past_damage, records_of

_COMMITTED = Isolation.READ_COMMITTED


def _random_items(rng: random.Random, count: int) -> list[Item]:
    """Interleaved transactions of five producers, idempotent and plain batches between them, rolls anywhere."""
    items: list[Item] = []
    open_producers: set[int] = set()
    for _ in range(count):
        kind = rng.random()
        producer = rng.randint(1, 5)
        if kind < 0.5:
            items.append(Batch(many(rng.randint(1, 3)), producer_id=producer, transactional=True))
            open_producers.add(producer)
        elif kind < 0.75 and open_producers:
            producer = rng.choice(sorted(open_producers))
            open_producers.discard(producer)
            items.append(rng.choice([commit, abort])(producer))
        elif kind < 0.8:
            items.append(rng.choice([commit, abort])(producer + 100))  # a transaction without data here
        elif kind < 0.9:
            items.append(Batch(many(2)))
        elif kind < 0.95:
            items.append(Batch(many(1), producer_id=50))
        else:
            items.append(ROLL)
    return items


def _write(tmp_path: Path, seed: int, *, clean: bool = True) -> BuiltPartition:
    items = _random_items(random.Random(seed), 120)
    return build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=300)]}, clean=clean)["t", 0]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("indexes", ["all", "no txnindex", "no snapshots", "neither", "cut txnindex"])
def test_random_transactions(tmp_path: Path, seed: int, indexes: str) -> None:
    partition = _write(tmp_path, seed, clean=seed % 2 == 0)
    if indexes in ("no txnindex", "neither"):
        for path in partition.path.glob("*.txnindex"):
            path.unlink()
    if indexes in ("no snapshots", "neither"):
        for path in partition.path.glob("*.snapshot"):
            path.unlink()
    if indexes == "cut txnindex":
        for path in partition.path.glob("*.txnindex"):
            path.write_bytes(path.read_bytes()[:-34])
    snapshot = open_log(partition.path).snapshot()
    assert last_stable_offset(snapshot) == partition.last_stable_offset
    expected = partition.read_committed
    assert built(read_all(snapshot, isolation=_COMMITTED)) == expected
    assert built(read_all(snapshot, isolation=_COMMITTED, window=200)) == expected
    rng = random.Random(seed)
    for _ in range(20):
        start = rng.randint(0, snapshot.log_end_offset)
        end = rng.randint(start, snapshot.log_end_offset)
        records = read_all(snapshot, start, end, _COMMITTED)
        assert built(records) == [record for record in expected if start <= record.offset < end]


def test_forgetting_markers_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers of many segments do not fit: they are collected again."""
    monkeypatch.setattr(isolation_module, "_MARKERS_KEPT", 3)
    partition = _write(tmp_path, 3)
    assert len(partition.segments) > 4
    snapshot = open_log(partition.path).snapshot()
    assert built(read_all(snapshot, isolation=_COMMITTED)) == partition.read_committed


def test_a_transaction_over_many_segments(tmp_path: Path) -> None:
    data = [
        item for _ in range(6) for item in (Batch(many(2), producer_id=1, transactional=True), Batch(many(1)), ROLL)
    ]
    partition = build_log_dir(tmp_path, {"t": [[*data, abort(1), Batch(many(1))]]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert last_stable_offset(snapshot) == snapshot.log_end_offset
    assert [record.offset for record in read_all(snapshot, isolation=_COMMITTED)] == [2, 5, 8, 11, 14, 17, 19]
    assert [record.offset for record in read_all(snapshot, 3, 9, _COMMITTED)] == [5, 8]


def test_skip_rows_tells_rows_without_state(tmp_path: Path) -> None:
    items = [
        Batch(many(1), producer_id=1, transactional=True),
        Batch(many(1), producer_id=2, transactional=True),
        abort(1),
        Batch(many(1), producer_id=1, transactional=True),
        commit(2),
        commit(1),
    ]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    aborted = AbortedTransactions(snapshot, snapshot.segments[0])
    table = BatchTable.empty(10)
    scan(partition.log().read_bytes(), 0, table)
    skip = aborted.skip_rows(table)
    assert skip is not None
    assert skip.dtype == np.uint8
    assert skip.tolist() == [1, 0, 0, 0, 0, 0]
    assert aborted.skip_rows(table.slice(1, 6).copy()) is None


def test_a_marker_lost_to_damage_is_looked_up_in_the_txnindex(tmp_path: Path) -> None:
    items = [
        Batch(many(2), producer_id=1, transactional=True),
        abort(1),
        Batch(many(2), producer_id=1, transactional=True),
        commit(1),
        Batch(many(1)),
        ROLL,
        Batch(many(1)),
    ]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    marker = partition.batches[1]
    with partition.log().open("r+b") as file:
        file.seek(marker.position + 70)
        file.write(b"\xff")
    snapshot = open_log(partition.path).snapshot()
    records, errors = read_past_damage(snapshot, _COMMITTED)
    assert len(errors) == 1
    assert built(records) == partition.read_committed


def test_blocks_under_both_isolations_carry_the_same_damage(tmp_path: Path) -> None:
    """An aborted batch that is corrupt is corrupt: its CRC is checked although its records are left out."""
    items = [Batch(many(2), producer_id=1, transactional=True), abort(1), Batch(many(1)), ROLL, Batch(many(1))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    with partition.log().open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    snapshot = open_log(partition.path).snapshot()
    for isolation in Isolation:
        blocks = [(records_of(block), block.damage) for block in read_range(snapshot, 0, isolation=isolation)]
        assert sum(damage is not None for _, damage in blocks) == 1
        assert [record.offset for records, _ in blocks for record in records] == [3, 4]


def test_an_open_transaction_whose_start_is_gone_bounds_at_the_log_start(tmp_path: Path) -> None:
    items = [Batch(many(3), producer_id=1, transactional=True), ROLL, Batch(many(3)), ROLL, Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    for path in partition.path.glob(f"{0:020d}.*"):
        path.unlink()
    snapshot = open_log(partition.path).snapshot()
    # The snapshots from offset 6 on know of it; nothing of it can be read, but nothing after it is stable.
    assert last_stable_offset(snapshot) == snapshot.log_start_offset == 3
    assert read_all(snapshot, isolation=_COMMITTED) == []
    assert [record.offset for record in read_all(snapshot)] == [3, 4, 5, 6, 7]
