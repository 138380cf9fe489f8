"""Which replica of a partition is taken, and what the others have that it has not.

As in an unclean leader election: the highest last leader epoch, then the highest log end offset, then the most bytes.
Where that one is damaged, what can be read of each counts instead of its log end offset. Of equal ones the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage.revival.sources import Replica
from storage.types import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Beyond:
    """Messages at these offsets are in the replica at `path`, but not in the one that is taken, or are others there."""

    path: Path
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica that is taken, and what is left behind in the `others`, the best of them first. `passed_over`: the
    one that would have been taken if it were not damaged."""

    replica: Replica
    beyond: tuple[Beyond, ...]
    others: tuple[Replica, ...] = ()
    passed_over: Replica | None = None

    def by_readable_end(self, end_of: Callable[[Replica], int]) -> Choice:
        """The choice by how far each replica can be read, where the one that was taken is damaged."""
        choice = _choose([self.replica, *self.others], end_of)
        return choice if choice.replica is self.replica else replace(choice, passed_over=self.replica)


def choose(replicas: Sequence[Replica]) -> dict[TopicPartition, Choice]:
    """The choice for each partition, by topic and number."""
    by_partition: dict[TopicPartition, list[Replica]] = {}
    for replica in replicas:
        by_partition.setdefault(replica.tp, []).append(replica)
    return {tp: _choose(by_partition[tp]) for tp in sorted(by_partition)}


def _choose(replicas: Sequence[Replica], end_of: Callable[[Replica], int] | None = None) -> Choice:
    def rank(replica: Replica) -> tuple[int, int, int]:
        end = replica.log_end_offset if end_of is None else end_of(replica)
        return replica.last_epoch, end, replica.snapshot.size_bytes

    best, *others = sorted(replicas, key=rank, reverse=True)
    beyond = []
    for other in others:
        end = min(best.log_start_offset, other.log_end_offset)
        if end > other.log_start_offset:
            beyond.append(Beyond(other.path, OffsetRange(other.log_start_offset, end)))
        first = max(_common_end(best, other), other.log_start_offset)
        if other.log_end_offset > first:
            beyond.append(Beyond(other.path, OffsetRange(first, other.log_end_offset)))
    return Choice(best, tuple(beyond), tuple(others))


def _common_end(best: Replica, other: Replica) -> int:
    """The offset up to which both hold the same messages, by their leader epochs (OffsetsForLeaderEpoch, KIP-101)."""
    end = min(best.log_end_offset, other.log_end_offset)
    if best.epochs is None or other.last_epoch < 0:
        return end
    later = [entry.start_offset for entry in best.epochs.entries if entry.epoch > other.last_epoch]
    return min([end, *later])
