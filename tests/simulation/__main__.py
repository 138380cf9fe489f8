"""The command: see the package."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback

from tests.simulation import runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, help="from this one on; by default a fresh number")
    parser.add_argument("--minutes", type=float, help="as long as this, however many")
    parser.add_argument("--steps", action="store_true", help="print every step")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first failure")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names come in the same order each time
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    first = given.first if given.first is not None else random.SystemRandom().randrange(1 << 40)
    count = 1 << 40 if given.minutes else given.seeds
    seeds = [given.seed] if given.seed is not None else range(first, first + count)
    until = time.monotonic() + given.minutes * 60 if given.minutes else None
    total = {"seeds": 0, "steps": 0, "processes": 0, "kills": 0, "power losses": 0, "lines": 0, "failed": 0}
    faults: dict[str, int] = {}
    start = time.monotonic()
    with runs.simulation():
        for seed in seeds:
            if until is not None and time.monotonic() > until:
                break
            try:
                figures = runs.run(seed, print if given.steps else None)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                total["failed"] += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
                if not given.go_on:
                    traceback.print_exc()
                    break
                continue
            finally:
                total["seeds"] += 1
            total["steps"] += figures.steps
            total["processes"] += figures.processes
            total["kills"] += figures.kills
            total["power losses"] += figures.power_losses
            total["lines"] += figures.lines
            for kind, count in figures.faults.items():
                faults[kind] = faults.get(kind, 0) + count
    seconds = time.monotonic() - start
    print(f"from seed {seeds[0]}: {total}, faults {faults}, {seconds:.1f} s")  # noqa: T201
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
