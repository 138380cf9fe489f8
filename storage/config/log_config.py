"""A topic's configuration: Kafka's topic-level keys, their defaults in Kafka 4.x, and the origin of each value.

Source: LogConfig and ServerTopicConfigSynonyms of Kafka 4.3. Two keys differ: `segment.bytes` may be as small as
brokers before 4.0 allowed, and `message.format.version` (removed in 4.0) still selects the record format. See
storage/DESIGN.md, "Topic configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from storage.config import keys
from storage.config.keys import (
    ANY,
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MAX_LONG,
    STRING,
    Key,
    Rule,
    Synonym,
    at_least,
    between,
    key,
    keys_of,
    one_of,
    parse_value,
    some_of,
)
from storage.errors import InvalidConfig
from storage.types import TimestampType

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000

# The size of the smallest message: brokers before 4.0 accepted segments that small (LegacyRecord.RECORD_OVERHEAD_V0).
_SMALLEST_SEGMENT = 14

COMPACT = "compact"
DELETE = "delete"

_VERSION_MAGIC = {"0.8": 0, "0.9": 0, "0.10": 1}


@lru_cache(maxsize=64)
def _magic_of(version: str) -> int:
    return _VERSION_MAGIC.get(".".join(version.split("-")[0].split(".")[:2]), 2)


def _is_version(text: str) -> bool:
    parts = text.split("-")[0].split(".")
    return 2 <= len(parts) <= 4 and all(part.isascii() and part.isdigit() for part in parts)


def _negative_is_none(value: int) -> int:
    # KafkaConfig.logRetentionTimeMillis: any negative value means no limit.
    return -1 if value < 0 else value


_NO_ZERO = Rule("-1 or at least 1", lambda value: value != 0)


class Origin(Enum):
    """Who set a value (Kafka's ConfigSource)."""

    DEFAULT = "default"
    BROKER = "broker"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Frozen values of all topic-level keys. `origins`: who set those that are not defaults, by key name.

    `other`: keys of Kafka that kafkafs does not use, as texts.
    """

    # fmt: off
    segment_bytes: int = key(
        "segment.bytes", INT, 1024**3, at_least(_SMALLEST_SEGMENT), "Greatest size of a segment's .log.",
        broker="log.segment.bytes",
    )
    segment_ms: int = key(
        "segment.ms", LONG, 7 * _DAY_MS, at_least(1), "A segment is rolled when its messages span more time.",
        broker=("log.roll.ms", Synonym("log.roll.hours", INT, lambda hours: hours * _HOUR_MS, at_least(1))),
    )
    segment_jitter_ms: int = key(
        "segment.jitter.ms", LONG, 0, at_least(0), "Random time subtracted from segment.ms at most.",
        broker=(
            "log.roll.jitter.ms",
            Synonym("log.roll.jitter.hours", INT, lambda hours: hours * _HOUR_MS, at_least(0)),
        ),
    )
    segment_index_bytes: int = key(
        "segment.index.bytes", INT, 10 * 1024**2, at_least(4), "Size to which index files are preallocated.",
        broker="log.index.size.max.bytes",
    )
    index_interval_bytes: int = key(
        "index.interval.bytes", INT, 4096, at_least(0), "An index entry is added after more bytes than that.",
        broker="log.index.interval.bytes",
    )
    retention_ms: int = key(
        "retention.ms", LONG, 7 * _DAY_MS, at_least(-1), "Segments whose messages are older go; -1: none.",
        broker=(
            Synonym("log.retention.ms", LONG, _negative_is_none, _NO_ZERO),
            Synonym("log.retention.minutes", INT, lambda value: _negative_is_none(value * _MINUTE_MS), _NO_ZERO),
            Synonym("log.retention.hours", INT, lambda value: _negative_is_none(value * _HOUR_MS), _NO_ZERO),
        ),
    )
    retention_bytes: int = key(
        "retention.bytes", LONG, -1, ANY, "Oldest segments go while a partition is larger; negative: none.",
        broker="log.retention.bytes",
    )
    retention_free_bytes: int = key(
        "retention.free.bytes", LONG, -1, at_least(-1),
        "kafkafs' own: oldest segments go while the disk has less free space; -1: none.",
        broker="log.retention.free.bytes",
    )
    cleanup_policy: tuple[str, ...] = key(
        "cleanup.policy", LIST, (DELETE,), some_of(COMPACT, DELETE),
        "delete: retention applies; compact: the latest value per key is kept.",
        broker="log.cleanup.policy",
    )
    delete_retention_ms: int = key(
        "delete.retention.ms", LONG, _DAY_MS, at_least(0), "How long compaction keeps tombstones.",
        broker="log.cleaner.delete.retention.ms",
    )
    min_compaction_lag_ms: int = key(
        "min.compaction.lag.ms", LONG, 0, at_least(0), "Younger messages are not compacted.",
        broker="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = key(
        "max.compaction.lag.ms", LONG, MAX_LONG, at_least(1), "Older messages are compacted, however few they are.",
        broker="log.cleaner.max.compaction.lag.ms",
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1),
        "Share of new data from which compaction is worth while.", broker="log.cleaner.min.cleanable.ratio",
    )
    max_message_bytes: int = key(
        "max.message.bytes", INT, 1024**2 + 12, at_least(0), "Greatest size of a record batch as stored.",
        broker="message.max.bytes",
    )
    message_timestamp_type: str = key(
        "message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        "Whose clock: the producer's or the log's.", broker="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = key(
        "message.timestamp.before.max.ms", LONG, MAX_LONG, at_least(0),
        "Messages that lie further in the past are refused.", broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = key(
        "message.timestamp.after.max.ms", LONG, _HOUR_MS, at_least(0),
        "Messages that lie further in the future are refused.", broker="log.message.timestamp.after.max.ms",
    )
    compression_type: str = key(
        "compression.type", STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "Codec of new batches; producer: as they come.", broker="compression.type",
    )
    compression_gzip_level: int = key(
        "compression.gzip.level", INT, -1, Rule("from 1 to 9, or -1", lambda level: level == -1 or 1 <= level <= 9),
        "gzip's level.", broker="compression.gzip.level",
    )
    compression_lz4_level: int = key(
        "compression.lz4.level", INT, 9, between(1, 17), "lz4's level.", broker="compression.lz4.level",
    )
    compression_zstd_level: int = key(
        "compression.zstd.level", INT, 3, between(-131072, 22), "zstd's level.", broker="compression.zstd.level",
    )
    message_format_version: str = key(
        "message.format.version", STRING, "3.0-IV1", Rule("that is a Kafka version such as 0.10.2", _is_version),
        "Format of new messages: before 0.10 v0, before 0.11 v1, else v2.", broker="log.message.format.version",
    )
    flush_messages: int = key(
        "flush.messages", LONG, MAX_LONG, at_least(1), "fsync after so many messages.",
        broker="log.flush.interval.messages",
    )
    flush_ms: int = key(
        "flush.ms", LONG, MAX_LONG, at_least(0), "fsync after that time.",
        broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms", LONG, 60_000, at_least(0), "How long removed segments stay as .deleted.",
        broker="log.segment.delete.delay.ms",
    )
    preallocate: bool = key(
        "preallocate", BOOLEAN, False, ANY, "Allocate a new segment's .log on disk at once.", broker="log.preallocate",
    )
    # fmt: on
    origins: Mapping[str, Origin] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)

    @property
    def compact(self) -> bool:
        """Whether compaction applies."""
        return COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention by time and size applies."""
        return DELETE in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The time after which a segment is rolled, in ms (LogConfig.maxSegmentMs)."""
        return min(self.max_compaction_lag_ms, self.segment_ms) if self.compact else self.segment_ms

    @property
    def timestamp_type(self) -> TimestampType:
        """`message.timestamp.type` as a value."""
        return (
            TimestampType.LOG_APPEND_TIME
            if self.message_timestamp_type == "LogAppendTime"
            else TimestampType.CREATE_TIME
        )

    @property
    def message_magic(self) -> int:
        """The record format that `message.format.version` asks for: 0, 1 or 2 (highestSupportedRecordVersion)."""
        return _magic_of(self.message_format_version)

    def origin(self, name: str) -> Origin:
        """Who set this key."""
        return self.origins.get(name, Origin.DEFAULT)

    def texts(self) -> dict[str, str]:
        """Every topic-level key with its effective value, as text."""
        return {name: entry.show(getattr(self, entry.field)) for name, entry in TOPIC_KEYS.items()} | dict(self.other)

    def differing_texts(self) -> dict[str, str]:
        """The values, as texts by key, that differ from Kafka's defaults."""
        defaults = LogConfig().texts()
        return {key: value for key, value in self.texts().items() if value != defaults.get(key)}

    @staticmethod
    def from_overrides(defaults: LogConfig, overrides: Mapping[str, str]) -> LogConfig:
        """A topic's configuration: its own keys over `defaults`, the broker's (BrokerConfig.topic_defaults).

        InvalidConfig at the first bad key or value.
        """
        config, problems = read_overrides(defaults, overrides)
        if problems:
            raise problems[0]
        return config


TOPIC_KEYS: Mapping[str, Key] = keys_of(LogConfig)

# Other topic-level keys: brokers obey them, and kafkafs keeps them.
_BROKERS_TOPIC_KEYS = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)

LEAST_SEGMENT_BYTES = 1 << 20  # Kafka from 4.1 on refuses smaller ones, except as internal.segment.bytes
# Overrides segment.bytes, with the same meaning; Kafka 4.x has it without the minimum of 1 MiB.
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"

# The overrides of a topic that kafkafs creates, unless others are given: it keeps everything.
NEW_TOPIC_OVERRIDES: Mapping[str, str] = MappingProxyType({"retention.ms": "-1"})


def read_overrides(defaults: LogConfig, overrides: Mapping[str, str]) -> tuple[LogConfig, tuple[InvalidConfig, ...]]:
    """A topic's configuration from its valid keys, and the errors of the others.

    For configurations written by other programs, which must not prevent a partition from being read: in place of a bad
    value the broker's applies.
    """
    values: dict[str, object] = {}
    origins = dict(defaults.origins)
    other = dict(defaults.other)
    problems = []
    # internal.segment.bytes last, so that it wins.
    for name in sorted(overrides, key=lambda name: name == INTERNAL_SEGMENT_BYTES):
        entry = TOPIC_KEYS.get("segment.bytes" if name == INTERNAL_SEGMENT_BYTES else name)
        try:
            if entry is not None:
                values[entry.field] = parse_value(name, entry.kind, entry.rule, overrides[name])
                origins[entry.name] = Origin.TOPIC
            elif name in _BROKERS_TOPIC_KEYS:
                other[name] = overrides[name]
            else:
                raise unknown_topic_key(name)
        except InvalidConfig as problem:
            problems.append(problem)
    config = replace_values(defaults, values, origins, other)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        problems.append(
            InvalidConfig(
                "min.compaction.lag.ms is greater than max.compaction.lag.ms",
                expected=f"at most {config.max_compaction_lag_ms}",
                found=config.min_compaction_lag_ms,
            )
        )
    return config, tuple(problems)


def replace_values(
    config: LogConfig, values: Mapping[str, object], origins: Mapping[str, Origin], other: Mapping[str, str]
) -> LogConfig:
    """`config` with other values, by field name."""
    kept = {entry.field: getattr(config, entry.field) for entry in TOPIC_KEYS.values()}
    return LogConfig(
        **(kept | dict(values)), origins=MappingProxyType(dict(origins)), other=MappingProxyType(dict(other))
    )


def is_topic_key(name: str) -> bool:
    """Whether Kafka or kafkafs has this topic-level key."""
    return name in TOPIC_KEYS or name in _BROKERS_TOPIC_KEYS or name == INTERNAL_SEGMENT_BYTES


def check_topic_key(name: str) -> None:
    """InvalidConfig when neither Kafka nor kafkafs knows this topic-level key."""
    if not is_topic_key(name):
        raise unknown_topic_key(name)


def unknown_topic_key(name: str) -> InvalidConfig:
    """The error for a topic-level key that neither Kafka nor kafkafs knows; it names the most similar known key."""
    for entry in TOPIC_KEYS.values():
        if any(synonym.name == name for synonym in entry.broker):
            advice = f"At topic level it is {entry.name!r}"
            break
    else:
        nearest = keys.nearest(name, (*TOPIC_KEYS, *_BROKERS_TOPIC_KEYS))
        advice = f"Did you mean {nearest!r}?" if nearest else "`kafkafs topics describe` lists all keys"
    return InvalidConfig(f"unknown topic configuration {name!r}", advice=advice)
