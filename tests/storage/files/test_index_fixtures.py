"""Every index and snapshot that real brokers wrote, against what Kafka's own tool says is in it."""

from __future__ import annotations

import re

import pytest

from storage.errors import CorruptCheckpoint
from storage.files import offset_index, producer_state, time_index, transaction_index
from storage.files.names import FileKind, parse_segment_file, segment_file
from tests.storage.files.dumps import Dumped, dumped
from tests.support.fixtures import FIXTURES, KAFKA_SKIPS_DATA, requires_fixtures

pytestmark = requires_fixtures


def base_offset_of(case: Dumped) -> int:
    name = parse_segment_file(case.file.name)
    assert name is not None
    return name.offset


def sound(suffix: str) -> list[Dumped]:
    # Beside the garbage that a broker leaves in place the tool stops.
    return [case for case in dumped(suffix) if not any(topic in str(case.file) for topic in KAFKA_SKIPS_DATA)]


def test_offset_indexes() -> None:
    cases = sound(".index")
    entries = 0
    for case in cases:
        base_offset = base_offset_of(case)
        log_size = (case.file.parent / segment_file(base_offset, FileKind.LOG)).stat().st_size
        index = offset_index.load(case.file, base_offset, log_size)
        expected = case.rows(r"offset: (\d+) position: (\d+)")
        assert list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True)) == expected, case.file
        assert (index.problem, index.missing, index.entries) == (None, False, len(expected)), case.file
        assert offset_index.encode(index.offsets, index.positions, base_offset) == case.file.read_bytes(), case.file
        entries += len(expected)
    assert len(cases) > 400
    assert entries > 2_000


def test_time_indexes() -> None:
    cases = sound(".timeindex")
    entries = 0
    for case in cases:
        base_offset = base_offset_of(case)
        index = time_index.load(case.file, base_offset)
        expected = case.rows(r"timestamp: (\d+) offset: (\d+)")
        assert list(zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True)) == expected, case.file
        assert (index.problem, index.missing, index.entries) == (None, False, len(expected)), case.file
        assert index.last == index.entry(-1) if expected else index.last.timestamp == -1, case.file
        assert time_index.encode(index.timestamps, index.offsets, base_offset) == case.file.read_bytes(), case.file
        entries += len(expected)
    assert len(cases) > 400
    assert entries > 2_000


def test_transaction_indexes() -> None:
    cases = dumped(".txnindex")
    aborted = 0
    for case in cases:
        index = transaction_index.load(case.file, base_offset_of(case))
        expected = case.rows(
            r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
        )
        found = [
            (txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset) for txn in index.entries()
        ]
        assert found == expected, case.file
        assert index.problem is None, case.file
        assert transaction_index.encode(index.entries()) == case.file.read_bytes(), case.file
        aborted += len(expected)
    assert len(cases) > 50
    assert aborted > 50


_PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
    r"currentTxnFirstOffset: Optional(?:Long\[(\d+)\]|Long\.empty) lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (\d+) offsetDelta: (\d+) timestamp: (-?\d+))?"
)


def test_producer_snapshots() -> None:
    cases = dumped(".snapshot")
    producers = 0
    for case in cases:
        snapshot = producer_state.read(case.file)
        assert snapshot is not None
        expected = _PRODUCER.findall(case.text())
        found = []
        for entry in snapshot.entries():
            batch = (
                entry.last_sequence - entry.offset_delta,
                entry.last_sequence,
                entry.last_offset,
                entry.offset_delta,
                entry.timestamp,
            )
            open_from = "" if entry.current_txn_first_offset < 0 else str(entry.current_txn_first_offset)
            known = [str(part) for part in batch] if entry.last_offset >= 0 else [""] * 5
            head = [str(part) for part in (entry.producer_id, entry.epoch, entry.coordinator_epoch)]
            found.append((*head, open_from, str(entry.timestamp), *known))
        assert found == expected, case.file
        assert producer_state.encode(snapshot.entries()) == case.file.read_bytes(), case.file
        producers += len(expected)
    assert len(cases) > 300
    assert producers > 300


BEFORE = FIXTURES / "recovery" / "before"
SEGMENT = "00000000000000000062"


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("rec-f-garbage-index-older", "index entry points beyond the end of the log"),
        ("rec-f2-garbage-index-plausible", "index entries are not strictly ascending"),
        ("rec-f3-garbage-index-below-recovery-point", "index entries are not strictly ascending"),
        ("rec-f4-plausible-index-below-recovery-point", "index entries are not strictly ascending"),
    ],
)
def test_garbage_offset_indexes_are_noticed(case: str, what: str) -> None:
    directory = BEFORE / f"{case}-0"
    log_size = (directory / f"{SEGMENT}.log").stat().st_size
    index = offset_index.load(directory / f"{SEGMENT}.index", 62, log_size)
    assert index.problem is not None
    assert index.problem.what == what
    assert index.entries == 0
    assert index.floor(80).position == 0


def test_missing_index() -> None:
    index = offset_index.load(BEFORE / "rec-e2-no-index-older-0" / f"{SEGMENT}.index", 62, 11351)
    assert (index.missing, index.entries, index.problem) == (True, 0, None)


def test_odd_time_index_keeps_its_whole_entries() -> None:
    index = time_index.load(BEFORE / "rec-g2-timeindex-odd-older-0" / f"{SEGMENT}.timeindex", 62)
    assert [index.entry(slot).offset for slot in range(index.entries)] == [69]
    assert index.problem is not None
    assert "ends within an entry" in index.problem.what


def test_index_of_an_emptied_segment() -> None:
    directory = BEFORE / "rec-k-active-emptied-0"
    path = directory / "00000000000000000084.index"
    assert offset_index.load(path, 84, 0).problem is not None
    growing = offset_index.load(path, 84, 0, growing=True)
    assert (growing.entries, growing.problem) == (0, None)


def test_bad_snapshots_are_refused() -> None:
    snapshots = sorted((BEFORE / "rec-j2-bad-snapshot-0").glob("*.snapshot"))
    assert len(snapshots) == 3
    for path in snapshots:
        with pytest.raises(CorruptCheckpoint) as refused:
            producer_state.read(path)
        assert refused.value.path == path


def test_orphaned_garbage_transaction_index() -> None:
    index = transaction_index.load(BEFORE / "rec-h-orphan-index-0" / "00000000000000000005.txnindex", 5)
    assert index.problem is not None
    assert len(index) == 0
