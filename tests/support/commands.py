"""Running commands: in this process for results, as a process for exit codes, pipes and signals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kafkafs.cli import main


def run(*args: object) -> Result:
    """Runs a command in this process; its exceptions reach the test."""
    return CliRunner().invoke(
        main, [os.fspath(a) if isinstance(a, Path) else str(a) for a in args], catch_exceptions=False
    )


def output_of(*args: object) -> bytes:
    """Runs a command that must succeed; returns what it prints."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def process(*args: object, **kwargs: Any) -> subprocess.Popen[bytes]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.Popen([sys.executable, "-m", "kafkafs", *map(str, args)], **options)
