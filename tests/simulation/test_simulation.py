"""The simulation itself: it is the same each time, sees deadlocks, and finds nothing in some hundred seeds."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tests.support.libfuse", reason="libfuse is not installed", exc_type=ImportError)

from storage.append.partition_files import PartitionFiles
from tests.simulation import plan
from tests.simulation.copies import COMMIT, PRODUCER_EXPIRATION_MS, Copied, producers_of
from tests.simulation.drawing import draw
from tests.simulation.locks import SimulatedLock
from tests.simulation.planted import FAULTS
from tests.simulation.runs import Figures, failure_of, run, simulation
from tests.simulation.scheduler import Deadlock, Scheduler
from tests.simulation.shrinking import shrink
from tests.support.nightly import rounds

ROOT = Path(__file__).resolve().parents[2]
SEEDS = os.environ.get("KAFKAFS_SIMULATION_SEEDS") or str(rounds(usual=500, nightly=2000))
FRESH = os.environ.get("KAFKAFS_SIMULATION_FRESH") or "2000"
FAILED_ONCE = (195581833386, 213998274222, 243309388565)  # fresh seeds that found something, which was mended
QUICKLY_FOUND = ("recovery_point_is_too_far", "names_are_not_synced")


def simulate(*arguments):
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)


def test_nothing_is_found(record_property):
    """What fails is shown with its seed: `python -m tests.simulation --seed` runs it again, `--shrink` reduces it."""
    done = simulate("--first", "1", "--seeds", SEEDS, "--go-on")
    record_property("figures", done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_nothing_is_found_any_more(seed):
    done = simulate("--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_nothing_is_found_in_fresh_seeds(record_property):
    """Their numbers are in the summary at the end."""
    done = simulate("--seeds", FRESH)
    record_property("figures", done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_each_time():
    one, other = (simulate("--seed", "7", "--steps").stdout.splitlines()[:-1] for _ in range(2))
    assert len(one) > 1000
    assert one == other


def test_a_marker_of_a_clock_that_was_set_back_makes_its_producer_forgettable():
    """A broker's log keeps the last timestamp that it was given, and expires the producer by that."""
    batches = [
        Copied(0, 0, 0, (b"x",), timestamp=5000, producer=1, transactional=True, sequence=0),
        Copied(1, 1, 0, (), timestamp=4500, producer=1, marker=COMMIT),
    ]
    state = producers_of(batches)[1]
    assert not state.may_be_forgotten(4499 + PRODUCER_EXPIRATION_MS)
    assert state.may_be_forgotten(4500 + PRODUCER_EXPIRATION_MS)


def test_every_planted_fault_stands_in_for_something():
    """Whether the simulation finds it is what `--mutations` tells."""
    for name, (owner, replaced, _) in FAULTS.items():
        assert replaced in vars(owner), name
        assert not replaced.startswith("_"), name


def test_a_planted_fault_is_found():
    done = simulate("--mutations", *QUICKLY_FOUND, "--seeds", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Anomaly: ") == len(QUICKLY_FOUND)


def test_a_failing_plan_is_reduced(monkeypatch, capsys):
    """A fault that one write and one fsync(2) show is reduced to little more than these."""
    monkeypatch.setattr(PartitionFiles, "sync", lambda _files, _unsynced: None)
    with simulation():
        seed = next(seed for seed in range(1, 50) if failure_of(Figures(), draw(seed)) is not None)
        assert shrink(seed) == 0
        printed = capsys.readouterr().out
        names = {**vars(plan), "simulate": lambda plan, choices: run(Figures(), plan, choices)}
        exec(printed, names)  # what is printed can be pasted
        with pytest.raises(AssertionError):
            names[f"test_seed_{seed}"]()
    assert printed.count("Write(") + printed.count("Batch(") <= 3
    assert printed.count("=") < 40


def test_a_deadlock_is_seen():
    deadlocks = set()
    for seed in range(30):
        scheduler = Scheduler(random.Random(seed), switching=0.5)
        first, second = SimulatedLock(), SimulatedLock()

        def take(one, other):
            with one, other:
                pass

        scheduler.spawn("a", lambda take=take, one=first, other=second: take(one, other))
        scheduler.spawn("b", lambda take=take, one=second, other=first: take(one, other))
        try:
            scheduler.run()
        except Deadlock:
            deadlocks.add(seed)
    assert 0 < len(deadlocks) < 30
