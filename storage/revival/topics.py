"""The topics of the new directory: their ids, partition counts and configurations.

A topic's configuration may be lost. Unknown settings never lose messages: a topic whose retention is unknown keeps
everything, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage.config import BrokerConfig, LogConfig, read_overrides
from storage.config.log_config import INTERNAL_SEGMENT_BYTES, LEAST_SEGMENT_BYTES, check_topic_key, is_topic_key
from storage.errors import InvalidConfig, InvalidTopic
from storage.files import names, partition_metadata
from storage.files.metadata_replay import TopicMetadata
from storage.log.batch_choice import are_two_logs
from storage.log.snapshot import LogSnapshot
from storage.log.tiering import TIERED_KEYS
from storage.revival.coordinators_topics import COORDINATORS_TOPICS, partition_count
from storage.revival.replica_choice import Choice, choose
from storage.revival.sources import FoundReplicas, Replica

_COORDINATORS_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
# With these a broker of one node would not work.
_OF_A_CLUSTER: Final = (
    "min.insync.replicas",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
MOST_PARTITIONS: Final = 1_000_000
_OURS_OR_GONE: Final = ("retention.free.bytes", "message.format.version")


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """Configuration given by the user: for all topics except internal ones, and for single topics by name."""

    everywhere: Mapping[str, str] = field(default_factory=dict)
    by_topic: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the new directory. `choices` by partition; the broker creates the `missing` ones empty.

    `configs`: as written for the broker. `assumed`: keys of unknown settings. `left_out`: keys that a broker of one
    node, or of today, does not accept. `config`: the parsed settings. `leader_epochs`: from the cluster's metadata.
    `ignored`: replicas of another topic of that name. `may_be_compacted`: the cleanup policy is unknown, and the topic
    counts as not compacted.
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
    may_be_compacted: bool = False

    @property
    def missing(self) -> list[int]:
        return [number for number in range(self.partition_count) if number not in self.choices]


def plan_topics(
    found: FoundReplicas, replicas: Sequence[Replica], request: ConfigRequest, counts: Mapping[str, int]
) -> list[TopicPlan]:
    """Return one plan for each topic that has a replica, by name. `counts`: numbers of partitions that the user gives.

    InvalidTopic if a topic's partitions have different ids and nobody knows which is right, or if there are more
    partitions than the cluster has; InvalidConfig.
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
    found: FoundReplicas, name: str, replicas: list[Replica], request: ConfigRequest, count_given: int | None
) -> TopicPlan:
    described = _described(found, name)
    ids = {replica.topic_id for replica in replicas if replica.topic_id is not None}
    if described is not None and ids and described.topic_id not in ids:
        described = None  # the cluster has a later topic of that name: these are the data of the old one
    if len(ids) > 1 and described is None:
        listed = ", ".join(f"{replica.path} {replica.topic_id}" for replica in replicas if replica.topic_id is not None)
        raise InvalidTopic(
            f"the partitions of {name} belong to different topics of that name: {listed}. "
            "Name the directories of one of them as sources"
        )
    topic_id = described.topic_id if described is not None else next(iter(ids), None) or partition_metadata.random_id()
    known_own = [replica for replica in replicas if replica.topic_id == topic_id]
    own = [replica for replica in replicas if replica in known_own or _may_belong(replica, known_own)]
    choices = {tp.partition: choice for tp, choice in choose(own).items()}
    known: dict[str, str] = {}
    if described is not None:
        known |= described.configs
    else:  # of all replicas: a mirror of a directory without the metadata log lacks its topics' configuration
        for replica in own:
            known |= replica.overrides or {}
    for choice in choices.values():
        if choice.replica.overrides is not None:
            known |= choice.replica.overrides
            break
    is_internal = name in names.INTERNAL_TOPICS
    given = {**({} if is_internal else request.everywhere), **request.by_topic.get(name, {})}
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
        {}
        if described is None
        else {number: partition.leader_epoch for number, partition in described.partitions.items()},
        tuple(replica for replica in replicas if replica not in own),
        described is None and not is_internal and "cleanup.policy" not in known | given,
    )


def _may_belong(replica: Replica, known: Sequence[Replica]) -> bool:
    """Whether a replica whose topic id is unknown may belong to the topic of those whose id is known."""
    if replica.topic_id is not None:
        return False
    same = [other for other in known if other.tp == replica.tp]
    return not any(are_two_logs(other.snapshot, replica.snapshot) for other in same)


def _described(found: FoundReplicas, name: str) -> TopicMetadata | None:
    """The topic in the latest metadata that have it."""
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
    """The configuration for the broker, its assumed keys, and keys that are left out."""
    configs: dict[str, str] = {}
    left_out = []
    for key, value in sorted(known.items()):
        unfit = key in _OF_A_CLUSTER or key.startswith(TIERED_KEYS) or key in _OURS_OR_GONE
        if unfit or not is_topic_key(key):
            left_out.append(f"{key}={value}")
        elif key == "segment.bytes" and value.strip().isdigit() and int(value[:20]) < LEAST_SEGMENT_BYTES:
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
