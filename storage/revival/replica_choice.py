"""The replica of a partition to read first, and what the others have that it lacks, by their ends alone.

As in an unclean leader election: the highest last leader epoch, then the highest log end offset, then the most bytes,
then the first. If it is not one whole log, `storage.log.batch_choice` decides by the batches of all replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.log.batch_choice import Beyond
from storage.revival.sources import Replica
from storage.types import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen replica, and the `others`, the best first. `beyond`: what they have and it lacks. `passed_over`: a
    replica that would have been chosen if it were whole."""

    replica: Replica
    beyond: tuple[Beyond, ...]
    others: tuple[Replica, ...] = ()
    passed_over: Replica | None = None

    @property
    def all(self) -> list[Replica]:
        """All replicas, the best first."""
        return [self.replica, *self.others]

    def taking(self, replica: Replica, beyond: Sequence[Beyond] = ()) -> Choice:
        """Return these replicas with another choice."""
        others = tuple(other for other in self.all if other is not replica)
        return Choice(replica, tuple(beyond), others, None if replica is self.replica else self.replica)


def choose(replicas: Sequence[Replica]) -> dict[TopicPartition, Choice]:
    """The choice for each partition, by topic and number."""
    by_partition: dict[TopicPartition, list[Replica]] = {}
    for replica in replicas:
        by_partition.setdefault(replica.tp, []).append(replica)
    return {tp: _choose(by_partition[tp]) for tp in sorted(by_partition)}


def _choose(replicas: Sequence[Replica]) -> Choice:
    def rank(replica: Replica) -> tuple[int, int, int]:
        return replica.last_epoch, replica.log_end_offset, replica.snapshot.size_bytes

    best, *others = sorted(replicas, key=rank, reverse=True)
    beyond = []
    for other in others:
        end = min(best.log_start_offset, other.log_end_offset)
        if end > other.log_start_offset:
            reason = "before the log start of the one that is taken"
            beyond.append(Beyond(other.path, OffsetRange(other.log_start_offset, end), reason))
        first = max(_common_end(best, other), other.log_start_offset)
        if other.log_end_offset > first:
            reason = "an earlier leader wrote other messages there"
            beyond.append(Beyond(other.path, OffsetRange(first, other.log_end_offset), reason))
    return Choice(best, tuple(beyond), tuple(others))


def _common_end(best: Replica, other: Replica) -> int:
    """The offset up to which both hold the same messages, by their leader epochs (OffsetsForLeaderEpoch, KIP-101)."""
    end = min(best.log_end_offset, other.log_end_offset)
    if best.epochs is None or other.last_epoch < 0:
        return end
    later = [entry.start_offset for entry in best.epochs.entries if entry.epoch > other.last_epoch]
    return min([end, *later])
