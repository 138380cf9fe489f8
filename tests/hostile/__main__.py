"""`python -m tests.hostile --minutes 60`: new seeds until the time is over; `--seed N` repeats one."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.trial import load_modules, run_seed

_ONE_MOUNT_IN = 40


def say(text):
    """Prints at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--mount", action="store_true", help="with --seed: the seed's mount, not its commands")
    given = parser.parse_args()
    load_modules()
    end = time.monotonic() + 60 * given.minutes
    seeds = calls = faults = most = 0
    while seeds == 0 or (given.seed is None and time.monotonic() < end):
        seed = random.SystemRandom().randrange(2**40) if given.seed is None else given.seed
        mounts = given.mount if given.seed is not None else seeds % _ONE_MOUNT_IN == 0
        result = run_seed(seed, Path(tempfile.mkdtemp(prefix="kafkafs-hostile-")), mounts=mounts)
        seeds, calls, faults = seeds + 1, calls + result.calls, faults + len(result.faults)
        most = max(most, result.most_rss_bytes)
        for fault in result.faults:
            say(f"seed {seed}{' --mount' if mounts else ''} ({', '.join(result.made)}): {fault}")
    say(f"{seeds} directories, {calls} commands and mounts, {faults} faults, {most >> 20} MiB at most")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
