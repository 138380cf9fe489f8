"""Piles of damaged directories, and what is made of them: `python -m tests.interop.piles --rounds 100 --seed 1`."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.interop.piles import judge


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.interop.piles", description=judge.__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has the next one")
    parser.add_argument("--brokers", type=int, default=20, help="a broker in every so many rounds; 0: none")
    chosen = vars(parser.parse_args())
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # revive syncs all that it writes
    with tempfile.TemporaryDirectory(prefix="kafkafs-piles-", dir=memory) as directory:
        for line in judge.run(Path(directory), **chosen):
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201
    sys.exit(" 0 with disagreements" not in line)


if __name__ == "__main__":
    main()
