"""The oracle itself: it finds nothing in what brokers and we wrote, and each damage by name."""

import shutil

import pytest

from storage.directory.owned_dir import Opening
from storage.files import leader_epochs, names
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.files.leader_epochs import EpochEntry
from storage.format.compression import Codec
from storage.types import TopicPartition
from storage.verify.findings import LISTED, FaultKind, Severity
from storage.verify.verify import verify_log_dir, verify_partition
from tests.storage.recovery.test_recovery import LEFT_DAMAGED
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import close_clean, opened

CLEAN_FIXTURES = (
    "codecs", "times", "transactions", "compaction-before", "compaction-after", "groups", "v0", "v1", "roll"
)  # fmt: skip


@requires_fixtures
@pytest.mark.parametrize("fixture", CLEAN_FIXTURES)
def test_nothing_in_what_brokers_closed(fixture):
    assert verify_log_dir(FIXTURES / fixture / "log") == []


@requires_fixtures
def test_what_kafka_leaves_after_recovery():
    found = verify_log_dir(FIXTURES / "recovery" / "after")
    assert {one.path.parent.name: one.name for one in found if one.severity is Severity.FINDING} == {
        f"{topic}-0": kind for topic, kind in LEFT_DAMAGED.items()
    }
    notes = [one for one in found if one.severity is Severity.NOTE]
    assert [(one.path.parent.name, one.kind) for one in notes] == [("rec-k2-older-missing-0", FaultKind.SEGMENT_GAP)]


@requires_fixtures
def test_every_damage_of_the_fixtures_is_found():
    preallocated = {FaultKind.INDEX_NOT_TRIMMED, FaultKind.TIME_INDEX_NOT_TRIMMED}
    all_found = verify_log_dir(FIXTURES / "recovery" / "before")
    assert {one.severity for one in all_found if one.kind in preallocated} == {Severity.NOTE}
    found = {one.path.parent.name for one in all_found if one.kind not in preallocated}
    cases = {path.name for path in (FIXTURES / "recovery" / "before").iterdir() if path.name.startswith("rec-")}
    # What of these three is gone is nowhere written down: snapshots may be missing, a recovery point may lie anywhere.
    assert cases - found == {"rec-j-no-snapshots-0", "rec-n-recovery-point-at-end-0", "rec-undamaged-0"}


TP = TopicPartition("t", 0)


def damaged_sample(path):
    """Three segments with index entries, aborts, two partitions; the second segment of the first one is damaged."""
    items = []
    for number in range(3):
        items += [ROLL] * (number > 0)
        items += [Batch(many(5, 300), codec=Codec.GZIP if n % 2 else Codec.NONE) for n in range(12)]
        items += [Batch(many(2), producer_id=7, transactional=True), abort(7)]
        items += [Batch(many(2), producer_id=8, transactional=True), commit(8)]
    built = build_log_dir(path, {"t": [Partition(items, index_interval_bytes=1000), Partition([b"x"])]})
    flip(built["t", 0].log(1), 100, 0xFF)


def test_a_torn_tail_is_unfinished_where_nobody_closed_or_somebody_writes(tmp_path):
    """Whatever the clean-shutdown file says of a directory that is held. Damage is damage there, too."""

    def severities():
        return {finding.severity for finding in verify_log_dir(tmp_path)}

    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)
    assert severities() == {Severity.NOTE}
    (torn,) = (finding for finding in verify_log_dir(tmp_path) if finding.kind is FaultKind.LOG_CUT_OFF)
    assert torn.position is not None
    assert torn.repair == "kafkafs recover"
    (tmp_path / names.CLEAN_SHUTDOWN).write_text("{}")
    assert severities() == {Severity.FINDING}
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert severities() == {Severity.NOTE}
        log = tmp_path / "t-0" / f"{0:020}.log"
        log.write_bytes(log.read_bytes()[:-7] * 2)
        flip(log, 70)
        assert FaultKind.BATCH_CRC in {finding.kind for finding in verify_log_dir(tmp_path)}
    finally:
        lock.release()


def test_each_damage_of_a_segment_is_found_and_many_are_counted(tmp_path):
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


def test_a_part_of_a_directory_and_what_a_finding_says(tmp_path):
    damaged_sample(tmp_path)
    assert verify_log_dir(tmp_path, [TopicPartition("t", 1)]) == []
    findings = verify_log_dir(tmp_path, [TP])
    assert [finding.what for finding in findings] == [
        finding.what for finding in verify_partition(tmp_path / TP.dir_name)
    ]
    text = str(verify_log_dir(tmp_path)[0])
    assert text.startswith("finding batch-crc: ")
    for words in (
        "position 0", "intact again from position", "Recovery leaves it", "Mended by: kafkafs salvage"
    ):  # fmt: skip
        assert words in text


def test_a_gap_between_segments_is_a_note_unless_compaction_may_have_made_it(tmp_path):
    items = [item for _ in range(4) for item in (Batch(many(5)), ROLL)][:-1]
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


@pytest.mark.parametrize("by_recovery", [False, True])
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_an_empty_snapshot_is_a_note_and_what_it_names_mends_it(tmp_path, offset, by_recovery):
    """A full disk, or a crash, leaves one; whoever loads it removes it, a broker too."""
    path = build_log_dir(tmp_path / "dir", {"t": [Partition([Batch(many(2)), ROLL, Batch(many(2))])]}).path
    (path / "t-0" / f"{offset:020}.snapshot").write_bytes(b"")
    (finding,) = verify_log_dir(path)
    assert (finding.kind, finding.severity) == (FaultKind.SNAPSHOT_CORRUPT, Severity.NOTE)
    assert finding.repair == "kafkafs reindex"
    if by_recovery:
        owned = opened(path, Opening(trust_clean=False))
    else:
        owned = opened(path, Opening(gentle=True, only=()))
        owned.reindex(TP)
    close_clean(owned)
    assert not list(verify_log_dir(path))


@pytest.mark.parametrize("known", [[], [(1, 0)], [(1, 0), (3, 4)], [(4, 0)]])
def test_the_repair_of_leader_epochs_repairs_them(tmp_path, known):
    items = [item for epoch in (1, 2, 3) for item in (Batch(many(2), leader_epoch=epoch), ROLL)][:-1]
    build_log_dir(tmp_path, {"t": [Partition(items)]})
    checkpoint = tmp_path / "t-0" / names.LEADER_EPOCH_CHECKPOINT
    checkpoint.write_bytes(leader_epochs.encode(EpochEntry(*entry) for entry in known))
    repair = "remove leader-epoch-checkpoint, then kafkafs recover" if known else "kafkafs recover"
    assert {(one.kind, one.repair) for one in verify_log_dir(tmp_path)} == {(FaultKind.EPOCHS_UNTRUE, repair)}
    if known:
        checkpoint.unlink()
    close_clean(opened(tmp_path, Opening(trust_clean=False)))
    assert verify_log_dir(tmp_path) == []
    assert leader_epochs.read(checkpoint).latest_epoch == 3


@pytest.mark.parametrize("only", [None, [TP]])
def test_a_log_that_is_being_moved_here_is_checked_too(tmp_path, only):
    path = build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))] * 2)]}).path
    future = shutil.copytree(path / "t-0", path / f"t-0.{'a' * 32}-future")
    assert verify_log_dir(path, only) == []
    (log,) = future.glob("*.log")
    log.write_bytes(log.read_bytes()[:100])
    (finding,) = (one for one in verify_log_dir(path, only) if one.path == log)
    assert finding.kind is FaultKind.BATCH_CUT_OFF
    assert all(one.path.parent == future for one in verify_log_dir(path, only))
    assert verify_log_dir(path, [TopicPartition("t", 1)]) == []
