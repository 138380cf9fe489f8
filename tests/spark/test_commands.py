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
