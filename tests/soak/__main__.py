"""python -m tests.soak --minutes N [--broker]: see the package."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import Plan, soak


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - a command for people


def main(arguments):
    """Exit code 1 if anything was lost, doubled, invented, out of order or wrong in a view."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--broker", action="store_true", help="a live broker whose directory a read-only mount follows")
    parser.add_argument("--kills", type=int, help="of the mount; by default one every two minutes")
    parser.add_argument("--per-second", type=float, default=40, help="lines of each of the eight writers")
    parser.add_argument("--directory", type=Path, help="where the log directory is; by default a temporary one")
    given = parser.parse_args(arguments)
    kills = max(int(given.minutes / 2), 1) if given.kills is None else given.kills
    plan = Plan(given.minutes * 60, kills, broker=given.broker, per_second=given.per_second)
    say(f"{plan}")
    with tempfile.TemporaryDirectory(dir=given.directory) as temporary:
        report = soak(Path(temporary), plan, say)
    say(f"the end\n{report}")
    return 0 if report.is_sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
