"""The rules for topics: what guests may do in a broker's directory, and with internal topics.

Pure. The rules keep a guest from losing anybody's data. See storage/DESIGN.md, "Sharing a directory with a broker".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from storage.config import LogConfig, Origin
from storage.errors import NotPermitted
from storage.files import names
from storage.log.topic_info import TopicInfo

_RETENTION_KEYS: Final = ("retention.ms", "retention.bytes", "retention.free.bytes")


def check_topics_may_change(path: Path, *, is_broker: bool) -> None:
    """NotPermitted in a broker's directory: the broker would set aside topics that its metadata does not know, as
    strays."""
    if is_broker:
        raise NotPermitted(
            "topics are created and removed by the broker that owns this directory",
            path=path,
            advice="Create the topic on the broker, stop it, then append or mirror into it",
        )


def check_topic_may_be_created(topic: str) -> None:
    """NotPermitted for the cluster's metadata log, which only a broker's directory has."""
    if topic == names.CLUSTER_METADATA_TOPIC:
        raise NotPermitted(f"{topic} is the brokers' own log: only they create it", advice="Choose another name")


def check_topic_may_be_made_by_hand(topic: str) -> None:
    """NotPermitted for topics whose partitions and configuration their writers depend on."""
    check_topic_may_be_created(topic)
    if topic in names.INTERNAL_TOPICS:
        raise NotPermitted(
            f"{topic} is internal to Kafka",
            advice="__consumer_offsets is created by `kafkafs groups --reset-to`, the others by a broker",
        )


def check_config_may_change(topic: str) -> None:
    """NotPermitted for the cluster's metadata log."""
    if topic == names.CLUSTER_METADATA_TOPIC:
        raise NotPermitted("the cluster's metadata log belongs to the brokers")


def check_append(info: TopicInfo, *, force: bool = False, as_group_coordinator: bool = False) -> None:
    """NotPermitted for a topic that must not be appended to. `force`: allows it for topics with several replicas."""
    if info.topic == names.CLUSTER_METADATA_TOPIC:
        raise NotPermitted("the cluster's metadata log is never written")
    if info.topic in names.INTERNAL_TOPICS and not (
        as_group_coordinator and info.topic == names.CONSUMER_OFFSETS_TOPIC
    ):
        raise NotPermitted(
            f"{info.topic} is internal to Kafka", advice="`kafkafs groups --reset-to` writes committed offsets"
        )
    if info.replicas > 1 and not force:
        raise NotPermitted(
            f"{info.topic} has {info.replicas} replicas: a leader elsewhere would truncate what is appended here",
            advice="--force appends anyway",
        )


def check_records_may_go(info: TopicInfo, *, is_broker: bool) -> None:
    """NotPermitted for topics that belong to the brokers: not even an explicit request removes messages there."""
    if _is_untouchable(info.topic, is_broker):
        raise NotPermitted(f"{info.topic} belongs to the brokers: nothing is removed from it")


def may_retain(info: TopicInfo, *, is_broker: bool) -> bool:
    """Whether retention may remove segments at all: only if limits were set for this topic or this broker."""
    return not _is_untouchable(info.topic, is_broker) and any(
        info.config.origin(key) is not Origin.DEFAULT for key in _RETENTION_KEYS
    )


def may_compact(info: TopicInfo, *, is_broker: bool) -> bool:
    """Whether compaction may run: only if it was configured for this topic or this broker."""
    return (
        not _is_untouchable(info.topic, is_broker)
        and info.config.compact
        and info.config.origin("cleanup.policy") is not Origin.DEFAULT
    )


def retention_config(config: LogConfig) -> LogConfig:
    """The configuration without the limits of retention that are only defaults."""
    return config if config.origin("retention.ms") is not Origin.DEFAULT else replace(config, retention_ms=-1)


def _is_untouchable(topic: str, is_broker: bool) -> bool:
    return topic == names.CLUSTER_METADATA_TOPIC or (is_broker and topic in names.INTERNAL_TOPICS)
