"""Partitions as Kafka's producer chooses them, and replicas as Kafka assigns them."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.append.partitioner import Partitioner, in_order_for_key
from storage.format.block import Record, RecordColumns
from storage.log.assignment import assign_replicas
from tests.support.partitions import partition_for_key


# Hashes from Kafka's UtilsTest.testMurmur2.
@pytest.mark.parametrize(
    ("key", "murmur2"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_keys(key, murmur2, partitions):
    expected = (murmur2 & 0x7FFFFFFF) % partitions
    assert partition_for_key(key, partitions) == expected
    columns = RecordColumns.from_records([Record(key, b"x"), Record(b"other", None), Record(key, None)])
    chosen = Partitioner(partitions).choose(columns).tolist()
    assert chosen == [expected, partition_for_key(b"other", partitions), expected]


@pytest.mark.parametrize("count", [1, 3, 50, None])
def test_the_order_in_which_a_key_is_looked_for(count):
    """The producers' partition first, if it is here; a count that is not known is that of the partitions here."""
    here = [0, 1, 2, 7]
    for key in (b"", b"21", b"foobar", b"abc", *(b"%d" % number for number in range(30))):
        chosen = partition_for_key(key, 8 if count is None else count)
        rest = [partition for partition in here if partition != chosen]
        assert in_order_for_key(key, here, count) == ([chosen, *rest] if chosen in here else here)


def test_an_empty_key_is_a_key():
    chosen = {int(Partitioner(7).choose(RecordColumns.from_records([Record(b"", b"x")]))[0]) for _ in range(20)}
    assert chosen == {partition_for_key(b"", 7)}


def test_sticky_for_a_batch_then_another():
    partitioner = Partitioner(10, chance=random.Random(3))
    calls = RecordColumns(b"x" * 100, np.arange(100), np.ones(100, np.int64), np.full(1, -1, np.int64))
    assert len(set(Partitioner(5, chance=random.Random(1)).choose(calls).tolist())) == 1
    columns = RecordColumns.from_records([Record(None, b"x" * 1000)])
    chosen = [int(partitioner.choose(columns)[0]) for _ in range(17 * 200)]
    runs = [chosen[n : n + 17] for n in range(0, len(chosen), 17)]  # 17 messages reach 16,384 bytes
    assert all(len(set(run)) == 1 for run in runs)
    assert set(Counter(run[0] for run in runs)) == set(range(10))


def test_keys_and_none_mixed():
    partitioner = Partitioner(4, chance=random.Random(5))
    records = [Record(b"k%d" % n if n % 2 else None, b"v") for n in range(20)]
    chosen = partitioner.choose(RecordColumns.from_records(records)).tolist()
    assert [c for n, c in enumerate(chosen) if n % 2] == [partition_for_key(b"k%d" % n, 4) for n in range(1, 20, 2)]
    assert len({c for n, c in enumerate(chosen) if n % 2 == 0}) == 1


# What Kafka's own AdminUtils.assignReplicasToBrokers gave (of October 2024: 4.x has it no more), a case a line:
# brokers, their racks, partitions, replication factor, start, first partition, and the replicas of each partition.
GOLDEN = (Path(__file__).parent / "assignments.txt").read_text().splitlines()


def test_equal_to_kafkas():
    assert len(GOLDEN) == 61
    for line in GOLDEN:
        ids, names, partitions, factor, start, first, expected = line.split("|")
        brokers = [int(text) for text in ids.split(",")]
        racks = dict(zip(brokers, names.split(","), strict=True)) if names else None
        found = assign_replicas(
            brokers, int(partitions), int(factor), racks=racks, start=int(start), first_partition=int(first)
        )
        assert list(found) == list(range(int(first), int(first) + int(partitions)))
        assert [",".join(map(str, replicas)) for replicas in found.values()] == expected.split(" "), line


@st.composite
def clusters(draw):
    brokers = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12, unique=True))
    return brokers, draw(st.integers(1, 60)), draw(st.integers(1, len(brokers))), draw(st.integers(0, 50))


@given(clusters(), st.randoms(use_true_random=False))
def test_without_racks(cluster, chance):
    brokers, partitions, factor, first = cluster
    found = assign_replicas(brokers, partitions, factor, first_partition=first, chance=chance)
    assert list(found) == list(range(first, first + partitions))
    for replicas in found.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(brokers)
    leaders = Counter(replicas[0] for replicas in found.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1
    if partitions % len(brokers) == 0 and first % len(brokers) == 0:
        everywhere = Counter(broker for replicas in found.values() for broker in replicas)
        assert set(everywhere.values()) == {partitions * factor // len(brokers)}


def test_what_cannot_be_assigned():
    for brokers, partitions, factor, racks in (
        ([1, 2], 0, 1, None), ([1, 2], 1, 0, None), ([1, 2], 1, 3, None), ([], 1, 1, None), ([1, 1], 1, 1, None),
        ([1, 2], 1, 1, {1: "a"}), ([1], 1, 1, {1: "a", 2: "b"}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"partition|replica|broker|rack"):
            assign_replicas(brokers, partitions, factor, racks=racks)
    with pytest.raises(ValueError, match="at least one"):
        Partitioner(0)
