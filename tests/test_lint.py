"""ruff and mypy --strict as tests, so that one command runs all checks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ruff() -> None:
    result = run("ruff", "check")
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"


def test_mypy() -> None:
    result = run("mypy")
    assert result.returncode in (0, 1), result.stderr
    found = [line for line in result.stdout.splitlines() if ": error:" in line]
    if importlib.util.find_spec("pyspark") is None:
        # As after `run.sh --quick`: what derives from pyspark's classes and functions is Any.
        found = [line for line in found if not line.startswith("kafkafs/spark/")]
    assert found == []
