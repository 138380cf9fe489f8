"""Jobs on Spark, each against Spark's own Kafka source on a broker that holds the same messages."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench import broker
from tests.bench.case import say
from tests.bench.data import CACHE, VALUE_BYTES
from tests.bench.measure import Row
from tests.interop.client import Client
from tests.interop.kafka import HAVE_KAFKA, Broker
from tests.interop.spark_kafka import HAVE_SPARK_KAFKA, PYTHON, jars

# Spark's compiled code and ours are slow when they are first used.
WARM_UPS = int(os.environ.get("KAFKAFS_BENCH_WARM_UPS", "10"))


class Job:
    """A job in a process of its own (spark_job.py), ready to be run again and again."""

    def __init__(self, process):
        self._process = process

    def seconds(self):
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
def job(python, given):
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


def by_turns(context, jobs):
    """Each once, and again, so that all have the same minutes of the machine; the first runs are not counted."""
    for run in range(-WARM_UPS, context.runs):
        for row, one in jobs:
            seconds = one.seconds()
            if run < 0:
                say(f"warming up: {row.name} {seconds:.2f} s")
            else:
                context.report.add(row, seconds)


def measure_export(context):
    """Export to Parquet of all messages, by turns with Spark's Kafka source → write.parquet, and with our stream →
    Spark's file sink."""
    if not (HAVE_KAFKA and HAVE_SPARK_KAFKA):
        say("no Kafka, or no Spark Kafka source: nothing to measure")
        return
    served = broker.serving(context.messages)
    targets = CACHE / f"exports-{os.getpid()}"
    peer = {"job": "kafka export", "broker": served.address, "topic": broker.TOPIC, "jars": jars()}
    own = {"job": "kafkafs export", "log_dir": str(served.log_dir), "topic": broker.TOPIC}
    rows = (
        ("Spark Kafka source, export", 'read.format("kafka")….write.parquet(DIR)'),
        ("spark export", "kafkafs spark export LOGDIR DIR plain"),
        ("Spark file sink", 'readStream.format("kafkafs")….partitionBy("topic", "day").trigger(availableNow=True)'),
    )
    try:
        jobs = (peer, own, {**own, "job": "file sink"})
        given = tuple({**one, "target": str(targets / one["job"].replace(" ", "-"))} for one in jobs)
        _peer_and_ours(context, context.messages, rows, given)
    finally:
        served.kill()
        shutil.rmtree(targets, ignore_errors=True)


def measure_sink(context):
    """Appending a fifth of the messages with each run, by turns with Spark's Kafka sink and a broker, and with a sink
    in Python that drops them: no such sink takes less."""
    if not (HAVE_KAFKA and HAVE_SPARK_KAFKA):
        say("no Kafka, or no Spark Kafka sink: nothing to measure")
        return
    messages = context.messages // 5
    directory = CACHE / f"sink-{os.getpid()}"
    served = Broker(directory / "broker", quick_jvm=False).start()
    peer = {"job": "kafka write", "broker": served.address, "jars": jars()}
    own = {"job": "kafkafs write", "log_dir": str(directory / "log")}
    rows = (
        ("Spark Kafka sink", 'write.format("kafka").save()'),
        ("Spark sink", 'write.format("kafkafs").save(LOGDIR)'),
        ("Python sink that drops all", "DataSourceArrowWriter"),
    )
    try:
        Client(served.address).create_topic("sink")
        create = ["topics", "create", str(directory / "log"), "sink"]
        subprocess.run([sys.executable, "-m", "kafkafs", *create], check=True)
        jobs = (peer, own, {"job": "dropping write"})
        given = tuple({**one, "topic": "sink", "messages": messages} for one in jobs)
        _peer_and_ours(context, messages, rows, given)
    finally:
        served.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _peer_and_ours(context, messages, rows, given):
    """Runs Spark's own job and ours by turns. `rows`: the name of each, and what is shown of it; the peer first."""
    size = messages * (VALUE_BYTES + 1)
    with ExitStack() as stack:
        jobs = []
        for number, ((name, shown), one) in enumerate(zip(rows, given, strict=True)):
            compare = (rows[0][0],) if number else ()
            row = Row(name, shown, bytes=size, messages=messages, compare=compare)
            jobs.append((row, stack.enter_context(job(sys.executable if number else PYTHON, one))))
        by_turns(context, jobs)
