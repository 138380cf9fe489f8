"""What readers get of a log: of brokers' logs what consumers saw, by isolation, and what is still the same log."""

import json
import os
import random

import pytest

from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.log import isolation as isolation_module
from storage.log.counting import count_messages, nth_message
from storage.log.isolation import last_stable_offset
from storage.log.lineage import first_difference, kept_end
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import MAX_OFFSET, Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.damaged_bytes import overwrite
from tests.support.fixtures import FIXTURES, case_params, golden_cases, requires_fixtures, topics_of
from tests.support.readers import built, open_log, read_all, read_past_damage, records_of
from tests.support.replicas import Replica

# Every fixture, through LogDir and read_range, against what real consumers saw.

# A batch here fails for Kafka's consumer too, and the golden file ends before it.
DAMAGED_AFTER = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}
COMMITTED = Isolation.READ_COMMITTED


@pytest.mark.parametrize("case", case_params())
def test_records_and_counts_equal_golden(case):
    """Of the whole log, also in small windows, which cut batches and segments in other places; and of any range."""
    snapshot = LogDir.open_read_only(case.log_dir).log(TopicPartition(case.topic, case.partition)).snapshot()
    isolation, golden = Isolation(case.isolation), case.records()
    if case.topic in DAMAGED_AFTER:
        records, errors = read_past_damage(snapshot, isolation)
        assert records[: len(golden)] == golden
        assert len(errors) == 1
        return
    assert read_all(snapshot, isolation=isolation) == read_all(snapshot, isolation=isolation, window=4096) == golden
    assert count_messages(snapshot, 0, MAX_OFFSET, isolation) == len(golden)
    rng = random.Random(str(case))
    for _ in range(12):
        start = rng.randint(snapshot.log_start_offset, snapshot.log_end_offset)
        end = rng.randint(start, snapshot.log_end_offset + 1)
        expected = [record for record in golden if start <= record.offset < end]
        assert read_all(snapshot, start, min(end, snapshot.log_end_offset), isolation) == expected
        assert count_messages(snapshot, start, end, isolation) == len(expected)
        after = [record.offset for record in golden if record.offset >= start]
        number = rng.randint(1, len(after) + 1)
        assert nth_message(snapshot, start, number, isolation) == (after[number - 1] if number <= len(after) else None)


@requires_fixtures
def test_offsets_equal_the_brokers():
    checked = []
    for case in golden_cases():
        counts = topics_of(case.fixture)[case.topic].get("golden", {}).get(str(case.partition), {})
        if "last_stable_offset" in counts:
            snapshot = open_log(case.partition_dir).snapshot()
            assert last_stable_offset(snapshot) == counts["last_stable_offset"], str(case)
            assert snapshot.log_end_offset == counts["high_watermark"], str(case)
            checked.append((case.topic, last_stable_offset(snapshot) < snapshot.log_end_offset))
    assert len(checked) >= 6
    assert ("tx-open", True) in checked
    log_dir = LogDir.open_read_only(FIXTURES / "times/log")
    for name, offsets in json.loads((FIXTURES / "times/golden/list-offsets.json").read_text()).items():
        topic, _, partition = name.rpartition("-")
        snapshot = log_dir.log(TopicPartition(topic, int(partition))).snapshot()
        assert (snapshot.log_start_offset, snapshot.log_end_offset) == (offsets["earliest"], offsets["latest"])


# read_committed: the last stable offset and aborted transactions, from the log itself.


def random_items(rng, count):
    """Interleaved transactions of five producers, idempotent and plain batches between them, rolls anywhere."""
    items = []
    open_producers = set()
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


def written(path, seed):
    items = random_items(random.Random(seed), 120)
    return build_log_dir(path, {"t": [Partition(items, index_interval_bytes=300)]}, clean=seed % 2 == 0)["t", 0]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("missing", [(), (".txnindex",), (".snapshot",), (".txnindex", ".snapshot"), ("cut",)])
def test_random_transactions(tmp_path, seed, missing):
    partition = written(tmp_path, seed)
    for path in list(partition.path.iterdir()):
        if path.suffix in missing:
            path.unlink()
        elif path.suffix == ".txnindex" and "cut" in missing:
            path.write_bytes(path.read_bytes()[:-34])
    snapshot = open_log(partition.path).snapshot()
    assert last_stable_offset(snapshot) == partition.last_stable_offset
    expected = partition.read_committed
    assert built(read_all(snapshot, isolation=COMMITTED)) == expected
    assert built(read_all(snapshot, isolation=COMMITTED, window=200)) == expected
    rng = random.Random(seed)
    for _ in range(20):
        start = rng.randint(0, snapshot.log_end_offset)
        end = rng.randint(start, snapshot.log_end_offset)
        records = read_all(snapshot, start, end, COMMITTED)
        assert built(records) == [record for record in expected if start <= record.offset < end]


def test_forgetting_markers_changes_nothing(tmp_path, monkeypatch):
    """Markers of many segments do not fit: they are collected again."""
    monkeypatch.setattr(isolation_module, "MARKERS_KEPT", 3)
    partition = written(tmp_path, 3)
    assert len(partition.segments) > 4
    snapshot = open_log(partition.path).snapshot()
    assert built(read_all(snapshot, isolation=COMMITTED)) == partition.read_committed


def test_a_marker_lost_to_damage_is_looked_up_in_the_txnindex(tmp_path):
    sent = Batch(many(2), producer_id=1, transactional=True)
    items = [sent, abort(1), sent, commit(1), Batch(many(1)), ROLL, Batch(many(1))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    overwrite(partition.log(), partition.batches[1].position + 70, b"\xff")
    records, errors = read_past_damage(open_log(partition.path).snapshot(), COMMITTED)
    assert len(errors) == 1
    assert built(records) == partition.read_committed


def test_blocks_under_both_isolations_carry_the_same_damage(tmp_path):
    """An aborted batch that is corrupt is corrupt: its CRC is checked although its records are left out."""
    items = [Batch(many(2), producer_id=1, transactional=True), abort(1), Batch(many(1)), ROLL, Batch(many(1))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    overwrite(partition.log(), 80, b"\xff\xff")
    snapshot = open_log(partition.path).snapshot()
    for isolation in Isolation:
        blocks = [(records_of(block), block.damage) for block in read_range(snapshot, 0, isolation=isolation)]
        assert sum(damage is not None for _, damage in blocks) == 1
        assert [record.offset for records, _ in blocks for record in records] == [3, 4]


def test_an_open_transaction_whose_start_is_gone_bounds_at_the_log_start(tmp_path):
    items = [Batch(many(3), producer_id=1, transactional=True), ROLL, Batch(many(3)), ROLL, Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    for path in partition.path.glob(f"{0:020d}.*"):
        path.unlink()
    snapshot = open_log(partition.path).snapshot()
    # The snapshots from offset 6 on know of it; nothing of it can be read, but nothing after it is stable.
    assert last_stable_offset(snapshot) == snapshot.log_start_offset == 3
    assert read_all(snapshot, isolation=COMMITTED) == []
    assert [record.offset for record in read_all(snapshot)] == [3, 4, 5, 6, 7]


# Which messages of a log are still those that were read, by leader epochs, and where these lack by what is seen.


@pytest.mark.parametrize(
    ("before", "now", "end", "expected"),
    [
        ([(1, 0)], [(1, 0)], 10, None),
        ([(1, 0)], [(1, 0), (2, 5)], 10, 5),
        ([(1, 0)], [(1, 0), (2, 10)], 10, None),  # what a new leader appended
        ([(1, 0), (2, 5)], [(1, 0), (3, 6)], 8, 5),  # leader 1 had written one more
        ([(1, 0), (2, 5)], [(2, 7)], 8, None),  # retention
        ([(1, 0), (2, 5)], [(3, 7)], 8, 7),
        ([(1, 0), (2, 9)], [(1, 0), (3, 9)], 9, None),  # leader 2 wrote nothing
        ([], [(1, 0)], 10, None),
    ],
)
def test_the_first_difference(before, now, end, expected):
    one, other = (LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries)) for entries in (before, now))
    assert first_difference(one, other, end) == expected


@pytest.fixture
def watched(tmp_path):
    """A replica with messages, and its log, of which a snapshot was taken."""

    def begin(count, *, checkpoint=True, content=None):
        replica = Replica(tmp_path, checkpoint=checkpoint)
        if content is not None:
            (replica.path / "leader-epoch-checkpoint").write_bytes(content)
        replica.append(count)
        log = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0))
        return replica, log, log.snapshot()

    return begin


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_cut_that_is_seen_after_others_were_written(watched, checkpoint, count):
    replica, log, _ = watched(5, checkpoint=checkpoint)
    replica.append(3)
    before = log.snapshot()
    replica.truncate(5)
    replica.append(count)
    now = log.snapshot()
    assert now.generation == 1
    assert kept_end(before, now, 8) == (5 if checkpoint else None)
    assert kept_end(before, now, 5) == (5 if checkpoint else None)
    assert kept_end(now, now, 5) == 5


@pytest.mark.parametrize("looks", [True, False])
def test_a_cut_outlives_the_cleaning_of_the_file(watched, looks):
    """Also a cut and a cleaning between two looks: no file says so any more, but the epochs do."""
    replica, log, before = watched(10)
    for step in (lambda: replica.truncate(5), lambda: replica.append(8), replica.roll, lambda: replica.append(3)):
        step()
        if looks:
            log.snapshot()
    replica.compact(lambda offset: offset != 2)
    assert log.snapshot().generation >= 1
    assert kept_end(before, log.snapshot(), 10) == 5


def test_neither_a_new_leader_nor_a_cleaning_is_a_cut(watched):
    replica, log, _ = watched(10)
    replica.elect()
    replica.append(10)
    replica.roll()
    replica.append(3)
    log.snapshot()
    replica.compact(lambda offset: offset % 3 == 0)
    now = log.snapshot()
    assert now.generation == 0


def test_retention_of_the_last_file_is_no_cut(watched):
    """Nobody has looked since it was rolled."""
    replica, log, _ = watched(10)
    replica.roll()
    replica.append(3)
    replica.retain()
    now = log.snapshot()
    assert (now.log_start_offset, now.log_end_offset, now.generation) == (10, 13, 0)


@pytest.mark.parametrize("content", [b"0\n1\n7 0\n", b"garbage", b"0\n2\n1 0\n2 4\n"])
def test_a_checkpoint_that_is_wrong_does_no_harm(watched, content):
    replica, log, before = watched(10, checkpoint=False, content=content)
    assert before.log_end_offset == 10
    replica.append(10)
    assert (log.snapshot().log_end_offset, log.snapshot().generation) == (20, 0)


def test_an_unchanged_log_is_not_looked_into(watched, monkeypatch):
    replica, log, _ = watched(10)
    for path in (replica.path, *replica.path.iterdir()):
        os.utime(path, (1, 1.5))
    before = log.snapshot()
    monkeypatch.setattr(os, "open", None)
    assert log.snapshot() is before
