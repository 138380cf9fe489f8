"""The topics of the new directory: under which ids, with how many partitions, with which configuration.

Nobody may know a topic's configuration any more. What is not known must not cost messages: a topic whose retention is
not known keeps everything, and that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from storage.config import BrokerConfig, LogConfig, read_overrides
from storage.config.log_config import INTERNAL_SEGMENT_BYTES, check_topic_key, is_topic_key
from storage.coordinators.groups import CommittedOffset, GroupReplay, GroupType
from storage.coordinators.transactions import TransactionalIds, transactional_ids
from storage.errors import InvalidConfig, InvalidTopic
from storage.files import names, partition_metadata
from storage.files.cluster_metadata import TopicMetadata
from storage.format.hashing import group_partition
from storage.format.messages import messages
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.log.tiering import TIERED_KEYS
from storage.revival.sources import Found, Replica
from storage.types import OffsetRange, TopicPartition

# The features of a new cluster: as the old one had them, as a release has them by default, or as its formats need.
#
# Without them a broker starts and then refuses its own data: a transactional id whose last record names a transaction
# version cannot begin another transaction in a cluster without that feature. Source: Kafka's Feature, MetadataVersion,
# and what `kafka-storage version-mapping` and `feature-dependencies` of Kafka 4.3.0 and 4.4.0 print.

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"

# 3.9-IV0: brokers 3.9 and 4.x start with it, and more than 10,000 records are appended in several batches.
LEAST_METADATA_VERSION: Final = 21

_SINCE_4_0: Final = {METADATA_VERSION: 25, TRANSACTION_VERSION: 2, GROUP_VERSION: 1}
_SINCE_4_1: Final = {**_SINCE_4_0, METADATA_VERSION: 27, ELIGIBLE_LEADER_REPLICAS: 1}
_SINCE_4_2: Final = {**_SINCE_4_1, METADATA_VERSION: 29, SHARE_VERSION: 1, STREAMS_VERSION: 1}
RELEASES: Final[Mapping[str, Mapping[str, int]]] = {
    "3.9": {METADATA_VERSION: LEAST_METADATA_VERSION},
    "4.0": _SINCE_4_0,
    "4.1": _SINCE_4_1,
    "4.2": _SINCE_4_2,
    "4.3": {**_SINCE_4_2, METADATA_VERSION: 30},
    "4.4": {**_SINCE_4_2, METADATA_VERSION: 33, SHARE_VERSION: 2},
}


def features(known: Mapping[str, int], needed: Iterable[str], release: str | None) -> dict[str, int]:
    """Levels by name. `known`: of the old cluster, empty if nobody knows; `needed`: the names of those whose formats
    the data have; `release`: one of RELEASES, whose levels are taken instead of the known ones.

    Where neither is given, the levels of the first release that has all that are needed. InvalidConfig when `release`
    lacks one of them.
    """
    wanted = set(needed)
    if release is not None:
        lacking = wanted - RELEASES[release].keys()
        if lacking:
            raise InvalidConfig(
                f"the data need {', '.join(sorted(lacking))}, which Kafka {release} does not have",
                expected=f"release {_first_with(wanted)} or later",
                found=release,
            )
        return dict(RELEASES[release])
    if known:
        return {**known, METADATA_VERSION: max(known.get(METADATA_VERSION, 0), LEAST_METADATA_VERSION)}
    levels = RELEASES[_first_with(wanted)]
    return {name: levels[name] for name in (METADATA_VERSION, *sorted(wanted))}


def _first_with(wanted: set[str]) -> str:
    return next(release for release, levels in RELEASES.items() if wanted <= levels.keys())


# Which replica of a partition is taken, and what the others have that it has not.
#
# As in an unclean leader election: the highest last leader epoch, then the highest log end offset, then the most bytes.
# Where that one is damaged, what can be read of each counts instead of its log end offset. Of equal ones the first.


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


# What the coordinators' own topics say about the others: committed offsets, transactional ids, numbers of partitions.
#
# Read from the new directory once its logs are built; the numbers of partitions from the replicas that were chosen.

COORDINATORS_TOPICS = (names.CONSUMER_OFFSETS_TOPIC, names.TRANSACTION_STATE_TOPIC)
_FEATURES = {
    GroupType.CONSUMER: GROUP_VERSION,
    GroupType.SHARE: SHARE_VERSION,
    GroupType.STREAMS: STREAMS_VERSION,
}
_NAMES = ("group", "groupId", "transactionalId")  # the field of a key that decides where the record is
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
    """What the coordinators know. `features`: the names of those without which a broker refuses to go on with it, or
    knows no such groups. `problems`: what was left out."""

    transactions: TransactionalIds
    commits: list[GroupCommit] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def greatest_producer_id(self) -> int:
        """Of all transactional ids, the ids before and after the present one included; -1 without any."""
        known = self.transactions.by_id.values()
        ids = ((one.producer_id, one.previous_producer_id, one.next_producer_id) for one in known)
        return max(chain.from_iterable(ids), default=-1)


def read_coordinators(log_dir: LogDir) -> Coordinated:
    """Everything in the COORDINATORS_TOPICS of a directory. OSError; damage is in `problems`."""
    known = Coordinated(transactional_ids(log_dir))
    known.problems += known.transactions.problems
    if any(one.client_version for one in known.transactions.by_id.values()):
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
    """How many partitions a coordinators' topic had, from where its keys are: each is in the partition of its hash.

    If the partitions from 0 on are here without a gap, their number; otherwise 50, Kafka's default, or the least that
    fits. InvalidConfig when none fits. Source: GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor.
    """
    here = max(snapshots) + 1
    keys = {number: set(_keys(topic, snapshot)) for number, snapshot in snapshots.items()}

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


def _keys(topic: str, snapshot: LogSnapshot) -> Iterable[str]:
    for block in read_range(snapshot, snapshot.log_start_offset):
        for key, _, _ in messages(topic).objects(block):
            if key is not None:
                yield next(key["data"][name] for name in _NAMES if name in key["data"])


_COORDINATORS_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
_LEAST_SEGMENT_BYTES: Final = 1 << 20  # Kafka 4.x refuses less, except as internal.segment.bytes
# They would keep a broker of one node from working.
_OF_A_CLUSTER: Final = (
    "min.insync.replicas",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
MOST_PARTITIONS: Final = 1_000_000
_OURS_OR_GONE: Final = ("retention.free.bytes", "message.format.version")


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """Configuration given by the user: for all topics except internal ones, and for single ones by name."""

    everywhere: Mapping[str, str] = field(default_factory=dict)
    by_topic: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the new directory. `choices` by partition; the `missing` ones are made empty by the broker.

    `configs`: as written for the broker. `assumed`: those of them that nobody knew. `left_out`: those that a broker of
    one node, or of today, does not take. `config`: what they mean. `leader_epochs`: as the cluster's metadata knew
    them. `ignored`: replicas of another topic of that name.
    """

    name: str
    topic_id: str
    partition_count: int
    choices: Mapping[int, Choice]
    configs: Mapping[str, str]
    config: LogConfig
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    ignored: tuple[Replica, ...] = ()

    @property
    def missing(self) -> list[int]:
        return [number for number in range(self.partition_count) if number not in self.choices]


def plan_topics(
    found: Found, replicas: Sequence[Replica], request: ConfigRequest, counts: Mapping[str, int]
) -> list[TopicPlan]:
    """One plan for each topic that has a replica, by name. `counts`: numbers of partitions that the user gives.

    InvalidTopic when a topic's partitions have different ids and nobody knows which is right, or when there are more
    partitions than a cluster has; InvalidConfig.
    """
    by_topic: dict[str, list[Replica]] = {}
    for replica in replicas:
        by_topic.setdefault(replica.tp.topic, []).append(replica)
    for name in (*request.by_topic, *counts):
        if name not in by_topic:
            raise InvalidConfig(f"a value is given for topic {name!r}, which is not among those to revive")
    planned = [_plan(found, name, by_topic[name], request, counts.get(name)) for name in sorted(by_topic)]
    partitions = sum(topic.partition_count for topic in planned)
    if partitions > MOST_PARTITIONS:
        largest = max(planned, key=lambda topic: topic.partition_count)
        raise InvalidTopic(
            f"the topics have too many partitions, {largest.name} the most: {largest.partition_count}",
            expected=f"at most {MOST_PARTITIONS} together",
            found=partitions,
        )
    return planned


def _plan(
    found: Found, name: str, replicas: list[Replica], request: ConfigRequest, count_given: int | None
) -> TopicPlan:
    described = _described(found, name)
    ids = {replica.topic_id for replica in replicas if replica.topic_id is not None}
    if described is not None and ids and described.topic_id not in ids:
        described = None  # the cluster has a later topic of that name: these are the data of the old one
    if len(ids) > 1 and described is None:
        listed = ", ".join(f"{one.path} {one.topic_id}" for one in replicas if one.topic_id is not None)
        raise InvalidTopic(
            f"the partitions of {name} belong to different topics of that name: {listed}. "
            "Name the directories of one of them as sources"
        )
    topic_id = described.topic_id if described is not None else next(iter(ids), None) or partition_metadata.random_id()
    own = [replica for replica in replicas if replica.topic_id in (None, topic_id)]
    choices = {tp.partition: choice for tp, choice in choose(own).items()}
    known = {} if described is None else dict(described.configs)
    for choice in choices.values():
        if choice.replica.overrides is not None:
            known |= choice.replica.overrides
            break
    given = {**({} if name in names.INTERNAL_TOPICS else request.everywhere), **request.by_topic.get(name, {})}
    for key in given:
        check_topic_key(key)
    LogConfig.from_overrides(BrokerConfig().topic_defaults, given)
    configs, assumed, left_out = _configs(name, known | given)
    return TopicPlan(
        name,
        topic_id,
        _count(name, described, choices, count_given),
        choices,
        configs,
        read_overrides(BrokerConfig().topic_defaults, known | given)[0],
        assumed,
        left_out,
        {} if described is None else {number: one.leader_epoch for number, one in described.partitions.items()},
        tuple(replica for replica in replicas if replica not in own),
    )


def _described(found: Found, name: str) -> TopicMetadata | None:
    """The topic as the latest metadata that know it describe it."""
    knowing = [source.metadata for source in found.sources if source.metadata is not None]
    knowing = [metadata for metadata in knowing if name in metadata.topics]
    return max(knowing, key=lambda metadata: metadata.end_offset).topics[name] if knowing else None


def _count(name: str, described: TopicMetadata | None, choices: Mapping[int, Choice], given: int | None) -> int:
    least = max(choices) + 1
    if given is not None:
        if given < least:
            raise InvalidConfig(f"{name} has at least {least} partitions", expected=f"{least} or more", found=given)
        return given
    if described is not None and described.partitions:
        return max(least, max(described.partitions) + 1)
    if name in COORDINATORS_TOPICS:
        snapshots: dict[int, LogSnapshot] = {number: choice.replica.snapshot for number, choice in choices.items()}
        return partition_count(name, snapshots)
    return least


def _configs(name: str, known: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """The configuration for the broker, its assumed keys, and those that are left out."""
    configs: dict[str, str] = {}
    left_out = []
    for key, value in sorted(known.items()):
        unfit = key in _OF_A_CLUSTER or key.startswith(TIERED_KEYS) or key in _OURS_OR_GONE
        if unfit or not is_topic_key(key):
            left_out.append(f"{key}={value}")
        elif key == "segment.bytes" and value.strip().isdigit() and int(value[:20]) < _LEAST_SEGMENT_BYTES:
            configs[INTERNAL_SEGMENT_BYTES] = value
        else:
            configs[key] = value
    assumed = []
    if name in COORDINATORS_TOPICS:
        for key, value in _COORDINATORS_CONFIG.items():
            if key not in configs and not (key == "segment.bytes" and INTERNAL_SEGMENT_BYTES in configs):
                configs[key] = value
                assumed.append(key)
    elif "retention.ms" not in configs:
        configs["retention.ms"] = "-1"
        assumed.append("retention.ms")
    return configs, tuple(assumed), tuple(left_out)
