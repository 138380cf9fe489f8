"""Histograms of real logs against a look at every batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from storage.format.block import Record
from storage.log.counting import Histogram, histogram
from storage.log.log_dir import LogDir
from storage.log.scanning import scan_batches
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Item, Partition, build_log_dir
from tests.support.fixtures import FIXTURES, requires_fixtures

LOGS = [
    ("codecs", "c-none-0"),
    ("codecs", "c-zstd-1"),
    ("times", "t-create-0"),
    ("times", "t-append-0"),
    ("times", "t-deleted-1"),
    ("roll", "roll-ms-0"),
    ("roll", "index-interval-0-0"),
    ("roll", "index-interval-100-0"),
    ("transactions", "tx-aborts-0"),
    ("compaction-after", "cmp-plain-0"),
    ("v0", "v0-none-0"),
    ("v0", "v0-v1-v2-0"),
    ("v1", "v1-gzip-0"),
]


def snapshot_of(logs: Path, partition: str) -> LogSnapshot:
    topic, _, number = partition.rpartition("-")
    return LogDir.open_read_only(logs).log(TopicPartition(topic, int(number))).snapshot()


def batches_of(snapshot: LogSnapshot) -> list[tuple[int, int, int]]:
    """(greatest timestamp so far within the segment, bytes, last offset) of every batch above the log start."""
    found = []
    for segment in snapshot.segments:
        greatest = -1
        for window in scan_batches(snapshot, segment, 0):
            table = window.table
            for timestamp, size, last in zip(
                table.max_timestamp.tolist(), table.size.tolist(), table.last_offset.tolist(), strict=True
            ):
                greatest = max(greatest, timestamp)
                if last >= snapshot.log_start_offset:
                    found.append((greatest, size, last))
    return found


def by_bucket(batches: list[tuple[int, int, int]], width: int) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for timestamp, size, _ in batches:
        sizes[timestamp // width * width if timestamp >= 0 else -1] += size
    return sizes


def stored(found: Histogram) -> Counter[int]:
    sizes = Counter(
        {start: size for start, size in zip(found.starts_ms.tolist(), found.size_bytes.tolist(), strict=True) if size}
    )
    if found.undated_bytes:
        sizes[-1] = found.undated_bytes
    return sizes


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), LOGS)
@pytest.mark.parametrize("buckets", [3, 40, 500])
def test_against_every_batch(fixture: str, partition: str, buckets: int) -> None:
    snapshot = snapshot_of(FIXTURES / fixture / "log", partition)
    batches = batches_of(snapshot)
    found = histogram([snapshot], buckets=buckets)
    assert len(found.messages) <= buckets
    assert int(found.size_bytes.sum()) + found.undated_bytes == sum(size for _, size, _ in batches)
    assert (found.messages >= 0).all()
    assert stored(found) == by_bucket(batches, found.width_ms)


@requires_fixtures
def test_messages_are_offsets() -> None:
    """In logs that lost none, to the message; the first batch counts whole where the log start lies within it."""
    for fixture, partition in (("codecs", "c-none-0"), ("roll", "index-interval-100-0"), ("v0", "v0-none-0")):
        snapshot = snapshot_of(FIXTURES / fixture / "log", partition)
        for buckets in (1, 7, 300):
            found = histogram([snapshot], buckets=buckets)
            assert int(found.messages.sum()) + found.undated_messages == snapshot.log_end_offset


def at(timestamp: int, count: int) -> Batch:
    """Messages of one moment."""
    return Batch([Record(None, b"message", (), timestamp)] * count)


def made(path: Path, items: list[Item], interval: int = 500) -> LogSnapshot:
    build_log_dir(path, {"t": [Partition(items, index_interval_bytes=interval)]})
    return snapshot_of(path, "t-0")


def test_steady_messages(tmp_path: Path) -> None:
    """A message a second, three a batch, over two segments: sixty a minute, but for a batch at the edges."""
    start = 1_700_000_040_000
    items: list[Item] = [at(start + n * 3000, 3) for n in range(400)]
    items.insert(200, ROLL)
    found = histogram([made(tmp_path, items)], width_ms=60_000)
    assert found.start_ms == start
    assert len(found.messages) == 20
    assert (np.abs(found.messages - 60) <= 3).all()
    assert int(found.messages.sum()) == 1200


def test_without_an_index_headers_tell(tmp_path: Path) -> None:
    items: list[Item] = [at(1_700_000_000_000 + n * 3000, 3) for n in range(400)]
    snapshot = made(tmp_path, items)
    with_index = histogram([snapshot])
    for path in (tmp_path / "t-0").glob("*index"):
        path.write_bytes(b"garbage that is no index at all")
    without = histogram([snapshot_of(tmp_path, "t-0")])
    assert stored(without) == stored(with_index)


def test_several_logs_are_added_up(tmp_path: Path) -> None:
    snapshot = made(tmp_path, [at(1_700_000_000_000 + n * 3000, 3) for n in range(50)])
    one, two = histogram([snapshot]), histogram([snapshot, snapshot])
    assert (two.messages == 2 * one.messages).all()
    assert (two.starts_ms == one.starts_ms).all()


def test_nothing_at_all(tmp_path: Path) -> None:
    found = histogram([made(tmp_path, [])])
    assert (len(found.messages), found.undated_messages, found.undated_bytes) == (0, 0, 0)
    with pytest.raises(ValueError, match="buckets"):
        histogram([made(tmp_path / "b", [at(1, 1), at(10**12, 1)])], width_ms=1)
