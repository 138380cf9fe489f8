"""Planted faults: does the simulation find them, and which seed is the first that does?

Each fault is a small change of the source, applied to a copy of the project; a change that no longer applies is an
error. A fault that no seed finds shows a program or a check that is missing here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.simulation.planted import FAULTS

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("storage", "kafkafs", "tests/simulation", "tests/support", "tests/__init__.py", "pyproject.toml")


class Found(NamedTuple):
    """What became of a planted fault. `seed` None: no seed found it. `failure`: what the seed failed with."""

    name: str
    seed: int | None
    failure: str
    seconds: float


def run(names, seeds, first):
    """Plants these faults (all, without names), prints a line for each; 1 when one was not found."""
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}. There are: {', '.join(f.name for f in FAULTS)}")  # noqa: T201
        return 2
    missed = 0
    print(f"{'fault':<32} {'seed':>6} {'s':>6}  found as", flush=True)  # noqa: T201
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        found = plant(fault, seeds, first)
        missed += found.seed is None
        seed = "-" if found.seed is None else str(found.seed)
        print(f"{found.name:<32} {seed:>6} {found.seconds:>6.1f}  {found.failure[:100]}", flush=True)  # noqa: T201
    print(f"{missed} not found within {seeds} seeds from {first} on")  # noqa: T201
    return 1 if missed else 0


def plant(fault, seeds, first):
    """Runs seeds on a copy of the project with a fault, until one finds it."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kafkafs-planted-") as place:
        copy = Path(place)
        copy_project(copy)
        apply(fault, copy)
        command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds), "--first", str(first)]
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    if done.returncode == 0:
        return Found(fault.name, None, "", seconds)
    if not lines:
        raise RuntimeError(f"{fault.name}: the simulation itself failed\n{done.stdout}{done.stderr}")
    seed, _, failure = lines[0].removeprefix("seed ").partition(": ")
    return Found(fault.name, int(seed), failure, seconds)


def copy_project(copy):
    """The files that the simulation needs."""
    for name in _COPIED:
        source = ROOT / name
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.c")
            shutil.copytree(source, copy / name, copy_function=_link, ignore=ignored)
        else:
            _link(str(source), str(copy / name))


def apply(fault, copy):
    """Changes the copy. LookupError when a text is not there exactly once."""
    for change in fault.changes:
        path = copy / change.path
        text = path.read_text()
        if text.count(change.old) != 1:
            raise LookupError(f"{fault.name}: {change.path} has {text.count(change.old)} times\n{change.old}")
        path.unlink()
        path.write_text(text.replace(change.old, change.new))


def _link(source, target):
    """Kernels are large and never changed; sources may be, meanwhile."""
    if source.endswith(".so"):
        try:
            os.link(source, target)
            return target
        except OSError:  # another file system
            pass
    shutil.copy2(source, target)
    return target
