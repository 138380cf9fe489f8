"""The rehearsal of a directory's recovery is told what the recovery itself is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage.directory import owned_dir
from storage.directory.owned_dir import Opening, OwnedDir
from storage.log.log_dir import LogDir
from storage.progress import NoProgress
from storage.recovery.recovery import Recovery, RecoveryPlan
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.owned_dirs import ONE_THREAD


def test_the_rehearsal_has_the_plan_of_the_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(3))], recovery_point=2)]})
    config = replace(ONE_THREAD, producer_id_expiration_ms=7_000)
    told: list[RecoveryPlan] = []
    monkeypatch.setattr(owned_dir, "rehearse", lambda plan, **_: told.append(plan))
    owned_dir.rehearse_recovery(LogDir.open_read_only(tmp_path, config=config), [TopicPartition("t", 0)], NoProgress())
    done: list[RecoveryPlan] = []

    def recovery(plan: RecoveryPlan, **others: object) -> Recovery:
        done.append(plan)
        return Recovery(plan, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(owned_dir, "Recovery", recovery)
    OwnedDir.open(tmp_path, Opening(trust_clean=False), config=config).close()
    assert told == done
    assert told[0].producer_expiration_ms == 7_000
