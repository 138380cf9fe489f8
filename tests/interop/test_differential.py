"""Random logs and damages, recovered, looked up, consumed and compacted by a broker and by us: see `differential`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka import requires_kafka

pytestmark = [requires_kafka]

ROOT = Path(__file__).resolve().parents[2]
SEEDS = os.environ.get("KAFKAFS_DIFFERENTIAL_SEEDS", "1").split(",")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_of_both(seed: str) -> None:
    """In a process of its own: some of the damaged logs stay damaged."""
    command = [sys.executable, "-m", "tests.interop.differential", "--logs", "40", "--damages", "40", "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 logs and 40 damages" in done.stdout
    assert " 0 logs compacted" not in done.stdout
