"""Which replica of a partition is taken, and what the others have that it has not.

As in an unclean leader election: the highest last leader epoch, then the highest log end offset. Of equal ones the
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The replica that is taken, and what is left behind in the others."""

    replica: Replica
    beyond: tuple[Beyond, ...]


def choose(replicas: Sequence[Replica]) -> dict[TopicPartition, Choice]:
    """The choice for each partition, by topic and number."""
    by_partition: dict[TopicPartition, list[Replica]] = {}
    for replica in replicas:
        by_partition.setdefault(replica.tp, []).append(replica)
    return {tp: _choose(by_partition[tp]) for tp in sorted(by_partition)}


def _choose(replicas: Sequence[Replica]) -> Choice:
    best = max(replicas, key=lambda replica: (replica.last_epoch, replica.log_end_offset))
    beyond = []
    for other in replicas:
        if other is not best:
            if best.log_start_offset > other.log_start_offset:
                end = min(best.log_start_offset, other.log_end_offset)
                beyond.append(Beyond(other.path, OffsetRange(other.log_start_offset, end)))
            first = max(_common_end(best, other), other.log_start_offset)
            if other.log_end_offset > first:
                beyond.append(Beyond(other.path, OffsetRange(first, other.log_end_offset)))
    return Choice(best, tuple(beyond))


def _common_end(best: Replica, other: Replica) -> int:
    """The offset up to which both hold the same messages, by their leader epochs (OffsetsForLeaderEpoch, KIP-101)."""
    end = min(best.log_end_offset, other.log_end_offset)
    if best.epochs is None or other.last_epoch < 0:
        return end
    later = [entry.start_offset for entry in best.epochs.entries if entry.epoch > other.last_epoch]
    return min([end, *later])
