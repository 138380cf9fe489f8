"""Programs that do random work with real brokers for hours. The module of each says what it does, and what must hold.

python -m tests.interop turns --rounds 20 --seed 5
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.interop import failovers, three_nodes, turns

PROGRAMS = {"turns": turns, "failovers": failovers, "three_nodes": three_nodes}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=20, help="of turns and failovers")
    parser.add_argument("--ways", default=",".join(three_nodes.WAYS), help="in which three_nodes revives")
    parser.add_argument("--seed", type=int, default=1)
    chosen = vars(parser.parse_args())
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # of brokers that were killed
    with tempfile.TemporaryDirectory() as directory:
        for line in PROGRAMS[chosen.pop("program")].run(Path(directory), **chosen):
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
