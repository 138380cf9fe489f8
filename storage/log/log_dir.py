"""All partitions of a log directory.

Opening it read-only takes no lock, changes nothing and opens no partition: it lists one directory. A partition's log is
opened at the first request, and then follows what other processes write (`ReadOnlyLog`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.clock import Clock, SystemClock
from storage.errors import CorruptCheckpoint, StorageError, UnknownTopicOrPartition
from storage.files import checkpoints, leader_epochs, names
from storage.files.file_mark import NEVER, FileMark
from storage.files.leader_epochs import LeaderEpochs
from storage.files.listing import scan_quietly
from storage.files.names import DirKind
from storage.files.opening import exists, is_directory, real_place
from storage.log.places import check_log_dir, is_stored
from storage.log.tiering import remote_offsets
from storage.types import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage.config.broker_config import BrokerConfig
    from storage.files.metadata_replay import ClusterMetadata
    from storage.log.remote_metadata import KnownSegment, RemoteMetadata
    from storage.log.snapshot import ReadableLog
    from storage.log.topic_info import TopicInfo, TopicInfos
    from storage.tier.remote_segments import RemoteSegment
    from storage.tier.tier import Tier

_SHOWN: Final = frozenset({DirKind.PARTITION, DirKind.CLUSTER_METADATA})
_REASONS: Final = {
    DirKind.DELETED: "is being deleted",
    DirKind.FUTURE: "is being moved here from another log directory",
    DirKind.STRAY: "is not in the broker's metadata (a stray)",
    DirKind.REMOTE_INDEX_CACHE: "is a cache of remote indexes",
}
_NUMBER: Final = f"has a partition number above {names.MAX_PARTITIONS - 1}, the highest that is read"
_NO_DIRECTORY: Final = "is not a directory"
_LINK: Final = "is a symbolic link that is not followed: it does not lead to a directory of the same name and owner"


class HiddenDir(NamedTuple):
    """A directory that is not a live partition, and why. `partition`: the partition in its name, if its name has
    one."""

    name: str
    reason: str
    kind: DirKind
    partition: TopicPartition | None = None


class LogDir:
    """A log directory: its topics, partitions and logs. Thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        config: BrokerConfig | None,
        clock: Clock,
        open_log: Callable[[TopicPartition], ReadableLog] | None = None,
    ) -> None:
        """`config`: None for Kafka's defaults.

        `open_log` returns the logs of the process that owns the directory (`OwnedDir`); without it they are only read.
        """
        # Constant after construction.
        self.path = path = real_place(path)
        self._place = os.fspath(path)  # converting a Path to text takes longer than the system call
        self.clock = clock
        self._config = config
        self.tier: Tier | None = None
        self.is_broker = exists(path / names.META_PROPERTIES)
        self.read_only = open_log is None
        self._open_log = self._follow if open_log is None else open_log
        # Locks itself.
        self._log_starts = CheckpointedOffsets(path / names.LOG_START_CHECKPOINT)
        self._recovery_points = CheckpointedOffsets(path / names.RECOVERY_POINT_CHECKPOINT)
        self._high_watermarks = CheckpointedOffsets(path / names.REPLICATION_CHECKPOINT)
        # Guarded by the lock.
        self._lock = Lock()
        self._mark = NEVER
        self._topics: dict[str, list[int]] = {}
        self._hidden: list[HiddenDir] = []
        self._logs: dict[TopicPartition, ReadableLog] = {}
        self._forgotten = 0  # how often logs were removed from `_logs`

    @cached_property
    def is_stored(self) -> bool:
        """Whether the directory is a backup in an object store (storage.log.stored_dir)."""
        return is_stored(self.path)

    @staticmethod
    def open_read_only(
        path: Path | str, *, config: BrokerConfig | None = None, clock: Clock | None = None, tier: Tier | None = None
    ) -> LogDir:
        """Open a log directory for reading: a broker's, running or not, our own, a snapshot, a backup.

        `config`: the broker-level configuration, Kafka's defaults if not given. `tier`: see `use_tier`. NotALogDir;
        FileNotFoundError or another OSError if the directory cannot be listed.
        """
        check_log_dir(Path(path))
        log_dir = LogDir(Path(path), config=config, clock=SystemClock() if clock is None else clock)
        log_dir.use_tier(tier)
        if log_dir.is_stored:
            from storage.log.stored_dir import keep

            keep(log_dir.path)
        log_dir.refresh()
        return log_dir

    def use_tier(self, tier: Tier | None) -> None:
        """Give logs their remote segments, which are in this tier. To be called before the first log is taken."""
        self.tier = tier

    def refresh(self) -> None:
        """List the directory again if partitions were added or removed. OSError if it can no longer be listed."""
        with self._lock:
            status = os.stat(self._place)  # noqa: PTH116
            if self._mark.matches(status):
                return
            mark = FileMark.of(status)
            topics: dict[str, list[int]] = {}
            hidden = []
            with scan_quietly(self.path) as entries:
                for entry in entries:
                    is_link = entry.is_symlink()
                    parsed = names.parse_dir(entry.name)
                    if not is_link and not entry.is_dir():
                        if parsed.partition is not None and not entry.is_file():
                            hidden.append(HiddenDir(entry.name, _NO_DIRECTORY, parsed.kind, parsed.partition))
                    elif is_link and not is_directory(self.path / entry.name):
                        if parsed.partition is not None:
                            hidden.append(HiddenDir(entry.name, _LINK, parsed.kind, parsed.partition))
                    elif parsed.partition is not None and parsed.partition.partition >= names.MAX_PARTITIONS:
                        hidden.append(HiddenDir(entry.name, _NUMBER, parsed.kind, parsed.partition))
                    elif parsed.kind in _SHOWN and parsed.partition is not None:
                        topics.setdefault(parsed.partition.topic, []).append(parsed.partition.partition)
                    else:
                        reason = parsed.reason or _REASONS.get(parsed.kind, parsed.kind.value)
                        hidden.append(HiddenDir(entry.name, reason, parsed.kind, parsed.partition))
            self._topics = {topic: sorted(topics[topic]) for topic in sorted(topics)}
            self._hidden = sorted(hidden, key=lambda entry: entry.name)
            # A topic that was deleted and created again has directories of the same names, but other logs.
            self._logs = {
                tp: log
                for tp, log in self._logs.items()
                if tp.partition in topics.get(tp.topic, ()) and not (self.read_only and _is_replaced(log))
            }
            self._forgotten += 1
            self._mark = mark

    @property
    def mtime_ns(self) -> int:
        """The directory's own modification time as of the last refresh, in ns since the epoch."""
        return self._mark.mtime_ns

    def topics(self) -> list[str]:
        """The topics as of the last refresh, ascending."""
        return list(self._topics)

    def partitions(self, topic: str) -> list[int]:
        """A topic's partitions in this directory, ascending. UnknownTopicOrPartition."""
        partitions = self._topics.get(topic)
        if partitions is None:
            raise UnknownTopicOrPartition(f"no topic {topic!r} here", path=self.path)
        return list(partitions)

    def all_partitions(self) -> list[TopicPartition]:
        """All partitions in this directory, by topic and partition, at one moment: topics may be removed at any
        time."""
        return [TopicPartition(topic, number) for topic, numbers in self._topics.items() for number in numbers]

    def absent(self) -> list[TopicPartition]:
        """The partitions that the cluster has and this directory lacks, as far as the directory shows: those in its
        metadata or, without metadata, those with lower numbers than a partition in this directory.

        They are in another log directory of this broker, on other brokers, or lost. A directory that is not a broker's
        has none, because it may hold just some partitions of a topic. At most names.MAX_PARTITIONS. OSError.
        """
        if not self.is_broker:
            return []
        metadata, topics = self.cluster_metadata(), self._topics  # of one moment: another thread may refresh
        known = {} if metadata is None else metadata.topics
        missing = [
            TopicPartition(name, number)
            for name, topic in known.items()
            if name not in topics
            for number in topic.partitions
        ]
        for topic, numbers in topics.items():
            stored = set(numbers)
            # None if there are no metadata, or they describe a later topic of that name.
            count = self._topic_infos.of(topic, numbers).partition_count or numbers[-1] + 1
            absent = (TopicPartition(topic, number) for number in range(count) if number not in stored)
            missing += islice(absent, max(0, names.MAX_PARTITIONS - len(missing)))
        return sorted(missing)

    def hidden(self) -> list[HiddenDir]:
        """Directories that are not live partitions, and entries with a partition's name that are neither directories
        nor files."""
        return list(self._hidden)

    def log(self, tp: TopicPartition) -> ReadableLog:
        """Return a partition's log. UnknownTopicOrPartition; in a directory that we own PartitionOffline, OSError."""
        with self._lock:
            log = self._logs.get(tp)
            if log is not None:
                return log
            if tp.partition not in self._topics.get(tp.topic, ()):
                raise UnknownTopicOrPartition(f"no partition {tp} here", path=self.path)
            if self.read_only:
                # Construction does no I/O, so it can happen under the lock; every caller gets the same object.
                return self._logs.setdefault(tp, self._with_tier(self._open_log(tp)))
            forgotten = self._forgotten
        # Not under the lock, because the owner may have to recover the log first.
        log = self._with_tier(self._open_log(tp))
        with self._lock:
            # Do not keep a log that was forgotten meanwhile: its topic was removed or replaced.
            return log if self._forgotten != forgotten else self._logs.setdefault(tp, log)

    def forget(self, tp: TopicPartition) -> None:
        """Forget the partition's log; the next request opens it again."""
        with self._lock:
            self._forgotten += 1
            self._logs.pop(tp, None)

    def _follow(self, tp: TopicPartition) -> ReadableLog:
        # Imported only when needed: a caller that only lists partitions needs neither this nor the reading code.
        from storage.log.read_only_log import ReadOnlyLog

        if self.is_stored:
            from storage.log.stored_dir import stored_log

            return stored_log(tp, self.path)
        return ReadOnlyLog(
            tp,
            self.path / tp.dir_name,
            lambda: self._log_starts.find(tp),
            lambda: self._recovery_points.of(tp),
            lambda first_offset: self.remote_offsets(tp, first_offset),
        )

    def _with_tier(self, log: ReadableLog) -> ReadableLog:
        """The log with its remote segments, if it can have any."""
        tier, tp = self.tier, log.tp
        if tier is None or tp.topic in names.KAFKAS_OWN_TOPICS or tp.topic == names.CLUSTER_METADATA_TOPIC:
            return log
        from storage.log.tiered_log import RemotePart, TieredLog

        def topic_id() -> str | None:
            try:
                return self.topic_info(tp.topic).topic_id
            except (StorageError, OSError):
                return None

        def known() -> Mapping[str, KnownSegment] | None:
            topic = topic_id()
            return None if topic is None else self.remote_metadata.segments(topic, tp.partition)

        def segments(anew: bool) -> list[RemoteSegment]:
            if anew:
                tier.forget_listings()
            return tier.segments(tp.topic, tp.partition, topic_id())

        return TieredLog(log, RemotePart(segments, known, lambda: self._log_starts.find(tp)))

    @cached_property
    def remote_metadata(self) -> RemoteMetadata:
        from storage.log.remote_metadata import RemoteMetadata

        topic = names.REMOTE_LOG_METADATA_TOPIC

        def count() -> int | None:
            # Only a broker's directory has the count; others have only some of the partitions.
            return self.topic_info(topic).partition_count if self.is_broker and topic in self._topics else None

        return RemoteMetadata(self.remote_metadata_logs, count)

    def remote_metadata_logs(self) -> list[ReadableLog]:
        """The logs in which a broker keeps what is in tiered storage; none if it has none. Errors as `log`."""
        topic = names.REMOTE_LOG_METADATA_TOPIC
        return [self.log(TopicPartition(topic, number)) for number in self._topics.get(topic, ())]

    def remote_offsets(self, tp: TopicPartition, first_offset: int) -> OffsetRange | None:
        """The offsets of a partition in tiered storage, before its first segment in this directory, which begins at
        `first_offset`; None if there are none (storage.log.tiering). OSError."""

        def tiered() -> bool | None:
            try:
                return self.topic_info(tp.topic).is_tiered
            except (StorageError, OSError):
                return None

        epochs = LeaderEpochs()
        with suppress(CorruptCheckpoint):
            epochs = leader_epochs.read(self.path / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT)
        return remote_offsets(first_offset, self._log_starts.find(tp), epochs, tiered)

    def opened(self) -> list[ReadableLog]:
        """The logs that were requested so far, by topic and partition."""
        with self._lock:
            return [log for _, log in sorted(self._logs.items())]

    @cached_property
    def _topic_infos(self) -> TopicInfos:
        # Imported on first use: it would be a fifth of `kafkafs cat`'s imports, which does not need it.
        from storage.config.broker_config import BrokerConfig
        from storage.log.topic_info import TopicInfos

        config = BrokerConfig() if self._config is None else self._config
        return TopicInfos(self.path, config, is_broker=self.is_broker)

    def topic_info(self, topic: str) -> TopicInfo:
        """A topic's id, partition count and configuration. UnknownTopicOrPartition; OSError."""
        return self._topic_infos.of(topic, self.partitions(topic))

    def topics_by_id(self) -> dict[str, str]:
        """The names of the topics whose ids are known, by id. OSError."""
        metadata = self.cluster_metadata()
        known = {} if metadata is None else {topic.topic_id: name for name, topic in metadata.topics.items()}
        for name in self.topics():
            with suppress(UnknownTopicOrPartition):  # it has been removed meanwhile
                known[self.topic_info(name).topic_id or ""] = name
        return known

    def recovery_point(self, tp: TopicPartition) -> int | None:
        """A partition's checkpointed recovery point; None if no checkpoint has it. OSError."""
        return self._recovery_points.find(tp)

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """A partition's checkpointed high watermark; None where no checkpoint has one. CorruptCheckpoint; OSError."""
        offset = self._high_watermarks.find(tp)
        if self._high_watermarks.problem is not None:
            raise self._high_watermarks.problem
        return offset

    def broker_config(self) -> BrokerConfig:
        """The configuration given at opening, with the values that the cluster's metadata set for this broker."""
        return self._topic_infos.broker_config()

    def cluster_metadata(self) -> ClusterMetadata | None:
        """The cluster's present metadata; None if the directory has none. OSError if they cannot be read."""
        return self._topic_infos.cluster()

    def problems(self) -> list[StorageError]:
        """The faults in files of the log directory itself that kafkafs has worked around."""
        problems = self._topic_infos.problems()
        checkpoints_read = (self._log_starts, self._recovery_points)
        return problems + [checkpoint.problem for checkpoint in checkpoints_read if checkpoint.problem is not None]

    def close(self) -> None:
        """Forget all logs. Nothing is kept open."""
        with self._lock:
            self._logs.clear()


def _is_replaced(log: ReadableLog) -> bool:
    from storage.log.read_only_log import ReadOnlyLog
    from storage.log.tiered_log import TieredLog

    local = log.local if isinstance(log, TieredLog) else log
    return isinstance(local, ReadOnlyLog) and local.is_replaced()


class CheckpointedOffsets:
    """The offsets in a checkpoint file, read again after a broker has replaced it. Thread-safe."""

    __slots__ = ("_lock", "_mark", "_offsets", "_path", "_place", "problem")

    def __init__(self, path: Path) -> None:
        # Constant after construction.
        self._path = path
        self._place = os.fspath(path)
        # Guarded by the lock.
        self._lock = Lock()
        self._mark = NEVER
        self._offsets: dict[TopicPartition, int] = {}
        self.problem: CorruptCheckpoint | None = None

    def of(self, tp: TopicPartition) -> int:
        """The partition's checkpointed offset, 0 if there is none."""
        return self.find(tp) or 0

    def find(self, tp: TopicPartition) -> int | None:
        """The partition's checkpointed offset, None if there is none.

        A checkpoint that does not parse changes nothing: the offsets read before remain in force. A checkpoint that was
        removed has no offsets. OSError each time the checkpoint cannot be read.
        """
        with self._lock:
            try:
                status = os.lstat(self._place)
            except (FileNotFoundError, NotADirectoryError):
                self._mark, self._offsets, self.problem = NEVER, {}, None
                return None
            if not self._mark.matches(status):
                try:
                    self._offsets = checkpoints.read(self._path)
                    self.problem = None
                except CorruptCheckpoint as error:
                    self.problem = error
                self._mark = FileMark.of(status)
            return self._offsets.get(tp)
