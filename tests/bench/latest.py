"""`latest.jsonl` of the log of the compaction case (a key to ten messages), beside the cleaner's pass on the same log.

What the file shows is what the pass would leave: both scan the log, map its keys, and read what is the latest again.
"""

import os
import shutil
from contextlib import closing

from kafkafs.tree.tree import Tree, TreeOptions
from storage.format.decoder import Decoder
from storage.latest.latest_records import LatestKeys
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from tests.bench import data
from tests.bench.case import say
from tests.bench.compact import TP, made_log, our_pass
from tests.bench.measure import Row, call_seconds, greatest_rss, run_seconds
from tests.support.mounts import KAFKAFS, mounted

STEP = 128 << 10


def _read_all(tree, path):
    with closing(tree.lookup(path).open()) as handle:
        position, size = 0, handle.size
        while position < size:
            position += len(handle.read(position, STEP))


def _bytes_a_key(snapshot):
    """What the scan's map takes in the end."""
    start, end, decoder = snapshot.log_start_offset, snapshot.log_end_offset, Decoder()
    keys = LatestKeys(512 << 20, end - start)
    for block in read_range(snapshot, start, end, decoder=decoder):
        assert keys.put(block)
    return f"{keys.slots * 24 / max(1, len(keys)):.1f} bytes a key"


def measure(context):
    """Rows of the file in this process, by `cat --latest` and through a mount, and of the cleaner."""
    report, messages = context.report, context.messages
    say("data: compacted")
    source = made_log(messages)
    log_dir, place = source / "log", data.CACHE / "latest-run"
    snapshot = LogDir.open_read_only(log_dir).log(TP).snapshot()
    size, a_key = snapshot.size_bytes, _bytes_a_key(snapshot)
    shutil.rmtree(place, ignore_errors=True)
    cat = ["cat", str(log_dir), str(TP), "--latest", "--format", "jsonl"]
    for number in range(context.runs):
        result, _ = our_pass(source, place)
        report.add(Row("our cleaner, for latest", bytes=size, messages=messages), result.seconds)
        tree = Tree(LogDir.open_read_only(log_dir), TreeOptions(index_bytes=0))
        tree.start()
        try:
            with greatest_rss(os.getpid()) as greatest:
                before = greatest()
                opened = call_seconds(lambda: tree.lookup(f"/{TP}/latest.jsonl").open().close())  # noqa: B023
                grown = greatest() - before
            note = f"{result.counts.records_kept:,} keys; grew by {grown / 2**20:.0f} MiB; {a_key}"
            compare = ("our cleaner, for latest",)
            report.add(Row("opening latest.jsonl", bytes=size, messages=messages, note=note, compare=compare), opened)
            read = call_seconds(lambda: _read_all(tree, f"/{TP}/latest.jsonl"))  # noqa: B023
            report.add(Row("reading it", compare=compare), read)
        finally:
            tree.stop()
        whole = Row("cat --latest", f"kafkafs {' '.join(cat)}", bytes=size, messages=messages, compare=compare)
        report.add(whole, run_seconds([*KAFKAFS, *cat]))
        with mounted(log_dir, data.CACHE / f"latest-mnt-{number}") as mount:
            command = ["cat", str(mount.path / str(TP) / "latest.jsonl")]
            row = Row("latest.jsonl of a mount", " ".join(command), bytes=size, messages=messages, compare=compare)
            report.add(row, run_seconds(command))
        _remove(data.CACHE, f"latest-mnt-{number}")


def _remove(directory, name):
    for path in directory.glob(f"{name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
