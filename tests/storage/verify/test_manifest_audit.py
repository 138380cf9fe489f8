"""A log directory beside a manifest: what is missing or changed is found and named; what is more is fine."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.backup.mirror import ManifestRecorder, Mirror
from storage.files.manifest import encode, parse
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.manifest_audit import verify_manifest
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, many
from tests.support.owned_dirs import append, close_clean, opened

TP = TopicPartition("t", 0)
STORY = [
    Batch(many(5)),
    Batch(many(3, 100, keys=2), codec=Codec.LZ4, leader_epoch=1),
    Batch(many(2), producer_id=7, transactional=True, leader_epoch=1),
    replace(abort(7), leader_epoch=1),
    ROLL,
    Batch(many(4, headers=((b"h", None),)), codec=Codec.ZSTD, leader_epoch=2),
    Batch(many(1), leader_epoch=2),
]


@pytest.fixture
def backup(tmp_path):
    """A copy, rolled by its own configuration, and its manifest."""
    source = tmp_path / "source"
    later = Partition([Batch(many(3))], start_offset=50, log_start_offset=51)
    build_log_dir(source, {"t": [STORY, later], "old": [_old()]})
    manifest = mirrored(source, tmp_path / "copy", ManifestRecorder())
    # The tests damage another copy: what was written through the engine is sound.
    shutil.copytree(tmp_path / "copy", tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    return tmp_path / "moved", manifest


def _old():
    return [Batch(many(3), magic=0), Batch(many(4), Codec.GZIP, 1), Batch(many(2), magic=1)]


def mirrored(source, target, recorder):
    owned = opened(target)
    if "t" not in owned.log_dir.topics():
        owned.create_topic("t", 2, {"segment.bytes": "400"}, start_offsets={1: 50})
    mirror = Mirror(LogDir.open_read_only(source), owned, lambda found: found.all_partitions(), recorder=recorder)
    mirror.run()
    assert not [result.error for result in mirror.results.values() if result.error is not None]
    close_clean(owned)
    return recorder.manifest(None, 5000, target)


def test_a_copy_has_what_its_manifest_lists(backup):
    path, manifest = backup
    assert verify_manifest(path, manifest) == []
    assert len(manifest.partitions[TP].ranges) == 2  # the source's segments
    assert len(list((path / "t-0").glob("*.log"))) > 2
    assert manifest.partitions[TopicPartition("t", 1)].log_end_offset == 53
    assert {found.batches for found in manifest.partitions[TopicPartition("old", 0)].ranges} == {6}


def test_more_is_fine(backup):
    path, manifest = backup
    owned = opened(path)
    append(owned.log(TP), [b"more"])
    owned.log(TP).roll()
    owned.create_topic("another", 1)
    close_clean(owned)
    assert verify_manifest(path, manifest) == []


def test_every_changed_byte_is_found_and_named(backup):
    path, manifest = backup
    dice = random.Random(3)
    tried = 0
    for log in sorted(path.glob("*/*.log")):
        data = log.read_bytes()
        for at in range(len(data)):
            hurt = bytearray(data)
            hurt[at] ^= dice.choice((1, 0x80, 0xFF, dice.randrange(1, 256)))
            log.write_bytes(hurt)
            found = verify_manifest(path, manifest, workers=1)
            assert found, (log, at)
            assert {one.path.parent for one in found} == {log.parent}, (log, at)
            # A header field that no checksum covers is found in a range, which may be in several files.
            named = [(one.path.name, one.what.rpartition(" to ")[2]) for one in found if ", in " in one.what]
            named += [(one.path.name, one.path.name) for one in found if ", in " not in one.what]
            assert any(first <= log.name <= last for first, last in named), (log, at, found)
            assert all("offsets " in one.what for one in found)
            tried += 1
        log.write_bytes(data)
    assert tried > 1000
    assert verify_manifest(path, manifest) == []


def test_every_changed_bit_of_the_other_files_is_found(backup):
    """Checkpoints, epochs, ids, configuration, indexes, snapshots, the mark of a clean shutdown."""
    path, manifest = backup
    assert {Path(name).name for name in manifest.files} > {
        "log-start-offset-checkpoint", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown", "topic.properties",
        "leader-epoch-checkpoint", "partition.metadata",
    }  # fmt: skip
    dice = random.Random(5)
    for name in manifest.files:
        file = path / name
        data = file.read_bytes()
        for _ in range(8 if data else 0):
            hurt = bytearray(data)
            hurt[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            file.write_bytes(hurt)
            assert file in {one.path for one in verify_manifest(path, manifest, workers=1)}, name
        file.write_bytes(data + b"\n")
        assert file in {one.path for one in verify_manifest(path, manifest, workers=1)}, name
        file.write_bytes(data)
    assert verify_manifest(path, manifest) == []


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", ".kafka_cleanshutdown", "t-1/partition.metadata"])
def test_the_files_of_a_copy_of_one_log_directory_of_two(tmp_path, name):
    """Partitions that are in the other one are here without messages."""
    build_log_dir(tmp_path / "source", {"t": [STORY, Partition([Batch(many(3))])]})
    shutil.rmtree(tmp_path / "source" / "t-1")
    manifest = mirrored(tmp_path / "source", tmp_path / "copy", ManifestRecorder())
    shutil.copytree(tmp_path / "copy", tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    assert verify_manifest(tmp_path / "moved", manifest) == []
    file = tmp_path / "moved" / name
    file.write_bytes(file.read_bytes() + b"\n")
    assert [one.path for one in verify_manifest(tmp_path / "moved", manifest)] == [file]


def test_a_raised_log_start_hides_messages(backup):
    """Also where the directory has grown since."""
    path, manifest = backup
    owned = opened(path)
    append(owned.log(TP), [b"more"])
    owned.log(TP).increment_log_start_offset(7)
    close_clean(owned)
    (found,) = verify_manifest(path, manifest)
    assert (found.path, found.expected, found.found) == (path / "t-0", 0, 7)
    assert found.what.endswith("offsets 0 to 6 are hidden")


def test_a_manifest_without_files_is_read(backup):
    """As earlier versions wrote it."""
    path, manifest = backup
    content = json.loads(encode(manifest))
    del content["files"], content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    older = parse(json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode())
    assert older == replace(manifest, files={})
    assert verify_manifest(path, older) == []


@pytest.mark.parametrize("lost", ["first segment", "middle segment", "last segment", "tail", "partition", "topic"])
def test_what_is_missing_is_found(backup, lost):
    path, manifest = backup
    logs = sorted((path / "t-0").glob("*.log"))
    if "segment" in lost:
        gone = logs[{"first": 0, "middle": len(logs) // 2, "last": -1}[lost.split()[0]]]
        for file in path.glob(f"t-0/{gone.stem}.*"):
            file.unlink()
    elif lost == "tail":
        logs[-1].write_bytes(logs[-1].read_bytes()[:-1])
    else:
        for directory in path.glob("t-0" if lost == "partition" else "t-*"):
            shutil.rmtree(directory)
    found = verify_manifest(path, manifest)
    assert found
    assert {one.kind for one in found} <= {FaultKind.MANIFEST_MISSING, FaultKind.MANIFEST_DIFFERS}
    directories = {"t-0", "t-1"} if lost == "topic" else {"t-0"}
    assert {
        one.path.name if "part" in lost or lost == "topic" else one.path.parent.name for one in found
    } == directories


def test_other_messages_at_these_offsets_are_found(backup, tmp_path):
    path, manifest = backup
    build_log_dir(tmp_path / "other", {"t": [[Batch(many(count, 30)) for count in (5, 3, 2, 1, 4, 1)]]})
    shutil.rmtree(path / "t-0")
    shutil.copytree(tmp_path / "other" / "t-0", path / "t-0")
    found = [one for one in verify_manifest(path, manifest) if one.path.suffix == ".log"]
    assert {one.kind for one in found} == {FaultKind.MANIFEST_DIFFERS}


def test_only_the_chosen_partitions_are_compared(backup):
    path, manifest = backup
    shutil.rmtree(path / "t-1")
    assert verify_manifest(path, manifest, [TP]) == []
    (found,) = verify_manifest(path, manifest)
    assert (found.kind, found.path) == (FaultKind.MANIFEST_MISSING, path / "t-1")
    assert found.expected == "offsets 50 to 52"
