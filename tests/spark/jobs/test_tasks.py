"""Functions as Spark tasks: why Spark gave up, and workers without compiled kernels."""

import pytest

from kafkafs.spark.jobs.tasks import run_tasks
from kafkafs.spark.kernels_check import UncompiledKernels
from storage.errors import StorageError
from tests.support.builders import build_log_dir
from tests.support.commands import run


def failing(number):
    raise {1: RuntimeError("the reason"), 2: ModuleNotFoundError("No module named 'kafkafs'")}[number]


def test_why_spark_gave_up(spark):
    """The last line of the worker's traceback, not the first line of Spark's message around it."""
    with pytest.raises(StorageError, match="Spark gave up: test; found RuntimeError: the reason"):
        run_tasks(spark, failing, [1], "test")
    with pytest.raises(StorageError, match=r"No module named 'kafkafs'.* -m pip install 'kafkafs"):
        run_tasks(spark, failing, [2], "test")


def test_uncompiled_kernels_are_refused(spark, tmp_path, monkeypatch):
    log_dir, table = build_log_dir(tmp_path / "log", {"t": [[b"x"]]}).path, tmp_path / "table"
    monkeypatch.setattr("storage.format.decode_kernel.__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels, match=r"storage\.format\.decode_kernel"):
        run_tasks(spark, len, ["task"], "test")
    assert run_tasks(spark, len, ["task"], "test", allow_uncompiled=True) == [4]
    refused = run("spark", "export", log_dir, table)
    assert refused.exit_code == 4
    assert "--allow-uncompiled" in refused.stderr
    assert run("spark", "export", log_dir, table, "--allow-uncompiled").exit_code == 0
