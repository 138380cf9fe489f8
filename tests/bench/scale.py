"""Large directories: 10,000 partitions of 100,000 segments, a partition of 10 GB, and the first open of one of 1, 3 and
20 GB. Made, measured, removed."""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from storage.format.batches import BatchTable, scan
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from tests.bench.data import CACHE, START_MS
from tests.bench.measure import Row, bytes_read, greatest_rss, run_seconds
from tests.bench.noop_fuse import cat_seconds, noop_mount
from tests.bench.through_mount import fresh, mount_seconds

PARTITIONS = 10_000
SEGMENTS = 10
TOPICS = 100
LISTED = 200


def many_partitions(context):
    """Ready time of 10,000 partitions, and `ls -lR` of 200; each segment is one small batch."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="many-") as temporary:
        root = Path(temporary)
        model = root / "model"
        model.mkdir()
        for segment in range(SEGMENTS):
            batch = encode_batch([Record(None, b"message", (), START_MS + segment)], base_offset=segment)
            for suffix, content in ((".log", batch), (".index", b""), (".timeindex", b"")):
                (model / f"{segment:020}{suffix}").write_bytes(content)
        _listings(context, _partitions(root / "few", model, LISTED))
        note = f"{PARTITIONS:,} partitions, {PARTITIONS * SEGMENTS:,} segments"
        log_dir = _partitions(root / "log", model, PARTITIONS)
        mount_seconds(context.report, log_dir, "mount of many partitions", context.runs, note)


def _partitions(log_dir, model, count):
    log_dir.mkdir()
    files = list(model.iterdir())
    for number in range(count):
        directory = log_dir / f"topic-{number % TOPICS:03}-{number // TOPICS}"
        directory.mkdir()
        for file in files:  # names of the same few files: a mount has to look at every name all the same
            (directory / file.name).hardlink_to(file)
    return log_dir


def _listings(context, log_dir):
    floor = "no-op mount, ls -lR"
    for _ in range(context.runs):
        with noop_mount() as point:
            _list(context, floor, point / "entries")
        with fresh(log_dir) as tree:
            _list(context, "ls -lR cold", tree.path, floor)
            _list(context, "ls -lR warm", tree.path, floor)


def _list(context, name, directory, *compare):
    time.sleep(1.1)  # for as long names may stay in the kernel's cache
    start = time.perf_counter()
    text = subprocess.run(["ls", "-lR", directory], stdout=subprocess.PIPE, check=True).stdout
    seconds = time.perf_counter() - start
    entries = sum(line[:1] in (b"-", b"d") for line in text.splitlines())
    row = Row(name, "ls -lR MNT", note=f"time for 1,000 of {entries:,} entries", compare=compare)
    context.report.add(row, seconds / entries * 1000)


def shifted(data, offset):
    """Whole v2 batches with `offset` added to their base offsets, which no CRC covers."""
    out = bytearray(data)
    table = BatchTable.empty(4096)
    start = 0
    while start < len(data):
        table.clear()
        start = scan(data, 0, table, start).next_start
        for position, base in zip(table.position.tolist(), table.base_offset.tolist(), strict=True):
            struct.pack_into(">q", out, position, base + offset)
    return out


def write_large(partition, plain, messages, size_bytes):
    """Copies of the one segment in `plain`, one after the other by their offsets: (how many, bytes of each)."""
    (log,) = plain.glob("*.log")
    data = log.read_bytes()
    segments = max(1, round(size_bytes / len(data)))
    if shutil.disk_usage(CACHE).free < 1.5 * segments * len(data):
        raise OSError(f"not enough room in {CACHE} for {segments} segments of {len(data):,} bytes")
    partition.mkdir(parents=True)
    for number in range(segments):
        base = number * messages
        (partition / f"{base:020}.log").write_bytes(shifted(data, base))
        for suffix in (".index", ".timeindex"):
            shutil.copy(log.with_suffix(suffix), partition / f"{base:020}{suffix}")
    return segments, len(data)


def large_partition(context):
    """Greatest resident memory of the mount while `cat` reads a partition of many full segments, txt and jsonl."""
    messages, plain = context.messages, context.log_dir / "plain-0"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="large-") as temporary:
        segments, size = write_large(Path(temporary) / "large-0", plain, messages, context.gigabytes * 1e9)
        with fresh(Path(temporary)) as tree, greatest_rss(tree.pid) as greatest:
            for kind in ("txt", "jsonl"):
                file = tree.path / "large" / "0" / f"messages.{kind}"
                name = f"{kind} of {segments * size / 1e9:.1f} GB cold"
                row = Row(name, f"cat MNT/large/0/messages.{kind} >/dev/null", messages=segments * messages)
                context.report.add(row, cat_seconds(file))
                row.bytes = file.stat().st_size
                row.note = f"greatest RSS so far {greatest() / 1e6:.0f} MB"


FIRST_COMMANDS = {
    "head": "head -n 1 {}/messages.txt",
    "grep": "grep -m1 -n '' {}/messages.txt",
    "tail": "tail -n 10 {}/messages.txt",
    "tac": "tac {}/messages.txt | head -n 1",
    "jsonl": "head -n 1 {}/messages.jsonl",
    "jq": "jq -c . {}/messages.jsonl | head -n 1",
    "range": "head -n 1 {0}/offsets/1000-$(({1} - 1000)).txt",
    "times": "head -n 1 {}/time/2020--2099.txt",
    "times that are over": f"tail -n 10 {{}}/time/{START_MS + 1000}--{START_MS + 100_000}.txt",
}
FULL_GB = 1  # below exact_below, so everything is measured


def first_open(context):
    """The first open of a partition that nobody has measured, each on a mount of its own. The larger ones have a real
    segment at each end, and holes between them."""
    segment, messages = _first_segment(context.log_dir / "sealed-0")
    for gigabytes in (FULL_GB, 3, 20):
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="first-") as temporary:
            root = Path(temporary)
            end = _with_holes(root / "t-0", segment, messages, gigabytes)
            for _ in range(context.runs):
                for name, command in FIRST_COMMANDS.items():
                    _first(context, root, gigabytes, name, command.format("MNT/t/0", end))


def _first(context, log_dir, gigabytes, name, command):
    row_name = f"first open of {gigabytes} GB, {name}"
    with fresh(log_dir) as tree:
        before = bytes_read(tree.pid)
        seconds = run_seconds(["bash", "-c", f"{command.replace('MNT', str(tree.path))} >/dev/null"])
        read = (bytes_read(tree.pid) - before) / 1e6
    compare = () if gigabytes <= 3 else (f"first open of 3 GB, {name}",)
    context.report.add(Row(row_name, command, note=f"kafkafs read {read:,.1f} MB", compare=compare), seconds)


def _first_segment(directory):
    """The first of a partition's segments, and how many messages it has."""
    first, second = sorted(directory.glob("*.log"))[:2]
    return first, int(second.stem)


def _with_holes(partition, segment, messages, gigabytes):
    """A partition of as many segments of this one's size; the offset where it ends."""
    partition.mkdir()
    size = segment.stat().st_size
    count = int(gigabytes * 1e9) // size
    for number in range(count):
        base = number * messages
        log = partition / f"{base:020}.log"
        if gigabytes > FULL_GB and 0 < number < count - 1:
            log.touch()
            os.truncate(log, size)
            continue
        log.write_bytes(shifted(segment.read_bytes(), base))
        for suffix in (".index", ".timeindex"):
            shutil.copy(segment.with_suffix(suffix), log.with_suffix(suffix))
    return count * messages
