"""The examples are run as tests, in the session of all tests here."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage.verify.verify import verify_log_dir
from tests.spark.session import with_patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SAMPLE = EXAMPLES / "sample-log"

pytestmark = pytest.mark.usefixtures("spark")


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: Path | str) -> None:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def test_batch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "spark_batch.py")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "|       day|messages|bytes|"
    assert sum(int(line.split("|")[2]) for line in lines if line.startswith("|2026-")) == 700


def test_stream(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    shutil.copytree(SAMPLE, log_dir)
    messages = tmp_path / "out" / "messages"
    for lines, expected in ((b"", 700), (b"one\ntwo\n", 702), (b"", 702)):
        command = [sys.executable, "-m", "kafkafs", "append", str(log_dir), "orders/0"]
        subprocess.run(command, input=lines, check=True, timeout=120)
        with_patience(lambda: run(monkeypatch, "spark_stream.py", log_dir, "orders", tmp_path / "out"))
        assert spark.read.parquet(str(messages)).distinct().count() == expected
        assert spark.read.parquet(str(messages)).count() == expected
    assert not verify_log_dir(log_dir)
