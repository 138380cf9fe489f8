"""Replica assignment: equal to Kafka's, and what it promises."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log.assignment import assign_replicas, rack_alternated

# What Kafka's own AdminUtils.assignReplicasToBrokers gave (of October 2024: 4.x has it no more), a case a line:
# brokers, their racks, partitions, replication factor, start, first partition, and the replicas of each partition.
GOLDEN = (Path(__file__).parent / "assignments.txt").read_text().splitlines()


def test_equal_to_kafkas() -> None:
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


def test_racks_alternate() -> None:
    """The example in AdminUtils."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert rack_alternated(racks) == [0, 3, 1, 5, 4, 2]
    del racks[5]
    assert rack_alternated(racks) == [0, 3, 1, 4, 2]
    assert rack_alternated({}) == []


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    brokers = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12, unique=True))
    return brokers, draw(st.integers(1, 60)), draw(st.integers(1, len(brokers))), draw(st.integers(0, 50))


@given(clusters(), st.randoms(use_true_random=False))
def test_without_racks(cluster: tuple[list[int], int, int, int], chance: random.Random) -> None:
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


@given(clusters(), st.data())
def test_with_racks(cluster: tuple[list[int], int, int, int], data: st.DataObject) -> None:
    brokers, partitions, factor, first = cluster
    racks = {broker: data.draw(st.sampled_from("abc")) for broker in brokers}
    start = data.draw(st.integers(0, 40))
    found = assign_replicas(brokers, partitions, factor, racks=racks, start=start, first_partition=first)
    count = len(set(racks.values()))
    for replicas in found.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, count)
    leaders = Counter(replicas[0] for replicas in found.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1
    assert found == assign_replicas(brokers[::-1], partitions, factor, racks=racks, start=start, first_partition=first)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 20))
def test_even_racks_with_a_replica_each(count: int, size: int, rounds: int, start: int) -> None:
    """As AdminUtils guarantees: as many replicas as racks, and racks of one size, spread evenly."""
    racks = {broker: f"rack-{broker % count}" for broker in range(count * size)}
    found = assign_replicas(list(racks), rounds * len(racks), count, racks=racks, start=start)
    everywhere = Counter(broker for replicas in found.values() for broker in replicas)
    assert set(everywhere.values()) == {rounds * count}


def test_chance_decides_the_start() -> None:
    found = {tuple(assign_replicas([1, 2, 3], 1, 2)[0]) for _ in range(200)}
    assert found == {(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)}
    same = [assign_replicas([1, 2, 3], 9, 2, chance=random.Random(5)) for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "racks"),
    [
        ([1, 2], 0, 1, None),
        ([1, 2], 1, 0, None),
        ([1, 2], 1, 3, None),
        ([], 1, 1, None),
        ([1, 1], 1, 1, None),
        ([1, 2], 1, 1, {1: "a"}),
        ([1], 1, 1, {1: "a", 2: "b"}),
    ],
)
def test_what_cannot_be_assigned(
    brokers: list[int], partitions: int, factor: int, racks: dict[int, str] | None
) -> None:
    with pytest.raises(ValueError, match=r"."):
        assign_replicas(brokers, partitions, factor, racks=racks)
