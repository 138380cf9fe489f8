"""Replication: the copy is the source's log, goes on where it stopped, and is rolled by its own configuration."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from storage.backup.mirror import ManifestRecorder, Mirror
from storage.directory.owned_dir import OwnedDir
from storage.errors import CorruptBatch, InvalidRecord, NotPermitted, PartitionOffline
from storage.files import checkpoints, names
from storage.files import manifest as manifests
from storage.files.disk import RealDisk, RealFile
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.progress import NoProgress, Progress
from storage.types import TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.support.builders import ROLL, Batch, Item, Partition, abort, build_log_dir, many
from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, requires_fixtures, topics_of
from tests.support.owned_dirs import HastyDisk, append, close_clean, opened, read, tree_of, values_of
from tests.support.readers import read_all
from tests.support.replayed_logs import BESIDE, replayed

TP = TopicPartition("t", 0)


def everything(log_dir: LogDir) -> list[TopicPartition]:
    """All partitions."""
    return [TopicPartition(topic, number) for topic in log_dir.topics() for number in log_dir.partitions(topic)]


def mirrored(source: Path, target: OwnedDir) -> Mirror:
    """One pass."""
    mirror = Mirror(LogDir.open_read_only(source), target, everything)
    mirror.run()
    return mirror


@pytest.fixture
def source(tmp_path: Path) -> OwnedDir:
    """A directory that is written while it is copied."""
    owned = opened(tmp_path / "source")
    owned.create_topic("t", 2, {"segment.bytes": "500", "retention.ms": "1000", "compression.type": "lz4"})
    for n in range(10):
        append(owned.log(TP), [b"value %d" % n] * 3)
    return owned


@pytest.fixture
def target(tmp_path: Path) -> OwnedDir:
    """Where to."""
    return opened(tmp_path / "target")


def test_a_copy_goes_on_where_it_stopped(source: OwnedDir, target: OwnedDir) -> None:
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


def test_a_new_topic_has_the_sources_config_but_keeps_everything(source: OwnedDir, target: OwnedDir) -> None:
    mirrored(source.path, target)
    found = target.topic_info("t").overrides
    assert found == {"segment.bytes": "500", "retention.ms": "-1", "compression.type": "lz4"}
    assert target.log_dir.partitions("t") == [0, 1]
    assert target.topic_info("t").topic_id == source.topic_info("t").topic_id
    source.close()
    target.close()


def test_it_rolls_by_its_own_config(source: OwnedDir, target: OwnedDir) -> None:
    target.create_topic("t", 1)
    mirrored(source.path, target)
    assert len(target.log(TP).snapshot().segments) == 1
    assert target.log_dir.partitions("t") == [0, 1]
    assert read(target, "t") == read(source, "t")
    source.close()
    target.close()


def test_it_begins_at_the_sources_first_segment(tmp_path: Path, target: OwnedDir) -> None:
    items: list[Item] = [Batch(many(5)), ROLL, Batch(many(5))]
    path = tmp_path / "built"
    built = build_log_dir(path, {"t": [Partition(items, start_offset=100, log_start_offset=103)]})["t", 0]
    mirrored(path, target)
    snapshot = target.log(TP).snapshot()
    assert snapshot.segments[0].base_offset == 100
    assert (snapshot.log_start_offset, snapshot.log_end_offset) == (103, 110)
    assert [r.offset for r in read_all(snapshot)] == [r.offset for r in built.records]
    close_clean(target)
    assert checkpoints.read(target.path / names.LOG_START_CHECKPOINT) == {TP: 103}


def test_an_empty_copy_moves_to_where_the_source_begins(tmp_path: Path, target: OwnedDir) -> None:
    target.create_topic("t", 1)
    build_log_dir(tmp_path / "built", {"t": [Partition([Batch(many(5))], start_offset=100)]})
    mirrored(tmp_path / "built", target)
    assert [path.name for path in (target.path / "t-0").glob("*.log")] == ["00000000000000000100.log"]
    target.close()


def test_a_source_that_lost_its_beginning_leaves_a_gap(source: OwnedDir, target: OwnedDir, tmp_path: Path) -> None:
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


def test_another_log_of_that_name_is_refused(source: OwnedDir, target: OwnedDir) -> None:
    target.create_topic("t", 1)
    append(target.log(TP), [b"value 0"] * 2 + [b"other"])
    result = mirrored(source.path, target).results[TP]
    assert isinstance(result.error, InvalidRecord)
    assert "other messages" in str(result.error)
    assert len(read(target, "t")) == 3
    source.close()
    target.close()


def test_a_source_that_was_truncated_and_whose_batches_end_elsewhere_is_refused(
    tmp_path: Path, target: OwnedDir
) -> None:
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
def test_another_log_under_the_same_name_between_two_passes(tmp_path: Path, target: OwnedDir, again: str) -> None:
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


def test_damage_stops_one_partition(tmp_path: Path, target: OwnedDir) -> None:
    path = tmp_path / "built"
    one = Partition([Batch(many(5)), Batch(many(5)), Batch(many(5))])
    built = build_log_dir(path, {"t": [one, one]})
    damaged = built["t", 0]
    data = bytearray(damaged.log().read_bytes())
    data[damaged.batches[1].position + 70] ^= 1
    damaged.log().write_bytes(data + data[: damaged.batches[1].position])  # so that it is not just a torn tail
    results = mirrored(path, target).results
    assert isinstance(results[TP].error, CorruptBatch) or results[TP].log_end_offset == 5
    assert results[TopicPartition("t", 1)].error is None
    assert len(values_of(target.log(TopicPartition("t", 1)).snapshot())) == 15
    target.close()


def test_transactions_are_copied_whole(tmp_path: Path, target: OwnedDir) -> None:
    items: list[Item] = [Batch(many(3), producer_id=7, transactional=True), abort(7), Batch(many(2))]
    path = tmp_path / "built"
    build_log_dir(path, {"t": [Partition(items)]})
    mirrored(path, target)
    close_clean(target)
    without = ("partition.metadata", "topic.properties", "leader-epoch-checkpoint")
    assert tree_of(target.path / "t-0", without) == tree_of(path / "t-0", without)


def test_into_a_brokers_directory_only_what_it_made(tmp_path: Path, source: OwnedDir) -> None:
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
def test_the_files_are_those_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixture: str, name: str
) -> None:
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


def test_a_flush_that_fails_is_reported(source: OwnedDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens in another thread while the copy goes on."""
    monkeypatch.setattr("storage.backup.mirror._FLUSH_BYTES", 1)
    source.close()
    disk = FailingSync()
    owned = opened(tmp_path / "target", disk=disk)
    owned.create_topic("t", 2)
    disk.fails = True
    results = mirrored(source.path, owned).results
    assert isinstance(results[TP].error, PartitionOffline | OSError)
    assert results[TopicPartition("t", 1)].error is None
    disk.fails = False
    closing = owned.close()
    assert not closing.clean
    assert TP in closing.errors


class FailingSync(HastyDisk):
    """Syncs of .log files fail while `fails`."""

    fails = False

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        return _FailingFile(path, super().open(path, create=create).fileno(), self)


class _FailingFile(RealFile):
    def __init__(self, path: Path, fd: int, disk: FailingSync) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def sync(self) -> None:
        if self._disk.fails and self.path.suffix == ".log":
            raise OSError(errno.EIO, "the disk failed", str(self.path))


@requires_fixtures
@pytest.mark.parametrize("fixture", ["v0", "v1", "groups", "compaction-after"])
def test_every_record_of_the_fixtures(target: OwnedDir, fixture: str) -> None:
    results = mirrored(FIXTURES / fixture / "log", target).results
    looked = LogDir.open_read_only(FIXTURES / fixture / "log")
    assert results
    for tp, result in results.items():
        assert result.error is None
        assert read_all(target.log(tp).snapshot()) == read_all(looked.log(tp).snapshot())
    close_clean(target)


@pytest.mark.parametrize("change", ["retain", "compact"])
def test_segments_that_disappear_during_the_copy(tmp_path: Path, change: str) -> None:
    """The copy goes on with what the source has then; its manifest is written, and the next run finds no other
    messages."""
    source, dest, manifest = tmp_path / "built", tmp_path / "copy", tmp_path / "m.json"
    items: list[Item] = [item for _ in range(6) for item in (Batch(many(20, keys=7)), ROLL)]
    properties = b"cleanup.policy=compact\nmin.cleanable.dirty.ratio=0\n" if change == "compact" else b""
    build_log_dir(source, {"t": [items]}, broker=False, extra={"t-0/topic.properties": properties})

    class Changing(NoProgress):
        """Changes the source once the first segment has been copied."""

        def advance(self, size_bytes: int) -> None:
            if not changed:
                changed.append(len(list(source.glob("t-0/*.log"))))
                more = ["--before", "90"] if change == "retain" else []
                output_of(change, source, "t/0", *more)

    def back_up(progress: Progress) -> Mirror:
        owned = opened(dest)
        recorder = ManifestRecorder(manifests.read(manifest))
        mirror = Mirror(LogDir.open_read_only(source), owned, everything, progress, recorder=recorder)
        mirror.run()
        close_clean(owned)
        assert mirror.results[TP].error is None
        manifests.write(RealDisk(), manifest, recorder.manifest(None, 1, dest))
        return mirror

    changed: list[int] = []
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


def rows(path: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    snapshot = LogDir.open_read_only(path).log(TP).snapshot()
    return [
        (int(block.offset[row]), int(block.timestamp[row]), block.key(row), block.value(row))
        for block in read_range(snapshot, snapshot.log_start_offset)
        for row in range(len(block))
    ]
