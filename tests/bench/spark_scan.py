"""Scans of a log's files with Spark, by turns with its own Kafka source on a broker that holds the same messages."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import NamedTuple

from tests.bench import broker
from tests.bench.measure import Row
from tests.bench.spark import by_turns, job
from tests.interop.kafka import HAVE_KAFKA
from tests.interop.spark_kafka import HAVE_SPARK_KAFKA, PYTHON, jars

PEER = "Spark's Kafka source, scan"


class Scan(NamedTuple):
    """A row of the report: count(*) and sum(length(value)) of what these options give."""

    name: str
    source: str
    options: Mapping[str, str]
    compare: tuple[str, ...] = ()


def measure_scan(context):
    """All columns, and values alone."""
    files = {"path": str(context.log_dir), "subscribe": "plain"}
    values = {**files, "columns": "value"}
    ours = [
        Scan("Spark scan", "kafkafs", files, (PEER,)),
        Scan("Spark scan, columns=value", "kafkafs", values, (PEER,)),
    ]
    if HAVE_KAFKA and HAVE_SPARK_KAFKA:
        served = broker.serving(context.messages)
        try:
            # Two tasks, as there are two cores: without, one task reads the one partition.
            options = {"kafka.bootstrap.servers": served.address, "subscribe": broker.TOPIC, "minPartitions": "2"}
            _by_turns(context, [Scan(PEER, "kafka", options), *ours])
            served.stop()
        finally:
            served.kill()
    else:
        _by_turns(context, ours)


def _by_turns(context, scans):
    """Each has a Spark and two processors of its own, and rests while the others run."""
    processors = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        jobs = []
        for scan in scans:
            given = {"job": "scan", "source": scan.source, "options": scan.options, "messages": context.messages}
            given |= {"processors": processors[:2]}
            shown = f"spark.read.format({scan.source!r}).load().agg(count('*'), sum(length('value')))"
            row = Row(scan.name, shown, bytes=context.size, messages=context.messages, compare=scan.compare)
            python, extra = (PYTHON, {"jars": jars()}) if scan.source == "kafka" else (sys.executable, {})
            jobs.append((row, stack.enter_context(job(python, {**given, **extra}))))
        by_turns(context, jobs)
