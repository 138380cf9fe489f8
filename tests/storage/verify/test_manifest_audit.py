"""A log directory beside a manifest: what is missing or changed is found and named; what is more is fine."""

import hashlib
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.backup.directory_copy import DirectoryCopy
from storage.backup.manifest_recorder import ManifestRecorder
from storage.backup.mirror import Mirror
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


OLD = [Batch(many(3), magic=0), Batch(many(4), Codec.GZIP, 1), Batch(many(2), magic=1)]


def mirrored(tmp_path):
    """A copy of tmp_path / "source", rolled by its own configuration, and its manifest. The tests damage another copy:
    what was written through the engine is sound."""
    owned = opened(tmp_path / "copy")
    owned.create_topic("t", 2, {"segment.bytes": "400"}, start_offsets={1: 50})
    source, recorder = LogDir.open_read_only(tmp_path / "source"), ManifestRecorder()
    mirror = Mirror(source, DirectoryCopy(owned), lambda log_dir: log_dir.all_partitions(), recorder=recorder)
    mirror.run()
    assert not [result.error for result in mirror.results.values() if result.error is not None]
    close_clean(owned)
    manifest = recorder.manifest(None, 5000, tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    return tmp_path / "moved", manifest


@pytest.fixture
def backup(tmp_path):
    later = Partition([Batch(many(3))], start_offset=50, log_start_offset=51)
    build_log_dir(tmp_path / "source", {"t": [STORY, later], "old": [OLD]})
    return mirrored(tmp_path)


def test_a_copy_has_what_its_manifest_lists(backup):
    path, manifest = backup
    assert verify_manifest(path, manifest) == []
    assert len(manifest.partitions[TP].ranges) == 2  # the source's segments
    assert len(list((path / "t-0").glob("*.log"))) > 2
    assert manifest.partitions[TopicPartition("t", 1)].log_end_offset == 53
    assert {listed.batches for listed in manifest.partitions[TopicPartition("old", 0)].ranges} == {6}
    # More is fine, but a raised log start hides messages.
    owned = opened(path)
    append(owned.log(TP), [b"more"])
    owned.log(TP).roll()
    owned.create_topic("another", 1)
    close_clean(owned)
    assert verify_manifest(path, manifest) == []
    owned = opened(path)
    owned.log(TP).increment_log_start_offset(7)
    close_clean(owned)
    (finding,) = verify_manifest(path, manifest)
    assert (finding.path, finding.expected, finding.found) == (path / "t-0", 0, 7)
    assert finding.what.endswith("offsets 0 to 6 are hidden")


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
        log.write_bytes(data[:-1])
        assert {finding.path.parent for finding in verify_manifest(path, manifest, workers=1)} == {log.parent}
        log.write_bytes(data)
    assert tried > 1000
    assert verify_manifest(path, manifest) == []


def test_every_changed_bit_of_the_other_files_is_found(backup):
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
    _, manifest = mirrored(tmp_path)
    assert verify_manifest(tmp_path / "moved", manifest) == []
    file = tmp_path / "moved" / name
    file.write_bytes(file.read_bytes() + b"\n")
    assert [one.path for one in verify_manifest(tmp_path / "moved", manifest)] == [file]


def test_a_manifest_without_files_is_read(backup):
    path, manifest = backup
    content = json.loads(encode(manifest))
    del content["files"], content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    older = parse(json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode())
    assert older == replace(manifest, files={})
    assert verify_manifest(path, older) == []


@pytest.mark.parametrize("pattern", ["t-0/{0}.*", "t-0/{1}.*", "t-0/{2}.*", "t-0", "t-?"])
def test_what_is_missing_is_found(backup, pattern):
    """A segment at the beginning, in the middle, at the end; a partition; a topic."""
    path, manifest = backup
    segments = [log.stem for log in sorted(path.glob("t-0/*.log"))]
    for lost in list(path.glob(pattern.format(segments[0], segments[len(segments) // 2], segments[-1]))):
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    findings = verify_manifest(path, manifest)
    assert {finding.kind for finding in findings} <= {FaultKind.MANIFEST_MISSING, FaultKind.MANIFEST_DIFFERS}
    places = {"t-0", "t-1"} if pattern == "t-?" else {"t-0"}
    assert {finding.path.relative_to(path).parts[0] for finding in findings} == places


def test_a_partition_that_cannot_be_read_is_found(backup):
    path, manifest = backup
    log = max(path.glob("t-0/*.log"))
    log.unlink()
    os.mkfifo(log)
    assert [(one.kind, one.path) for one in verify_manifest(path, manifest)] == [(FaultKind.UNREADABLE, log)]


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
