"""The coordinators' own topics as sources about the others: committed offsets, transactional ids, partition counts.

They are read from the new directory once its logs are built; partition counts from the chosen replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from storage.coordinators.groups import GroupReplay
from storage.coordinators.offset_records import CommittedOffset, GroupType
from storage.coordinators.transactions import TransactionalIds, transactional_ids
from storage.errors import InvalidConfig
from storage.files import names
from storage.format.hashing import group_partition
from storage.format.messages import messages
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.revival.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION, TRANSACTION_VERSION
from storage.types import TopicPartition

COORDINATORS_TOPICS = (names.CONSUMER_OFFSETS_TOPIC, names.TRANSACTION_STATE_TOPIC)
_FEATURES = {
    GroupType.CONSUMER: GROUP_VERSION,
    GroupType.SHARE: SHARE_VERSION,
    GroupType.STREAMS: STREAMS_VERSION,
}
_NAMES = ("group", "groupId", "transactionalId")  # the field of a key that decides in which partition the record is
_DEFAULT_COUNT = 50  # offsets.topic.num.partitions, transaction.state.log.num.partitions
_MOST = 1000  # the most partitions to try


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """An offset that a group has committed."""

    group: str
    tp: TopicPartition
    committed: CommittedOffset


@dataclass(slots=True)
class Coordinated:
    """The coordinators' state. `features`: the names of features without which a broker refuses this state, or does not
    know such groups. `problems`: errors of what was left out."""

    transactions: TransactionalIds
    commits: list[GroupCommit] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def greatest_producer_id(self) -> int:
        """The greatest of all transactional ids' producer ids, previous and next ones included; -1 if there is none."""
        known = self.transactions.by_id.values()
        ids = ((state.producer_id, state.previous_producer_id, state.next_producer_id) for state in known)
        return max(chain.from_iterable(ids), default=-1)


def read_coordinators(log_dir: LogDir) -> Coordinated:
    """Everything in the COORDINATORS_TOPICS of a directory. OSError; damage is in `problems`."""
    known = Coordinated(transactional_ids(log_dir))
    known.problems += known.transactions.problems
    if any(state.client_version for state in known.transactions.by_id.values()):
        known.features.add(TRANSACTION_VERSION)
    for tp in log_dir.all_partitions():
        if tp.topic == names.CONSUMER_OFFSETS_TOPIC:
            replay = GroupReplay(tp.partition)
            known.problems += map(str, replay.read(log_dir.log(tp).snapshot()))
            for group in replay.groups({}).values():
                known.features |= {_FEATURES[group.type]} if group.type in _FEATURES else set()
                known.commits += [
                    GroupCommit(group.name, TopicPartition(topic, number), committed)
                    for topic, numbers in group.offsets.items()
                    for number, committed in numbers.items()
                ]
    return known


def partition_count(topic: str, snapshots: Mapping[int, LogSnapshot]) -> int:
    """Return how many partitions a coordinators' topic had, from its keys: each is in the partition of its hash.

    If the partitions from 0 on exist without a gap, their number; otherwise 50, Kafka's default, or the least number
    that fits. InvalidConfig if none fits. Source: GroupMetadataManager.partitionFor,
    TransactionStateManager.partitionFor.
    """
    least = max(snapshots) + 1
    keys = {number: set(_keys(topic, snapshot)) for number, snapshot in snapshots.items()}

    def fits(count: int) -> bool:
        return all(group_partition(key, count) == number for number, own in keys.items() for key in own)

    likely = [least, _DEFAULT_COUNT] if len(snapshots) == least and least > 1 else [_DEFAULT_COUNT, least]
    for count in chain(likely, range(least, _MOST)):
        if count >= least and fits(count):
            return count
    raise InvalidConfig(
        f"the number of partitions of {topic} cannot be found: its keys contradict each other",
        advice=f"Name it: --partitions {topic}=50",
    )


def _keys(topic: str, snapshot: LogSnapshot) -> Iterable[str]:
    for block in read_range(snapshot, snapshot.log_start_offset):
        for key, _, _ in messages(topic).objects(block):
            if key is not None:
                yield next(key["data"][name] for name in _NAMES if name in key["data"])
