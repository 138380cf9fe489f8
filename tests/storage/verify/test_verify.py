"""The oracle itself: it finds nothing in what brokers and we wrote, and each damage by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening
from storage.files import names, offset_index, time_index, transaction_index
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.files.names import FileKind
from storage.format.compression import Codec
from storage.types import TopicPartition
from storage.verify.findings import LISTED, FaultKind, Finding, Severity
from storage.verify.verify import verify_log_dir, verify_partition
from tests.support.builders import ROLL, Batch, Item, Partition, abort, build_log_dir, commit, many
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import append, close_clean, opened, tree_of

CLEAN_FIXTURES = (
    "codecs", "times", "transactions", "compaction-before", "compaction-after", "groups", "v0", "v1", "roll"
)  # fmt: skip

# Of a recovered directory: what Kafka's recovery leaves as it is (the fixtures' README).
LEFT_BY_KAFKA = {
    "rec-c4-flip-magic-0": "batch-magic",
    "rec-e3-no-timeindex-older-0": "time-index-incomplete",
    "rec-f3-garbage-index-below-recovery-point-0": "index-order",
    "rec-f4-plausible-index-below-recovery-point-0": "index-order",
    "rec-g2-timeindex-odd-older-0": "time-index-incomplete",
    "rec-m-flip-below-recovery-point-0": "batch-crc",
}


@requires_fixtures
@pytest.mark.parametrize("fixture", CLEAN_FIXTURES)
def test_nothing_in_what_brokers_closed(fixture: str) -> None:
    assert verify_log_dir(FIXTURES / fixture / "log") == []


@requires_fixtures
def test_what_kafka_leaves_after_recovery() -> None:
    found = verify_log_dir(FIXTURES / "recovery" / "after")
    assert {one.path.parent.name: one.name for one in found if one.severity is Severity.FINDING} == LEFT_BY_KAFKA
    notes = [one for one in found if one.severity is Severity.NOTE]
    assert [(one.path.parent.name, one.kind) for one in notes] == [("rec-k2-older-missing-0", FaultKind.SEGMENT_GAP)]


@requires_fixtures
def test_every_damage_of_the_fixtures_is_found() -> None:
    preallocated = {FaultKind.INDEX_NOT_TRIMMED, FaultKind.TIME_INDEX_NOT_TRIMMED}
    all_found = verify_log_dir(FIXTURES / "recovery" / "before")
    assert {one.severity for one in all_found if one.kind in preallocated} == {Severity.NOTE}
    found = {one.path.parent.name for one in all_found if one.kind not in preallocated}
    cases = {path.name for path in (FIXTURES / "recovery" / "before").iterdir() if path.name.startswith("rec-")}
    # What of these three is gone is nowhere written down: snapshots may be missing, a recovery point may lie anywhere.
    assert cases - found == {"rec-j-no-snapshots-0", "rec-n-recovery-point-at-end-0", "rec-undamaged-0"}


TP = TopicPartition("t", 0)


def _sample(path: Path) -> Path:
    """Three segments with index entries, aborts, two partitions; returns the first partition's directory."""
    items: list[Item] = []
    for number in range(3):
        if number:
            items.append(ROLL)
        items += [Batch(many(5, 300), codec=Codec.GZIP if n % 2 else Codec.NONE) for n in range(12)]
        items += [Batch(many(2), producer_id=7, transactional=True), abort(7)]
        items += [Batch(many(2), producer_id=8, transactional=True), commit(8)]
        items += [Batch(many(5, 300)) for _ in range(8)]
    build_log_dir(path, {"t": [Partition(items, index_interval_bytes=1000), Partition([b"x"])]})
    return path / TP.dir_name


def _second(directory: Path, kind: FileKind) -> Path:
    return sorted(directory.glob("*" + kind.value))[1]


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def _log(directory: Path) -> Path:
    return _second(directory, FileKind.LOG)


def _flip_payload(directory: Path) -> None:
    _flip(_log(directory), 100)


def _flip_magic(directory: Path) -> None:
    data = bytearray(_log(directory).read_bytes())
    data[16] = 9
    _log(directory).write_bytes(data)


def _lower_base_offset(directory: Path) -> None:
    data = bytearray(_log(directory).read_bytes())
    length = 12 + int.from_bytes(data[8:12], "big")
    second = int.from_bytes(data[length : length + 8], "big")
    data[length : length + 8] = (second - 2).to_bytes(8, "big")
    _log(directory).write_bytes(data)


def _tear(directory: Path) -> None:
    last = sorted(directory.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-3])


def _move_index_entry(directory: Path) -> None:
    path = _second(directory, FileKind.OFFSET_INDEX)
    index = offset_index.load(path, int(path.stem))
    positions = index.positions
    positions[1] += 1
    path.write_bytes(offset_index.encode(index.offsets, positions, index.base_offset))


def _lower_index_offset(directory: Path) -> None:
    path = _second(directory, FileKind.OFFSET_INDEX)
    index = offset_index.load(path, int(path.stem))
    offsets = index.offsets
    offsets[1] = offsets[0] + 1
    path.write_bytes(offset_index.encode(offsets, index.positions, index.base_offset))


def _zero_index(directory: Path) -> None:
    path = _second(directory, FileKind.OFFSET_INDEX)
    path.write_bytes(bytes(path.stat().st_size))


def _raise_time(directory: Path) -> None:
    path = _second(directory, FileKind.TIME_INDEX)
    index = time_index.load(path, int(path.stem))
    times = index.timestamps.copy()
    times[1] += 1
    path.write_bytes(time_index.encode(times, index.offsets, index.base_offset))


def _drop_last_time(directory: Path) -> None:
    path = _second(directory, FileKind.TIME_INDEX)
    path.write_bytes(path.read_bytes()[: -time_index.ENTRY_SIZE])


def _empty_txnindex(directory: Path) -> None:
    _second(directory, FileKind.TRANSACTION_INDEX).write_bytes(b"")


def _invent_abort(directory: Path) -> None:
    path = _second(directory, FileKind.TRANSACTION_INDEX)
    base = int(path.stem)
    first = transaction_index.AbortedTxn(99, base, base + 1, base)
    path.write_bytes(transaction_index.encode([first]) + path.read_bytes())


def _flip_snapshot(directory: Path) -> None:
    _flip(_second(directory, FileKind.PRODUCER_SNAPSHOT), 20)


def _shorten_log(directory: Path) -> None:
    """A whole batch less at the end of the log: all that speaks of its end speaks of what is gone."""
    last = sorted(directory.glob("*.log"))[-1]
    data = last.read_bytes()
    position = 0
    while position + 12 + int.from_bytes(data[position + 8 : position + 12], "big") < len(data):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    last.write_bytes(data[:position])


def _overlap(directory: Path) -> None:
    log = _log(directory)
    log.rename(log.with_name(names.segment_file(int(log.stem) - 3, FileKind.LOG)))


def _other_epoch(directory: Path) -> None:
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n4 0\n")


def _bad_checkpoint(directory: Path) -> None:
    (directory.parent / names.LOG_START_CHECKPOINT).write_text("0\n5\nt 0 1\n")


def _other_topic_id(directory: Path) -> None:
    (directory / names.PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")


def _own_config(directory: Path) -> None:
    (directory / names.TOPIC_PROPERTIES).write_text("retention.ms=5\n")


def _orphan(directory: Path) -> None:
    (directory / names.segment_file(10_000, FileKind.OFFSET_INDEX)).write_bytes(b"")


def _leftover(directory: Path) -> None:
    (directory / "00000000000000000000.log.deleted").write_bytes(b"")


def _unparsable_dir(directory: Path) -> None:
    (directory.parent / "what").mkdir()


def _no_index(directory: Path) -> None:
    _second(directory, FileKind.OFFSET_INDEX).unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "payload": (_flip_payload, "no sound batch begins here"),
    "magic": (_flip_magic, "batch has an unknown magic"),
    "base offset": (_lower_base_offset, "batch begins before the one before it ends"),
    "torn tail": (_tear, "no sound batch begins here"),
    "index position": (_move_index_entry, "index entry points into the middle of a batch"),
    "index offset": (_lower_index_offset, "index entry points after its offset"),
    "index zeroed": (_zero_index, "index is not trimmed to its entries"),
    "index missing": (_no_index, "index is missing"),
    "time": (_raise_time, "time index entry is wrong"),
    "last time": (_drop_last_time, "time index lacks the segment's greatest timestamp"),
    "abort missing": (_empty_txnindex, "aborted transaction is not in the transaction index"),
    "abort invented": (_invent_abort, "transaction index entry has no abort marker in the log"),
    "snapshot": (_flip_snapshot, "snapshot fails its CRC"),
    "short log": (_shorten_log, "producer snapshot is beyond the log end"),
    "short log's checkpoint": (_shorten_log, "checkpoint of t/0 is beyond its log"),
    "overlap": (_overlap, "segment begins before the one before it ends"),
    "epoch": (_other_epoch, "leader-epoch-checkpoint has another epoch"),
    "checkpoint": (_bad_checkpoint, "checkpoint's count does not match its lines"),
    "topic id": (_other_topic_id, "topic id differs from that in another partition"),
    "config": (_own_config, "configuration differs from"),
    "orphan": (_orphan, "index has no .log"),
    "leftover": (_leftover, "left over"),
    "directory": (_unparsable_dir, "directory is not in the form topic-partition"),
}


def _whats(found: list[Finding]) -> list[str]:
    return [one.what for one in found]


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_by_name(tmp_path: Path, name: str) -> None:
    damage, what = DAMAGES[name]
    directory = _sample(tmp_path / "logs")
    assert verify_log_dir(tmp_path / "logs") == []
    damage(directory)
    found = verify_log_dir(tmp_path / "logs")
    assert [one for one in found if one.what.startswith(what)], _whats(found)
    assert all(one.repair for one in found)


def test_it_changes_nothing(tmp_path: Path) -> None:
    directory = _sample(tmp_path / "logs")
    _flip_payload(directory)
    shutil.copytree(tmp_path / "logs", tmp_path / "copy")
    assert verify_log_dir(tmp_path / "logs")
    assert tree_of(tmp_path / "logs") == tree_of(tmp_path / "copy")


def test_a_torn_tail_is_unfinished_where_nobody_closed(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)
    found = verify_log_dir(tmp_path)
    assert {one.severity for one in found} == {Severity.NOTE}
    (one,) = (one for one in found if one.kind is FaultKind.LOG_CUT_OFF)
    assert one.position is not None
    assert one.repair == "kafkafs recover"
    (tmp_path / names.CLEAN_SHUTDOWN).write_text("{}")
    assert {one.severity for one in verify_log_dir(tmp_path)} == {Severity.FINDING}


def test_a_directory_that_is_held_is_being_written_to(tmp_path: Path) -> None:
    """Whatever the clean-shutdown file says."""
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]})
    assert {one.severity for one in verify_log_dir(tmp_path)} == {Severity.FINDING}
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert {one.severity for one in verify_log_dir(tmp_path)} == {Severity.NOTE}
    finally:
        lock.release()


def test_damage_in_a_directory_that_is_held_is_damage(tmp_path: Path) -> None:
    _flip_payload(_sample(tmp_path))
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert FaultKind.BATCH_CRC in {one.kind for one in verify_log_dir(tmp_path)}
    finally:
        lock.release()


def test_each_damage_of_a_segment_is_found_and_many_are_counted(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(3, 200)) for _ in range(60)])]})
    log = tmp_path / "t-0" / "00000000000000000000.log"
    data, position, number = bytearray(log.read_bytes()), 0, 0
    while position < len(data):
        data[position + 70] ^= number % 2
        position, number = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big"), number + 1
    log.write_bytes(data)
    found = [one for one in verify_log_dir(tmp_path) if one.kind is FaultKind.BATCH_CRC]
    assert len(found) == LISTED
    assert len(found) + sum(one.more for one in found) == 30
    assert all("intact again" in str(one.found) for one in found)


def test_a_part_of_a_directory(tmp_path: Path) -> None:
    _flip_payload(_sample(tmp_path))
    assert verify_log_dir(tmp_path, [TopicPartition("t", 1)]) == []
    assert _whats(verify_log_dir(tmp_path, [TP])) == _whats(verify_partition(tmp_path / TP.dir_name))


def test_a_gap_between_segments_is_a_note_unless_compaction_may_have_made_it(tmp_path: Path) -> None:
    items: list[Item] = [item for _ in range(4) for item in (Batch(many(5)), ROLL)][:-1]
    built = build_log_dir(tmp_path, {
        "plain": [Partition(items)], "cleaned": [Partition(items, cleaner_offset=15)],
        "compact": [Partition(items, extra={names.TOPIC_PROPERTIES: b"cleanup.policy=compact\n"})],
        "delete": [Partition(items, cleaner_offset=15, extra={names.TOPIC_PROPERTIES: b"cleanup.policy=delete\n"})],
    })  # fmt: skip
    for topic, partition in built.partitions:
        for path in built[topic, partition].path.glob(f"{5:020d}.*"):
            path.unlink()
    found = verify_log_dir(tmp_path)
    assert [(one.kind, one.path.parent.name) for one in found] == [
        (FaultKind.SEGMENT_GAP, "delete-0"),
        (FaultKind.SEGMENT_GAP, "plain-0"),
    ]
    assert {one.severity for one in found} == {Severity.NOTE}
    assert (found[0].offset, found[0].path.name) == (5, f"{10:020d}.log")
    assert str(found[0].expected) == "a segment with the offsets 5 to 9"


def test_a_finding_says_where_and_what(tmp_path: Path) -> None:
    _flip_payload(_sample(tmp_path))
    text = str(verify_log_dir(tmp_path)[0])
    assert text.startswith("finding batch-crc: ")
    assert "position 0" in text
    assert "intact again from position" in text
    assert "Recovery leaves it" in text
    assert "Mended by: kafkafs salvage" in text


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_what_the_note_of_an_empty_snapshot_names_mends_it(tmp_path: Path, offset: int) -> None:
    items: list[Item] = [Batch(many(2)), ROLL, Batch(many(2))]
    path = build_log_dir(tmp_path / "dir", {"t": [Partition(items)]}).path
    (path / "t-0" / f"{offset:020}.snapshot").write_bytes(b"")
    (finding,) = verify_log_dir(path)
    assert (finding.kind, finding.repair) == (FaultKind.SNAPSHOT_CORRUPT, "kafkafs reindex")
    owned = opened(path, Opening(gentle=True, only=()))
    owned.reindex(TopicPartition("t", 0))
    close_clean(owned)
    assert not list(verify_log_dir(path))


def test_an_empty_snapshot_is_a_note(tmp_path: Path) -> None:
    """A full disk, or a crash, leaves one; whoever loads it removes it, a broker too."""
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1)
    append(owned.log(TopicPartition("t", 0)), [b"x"])
    close_clean(owned)
    (path / "t-0" / "00000000000000000001.snapshot").write_bytes(b"")
    (finding,) = verify_log_dir(path)
    assert (finding.kind, finding.severity) == (FaultKind.SNAPSHOT_CORRUPT, Severity.NOTE)
    owned = opened(path, Opening(trust_clean=False))
    close_clean(owned)
    assert not list(verify_log_dir(path))
