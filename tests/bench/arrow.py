"""Arrow batches in Python, beside decoding alone; and DuckDB over a scan, beside DuckDB over the messages as JSON."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb

import kafkafs
from kafkafs.arrow.scan import Scan
from tests.bench import data
from tests.bench.case import Context, say
from tests.bench.measure import Row, call_seconds, run_seconds
from tests.support.mounts import KAFKAFS

FLOOR = "decoding alone, CPU"


def cpu_seconds(call: Callable[[], object]) -> float:
    """Of all threads: rates are for one core, whatever else the machine does."""
    start = time.process_time()
    call()
    return time.process_time() - start


def read(scan: Scan) -> None:
    for batch in scan:
        assert batch.num_rows


def decode(scan: Scan) -> None:
    for _, block in scan.blocks():
        assert len(block)


def ask(scan: Scan, query: str) -> list[object]:
    """An answer of DuckDB with a connection of its own."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.register("messages", scan.to_dataset())
        return connection.execute(query).fetchall()


def measure(context: Context) -> None:
    """CPU seconds of scans with all columns and with values alone; wall times of DuckDB's queries."""
    count, size = context.messages, context.size
    log, keyed = (kafkafs.open(data.make(partition, count)) for partition in ("plain-0", data.KEYED))
    cases: list[tuple[str, Callable[[], None]]] = [
        (FLOOR, lambda: decode(log["plain"].scan())),
        ("to Arrow, all columns", lambda: read(log["plain"].scan())),
        ("to Arrow, value alone", lambda: read(log["plain"].scan(columns="value"))),
        ("to Arrow, all columns, keys", lambda: read(keyed["keyed"].scan())),
    ]
    for _ in range(context.runs):
        for name, call in cases:
            row = Row(
                name,
                "for batch in scan",
                bytes=size,
                messages=count,
                note="CPU",
                compare=() if name == FLOOR else (FLOOR,),
            )
            context.report.add(row, cpu_seconds(call))
    say("DuckDB")
    _duckdb(context, keyed["keyed"].scan())


def _duckdb(context: Context, scan: Scan) -> None:
    first = data.START_MS + context.messages // 2
    span = f"make_timestamptz({first}000) AND make_timestamptz({first + context.messages // 100}000)"
    within = f"SELECT count(*), max(timestamp) FROM messages WHERE timestamp BETWEEN {span}"
    grouped = "SELECT key, count(*) FROM {} GROUP BY key"
    peer = "DuckDB's read_json, GROUP BY key"
    command = [*KAFKAFS, "sql", str(data.make(data.KEYED, context.messages))]
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory) / "messages.jsonl"
        with lines.open("wb") as out:
            cat = [sys.executable, "-m", "kafkafs", "cat", str(context.log_dir), "keyed", "--format", "jsonl"]
            subprocess.run(cat, stdout=out, check=True)
        cases = [
            ("DuckDB, GROUP BY key", grouped.format("messages")),
            ("DuckDB, 1 % of the time", within),
            (peer, grouped.format(f"read_json('{lines}')")),
        ]
        for _ in range(context.runs):
            for name, query in cases:
                row = Row(name, query, messages=context.messages, compare=(peer,))
                context.report.add(row, call_seconds(partial(ask, scan, query)))
            query = within.replace("messages", "keyed")
            row = Row("kafkafs sql, 1 % of the time", "kafkafs sql LOGDIR QUERY", note="whole command", compare=(peer,))
            context.report.add(row, run_seconds([*command, query]))
