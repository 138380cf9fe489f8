"""Make the data, take the times, print a table. Asserts nothing: figures are for reading.

    python -m tests.bench [--messages N] [--runs 5] [--only CASE,CASE…] [--gigabytes 10]

The data go to the cache directory (KAFKAFS: XDG_CACHE_HOME/kafkafs/bench) and are kept; --clean removes them.
"""

import argparse
import os
import shutil
import sys

from tests.bench import (
    arrow,
    backing_up,
    broker,
    checking,
    compact,
    data,
    decoding,
    in_process,
    keys,
    latest,
    own_topics,
    recovering,
    scale,
    spark,
    spark_scan,
    sql,
    through_mount,
    tier,
    writing,
)
from tests.bench.case import Context, say
from tests.bench.measure import Report, machine

# Name on the command line → what is said when it begins, and the case. In the order in which they run.
CASES = {
    "process": ("decoding in process", in_process.measure),
    "arrow": ("Arrow batches in Python", arrow.measure),
    "sql": ("SQL", sql.measure),
    "decoded": ("decoding by schemas", decoding.measure),
    "start": ("start of commands", through_mount.start),
    "mount": ("through a mount", through_mount.measure),
    "keys": ("finding a key", keys.measure),
    "broker": ("from a broker", broker.measure),
    "writing": ("writing through a mount, and to a broker", writing.measure),
    "recover": ("recovering", recovering.measure),
    "backup": ("mirroring, manifests and digests", backing_up.measure),
    "compact": ("compaction, beside a broker's cleaner", compact.measure),
    "latest": ("the last message of every key, beside the cleaner", latest.measure),
    "many": ("many partitions", scale.many_partitions),
    "spark": ("scans on Spark", spark_scan.measure_scan),
    "spark-export": ("export on Spark", spark.measure_export),
    "spark-sink": ("writing with Spark", spark.measure_sink),
    "large": ("a large partition", scale.large_partition),
    "first": ("the first open of a large partition", scale.first_open),
    "own": ("Kafka's own topics, beside its own tool", own_topics.measure),
    "tier": ("tiered storage, beside its libraries", tier.measure),
    "verify": ("verify, beside Kafka's own tool", checking.verify),
}


def main():
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
    data.CACHE.mkdir(parents=True, exist_ok=True)
    on = machine()
    context = Context(Report(), arguments.messages, arguments.runs, arguments.gigabytes)
    try:
        for name, (what, case) in CASES.items():
            if name in chosen:
                say(what)
                case(context)
    finally:  # what was measured before a case failed
        sys.stdout.write(
            f"{context.messages:,} messages of {data.VALUE_BYTES} bytes, {context.runs} runs each, in one go.\n{on}\n\n"
            f"{context.report.markdown()}\n\nRatios are of medians. Commands:\n\n{context.report.commands()}\n"
        )


if __name__ == "__main__":
    main()
