"""ruff and mypy --strict as tests, so that one command runs all checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command", [("ruff", "check"), ("mypy",)], ids=lambda command: command[0])
def test_clean(command: tuple[str, ...]) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"
