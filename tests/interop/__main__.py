"""Programs that do random work with real brokers for hours. The module of each says what it does, and what must hold.

python -m tests.interop turns --rounds 20 --seed 5
python -m tests.interop differential --logs 300 --damages 300 --seed 7
python -m tests.interop piles --rounds 300 --seed 1
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

from tests.interop import differential, failovers, predictions, three_nodes, turns
from tests.interop.piles import judge as piles

PROGRAMS = {
    "differential": differential,
    "turns": turns,
    "failovers": failovers,
    "three_nodes": three_nodes,
    "predictions": predictions,
    "piles": piles,
}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=20, help="of turns, failovers, predictions and piles")
    parser.add_argument("--ways", default=",".join(three_nodes.WAYS), help="in which three_nodes revives")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=20, help="of piles: a broker in every so many rounds, 0: none")
    group = parser.add_argument_group("differential")
    group.add_argument("--logs", type=int, default=300)
    group.add_argument("--damages", type=int, default=300)
    group.add_argument("--now", type=int, help="epoch milliseconds that timestamps are relative to; default: now")
    group.add_argument("--keep", type=Path, help="a directory to be created, for looking at the files afterwards")
    group.add_argument("--only", default="", help="the partitions that differed, as d4-2,d17-0: the same logs again")
    chosen = vars(parser.parse_args())
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # of brokers that were killed
    with tempfile.TemporaryDirectory() as directory:
        for line in PROGRAMS[chosen.pop("program")].run(Path(directory), **chosen):
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
