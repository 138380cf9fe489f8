"""The command: see the package."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import time
import traceback

from tests.simulation import mutations, runs, shrinking

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
    if given.mutations is not None:
        return mutations.run(given.mutations, given.seeds, given.first or 1)
    if given.shrink is not None:
        with runs.simulation():
            return shrinking.shrink(given.shrink)
    first = given.first if given.first is not None else random.SystemRandom().randrange(1 << 40)
    count = 1 << 40 if given.minutes else given.seeds
    seeds = [given.seed] if given.seed is not None else range(first, first + count)
    until = time.monotonic() + given.minutes * 60 if given.minutes else None
    return _search(seeds, until, steps=given.steps, go_on=given.go_on)


def _search(seeds, until, *, steps, go_on):
    total = dict.fromkeys(
        ("seeds", "steps", "processes", "kills", "power losses", "flipped bits", "lines", "failed"), 0
    )
    faults = {}
    start, first = time.monotonic(), None
    reported = start
    gc.disable()  # a tenth of the time; a world's rest is collected now and then
    if not steps:
        logging.disable()
    with runs.simulation():
        for seed in seeds:
            first = seed if first is None else first
            if until is not None and time.monotonic() > until:
                break
            figures = runs.Figures(seed)
            try:
                runs.run_seed_into(figures, seed, print if steps else None)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                total["failed"] += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
                if not go_on:
                    traceback.print_exc()
            total["seeds"] += 1
            if total["seeds"] % 20 == 0:
                gc.collect()
            total["steps"] += figures.steps
            total["processes"] += figures.processes
            total["kills"] += figures.kills
            total["power losses"] += figures.power_losses
            total["flipped bits"] += figures.rots
            total["lines"] += figures.lines
            for kind, times in figures.faults.items():
                faults[kind] = faults.get(kind, 0) + times
            if total["failed"] and not go_on:
                break
            if until is not None and time.monotonic() > reported + _REPORT_S:
                reported = time.monotonic()
                _print_figures(first, total, faults, reported - start)
    _print_figures(first, total, faults, time.monotonic() - start)
    return 1 if total["failed"] else 0


def _print_figures(first, total, faults, seconds):
    print(f"from seed {first}: {total}, faults {faults}, {seconds:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
