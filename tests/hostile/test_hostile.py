"""A minute of hostile directories: some that stay the same, and new ones, whose seeds a failure names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.cli import main
from tests.hostile import commands
from tests.hostile.trial import run_seed
from tests.support.mounts import requires_fuse

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 0.6


def all_commands():
    """Every command's name, a group's with its own before it."""
    found = set()
    for name, command in main.commands.items():
        below = getattr(command, "commands", None)
        found |= {name} if below is None else {f"{name} {one}" for one in below}
    return found


def test_every_command_is_tried():
    assert {*commands.READS, *commands.CHANGES, *commands.NOT_TRIED} == all_commands()


@pytest.mark.parametrize("first", [1, pytest.param(11, marks=pytest.mark.nightly)])
def test_seeds(first, tmp_path):
    """In a process of its own: it forks, and must not have the threads of other tests."""
    program = (
        "import sys, tempfile; from pathlib import Path; from tests.hostile.trial import load_modules, run_seed\n"
        "load_modules()\n"
        f"for seed in range({first}, {first + 10}):\n"
        f"    for fault in run_seed(seed, Path(tempfile.mkdtemp(dir={str(tmp_path)!r}))).faults: print(seed, fault)\n"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.nightly
def test_new_seeds():
    command = [sys.executable, "-m", "tests.hostile", "--minutes", str(MINUTES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * MINUTES + 300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert " 0 faults" in done.stdout


@requires_fuse
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 5))])
def test_mounts(seed, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = run_seed(seed, scratch, mounts=True)
    assert result.faults == [], result.made
    assert result.read_files is not None
    assert result.read_files >= 50  # what is intact is shown
