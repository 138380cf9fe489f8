"""Values that tasks pass to each other through Spark's shuffles, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs.compact import _check_nothing_lost, _CopiedTask, _Scanned
from kafkafs.spark.jobs.tasks import TO_DRIVER, gather, run_tasks, scatter
from kafkafs.spark.python_workers import UncompiledKernels
from storage.compaction.batch_filter import Passed
from storage.errors import CorruptBatch, StorageError
from tests.support.builders import build_log_dir
from tests.support.commands import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def multiples(number: int) -> Iterator[tuple[int, int]]:
    """Yields multiples, in buckets by their remainder."""
    for factor in range(4):
        yield number * factor % 3, number * factor
    if number == 5:
        raise CorruptBatch("five")
    yield TO_DRIVER, number


def to_one_or_two(values: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((int(value > 5), value) for value in values)


def named(name: str, values: Iterable[int]) -> list[tuple[str, list[int]]]:
    return [(name, sorted(values))]


def test_there_and_back(spark: SparkSession) -> None:
    found, told = scatter(spark, multiples, [1, 2, 4], 3, "test")
    assert sorted(told) == [1, 2, 4]
    made = gather(spark, found, to_one_or_two, named, ["small", "great"], "test")
    assert made == [("small", [0, 0, 0, 1, 2, 2, 3, 4, 4]), ("great", [6, 8, 12])]


def test_errors(spark: SparkSession) -> None:
    with pytest.raises(CorruptBatch, match="five"):
        scatter(spark, multiples, [1, 5], 3, "test")
    # From a task that was repeated because its output was lost.
    found = spark.sparkContext.parallelize([(0, 1), (0, CorruptBatch("five"))]).partitionBy(2, int)
    with pytest.raises(StorageError, match="Spark gave up"):
        gather(spark, found, to_one_or_two, named, ["small", "great"], "test")


def failing(number: int) -> int:
    raise {1: RuntimeError("the reason"), 2: ModuleNotFoundError("No module named 'kafkafs'")}[number]


def test_why_spark_gave_up(spark: SparkSession) -> None:
    """The last line of the worker's traceback, not the first line of Spark's message around it."""
    with pytest.raises(StorageError, match="Spark gave up: test; found RuntimeError: the reason"):
        run_tasks(spark, failing, [1], "test")
    with pytest.raises(StorageError, match=r"No module named 'kafkafs'.* -m pip install 'kafkafs"):
        run_tasks(spark, failing, [2], "test")


def test_uncompiled_kernels_are_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir, table = build_log_dir(tmp_path / "log", {"t": [[b"x"]]}).path, tmp_path / "table"
    monkeypatch.setattr("storage.format.decode_kernel.__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels, match=r"storage\.format\.decode_kernel"):
        run_tasks(spark, len, ["task"], "test")
    assert run_tasks(spark, len, ["task"], "test", allow_uncompiled=True) == [4]
    for job in (["stats", log_dir], ["export", log_dir, table]):
        refused = run("spark", *job)
        assert refused.exit_code == 4
        assert "--allow-uncompiled" in refused.stderr
    assert run("spark", "stats", log_dir, "--allow-uncompiled").exit_code == 0


def test_what_does_not_arrive_is_noticed() -> None:
    scanned = [_Scanned(0, Passed(), 5), _Scanned(9, Passed(), 7)]
    _check_nothing_lost(scanned, [_CopiedTask([], 2, 12, 3), _CopiedTask([], 1, 0, 0)])
    for wrong in ([_CopiedTask([], 3, 11, 3)], [_CopiedTask([], 2, 12, 3)]):
        with pytest.raises(StorageError, match="a shuffle lost offsets"):
            _check_nothing_lost(scanned, wrong)
