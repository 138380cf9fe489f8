"""Large directories: 10,000 partitions of 100,000 segments, and a partition of 10 GB. Made, measured, removed."""

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
from tests.bench.measure import Row, greatest_rss
from tests.bench.noop_fuse import cat_seconds, noop_mount
from tests.bench.through_mount import fresh, mount_seconds

PARTITIONS = 10_000
SEGMENTS = 10
TOPICS = 100
LISTED = 200


def many_partitions(context):
    """Ready time of 10,000 partitions, and `ls -lR` of 200; each segment is one small batch."""
    CACHE.mkdir(parents=True, exist_ok=True)
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
