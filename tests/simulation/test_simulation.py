"""The simulation itself: it is the same each time, sees deadlocks, and finds nothing in some hundred seeds."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.locks import SimulatedLock
from tests.simulation.scheduler import Deadlock, Scheduler, TooManySteps

ROOT = Path(__file__).resolve().parents[2]
SEEDS = os.environ.get("KAFKAFS_SIMULATION_SEEDS", "300")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)


@pytest.mark.parametrize("first", [["--first", "1"], []], ids=["the same seeds", "fresh seeds"])
def test_nothing_is_found(first: list[str]) -> None:
    """What fails is shown with its seed, which `python -m tests.simulation --seed` runs again."""
    done = simulate("--seeds", SEEDS, *first)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_each_time() -> None:
    one, other = (simulate("--seed", "7", "--steps").stdout.splitlines()[:-1] for _ in range(2))
    assert len(one) > 1000
    assert one == other


def test_a_deadlock_is_seen() -> None:
    found = set()
    for seed in range(30):
        scheduler = Scheduler(random.Random(seed), switching=0.5)
        first, second = SimulatedLock(), SimulatedLock()

        def take(one: SimulatedLock, other: SimulatedLock) -> None:
            with one, other:
                pass

        scheduler.spawn("a", lambda take=take, one=first, other=second: take(one, other))  # type: ignore[misc]
        scheduler.spawn("b", lambda take=take, one=second, other=first: take(one, other))  # type: ignore[misc]
        with contextlib.suppress(Deadlock):
            scheduler.run()
            continue
        found.add(seed)
    assert 0 < len(found) < 30


def test_a_task_that_does_not_end_is_seen() -> None:
    scheduler = Scheduler(random.Random(1), most_steps=1000)

    def run() -> None:
        while True:
            scheduler.switch("again")

    scheduler.spawn("runs", run)
    with pytest.raises(TooManySteps):
        scheduler.run()


def test_locks_exclude() -> None:
    for seed in range(20):
        scheduler = Scheduler(random.Random(seed), switching=0.7)
        lock, inside = SimulatedLock(), []

        def work(lock: SimulatedLock = lock, inside: list[int] = inside, scheduler: Scheduler = scheduler) -> None:
            for _ in range(5):
                with lock:
                    inside.append(1)
                    scheduler.switch("inside")
                    assert len(inside) == 1
                    inside.pop()

        for name in "abc":
            scheduler.spawn(name, work)
        scheduler.run()
        assert scheduler.steps > 30
