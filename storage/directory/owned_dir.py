"""A log directory that this process owns: its lock, its logs open for writing, its checkpoints.

The steps of opening; what a crash after each leaves:

1. create the directory, if requested        → an empty directory
2. take `.lock`                              → a file that no process holds
3. remove `.kafka_cleanshutdown`, and sync   → an unclean directory: everything is recovered from its recovery point
4. remove unfinished checkpoints (`.tmp`) and, except in a broker's directory, `-delete` directories
5. recover the partitions; after a clean shutdown each when it is first used
6. carry out the writes that were begun and not finished (storage.staged_writes.commit)
Closing:

7. close every log: everything is synced, each producer snapshot written
8. write the checkpoints, recovery points first, and complete the changes of topics' configurations that failed
                                                  → still unclean, but little is left to recover
9. write `.kafka_cleanshutdown` with the broker epoch that it had, if every partition was recovered and closed, and
   step 8 succeeded
10. release the lock
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from storage.append.partition_log import PartitionLog
from storage.clock import Clock, SystemClock
from storage.config import NEW_TOPIC_OVERRIDES, BrokerConfig, LogConfig
from storage.config.log_config import check_topic_key
from storage.directory import clean_shutdown, guest_rules, partition_dirs
from storage.directory.directory_checkpoints import CHECKPOINTS, DirectoryCheckpoints
from storage.directory.owned_logs import OwnedLogs
from storage.errors import NotPermitted, PartitionOffline, ReadOnlyLogDir, StorageError
from storage.files import names, partition_metadata, topic_properties
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk, make_directories
from storage.files.disk_protocol import Disk
from storage.files.names import DirKind
from storage.files.opening import exists, real_place
from storage.log.log_dir import LogDir
from storage.log.places import check_log_dir, is_stored
from storage.log.read_only_log import ReadOnlyLog
from storage.log.snapshot import ReadableLog
from storage.log.topic_info import TopicInfo
from storage.progress import NoProgress, Progress
from storage.recovery.recovery import RecoveryReport
from storage.staged_writes import commit
from storage.staged_writes.ledger import CommitLedger
from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Opening:
    """How a directory is opened.

    `create`: create it if it does not exist or is empty. `gentle`: only cut torn tails; a partition whose recovery
    would remove more is offline. `trust_clean`: after a clean shutdown nothing is checked. `only`: the partitions to
    recover, None for all; the directory is then not marked as cleanly shut down, unless it was before and that was
    trusted.
    """

    create: bool = False
    gentle: bool = False
    trust_clean: bool = True
    only: Collection[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """The result: whether the directory is marked as cleanly shut down, which partitions did not close and why, and
    what kept the directory's own files, or a changed topic.properties, from being written."""

    clean: bool
    errors: Mapping[TopicPartition, Exception] = field(default_factory=dict)
    failure: Exception | None = None


class OwnedDir:
    """A log directory held by this process. Thread-safe. `log_dir` gives readers access to the same logs."""

    def __init__(
        self, path: Path, opening: Opening, config: BrokerConfig, disk: Disk, clock: Clock, progress: Progress
    ) -> None:
        """Steps 2 to 4; see `open`."""
        # Constant after construction.
        self.path = path
        self.disk = disk
        self.clock = clock
        self._opening = opening
        # Has its own locking.
        self._dir_lock = DirLock(disk, path)
        try:
            epoch = clean_shutdown.read(path)
            self._broker_epoch = clean_shutdown.UNKNOWN_BROKER_EPOCH if epoch is None else epoch
            if epoch is not None:
                clean_shutdown.remove(disk, path)
            self.log_dir = LogDir(path, config=config, clock=clock, open_log=self._reader)
            self.log_dir.refresh()
            self.checkpoints = DirectoryCheckpoints(disk, path)
            self.commits = CommitLedger(disk, path)
            self._remove_unfinished()
            if not self.log_dir.is_broker:
                self._remove_set_aside()
            # A directory without partitions has nothing that could be unclean.
            self._trusted = (epoch is not None and opening.trust_clean) or not self.partitions()
        except BaseException:
            self._dir_lock.release()
            raise
        unsound = () if self._trusted else self.partitions()
        self._logs = OwnedLogs(
            self.log_dir,
            self.checkpoints,
            self.commits,
            disk=disk,
            clock=clock,
            unsound=unsound,
            gentle=opening.gentle,
            progress=progress,
        )
        # Constant once it is open: the shares of begun writes that partitions did not get, and why.
        self.unfinished: Mapping[TopicPartition, Exception] = {}
        # Guarded by the lock, which is held while topics change.
        self._changing = Lock()
        self._closed = False
        self._closing = Closing(clean=False)

    @staticmethod
    def open(
        path: Path | str,
        opening: Opening = Opening(),
        *,
        config: BrokerConfig | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> OwnedDir:
        """Takes a log directory and, unless it was shut down cleanly, recovers it.

        `progress`: shows this recovery, and those of partitions that are recovered later. A partition that cannot be
        recovered is offline, alone (`failures`). LogLocked when another process holds the directory; NotALogDir,
        BadDestination (see check_log_dir); FileNotFoundError or another OSError.
        """
        path = Path(path)
        disk = RealDisk() if disk is None else disk
        if not opening.create and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no such log directory", str(path))
        check_log_dir(path, create=opening.create)
        path = real_place(path)
        if is_stored(path):
            raise ReadOnlyLogDir("is a backup in an object store, which is only read", path=path)
        make_directories(disk, path)
        progress = progress or NoProgress()
        owned = OwnedDir(path, opening, config or BrokerConfig(), disk, clock or SystemClock(), progress)
        try:
            owned._recover(progress)
            owned.unfinished = commit.finish_pending(owned)
        except BaseException:
            # Nothing more is written: the directory stays as after a crash.
            try:
                owned._logs.abandon()
            finally:
                owned._dir_lock.release()
            raise
        return owned

    def _recover(self, progress: Progress) -> None:
        """Step 5: several partitions at once; none now after a clean shutdown."""
        only = self._opening.only
        if not self._trusted:
            chosen = [tp for tp in self.partitions() if only is None or tp in only]
            self._logs.recover(chosen, progress, self.log_dir.broker_config().recovery_threads)

    def _remove_unfinished(self) -> None:
        for name in (*CHECKPOINTS, names.CLEAN_SHUTDOWN, names.COMMITS):
            path = self.path / (name + names.TEMPORARY_SUFFIX)
            if exists(path):
                self.disk.unlink(path)

    def _remove_set_aside(self) -> None:
        for hidden in self.log_dir.hidden():
            if hidden.kind is DirKind.DELETED:
                partition_dirs.remove(self.disk, self.path / hidden.name)
        self.log_dir.refresh()

    # Logs

    def log(self, tp: TopicPartition) -> PartitionLog:
        """A partition's log, opened first if necessary. UnknownTopicOrPartition; PartitionOffline when that failed;
        NotPermitted for the cluster's metadata."""
        if tp.topic == names.CLUSTER_METADATA_TOPIC:
            raise NotPermitted("the cluster's metadata log belongs to the brokers", path=self.path)
        return self._logs.get(tp)

    def appendable(
        self, tp: TopicPartition, *, force: bool = False, as_group_coordinator: bool = False
    ) -> PartitionLog:
        """A log that may be appended to. NotPermitted (see guest_rules.check_append), and as `log`."""
        guest_rules.check_append(
            self.log_dir.topic_info(tp.topic), force=force, as_group_coordinator=as_group_coordinator
        )
        return self.log(tp)

    def logs(self) -> list[PartitionLog]:
        """The logs that are open, by topic and partition."""
        return self._logs.all()

    def failures(self) -> dict[TopicPartition, Exception]:
        """The partitions that are offline, and why; the others keep working."""
        return self._logs.failures()

    def reports(self) -> dict[TopicPartition, RecoveryReport]:
        """The recovery reports of the partitions that were opened."""
        return self._logs.reports()

    def reindex(self, tp: TopicPartition, progress: Progress | None = None) -> RecoveryReport:
        """Rebuilds a partition's indexes and producer snapshots from its log. Errors as `log`; PartitionOffline also
        when the log is damaged before its tail and the opening was gentle."""
        return self._logs.reindex(tp, progress or NoProgress())

    def partitions(self) -> list[TopicPartition]:
        """All partitions here except the cluster's metadata."""
        return [tp for tp in self.log_dir.all_partitions() if tp.topic != names.CLUSTER_METADATA_TOPIC]

    def topic_info(self, topic: str) -> TopicInfo:
        return self.log_dir.topic_info(topic)

    def may_retain(self, topic: str) -> bool:
        return guest_rules.may_retain(self.topic_info(topic), is_broker=self.log_dir.is_broker)

    def may_compact(self, topic: str) -> bool:
        return guest_rules.may_compact(self.topic_info(topic), is_broker=self.log_dir.is_broker)

    def _reader(self, tp: TopicPartition) -> ReadableLog:
        if tp.topic == names.CLUSTER_METADATA_TOPIC:
            return ReadOnlyLog(tp, self.path / tp.dir_name)
        return self._logs.get(tp)

    # Topics

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        start_offsets: Mapping[int, int] | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Creates a topic: `num.partitions` partitions by default, keeping everything unless `overrides` says
        otherwise.

        `start_offsets`: for partitions into which another log will be replicated; `topic_id`: the id of that log's
        topic, a new id by default. Crash-safe:

        1. the checkpoints forget earlier topics of that name
        2. partition_dirs.create                              → all, none or the first of the partitions
        FileExistsError, InvalidTopic, InvalidConfig, OSError; NotPermitted in a broker's directory and for the
        cluster's metadata.
        """
        guest_rules.check_topics_may_change(self.path, is_broker=self.log_dir.is_broker)
        guest_rules.check_topic_may_be_created(topic)
        with self._changing:
            self._check_open_locked()
            self.log_dir.refresh()
            if topic in self.log_dir.topics():
                raise FileExistsError(errno.EEXIST, "topic exists already", topic)
            names.check_topic_is_new(topic, self.log_dir.topics())
            config = self.log_dir.broker_config()
            count = config.num_partitions if partitions is None else partitions
            if count < 1:
                raise ValueError("a topic has at least one partition")
            configs = {**NEW_TOPIC_OVERRIDES, **(overrides or {})}
            LogConfig.from_overrides(config.topic_defaults, configs)
            topic_id = topic_id or partition_metadata.random_id()
            self._create_partitions(topic, range(count), topic_id, configs, start_offsets or {})

    def add_partitions(self, topic: str, count: int) -> None:
        """Extends the topic to `count` partitions; it cannot have fewer than before. Errors as `create_topic`."""
        guest_rules.check_topics_may_change(self.path, is_broker=self.log_dir.is_broker)
        with self._changing:
            self._check_open_locked()
            info = self.log_dir.topic_info(topic)
            existing = self.log_dir.partitions(topic)
            if count < existing[-1] + 1:
                raise NotPermitted(f"{topic} has {existing[-1] + 1} partitions, and partitions cannot be removed")
            missing = [number for number in range(count) if number not in existing]
            topic_id = info.topic_id or partition_metadata.random_id()
            self._create_partitions(topic, missing, topic_id, info.overrides, {})

    def _create_partitions(
        self,
        topic: str,
        numbers: Collection[int],
        topic_id: str,
        overrides: Mapping[str, str],
        start_offsets: Mapping[int, int],
    ) -> None:
        new = {TopicPartition(topic, number): start_offsets.get(number) for number in numbers}
        with self._logs.alone(new):
            # In this order: forgetting a log also notes its offsets.
            self._logs.forget(list(new))
            self.checkpoints.remove(new)
            try:
                partition_dirs.create(self.disk, self.path, new, topic_id, overrides)
                self._logs.sound(new)
            finally:
                self.log_dir.refresh()

    def is_empty(self, topic: str) -> bool:
        """True when no partition holds a message. Errors as `log`."""
        return all(self.log(TopicPartition(topic, number)).is_empty for number in self.log_dir.partitions(topic))

    def delete_topic(self, topic: str, *, only_empty: bool = False) -> None:
        """Removes a topic and its messages; with `only_empty` OSError (ENOTEMPTY) when it holds any.

        1. its logs are closed without further writes
        2. its directories get `-delete` names, the highest partition first, and are synced → removed on opening
        3. its checkpoint lines are removed
        4. the directories are removed
        UnknownTopicOrPartition, NotPermitted in a broker's directory, OSError.
        """
        guest_rules.check_topics_may_change(self.path, is_broker=self.log_dir.is_broker)
        with self._changing:
            self._check_open_locked()
            partitions = [TopicPartition(topic, number) for number in self.log_dir.partitions(topic)]
            if only_empty and not self.is_empty(topic):
                raise OSError(errno.ENOTEMPTY, "topic holds messages", topic)  # and its writers continue
            # Until after step 3: whoever needs one of these logs waits, and then learns that it was removed.
            with self._logs.alone(partitions):
                try:
                    if only_empty and not all(self.log(tp).abandon(only_empty=True) for tp in partitions):
                        raise OSError(errno.ENOTEMPTY, "topic holds messages", topic)
                finally:
                    closed = self._logs.forget(partitions)
                try:
                    renamed = partition_dirs.set_aside(self.disk, self.path, partitions)
                finally:
                    self.log_dir.refresh()
                # Readers may still hold these logs, and a new topic's files may get the same inodes.
                for segment in (segment for log in closed for segment in log.snapshot().segments):
                    segment.log.mark_removed()
                self.checkpoints.remove(partitions)
                self._logs.sound(partitions)
            for directory in renamed:
                partition_dirs.remove(self.disk, directory)

    def alter_config(self, topic: str, values: Mapping[str, str], unset: Collection[str] = ()) -> LogConfig:
        """Sets and unsets keys of a topic; returns the resulting configuration. In a directory that is not a broker's,
        a key that is unset returns to the value that kafkafs gives every topic, if any. Crash-safe, see
        partition_dirs.write_overrides.

        InvalidConfig, UnknownTopicOrPartition, NotPermitted, OSError.
        """
        guest_rules.check_config_may_change(topic)
        with self._changing:
            self._check_open_locked()
            directories = [
                self.path / TopicPartition(topic, number).dir_name for number in self.log_dir.partitions(topic)
            ]
            overrides = dict(topic_properties.read(directories[0] / names.TOPIC_PROPERTIES) or {})
            for key in unset:
                check_topic_key(key)
                overrides.pop(key, None)
                if not self.log_dir.is_broker and key in NEW_TOPIC_OVERRIDES:
                    overrides[key] = NEW_TOPIC_OVERRIDES[key]
            overrides |= values
            LogConfig.from_overrides(self.log_dir.broker_config().topic_defaults, overrides)
            return self._logs.describe(topic, directories, overrides)

    # Checkpoints, closing

    def checkpoint(self) -> None:
        """Writes the checkpoints with the current offsets, without a flush. OSError."""
        self._logs.checkpoint()

    def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        """Records that a log is compacted up to `offset`; does nothing when its topic was removed since. OSError."""
        self._logs.note_cleaned(log, offset)

    def close(self) -> Closing:
        """Steps 7 to 10. Raises nothing for partitions that fail or a failing disk: see Closing. A second call only
        returns the same.

        Whatever fails, the lock is released: step 10 needs no descriptor, and a file that cannot be unlinked stays
        without a holder.
        """
        with self._changing:
            if self._closed:
                return self._closing
            self._closed = True
            stayed: Exception | None = None
            try:
                clean, errors, failure = self._close_logs()
            finally:
                try:
                    self._dir_lock.release()
                except OSError as error:
                    stayed = error
            self._closing = Closing(clean, errors, failure or stayed)
            return self._closing

    def _close_logs(self) -> tuple[bool, dict[TopicPartition, Exception], Exception | None]:
        """Steps 7 to 9; returns the values of Closing."""
        all_asked = self._trusted or self._opening.only is None
        failure: Exception | None = None
        with suppress(OSError):
            self.log_dir.refresh()  # a partition that no longer exists does not make the directory unclean
        if all_asked:
            self._logs.recover(self._logs.recoverable(), NoProgress(), 1)
        errors = self._logs.close()
        clean = all_asked and not errors and not self._logs.unsound()
        try:
            self.checkpoint()
            self._logs.complete_changes()
            if clean:
                clean_shutdown.write(self.disk, self.path, self._broker_epoch)
        except (StorageError, OSError) as error:
            clean, failure = False, error
        return clean, errors, failure

    def _check_open_locked(self) -> None:
        if self._closed:
            raise PartitionOffline("log directory is closed", path=self.path)
