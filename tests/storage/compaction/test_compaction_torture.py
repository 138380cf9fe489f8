"""LogCompactionTester: producing while cleaning, a fifth of it deletes; the last value of each key must be there.

KAFKAFS_TORTURE_RECORDS sets how many records (100,000; for the full size 10,000,000).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from storage.append.partition_log import PartitionLog
from storage.compaction.cleaner import compact_partition
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import SegmentGone
from storage.format.block import RecordColumns
from storage.format.compression import Codec
from storage.format.record_batch import encode_into
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.owned_dirs import HastyDisk

RECORDS = int(os.environ.get("KAFKAFS_TORTURE_RECORDS") or 100_000)
TOPICS = 4
KEYS = max(RECORDS // TOPICS // 10, 1000)  # a topic
DELETES = 0.2
KEY_BYTES = VALUE_BYTES = 8
CHUNK = 2000
CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)


class Producer:
    """Appends batches of random keys to a topic; `last` is each key's last value, -1 for a delete, -2 for none."""

    def __init__(self, log: PartitionLog, keys: int, seed: int) -> None:
        self.log = log
        self.last = np.full(keys, -2, np.int64)
        self._rng = np.random.default_rng(seed)
        self._next = 0
        self._out = bytearray(1 << 20)

    def produce(self, count: int) -> None:
        keys = self._rng.integers(0, len(self.last), count)
        values = np.arange(self._next, self._next + count)
        self._next += count
        deletes = self._rng.random(count) < DELETES
        columns = RecordColumns(
            buffer=np.concatenate((keys, values)).astype(">i8").tobytes(),
            key_start=np.arange(count) * KEY_BYTES,
            key_length=np.full(1, KEY_BYTES),
            value_start=np.arange(count, 2 * count) * VALUE_BYTES,
            value_length=np.where(deletes, -1, VALUE_BYTES),
            timestamp=np.full(1, 1_763_700_000_000),
        )
        codec = CODECS[int(self._rng.integers(len(CODECS)))]
        row = 0
        while row < count:
            last = min(count, row + int(self._rng.integers(1, 400)))
            encoded = encode_into(self._out, 0, columns, row, last, base_offset=self.log.log_end_offset, codec=codec)
            self.log.append_batches(memoryview(self._out)[: encoded.end])
            row = encoded.next_row
        self.last[keys] = np.where(deletes, -1, values)  # of equal keys the last assignment holds


def consumed(log: PartitionLog, keys: int) -> tuple[np.ndarray, int]:
    """What a consumer ends with: each key's last value, as above, and how many records it saw."""
    found = np.full(keys, -2, np.int64)
    records = 0
    snapshot = log.snapshot()
    for block in read_range(snapshot, snapshot.log_start_offset):
        assert block.damage is None, block.damage
        data, _ = block.gather("key")
        numbers = np.frombuffer(data, ">i8")
        values = np.full(len(block), -1, np.int64)
        present = block.value_length >= 0
        values[present] = np.frombuffer(block.gather("value")[0], ">i8")
        found[numbers] = values
        records += len(block)
    return found, records


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("map_bytes", [128 << 20, 24 * KEYS // 5], ids=["roomy", "many-passes"])
def test_the_last_value_of_each_key(tmp_path: Path, map_bytes: int) -> None:
    keys = KEYS
    config = BrokerConfig.from_values(
        {"num.recovery.threads.per.data.dir": "1", "log.cleaner.dedupe.buffer.size": str(map_bytes)}
    )
    owned = OwnedDir.open(tmp_path / "log", Opening(create=True), config=config, disk=HastyDisk())
    segment_bytes = max(RECORDS // TOPICS * 30 // 20, 20_000)
    producers = []
    for n in range(TOPICS):
        policy = {"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": str(segment_bytes)}
        owned.create_topic(f"t{n}", 1, policy)
        producers.append(Producer(owned.log(TopicPartition(f"t{n}", 0)), keys, seed=n))
    done = threading.Event()
    passes: list[int] = []
    wanted = 4 if map_bytes > KEYS * 24 else 11  # whatever the speeds of the two threads are
    failures: list[BaseException] = []

    def clean() -> None:
        try:
            number = 0
            while not done.is_set():
                number += 1
                result = compact_partition(owned, TopicPartition(f"t{number % TOPICS}", 0))
                for path in result.files:
                    owned.disk.unlink(path)
                if result.segments_before:
                    passes.append(result.end_offset)
                else:
                    done.wait(0.002)
        except SegmentGone:
            raise AssertionError("nobody else removes segments") from None
        except BaseException as error:
            failures.append(error)
            raise

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        produced = 0
        while not failures and (produced < RECORDS or len(passes) < wanted):
            for producer in producers:
                producer.produce(CHUNK)
            produced += CHUNK * TOPICS
    finally:
        done.set()
        cleaner.join()
    assert not failures
    assert len(passes) >= wanted
    for n, producer in enumerate(producers):
        found, _ = consumed(producer.log, keys)
        assert np.array_equal(np.maximum(found, -1), np.maximum(producer.last, -1)), f"topic {n}, while cleaning"
        producer.log.roll()
        while True:
            result = compact_partition(owned, TopicPartition(f"t{n}", 0))
            for path in result.files:
                owned.disk.unlink(path)
            if result.is_complete:
                break
        found, records = consumed(producer.log, keys)
        assert np.array_equal(np.maximum(found, -1), np.maximum(producer.last, -1)), f"topic {n}, at the end"
        assert records <= keys + 1
    assert owned.close().clean
    assert not verify_log_dir(tmp_path / "log")
