"""The command: see the package."""

import argparse
import gc
import logging
import os
import random
import sys
import time
import traceback

from tests.simulation import mutations, runs, shrinking
from tests.simulation.drawing import draw

_REPORT_S = 60  # of a long search


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, help="from this one on; by default a fresh number")
    parser.add_argument("--minutes", type=float, help="as long as this, however many")
    parser.add_argument("--steps", action="store_true", help="print every step")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first failure")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="reduce a failing seed, and print it as a test")
    parser.add_argument("--mutations", nargs="*", metavar="NAME", help="plant faults: which seed finds each of them")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names come in the same order each time
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    if not given.steps:
        logging.disable()
    if given.mutations is not None:
        return mutations.run(given.mutations, given.seeds, given.first or 1)
    with runs.simulation():
        if given.shrink is not None:
            return shrinking.shrink(given.shrink)
        first = given.first if given.first is not None else random.SystemRandom().randrange(1 << 40)
        seeds = range(first, first + (1 << 40 if given.minutes else given.seeds))
        if given.seed is not None:
            seeds = [given.seed]
        until = time.monotonic() + given.minutes * 60 if given.minutes else None
        return _search(seeds, until, steps=given.steps, go_on=given.go_on)


def _search(seeds, until, *, steps, go_on):
    total = runs.Figures()
    total.update(seeds=0, failed=0)
    start = reported = time.monotonic()
    gc.disable()  # a tenth of the time; a world's rest is collected now and then
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        figures = runs.Figures()
        error = runs.failure_of(figures, draw(seed), trace=print if steps else None)
        if error is not None:
            figures["failed"] = 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
            if not go_on:
                traceback.print_exception(error)
        total.update(figures, seeds=1)
        if total["seeds"] % 20 == 0:
            gc.collect()
        if total["failed"] and not go_on:
            break
        if until is not None and time.monotonic() > reported + _REPORT_S:
            reported = time.monotonic()
            _print_figures(seeds[0], total, reported - start)
    _print_figures(seeds[0], total, time.monotonic() - start)
    return 1 if total["failed"] else 0


def _print_figures(first, total, seconds):
    print(f"from seed {first}: {dict(total)}, {seconds:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
