"""Fuzzes the kernels: python -m tests.sanitizers.fuzz --tree DIR [--seconds N] [--seed N] [--only NAME]
[--replay NAME SEED].

`DIR` holds the packages with kernels built by `build.py`; run.sh sets up the rest. A fault ends the process by itself,
with the sanitizer's report; the case that it happened in is left in DIR/case, in the form that --replay takes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time
from pathlib import Path

from storage.types import is_compiled
from tests.sanitizers.build import extension_modules
from tests.sanitizers.targets import KERNEL_TARGETS, TARGETS
from tests.support.fixtures import ROOT


def check_kernels(tree, names):
    """Every kernel comes from `tree`, compiled, and has a target: a new kernel without one is an error."""
    for name in names:
        module = importlib.import_module(name)
        origin = Path(module.__file__ or "")
        if not origin.is_relative_to(tree) or not is_compiled(module):
            sys.exit(f"{name} is not the sanitized build but {origin}")
        if name not in KERNEL_TARGETS:
            sys.exit(f"no fuzz target for {name}: add one to tests/sanitizers/targets.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--replay", nargs=2, metavar=("NAME", "SEED"))
    options = parser.parse_args()
    check_kernels(options.tree, list(extension_modules(ROOT)))
    if options.replay:
        name, seed = options.replay
        TARGETS[name](random.Random(int(seed)))
        return
    chosen = {options.only: TARGETS[options.only]} if options.only else TARGETS
    case = os.open(options.tree / "case", os.O_CREAT | os.O_WRONLY)
    counts = dict.fromkeys(chosen, 0)
    dice = random.Random(options.seed)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        for name, target in chosen.items():
            seed = dice.randrange(2**32)
            os.pwrite(case, f"{name} {seed}".ljust(80).encode(), 0)  # before: a fault leaves no time afterwards
            target(random.Random(seed))
            counts[name] += 1
    sys.stdout.write(f"no fault in {sum(counts.values())} cases, seed {options.seed}: {counts}\n")


if __name__ == "__main__":
    main()
