"""What operators run over many gigabytes: `verify` beside Kafka's DumpLogSegments.

The data are copies of the one large segment, one after the other by their offsets. Files are read once before, so that
they are in the page cache; a row of pread alone says what that costs.
"""

import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from storage.verify.verify import verify_log_dir
from tests.bench.data import CACHE
from tests.bench.measure import Row, run_seconds
from tests.bench.scale import write_large
from tests.interop.kafka import HAVE_KAFKA, java

GIB = 1 << 30
WINDOW = 4 << 20


@contextmanager
def large(context, size_bytes):
    """A log directory with the one partition large/0 of about `size_bytes`, and its .log files."""
    log_dir = context.log_dir
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checking-") as temporary:
        path = Path(temporary) / "all"
        write_large(path / "large-0", log_dir / "plain-0", context.messages, size_bytes)
        (path / "large-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
        yield path, sorted((path / "large-0").glob("*.log"))


def pread_seconds(files):
    """All bytes once into the same buffer: processor seconds."""
    buffer = bytearray(WINDOW)
    start = time.process_time()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        position = 0
        while count := os.preadv(descriptor, [buffer], position):
            position += count
        os.close(descriptor)
    return time.process_time() - start


def verify_seconds(path):
    """A check of all there is, on one core: processor seconds."""
    start = time.process_time()
    assert verify_log_dir(path, workers=1) == []
    return time.process_time() - start


def verify(context):
    """A gigabyte, in process on one core; the whole program beside Kafka's, with segments' batches and with records."""
    with large(context, GIB) as (path, files):
        size = sum(file.stat().st_size for file in files)
        messages = len(files) * context.messages
        half = path.parent / "one" / "large-0"
        half.mkdir(parents=True)
        for file in files[0].parent.glob(files[0].stem + ".*"):
            (half / file.name).hardlink_to(file)
        (half / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        (half.parent / ".kafka_cleanshutdown").write_text("{}")
        rows = {
            "pread of 1 GiB, one core": (lambda: pread_seconds(files), "processor seconds; the floor"),
            "verify of 1 GiB, one core": (lambda: verify_seconds(path), "processor seconds; CRCs, records, indexes"),
        }
        for _ in range(context.runs):
            for name, (work, note) in rows.items():
                row = Row(name, bytes=size, messages=messages, note=note, compare=("pread of 1 GiB, one core",))
                context.report.add(row, work())
        # Of the deep pass one segment: it takes a minute for two.
        for where, what, options, runs in (
            (path, "1 GiB", [], context.runs),
            (half.parent, "one segment", ["--deep-iteration", "--print-data-log"], 1),
        ):
            logs = sorted((where / "large-0").glob("*.log"))
            size = sum(file.stat().st_size for file in logs)
            tool = "org.apache.kafka.tools.DumpLogSegments"
            dump = java(tool, "--files", ",".join(map(str, logs)), *options, heap="512m")
            name = f"DumpLogSegments {'deep' if options else 'shallow'}, {what}"
            ours = [sys.executable, "-m", "kafkafs", "verify", str(where), "large"]
            for _ in range(runs):
                row = Row(f"kafkafs verify, {what}", f"kafkafs verify DIR  # {what}", bytes=size)
                context.report.add(row, run_seconds(ours))
                if HAVE_KAFKA:
                    command = f"DumpLogSegments --files … {' '.join(options)}".strip()
                    row = Row(name, command, bytes=size, compare=(f"kafkafs verify, {what}",))
                    context.report.add(row, run_seconds(dump))
