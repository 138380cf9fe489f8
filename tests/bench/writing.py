"""Writing through a mount, beside filesystems that throw all of it away or put it into a file as it is, and beside a
producer and its broker.

`cat` of lines, lines one by one to an open file, and a file opened for each line, as `echo >>` does. Nothing is synced,
as a broker does not.
"""

import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.bench.data import CACHE, VALUE_BYTES, lines
from tests.bench.measure import Row, run_seconds
from tests.bench.noop_fuse import SINK, noop_mount
from tests.interop.client import Client
from tests.interop.kafka import HAVE_KAFKA, Broker
from tests.support.mounts import mounted, run_kafkafs

LINE = b"x" * VALUE_BYTES + b"\n"
# Lines one by one, and files opened for one line each: fewer, for they take longer.
EACH = 40_000
OPENED = 10_000


@contextmanager
def appendable():
    """A new log directory with the topic t of one partition, mounted read-write: its mountpoint, the directory."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="writing-") as temporary:
        log_dir = Path(temporary) / "log"
        run_kafkafs("topics", "create", log_dir, "t", "--partitions", "1")
        with mounted(log_dir, Path(temporary) / "mnt", write=True) as tree:
            yield tree.path, log_dir


def cat_lines(file, messages):
    """Seconds that `cat lines > file` takes, the process's start included."""
    start = time.perf_counter()
    with file.open("ab", buffering=0) as out:
        subprocess.run(["cat", str(lines(messages))], stdout=out, check=True)
    return time.perf_counter() - start


def one_by_one(file, count):
    """Seconds for `count` writes of a line to one open file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, LINE)
        return time.perf_counter() - start
    finally:
        os.close(descriptor)


def opened_for_each(file, count):
    """Seconds for `count` times open, write of a line, close."""
    start = time.perf_counter()
    for _ in range(count):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, LINE)
        os.close(descriptor)
    return time.perf_counter() - start


def measure(context):
    """`messages` lines by cat; one by one and opened for each as many as above, or fewer if those are few."""
    messages, size, report = context.messages, context.size, context.report
    lines(messages)
    each, opened = min(EACH, messages // 10), min(OPENED, messages // 20)

    def take(point, name, file, note, compare=()):
        def row(what, command, count, *others):
            against = tuple(f"{what}, {other}" for other in compare)
            return Row(f"{what}, {name}", command, [], count * len(LINE), count, note, (*against, *others))

        report.add(
            row("cat lines", f"cat lines >> {point.name}/{file}", messages, *["kcat -P -l"] * bool(compare)),
            cat_lines(point / file, messages),
        )
        report.add(row("line by line", "os.write(fd, line) …", each), one_by_one(point / file, each))
        report.add(
            row("open, write, close", "os.open, os.write, os.close …", opened), opened_for_each(point / file, opened)
        )

    for _ in range(context.runs):
        with noop_mount(0) as point:
            take(point, "plain no-op", SINK, "fusepy as it is: direct_io, threads, big_writes")
        with noop_mount(0, lean=True) as point:
            take(point, "no-op", SINK, "what is written is not looked at: the floor")
        with tempfile.NamedTemporaryFile(dir=CACHE) as file, noop_mount(0, keep=Path(file.name)) as point:
            take(point, "kept", SINK, "the no-op, which also appends what is written to a file")
        with appendable() as (point, log_dir):
            take(point, "kafkafs", "t/0/@append", "", ("no-op", "kept", "plain no-op"))
            stored = sum(file.stat().st_size for file in (log_dir / "t-0").glob("*.log"))
            if stored < size:
                raise AssertionError(f"{stored} bytes of log for {size} bytes of lines")
    if HAVE_KAFKA:
        _produce(context)


def _produce(context):
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="writing-") as temporary:
        broker = Broker(Path(temporary), {"log.retention.ms": "-1"}, quick_jvm=False).start()
        try:
            client = Client(broker.address)
            for run in range(context.runs):
                client.create_topic(f"t{run}")
                command = ["kcat", "-P", "-b", broker.address, "-t", f"t{run}", "-p", "0", "-l"]
                row = Row(
                    "kcat -P -l",
                    "kcat -P -b BROKER -t t -p 0 -l lines",
                    bytes=context.size,
                    messages=context.messages,
                    note="a broker in the same machine, acks=all",
                )
                context.report.add(row, run_seconds([*command, str(lines(context.messages))]))
                if client.offsets(f"t{run}")[1] != context.messages:
                    raise AssertionError("kcat lost messages")
            broker.stop()
        finally:
            broker.kill()
