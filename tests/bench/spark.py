"""Jobs on Spark, each against Spark's own Kafka source on a broker that holds the same messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.bench import broker
from tests.bench.case import Context, say
from tests.bench.data import CACHE
from tests.bench.measure import Row
from tests.interop.kafka import HAVE_KAFKA
from tests.interop.spark_kafka import HAVE_SPARK_KAFKA, PYTHON, jars

# Spark's compiled code and ours are slow when they are first used.
WARM_UPS = int(os.environ.get("KAFKAFS_BENCH_WARM_UPS", "10"))


class Job:
    """A job in a process of its own (spark_job.py), ready to be run again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self) -> float:
        """One run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the Spark job ended in an error, see above")
        return float(answer)


@contextmanager
def job(python: str | Path, given: Mapping[str, object]) -> Iterator[Job]:
    """Starts a job's process; ends it afterwards."""
    command = [str(python), str(Path(__file__).with_name("spark_job.py")), json.dumps(given)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Job(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def measure_export(context: Context) -> None:
    """Export to Parquet of all messages, by turns with Spark's Kafka source → write.parquet."""
    if not (HAVE_KAFKA and HAVE_SPARK_KAFKA):
        say("no Kafka, or no Spark Kafka source: nothing to measure")
        return
    served = broker.serving(context.messages)
    targets = CACHE / f"exports-{os.getpid()}"
    peer = {"job": "kafka export", "broker": served.address, "topic": broker.TOPIC, "jars": jars()}
    own = {"job": "kafkafs export", "log_dir": str(served.log_dir), "topic": broker.TOPIC}
    try:
        with (
            job(PYTHON, {**peer, "target": str(targets / "kafka")}) as kafka,
            job(sys.executable, {**own, "target": str(targets / "kafkafs")}) as kafkafs,
        ):
            for run in range(-WARM_UPS, context.runs):
                for name, one, shown, compare in (
                    ("Spark Kafka source, export", kafka, 'read.format("kafka")….write.parquet(DIR)', ()),
                    ("spark export", kafkafs, "kafkafs spark export LOGDIR DIR plain", ("Spark Kafka source, export",)),
                ):
                    seconds = one.seconds()
                    if run < 0:
                        say(f"warming up: {name} {seconds:.2f} s")
                        continue
                    row = Row(name, shown, bytes=context.size, messages=context.messages, compare=compare)
                    context.report.add(row, seconds)
    finally:
        served.kill()
        shutil.rmtree(targets, ignore_errors=True)
