"""The check on Spark has the same findings as the check without it, for each kind of damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs.tasks import run_tasks
from kafkafs.spark.jobs.verify import verify
from kafkafs.spark.python_workers import UncompiledKernels
from storage.format.compression import Codec
from storage.types import TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.verify import verify_log_dir
from tests.support.builders import ROLL, Batch, BuiltLogDir, Partition, abort, build_log_dir, commit, many
from tests.support.commands import run
from tests.support.fixtures import golden_cases, requires_fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def a_log(path: Path) -> BuiltLogDir:
    return build_log_dir(
        path,
        {
            "plain": [
                Partition([Batch(many(50)), ROLL, Batch(many(50)), ROLL, Batch(many(50))], index_interval_bytes=512),
                [Batch(many(9), codec=Codec.LZ4)],
            ],
            "tx": [
                [
                    Batch(many(3), producer_id=7, transactional=True),
                    ROLL,
                    Batch(many(2), producer_id=8, transactional=True),
                    abort(7),
                    ROLL,
                    commit(8),
                ]
            ],
        },
    )


def test_damage_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """In a batch, an index, a transaction index, a checkpoint: the same findings as without Spark."""
    built = a_log(tmp_path)
    log = built["plain", 0].log(1)
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    built["plain", 0].log(0).with_suffix(".index").write_bytes(b"garbage")
    for index in built["tx", 0].path.glob("*.txnindex"):
        index.unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nplain 1 4711\n")
    found = verify(spark, tmp_path)
    assert found == verify_log_dir(tmp_path)
    kinds = {finding.kind for finding in found}
    assert kinds >= {
        FaultKind.BATCH_CRC, FaultKind.INDEX_SIZE, FaultKind.TXN_INDEX_INCOMPLETE, FaultKind.CHECKPOINT_BEYOND_LOG
    }  # fmt: skip
    chosen = [TopicPartition("plain", 1)]
    assert verify(spark, tmp_path, chosen) == verify_log_dir(tmp_path, chosen)


@requires_fixtures
def test_fixtures(spark: SparkSession) -> None:
    directories = {case.log_dir for case in golden_cases() if case.fixture in ("recovery", "transactions")}
    assert len(directories) == 2
    for directory in sorted(directories):
        assert verify(spark, directory) == verify_log_dir(directory), directory


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    built = a_log(tmp_path)
    sound = run("spark", "verify", tmp_path)
    assert (sound.exit_code, sound.stdout) == (0, "nothing wrong\n")
    built["plain", 0].log(0).with_suffix(".index").write_bytes(b"garbage")
    found = run("spark", "verify", tmp_path, "plain/0", "--json")
    assert found.exit_code == 1
    assert {one["name"] for one in json.loads(found.stdout)["findings"]} >= {"index-size"}


def test_uncompiled_kernels_are_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All these use run_tasks or reduce_tasks; test_compact tests the other functions."""
    a_log(tmp_path)
    monkeypatch.setattr("storage.format.decode_kernel.__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels, match=r"storage\.format\.decode_kernel"):
        run_tasks(spark, len, ["task"], "test")
    assert run_tasks(spark, len, ["task"], "test", allow_uncompiled=True) == [4]
    for job in (["verify", tmp_path], ["stats", tmp_path], ["export", tmp_path, tmp_path.with_name("out")]):
        refused = run("spark", *job)
        assert refused.exit_code == 4
        assert "--allow-uncompiled" in refused.stderr
    allowed = run("spark", "verify", tmp_path, "--allow-uncompiled")
    assert allowed.exit_code == 0
