"""What the coordinators' own topics say about the others: committed offsets, transactional ids, numbers of partitions.

Read from the new directory once its logs are built, or from the replicas that were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from storage.client.group_offsets import GroupReplay
from storage.errors import CorruptData, InvalidConfig, StorageError
from storage.files import names
from storage.format.group_records import CommittedOffset, CoordinatorKey, GroupKey, OffsetKey
from storage.format.group_records import parse_key as parse_group_key
from storage.format.hashing import group_partition
from storage.format.transaction_records import TransactionMetadata, parse_key, parse_value
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

COORDINATORS_TOPICS = (names.CONSUMER_OFFSETS_TOPIC, names.TRANSACTION_STATE_TOPIC)
_DEFAULT_COUNT = 50  # offsets.topic.num.partitions, transaction.state.log.num.partitions
_MOST = 1000  # partitions that are tried


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """An offset that a group has committed."""

    group: str
    tp: TopicPartition
    committed: CommittedOffset


@dataclass(slots=True)
class Coordinated:
    """What the coordinators know. `transactions` by transactional id; `problems`: records that were left out."""

    commits: list[GroupCommit] = field(default_factory=list)
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    problems: list[StorageError] = field(default_factory=list)

    def knows_as_open(self, tp: TopicPartition, producer_id: int) -> bool:
        """Whether the coordinator will end the producer's transaction in this partition."""
        return any(
            known.state.is_open and tp in known.partitions and known.producer_id == producer_id
            for known in self.transactions.values()
        )

    @property
    def greatest_producer_id(self) -> int:
        return max((known.greatest_producer_id for known in self.transactions.values()), default=-1)


def read_coordinators(snapshots: Mapping[TopicPartition, LogSnapshot]) -> Coordinated:
    """Everything in these logs of COORDINATORS_TOPICS. OSError; damage is in `problems`."""
    known = Coordinated()
    for tp, snapshot in snapshots.items():
        if tp.topic == names.CONSUMER_OFFSETS_TOPIC:
            replay = GroupReplay(tp.partition)
            known.problems += replay.read(snapshot)
            for group in replay.groups({}).values():
                known.commits += [
                    GroupCommit(group.name, TopicPartition(topic, number), committed)
                    for topic, numbers in group.offsets.items()
                    for number, committed in numbers.items()
                ]
        elif tp.topic == names.TRANSACTION_STATE_TOPIC:
            _read_transactions(snapshot, known)
    return known


def _read_transactions(snapshot: LogSnapshot, known: Coordinated) -> None:
    for block in read_range(snapshot, snapshot.log_start_offset):
        for row in range(len(block)):
            key, value = block.key(row), block.value(row)
            try:
                transactional_id = None if key is None else parse_key(key)
                if transactional_id is not None:
                    known.transactions.pop(transactional_id, None)
                    if value is not None:
                        known.transactions[transactional_id] = parse_value(value)
            except StorageError as error:
                error.path, error.offset = snapshot.segments[0].directory, int(block.offset[row])
                known.problems.append(error)
        if block.damage is not None:
            known.problems.append(block.damage.error)


def partition_count(topic: str, snapshots: Mapping[int, LogSnapshot]) -> int:
    """How many partitions a coordinators' topic had, from where its keys are: each is in the partition of its hash.

    If the partitions from 0 on are here without a gap, their number; otherwise 50, Kafka's default, or the least that
    fits. InvalidConfig when none fits. Source: GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor.
    """
    here = max(snapshots) + 1
    parse = _group_of if topic == names.CONSUMER_OFFSETS_TOPIC else parse_key
    keys = {number: set(_keys(snapshot, parse)) for number, snapshot in snapshots.items()}

    def fits(count: int) -> bool:
        return all(group_partition(key, count) == number for number, own in keys.items() for key in own)

    likely = [here, _DEFAULT_COUNT] if len(snapshots) == here and here > 1 else [_DEFAULT_COUNT, here]
    for count in chain(likely, range(here, _MOST)):
        if count >= here and fits(count):
            return count
    raise InvalidConfig(
        f"the number of partitions of {topic} cannot be found: its keys contradict each other",
        advice=f"Name it: --partitions {topic}=50",
    )


def _group_of(key: bytes) -> str | None:
    parsed = parse_group_key(key)
    return parsed.group if isinstance(parsed, OffsetKey | GroupKey | CoordinatorKey) else None


def _keys(snapshot: LogSnapshot, parse: Callable[[bytes], str | None]) -> Iterable[str]:
    for block in read_range(snapshot, snapshot.log_start_offset):
        for row in range(len(block)):
            raw = block.key(row)
            if raw is not None:
                with suppress(CorruptData):
                    key = parse(raw)
                    if key is not None:
                        yield key
