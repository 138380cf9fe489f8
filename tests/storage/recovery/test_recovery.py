"""Recovery: damaged logs before it and after it, as the broker's own left them; and crashes in it."""

import json
import os
import shutil
from dataclasses import replace
from unittest.mock import Mock
from unittest.mock import call as mock_call

import pytest

from storage.clock import SystemClock
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, PartitionOffline, UnsupportedFormat
from storage.files import checkpoints, leader_epochs, names, producer_state
from storage.files.leader_epochs import EpochEntry
from storage.files.names import FileKind, FileState
from storage.format.block import Record
from storage.log import segment
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.recovery.recovery import RecoveryPlan
from storage.recovery.rehearsal import rehearse
from storage.types import Isolation, TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.verify import verify_log_dir
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, commit, many
from tests.support.crash_points import every_crash
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, copy_log_dir, read_golden, requires_fixtures, topics_of
from tests.support.owned_dirs import HastyDisk, StandingClock, append, close_clean, killed, opened, read, tree_of
from tests.support.readers import built, copy_partition, open_log, read_all, read_past_damage

TP = TopicPartition("t", 0)
BEFORE = FIXTURES / "recovery" / "before"
AFTER = FIXTURES / "recovery" / "after"

# Damage that Kafka does not look for: below the recovery point, or of an unknown magic with a right CRC. What verify
# finds of it.
LEFT_DAMAGED = {
    "rec-c4-flip-magic": "batch-magic",
    "rec-e3-no-timeindex-older": "time-index-incomplete",
    "rec-f3-garbage-index-below-recovery-point": "index-order",
    "rec-f4-plausible-index-below-recovery-point": "index-order",
    "rec-g2-timeindex-odd-older": "time-index-incomplete",
    "rec-m-flip-below-recovery-point": "batch-crc",
}

# The restarted broker led on in a new epoch, and topic.properties is ours.
_BESIDE = ("leader-epoch-checkpoint", "topic.properties")

CASES = json.loads((FIXTURES / "recovery" / "cases.json").read_text())
assert len(CASES) == 33
# The names of the damaged partitions' directories.
DAMAGED = [
    pytest.param(
        f"rec-{case}-0",
        marks=[pytest.mark.leaves_damage(LEFT_DAMAGED[f"rec-{case}"])] if f"rec-{case}" in LEFT_DAMAGED else [],
    )
    for case in sorted(CASES)
]


def one_case(tmp_path, name):
    """A directory of kafkafs's own with the damaged partition alone, under its topic's configuration; unclean."""
    path = tmp_path / "case"
    path.mkdir()
    copy_log_dir(BEFORE / name, path / name)
    topic, _, partition = name.rpartition("-")
    config = "".join(f"{key}={value}\n" for key, value in topics_of("recovery")[topic]["config"].items())
    (path / name / names.TOPIC_PROPERTIES).write_text(config)
    tp = TopicPartition(topic, int(partition))
    for checkpoint in (names.RECOVERY_POINT_CHECKPOINT, names.LOG_START_CHECKPOINT):
        offset = checkpoints.read(BEFORE / checkpoint).get(tp)
        if offset is not None:
            (path / checkpoint).write_bytes(checkpoints.encode({tp: offset}))
    return path


def opened_then(path):
    """Opened long ago, when the fixture's producers had not expired."""
    return OwnedDir.open(path, Opening(), disk=HastyDisk(), clock=StandingClock(0))


@pytest.mark.parametrize("name", DAMAGED)
def test_equals_the_brokers_recovery_and_the_rehearsal_tells_it(tmp_path, name):
    path = one_case(tmp_path, name)
    before = tree_of(path)
    tp = TopicPartition(name[:-2], 0)
    reader = OwnedDir.open(path, Opening(only=()))
    config = reader.topic_info(tp.topic).config
    reader.close()
    recovery_point = checkpoints.read(path / names.RECOVERY_POINT_CHECKPOINT).get(tp, 0)
    plan = RecoveryPlan(tp, path / name, config, clean=False, recovery_point=recovery_point)
    told = rehearse(plan, clock=StandingClock(0))
    assert tree_of(path) == before
    owned = opened_then(path)
    assert not owned.failures()
    done = owned.reports()[tp]
    for field in (
        "changes", "cut", "removed_segments", "recovered_segments", "log_start_offset", "log_end_offset"
    ):  # fmt: skip
        assert getattr(told, field) == getattr(done, field), field
    if not done.changes:  # any stop adds the last time, and snapshots of segments that are checked are made anew
        after = tree_of(path / name)
        for file, content in tree_of(BEFORE / name).items():
            assert file.endswith(".snapshot") or after[file].startswith(content.rstrip(b"\0")), file
    assert owned.close().clean  # what Kafka leaves damaged, so do we
    assert tree_of(path / name, _BESIDE) == tree_of(AFTER / name, _BESIDE)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_crash_in_recovery_changes_nothing_of_its_result(tmp_path, name):
    path = one_case(tmp_path, name)
    expected = tree_of(AFTER / name, _BESIDE)
    whole = shutil.copytree(path, tmp_path / "whole")
    assert opened_then(whole).close().clean
    outcome = outcome_in(whole, name)
    begun, sound = [], []
    for stopped, _ in every_crash(tmp_path, path, lambda sessions, _: sessions.open(opening=Opening()), lambda: None):
        left = tree_of(stopped.path)
        if left in begun:
            continue  # from the same files the same comes out
        begun.append(left)
        assert opened_then(stopped.path).close().clean, str(stopped)
        files = tree_of(stopped.path / name, _BESIDE)
        assert files.keys() == expected.keys(), str(stopped)
        if not stopped.lost_power:
            assert [file for file in files if files[file] != expected[file]] == [], str(stopped)
        if files not in sound:
            assert outcome_in(stopped.path, name) == outcome, str(stopped)
            sound.append(files)
    assert sound


def outcome_in(path, name):
    """What is read, and what is wrong: only what Kafka leaves damaged too, below the recovery point."""
    records, errors = read_past_damage(LogDir.open_read_only(path).log(TopicPartition(name[:-2], 0)).snapshot())
    # A gap is a note: recovery accepts a missing segment.
    findings = [finding for finding in verify_log_dir(path) if finding.kind is not FaultKind.SEGMENT_GAP]
    assert bool(findings) == (name[:-2] in LEFT_DAMAGED)
    return records, [str(problem).replace(str(path), "") for problem in (*errors, *findings)]


def torn(tmp_path, *, segments=1):
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    for n in range(segments * 4):
        if n and n % 4 == 0:
            owned.log(TP).roll()
        append(owned.log(TP), [b"value %d" % n])
    values = read(owned, "t")
    killed(owned)
    return tmp_path, values


@pytest.mark.parametrize("tail", [b"x", b"\0" * 500, b"\xff" * 70], ids=["a byte", "zeros", "garbage"])
@pytest.mark.parametrize("clean", [False, True])
def test_gentle_recovery_cuts_a_torn_tail(tmp_path, tail, clean):
    path, values = torn(tmp_path)
    if clean:
        close_clean(opened(path))
    last = path / "t-0" / "00000000000000000000.log"
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(tail)
    owned = opened(path, Opening(gentle=True))
    assert read(owned, "t") == values
    cut = owned.reports()[TP].cut
    assert cut is not None
    assert (cut.position, cut.next_offset, cut.lost_bytes) == (size, 4, len(tail))
    close_clean(owned)


@pytest.mark.leaves_damage("batch-crc")
@pytest.mark.parametrize("gentle", [False, True])
def test_a_damaged_last_batch_below_the_recovery_point_is_not_cut_after_a_clean_shutdown(tmp_path, gentle):
    """It was whole and synced once: a broker keeps it, and so do we, for readers to report."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    for value in (b"one", b"two"):
        append(owned.log(TP), [value])
    assert owned.close().clean
    log = tmp_path / "t-0" / "00000000000000000000.log"
    flip(log, -2)
    data = log.read_bytes()
    owned = opened(tmp_path, Opening(gentle=gentle))
    assert owned.log(TP).log_end_offset == 2
    append(owned.log(TP), [b"three"])
    records, errors = read_past_damage(owned.log(TP).snapshot())
    assert owned.close().clean
    assert [(record.offset, record.value) for record in records] == [(0, b"one"), (2, b"three")]
    assert len(errors) == 1
    assert log.read_bytes()[: len(data)] == data


def cut_off(log):
    log.write_bytes(log.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("spoil", "words", "left", "removed"),
    [(lambda log: flip(log, 70), r"kafkafs recover.*salvage", 4, [8]), (cut_off, "1 later segments", 7, [8])],
    ids=["damage before intact messages", "a segment that is not the last cut off"],
)
def test_gentle_recovery_leaves_alone_what_would_cost_intact_messages(tmp_path, spoil, words, left, removed):
    path, values = torn(tmp_path, segments=3)
    spoil(path / "t-0" / "00000000000000000004.log")
    before = sorted((file, file.read_bytes()) for file in path.glob("t-0/*.log"))
    owned = opened(path, Opening(gentle=True))
    assert list(owned.failures()) == [TP]
    with pytest.raises(PartitionOffline, match=words):
        owned.log(TP)
    assert not owned.close().clean
    assert sorted((file, file.read_bytes()) for file in path.glob("t-0/*.log")) == before
    owned = opened(path)  # as `recover` does
    assert read(owned, "t") == values[:left]
    assert owned.reports()[TP].removed_segments == removed
    append(owned.log(TP), [b"more"])
    assert read(owned, "t") == [*values[:left], b"more"]
    close_clean(owned)


def test_reindexing_rebuilds_what_recovery_would_trust(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"index.interval.bytes": "100", "segment.bytes": "2000"})
    for n in range(60):
        append(owned.log(TP), [b"value %d" % n])
    close_clean(owned)
    expected = tree_of(tmp_path)
    for index in (tmp_path / "t-0").glob("*index"):
        index.write_bytes(b"\1" * 24)
    owned = opened(tmp_path, Opening(gentle=True, only=()))
    report = owned.reindex(TP)
    assert len(report.recovered_segments) > 2
    close_clean(owned)
    assert tree_of(tmp_path) == expected


@pytest.mark.parametrize(
    ("left_bytes", "change"),
    [
        (None, "makes 00000000000000000004.timeindex, which is missing"),
        (7, "trims 00000000000000000004.timeindex to whole entries"),
    ],
)
def test_what_is_done_to_a_time_index_is_reported(tmp_path, left_bytes, change):
    path, values = torn(tmp_path, segments=2)
    times = path / "t-0" / names.segment_file(4, FileKind.TIME_INDEX)
    if left_bytes is None:
        times.unlink()
    else:
        os.truncate(times, left_bytes)
    owned = opened(path)
    assert read(owned, "t") == values
    assert change in owned.reports()[TP].changes
    close_clean(owned)


def test_a_producer_expires_between_two_segments(tmp_path):
    """As in a broker, which loads a snapshot for each segment that it recovers. Verify accepts such snapshots."""
    old = StandingClock().now_ms() - 2 * 86_400_000

    def batch(producer, sequence):
        record = Record(None, b"x", (), old)
        return Batch([record], producer_id=producer, base_sequence=sequence, transactional=producer == 7)

    def ended(producer):
        return replace(commit(producer), timestamp=old, coordinator_epoch=3)

    items = [batch(7, 0), ROLL, ended(7), ROLL, batch(8, 0), ROLL, batch(7, 1), ROLL, ended(8)]
    build_log_dir(tmp_path, {"t": [Partition(items, recovery_point=0)]}, clean=False)
    owned = opened(tmp_path)
    owned.log(TP)

    def told(offset):
        found = producer_state.read(tmp_path / "t-0" / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
        assert found is not None
        return {entry.producer_id: (entry.last_offset, entry.coordinator_epoch) for entry in found.entries()}

    assert [told(offset) for offset in (1, 2, 3, 4, 5)] == [
        {7: (0, -1)},
        {7: (0, 3)},  # its transaction was open
        {8: (2, -1)},
        {7: (3, -1)},
        {7: (3, -1), 8: (-1, 3)},
    ]
    close_clean(owned)


@pytest.mark.parametrize(("magic", "expected"), [(1, [1, 2, 5, 6, 7]), (2, [1, 2, 3, 5, 6, 7])])
def test_snapshots_when_an_index_is_missing(tmp_path, magic, expected):
    """As a broker writes them: at the two segments before the one without an index, there, and at its end if it has
    batches of format v2; then at the last two segments and at the log end."""
    items = [item for _ in range(7) for item in (Batch(many(1), magic=magic), ROLL)][:-1]
    build_log_dir(tmp_path, {"t": [Partition(items)]})
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    (tmp_path / "t-0" / names.segment_file(2, FileKind.OFFSET_INDEX)).unlink()
    owned = opened(tmp_path)
    assert owned.log(TP).log_end_offset == 7
    close_clean(owned)
    assert sorted(int(snapshot.stem) for snapshot in (tmp_path / "t-0").glob("*.snapshot")) == expected


THREE_EPOCHS = [item for epoch in (1, 2, 3) for item in (Batch(many(2), leader_epoch=epoch), ROLL)][:-1]


@pytest.mark.parametrize(
    ("items", "known", "recovered", "expected"),
    [
        pytest.param(
            [Batch(many(2)), ROLL, Batch(many(2), base_offset=5, leader_epoch=2), Batch(many(1), leader_epoch=3)],
            [(0, 0), (1, 2), (2, 3)], [0, 5], [(0, 0), (1, 2), (2, 3), (3, 7)],
            id="epochs whose batches were compacted away stay",
        ),
        pytest.param(
            THREE_EPOCHS, [(1, 0), (3, 4)], [0, 2, 4], [(1, 0), (3, 4)], id="none is added between known ones",
            marks=pytest.mark.leaves_damage("epochs-untrue"),
        ),
        pytest.param(
            THREE_EPOCHS, [(3, 4)], [0, 2, 4], [(1, 0), (2, 2), (3, 4)], id="those from below the first are added"
        ),
    ],
)  # fmt: skip
def test_leader_epochs_as_a_broker_recovers_them(tmp_path, items, known, recovered, expected):
    build_log_dir(tmp_path / "dir", {"t": [Partition(items, recovery_point=0)]}, clean=False)
    checkpoint = tmp_path / "dir" / "t-0" / names.LEADER_EPOCH_CHECKPOINT
    checkpoint.write_bytes(leader_epochs.encode(EpochEntry(*entry) for entry in known))
    owned = opened(tmp_path / "dir")
    assert owned.reports()[TP].recovered_segments == recovered
    assert owned.close().clean
    assert leader_epochs.read(checkpoint).entries == tuple(EpochEntry(*entry) for entry in expected)


def test_a_retention_that_was_cut_short_does_not_make_a_log_tiered(tmp_path):
    """The segment is gone, and neither the line of the log start nor the first leader epoch was moved up."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    append(log, [b"a", b"b"])
    log.increment_log_start_offset(1)
    log.roll()
    append(log, [b"c"])
    owned.checkpoint()
    killed(owned)
    for file in (tmp_path / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    owned = opened(tmp_path)
    snapshot = owned.log(TP).snapshot()
    assert (snapshot.remote_offsets, snapshot.whole_start_offset, read(owned, "t")) == (None, 2, [b"c"])
    close_clean(owned)


def test_several_partitions_with_progress(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 8)
    for number in range(8):
        append(owned.log(TopicPartition("t", number)), [b"x" * 1000])
    killed(owned)
    progress = Mock(spec=["begin", "advance", "end"])
    owned = OwnedDir.open(tmp_path, progress=progress, clock=SystemClock())
    assert len(owned.reports()) == 8
    close_clean(owned)
    begin, *advances, end = progress.mock_calls
    total = sum(call.args[0] for call in advances)
    assert total > 8000
    assert (begin, end) == (mock_call.begin("recovery", total), mock_call.end())


# Directories as a crash or a disk left them: what is shown is right, whole and in order; what is damaged says so.

_RECOVERY = FIXTURES / "recovery"

# Where reading `before` must differ from what the recovered broker served, or fails on the way: the offsets that are
# lost (first, end), and the error. All other cases equal the broker's golden files.
_LOST = {
    "c-flip-active": (98, 101, CorruptBatch),  # the broker cut here, and lost the good batches behind it
    "c2-flip-older": (73, 77, CorruptBatch),
    "c3-flip-length": (98, 104, CorruptBatch),  # up to the next batch that the index knows
    "c4-flip-magic": (98, 101, UnsupportedFormat),
    "m-flip-below-recovery-point": (73, 77, CorruptBatch),
}
# Complete .swap files beside all their sources: the broker went on with the swap, we still show the sources.
_SOURCES_SHOWN = {"i2-swap-one", "i3-swap-two", "i6-swap-with-indexes"}
# Garbage indexes behind which Kafka's own consumer skipped data.
_KAFKA_SKIPPED = {"f3-garbage-index-below-recovery-point", "f4-plausible-index-below-recovery-point"}


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_before_recovery(case):
    directory = BEFORE / f"rec-{case}-0"
    snapshot = open_log(directory).snapshot()
    first, end, error = _LOST.get(case, (-1, -1, CorruptBatch))
    undamaged = read_golden(_RECOVERY / "golden-undamaged/rec-undamaged-0.jsonl.gz")
    committed = read_golden(_RECOVERY / "golden/rec-undamaged-0.read_committed.jsonl.gz")
    for isolation, whole in ((Isolation.READ_UNCOMMITTED, undamaged), (Isolation.READ_COMMITTED, committed)):
        records, errors = read_past_damage(snapshot, isolation)
        if case in _LOST:
            assert records == [record for record in whole if not first <= record.offset < end]
            assert [(type(problem), problem.offset, problem.path.parent) for problem in errors] == [
                (error, first, directory)
            ]
        elif case in _SOURCES_SHOWN | _KAFKA_SKIPPED:
            assert (records, errors) == (whole, [])
        else:
            suffix = "" if isolation is Isolation.READ_UNCOMMITTED else ".read_committed"
            assert (records, errors) == (read_golden(_RECOVERY / f"golden/rec-{case}-0{suffix}.jsonl.gz"), [])
            assert snapshot.log_end_offset == CASES[case]["log_end_offset_after"]
    assert last_stable_offset(snapshot) == snapshot.log_end_offset
    # Any offset is found, whatever the indexes say.
    offsets = [record.offset for record in read_past_damage(snapshot)[0]]
    for offset in range(snapshot.log_start_offset, snapshot.log_end_offset):
        expected = next((known for known in offsets if known >= offset), None)
        block = next(read_range(snapshot, offset), None)
        if offset < end and (expected is None or expected > first):
            assert len(block) == 0
            assert type(block.damage.error) is error
        else:
            assert (None if block is None else int(block.offset[0])) == expected


@requires_fixtures
def test_swap_is_read_once_a_source_is_gone(tmp_path):
    """Kafka renames the sources to .deleted in ascending order; the .swap stands for all of them from the first on."""
    directory = copy_partition(_RECOVERY / "before/rec-i3-swap-two-0", tmp_path / "rec-i3-swap-two-0")
    log = open_log(directory)
    before = log.snapshot()
    assert [segment.base_offset for segment in before.segments] == [0, 24, 62, 84]

    (directory / f"{24:020d}.log").rename(directory / f"{24:020d}.log.deleted")
    half = log.snapshot()
    assert [segment.base_offset for segment in half.segments] == [0, 24, 84]
    assert half.segments[1].state is FileState.SWAP
    assert read_all(half) == read_golden(_RECOVERY / "golden/rec-i3-swap-two-0.jsonl.gz")
    assert half.generation == before.generation
    # Readers who hold the first snapshot still see the sources.
    assert read_all(before) == read_golden(_RECOVERY / "golden-undamaged/rec-undamaged-0.jsonl.gz")

    (directory / f"{62:020d}.log").rename(directory / f"{62:020d}.log.deleted")
    (directory / f"{24:020d}.log.swap").rename(directory / f"{24:020d}.log")
    done = log.snapshot()
    assert done.segments[1] is half.segments[1]
    assert done.segments[0] is before.segments[0]
    assert read_all(half) == read_all(done) == read_golden(_RECOVERY / "golden/rec-i3-swap-two-0.jsonl.gz")


@pytest.mark.parametrize("believed_bytes", [16 << 20, 4096])
def test_a_wild_length_is_not_believed(tmp_path, monkeypatch, believed_bytes):
    """A length of many megabytes that even fits the file must be borne out before memory is taken for it."""
    monkeypatch.setattr(segment, "BELIEVED_BYTES", believed_bytes)
    items = [Batch(many(1, 1000)) for _ in range(60)]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=0, tail=b"")]})["t", 0]
    batch = partition.batches[10]
    length = partition.batches[50].position - batch.position - 12 + 7
    overwrite(partition.log(), batch.position + 8, length.to_bytes(4, "big"))
    snapshot = open_log(partition.path).snapshot()
    for window in (1 << 20, 4096):
        records, errors = read_past_damage(snapshot, window=window)
        assert len(errors) == 1
        assert built(records) == [record for record in partition.records if record.offset != 10]


@pytest.mark.parametrize(("recovery_point", "damaged"), [(6, False), (9, True)])
def test_a_bad_last_batch_is_damage_below_the_recovery_point_only(tmp_path, recovery_point, damaged):
    partition = build_log_dir(tmp_path, {"t": [[Batch(many(3)) for _ in range(3)]]})["t", 0]
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {recovery_point}\n")
    flip(partition.log(), partition.batches[2].position + 70)
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    records, errors = read_past_damage(snapshot)
    assert [record.offset for record in records] == list(range(6))
    assert len(errors) == damaged
    assert snapshot.log_end_offset == (9 if damaged else 6)
