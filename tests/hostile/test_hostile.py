"""A minute of hostile directories: some that stay the same, and new ones, whose seeds a failure names."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.cli import main
from tests.hostile import commands
from tests.hostile.trial import run_seed
from tests.support.mounts import requires_fuse

ROOT = Path(__file__).resolve().parents[2]
SEEDS = """
import sys, tempfile
from pathlib import Path
from tests.hostile.trial import load_modules, run_seed
load_modules()
for seed in map(int, sys.argv[2:]):
    for fault in run_seed(seed, Path(tempfile.mkdtemp(dir=sys.argv[1]))).faults: print(seed, fault)
"""


def test_every_command_is_tried():
    names = set()
    for name, command in main.commands.items():
        names |= {f"{name} {below}" for below in command.commands} if hasattr(command, "commands") else {name}
    assert {*commands.READS, *commands.CHANGES, *commands.NOT_TRIED} == names


@pytest.mark.parametrize("first", [1, pytest.param(11, marks=pytest.mark.nightly)])
def test_seeds(first, tmp_path):
    """In a process of its own: it forks, and must not have the threads of other tests."""
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", SEEDS, tmp_path, *map(str, range(first, first + 10))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.nightly
def test_new_seeds():
    command = [sys.executable, "-m", "tests.hostile", "--minutes", "0.6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert " 0 faults" in done.stdout


@requires_fuse
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 4, 5))])
def test_mounts(seed, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = run_seed(seed, scratch, mounts=True)
    assert result.faults == [], result.made
    assert result.read_files is not None
    assert result.read_files >= 50  # what is intact is shown
