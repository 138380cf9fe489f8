"""Messages in Avro through a mount: decoded.jsonl beside jsonl of the same messages, which has their values as base64.

"Cold" and "warm" are as in through_mount.py. The messages are those of decoding.py's schema of 12 fields.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from storage.format.block import RecordColumns
from tests.bench.case import Context, say
from tests.bench.data import BATCH_BYTES, CACHE, CHUNK, START_MS, SegmentWriter
from tests.bench.decoding import SCHEMAS, Columns, avro_rows, order
from tests.bench.measure import Row
from tests.bench.noop_fuse import cat_seconds
from tests.bench.through_mount import fresh, warm_page_cache

SCHEMA_ID = 1


def measure(context: Context) -> None:
    log_dir, schemas = _made(context.messages)
    warm_page_cache(log_dir, "avro-0")
    for _ in range(context.runs):
        for kind, peer in (("jsonl", ""), ("decoded.jsonl", "jsonl of Avro")):
            with fresh(log_dir, None, "--schemas", str(schemas)) as tree:
                file = tree.path / "avro" / "0" / f"messages.{kind}"
                for state in ("cold", "warm"):
                    compare = (f"{peer} {state}",) if peer else ()
                    row = Row(f"{kind} of Avro {state}", f"cat MNT/avro/0/messages.{kind} >/dev/null", compare=compare)
                    row.messages = context.messages
                    context.report.add(row, cat_seconds(file))
                    row.bytes = file.stat().st_size


def _made(count: int) -> tuple[Path, Path]:
    """A log directory with the one partition avro/0, and the directory of its schema; kept as data.make keeps its."""
    target = CACHE / f"avro-{count}"
    if not target.exists():
        say("data: avro-0")
        partial = CACHE / f"partial-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        _write(partial / "logs" / "avro-0", count)
        (partial / "schemas").mkdir()
        (partial / "schemas" / f"{SCHEMA_ID}.avsc").write_text(SCHEMAS[SCHEMA_ID].text)
        partial.rename(target)
    return target / "logs", target / "schemas"


def _write(directory: Path, count: int) -> None:
    rows = avro_rows(SCHEMA_ID, order, count)
    writer, out = SegmentWriter(directory), memoryview(bytearray(BATCH_BYTES))
    for first in range(0, count, CHUNK):
        values = Columns.of(rows[first : first + CHUNK])
        used = len(values.lengths)
        columns = RecordColumns(
            buffer=values.buffer,
            value_start=values.starts,
            value_length=values.lengths,
            timestamp=np.arange(START_MS + first, START_MS + first + used, dtype=np.int64),
        )
        writer.append_records(columns, used, first, out)
    writer.close()
