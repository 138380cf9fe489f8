"""The broker's configuration: the keys of a server.properties that concern a log directory.

Source: KafkaConfig, LogConfig, CleanerConfig and ServerLogConfigs of Kafka 4.3, with its defaults and precedence
(`log.retention.ms` over `.minutes` over `.hours`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from storage.config import keys
from storage.config.keys import (
    ANY,
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MAX_LONG,
    Key,
    at_least,
    key,
    keys_of,
    parse_value,
)
from storage.config.log_config import TOPIC_KEYS, LogConfig, Origin, replace_values
from storage.errors import CorruptCheckpoint, InvalidConfig
from storage.format import properties


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Frozen broker-level values. `topic_defaults` is the configuration of a topic that sets nothing itself.

    `given`: all keys and texts that were set. `problems`: names that are probably mistyped, each with the key that is
    meant. `unused`: the other keys that kafkafs does not use.
    """

    num_partitions: int = key("num.partitions", INT, 1, at_least(1), "Partitions of a new topic.")
    log_dirs: tuple[str, ...] = key("log.dirs", LIST, (), ANY, "A broker's log directories; kafkafs is given its own.")
    log_dir: tuple[str, ...] = key("log.dir", LIST, (), ANY, "As log.dirs, which wins.")
    retention_check_interval_ms: int = key(
        "log.retention.check.interval.ms", LONG, 300_000, at_least(1), "How often retention looks."
    )
    flush_scheduler_interval_ms: int = key(
        "log.flush.scheduler.interval.ms", LONG, MAX_LONG, ANY, "How often flush.ms is looked at."
    )
    recovery_point_checkpoint_interval_ms: int = key(
        "log.flush.offset.checkpoint.interval.ms", INT, 60_000, at_least(0), "How often recovery points are written."
    )
    log_start_checkpoint_interval_ms: int = key(
        "log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, at_least(0), "How often log starts are written."
    )
    high_watermark_checkpoint_interval_ms: int = key(
        "replica.high.watermark.checkpoint.interval.ms", LONG, 5_000, ANY, "How often high watermarks are written."
    )
    initial_task_delay_ms: int = key(
        "log.initial.task.delay.ms", LONG, 30_000, at_least(0), "Background work begins that long after the start."
    )
    recovery_threads: int = key("num.recovery.threads.per.data.dir", INT, 2, at_least(1), "Threads that recover logs.")
    cleaner_enable: bool = key("log.cleaner.enable", BOOLEAN, True, ANY, "Whether compaction runs.")
    cleaner_threads: int = key("log.cleaner.threads", INT, 1, at_least(0), "Threads that compact.")
    cleaner_dedupe_buffer_size: int = key(
        "log.cleaner.dedupe.buffer.size", LONG, 128 * 1024**2, ANY, "Bytes of the offset maps of all cleaner threads."
    )
    cleaner_io_buffer_load_factor: float = key(
        "log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, ANY, "How full an offset map may become."
    )
    cleaner_io_max_bytes_per_second: float = key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        ANY,
        "Limit of reads and writes together.",
    )
    cleaner_backoff_ms: int = key("log.cleaner.backoff.ms", LONG, 15_000, at_least(0), "Pause with nothing to compact.")
    producer_id_expiration_ms: int = key(
        "producer.id.expiration.ms", INT, 86_400_000, at_least(1), "A silent producer is forgotten after that time."
    )
    offsets_topic_num_partitions: int = key(
        "offsets.topic.num.partitions", INT, 50, at_least(1), "Partitions of __consumer_offsets."
    )
    topic_defaults: LogConfig = field(default_factory=LogConfig)
    given: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[InvalidConfig, ...] = ()
    unused: tuple[str, ...] = ()

    @staticmethod
    def from_values(given: Mapping[str, str]) -> BrokerConfig:
        """The configuration from keys and texts. InvalidConfig at the first bad value."""
        values: dict[str, Any] = {
            entry.field: entry.parse(given[name]) for name, entry in BROKER_KEYS.items() if name in given
        }
        topic: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for entry in TOPIC_KEYS.values():
            # All synonyms are checked; of those given, the one listed first counts.
            for synonym in reversed(entry.broker):
                if synonym.name in given:
                    value = parse_value(synonym.name, synonym.kind, synonym.rule, given[synonym.name])
                    topic[entry.field] = synonym.to_value(value)
                    origins[entry.name] = Origin.BROKER
        unknown = {name: _meant(name) for name in given if name not in _BROKER_NAMES}
        return BrokerConfig(
            **values,
            topic_defaults=replace_values(LogConfig(), topic, origins, {}),
            given=MappingProxyType(dict(given)),
            problems=tuple(
                InvalidConfig(f"unknown broker configuration {name!r}", advice=advice)
                for name, advice in unknown.items()
                if advice is not None
            ),
            unused=tuple(name for name, advice in unknown.items() if advice is None),
        )

    @staticmethod
    def from_file(path: Path) -> BrokerConfig:
        """The configuration in a properties file; a broker's own server.properties works.

        InvalidConfig when the file does not parse or a value is bad; OSError when it cannot be read.
        """
        try:
            given = properties.parse(path.read_bytes())
        except CorruptCheckpoint as error:
            raise InvalidConfig(error.what, path=path, expected=error.expected, found=error.found) from None
        try:
            return BrokerConfig.from_values(given)
        except InvalidConfig as error:
            error.path = path
            raise

    def with_values(self, more: Mapping[str, str]) -> BrokerConfig:
        """This configuration with more keys, which override its own, as a broker's dynamic configuration overrides its
        file."""
        return BrokerConfig.from_values({**self.given, **more})

    def warnings(self, log_dir: Path) -> list[str]:
        """Warnings about this configuration for `log_dir`: mistyped and unused keys, other log directories."""
        texts = [str(problem) for problem in self.problems]
        if self.unused:
            texts.append(f"not used by kafkafs: {', '.join(self.unused)}")
        named = self.log_dirs or self.log_dir
        resolved = log_dir.resolve()
        others = [name for name in named if Path(name).expanduser().resolve() != resolved]
        if others:
            used = "log.dirs" if self.log_dirs else "log.dir"
            texts.append(f"{used} names {', '.join(others)}; only {log_dir} is used")
        if not self.cleaner_io_max_bytes_per_second > 0:
            texts.append("log.cleaner.io.max.bytes.per.second lets the cleaner read nothing; a mount compacts nothing")
        return texts


BROKER_KEYS: Mapping[str, Key] = keys_of(BrokerConfig)

_BROKER_NAMES = frozenset((*BROKER_KEYS, *(synonym.name for entry in TOPIC_KEYS.values() for synonym in entry.broker)))

# Two of Kafka's own names are less similar: offsets.retention.check.interval.ms, which kafkafs does not use, and
# log.retention.check.interval.ms have 0.88.
_MISTYPED = 0.9


def _meant(name: str) -> str | None:
    """The key that an unknown name probably means; None for a key that kafkafs does not use."""
    if name in TOPIC_KEYS and TOPIC_KEYS[name].broker:
        return f"At broker level it is {TOPIC_KEYS[name].broker[0].name!r}"
    nearest = keys.nearest(name, _BROKER_NAMES, _MISTYPED)
    return None if nearest is None else f"Did you mean {nearest!r}?"
