"""The log directories that a scan reads as if they were one: those of one broker, or of several brokers of a cluster.

A partition with replicas in several directories is read once: from the replica with the highest last leader epoch, then
the longest, then the first. Planning makes the choice, and sends it to the tasks with their splits, because replicas
differ while a broker has not yet truncated its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from kafkafs.arrow.invalid_option import InvalidOption
from storage.errors import CorruptCheckpoint, StorageError, UnknownTopicOrPartition
from storage.files import leader_epochs, meta_properties, names
from storage.log.log_dir import LogDir
from storage.log.rereads import reread
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.log.snapshot import LogSnapshot, ReadableLog
    from storage.tier.tier import Tier


_MOST_LOOKS: Final = 10  # for a partition that moves after every look
_Read = TypeVar("_Read")


class LogDirs:
    """Log directories, read-only, as of the last `refresh`. Thread-safe: a `refresh` by one thread takes effect in all
    threads at once. Unpickling opens the directories again."""

    def __init__(self, paths: Sequence[Path], tier: Tier | None = None) -> None:
        """InvalidOption if the directories belong to different clusters; OSError."""
        # Constant after construction.
        self._opened_with = tuple(paths), tier
        self.directories = tuple(LogDir.open_read_only(path, tier=tier) for path in paths)
        # Held during a refresh of all directories: a partition that moves from one to another must not seem to be in
        # neither.
        self._lock = Lock()
        self._check_cluster()

    def __reduce__(self) -> tuple[type[LogDirs], tuple[tuple[Path, ...], Tier | None]]:
        return LogDirs, self._opened_with

    def __str__(self) -> str:
        return ", ".join(str(directory.path) for directory in self.directories)

    def refresh(self) -> None:
        """List again those directories in which partitions were added or removed. OSError."""
        with self._lock:
            for directory in self.directories:
                directory.refresh()

    def topics(self) -> list[str]:
        """The topics in all directories, ascending."""
        with self._lock:
            return sorted({topic for directory in self.directories for topic in directory.topics()})

    def partitions(self, topic: str) -> list[int]:
        """A topic's partitions that are in any directory, ascending."""
        with self._lock:
            return sorted({number for directory in self.directories for number in _numbers(directory, topic)})

    def absent(self) -> list[TopicPartition]:
        """The partitions that a directory knows of and no directory contains, ascending: see LogDir.absent."""
        with self._lock:
            missing = {tp for directory in self.directories for tp in directory.absent()}
            return sorted(tp for tp in missing if not self._having_locked(tp))

    def log(self, tp: TopicPartition) -> ReadableLog:
        """Return the log of a partition's chosen replica. UnknownTopicOrPartition, InvalidOption."""
        while True:
            directory = self.directories[self.place(tp)]
            # Another thread's refresh may have moved or removed the partition; then `place` reports it.
            with suppress(UnknownTopicOrPartition):
                return directory.log(tp)

    def read(self, tp: TopicPartition, read: Callable[[LogDir, LogSnapshot], _Read]) -> _Read:
        """Return the result of `read`, called with the chosen directory and a snapshot of the partition's log. If the
        segments disappear during the call, repeat it with another directory or a newer snapshot.

        UnknownTopicOrPartition, InvalidOption, SegmentGone.
        """
        looks = 0
        while True:
            directory = self.directories[self.place(tp)]
            try:
                return reread(directory.log(tp), partial(read, directory))
            except UnknownTopicOrPartition:
                looks += 1
                if looks == _MOST_LOOKS:
                    raise
            self.refresh()

    def place(self, tp: TopicPartition) -> int:
        """The number of the directory with a partition's chosen replica. UnknownTopicOrPartition, InvalidOption."""
        with self._lock:
            having = self._having_locked(tp)
        if not having:
            raise UnknownTopicOrPartition(f"no partition {tp} here", path=self.directories[0].path)
        if len(having) == 1:
            return having[0]
        self._check_topic_ids(tp.topic, having)
        return max(having, key=lambda place: (*self._last_epoch_and_end(place, tp), -place))

    def _having_locked(self, tp: TopicPartition) -> list[int]:
        return [
            place for place, directory in enumerate(self.directories) if tp.partition in _numbers(directory, tp.topic)
        ]

    def _last_epoch_and_end(self, place: int, tp: TopicPartition) -> tuple[int, int]:
        """The rank of a replica; below all others if another thread's refresh has removed the partition."""
        directory = self.directories[place]
        try:
            end = directory.log(tp).snapshot().log_end_offset
        except UnknownTopicOrPartition:
            return -2, -1
        try:
            epoch = leader_epochs.read(directory.path / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT).latest_epoch
        except CorruptCheckpoint:
            epoch = None
        return -1 if epoch is None else epoch, end

    def _check_cluster(self) -> None:
        path_by_cluster: dict[str, Path] = {}
        for directory in self.directories:
            try:
                properties = meta_properties.read(directory.path / names.META_PROPERTIES)
            except StorageError:
                continue
            if properties is not None and properties.cluster_id is not None:
                path_by_cluster.setdefault(properties.cluster_id, directory.path)
        if len(path_by_cluster) > 1:
            each = " and ".join(f"{path} belongs to cluster {cluster}" for cluster, path in path_by_cluster.items())
            raise InvalidOption(f"log directories of different clusters cannot be read as one: {each}")

    def _check_topic_ids(self, topic: str, having: Sequence[int]) -> None:
        path_by_id: dict[str, Path] = {}
        for place in having:
            topic_id = None
            with suppress(UnknownTopicOrPartition):  # another thread's refresh has removed it
                topic_id = self.directories[place].topic_info(topic).topic_id
            if topic_id is not None:
                path_by_id.setdefault(topic_id, self.directories[place].path)
        if len(path_by_id) > 1:
            each = " and ".join(f"{path} has id {topic_id}" for topic_id, path in path_by_id.items())
            raise InvalidOption(f"topic {topic} is not the same in all log directories: {each}")


def _numbers(directory: LogDir, topic: str) -> list[int]:
    """A directory's partitions of a topic, listed once: another thread may refresh the directory between two calls."""
    try:
        return directory.partitions(topic)
    except UnknownTopicOrPartition:
        return []


@lru_cache(maxsize=4)
def _opened(paths: tuple[Path, ...], tier: Tier | None) -> LogDirs:
    return LogDirs(paths, tier)


def open_log_dirs(paths: tuple[Path, ...], tier: Tier | None = None) -> LogDirs:
    """The log directories in their present state, with the remote segments in `tier`. The process keeps them, so that
    its next task finds the logs already open. InvalidOption, OSError."""
    log_dirs = _opened(paths, tier)
    log_dirs.refresh()
    return log_dirs
