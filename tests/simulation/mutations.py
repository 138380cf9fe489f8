"""Does the simulation find the planted faults, and which seed is the first that does? A fault that no seed finds shows
a program or a check that is missing.
"""

import time

import pytest

from tests.simulation import runs
from tests.simulation.drawing import draw
from tests.simulation.planted import FAULTS, plant


def run(names, seeds, first):
    """Plants these faults (all, without names), prints a line for each; 1 when one was not found."""
    if unknown := set(names) - FAULTS.keys():
        print(f"no such fault: {', '.join(sorted(unknown))}. There are: {', '.join(FAULTS)}")  # noqa: T201
        return 2
    missed = 0
    print(f"{'fault':<36} {'seed':>6} {'s':>6}  found as", flush=True)  # noqa: T201
    for name in names or FAULTS:
        start = time.monotonic()
        with runs.simulation(), pytest.MonkeyPatch.context() as patch:
            plant(patch, name)
            seed, failure = _first_failure(range(first, first + seeds))
        missed += seed is None
        seconds = time.monotonic() - start
        print(f"{name:<36} {seed or '-':>6} {seconds:>6.1f}  {failure[:100]}", flush=True)  # noqa: T201
    print(f"{missed} not found within {seeds} seeds from {first} on")  # noqa: T201
    return 1 if missed else 0


def _first_failure(seeds):
    for seed in seeds:
        error = runs.failure_of(runs.Figures(), draw(seed))
        if error is not None:
            return seed, f"{type(error).__name__}: {error}"
    return None, ""
