"""Recovery: damaged logs before it and after it, as the broker's own left them; and crashes in it."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace

import pytest

from storage.append.appender import Appender
from storage.clock import SystemClock
from storage.config import LogConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, PartitionOffline, UnsupportedFormat
from storage.files import checkpoints, leader_epochs, names, producer_state
from storage.files.leader_epochs import EpochEntry
from storage.files.names import FileKind, FileState
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log import segment
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.reader import find_batch, read_range
from storage.recovery.recovery import RecoveryPlan, rehearse
from storage.types import Isolation, TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.verify import verify_log_dir
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, commit, many
from tests.support.crash_points import every_crash
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, copy_log_dir, read_golden, requires_fixtures, topics_of
from tests.support.owned_dirs import (
    ONE_THREAD,
    HastyDisk,
    StandingClock,
    append,
    close_clean,
    killed,
    opened,
    read,
    tree_of,
    values_of,
)
from tests.support.readers import built, copy_partition, open_log, read_all, read_past_damage

# Recovery: the damaged logs of the fixture come out as the broker's recovery left them; and from crashes in itself.

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


def cases():
    """The names of the damaged partitions' directories."""
    found = []
    for path in sorted(BEFORE.iterdir()):
        if path.is_dir():
            left = LEFT_DAMAGED.get(path.name.rpartition("-")[0])
            marks = [] if left is None else [pytest.mark.leaves_damage(left)]
            found.append(pytest.param(path.name, id=path.name, marks=marks))
    return found


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
    return OwnedDir.open(path, Opening(), config=ONE_THREAD, disk=HastyDisk(), clock=StandingClock(0))


@pytest.mark.parametrize("name", cases())
def test_equals_the_brokers_recovery(tmp_path, name):
    path = one_case(tmp_path, name)
    owned = opened_then(path)
    assert not owned.failures()
    assert owned.close().clean  # what Kafka leaves damaged, so do we
    assert tree_of(path / name, _BESIDE) == tree_of(AFTER / name, _BESIDE)


@pytest.mark.parametrize("name", cases())
def test_the_rehearsal_tells_what_recovery_does(tmp_path, name):
    path = one_case(tmp_path, name)
    before = tree_of(path)
    topic, _, partition = name.rpartition("-")
    tp = TopicPartition(topic, int(partition))
    reader = OwnedDir.open(path, Opening(only=()), config=ONE_THREAD)
    config = reader.topic_info(topic).config
    reader.close()
    plan = RecoveryPlan(
        tp,
        path / name,
        config,
        clean=False,
        recovery_point=checkpoints.read(path / names.RECOVERY_POINT_CHECKPOINT).get(tp, 0),
    )
    told = rehearse(plan, clock=StandingClock(0))
    assert tree_of(path) == before
    owned = opened_then(path)
    done = owned.reports()[tp]
    owned.close()
    assert _comparable(told) == _comparable(done)


def test_a_rehearsal_takes_no_room_for_preallocated_indexes(tmp_path, monkeypatch):
    """A broker preallocates 10 MiB for each index of an active segment; a copy of these zeros may be allocated."""
    items = [Batch(many(20)) for _ in range(30)]
    partition = build_log_dir(tmp_path / "logs", {"t": [items]})["t", 0]
    used = {}
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        path = partition.path / names.segment_file(0, kind)
        used[kind] = path.stat().st_size
        path.write_bytes(path.read_bytes().ljust(10 << 20, b"\0"))
    assert all(used.values())
    place, seen = tmp_path / "tmp", []
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    class Looking(StandingClock):
        def now_ms(self):
            """Recovery asks for the time when the copy is there."""
            files = [path.stat() for path in place.rglob("*.*index")]
            seen.append((len(files), sum(file.st_blocks * 512 for file in files), max(file.st_size for file in files)))
            return super().now_ms()

    told = rehearse(RecoveryPlan(TopicPartition("t", 0), partition.path, LogConfig(), clean=False), clock=Looking())
    assert told.log_end_offset == 600
    assert seen
    for count, allocated, size in seen:
        assert count == 2
        assert size <= 10 << 20
        assert allocated < 1 << 20


def _comparable(report):
    return {
        "changes": report.changes,
        "cut": report.cut,
        "removed": report.removed_segments,
        "recovered": report.recovered_segments,
        "range": (report.log_start_offset, report.log_end_offset),
    }


@pytest.mark.parametrize("name", cases())
def test_a_crash_in_recovery_changes_nothing_of_its_result(tmp_path, name):
    path = one_case(tmp_path, name)
    topic, _, partition = name.rpartition("-")
    expected = tree_of(AFTER / name, _BESIDE)
    whole = shutil.copytree(path, tmp_path / "whole")
    owned = opened_then(whole)
    assert owned.close().clean
    outcome = _outcome(whole, TopicPartition(topic, int(partition)))

    def work(sessions, _notes):
        sessions.open(opening=Opening())

    begun = []
    sound = []
    for stopped, _ in every_crash(tmp_path, path, work, lambda: None):
        left = tree_of(stopped.path)
        if left in begun:
            continue  # from the same files the same comes out
        begun.append(left)
        owned = opened_then(stopped.path)
        assert owned.close().clean, str(stopped)
        found = tree_of(stopped.path / name, _BESIDE)
        assert found.keys() == expected.keys(), str(stopped)
        if not stopped.lost_power:
            assert [file for file in found if found[file] != expected[file]] == [], str(stopped)
        if found not in sound:
            assert _outcome(stopped.path, TopicPartition(topic, int(partition))) == outcome, str(stopped)
            sound.append(found)
    assert sound


def _outcome(path, tp):
    """What is read, and what is wrong: only what Kafka leaves damaged too, below the recovery point."""
    snapshot = LogDir.open_read_only(path).log(tp).snapshot()
    found = []
    for block in read_range(snapshot, snapshot.log_start_offset):
        found += [block.value(row) for row in range(len(block))]
        if block.damage is not None:
            found.append(f"{block.damage.error} at {block.damage.position}")
    findings = [
        str(finding).replace(str(path), "")
        for finding in verify_log_dir(path)
        if finding.kind is not FaultKind.SEGMENT_GAP  # a note: recovery accepts a missing segment
    ]
    if tp.topic not in LEFT_DAMAGED:
        assert not findings
    return [str(text).replace(str(path), "") if isinstance(text, str) else text for text in found], findings


def _torn(tmp_path, *, segments=1):
    """A directory that was killed while the last of its batches was being written."""
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1)
    for n in range(segments * 4):
        if n and n % 4 == 0:
            owned.log(TP).roll()
        append(owned.log(TP), [b"value %d" % n])
    values = read(owned, "t")
    killed(owned)
    return path, values


@pytest.mark.parametrize("tail", [b"x", b"\0" * 500, b"\xff" * 70], ids=["a byte", "zeros", "garbage"])
@pytest.mark.parametrize("clean", [False, True])
def test_gentle_recovery_cuts_a_torn_tail(tmp_path, tail, clean):
    """Behind a log that was closed in order, too, where a broker may not start."""
    path, values = _torn(tmp_path)
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
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1)
    for value in (b"one", b"two"):
        append(owned.log(TP), [value])
    assert owned.close().clean
    log = path / "t-0" / "00000000000000000000.log"
    flip(log, -2)
    data = log.read_bytes()
    owned = opened(path, Opening(gentle=gentle))
    assert owned.log(TP).log_end_offset == 2
    append(owned.log(TP), [b"three"])
    records, errors = read_past_damage(owned.log(TP).snapshot())
    assert owned.close().clean
    assert [(record.offset, record.value) for record in records] == [(0, b"one"), (2, b"three")]
    assert len(errors) == 1
    assert log.read_bytes()[: len(data)] == data


def test_gentle_recovery_leaves_damage_before_intact_messages_alone(tmp_path):
    path, _ = _torn(tmp_path)
    log = path / "t-0" / "00000000000000000000.log"
    flip(log, 70)
    data = log.read_bytes()
    owned = opened(path, Opening(gentle=True))
    assert list(owned.failures()) == [TP]
    with pytest.raises(PartitionOffline, match=r"kafkafs recover.*salvage"):
        owned.log(TP)
    assert not owned.close().clean
    assert log.read_bytes() == data
    owned = opened(path)  # as `recover` does
    assert read(owned, "t") == []
    close_clean(owned)


def test_gentle_recovery_removes_no_later_segment(tmp_path):
    path, _ = _torn(tmp_path, segments=3)
    first = path / "t-0" / "00000000000000000004.log"
    first.write_bytes(first.read_bytes()[:-3])
    before = sorted(file.name for file in (path / "t-0").glob("*.log"))
    owned = opened(path, Opening(gentle=True))
    with pytest.raises(PartitionOffline, match="1 later segments"):
        owned.log(TP)
    owned.close()
    assert sorted(file.name for file in (path / "t-0").glob("*.log")) == before
    owned = opened(path)
    assert read(owned, "t") == [b"value %d" % n for n in range(7)]
    assert owned.reports()[TP].removed_segments == [8]
    close_clean(owned)


def test_reindexing_rebuilds_what_recovery_would_trust(tmp_path):
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1, {"index.interval.bytes": "100", "segment.bytes": "2000"})
    for n in range(60):
        append(owned.log(TP), [b"value %d" % n])
    close_clean(owned)
    expected = tree_of(path)
    for index in (path / "t-0").glob("*index"):
        index.write_bytes(b"\1" * 24)
    owned = opened(path, Opening(gentle=True, only=()))
    report = owned.reindex(TP)
    assert len(report.recovered_segments) > 2
    close_clean(owned)
    assert tree_of(path) == expected


def test_a_producer_expires_between_two_segments(tmp_path):
    """As in a broker, which loads a snapshot for each segment that it recovers. Verify accepts such snapshots."""
    old = StandingClock().now_ms() - 2 * 86_400_000

    def batch(producer, sequence):
        record = Record(None, b"x", (), old)
        return Batch([record], producer_id=producer, base_sequence=sequence, transactional=producer == 7)

    def ended(producer):
        return replace(commit(producer), timestamp=old, coordinator_epoch=3)

    items = [batch(7, 0), ended(7), ROLL, batch(8, 0), ROLL, batch(7, 1), ROLL, ended(8)]
    path = tmp_path / "dir"
    build_log_dir(path, {"t": [Partition(items, recovery_point=0)]}, clean=False)
    owned = opened(path)
    owned.log(TP)

    def told(offset):
        found = producer_state.read(path / "t-0" / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
        assert found is not None
        return {entry.producer_id: (entry.last_offset, entry.coordinator_epoch) for entry in found.entries()}

    assert [told(offset) for offset in (2, 3, 4, 5)] == [
        {7: (0, 3)},
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
    path = tmp_path / "dir"
    build_log_dir(path, {"t": [Partition(items)]})
    for snapshot in (path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    (path / "t-0" / names.segment_file(2, FileKind.OFFSET_INDEX)).unlink()
    owned = opened(path)
    assert owned.log(TP).log_end_offset == 7
    close_clean(owned)
    assert sorted(int(snapshot.stem) for snapshot in (path / "t-0").glob("*.snapshot")) == expected


def test_leader_epochs_whose_batches_were_compacted_away_stay(tmp_path):
    """Epoch 1 has no batch left, and 2 not its first: a broker's recovery only adds what is newer."""
    items = [Batch(many(2)), ROLL, Batch(many(2), base_offset=5, leader_epoch=2), Batch(many(1), leader_epoch=3)]
    path = tmp_path / "dir"
    build_log_dir(path, {"t": [Partition(items, recovery_point=0)]}, clean=False)
    known = [EpochEntry(0, 0), EpochEntry(1, 2), EpochEntry(2, 3)]
    checkpoint = path / "t-0" / names.LEADER_EPOCH_CHECKPOINT
    checkpoint.write_bytes(leader_epochs.encode(known))
    owned = opened(path)
    assert owned.reports()[TP].recovered_segments == [0, 5]
    close_clean(owned)
    assert leader_epochs.read(checkpoint).entries == (*known, EpochEntry(3, 7))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param([(1, 0), (3, 4)], [(1, 0), (3, 4)], marks=pytest.mark.leaves_damage("epochs-untrue")),
        ([(3, 4)], [(1, 0), (2, 2), (3, 4)]),
    ],
)
def test_only_leader_epochs_from_below_the_first_known_one_are_added(tmp_path, known, expected):
    """A broker adds none between those that it knows."""
    items = [item for epoch in (1, 2, 3) for item in (Batch(many(2), leader_epoch=epoch), ROLL)][:-1]
    path = tmp_path / "dir"
    build_log_dir(path, {"t": [Partition(items, recovery_point=0)]}, clean=False)
    checkpoint = path / "t-0" / names.LEADER_EPOCH_CHECKPOINT
    checkpoint.write_bytes(leader_epochs.encode(EpochEntry(*entry) for entry in known))
    owned = opened(path)
    assert owned.reports()[TP].recovered_segments == [0, 2, 4]
    assert owned.close().clean
    assert list(leader_epochs.read(checkpoint).entries) == expected


def test_a_retention_that_was_cut_short_does_not_make_a_log_tiered(tmp_path):
    """The segment is gone, and neither the line of the log start nor the first leader epoch was moved up."""
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    append(log, [b"a", b"b"])
    log.increment_log_start_offset(1)
    log.roll()
    append(log, [b"c"])
    owned.checkpoint()
    killed(owned)
    for file in (path / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    owned = opened(path)
    snapshot = owned.log(TP).snapshot()
    assert (snapshot.remote_offsets, snapshot.whole_start_offset, values_of(snapshot)) == (None, 2, [b"c"])
    close_clean(owned)


def test_several_partitions_with_progress(tmp_path):
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 8)
    for p in range(8):
        append(owned.log(TopicPartition("t", p)), [b"x" * 1000])
    killed(owned)
    calls = []

    class Noted:
        def begin(self, what, total):
            calls.append((what, total))

        def advance(self, amount):
            calls.append(("advance", amount))

        def end(self):
            calls.append(("end", 0))

    owned = OwnedDir.open(path, progress=Noted(), clock=SystemClock())
    assert len(owned.reports()) == 8
    close_clean(owned)
    total = sum(int(str(amount)) for what, amount in calls if what == "advance")
    assert calls[0] == ("recovery", total)
    assert calls[-1] == ("end", 0)
    assert total > 8000


def test_cases_json_is_as_the_tests_expect():
    assert json.loads((FIXTURES / "recovery" / "cases.json").read_text())
    assert len(cases()) == 33


def test_a_writer_after_recovery_continues(tmp_path):
    path, values = _torn(tmp_path)
    owned = opened(path)
    assert Appender(owned.log(TP), clock=StandingClock()).append([]).taken == 0
    append(owned.log(TP), [b"more"])
    assert read(owned, "t") == [*values, b"more"]
    close_clean(owned)


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


def _cases():
    return list(_facts())


def _facts():
    return json.loads((_RECOVERY / "cases.json").read_text())


@pytest.mark.parametrize("case", _cases())
def test_before_recovery(case):
    directory = _RECOVERY / "before" / f"rec-{case}-0"
    snapshot = open_log(directory).snapshot()
    undamaged = read_golden(_RECOVERY / "golden-undamaged/rec-undamaged-0.jsonl.gz")
    committed = read_golden(_RECOVERY / "golden/rec-undamaged-0.read_committed.jsonl.gz")
    for isolation, whole in ((Isolation.READ_UNCOMMITTED, undamaged), (Isolation.READ_COMMITTED, committed)):
        records, errors = read_past_damage(snapshot, isolation)
        if case in _LOST:
            first, end, error = _LOST[case]
            assert records == [record for record in whole if not first <= record.offset < end]
            assert [type(found) for found in errors] == [error]
            assert isinstance(errors[0], CorruptBatch | UnsupportedFormat)
            assert errors[0].offset == first
            assert errors[0].path is not None
            assert errors[0].path.parent == directory
        elif case in _SOURCES_SHOWN | _KAFKA_SKIPPED:
            assert (records, errors) == (whole, [])
        else:
            suffix = "" if isolation is Isolation.READ_UNCOMMITTED else ".read_committed"
            assert (records, errors) == (read_golden(_RECOVERY / f"golden/rec-{case}-0{suffix}.jsonl.gz"), [])
            assert (
                snapshot.log_end_offset
                == json.loads((_RECOVERY / "cases.json").read_text())[case]["log_end_offset_after"]
            )
    assert last_stable_offset(snapshot) == snapshot.log_end_offset


@pytest.mark.parametrize("case", _cases())
def test_any_offset_is_found_whatever_the_indexes_say(case):
    snapshot = open_log(_RECOVERY / "before" / f"rec-{case}-0").snapshot()
    whole, _ = read_past_damage(snapshot)
    first, end, error = _LOST.get(case, (-1, -1, CorruptBatch))
    for offset in range(snapshot.log_start_offset, snapshot.log_end_offset):
        expected = next((record.offset for record in whole if record.offset >= offset), None)
        damage_comes_first = offset < end and (expected is None or expected > first)
        block = next(read_range(snapshot, offset), None)
        if damage_comes_first:
            assert block is not None
            assert len(block) == 0
            assert block.damage is not None
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


@pytest.mark.parametrize("magic", [0, 1])
def test_old_compressed_sets_tell_only_their_last_offset(tmp_path, magic):
    items = [Batch(many(9, 400), codec=Codec.GZIP, magic=magic) for _ in range(30)]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=200)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    for offset in range(0, partition.log_end_offset, 4):
        found = find_batch(snapshot, offset)
        assert found is not None
        assert found.position == partition.batches[offset // 9].position
        assert built(read_all(snapshot, offset, offset + 5)) == partition.records[offset : offset + 5]


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


@pytest.mark.parametrize("size", [3_000_000, 40_000_000])
def test_batch_larger_than_any_window(tmp_path, size):
    items = [Batch(many(2)), Batch(many(1, size)), Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert snapshot.log_end_offset == 5
    records = read_all(snapshot, window=4096)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]
    assert built(records) == partition.records
    assert read_all(snapshot, 3)[0].offset == 3


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
