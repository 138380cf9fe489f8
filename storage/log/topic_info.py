"""A topic apart from its data: its id, its partition count, its configuration and the source of that.

A broker's directory has them in `__cluster_metadata-0`; settings made with kafkafs (`topic.properties`) override that.
Any other directory has `topic.properties` alone, and a topic consists of the partitions in the directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from storage.config.broker_config import BrokerConfig
from storage.config.log_config import LogConfig, read_overrides
from storage.errors import CorruptCheckpoint, InvalidConfig, StorageError
from storage.files import meta_properties, names, partition_metadata, topic_properties
from storage.files.file_mark import FileMark
from storage.log.tiering import is_tiered
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.files.cluster_metadata import ClusterMetadataReader
    from storage.files.metadata_replay import ClusterMetadata, TopicMetadata

CLUSTER_METADATA: Final = "cluster metadata"
TOPIC_PROPERTIES: Final = names.TOPIC_PROPERTIES
DEFAULTS: Final = "defaults"

_KEPT: Final = 20_000  # topics


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's description.

    `partition_count`: None if only the broker knows it. `config`: in force, `overrides`: set for this topic, as texts.
    `source`: of the overrides, CLUSTER_METADATA or TOPIC_PROPERTIES (which wins), DEFAULTS if there are none.
    `replicas`: of the partition with the most; 1 without a cluster. `problems`: parts that could not be read or
    understood and were left out.
    """

    topic: str
    topic_id: str | None
    partition_count: int | None
    config: LogConfig
    overrides: Mapping[str, str]
    source: str
    replicas: int = 1
    problems: tuple[StorageError, ...] = ()

    @property
    def is_tiered(self) -> bool | None:
        """Whether older messages may be in tiered storage; None if the topic's configuration is unknown: the cluster's
        metadata are missing, or nothing is configured."""
        if is_tiered(self.overrides):
            return True
        return None if self.source == DEFAULTS or self.partition_count is None else False


@dataclass(frozen=True, slots=True)
class _Known:
    """A topic's description, and everything from which it was derived: it is stale as soon as one of these changes.

    `files`: see `_mark`, taken before the files were read. `described`: the topic in the cluster's metadata. It and the
    broker's configuration are replaced as a whole when they change, so each is compared as an object.
    """

    info: TopicInfo
    partitions: list[int]
    files: tuple[FileMark | None, FileMark | None]
    described: TopicMetadata | None
    broker: BrokerConfig


class TopicInfos:
    """The topics of one log directory. Thread-safe."""

    def __init__(self, path: Path, config: BrokerConfig, *, is_broker: bool) -> None:
        # Constant after construction.
        self._path = path
        self._place = os.fspath(path)
        self._given = config
        self._is_broker = is_broker
        self._node_id: int | None = None
        self._meta_problem: StorageError | None = None
        if is_broker:
            try:
                meta = meta_properties.read(path / names.META_PROPERTIES)
                self._node_id = None if meta is None else meta.node_id
            except CorruptCheckpoint as error:
                self._meta_problem = error
        # Guarded by the lock.
        self._lock = Lock()
        self._reader = _reader(path) if is_broker else None
        self._metadata: ClusterMetadata | None = None
        self._values: Mapping[str, str] = {}
        self._broker = config
        # Read and written without a lock, each entry as a whole: at worst a topic's files are read twice.
        self._known: dict[str, _Known] = {}

    def cluster(self) -> ClusterMetadata | None:
        """The cluster's present metadata; None if the directory has none."""
        return self._current()[0]

    def broker_config(self) -> BrokerConfig:
        """The configuration given, with the values that the cluster's metadata set for this broker."""
        return self._current()[1]

    def problems(self) -> list[StorageError]:
        """The faults of meta.properties and the metadata log."""
        metadata = self.cluster()
        known_problems = (self._meta_problem, None if metadata is None else metadata.problem)
        return [problem for problem in known_problems if problem is not None]

    def of(self, topic: str, partitions: list[int]) -> TopicInfo:
        """The topic whose `partitions` (ascending, at least one) are in the directory; the same object as before if
        nothing has changed."""
        metadata, broker = self._current()
        described = None if metadata is None else metadata.topics.get(topic)
        directory = f"{self._place}/{TopicPartition(topic, partitions[0]).dir_name}"
        id_mark = _mark(f"{directory}/{names.PARTITION_METADATA}")
        properties_mark = _mark(f"{directory}/{names.TOPIC_PROPERTIES}")
        held = self._known.get(topic)
        if (
            held is not None
            and held.files == (id_mark, properties_mark)
            and all(mark is None or mark.settled for mark in held.files)
            and held.partitions == partitions
            and held.broker is broker
            and held.described is described
        ):
            return held.info
        info = self._read(topic, partitions, described, broker)
        if len(self._known) >= _KEPT:
            self._known.clear()  # most belong to removed topics, or a caller walks through very many
        self._known[topic] = _Known(info, partitions, (id_mark, properties_mark), described, broker)
        return info

    def _read(self, topic: str, partitions: list[int], known: TopicMetadata | None, broker: BrokerConfig) -> TopicInfo:
        directory = self._path / TopicPartition(topic, partitions[0]).dir_name
        problems: list[StorageError] = []
        own_id: str | None = None
        own: dict[str, str] | None = None
        try:
            own_id = partition_metadata.read(directory / names.PARTITION_METADATA)
        except CorruptCheckpoint as error:
            problems.append(error)
        try:
            own = topic_properties.read(directory / names.TOPIC_PROPERTIES)
        except CorruptCheckpoint as error:
            problems.append(error)
        if known is not None and own_id is not None and known.topic_id != own_id:
            # The cluster now has another topic of that name: these are the data of the old one.
            known = None
        overrides = {**({} if known is None else known.configs), **(own or {})}
        source = DEFAULTS if known is None else CLUSTER_METADATA
        if own is not None:
            source = TOPIC_PROPERTIES
        config = broker.topic_defaults
        misunderstood: tuple[InvalidConfig, ...] = ()
        if overrides:
            config, misunderstood = read_overrides(config, overrides)
        count: int | None = partitions[-1] + 1
        if known is not None:
            count = max(known.partitions, default=-1) + 1
        elif self._is_broker and topic != names.CLUSTER_METADATA_TOPIC:
            count = None
        return TopicInfo(
            topic=topic,
            topic_id=own_id if known is None else known.topic_id,
            partition_count=count,
            config=config,
            overrides=overrides,
            source=source,
            replicas=1 if known is None else max((len(p.replicas) for p in known.partitions.values()), default=1),
            problems=(*problems, *misunderstood),
        )

    def _current(self) -> tuple[ClusterMetadata | None, BrokerConfig]:
        if self._reader is None:
            return None, self._given
        with self._lock:
            metadata = self._reader.refresh()
            if metadata is not self._metadata:
                values = {} if metadata is None else metadata.broker_values(self._node_id)
                if values != self._values:  # a broker adds to its metadata twice a second, but hardly ever these values
                    self._values = values
                    self._broker = self._given.with_values(values) if values else self._given
                self._metadata = metadata
            return self._metadata, self._broker


def _mark(path: str) -> FileMark | None:
    """Identifies a state of a file; None if it is missing, or its status cannot be read."""
    try:
        return FileMark.of(os.lstat(path))
    except OSError:
        return None


def _reader(path: Path) -> ClusterMetadataReader:
    # Imports the formats of the cluster's records, which only a broker's directory has.
    from storage.files.cluster_metadata import ClusterMetadataReader

    return ClusterMetadataReader(path)
