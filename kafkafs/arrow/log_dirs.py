"""The log directories that a scan reads as if they were one: those of one broker, or of several brokers of a cluster.

A partition that is in several of them (its replicas) is read once: from the replica with the highest last leader epoch,
then the longest, then the first. The choice is made during planning and sent to the tasks with their splits, because
replicas differ while a broker has not yet truncated its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import CorruptCheckpoint, StorageError, UnknownTopicOrPartition
from storage.files import leader_epochs, meta_properties, names
from storage.log.log_dir import LogDir
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.log.snapshot import Log
    from storage.tier.tier import Tier


class InvalidOption(ValueError):
    """An option that is unknown, missing, malformed, or excluded by another one."""


class LogDirs:
    """Log directories, read-only, as of the last `refresh`; not thread-safe."""

    def __init__(self, paths: Sequence[Path], tier: Tier | None = None) -> None:
        """InvalidOption if the directories belong to different clusters; OSError."""
        self.directories = [LogDir.open_read_only(path, tier=tier) for path in paths]
        self._check_cluster()

    def __str__(self) -> str:
        return ", ".join(str(directory.path) for directory in self.directories)

    def refresh(self) -> None:
        """Lists the directories again in which partitions were added or removed. OSError."""
        for directory in self.directories:
            directory.refresh()

    def topics(self) -> list[str]:
        """The topics in all directories, ascending."""
        return sorted({topic for directory in self.directories for topic in directory.topics()})

    def partitions(self, topic: str) -> list[int]:
        """A topic's partitions that are in any directory, ascending."""
        having = (directory for directory in self.directories if topic in directory.topics())
        return sorted({number for directory in having for number in directory.partitions(topic)})

    def absent(self) -> list[TopicPartition]:
        """The partitions that one of the directories knows and none has, ascending: see LogDir.absent."""
        missing = {tp for directory in self.directories for tp in directory.absent()}
        return sorted(tp for tp in missing if not self._having(tp))

    def log(self, tp: TopicPartition) -> Log:
        """A partition's log, from the replica that is read. UnknownTopicOrPartition, InvalidOption."""
        return self.directories[self.place(tp)].log(tp)

    def place(self, tp: TopicPartition) -> int:
        """The number of the directory that a partition is read from. UnknownTopicOrPartition, InvalidOption."""
        having = self._having(tp)
        if not having:
            raise UnknownTopicOrPartition(f"no partition {tp} here", path=self.directories[0].path)
        if len(having) == 1:
            return having[0]
        self._check_topic_ids(tp.topic, having)
        return max(having, key=lambda place: (*self._last_epoch_and_end(place, tp), -place))

    def _having(self, tp: TopicPartition) -> list[int]:
        return [
            place
            for place, directory in enumerate(self.directories)
            if tp.topic in directory.topics() and tp.partition in directory.partitions(tp.topic)
        ]

    def _last_epoch_and_end(self, place: int, tp: TopicPartition) -> tuple[int, int]:
        directory = self.directories[place]
        try:
            epoch = leader_epochs.read(directory.path / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT).latest_epoch
        except CorruptCheckpoint:
            epoch = None
        return -1 if epoch is None else epoch, directory.log(tp).snapshot().log_end_offset

    def _check_cluster(self) -> None:
        found: dict[str, Path] = {}
        for directory in self.directories:
            try:
                properties = meta_properties.read(directory.path / names.META_PROPERTIES)
            except StorageError:
                continue
            if properties is not None and properties.cluster_id is not None:
                found.setdefault(properties.cluster_id, directory.path)
        if len(found) > 1:
            each = " and ".join(f"{path} belongs to cluster {cluster}" for cluster, path in found.items())
            raise InvalidOption(f"log directories of different clusters cannot be read as one: {each}")

    def _check_topic_ids(self, topic: str, having: Sequence[int]) -> None:
        found: dict[str, Path] = {}
        for place in having:
            topic_id = self.directories[place].topic_info(topic).topic_id
            if topic_id is not None:
                found.setdefault(topic_id, self.directories[place].path)
        if len(found) > 1:
            each = " and ".join(f"{path} has id {topic_id}" for topic_id, path in found.items())
            raise InvalidOption(f"topic {topic} is not the same in all log directories: {each}")


@lru_cache(maxsize=4)
def _opened(paths: tuple[Path, ...], tier: Tier | None) -> LogDirs:
    return LogDirs(paths, tier)


def open_log_dirs(paths: tuple[Path, ...], tier: Tier | None = None) -> LogDirs:
    """The log directories as they are now, with the remote segments in `tier`. The process keeps them, so that its next
    task finds the logs already open. InvalidOption, OSError."""
    log_dirs = _opened(paths, tier)
    log_dirs.refresh()
    return log_dirs
