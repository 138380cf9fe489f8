"""Each damage by name, in copies of real brokers' logs; and nothing that recovery repaired."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.storage.verify.damages import DAMAGES
from tests.support.fixtures import FIXTURES, requires_fixtures

pytestmark = requires_fixtures

# All but these can be made in a file; they are found all the same where a disk or a program fails so, or where a whole
# partition is not there (tests/spark/test_log_dirs.py). Those that need a manifest are in test_manifest_audit.py, and
# messages in tiered storage are no damage (tests/kafkafs/cli/test_tiered.py).
NOT_MADE = {
    FaultKind.UNREADABLE, FaultKind.SEGMENT_TOO_LARGE, FaultKind.LOG_CUT_OFF, FaultKind.PARTITION_ABSENT,
    FaultKind.MANIFEST_MISSING, FaultKind.MANIFEST_DIFFERS, FaultKind.REMOTE_SEGMENTS,
    FaultKind.REMOTE_SEGMENT,
}  # fmt: skip
NOTES = {
    FaultKind.DIR_AWAITS_REMOVAL, FaultKind.CHECKPOINT_UNFINISHED, FaultKind.WRITE_PENDING, FaultKind.STAGED_ORPHAN,
    FaultKind.SEGMENT_GAP,
}  # fmt: skip


def test_there_is_a_damage_of_every_kind() -> None:
    assert len(DAMAGES) >= 40
    assert {one.kind for one in DAMAGES.values()} == set(FaultKind) - NOT_MADE


def state_of(path: Path) -> dict[str, tuple[int, int]]:
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in [path, *path.rglob("*")]}


@pytest.mark.parametrize("fixture", sorted({one.fixture for one in DAMAGES.values()}))
def test_nothing_is_found_before(fixture: str) -> None:
    assert verify_log_dir(FIXTURES / fixture / "log") == []


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_by_name(tmp_path: Path, name: str) -> None:
    damage = DAMAGES[name]
    logs = tmp_path / "logs"
    logs.mkdir()
    for source in (FIXTURES / damage.fixture / "log").iterdir():
        if source.is_file():
            shutil.copy(source, logs)
        elif source.name.rpartition("-")[0] in (damage.tp.topic, "tx-aborts"):
            shutil.copytree(source, logs / source.name)
    for path in logs.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    damage.make(logs / damage.partition)
    before = state_of(logs)
    found = verify_log_dir(logs, [damage.tp])
    assert damage.kind in {one.kind for one in found}, [str(one) for one in found]
    assert all(one.recovery for one in found)
    made = [one for one in found if one.kind is damage.kind]
    is_note = damage.kind in NOTES or "removed segment" in name
    assert {one.severity for one in made} == {Severity.NOTE if is_note else Severity.FINDING}
    assert state_of(logs) == before


def test_the_order_of_work_does_not_matter() -> None:
    logs = FIXTURES / "recovery" / "before"
    assert verify_log_dir(logs, workers=1) == verify_log_dir(logs, workers=5)


@pytest.mark.leaves_damage("index-order", "time-index-incomplete", "batch-magic", "batch-crc")
def test_recovery_leaves_what_kafka_leaves(tmp_path: Path) -> None:
    """Ours, over the same damages: what is found then is what is found after Kafka's."""
    logs = tmp_path / "logs"
    shutil.copytree(FIXTURES / "recovery" / "before", logs, copy_function=shutil.copy)
    for path in [logs, *logs.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = {(one.path.parent.name, one.kind) for one in verify_log_dir(logs)}
    assert OwnedDir.open(logs, Opening(trust_clean=False)).close().clean
    found = {(one.path.parent.name, one.kind) for one in verify_log_dir(logs)}
    kafka = {(one.path.parent.name, one.kind) for one in verify_log_dir(FIXTURES / "recovery" / "after")}
    assert found == kafka
    assert kafka < before
