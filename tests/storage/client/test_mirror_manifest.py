"""Manifests while a mirror runs: increments, copies that are ahead, crashes at every step, cuts and other names."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.append.appender import Appender
from storage.backup.mirror import ManifestRecorder, Mirror
from storage.backup.record_digests import LogDiff, diff_records
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidRecord, InvalidTopic
from storage.files import manifest as manifests
from storage.files import names
from storage.files.disk import RealDisk
from storage.files.disk_protocol import Disk
from storage.files.manifest import Manifest
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import OffsetRange, TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.support.broker_rules import StoredBatch, stored_batches
from tests.support.builders import ROLL, START_MS, Batch, Item, Partition, abort, build_log_dir, commit, many
from tests.support.commands import output_of
from tests.support.crash_points import Sessions, every_crash
from tests.support.owned_dirs import append, close_clean, opened, read

TP = TopicPartition("t", 0)
STORY: list[Item] = [Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5)), Batch(many(5))]


def backed_up(
    source: Path,
    owned: OwnedDir,
    file: Path,
    *,
    disk: Disk | None = None,
    until_ms: int | None = None,
    renamed: Mapping[str, str] | None = None,
) -> ManifestRecorder:
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


def read_manifest(file: Path) -> Manifest:
    manifest = manifests.read(file)
    assert manifest is not None
    return manifest


def ranges_of(manifest: Manifest, tp: TopicPartition = TP) -> list[tuple[int, int, int]]:
    return [(one.first_offset, one.last_offset, one.batches) for one in manifest.partitions[tp].ranges]


def test_increments_add_to_it(tmp_path: Path) -> None:
    source = opened(tmp_path / "source")
    source.create_topic("t", 1, {"segment.bytes": "500"})
    target, file = tmp_path / "copy", tmp_path / "m.json"
    ends = []
    for n in range(4):
        append(source.log(TP), [b"message %d" % n] * 10)
        recorder = backed_up(source.path, opened(target), file)
        assert recorder.found == {}
        manifest = read_manifest(file)
        ends.append(manifest.partitions[TP].log_end_offset)
        assert verify_manifest(target, manifest) == []
    assert ends == [10, 20, 30, 40]
    assert ranges_of(manifest) == [(n, n + 9, 1) for n in range(0, 40, 10)]
    backed_up(source.path, opened(target), file)
    assert ranges_of(read_manifest(file)) == ranges_of(manifest)
    source.close()


def test_what_a_copy_has_and_its_manifest_does_not_is_added(tmp_path: Path) -> None:
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


def test_what_is_added_must_be_in_the_source(tmp_path: Path) -> None:
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
def test_a_source_that_was_compacted_since(tmp_path: Path, listed: bool) -> None:
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


def _append_keyed(owned: OwnedDir, keys: tuple[bytes, ...]) -> None:
    outcome = Appender(owned.log(TP), clock=owned.clock).append([Record(key, b"value of " + key) for key in keys])
    assert outcome.error is None


def _batches(path: Path) -> list[StoredBatch]:
    return [batch for log in sorted((path / "t-0").glob("*.log")) for batch in stored_batches(log.read_bytes())]


def test_a_copy_that_lost_messages_is_not_added_to(tmp_path: Path) -> None:
    source, target, file = tmp_path / "source", tmp_path / "copy", tmp_path / "m.json"
    build_log_dir(source, {"t": [STORY]})
    backed_up(source, opened(target), file)
    before = file.read_bytes()
    owned = opened(target)
    for path in owned.truncate_to(TP, 10):
        path.unlink()
    close_clean(owned)
    with pytest.raises(InvalidRecord, match="lost messages"):
        backed_up(source, opened(target), file)
    assert file.read_bytes() == before


def test_a_stopped_backup_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    """Before every operation of an increment, as a kill and as a power loss; then it is done again."""
    source, before = tmp_path / "source", tmp_path / "before"
    build_log_dir(source, {"t": [[Batch(many(3)), ROLL]]})
    backed_up(source, opened(before), before / "m.json")
    listed = (before / "m.json").read_bytes()
    source = tmp_path / "grown"
    build_log_dir(source, {"t": [[Batch(many(3)), ROLL, Batch(many(2)), ROLL, Batch(many(1))]]})

    def work(sessions: Sessions, _: None) -> None:
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
def test_a_cut_copy_goes_on_to_a_later_cut(tmp_path: Path, seed: int) -> None:
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


def test_a_transaction_that_was_committed_later_is_open(tmp_path: Path) -> None:
    items: list[Item] = [
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


def test_another_name_in_the_copy(tmp_path: Path) -> None:
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
def test_names_that_collide_are_refused(tmp_path: Path, renamed: dict[str, str]) -> None:
    build_log_dir(tmp_path / "source", {"t": [STORY], "u": [[Batch(many(1))]]})
    owned = opened(tmp_path / "copy")
    with pytest.raises(InvalidTopic):
        backed_up(tmp_path / "source", owned, tmp_path / "m.json", renamed=renamed)
    assert owned.log_dir.topics() == []
    owned.close()
