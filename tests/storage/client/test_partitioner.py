"""Partitions as Kafka's producer chooses them."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from storage.append.partitioner import Partitioner, in_order_for_key
from storage.format.block import Record, RecordColumns
from tests.support.partitions import partition_for_key


# Hashes from Kafka's UtilsTest.testMurmur2.
@pytest.mark.parametrize(
    ("key", "murmur2"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_keys(key: bytes, murmur2: int, partitions: int) -> None:
    expected = (murmur2 & 0x7FFFFFFF) % partitions
    assert partition_for_key(key, partitions) == expected
    columns = RecordColumns.from_records([Record(key, b"x"), Record(b"other", None), Record(key, None)])
    chosen = Partitioner(partitions).choose(columns).tolist()
    assert chosen == [expected, partition_for_key(b"other", partitions), expected]


@pytest.mark.parametrize("count", [1, 3, 50, None])
def test_the_order_in_which_a_key_is_looked_for(count: int | None) -> None:
    """The producers' partition first, if it is here; a count that is not known is that of the partitions here."""
    here = [0, 1, 2, 7]
    for key in (b"", b"21", b"foobar", b"abc", *(b"%d" % number for number in range(30))):
        chosen = partition_for_key(key, 8 if count is None else count)
        rest = [partition for partition in here if partition != chosen]
        assert in_order_for_key(key, here, count) == ([chosen, *rest] if chosen in here else here)


def test_an_empty_key_is_a_key() -> None:
    chosen = {int(Partitioner(7).choose(RecordColumns.from_records([Record(b"", b"x")]))[0]) for _ in range(20)}
    assert chosen == {partition_for_key(b"", 7)}


def test_without_keys_one_call_is_one_partition() -> None:
    columns = RecordColumns(b"x" * 100, np.arange(100), np.ones(100, np.int64), np.full(1, -1, np.int64))
    partitioner = Partitioner(5, chance=random.Random(1))
    assert len(set(partitioner.choose(columns).tolist())) == 1


def test_sticky_for_a_batch_then_another() -> None:
    partitioner = Partitioner(10, chance=random.Random(3))
    columns = RecordColumns.from_records([Record(None, b"x" * 1000)])
    chosen = [int(partitioner.choose(columns)[0]) for _ in range(17 * 200)]
    runs = [chosen[n : n + 17] for n in range(0, len(chosen), 17)]  # 17 messages reach 16,384 bytes
    assert all(len(set(run)) == 1 for run in runs)
    assert set(Counter(run[0] for run in runs)) == set(range(10))


def test_keys_and_none_mixed() -> None:
    partitioner = Partitioner(4, chance=random.Random(5))
    records = [Record(b"k%d" % n if n % 2 else None, b"v") for n in range(20)]
    chosen = partitioner.choose(RecordColumns.from_records(records)).tolist()
    assert [c for n, c in enumerate(chosen) if n % 2] == [partition_for_key(b"k%d" % n, 4) for n in range(1, 20, 2)]
    assert len({c for n, c in enumerate(chosen) if n % 2 == 0}) == 1


def test_no_partitions() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Partitioner(0)
