"""Make the data, take the times, print a table. Asserts nothing: figures are for reading.

    python -m tests.bench [--messages N] [--runs 5] [--only process,mount,broker,many,large] [--gigabytes 10]

The data go to the cache directory (KAFKAFS: XDG_CACHE_HOME/kafkafs/bench) and are kept; --clean removes them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tests.bench import broker, data, in_process, scale, through_mount
from tests.bench.measure import Report, machine

CASES = ("process", "mount", "broker", "many", "large")


def main() -> None:
    # With it each start would compile every module again, which is not how programs are installed.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=data.MESSAGES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--gigabytes", type=float, default=10, help="size of the large partition")
    parser.add_argument("--clean", action="store_true", help="remove the data and stop")
    arguments = parser.parse_args()
    if arguments.clean:
        shutil.rmtree(data.CACHE, ignore_errors=True)
        return
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(CASES):
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    messages, runs = arguments.messages, arguments.runs
    size = messages * (data.VALUE_BYTES + 1)
    on = machine()
    for partition in data.PARTITIONS:
        say(f"data: {partition}")
        log_dir = data.make(partition, messages)
    report = Report()
    if "process" in chosen:
        say("decoding in process")
        in_process.measure(report, log_dir, messages, runs)
    if "mount" in chosen:
        say("through a mount")
        through_mount.measure(report, log_dir, messages, runs, size)
    if "broker" in chosen:
        say("from a broker")
        broker.measure(report, messages, runs, size)
    if "many" in chosen:
        say("many partitions")
        scale.many_partitions(report, runs)
    if "large" in chosen:
        say("a large partition")
        scale.large_partition(report, log_dir, messages, size, arguments.gigabytes)
    sys.stdout.write(
        f"{messages:,} messages of {data.VALUE_BYTES} bytes, {runs} runs each, in one go.\n{on}\n\n"
        f"{report.markdown()}\n\nRatios are of medians. Commands:\n\n{report.commands()}\n"
    )


def say(what: str) -> None:
    sys.stderr.write(f"== {what}\n")


if __name__ == "__main__":
    main()
