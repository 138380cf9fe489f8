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

import contextlib
import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, RLock

from storage.append.health import PASSING_ERRORS
from storage.append.partition_log import PartitionLog
from storage.clock import Clock, SystemClock
from storage.config import NEW_TOPIC_OVERRIDES, BrokerConfig, LogConfig
from storage.config.log_config import check_topic_key
from storage.directory import clean_shutdown, guest_rules, partition_dirs
from storage.directory.directory_checkpoints import CHECKPOINTS, DirectoryCheckpoints, PartitionOffsets
from storage.errors import NotPermitted, PartitionOffline, PartitionUnavailable, StorageError, UnknownTopicOrPartition
from storage.files import dir_lock, names, partition_metadata, topic_properties
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.files.disk_protocol import Disk
from storage.files.names import DirKind
from storage.files.opening import exists, real_place
from storage.log.log_dir import LogDir
from storage.log.places import check_log_dir
from storage.log.read_only_log import ReadOnlyLog
from storage.log.segments import bytes_from
from storage.log.snapshot import Log
from storage.log.tiering import is_tiered
from storage.log.topic_info import TopicInfo
from storage.progress import NoProgress, Progress, working
from storage.recovery.recovery import Recovery, RecoveryPlan, RecoveryReport, rehearse
from storage.staged_writes import commit, staging
from storage.staged_writes.ledger import CommitLedger
from storage.types import TopicPartition

# The plans by which a directory's partitions are recovered, and a rehearsal of that (`recover --dry-run`).


def recovery_plan(
    log_dir: LogDir,
    checkpoints: DirectoryCheckpoints,
    tp: TopicPartition,
    info: TopicInfo,
    *,
    clean: bool,
    gentle: bool = False,
    from_start: bool = False,
) -> RecoveryPlan:
    """The plan for a partition of this directory, whose topic is described by `info`.

    `from_start`: ignore the checkpointed recovery point. The others: see RecoveryPlan.
    """
    known = checkpoints.of(tp)
    return RecoveryPlan(
        tp,
        log_dir.path / tp.dir_name,
        info.config,
        clean,
        recovery_point=0 if from_start else known.recovery_point or 0,
        log_start_offset=known.log_start,
        tiered=info.is_tiered,
        producer_expiration_ms=log_dir.broker_config().producer_id_expiration_ms,
        gentle=gentle,
    )


def rehearse_recovery(
    log_dir: LogDir, partitions: Iterable[TopicPartition], progress: Progress
) -> tuple[list[RecoveryReport], dict[TopicPartition, Exception]]:
    """What recovering these partitions as after a crash would do; nothing is changed.

    Returns the reports, and the error of each partition that could not be recovered. LogLocked when another process
    holds the directory; OSError when its checkpoints cannot be read.
    """
    holder = dir_lock.holder(log_dir.path)
    if holder is not None:
        raise dir_lock.locked_error(log_dir.path.resolve() / dir_lock.NAME, holder)
    checkpoints = DirectoryCheckpoints(RealDisk(), log_dir.path)  # read, never written
    reports: list[RecoveryReport] = []
    errors: dict[TopicPartition, Exception] = {}
    for tp in partitions:
        info = log_dir.topic_info(tp.topic)
        plan = recovery_plan(log_dir, checkpoints, tp, info, clean=False)
        try:
            reports.append(rehearse(plan, clock=log_dir.clock, progress=progress))
        except (StorageError, OSError) as error:
            errors[tp] = error
    return reports, errors


# The logs of a directory that this process owns: recovered, opened, and taken offline separately when that fails.


@dataclass(frozen=True, slots=True)
class _RecoveredLog:
    """A log that is about to become its partition's. `config_changes`: how many changes of topics' configurations there
    had been before this log's was read. `replicas`: those of its topic."""

    log: PartitionLog
    report: RecoveryReport
    config_changes: int
    replicas: int


class OwnedLogs:
    """Logs by partition, each opened once. Thread-safe.

    `unsound`: partitions that must be checked when they are opened; the others were closed in order. `gentle`: see
    RecoveryPlan. `progress`: of what is recovered.

    Locks, in the order in which they are taken:
    1. partitions' turns (`alone`): a thread that opens or closes a log, or creates, removes or replaces its directory,
       holds its turn meanwhile. So an opening never works in a directory that is being removed, or was created since it
       began, and what it installs belongs to the directory that is there
    2. `_noting`: held while a log's checkpoint lines are set, after checking that the log is still the partition's, and
       while a log is forgotten. So no line of a log is set after its topic was forgotten
    3. `_lock`: everything that is listed under it below. Nothing is read or written while it is held
    `_describing` is taken without any of the others except turns."""

    def __init__(
        self,
        log_dir: LogDir,
        checkpoints: DirectoryCheckpoints,
        commits: CommitLedger,
        *,
        disk: Disk,
        clock: Clock,
        unsound: Collection[TopicPartition],
        gentle: bool,
        progress: Progress,
    ) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        self._disk = disk
        self._clock = clock
        self._gentle = gentle
        self._progress = progress
        # Has its own locking.
        self._checkpoints = checkpoints
        self._commits = commits
        # These guard an order of steps: see above. `_describing` is held while topic.properties are written.
        self._noting = Lock()
        self._describing = Lock()
        # Guarded by `_describing`: the topics whose last change of configuration failed.
        self._half_changed: set[str] = set()
        # Guarded by the lock.
        self._lock = Lock()
        self._turns: dict[TopicPartition, RLock] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._failures: dict[TopicPartition, PartitionOffline] = {}
        self._retry_ms: dict[TopicPartition, int] = {}  # when to try again, for failures that may be temporary
        self._unsound = set(unsound)
        self._replicated: set[TopicPartition] = set()
        self._reports: dict[TopicPartition, RecoveryReport] = {}
        self._config_changes = 0  # how often topics' configurations were changed
        self._closed = False

    @contextlib.contextmanager
    def alone(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """No other thread opens or closes the logs of these partitions until the end of the block."""
        with self._lock:
            turns = [self._turns.setdefault(tp, RLock()) for tp in sorted(partitions)]
        with contextlib.ExitStack() as taken:
            for turn in turns:
                taken.enter_context(turn)
            yield

    def get(self, tp: TopicPartition) -> PartitionLog:
        """A log, opened now if necessary. UnknownTopicOrPartition; PartitionOffline when that failed, now or before.

        A failure for want of space, memory or descriptors (PartitionUnavailable) is retried by the next call, but not
        before as much time has passed as the last try took.
        """
        with self._lock:
            log = self._logs.get(tp)
            if log is not None:
                return log
        with self.alone([tp]):
            with self._lock:
                self._check_open_locked()
                log = self._logs.get(tp)
                if log is not None:
                    return log
                failure = None if self._may_retry_locked(tp) else self._failures.get(tp)
                clean = tp not in self._unsound
            if failure is not None and self._is_here(tp):
                raise failure
            return self._open(tp, clean=clean, progress=self._progress)

    def all(self) -> list[PartitionLog]:
        """The logs that are open, by topic and partition."""
        with self._lock:
            return [self._logs[tp] for tp in sorted(self._logs)]

    def failures(self) -> dict[TopicPartition, Exception]:
        """The partitions that are offline, and why. Those that no longer exist are left out."""
        with self._lock:
            failed: dict[TopicPartition, Exception] = dict(self._failures)
            failed |= {tp: log.failure for tp, log in self._logs.items() if log.failure is not None}
        return {tp: failed[tp] for tp in sorted(failed) if self._is_here(tp)}

    def reports(self) -> dict[TopicPartition, RecoveryReport]:
        """The recovery reports of the partitions that were opened."""
        with self._lock:
            return dict(sorted(self._reports.items()))

    def recover(self, chosen: Collection[TopicPartition], progress: Progress, threads: int) -> None:
        """Opens these partitions as after a crash, `threads` at once. Those that fail are offline."""
        if not chosen:
            return
        with working(progress, "recovery", sum(self._bytes_to_check(tp) for tp in chosen)):
            if min(threads, len(chosen)) == 1:
                for tp in chosen:
                    self._recover_one(tp, _SharedProgress(progress))
                return
            with ThreadPoolExecutor(threads, "recovery") as pool:
                for task in [pool.submit(self._recover_one, tp, _SharedProgress(progress)) for tp in chosen]:
                    task.result()

    def reindex(self, tp: TopicPartition, progress: Progress) -> RecoveryReport:
        """Opens a partition with indexes and producer snapshots rebuilt from all of its log. Errors as `get`."""
        with self.alone([tp]):
            self.forget([tp])
            self._open(tp, clean=False, progress=progress, from_start=True)
            return self.reports()[tp]

    def forget(self, partitions: Collection[TopicPartition]) -> list[PartitionLog]:
        """Closes logs without further writes, and returns them. They are recovered when they are next used, whatever
        failed before.

        The caller holds their turns until it has finished with them.
        """
        closed = []
        for tp in partitions:
            with self._noting:
                with self._lock:
                    log = self._logs.pop(tp, None)
                    self._failures.pop(tp, None)
                    self._retry_ms.pop(tp, None)
                    self._unsound.add(tp)
                if log is not None:
                    log.abandon()
                    self._checkpoints.set(tp, self.offsets_of(log))
                    closed.append(log)
            self._log_dir.forget(tp)
        return closed

    def sound(self, partitions: Collection[TopicPartition]) -> None:
        """Notes that these partitions were just created, or removed, and need no check."""
        with self._lock:
            self._unsound.difference_update(partitions)

    def unsound(self) -> set[TopicPartition]:
        """The partitions here that were not recovered since the directory was last shut down cleanly, or were closed
        without a shutdown since."""
        with self._lock:
            unsound = set(self._unsound)
        return {tp for tp in unsound if self._is_here(tp)}

    def recoverable(self) -> set[TopicPartition]:
        """Those of the unsound partitions that can still be recovered."""
        unsound = self.unsound()
        with self._lock:
            return unsound - (self._failures.keys() - self._retry_ms.keys())

    def abandon(self) -> None:
        """Closes all logs without further writes; no log can be opened after this."""
        with self._lock:
            self._closed = True
            logs = list(self._logs.values())
        for log in logs:
            log.abandon()

    def close(self) -> dict[TopicPartition, Exception]:
        """Closes all logs in order; no log can be opened after this. Returns what is offline or did not close, and
        why."""
        with self._lock:
            self._closed = True
            logs = dict(sorted(self._logs.items()))
            failures = dict(self._failures)
        errors: dict[TopicPartition, Exception] = {tp: failures[tp] for tp in failures if self._is_here(tp)}
        for tp, log in logs.items():
            try:
                log.close()
            except (StorageError, OSError) as error:
                errors[tp] = error
        return errors

    def checkpoint(self) -> None:
        """Writes the checkpoints with the current offsets, without a flush. OSError."""
        with self._noting:
            for log in self.all():
                self._checkpoints.set(log.tp, self.offsets_of(log))
        self._checkpoints.write()

    def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        """Writes the cleaner's line of a partition, if this is still its log. OSError."""
        with self._noting:
            if self._is_current(log):
                self._checkpoints.set_cleaner_offset(log.tp, offset)

    def describe(self, topic: str, directories: Sequence[Path], overrides: Mapping[str, str]) -> LogConfig:
        """Writes a topic's configuration (partition_dirs.write_overrides), and applies what is in force then to its
        logs, including those that are being opened. Returns that. One call at a time. OSError."""
        try:
            with self._describing:
                self._half_changed.add(topic)
                partition_dirs.write_overrides(self._disk, directories, overrides)
                self._half_changed.discard(topic)
        finally:
            # The first file counts: the change may be in force although a later one could not be written.
            config = self._log_dir.topic_info(topic).config
            with self._lock:
                self._config_changes += 1  # `_install` checks it
                logs = [log for log in self._logs.values() if log.tp.topic == topic]
            for log in logs:
                log.reconfigure(config)
        return config

    def complete_changes(self) -> None:
        """Completes the changes of topics' configurations that failed. StorageError, OSError."""
        with self._describing:
            topics = sorted(self._half_changed)
        for topic in topics:
            with contextlib.suppress(UnknownTopicOrPartition):  # removed since
                for number in self._log_dir.partitions(topic):
                    self._mend_properties(TopicPartition(topic, number))

    def offsets_of(self, log: PartitionLog) -> PartitionOffsets:
        """A log's checkpoint lines as of now."""
        # The recovery point first: it may grow meanwhile, and the log end is never below it.
        recovery_point = log.recovery_point
        snapshot = log.snapshot()
        # A tiered log has a line in any case: without it a broker would take 0 for where its remote part begins.
        start = snapshot.whole_start_offset
        has_line = start != snapshot.segments[0].base_offset or is_tiered(log.config.other)
        high_watermark: int | None = snapshot.log_end_offset
        with self._lock:
            replicated = log.tp in self._replicated
        if replicated:
            # What only exists here is not replicated: the brokers' own high watermark applies.
            known = self._checkpoints.of(log.tp).high_watermark
            high_watermark = None if known is None else min(known, snapshot.log_end_offset)
        return PartitionOffsets(recovery_point, start if has_line else None, high_watermark)

    def _recover_one(self, tp: TopicPartition, progress: Progress) -> None:
        with contextlib.suppress(PartitionOffline, UnknownTopicOrPartition), self.alone([tp]):
            self._open(tp, clean=False, progress=progress)

    def _open(self, tp: TopicPartition, *, clean: bool, progress: Progress, from_start: bool = False) -> PartitionLog:
        """Recovers a log and makes it its partition's. The caller holds the partition's turn."""
        if not self._is_here(tp):
            raise UnknownTopicOrPartition(f"no partition {tp} here", path=self._log_dir.path)
        directory = self._log_dir.path / tp.dir_name
        began_ms = self._clock.now_ms()
        replaced = False
        try:
            with partition_dirs.watched(directory) as is_there:
                try:
                    recovered = self._recovered(tp, progress, clean=clean, from_start=from_start)
                finally:
                    replaced = not is_there()
                if replaced:
                    recovered.log.abandon()
                    raise PartitionOffline("directory is no longer the one that was opened", path=directory)
                self._lower_checkpoint(recovered.log)
        except (StorageError, OSError) as error:
            raise self._note_failure(tp, directory, error, began_ms, replaced=replaced) from error
        self._install(recovered)
        return recovered.log

    def _recovered(self, tp: TopicPartition, progress: Progress, *, clean: bool, from_start: bool) -> _RecoveredLog:
        with self._lock:
            config_changes = self._config_changes
        info = self._log_dir.topic_info(tp.topic)
        plan = recovery_plan(
            self._log_dir, self._checkpoints, tp, info, clean=clean, gentle=self._gentle, from_start=from_start
        )
        recovery = Recovery(plan, disk=self._disk, clock=self._clock, progress=progress)
        loaded = recovery.run()
        self._mend_properties(tp)
        if self._commits.problem is None:
            staging.remove_orphans(self._disk, plan.directory, self._commits.state, self._clock.now_ms())
        log = PartitionLog(tp, plan.directory, plan.config, loaded, disk=self._disk, clock=self._clock)
        return _RecoveredLog(log, recovery.report, config_changes, info.replicas)

    def _lower_checkpoint(self, log: PartitionLog) -> None:
        """Recovery may have cut a log below its line in the recovery point checkpoint (a bit has flipped, a file was
        lost): then the line is lowered on disk before anybody can append. Otherwise a killed process would leave it
        above messages that were appended later and never synced, and the next recovery would trust them; and the
        cleaner's, beyond what was cleaned."""
        known, end = self._checkpoints.of(log.tp), log.log_end_offset
        cleaned = self._checkpoints.cleaner_offset(log.tp) or 0
        if max(known.recovery_point or 0, cleaned) <= end:
            return
        try:
            with self._noting:
                self._checkpoints.set(log.tp, replace(known, recovery_point=log.recovery_point))
                if cleaned > end:
                    self._checkpoints.set_cleaner_offset(log.tp, end)
            self._checkpoints.write()
        except BaseException:
            log.abandon()
            raise

    def _install(self, recovered: _RecoveredLog) -> None:
        """Makes a log its partition's, once it has the configuration that is in force."""
        log, config_changes = recovered.log, recovered.config_changes
        tp = log.tp
        while True:
            with self._lock:
                if self._closed:
                    break
                if config_changes == self._config_changes:
                    self._logs[tp] = log
                    self._reports[tp] = recovered.report
                    (self._replicated.add if recovered.replicas > 1 else self._replicated.discard)(tp)
                    self._failures.pop(tp, None)
                    self._retry_ms.pop(tp, None)
                    self._unsound.discard(tp)
                    return
                config_changes = self._config_changes
            try:
                log.reconfigure(self._log_dir.topic_info(tp.topic).config)
            except BaseException:
                log.abandon()
                raise
        log.abandon()
        raise self._closed_error()

    def _note_failure(
        self, tp: TopicPartition, directory: Path, error: StorageError | OSError, began_ms: int, *, replaced: bool
    ) -> StorageError:
        """The error to raise when a log could not be opened. It is kept only if the directory still exists."""
        if replaced or partition_dirs.is_gone(directory):
            with contextlib.suppress(OSError):
                self._log_dir.refresh()
            with self._lock:
                self._unsound.add(tp)  # whatever is there now, or will be
            if not self._is_here(tp):
                return UnknownTopicOrPartition(f"partition {tp} is no longer here", path=self._log_dir.path)
            advice = "Another process moves directories here. Try again"
            return PartitionOffline("directory was replaced while it was opened", path=directory, advice=advice)
        failure = _offline(tp, directory, error)
        now_ms = self._clock.now_ms()
        with self._lock:
            self._failures[tp] = failure
            self._unsound.add(tp)
            self._retry_ms.pop(tp, None)
            if isinstance(failure, PartitionUnavailable):
                self._retry_ms[tp] = now_ms + max(now_ms - began_ms, 0)
        return failure

    def _is_here(self, tp: TopicPartition) -> bool:
        try:
            return tp.partition in self._log_dir.partitions(tp.topic)
        except UnknownTopicOrPartition:
            return False

    def _is_current(self, log: PartitionLog) -> bool:
        with self._lock:
            return self._logs.get(log.tp) is log

    def _mend_properties(self, tp: TopicPartition) -> None:
        """Completes an interrupted change of the topic's configuration. Recovery leaves the temporary file of such a
        change alone: only under `_describing` is it known that nobody is about to rename it."""
        first = TopicPartition(tp.topic, self._log_dir.partitions(tp.topic)[0])
        directory = self._log_dir.path / tp.dir_name
        unfinished = directory / (names.TOPIC_PROPERTIES + names.TEMPORARY_SUFFIX)
        original = self._log_dir.path / first.dir_name / names.TOPIC_PROPERTIES
        is_copy = tp != first and exists(original)
        if not is_copy and not exists(unfinished):
            return
        with self._describing:
            if exists(unfinished):
                self._disk.unlink(unfinished)
            if not is_copy:
                return
            overrides = topic_properties.read(original)
            if overrides is not None:
                partition_dirs.write_overrides(self._disk, [directory], overrides)

    def _bytes_to_check(self, tp: TopicPartition) -> int:
        """For the progress display; 0 where it is not known."""
        point = self._checkpoints.of(tp).recovery_point or 0
        with contextlib.suppress(OSError):
            return bytes_from(self._log_dir.path / tp.dir_name, point)
        return 0

    def _may_retry_locked(self, tp: TopicPartition) -> bool:
        retry_ms = self._retry_ms.get(tp)
        return retry_ms is not None and self._clock.now_ms() >= retry_ms

    def _check_open_locked(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> PartitionOffline:
        return PartitionOffline("log directory is closed", path=self._log_dir.path)


class _SharedProgress(NoProgress):
    """Progress of one of several recoveries that are shown as one."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def advance(self, amount: int) -> None:
        self._whole.advance(amount)


def _offline(tp: TopicPartition, directory: Path, error: StorageError | OSError) -> PartitionOffline:
    if isinstance(error, PartitionOffline):
        return error
    what = f"{tp} cannot be opened"
    if isinstance(error, OSError) and error.errno in PASSING_ERRORS:
        advice = "It is tried again when it is next used"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"Free some space on its file system. {advice}"
        return PartitionUnavailable(what, reason=error, path=directory, advice=advice)
    advice = "Repair it, then open the log directory again"
    return PartitionOffline(what, path=directory, found=str(error), advice=advice)


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

        `progress`: of this, and of partitions that are recovered later. A partition that cannot be recovered is
        offline, alone (`failures`). LogLocked when another process holds the directory; NotALogDir, BadDestination
        (see check_log_dir); FileNotFoundError or another OSError.
        """
        path = Path(path)
        disk = RealDisk() if disk is None else disk
        if not opening.create and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no such log directory", str(path))
        check_log_dir(path, create=opening.create)
        path = real_place(path)
        _make_dirs(disk, path)
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

    def _reader(self, tp: TopicPartition) -> Log:
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

        `start_offsets`: of partitions that another log is about to be replicated into; `topic_id`: of that log's topic,
        a new one by default. Crash-safe: the checkpoints
        forget earlier topics of that name, then partition_dirs.create; a crash leaves all, none or the first of them.
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
            wanted = {**NEW_TOPIC_OVERRIDES, **(overrides or {})}
            LogConfig.from_overrides(config.topic_defaults, wanted)
            topic_id = topic_id or partition_metadata.random_id()
            self._create_partitions(topic, range(count), topic_id, wanted, start_offsets or {})

    def add_partitions(self, topic: str, count: int) -> None:
        """Extends the topic to `count` partitions; it cannot have fewer than before. Errors as `create_topic`."""
        guest_rules.check_topics_may_change(self.path, is_broker=self.log_dir.is_broker)
        with self._changing:
            self._check_open_locked()
            info = self.log_dir.topic_info(topic)
            here = self.log_dir.partitions(topic)
            if count < here[-1] + 1:
                raise NotPermitted(f"{topic} has {here[-1] + 1} partitions, and partitions cannot be removed")
            missing = [number for number in range(count) if number not in here]
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
        """True when no partition holds a message. As `log`."""
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
                # Readers may still hold these logs, and files of a topic that is made again may get their inodes.
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
        """Steps 7 to 10. Raises nothing for partitions that fail or a failing disk: see Closing. Safe to call twice.

        Whatever fails, the lock is released: step 10 needs no descriptor, and a file that cannot be unlinked stays
        without a holder.
        """
        with self._changing:
            if self._closed:
                return Closing(clean=False)
            self._closed = True
            stayed: Exception | None = None
            try:
                clean, errors, failure = self._close_logs()
            finally:
                try:
                    self._dir_lock.release()
                except OSError as error:
                    stayed = error
            return Closing(clean, errors, failure or stayed)

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


def _make_dirs(disk: Disk, path: Path) -> None:
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        disk.mkdir(directory)
        disk.sync_dir(directory.parent)
