"""Scans of a log's files with Spark, by turns with its own Kafka source on a broker that holds the same messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kafkafs.spark.options import parse
from kafkafs.spark.source import BatchReader
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from tests.bench import broker, data
from tests.bench.case import Context
from tests.bench.measure import Row, bytes_read, call_seconds
from tests.bench.spark import by_turns, job
from tests.interop.kafka import HAVE_KAFKA
from tests.interop.spark_kafka import HAVE_SPARK_KAFKA, PYTHON, jars

PARTITIONS, SEGMENTS, TOPICS = 1_000, 100, 100
PEER = "Spark's Kafka source, scan"
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}


class Scan(NamedTuple):
    """A row of the report: count(*) and sum(length(value)) of what these options give."""

    name: str
    source: str
    options: Mapping[str, str]
    compare: tuple[str, ...] = ()
    conf: Mapping[str, str] = {}
    cores: int = 2
    ready: tuple[str, ...] = ()  # Spark's part alone: batches of these columns that a source has ready


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def measure_scan(context: Context) -> None:
    """All columns, values alone, over Unix sockets, on one core; then planning, and a range of one segment."""
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
    _by_turns(
        context,
        [
            Scan("Spark scan, beside its floor", "kafkafs", files),
            Scan("Spark's part of a scan", "Ready", {}, ("Spark scan, beside its floor",), ready=COLUMNS),
            Scan("Spark scan, columns=value, beside its floor", "kafkafs", values),
            Scan(
                "Spark's part, columns=value", "Ready", {}, ("Spark scan, columns=value, beside its floor",),
                ready=("value",),
            ),
        ],
    )  # fmt: skip
    _by_turns(
        context,
        [
            Scan("Spark scan, Unix sockets", "kafkafs", files, (PEER,), UNIX_SOCKETS),
            Scan("Spark scan, Unix sockets, columns=value", "kafkafs", values, (PEER,), UNIX_SOCKETS),
        ],
    )
    # Of one pair of turns: what another minute of the machine gives is no comparison.
    alone = "Spark scan, no broker beside it"
    _by_turns(
        context,
        [Scan(alone, "kafkafs", files), Scan("Spark scan, one core", "kafkafs", files, (alone,), cores=1)],
    )
    _plan(context)
    _one_segment(context)


def _by_turns(context: Context, scans: Sequence[Scan]) -> None:
    """Each has a Spark and so many processors of its own, and rests while the others run."""
    processors = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        jobs = []
        for scan in scans:
            given = {"job": "scan", "source": scan.source, "options": scan.options, "messages": context.messages}
            if scan.ready:
                given |= {"job": "ready scan", "columns": scan.ready}
            given |= {"conf": scan.conf, "master": f"local[{scan.cores}]", "processors": processors[: scan.cores]}
            shown = f"spark.read.format({scan.source!r}).load().agg(count('*'), sum(length('value')))"
            row = Row(scan.name, shown, bytes=context.size, messages=context.messages, compare=scan.compare)
            python, extra = (PYTHON, {"jars": jars()}) if scan.source == "kafka" else (sys.executable, {})
            jobs.append((row, stack.enter_context(job(python, {**given, **extra}))))
        by_turns(context, jobs)


def _plan(context: Context) -> None:
    """From a directory to tasks, in a process that has opened nothing of it; each segment is one batch."""
    with tempfile.TemporaryDirectory(dir=data.CACHE, prefix="plan-") as temporary:
        model, log_dir = Path(temporary, "model"), Path(temporary, "log")
        model.mkdir()
        log_dir.mkdir()
        for segment in range(SEGMENTS):
            batch = encode_batch([Record(None, b"m" * 8_000, (), data.START_MS + segment)], base_offset=segment)
            for suffix, content in ((".log", batch), (".index", b""), (".timeindex", b"")):
                (model / f"{segment:020}{suffix}").write_bytes(content)
        names = list(model.iterdir())
        for number in range(PARTITIONS):
            directory = log_dir / f"topic-{number % TOPICS:03}-{number // TOPICS}"
            directory.mkdir()
            for file in names:
                (directory / file.name).hardlink_to(file)
        program = (
            "import time; from kafkafs.spark.options import parse; from kafkafs.spark.source import BatchReader; "
            f"options = parse({{'path': {str(log_dir)!r}, 'subscribePattern': '.*'}}); "
            "start = time.perf_counter(); tasks = BatchReader(options, 2).partitions(); "
            "print(time.perf_counter() - start, len(tasks))"
        )
        for _ in range(context.runs):
            done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
            taken, tasks = done.stdout.split()
            note = f"{PARTITIONS:,} partitions, {PARTITIONS * SEGMENTS:,} segments, {tasks} tasks"
            row = Row("Spark plan", "BatchReader(options, cores=2).partitions()", note=note)
            context.report.add(row, float(taken))


def _one_segment(context: Context) -> None:
    """What a range of one segment of several starts and reads."""
    logs = sorted((context.log_dir / "sealed-0").glob("*.log"))
    if len(logs) < 3:
        return
    start, end = (int(log.stem) for log in logs[1:3])
    bounds = {"startingOffsets": start, "endingOffsets": end}
    texts = {name: json.dumps({"sealed": {"0": offset}}) for name, offset in bounds.items()}
    reader = BatchReader(parse({"path": str(context.log_dir), "subscribe": "sealed", **texts}), 2)
    for _ in range(context.runs):
        before = bytes_read(os.getpid())
        tasks = reader.partitions()
        taken = call_seconds(lambda tasks=tasks: [len(batch) for task in tasks for batch in reader.read(task)])
        read = bytes_read(os.getpid()) - before
        note = f"{len(tasks)} tasks, {read / 1e6:.1f} MB read, the segment has {logs[1].stat().st_size / 1e6:.1f}"
        context.report.add(Row("Spark's tasks, one segment", "reader.read(task)", note=note), taken)
