"""Replication: the copy is the source's log, goes on where it stopped, and is listed in a manifest."""

import errno
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

from storage.backup.directory_copy import DirectoryCopy
from storage.backup.manifest_recorder import ManifestRecorder
from storage.backup.mirror import Mirror
from storage.backup.record_digests import LogDiff, diff_records
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, InvalidRecord, InvalidTopic, NotPermitted, PartitionOffline, UnsupportedFormat
from storage.files import checkpoints, names, partition_metadata, producer_state, transaction_index
from storage.files import manifest as manifests
from storage.files.disk import RealDisk
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.format.block import Record
from storage.format.columns import Column
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.same_batches import same_batches
from storage.progress import NoProgress
from storage.types import Isolation, OffsetRange, TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.support.broker_rules import stored_batches
from tests.support.builders import (
    ROLL,
    START_MS,
    Batch,
    Partition,
    abort,
    build_log_dir,
    commit,
    many,
    topic_id,
)
from tests.support.commands import output_of
from tests.support.crash_points import every_crash
from tests.support.damaged_bytes import flip
from tests.support.faults import FaultyDisk
from tests.support.fixtures import FIXTURES, requires_fixtures, topics_of
from tests.support.owned_dirs import (
    HastyDisk,
    StandingClock,
    append,
    append_keyed,
    close_clean,
    killed,
    opened,
    read,
    tree_of,
)
from tests.support.readers import built, read_all
from tests.support.replayed_logs import BESIDE, replayed

TP = TopicPartition("t", 0)


def everything(log_dir):
    return log_dir.all_partitions()


def mirrored(source, target):
    mirror = Mirror(LogDir.open_read_only(source), DirectoryCopy(target), everything)
    mirror.run()
    return mirror


@pytest.fixture
def source(tmp_path):
    owned = opened(tmp_path / "source")
    owned.create_topic("t", 2, {"segment.bytes": "500", "retention.ms": "1000", "compression.type": "lz4"})
    for n in range(10):
        append(owned.log(TP), [b"value %d" % n] * 3)
    yield owned
    close_clean(owned)


@pytest.fixture
def target(tmp_path):
    owned = opened(tmp_path / "target")
    yield owned
    close_clean(owned)


def test_a_copy_goes_on_where_it_stopped(source, target):
    """A new topic has the source's configuration, but keeps everything."""
    mirror = mirrored(source.path, target)
    assert target.topic_info("t").overrides == {
        "segment.bytes": "500", "retention.ms": "-1", "compression.type": "lz4",
    }  # fmt: skip
    assert target.log_dir.partitions("t") == [0, 1]
    assert target.topic_info("t").topic_id == source.topic_info("t").topic_id
    assert read(target, "t") == read(source, "t")
    assert mirror.results[TP].first_offset == 0
    assert mirror.run() == 0
    append(source.log(TP), [b"new"])
    again = mirrored(source.path, target)
    assert (again.results[TP].first_offset, again.results[TP].log_end_offset) == (30, 31)
    assert (read(target, "t")[-1], read(target, "t", 1)) == (b"new", [])
    segments = sorted((source.path / "t-0").glob("*.log"))
    assert len(segments) > 2
    for segment in segments:
        assert (target.path / "t-0" / segment.name).read_bytes() == segment.read_bytes()


@pytest.mark.parametrize("exists", [False, True])
def test_a_copy_without_messages_begins_at_the_sources_first_segment(tmp_path, target, exists):
    if exists:
        target.create_topic("t", 1)
    items = [Batch(many(5)), ROLL, Batch(many(5))]
    path = tmp_path / "built"
    built = build_log_dir(path, {"t": [Partition(items, start_offset=100, log_start_offset=103)]})["t", 0]
    mirrored(path, target)
    snapshot = target.log(TP).snapshot()
    assert sorted((target.path / "t-0").glob("*.log"))[0].name == "00000000000000000100.log"
    assert (snapshot.log_start_offset, snapshot.log_end_offset) == (103, 110)
    assert [r.offset for r in read_all(snapshot)] == [r.offset for r in built.records]
    target.checkpoint()
    assert checkpoints.read(target.path / names.LOG_START_CHECKPOINT) == {TP: 103}


def test_a_source_that_lost_its_beginning_leaves_a_gap(source, target, tmp_path):
    mirrored(source.path, target)
    kept = read(target, "t")
    metadata = (source.path / "t-0" / "partition.metadata").read_bytes()
    later = {"t": [Partition([Batch(many(2))], start_offset=500, extra={"partition.metadata": metadata})]}
    build_log_dir(tmp_path / "later", later)
    assert mirrored(tmp_path / "later", target).results[TP].error is None
    assert read(target, "t")[: len(kept)] == kept
    assert target.log(TP).log_end_offset == 502


@pytest.mark.parametrize(
    ("items", "words"),
    [
        pytest.param([Batch(many(10, 30)) for _ in range(3)], "other messages", id="made again"),
        pytest.param([Batch(many(10)), Batch(many(10, 30)), Batch(many(10, 30))], "other messages", id="truncated"),
        # The last batch of the copy has no counterpart; which leader wrote its offsets tells.
        pytest.param(
            [Batch(many(10)), *[Batch(many(7), leader_epoch=1)] * 2], "leader epoch 1", id="of another leader"
        ),
    ],
)
def test_another_log_of_that_name_is_refused(tmp_path, target, items, words):
    """By a mirror that has copied the one before, and by the next."""
    built = build_log_dir(tmp_path / "source", {"t": [[Batch(many(10)), Batch(many(10))]]})
    first = mirrored(built.path, target)
    assert first.results[TP].log_end_offset == 20
    copied = read(target, "t")
    other = build_log_dir(tmp_path / "other", {"t": [items]})["t", 0].path
    shutil.rmtree(built["t", 0].path)
    shutil.copytree(other, built["t", 0].path)
    first.run()
    for mirror in (first, mirrored(built.path, target)):
        assert isinstance(mirror.results[TP].error, InvalidRecord)
        assert words in str(mirror.results[TP].error)
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
    assert len(read(target, "t")) == 5
    assert results[TopicPartition("t", 1)].error is None
    assert len(read(target, "t", 1)) == 15


def test_into_a_brokers_directory_only_what_it_made(tmp_path, source):
    build_log_dir(tmp_path / "broker", {"u": [Partition([])]})
    target = opened(tmp_path / "broker")
    with pytest.raises(NotPermitted):
        mirrored(source.path, target)
    close_clean(target)
    target = opened(tmp_path / "broker")
    append(source.log(TopicPartition("t", 1)), [b"x"])
    shutil.copytree(source.path / "t-1", tmp_path / "other" / "u-0")
    assert mirrored(tmp_path / "other", target).results[TopicPartition("u", 0)].error is None
    assert read(target, "u") == [b"x"]
    close_clean(target)


@requires_fixtures
@pytest.mark.parametrize(("fixture", "name"), replayed(restarts=False))
def test_the_files_are_those_of_the_broker(tmp_path, monkeypatch, fixture, name):
    """Under the topic's configuration, byte for byte, wherever windows end and flushes begin."""
    topic, _, partition = name.rpartition("-")
    described = topics_of(fixture)[topic]
    monkeypatch.setattr("storage.backup.directory_copy.WINDOW_BYTES", 3000)
    monkeypatch.setattr("storage.backup.directory_copy.FLUSH_BYTES", 10_000)
    tp = TopicPartition(topic, int(partition))
    target = opened(tmp_path / "copy", disk=RealDisk())
    target.create_topic(topic, tp.partition + 1, {key: str(value) for key, value in described["config"].items()})
    mirror = Mirror(LogDir.open_read_only(FIXTURES / fixture / "log"), DirectoryCopy(target), lambda _: [tp])
    mirror.run()
    assert mirror.results[tp].error is None
    close_clean(target)
    assert tree_of(tmp_path / "copy" / name, BESIDE) == tree_of(FIXTURES / fixture / "log" / name, BESIDE)


def test_a_flush_that_fails_is_reported(source, tmp_path, monkeypatch):
    monkeypatch.setattr("storage.backup.directory_copy.FLUSH_BYTES", 1)
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


# Manifests while a mirror runs: increments, copies that are ahead, crashes at every step, cuts and other names.

STORY = [Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5)), Batch(many(5))]


def backed_up(source, owned, file, *, disk=None, until_ms=None, renamed=None, progress=None):
    """As `kafkafs mirror --manifest`: copied, closed, listed. Returns what the copy had already."""
    recorder = ManifestRecorder(manifests.read(file))
    mirror = Mirror(
        LogDir.open_read_only(source), DirectoryCopy(owned), everything, progress or NoProgress(),
        until_ms=until_ms, renamed=renamed or {}, recorder=recorder,
    )  # fmt: skip
    mirror.run()
    errors = [result.error for result in mirror.results.values() if result.error is not None]
    closing = owned.close()
    if errors:
        raise errors[0]
    assert closing.clean  # not close_clean: a crash may have left the manifest's temporary file, which is a note
    manifests.write(disk or RealDisk(), file, recorder.manifest(until_ms, 1000, owned.path))
    return recorder.found


def checked(file, end_offset, copy=None):
    """A manifest that the copy matches, by default that beside it."""
    manifest = manifests.read(file)
    assert {listed.log_end_offset for listed in manifest.partitions.values()} == {end_offset}
    assert verify_manifest(copy or file.parent / "copy", manifest, workers=1) == []
    return manifest


def ranges_of(manifest, tp=TP):
    return [(listed.first_offset, listed.last_offset, listed.batches) for listed in manifest.partitions[tp].ranges]


@pytest.mark.parametrize("change", ["retain", "compact"])
def test_segments_that_disappear_during_the_copy(tmp_path, change):
    """The copy goes on with what the source has then; its manifest is written, and the next run finds no other
    messages."""
    source, dest, manifest = tmp_path / "built", tmp_path / "copy", tmp_path / "m.json"
    items = [item for _ in range(6) for item in (Batch(many(20, keys=7)), ROLL)]
    properties = b"cleanup.policy=compact\nmin.cleanable.dirty.ratio=0\n" if change == "compact" else b""
    build_log_dir(source, {"t": [items]}, broker=False, extra={"t-0/topic.properties": properties})
    segments = len(list(source.glob("t-0/*.log")))
    changed = []

    class Changing(NoProgress):
        """Changes the source once the first segment has been copied."""

        def advance(self, size_bytes):
            if not changed:
                changed.append(change)
                output_of(change, source, "t/0", *(["--before", "90"] if change == "retain" else []))

    backed_up(source, opened(dest), manifest, progress=Changing())
    assert len(list(source.glob("t-0/*.log"))) < segments
    checked(manifest, 120)
    for _ in range(2):
        logs = {log: log.read_bytes() for log in dest.glob("*/*.log")}
        backed_up(source, opened(dest), manifest)
        assert {log: log.read_bytes() for log in dest.glob("*/*.log")} == logs
        checked(manifest, 120)
    copied, latest = (
        {r.key: r for r in read_all(LogDir.open_read_only(path).log(TP).snapshot())} for path in (dest, source)
    )
    assert copied == latest


def plainly_mirrored(source, target):
    owned = opened(target)
    mirrored(source, owned)
    close_clean(owned)


def test_what_a_copy_has_and_its_manifest_does_not_is_added(tmp_path):
    """It must be in the source, all of it: an ordinary mirror compares the last batch only."""
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    build_log_dir(source, {"t": [STORY[:2]]})
    backed_up(source, opened(target), file)
    build_log_dir(tmp_path / "grown", {"t": [STORY]})
    plainly_mirrored(tmp_path / "grown", target)
    checked(file, 10)
    assert backed_up(tmp_path / "grown", opened(target), file) == {TP: OffsetRange(10, 20)}
    assert sum(count for _, _, count in ranges_of(checked(file, 20))) == 4
    build_log_dir(tmp_path / "other", {"t": [[Batch(many(5, 40)), Batch(many(5))]]})
    plainly_mirrored(tmp_path / "other", tmp_path / "copy of other")
    with pytest.raises(InvalidRecord, match="other messages"):
        backed_up(source, opened(tmp_path / "copy of other"), tmp_path / "n.json")
    assert not (tmp_path / "n.json").exists()


@pytest.mark.parametrize("listed", [True, False], ids=["by the last manifest", "by none"])
def test_a_source_that_was_compacted_since(tmp_path, listed):
    """The copy's last batch has lost a record there, others are gone: it is still the same log."""
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"

    append_keyed(source, (b"a", b"b"), (b"a",), (b"b", b"c"))
    if listed:
        backed_up(source, opened(target), file)
    else:
        plainly_mirrored(source, target)
    append_keyed(source, (b"c",))
    output_of("compact", source, "t")
    assert [batch.last_offset for batch in batches_of(source)] == [2, 4, 5]
    backed_up(source, opened(target), file)
    assert sum(count for _, _, count in ranges_of(checked(file, 6))) == 4


def batches_of(path):
    return [batch for log in sorted((path / "t-0").glob("*.log")) for batch in stored_batches(log.read_bytes())]


def test_a_copy_that_lost_messages_is_not_added_to(tmp_path):
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    build_log_dir(source, {"t": [STORY]})
    backed_up(source, opened(target), file)
    before = file.read_bytes()
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINT_CHECKPOINT):
        (target / name).unlink()
    kept = b"".join(batch.data for batch in batches_of(target) if batch.last_offset < 10)
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
        if file.read_bytes() == listed:
            assert stopped.what is not None, stopped
            checked(file, 3, stopped.path)
        else:
            complete += 1
            checked(file, 6, stopped.path)
            assert (stopped.path / names.CLEAN_SHUTDOWN).exists(), stopped
        backed_up(source, opened(stopped.path), file)
        checked(file, 6, stopped.path)
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
        manifest = manifests.read(file)
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
    assert {found.log_end_offset for found in manifests.read(file).partitions.values()} == {
        built["t", n].log_end_offset for n in range(2)
    }


def test_a_transaction_that_was_committed_later_is_open(tmp_path):
    items = [
        Batch(many(2), producer_id=1, transactional=True), Batch(many(2), producer_id=2, transactional=True), commit(1),
        abort(2), Batch(many(1)),
    ]  # fmt: skip
    build_log_dir(tmp_path / "source", {"t": [items]})
    backed_up(tmp_path / "source", opened(tmp_path / "copy"), tmp_path / "m.json", until_ms=START_MS + 4000)
    owned = opened(tmp_path / "copy")
    assert owned.log(TP).log_end_offset == 5
    active = [entry.producer_id for entry in owned.log(TP).active_producers() if entry.current_txn_first_offset >= 0]
    assert active == [2]
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
    manifest = manifests.read(tmp_path / "m.json")
    assert {name: topic.source_topic for name, topic in manifest.topics.items()} == {"restored.t": "t", "u": "u"}
    assert ranges_of(manifest, TopicPartition("restored.t", 1)) == [(0, 2, 1)]
    assert verify_manifest(tmp_path / "copy", manifest) == []
    backed_up(source, opened(tmp_path / "copy"), tmp_path / "m.json", renamed={"t": "restored.t"})
    assert manifests.read(tmp_path / "m.json").partitions == manifest.partitions


@pytest.mark.parametrize("renamed", [{"t": "u"}, {"t": "x", "u": "x"}, {"t": "__consumer_offsets"}])
def test_names_that_collide_are_refused(tmp_path, renamed):
    build_log_dir(tmp_path / "source", {"t": [STORY], "u": [[Batch(many(1))]]})
    owned = opened(tmp_path / "copy")
    with pytest.raises(InvalidTopic):
        backed_up(tmp_path / "source", owned, tmp_path / "m.json", renamed=renamed)
    assert owned.log_dir.topics() == []
    owned.close()


def producers_in(path):
    """Producers by id, in the newest .snapshot."""
    entries = producer_state.read(max((path / "t-0").glob("*.snapshot"))).entries()
    return {entry.producer_id: entry for entry in entries}


@pytest.mark.parametrize("end", ["close", "kill", "torn", "rebuilt"])
def test_a_mirror_that_stops_at_each_batch_knows_the_same_transactions(tmp_path, end):
    """What must hold is the builder's: which transactions are open, committed, aborted after each batch."""

    def begin(producer, count=2, **more):
        return Batch(many(count), producer_id=producer, transactional=True, **more)

    story = (
        begin(1), begin(2, 3), Batch(many(1)), abort(1), begin(1), Batch(many(2), producer_id=7), begin(2), commit(2),
        begin(3), Batch(many(2), producer_id=7), abort(9), abort(1), begin(2, producer_epoch=4), abort(3),
        Batch(many(3)), begin(1),
    )  # fmt: skip
    after = [build_log_dir(tmp_path / f"{n}", {"t": [Partition(story[:n])]})["t", 0] for n in range(len(story) + 1)]

    def opened_then():
        """Not long after the messages: a broker forgets producers that were silent for a day."""
        clock = StandingClock(START_MS + 600_000)
        owned = OwnedDir.open(tmp_path / "copy", Opening(create=True), disk=HastyDisk(), clock=clock)
        assert not owned.failures()
        return owned

    for count, source in enumerate(after[1:], 1):
        owned = opened_then()
        for shown in (after[max(count - 2, 0)], source):  # what the copy has does not come again
            assert mirrored(shown.path.parent, owned).results[TP].error is None
        snapshot = owned.log(TP).snapshot()
        assert snapshot.log_end_offset == source.log_end_offset
        assert last_stable_offset(snapshot) == source.last_stable_offset
        assert built(read_all(snapshot)) == source.records
        assert built(read_all(snapshot, isolation=Isolation.READ_COMMITTED)) == source.read_committed
        owned.log(TP).roll()
        if end == "close":
            close_clean(owned, count)
            continue
        killed(owned)
        if end == "torn" and count < len(story):
            batch = after[-1].batches[count]
            with max((owned.path / "t-0").glob("*.log")).open("ab") as file:
                file.write(after[-1].log().read_bytes()[batch.position :][: batch.size - 1])
        if end == "rebuilt":
            for path in [*(owned.path / "t-0").glob("*.snapshot"), *(owned.path / "t-0").glob("*.txnindex")]:
                path.unlink()
            (owned.path / names.RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
    close_clean(opened_then())
    assert set(producers_in(owned.path)) == {1, 2, 3, 7, 9}
    aborted = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for file in sorted((owned.path / "t-0").glob("*.txnindex"))
        for entry in transaction_index.load(file, int(file.stem)).entries()
    ]
    assert aborted == after[-1].aborted


@pytest.mark.parametrize("change", [{"producer_epoch": 1}, {"base_sequence": 100}, {"base_sequence": 0}])
def test_sequences_and_epochs_are_recorded_not_judged(tmp_path, target, change):
    """A follower takes what its leader has taken."""
    target.clock.time_ms = START_MS + 600_000
    second = replace(Batch(many(2), producer_id=5, producer_epoch=2, base_sequence=3), **change)
    source = build_log_dir(tmp_path / "source", {"t": [[Batch(many(3), producer_id=5, producer_epoch=2), second]]})
    assert mirrored(source.path, target).results[TP].error is None
    assert built(read_all(target.log(TP).snapshot())) == source["t", 0].records
    target.log(TP).roll()
    entry = producers_in(target.path)[5]
    expected = (second.producer_epoch, second.base_sequence + 1, 4)
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == expected


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
    # Old formats become new ones.
    old, new = table(batch(1, 11, magic=1)), table(batch(1, 99, 1, producer_id=-1))
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


@requires_fixtures
def test_what_a_broker_knows_of_its_cluster_is_for_the_owner_s_eyes(tmp_path, target):
    mirrored(FIXTURES / "internal/log", target)
    found = target.path / names.BOOTSTRAP_CHECKPOINT
    assert b"bob" in found.read_bytes()
    assert found.stat().st_mode & 0o777 == 0o600


def test_a_topic_that_was_deleted_and_made_anew_is_refused(tmp_path, target):
    """With fewer messages than before: the copy has them all, it seems. Topic ids are compared, always."""
    first = build_log_dir(tmp_path / "first", {"t": [Partition([Batch(many(30))], extra=id_file("first"))]}).path
    again = build_log_dir(tmp_path / "again", {"t": [Partition([Batch(many(9, 30))], extra=id_file("again"))]}).path
    assert mirrored(first, target).results[TP].error is None
    kept = read(target, "t")
    error = mirrored(again, target).results[TP].error
    assert isinstance(error, InvalidRecord)
    assert (error.expected, error.found) == (f"topic id {topic_id('first')}", topic_id("again"))
    assert read(target, "t") == kept


def id_file(name):
    return {"partition.metadata": partition_metadata.encode(topic_id(name))}


def test_intact_messages_after_damage_at_the_end_of_a_log_are_no_torn_tail(tmp_path, target):
    items = [Batch(many(10)) for _ in range(4)]
    log_dir = build_log_dir(tmp_path / "source", {"t": [Partition(items, recovery_point=0)]}, broker=False)
    log = log_dir.path / "t-0" / f"{0:020}.log"
    os.truncate(log, log.stat().st_size - 5)
    flip(log, log_dir["t", 0].batches[1].position + 70)
    result = mirrored(log_dir.path, target).results[TP]
    assert isinstance(result.error, CorruptBatch)
    assert (result.error.path, result.log_end_offset) == (log, 10)


def test_segments_of_a_deleted_topic_are_not_copied(tmp_path, target):
    """A log directory that was copied twice into one place, with a new topic of that name in between."""
    items = [Batch([Record(None, b"v", (), START_MS + 1000 * one)]) for one in range(4)]
    old = build_log_dir(tmp_path / "old", {"t": [[*items[:1], ROLL, *items[1:2], ROLL, *items[2:]]]}, broker=False).path
    later = Batch([Record(None, b"w", (), START_MS + 900_000)])
    new = build_log_dir(tmp_path / "new", {"t": [[later]]}, broker=False).path
    created = START_MS // 1000 + 600
    for path in old.glob("t-0/*[0-9].*"):
        os.utime(path, (created - 300, created - 300))
        if not (new / "t-0" / path.name).exists():
            shutil.copy2(path, new / "t-0" / path.name)
    os.utime(new / "t-0" / "partition.metadata", (created, created))
    os.utime(new / "t-0" / f"{0:020}.log", (created + 900, created + 900))
    error = mirrored(new, target).results[TP].error
    assert isinstance(error, CorruptBatch)
    assert "by one of the same name" in str(error)
