"""Arrow batches in Python: beside decoding alone, and DuckDB over a scan beside DuckDB over the same messages as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import duckdb

import kafkafs
from kafkafs.arrow.scan import Scan
from tests.bench import data
from tests.bench.case import Context, say
from tests.bench.measure import Row, call_seconds

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
            row = Row(name, "for batch in scan", bytes=size, messages=count, note="CPU", compare=(FLOOR,))
            context.report.add(row, cpu_seconds(call))
    say("DuckDB")
    _duckdb(context, keyed["keyed"].scan())


def _duckdb(context: Context, scan: Scan) -> None:
    first = data.START_MS + context.messages // 2
    times = f"epoch_ms(timestamp) BETWEEN {first} AND {first + context.messages // 100}"
    times = f"timestamp BETWEEN make_timestamptz({first}000) AND make_timestamptz({first + context.messages // 100}000)"
    grouped = "SELECT key, count(*) FROM messages GROUP BY key"
    within = f"SELECT count(*), max(timestamp) FROM messages WHERE {times}"
    lines = Path(context.log_dir) / "keyed.jsonl"
    with lines.open("w") as out:
        for batch in scan:
            for key, stamp in zip(batch.column("key"), batch.column("timestamp"), strict=True):
                out.write(f'{{"key":"{key.as_py().decode()}","timestamp":{stamp.value}}}\n')
    peer = "DuckDB's read_json, GROUP BY key"
    as_json = f"SELECT key, count(*) FROM read_json('{lines}') GROUP BY key"
    for _ in range(context.runs):
        for name, query in (("DuckDB, GROUP BY key", grouped), ("DuckDB, 1 % of the time", within), (peer, as_json)):
            row = Row(name, query, messages=context.messages, compare=(peer,))
            context.report.add(row, call_seconds(lambda query=query: ask(scan, query)))
    lines.unlink()
