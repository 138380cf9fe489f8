"""Replication: the copy is the source's log, goes on where it stopped, and is listed in a manifest."""

from __future__ import annotations

import errno
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from storage.append.appender import Appender
from storage.backup.mirror import ManifestRecorder, Mirror, same_batches
from storage.backup.record_digests import LogDiff, diff_records
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTopic,
    NotPermitted,
    PartitionOffline,
    UnsupportedFormat,
)
from storage.files import checkpoints, names, producer_state, transaction_index
from storage.files import manifest as manifests
from storage.files.disk import RealDisk
from storage.files.names import FileKind
from storage.format.batches import BatchTable, Column
from storage.format.block import Record
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.progress import NoProgress
from storage.types import Isolation, OffsetRange, TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.support.broker_rules import stored_batches
from tests.support.builders import (
    ROLL,
    START_MS,
    Batch,
    BuiltPartition,
    Partition,
    abort,
    build_log_dir,
    commit,
    many,
)
from tests.support.commands import output_of
from tests.support.crash_points import every_crash
from tests.support.faults import FaultyDisk
from tests.support.fixtures import FIXTURES, requires_fixtures, topics_of
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
from tests.support.readers import built, read_all
from tests.support.replayed_logs import BESIDE, replayed

# Replication: the copy is the source's log, goes on where it stopped, and is rolled by its own configuration.

TP = TopicPartition("t", 0)


def everything(log_dir):
    """All partitions."""
    return [TopicPartition(topic, number) for topic in log_dir.topics() for number in log_dir.partitions(topic)]


def mirrored(source, target):
    """One pass."""
    mirror = Mirror(LogDir.open_read_only(source), target, everything)
    mirror.run()
    return mirror


@pytest.fixture
def source(tmp_path):
    """A directory that is written while it is copied."""
    owned = opened(tmp_path / "source")
    owned.create_topic("t", 2, {"segment.bytes": "500", "retention.ms": "1000", "compression.type": "lz4"})
    for n in range(10):
        append(owned.log(TP), [b"value %d" % n] * 3)
    return owned


@pytest.fixture
def target(tmp_path):
    """Where to."""
    return opened(tmp_path / "target")


def test_a_copy_goes_on_where_it_stopped(source, target):
    mirror = mirrored(source.path, target)
    assert read(target, "t") == read(source, "t")
    assert mirror.results[TP].first_offset == 0
    assert mirror.run() == 0
    append(source.log(TP), [b"new"])
    again = mirrored(source.path, target)
    assert again.results[TP].first_offset == 30
    assert again.results[TP].log_end_offset == 31
    assert read(target, "t")[-1] == b"new"
    assert read(target, "t", 1) == []
    close_clean(target)
    source.close()
    segments = [path.name for path in sorted((source.path / "t-0").glob("*.log"))]
    assert len(segments) > 2
    for name in segments:
        assert (target.path / "t-0" / name).read_bytes() == (source.path / "t-0" / name).read_bytes()


def test_a_new_topic_has_the_sources_config_but_keeps_everything(source, target):
    mirrored(source.path, target)
    found = target.topic_info("t").overrides
    assert found == {"segment.bytes": "500", "retention.ms": "-1", "compression.type": "lz4"}
    assert target.log_dir.partitions("t") == [0, 1]
    assert target.topic_info("t").topic_id == source.topic_info("t").topic_id
    source.close()
    target.close()


def test_it_begins_at_the_sources_first_segment(tmp_path, target):
    items = [Batch(many(5)), ROLL, Batch(many(5))]
    path = tmp_path / "built"
    built = build_log_dir(path, {"t": [Partition(items, start_offset=100, log_start_offset=103)]})["t", 0]
    mirrored(path, target)
    snapshot = target.log(TP).snapshot()
    assert snapshot.segments[0].base_offset == 100
    assert (snapshot.log_start_offset, snapshot.log_end_offset) == (103, 110)
    assert [r.offset for r in read_all(snapshot)] == [r.offset for r in built.records]
    close_clean(target)
    assert checkpoints.read(target.path / names.LOG_START_CHECKPOINT) == {TP: 103}


def test_an_empty_copy_moves_to_where_the_source_begins(tmp_path, target):
    target.create_topic("t", 1)
    build_log_dir(tmp_path / "built", {"t": [Partition([Batch(many(5))], start_offset=100)]})
    mirrored(tmp_path / "built", target)
    assert [path.name for path in (target.path / "t-0").glob("*.log")] == ["00000000000000000100.log"]
    target.close()


def test_a_source_that_lost_its_beginning_leaves_a_gap(source, target, tmp_path):
    """What the copy has, it keeps."""
    mirrored(source.path, target)
    kept = read(target, "t")
    build_log_dir(tmp_path / "later", {"t": [Partition([Batch(many(2))], start_offset=500)]})
    result = mirrored(tmp_path / "later", target).results[TP]
    assert result.error is None
    assert read(target, "t")[: len(kept)] == kept
    assert target.log(TP).log_end_offset == 502
    source.close()
    target.close()


def test_another_log_of_that_name_is_refused(source, target):
    target.create_topic("t", 1)
    append(target.log(TP), [b"value 0"] * 2 + [b"other"])
    result = mirrored(source.path, target).results[TP]
    assert isinstance(result.error, InvalidRecord)
    assert "other messages" in str(result.error)
    assert len(read(target, "t")) == 3
    source.close()
    target.close()


def test_a_source_that_was_truncated_and_whose_batches_end_elsewhere_is_refused(tmp_path, target):
    """The last batch of the copy has no counterpart; which leader wrote its offsets tells."""
    built = build_log_dir(tmp_path / "source", {"t": [[Batch(many(10)), Batch(many(10))]]})
    assert mirrored(built.path, target).results[TP].log_end_offset == 20
    copied = read(target, "t")
    items = [Batch(many(10)), Batch(many(7), leader_epoch=1), Batch(many(7), leader_epoch=1)]
    result = mirrored(build_log_dir(tmp_path / "later", {"t": [items]}).path, target).results[TP]
    assert isinstance(result.error, InvalidRecord)
    assert "leader epoch 1" in str(result.error)
    assert read(target, "t") == copied
    target.close()


@pytest.mark.parametrize("again", ["made again", "truncated"])
def test_another_log_under_the_same_name_between_two_passes(tmp_path, target, again):
    built = build_log_dir(tmp_path / "source", {"t": [[Batch(many(10)), Batch(many(10))]]})
    mirror = mirrored(built.path, target)
    assert mirror.results[TP].log_end_offset == 20
    copied = read(target, "t")
    log = built["t", 0].log(0)
    items = [Batch(many(10, 30)), Batch(many(10, 30)), Batch(many(10, 30))]
    other = build_log_dir(tmp_path / "other", {"t": [items]})
    if again == "made again":
        shutil.rmtree(log.parent)
        shutil.copytree(other["t", 0].path, log.parent)
    else:
        cut = built["t", 0].batches[1].position
        data = other["t", 0].log(0).read_bytes()[other["t", 0].batches[1].position :]
        with log.open("r+b") as file:
            file.truncate(cut)
            file.seek(cut)
            file.write(data)
    for _ in range(2):
        mirror.run()
        assert isinstance(mirror.results[TP].error, InvalidRecord)
        assert "other messages" in str(mirror.results[TP].error)
        assert read(target, "t") == copied


@pytest.mark.parametrize(("at", "error"), [(70, CorruptBatch), (16, UnsupportedFormat)], ids=["crc", "magic"])
def test_damage_stops_one_partition(tmp_path, target, at, error):
    """Everything before the damage is copied, and the error names the file of the source and the position in it."""
    path = tmp_path / "built"
    one = Partition([Batch(many(5)), Batch(many(5)), Batch(many(5))])
    built = build_log_dir(path, {"t": [one, one]})
    damaged = built["t", 0]
    data = bytearray(damaged.log().read_bytes())
    data[damaged.batches[1].position + at] ^= 64
    damaged.log().write_bytes(data + data[: damaged.batches[1].position])  # so that it is not just a torn tail
    results = mirrored(path, target).results
    found = results[TP].error
    assert isinstance(found, error)
    assert (found.path, found.position) == (damaged.log(), damaged.batches[1].position)
    assert results[TP].log_end_offset == 5
    assert len(values_of(target.log(TP).snapshot())) == 5
    assert results[TopicPartition("t", 1)].error is None
    assert len(values_of(target.log(TopicPartition("t", 1)).snapshot())) == 15
    target.close()


def test_into_a_brokers_directory_only_what_it_made(tmp_path, source):
    path = tmp_path / "broker"
    build_log_dir(path, {"u": [Partition([])]})
    target = opened(path)
    with pytest.raises(NotPermitted):
        mirrored(source.path, target)
    close_clean(target)
    target = opened(path)
    shutil.copytree(source.path / "t-1", tmp_path / "other" / "u-0")
    append(source.log(TopicPartition("t", 1)), [b"x"])
    shutil.copyfile(source.path / "t-1" / f"{0:020d}.log", tmp_path / "other" / "u-0" / f"{0:020d}.log")
    assert mirrored(tmp_path / "other", target).results[TopicPartition("u", 0)].error is None
    assert read(target, "u") == [b"x"]
    close_clean(target)
    source.close()


@requires_fixtures
@pytest.mark.parametrize(("fixture", "name"), replayed(restarts=False))
def test_the_files_are_those_of_the_broker(tmp_path, monkeypatch, fixture, name):
    """Under the topic's configuration, byte for byte, wherever windows end and flushes begin."""
    topic, _, partition = name.rpartition("-")
    described = topics_of(fixture)[topic]
    monkeypatch.setattr("storage.backup.mirror._WINDOW", 3000)
    monkeypatch.setattr("storage.backup.mirror._FLUSH_BYTES", 10_000)
    tp = TopicPartition(topic, int(partition))
    target = opened(tmp_path / "copy", disk=RealDisk())
    target.create_topic(topic, tp.partition + 1, {key: str(value) for key, value in described["config"].items()})
    mirror = Mirror(LogDir.open_read_only(FIXTURES / fixture / "log"), target, lambda _: [tp])
    mirror.run()
    assert mirror.results[tp].error is None
    close_clean(target)
    assert tree_of(tmp_path / "copy" / name, BESIDE) == tree_of(FIXTURES / fixture / "log" / name, BESIDE)


def test_a_flush_that_fails_is_reported(source, tmp_path, monkeypatch):
    """It happens in another thread while the copy goes on."""
    monkeypatch.setattr("storage.backup.mirror._FLUSH_BYTES", 1)
    source.close()
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path / "target", disk=disk)
    owned.create_topic("t", 2)
    disk.fail = lambda what, path: errno.EIO if what.startswith("sync") and path.suffix == ".log" else None
    results = mirrored(source.path, owned).results
    assert isinstance(results[TP].error, PartitionOffline | OSError)
    assert results[TopicPartition("t", 1)].error is None
    disk.fail = lambda _what, _path: None
    closing = owned.close()
    assert not closing.clean
    assert TP in closing.errors


@pytest.mark.parametrize("change", ["retain", "compact"])
def test_segments_that_disappear_during_the_copy(tmp_path, change):
    """The copy goes on with what the source has then; its manifest is written, and the next run finds no other
    messages."""
    source, dest, manifest = tmp_path / "built", tmp_path / "copy", tmp_path / "m.json"
    items = [item for _ in range(6) for item in (Batch(many(20, keys=7)), ROLL)]
    properties = b"cleanup.policy=compact\nmin.cleanable.dirty.ratio=0\n" if change == "compact" else b""
    build_log_dir(source, {"t": [items]}, broker=False, extra={"t-0/topic.properties": properties})

    class Changing(NoProgress):
        """Changes the source once the first segment has been copied."""

        def advance(self, size_bytes):
            if not changed:
                changed.append(len(list(source.glob("t-0/*.log"))))
                more = ["--before", "90"] if change == "retain" else []
                output_of(change, source, "t/0", *more)

    def back_up(progress):
        owned = opened(dest)
        recorder = ManifestRecorder(manifests.read(manifest))
        mirror = Mirror(LogDir.open_read_only(source), owned, everything, progress, recorder=recorder)
        mirror.run()
        close_clean(owned)
        assert mirror.results[TP].error is None
        manifests.write(RealDisk(), manifest, recorder.manifest(None, 1, dest))
        return mirror

    changed = []
    mirror = back_up(Changing())
    assert len(list(source.glob("t-0/*.log"))) < changed[0]
    assert mirror.results[TP].log_end_offset == 120
    for _ in range(2):
        assert back_up(NoProgress()).results[TP].size_bytes == 0
        found = manifests.read(manifest)
        assert found is not None
        assert verify_manifest(dest, found) == []
    latest = {row[2]: row for row in rows(source)}
    assert {row[2]: row for row in rows(dest)} == latest


def rows(path):
    snapshot = LogDir.open_read_only(path).log(TP).snapshot()
    return [
        (int(block.offset[row]), int(block.timestamp[row]), block.key(row), block.value(row))
        for block in read_range(snapshot, snapshot.log_start_offset)
        for row in range(len(block))
    ]


# Manifests while a mirror runs: increments, copies that are ahead, crashes at every step, cuts and other names.

STORY = [Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5)), Batch(many(5))]


def backed_up(source, owned, file, *, disk=None, until_ms=None, renamed=None):
    """As `kafkafs mirror --manifest`: copied, closed, listed."""
    recorder = ManifestRecorder(manifests.read(file))
    mirror = Mirror(
        LogDir.open_read_only(source), owned, lambda found: found.all_partitions(), until_ms=until_ms,
        renamed=renamed or {}, recorder=recorder,
    )  # fmt: skip
    mirror.run()
    errors = [result.error for result in mirror.results.values() if result.error is not None]
    if errors:
        owned.close()
        raise errors[0]
    assert (
        owned.close().clean
    )  # verified after the test; a crash may leave the manifest's temporary file, which is a note
    manifests.write(disk or RealDisk(), file, recorder.manifest(until_ms, 1000, owned.path))
    return recorder


def read_manifest(file):
    manifest = manifests.read(file)
    assert manifest is not None
    return manifest


def ranges_of(manifest, tp=TP):
    return [(one.first_offset, one.last_offset, one.batches) for one in manifest.partitions[tp].ranges]


def test_what_a_copy_has_and_its_manifest_does_not_is_added(tmp_path):
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    build_log_dir(source, {"t": [STORY[:2]]})
    backed_up(source, opened(target), file)
    source = tmp_path / "grown"
    build_log_dir(source, {"t": [STORY]})
    owned = opened(target)
    Mirror(LogDir.open_read_only(source), owned, lambda found: found.all_partitions()).run()
    close_clean(owned)
    assert read_manifest(file).partitions[TP].log_end_offset == 10
    recorder = backed_up(source, opened(target), file)
    assert recorder.found == {TP: OffsetRange(10, 20)}
    assert sum(count for _, _, count in ranges_of(read_manifest(file))) == 4
    assert read_manifest(file).partitions[TP].log_end_offset == 20
    assert verify_manifest(target, read_manifest(file)) == []


def test_what_is_added_must_be_in_the_source(tmp_path):
    """Other bytes before the last batch, which is all that an ordinary mirror compares."""
    source, target = tmp_path / "source", tmp_path / "copy"
    build_log_dir(source, {"t": [[Batch(many(5, 30)), Batch(many(5))]]})
    other = tmp_path / "other"
    build_log_dir(other, {"t": [[Batch(many(5, 40)), Batch(many(5))]]})
    owned = opened(target)
    Mirror(LogDir.open_read_only(other), owned, lambda found: found.all_partitions()).run()
    close_clean(owned)
    with pytest.raises(InvalidRecord, match="other messages"):
        backed_up(source, opened(target), tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize("listed", [True, False], ids=["by the last manifest", "by none"])
def test_a_source_that_was_compacted_since(tmp_path, listed):
    """The copy's last batch has lost a record there, others are gone: it is still the same log."""
    source = opened(tmp_path / "source")
    source.create_topic("t", 1, {"cleanup.policy": "compact"})
    target, file = tmp_path / "copy", tmp_path / "m.json"
    for batch in ((b"a", b"b"), (b"a",), (b"b", b"c")):
        _append_keyed(source, batch)
    source.log(TP).roll()
    source.close()
    if listed:
        backed_up(source.path, opened(target), file)
    else:
        owned = opened(target)
        Mirror(LogDir.open_read_only(source.path), owned, lambda found: found.all_partitions()).run()
        close_clean(owned)
    source = opened(source.path)
    _append_keyed(source, (b"c",))
    source.log(TP).roll()
    source.close()
    output_of("compact", source.path, "t")
    assert [batch.last_offset for batch in _batches(source.path)] == [2, 4, 5]
    backed_up(source.path, opened(target), file)
    manifest = read_manifest(file)
    assert manifest.partitions[TP].log_end_offset == 6
    assert sum(count for _, _, count in ranges_of(manifest)) == 4
    assert verify_manifest(target, manifest) == []


def _append_keyed(owned, keys):
    outcome = Appender(owned.log(TP), clock=owned.clock).append([Record(key, b"value of " + key) for key in keys])
    assert outcome.error is None


def _batches(path):
    return [batch for log in sorted((path / "t-0").glob("*.log")) for batch in stored_batches(log.read_bytes())]


def test_a_copy_that_lost_messages_is_not_added_to(tmp_path):
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    build_log_dir(source, {"t": [STORY]})
    backed_up(source, opened(target), file)
    before = file.read_bytes()
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINT_CHECKPOINT):
        (target / name).unlink()
    kept = b"".join(batch.data for batch in _batches(target) if batch.last_offset < 10)
    (target / "t-0" / names.segment_file(0, FileKind.LOG)).write_bytes(kept)
    with pytest.raises(InvalidRecord, match="lost messages"):
        backed_up(source, opened(target), file)
    assert file.read_bytes() == before


def test_a_stopped_backup_leaves_nothing_that_looks_complete(tmp_path):
    """Before every operation of an increment, as a kill and as a power loss; then it is done again."""
    source, before = tmp_path / "source", tmp_path / "before"
    build_log_dir(source, {"t": [[Batch(many(3)), ROLL]]})
    backed_up(source, opened(before), before / "m.json")
    listed = (before / "m.json").read_bytes()
    source = tmp_path / "grown"
    build_log_dir(source, {"t": [[Batch(many(3)), ROLL, Batch(many(2)), ROLL, Batch(many(1))]]})

    def work(sessions, _):
        backed_up(source, sessions.open(), sessions.path / "m.json", disk=sessions.disk)

    complete = 0
    for stopped, _ in every_crash(tmp_path, before, work, lambda: None):
        file = stopped.path / "m.json"
        manifest = read_manifest(file)
        if file.read_bytes() == listed:
            assert stopped.what is not None, stopped
        else:
            complete += 1
            assert manifest.partitions[TP].log_end_offset == 6, stopped
            assert (stopped.path / names.CLEAN_SHUTDOWN).exists(), stopped
        assert verify_manifest(stopped.path, manifest, workers=1) == [], stopped
        backed_up(source, opened(stopped.path), file)
        assert read_manifest(file).partitions[TP].log_end_offset == 6, stopped
        assert verify_manifest(stopped.path, read_manifest(file), workers=1) == [], stopped
    assert complete >= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_copy_goes_on_to_a_later_cut(tmp_path, seed):
    dice = random.Random(seed)
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    items = [item for _ in range(20) for item in (Batch(many(dice.randrange(1, 6))), *dice.choice(([], [ROLL])))]
    built = build_log_dir(source, {"t": [items, items[::-1]]})
    end = max(built["t", n].log_end_offset for n in range(2))
    for until in sorted(dice.sample(range(end), 4)):
        backed_up(source, opened(target), file, until_ms=START_MS + 1000 * until)
        manifest = read_manifest(file)
        assert manifest.until_ms == START_MS + 1000 * until
        assert verify_manifest(target, manifest) == []
        for n in range(2):
            tp = TopicPartition("t", n)
            copy = LogDir.open_read_only(target).log(tp).snapshot()
            batches = [one.stored for one in built["t", n].batches]
            kept = [one.last_offset + 1 for one in batches if one.base_offset <= until]
            assert copy.log_end_offset == kept[-1] == manifest.partitions[tp].log_end_offset
            whole = LogDir.open_read_only(source).log(tp).snapshot()
            assert diff_records(whole, copy, 0, copy.log_end_offset) == LogDiff()
    with pytest.raises(InvalidRecord, match="after the cut"):
        backed_up(source, opened(target), file, until_ms=START_MS)
    backed_up(source, opened(target), file)
    assert {found.log_end_offset for found in read_manifest(file).partitions.values()} == {
        built["t", n].log_end_offset for n in range(2)
    }


def test_a_transaction_that_was_committed_later_is_open(tmp_path):
    items = [
        Batch(many(2), producer_id=1, transactional=True), Batch(many(2), producer_id=2, transactional=True), commit(1),
        abort(2), Batch(many(1)),
    ]  # fmt: skip
    build_log_dir(tmp_path / "source", {"t": [items]})
    owned = opened(tmp_path / "copy")
    backed_up(tmp_path / "source", owned, tmp_path / "m.json", until_ms=START_MS + 4000)
    copy = LogDir.open_read_only(tmp_path / "copy").log(TP).snapshot()
    assert copy.log_end_offset == 5
    owned = opened(tmp_path / "copy")
    assert [entry.producer_id for entry in owned.log(TP).active_producers() if entry.current_txn_first_offset >= 0] == [
        2
    ]
    close_clean(owned)


def test_another_name_in_the_copy(tmp_path):
    source = tmp_path / "source"
    build_log_dir(source, {"t": [STORY, Partition([Batch(many(3))])], "u": [[Batch(many(1))]]})
    backed_up(source, opened(tmp_path / "copy"), tmp_path / "m.json", renamed={"t": "restored.t"})
    owned = opened(tmp_path / "copy")
    assert owned.log_dir.topics() == ["restored.t", "u"]
    assert len(read(owned, "restored.t")) == 20
    assert len(read(owned, "restored.t", 1)) == 3
    close_clean(owned)
    manifest = read_manifest(tmp_path / "m.json")
    assert {name: topic.source_topic for name, topic in manifest.topics.items()} == {"restored.t": "t", "u": "u"}
    assert ranges_of(manifest, TopicPartition("restored.t", 1)) == [(0, 2, 1)]
    assert verify_manifest(tmp_path / "copy", manifest) == []
    backed_up(source, opened(tmp_path / "copy"), tmp_path / "m.json", renamed={"t": "restored.t"})
    assert read_manifest(tmp_path / "m.json").partitions == manifest.partitions


@pytest.mark.parametrize("renamed", [{"t": "u"}, {"t": "x", "u": "x"}, {"t": "__consumer_offsets"}])
def test_names_that_collide_are_refused(tmp_path, renamed):
    build_log_dir(tmp_path / "source", {"t": [STORY], "u": [[Batch(many(1))]]})
    owned = opened(tmp_path / "copy")
    with pytest.raises(InvalidTopic):
        backed_up(tmp_path / "source", owned, tmp_path / "m.json", renamed=renamed)
    assert owned.log_dir.topics() == []
    owned.close()


# Transactions and idempotent producers in a copy: stopped and resumed at each batch, killed, truncated, rebuilt.
#
# What must hold is the builder's: which transactions are open, committed, aborted after each batch of the source.

SMALL = {"segment.bytes": "700", "index.interval.bytes": "100"}
# Not long after the messages: a broker forgets producers that were silent for a day.
CLOCK = StandingClock(START_MS + 600_000)

TRANSACTIONS_STORY = (
    Batch(many(2), producer_id=1, transactional=True),
    Batch(many(3), producer_id=2, transactional=True),
    Batch(many(1)),
    abort(1),
    Batch(many(2), producer_id=1, transactional=True),
    Batch(many(2), producer_id=7),  # idempotent only
    Batch(many(2), producer_id=2, transactional=True),
    commit(2),
    Batch(many(2), producer_id=3, transactional=True),
    Batch(many(2), producer_id=7),
    abort(9),  # of a transaction that left nothing here
    abort(1),
    Batch(many(1), producer_id=2, transactional=True, producer_epoch=4),
    abort(3),
    Batch(many(3)),
    Batch(many(2), producer_id=1, transactional=True),  # open at the end, as is that of 2
)


def random_story(seed):
    """Interleaved transactions of three producers, some open at the end."""
    dice = random.Random(seed)
    story = []
    for _ in range(24):
        producer = dice.randint(1, 3)
        story.append(
            dice.choice(
                [
                    Batch(many(dice.randint(1, 3)), producer_id=producer, transactional=True),
                    Batch(many(dice.randint(1, 3)), producer_id=producer, transactional=True),
                    commit(producer),
                    abort(producer),
                    Batch(many(2)),
                    Batch(many(1), producer_id=7),
                ]
            )
        )
    return story


@dataclass
class Source:
    """A log directory that shows more and more of a log; `after[n]` is what is true after n batches."""

    path: Path
    whole: BuiltPartition
    after: list[BuiltPartition]

    @property
    def batches(self):
        return len(self.whole.batches)

    def data(self, first, last):
        """The bytes of some batches: there is one segment."""
        start = self.whole.batches[first].position
        end = self.whole.batches[last - 1].position + self.whole.batches[last - 1].size
        return self.whole.log().read_bytes()[start:end]

    def show(self, count):
        """The first batches are there."""
        directory = self.path / TP.dir_name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / self.whole.log().name).write_bytes(self.data(0, count) if count else b"")
        return LogDir.open_read_only(self.path)


def source_of(tmp_path, story):
    after = [
        build_log_dir(tmp_path / f"after-{count}", {"t": [Partition(story[:count])]})["t", 0]
        for count in range(len(story) + 1)
    ]
    return Source(tmp_path / "source", after[-1], after)


def transactions_opened(path, opening=None):
    return OwnedDir.open(path, opening or Opening(create=True), config=ONE_THREAD, disk=HastyDisk(), clock=CLOCK)


def target_of(path):
    owned = transactions_opened(path)
    owned.create_topic("t", 1, SMALL)
    return owned


def mirror(source, target):
    run = Mirror(source, target, lambda _: [TP])
    run.run()
    assert run.results[TP].error is None


def aborted_in(path):
    """Producer, first offset and marker of all that the .txnindex files tell."""
    found = []
    for file in sorted((path / TP.dir_name).glob("*.txnindex")):
        index = transaction_index.load(file, int(file.stem))
        assert index.problem is None
        columns = (index.producer_id, index.first_offset, index.last_offset)
        found += list(zip(*(column.tolist() for column in columns), strict=True))
    return found


def check(snapshot, expected, what=""):
    """What consumers of both isolations see, and the last stable offset."""
    assert snapshot.log_end_offset == expected.log_end_offset, what
    assert last_stable_offset(snapshot) == expected.last_stable_offset, what
    assert built(read_all(snapshot)) == expected.records, what
    assert built(read_all(snapshot, isolation=Isolation.READ_COMMITTED)) == expected.read_committed, what


def newest_producers(path):
    """Producers by id, in the newest .snapshot."""
    newest = max((path / TP.dir_name).glob("*.snapshot"))
    read = producer_state.read(newest)
    assert read is not None
    return {entry.producer_id: entry for entry in read.entries()}


def kill(owned, tail=b""):
    """As the end of the process does it, perhaps in the middle of a write."""
    killed(owned)
    active = max((owned.path / TP.dir_name).glob("*.log"))
    with active.open("ab") as file:
        file.write(tail)


@pytest.mark.parametrize(
    "story", [TRANSACTIONS_STORY, random_story(1), random_story(2)], ids=["story", "random 1", "random 2"]
)
@pytest.mark.parametrize("end", ["goes on", "close", "kill", "torn", "rebuilt"])
def test_a_mirror_that_stops_at_each_batch(tmp_path, story, end):
    """However it ends and goes on, the copy knows the same transactions and producers as one made in one go."""
    source = source_of(tmp_path, story)
    at_once = target_of(tmp_path / "at-once")
    mirror(source.show(source.batches), at_once)
    check(at_once.log(TP).snapshot(), source.whole)
    assert len(at_once.log(TP).snapshot().segments) > 2
    close_clean(at_once)
    assert aborted_in(at_once.path) == source.whole.aborted

    owned = target_of(tmp_path / "step-by-step")
    for count in range(1, source.batches + 1):
        mirror(source.show(count), owned)
        check(owned.log(TP).snapshot(), source.after[count], count)
        if end == "goes on":
            continue
        if end == "close":
            close_clean(owned, count)
        elif end == "torn" and count < source.batches:
            kill(owned, source.data(count, count + 1)[:-1])
        else:
            kill(owned)
        if end == "rebuilt":
            for path in (owned.path / TP.dir_name).iterdir():
                if path.suffix in (".snapshot", ".txnindex"):
                    path.unlink()
            (owned.path / names.RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
        owned = transactions_opened(owned.path, Opening())
        assert not owned.failures()
        check(owned.log(TP).snapshot(), source.after[count], count)
    close_clean(owned)
    assert aborted_in(owned.path) == source.whole.aborted
    assert newest_producers(owned.path) == newest_producers(at_once.path)
    looked = LogDir.open_read_only(owned.path)
    check(looked.log(TP).snapshot(), source.whole)
    for path in (at_once.path / TP.dir_name).glob("*.txnindex"):
        assert (owned.path / TP.dir_name / path.name).read_bytes() == path.read_bytes()


def test_a_mirror_skips_what_the_copy_has(tmp_path):
    """The batch that holds the copy's end comes whole or not at all; those below it do not come again."""
    source = source_of(tmp_path, TRANSACTIONS_STORY)
    owned = target_of(tmp_path / "target")
    for count in (3, 3, 1, 8, 8, source.batches):
        mirror(source.show(count), owned)
        check(owned.log(TP).snapshot(), source.after[max(count, owned_batches(owned, source))])
    close_clean(owned)
    assert aborted_in(owned.path) == source.whole.aborted


def owned_batches(owned, source):
    """How many batches a copy holds."""
    end = owned.log(TP).log_end_offset
    return next(count for count, known in enumerate(source.after) if known.log_end_offset == end)


def test_a_crash_while_transactions_are_copied(tmp_path):
    """At every disk operation, killed or without power: what is left is a beginning of the source, and the copy goes
    on from it to the same end."""
    source = source_of(tmp_path, TRANSACTIONS_STORY[:11])
    before = tmp_path / "before"
    close_clean(target_of(before))
    whole = source.data(0, source.batches)
    sizes = [batch.size for batch in source.whole.batches]

    def work(sessions, _):
        owned = sessions.open()
        log = owned.log(TP)
        position = 0
        for number, size in enumerate(sizes):
            log.append_batches(memoryview(whole)[position : position + size])
            position += size
            if number == 4:
                log.flush()
                owned.checkpoint()
        owned.close()

    stopped = None
    for stopped, _ in every_crash(tmp_path, before, work, lambda: None):
        owned = transactions_opened(stopped.path, Opening())
        assert not owned.failures(), f"{stopped}: {owned.failures()}"
        count = owned_batches(owned, source)
        check(owned.log(TP).snapshot(), source.after[count], stopped)
        mirror(source.show(source.batches), owned)
        check(owned.log(TP).snapshot(), source.whole, stopped)
        close_clean(owned, stopped)
        assert aborted_in(stopped.path) == source.whole.aborted, str(stopped)
        assert set(newest_producers(stopped.path)) == {1, 2, 3, 7, 9}, str(stopped)
    assert stopped is not None
    assert stopped.stop_at > 40


def _lower_epoch(batch):
    return replace(batch, producer_epoch=1)


def _gap(batch):
    return replace(batch, base_sequence=100)


def _again(batch):
    return replace(batch, base_sequence=0)


@pytest.mark.parametrize("change", [_lower_epoch, _gap, _again])
def test_sequences_and_epochs_are_recorded_not_judged(tmp_path, change):
    """A follower takes what its leader has taken."""
    first = Batch(many(3), producer_id=5, producer_epoch=2)
    second = change(Batch(many(2), producer_id=5, producer_epoch=2, base_sequence=3))
    source = source_of(tmp_path, [first, second])
    owned = target_of(tmp_path / "target")
    mirror(source.show(2), owned)
    check(owned.log(TP).snapshot(), source.whole)
    close_clean(owned)
    found = producer_state.read(owned.path / TP.dir_name / names.segment_file(5, FileKind.PRODUCER_SNAPSHOT))
    assert found is not None
    (entry,) = found.entries()
    sequence = 3 if second.base_sequence is None else second.base_sequence
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == (second.producer_epoch, sequence + 1, 4)


# When a source's batches count as those of a copy.


def table(*rows):
    made = BatchTable(np.zeros((len(Column), len(rows)), np.int64), len(rows))
    for index, row in enumerate(rows):
        for column, value in row.items():
            made.data[column, index] = value
    return made


def batch(last, crc, count=2, **others):
    named = {Column[name.upper()]: value for name, value in others.items()}
    return {Column.BASE_OFFSET: last - 1, Column.LAST_OFFSET: last, Column.CRC: crc, Column.COUNT: count,
            Column.MAGIC: 2, **named}  # fmt: skip


COPY = table(batch(1, 11), batch(3, 22), batch(5, 33))


@pytest.mark.parametrize(
    ("source", "plain", "compacted"),
    [
        ([batch(1, 11), batch(3, 22), batch(5, 33)], True, True),
        ([batch(1, 11), batch(3, 99), batch(5, 33)], False, False),
        ([batch(1, 11), batch(5, 33)], False, True),
        ([], False, True),
        ([batch(1, 11), batch(3, 99, 1), batch(5, 33)], False, True),
        ([batch(1, 11), batch(3, 99, 0), batch(5, 33)], False, True),
        ([batch(1, 11), batch(3, 99, 1, producer_id=7), batch(5, 33)], False, False),
        ([batch(1, 11), batch(3, 99, 1, base_offset=3), batch(5, 33)], False, False),
        ([batch(1, 11), batch(3, 99, 1, leader_epoch=1), batch(5, 33)], False, False),
        ([batch(1, 11), batch(2, 44), batch(3, 22), batch(5, 33)], False, False),
    ],
)
def test_sources(source, plain, compacted):
    assert same_batches(COPY, table(*source), compacted=False) is plain
    assert same_batches(COPY, table(*source), compacted=True) is compacted


def test_old_formats_become_new_ones():
    old = table(batch(1, 11, magic=1))
    new = table(batch(1, 99, 1, producer_id=-1))
    assert same_batches(old, new, compacted=True)
    assert not same_batches(old, new, compacted=False)


@requires_fixtures
@pytest.mark.parametrize("fixture", ["v0", "v1", "groups", "compaction-after"])
def test_every_record_of_the_fixtures(target, fixture):
    results = mirrored(FIXTURES / fixture / "log", target).results
    looked = LogDir.open_read_only(FIXTURES / fixture / "log")
    assert results
    for tp, result in results.items():
        assert result.error is None
        assert read_all(target.log(tp).snapshot()) == read_all(looked.log(tp).snapshot())
    close_clean(target)


@requires_fixtures
def test_what_a_broker_knows_of_its_cluster_is_for_the_owner_s_eyes(tmp_path, target):
    """There are credentials in it."""
    mirrored(FIXTURES / "internal/log", target)
    found = target.path / names.BOOTSTRAP_CHECKPOINT
    assert b"bob" in found.read_bytes()
    assert found.stat().st_mode & 0o777 == 0o600
    target.close()
