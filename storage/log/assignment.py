"""Assigns partitions' replicas to brokers as Kafka does, with racks or without.

Leaders are assigned to the brokers in turn from a random start; the other replicas follow with a shift that grows with
each round, so that a broker's partitions have their followers on different brokers. With racks, the brokers are ordered
so that racks alternate, and no rack gets a second replica of a partition while another rack has none. Source:
AdminUtils. Pure, except for the random numbers, which can be passed in.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    racks: Mapping[int, str] | None = None,
    start: int | None = None,
    first_partition: int = 0,
    chance: random.Random | None = None,
) -> dict[int, list[int]]:
    """Return each partition's replicas, its leader first. `brokers`: ids in the order of assignment (with racks: any
    order).

    `racks`: of every broker, or None. `start`: where to begin in that order, and the first shift; None: random.
    `first_partition`: the number of partitions that the topic has already. ValueError for an impossible assignment.
    """
    if partitions < 1:
        raise ValueError("there must be at least one partition")
    if replication_factor < 1:
        raise ValueError("the replication factor must be at least 1")
    if len(set(brokers)) != len(brokers):
        raise ValueError("a broker is named twice")
    if replication_factor > len(brokers):
        raise ValueError(f"replication factor {replication_factor} is larger than {len(brokers)} brokers")
    if racks is not None and set(racks) != set(brokers):
        raise ValueError("either every broker has a rack, or none")
    order = list(brokers) if racks is None else rack_alternated(racks)
    count = len(order)
    dice = chance or random.Random()
    first = dice.randrange(count) if start is None else start
    shift = dice.randrange(count) if start is None else start
    assigned = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        leader = (partition + first) % count
        if racks is None:
            followers = [order[_follower(leader, shift, k, count)] for k in range(replication_factor - 1)]
        else:
            followers = _over_racks(order, racks, leader, shift, replication_factor)
        assigned[partition] = [order[leader], *followers]
    return assigned


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Brokers, one of each rack in turn: racks by name, a rack's brokers by id."""
    # In Java's order of strings: by UTF-16 code units.
    names = sorted(set(racks.values()), key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    waiting = [sorted(broker for broker, rack in racks.items() if rack == name) for name in names]
    longest = max(map(len, waiting), default=0)
    return [brokers[turn] for turn in range(longest) for brokers in waiting if turn < len(brokers)]


def _over_racks(
    order: Sequence[int], racks: Mapping[int, str], leader: int, shift: int, replication_factor: int
) -> list[int]:
    """A partition's other replicas: on racks without a replica, as long as there are such racks."""
    all_racks = len(set(racks.values()))
    used_brokers, used_racks = {order[leader]}, {racks[order[leader]]}
    followers: list[int] = []
    k = 0
    while len(followers) < replication_factor - 1:
        broker = order[_follower(leader, shift * all_racks, k, len(order))]
        k += 1
        is_new_rack = racks[broker] not in used_racks or len(used_racks) == all_racks
        if is_new_rack and broker not in used_brokers:
            followers.append(broker)
            used_brokers.add(broker)
            used_racks.add(racks[broker])
    return followers


def _follower(leader: int, shift: int, k: int, count: int) -> int:
    """The index in the order of the follower number `k`."""
    return (leader + 1 + (shift + k) % (count - 1)) % count
