"""Reading through a mount, beside a filesystem that does nothing; `kafkafs cat`; and the start of commands.

"Cold" is a fresh mount with an empty view-index cache: kafkafs knows nothing of the log. The log's own bytes are in
the kernel's page cache in all cases.
"""

import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from storage.format.block import Record
from storage.format.record_batch import encode_batch
from tests.bench.data import START_MS, VALUE_BYTES, lines, sealed_end
from tests.bench.measure import Row, bytes_read, run_seconds
from tests.bench.noop_fuse import cat_seconds, noop_mount
from tests.support.mounts import KAFKAFS, mounted


@contextmanager
def fresh(log_dir, cache_home=None, *options):
    """A mount that has seen nothing yet; with `cache_home`, one that finds what is cached there."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as temporary:
        point = Path(temporary) / "mnt"
        with mounted(log_dir, point, *options, cache_home=cache_home or Path(temporary) / "cache") as tree:
            yield tree


def warm_page_cache(log_dir, *partitions):
    for partition in partitions:
        for path in (log_dir / partition).iterdir():
            run_seconds(["cat", str(path)])


def measure(context):
    report, log_dir, messages, runs = context.report, context.log_dir, context.messages, context.runs
    size = context.size  # of messages.txt
    warm_page_cache(log_dir, "plain-0", "lz4-0", "zstd-0", "single-0", "sealed-0")
    with fresh(log_dir) as tree:  # what is timed must be right
        for partition in ("plain", "lz4", "zstd", "single", "sealed"):
            run_seconds(["cmp", str(tree.path / partition / "0" / "messages.txt"), str(lines(messages))])
    floor, buffered = "no-op mount", "no-op mount, page cache"
    sealed_messages = sealed_end(messages)
    sealed_bytes = sealed_messages * (VALUE_BYTES + 1)

    def cat(name, tree, path, *compare, note=""):
        file = tree.path / path
        seconds = cat_seconds(file)
        row = Row(name, f"cat MNT/{path} >/dev/null", [], file.stat().st_size, messages, note, (floor, *compare))
        report.add(row, seconds)

    for _ in range(runs):
        with noop_mount(size) as point:
            row = Row(floor, "cat MNT/direct >/dev/null", bytes=size, note="direct_io, threads: the floor")
            report.add(row, cat_seconds(point / "direct"))
        with noop_mount(sealed_bytes) as point:
            note = "the page cache, empty at first; as many bytes as the sealed range"
            row = Row(buffered, "cat MNT/buffered >/dev/null", bytes=sealed_bytes, note=note)
            report.add(row, cat_seconds(point / "buffered"))
            cat_seconds(point / "cached")
            row = Row("no-op mount, second read", "cat MNT/cached >/dev/null", bytes=sealed_bytes, note="keep_cache")
            report.add(row, cat_seconds(point / "cached"))
        with fresh(log_dir) as tree:
            cat("txt cold", tree, "plain/0/messages.txt")
            cat("txt warm", tree, "plain/0/messages.txt")
        with fresh(log_dir) as tree:
            cat("jsonl cold", tree, "plain/0/messages.jsonl")
            cat("jsonl warm", tree, "plain/0/messages.jsonl")
        for kind in ("txt", "jsonl"):
            with fresh(log_dir, None, "-o", "exact_below=64M") as tree:
                cat(f"{kind} cold, estimated size", tree, f"plain/0/messages.{kind}", f"{kind} cold")
        for codec in ("lz4", "zstd"):
            with fresh(log_dir) as tree:
                cat(f"{codec} txt cold", tree, f"{codec}/0/messages.txt", "txt cold")
                cat(f"{codec} txt warm", tree, f"{codec}/0/messages.txt", "txt warm")
        with fresh(log_dir) as tree:
            cat("one-record batches txt cold", tree, "single/0/messages.txt")
            cat("log view", tree, "plain/0/messages.log")
        with fresh(log_dir) as tree:
            sealed = f"sealed/0/offsets/0-{sealed_messages - 1}.txt"
            cat("sealed range, first read", tree, sealed, buffered, "txt cold")
            cat("sealed range, second read", tree, sealed, "no-op mount, second read")
    for row in (row for name, row in report.rows.items() if name.startswith("sealed range")):
        row.messages = sealed_messages
    _cat_command(report, log_dir, messages, runs, size)
    _tail(report, log_dir, runs)


def _cat_command(report, log_dir, messages, runs, size):
    for _ in range(runs):
        for kind in ("txt", "jsonl"):
            shell = f"{KAFKAFS[0]} cat {log_dir} plain/0 --format {kind} | cat >/dev/null"
            row = Row(
                f"kafkafs cat {kind}",
                f"kafkafs cat LOGDIR plain/0 --format {kind} | cat >/dev/null",
                bytes=size if kind == "txt" else 0,
                messages=messages,
                note="whole process",
                compare=("no-op mount",),
            )
            report.add(row, run_seconds(["bash", "-o", "pipefail", "-c", shell]))


def _tail(report, log_dir, runs):
    def tail(name, tree, partition):
        file = tree.path / partition / "0" / "messages.txt"
        before = bytes_read(tree.pid)
        seconds = run_seconds(["tail", "-n", "10", str(file)])
        row = Row(name, f"tail -n 10 MNT/{partition}/0/messages.txt")
        report.add(row, seconds)
        report.rows[name].note = f"kafkafs read {(bytes_read(tree.pid) - before) / 1e6:.2f} MB"

    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as cache:
            with fresh(log_dir, Path(cache)) as tree:
                tail("tail -n 10, no view index", tree, "sealed")
                tail("tail -n 10, view index", tree, "sealed")
                tail("tail -n 10 of one segment, no view index", tree, "plain")
                tail("tail -n 10 of one segment, view index", tree, "plain")
            with fresh(log_dir, Path(cache)) as tree:
                tail("tail -n 10 after a remount, view index on disk", tree, "sealed")
                tail("tail -n 10 of one segment after a remount", tree, "plain")


def mount_seconds(report, log_dir, name, runs, note):
    """From starting the command to the first listing of the mountpoint."""
    for _ in range(runs):
        start = time.perf_counter()
        with fresh(log_dir) as tree:
            entries = len(list(tree.path.iterdir()))
            seconds = time.perf_counter() - start
        row = Row(name, "kafkafs mount LOGDIR MNT --read-only; ls MNT", note=f"{note}; {entries} entries at the top")
        report.add(row, seconds)


def start(context):
    """Whole processes that have next to nothing to do, in a directory of one message; beside numpy's import."""
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}  # as kafkafs has it
    floor = "import numpy"
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as directory:
        topic = Path(directory) / "log" / "t-0"
        topic.mkdir(parents=True)
        batch = encode_batch([Record(None, b"message", (), START_MS)])
        (topic / f"{0:020}.log").write_bytes(batch)
        commands = ("count LOGDIR t/0", "topics list LOGDIR", "cat LOGDIR t/0 --offsets 0")
        for run in range(context.runs + 1):
            taken = {floor: run_seconds([sys.executable, "-c", floor], environment=one_thread)}
            for command in commands:
                words = [str(topic.parent) if word == "LOGDIR" else word for word in command.split()]
                taken[f"kafkafs {command}"] = run_seconds([*KAFKAFS, *words])
            for name, seconds in taken.items() if run else ():  # the first run may have to compile modules
                context.report.add(Row(name, name, note="whole process", compare=(floor,)), seconds)
