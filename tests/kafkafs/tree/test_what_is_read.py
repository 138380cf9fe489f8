"""How much of a log is read: by listings and `messages.log` nothing, by a range its span, by `@info.json` some MiB."""

import json
import os

import numpy as np
import pytest

from kafkafs.reading.blocks import BLOCK_BYTES
from kafkafs.tree import info
from storage.files import time_index
from storage.files.log_file import LogFile
from storage.format.block import Record
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, scanned_bytes, tree_of

SEGMENTS = 3
SEGMENT_BYTES = 1_500_000
BATCH_BYTES = 100_000


@pytest.fixture
def log_dir(tmp_path):
    """A partition of three segments of 1.5 MB, in batches of 100 kB, with their indexes."""
    items = []
    for start in range(0, SEGMENTS * 1500, 100):
        if start and start % 1500 == 0:
            items.append(ROLL)
        records = [Record(None, b"%06d" % n + b"x" * 994, (), START_MS + n) for n in range(start, start + 100)]
        items.append(Batch(records))
    return build_log_dir(tmp_path / "log", {"t": [Partition(items)]}).path


@pytest.fixture
def tree(log_dir):
    """With the log open: that reads what follows the last entry of its index."""
    tree = tree_of(log_dir, keys=False, exact_below=SEGMENT_BYTES)
    tree.lookup("/t/0").attributes()
    return tree


@pytest.fixture
def read_bytes(monkeypatch):
    """How many bytes of segments something reads."""
    count = 0
    read = LogFile.read

    def counting(file, position, size, into=None):
        nonlocal count
        data = read(file, position, size, into)
        count += len(data)
        return data

    def during(act):
        nonlocal count
        count = 0
        act()
        return count

    monkeypatch.setattr(LogFile, "read", counting)
    return during


@pytest.mark.parametrize("path", ["/", "/t", "/t/0", "/t/0/offsets", "/t/0/time", "/t/0/segments"])
def test_a_listing_reads_no_messages(tree, path, read_bytes):
    def look():
        for entry in tree.lookup(path).list():
            tree.lookup(f"{path.rstrip('/')}/{entry.name}").attributes()

    assert read_bytes(look) < 1000  # headers: a batch has 100 kB
    assert scanned_bytes(tree) == 0
    assert sum(1 for _ in tree.lookup(path).list()) > 0


def test_a_first_open_of_the_raw_log_reads_nothing(tree, read_bytes):
    assert read_bytes(lambda: tree.lookup("/t/0/messages.log").open()) < BATCH_BYTES * 5  # around the log's end
    assert scanned_bytes(tree) == 0


@pytest.mark.parametrize("name", ["last-50", "1000+50", "1000-1049"])
def test_a_first_open_of_a_range_reads_its_span(tree, name):
    path = f"/t/0/offsets/{name}.txt"
    tree.lookup(path).open()
    assert BATCH_BYTES <= scanned_bytes(tree) < 2 * BATCH_BYTES
    assert content(tree, path).count(b"\n") == 50


def test_a_first_open_of_a_whole_partition_scans_it_once(tree):
    content(tree, "/t/0/messages.txt")
    once = scanned_bytes(tree)
    assert once >= SEGMENTS * SEGMENT_BYTES
    content(tree, "/t/0/messages.txt")
    content(tree, f"/t/0/time/{START_MS}--.txt")
    assert once <= scanned_bytes(tree) <= once + 2 * BLOCK_BYTES  # the last block grows, and is scanned again


@pytest.mark.parametrize("too_large", [False, True])
def test_messages_are_counted_up_to_a_size(tmp_path, too_large):
    """A batch without its last records, as compaction leaves it: only reading tells how many there are."""
    live = LiveLog(tmp_path / "log", key_of=lambda offset: b"%d" % offset)
    count = 110 if too_large else 70
    for _ in range(count // 10):
        live.write(10, size=100_000, batch=1)
    live.roll()
    live.compact(lambda offset: offset % 10 != 5)
    live.write(1)
    size = sum(path.stat().st_size for path in live.path.glob("*.log"))
    assert (size > info.COUNTED_BYTES) == too_large
    shown = json.loads(content(tree_of(live.path.parent), "/t/0/@info.json"))
    assert shown["bytes"] == size
    assert shown["offsets"] == count + 1
    assert shown["messages"] == (None if too_large else count - count // 10 + 1)


def test_a_modification_time_is_known_without_reading_time_indexes(tmp_path, monkeypatch):
    """They are as many bytes as a hundredth of the log."""
    live, entries, read, count = LiveLog(tmp_path / "log"), 100_000, os.pread, 0
    for _ in range(3):
        live.write(100)
        live.roll()
    for log in sorted(live.path.glob("*.log"))[:3]:
        base_offset = int(log.stem)
        times, offsets = START_MS + np.arange(entries), base_offset + np.minimum(np.arange(entries), 99)
        log.with_suffix(".timeindex").write_bytes(time_index.encode(times, offsets, base_offset))

    def counting(fd, size, position):
        nonlocal count
        data = read(fd, size, position)
        count += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    shown = tree_of(live.path.parent, exact_below=0).lookup("/t/0/messages.txt").attributes()
    assert shown.mtime_ns == (START_MS + entries - 1) * 1_000_000
    assert count < 100_000
