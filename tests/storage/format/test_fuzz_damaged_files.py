"""Real brokers' files, damaged: every decoder reads what is left or raises StorageError, compiled and plain alike."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import StorageError
from storage.files import (
    checkpoints,
    cluster_metadata,
    leader_epochs,
    meta_properties,
    offset_index,
    partition_metadata,
    producer_state,
    time_index,
    topic_properties,
    transaction_index,
)
from tests.storage.format.outcomes import read_all
from tests.support.broker_rules import stored_batches
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.uncompiled import plain_kernels

# KAFKAFS_FUZZ_ROUNDS multiplies the work, KAFKAFS_FUZZ_SEED makes it other work.
ROUNDS = int(os.environ.get("KAFKAFS_FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("KAFKAFS_FUZZ_SEED", "20261121"))

LOGS = [
    "codecs/log/c-none-0",
    "codecs/log/c-gzip-0",
    "codecs/log/c-snappy-0",
    "codecs/log/c-snappy-1",
    "codecs/log/c-lz4-0",
    "codecs/log/c-zstd-1",
    "times/log/t-append-1",
    "transactions/log/tx-basic-0",
    "compaction-after/log/cmp-txn-0",
    "v0/log/v0-none-0",
    "v0/log/v0-lz4-0",
    "v0/log/v0-v1-v2-0",
    "v1/log/v1-none-1",
    "v1/log/v1-gzip-0",
    "v1/log/v1-snappy-1",
]


def spans(partition: str, dice: random.Random, count: int, size: int) -> Iterator[bytes]:
    """Runs of whole batches of about `size` bytes from a fixture's partition."""
    logs = sorted((FIXTURES / partition).glob("*.log"))
    batches = [batch.data for log in logs for batch in stored_batches(log.read_bytes())]
    for _ in range(count):
        first = dice.randrange(len(batches))
        run = b""
        for batch in batches[first : first + dice.choice((1, 1, 3, 8))]:
            if run and len(run) + len(batch) > size:
                break
            run += batch
        yield run


@requires_fixtures
@pytest.mark.parametrize("partition", LOGS)
def test_damaged_logs(partition: str) -> None:
    dice = random.Random(f"{SEED} {partition}")
    hurt = whole = 0
    for data in spans(partition, dice, 60 * ROUNDS, 60_000):
        assert read_all(data).damages == []
        for _ in range(4):
            injured = damaged(data, dice)
            outcome = read_all(injured)
            hurt += bool(outcome.damages) or len(outcome.batches) < len(list(stored_batches(data)))
            whole += not outcome.damages
            read_all(with_right_checksums(injured))
            read_all(injured, verify_crc=False)
    assert hurt > 20  # the damage is found …
    assert whole > 0  # … and is not all there is


@requires_fixtures
@pytest.mark.parametrize("partition", LOGS)
def test_plain_kernels_find_the_same_in_damaged_logs(partition: str) -> None:
    dice = random.Random(f"{SEED} plain {partition}")
    for data in spans(partition, dice, 4 * ROUNDS, 4_000):
        data = data[:20_000]
        injured = damaged(data, dice)
        for candidate in (data, injured, with_right_checksums(injured)):
            for verify_crc in (True, False):
                compiled = read_all(candidate, verify_crc=verify_crc)
                with plain_kernels():
                    assert read_all(candidate, verify_crc=verify_crc) == compiled


def base_offset(path: Path) -> int:
    return int(path.name.partition(".")[0])


def read_offset_index(data: bytes, path: Path) -> Any:
    index = offset_index.parse(data, base_offset(path), 500_000, path=path)
    assert ((index.offsets > base_offset(path)) & (index.positions > 0)).all()
    for probe in (0, base_offset(path), base_offset(path) + 100, 2**63 - 1):
        assert index.floor(probe).position >= 0
        index.first_from_position(min(probe, 2**31 - 1))
    return index.offsets.tolist(), index.positions.tolist(), str(index.problem)


def read_time_index(data: bytes, path: Path) -> Any:
    index = time_index.parse(data, base_offset(path), base_offset(path) + 1000, path=path)
    for probe in (-(2**63), -1, 0, 1_760_000_000_000, 2**63 - 1):
        assert index.floor(probe).offset >= base_offset(path)
    return index.timestamps.tolist(), index.offsets.tolist(), str(index.problem)


def read_transaction_index(data: bytes, path: Path) -> Any:
    index = transaction_index.parse(data, base_offset(path), path=path)
    index.collect(0, 2**63 - 1)
    return index.entries(), str(index.problem)


def read_snapshot(data: bytes, path: Path) -> Any:
    return producer_state.parse(data, path).entries()


def read_metadata_records(data: bytes, path: Path) -> Any:
    return [cluster_metadata.decode(r.value) for r in read_all(data).records if r.value is not None]


READERS: dict[str, Callable[[bytes, Path], Any]] = {
    "*/log/*/*.index": read_offset_index,
    "*/log/*/*.timeindex": read_time_index,
    "*/log/*/*.txnindex": read_transaction_index,
    "*/log/*/*.snapshot": read_snapshot,
    "*/log/*/leader-epoch-checkpoint": leader_epochs.parse,
    "*/log/*/partition.metadata": partition_metadata.parse,
    "*/log/*-checkpoint": checkpoints.parse,
    "*/log/meta.properties": meta_properties.parse,
    "codecs/log/bootstrap.checkpoint": read_metadata_records,
    "*/topics.json": topic_properties.parse,  # not the format, but lines enough
}


@requires_fixtures
@pytest.mark.parametrize("pattern", READERS)
def test_damaged_small_files(pattern: str) -> None:
    reader = READERS[pattern]
    dice = random.Random(f"{SEED} {pattern}")
    paths = sorted(path for path in FIXTURES.glob(pattern) if path.parent.name != "remote-log-index-cache")
    assert paths
    refused = 0
    for path in dice.sample(paths, min(len(paths), 40)):
        data = path.read_bytes()[:20_000]
        for _ in range(12 * ROUNDS):
            injured = damaged(data, dice)
            try:
                reader(injured, path)
            except StorageError:
                refused += 1
    assert refused > 0 or pattern.endswith(("index", ".json", "bootstrap.checkpoint"))
