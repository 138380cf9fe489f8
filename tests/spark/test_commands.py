"""`kafkafs spark …` as processes: how they end when they are interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.spark.session import HAVE_JAVA, REQUIRED
from tests.support.builders import build_log_dir
from tests.support.commands import run


@pytest.mark.skipif(not HAVE_JAVA and not REQUIRED, reason="no Java: Spark does not run")
def test_interrupted_while_spark_starts(tmp_path: Path) -> None:
    """Nothing of Spark stays behind."""
    command = [sys.executable, "-m", "kafkafs", "spark", "stats", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (started := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline, "Spark does not start"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("kafkafs: interrupted\n")
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


@pytest.mark.parametrize("command", ["stats", "verify", "export"])
def test_a_mistyped_name_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from kafkafs.spark.jobs import session

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(session, "spark_session", started)
    path = build_log_dir(tmp_path / "log", {"orders": [[b"x"]]}).path
    out = [str(tmp_path / "out")] if command == "export" else []
    done = run("spark", command, str(path), *out, "oders")
    assert done.exit_code == 4
    assert "no topic or partition here is named oders" in done.stderr
