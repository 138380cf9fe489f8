"""The logs of a directory that this process owns: recovered, opened, and taken offline separately when that fails."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock

from storage.append.health import PASSING_ERRORS
from storage.append.open_logs import OpenLogs
from storage.append.partition_log import PartitionLog
from storage.clock import Clock
from storage.config import LogConfig
from storage.directory import partition_dirs
from storage.directory.directory_checkpoints import DirectoryCheckpoints, PartitionOffsets
from storage.directory.recovery_plans import recovery_plan
from storage.errors import PartitionOffline, PartitionUnavailable, StorageError, UnknownTopicOrPartition, error_text
from storage.files import names, topic_properties
from storage.files.disk_protocol import Disk
from storage.files.opening import exists
from storage.log.log_dir import LogDir
from storage.log.segments import bytes_from
from storage.log.tiering import is_tiered
from storage.progress import NoProgress, Progress, working
from storage.recovery.recovery import Recovery, RecoveryReport
from storage.staged_writes import staging
from storage.staged_writes.ledger import CommitLedger
from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class _RecoveredLog:
    """A log that is about to become its partition's. `config_changes`: how often topics' configurations had been
    changed when this log's was read. `replicas`: the replicas of its topic."""

    log: PartitionLog
    report: RecoveryReport
    config_changes: int
    replicas: int


class OwnedLogs:
    """Logs by partition, each opened once. Thread-safe.

    `unsound`: partitions that must be checked when they are opened; the others were closed in order. `gentle`: see
    RecoveryPlan. `progress`: shows the recoveries.

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
        self._open_logs = OpenLogs()
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
            now_ms = self._clock.now_ms()
            with self._lock:
                self._check_open_locked()
                log = self._logs.get(tp)
                if log is not None:
                    return log
                failure = None if self._may_retry_locked(tp, now_ms) else self._failures.get(tp)
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
        """Writes a topic's configuration (partition_dirs.write_overrides); applies the resulting configuration to its
        logs, including those that are being opened, and returns it. One call at a time. OSError."""
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
        # A tiered log has a line in any case: without a line a broker would assume that its remote part begins at 0.
        start = snapshot.whole_start_offset
        has_line = start != snapshot.segments[0].base_offset or is_tiered(log.config.other)
        high_watermark: int | None = snapshot.log_end_offset
        with self._lock:
            replicated = log.tp in self._replicated
        if replicated:
            # Messages that only exist here are not replicated: the brokers' own high watermark applies.
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
        log = PartitionLog(
            tp, plan.directory, plan.config, loaded, disk=self._disk, clock=self._clock, open_logs=self._open_logs
        )
        return _RecoveredLog(log, recovery.report, config_changes, info.replicas)

    def _lower_checkpoint(self, log: PartitionLog) -> None:
        """Lowers a log's checkpoint lines on disk, before anybody can append, if recovery cut the log below them (a bit
        has flipped, a file was lost).

        Otherwise a killed process would leave the recovery point above messages that were appended later and never
        synced, and the next recovery would trust them; and the cleaner's line beyond what was cleaned.
        """
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

    def _may_retry_locked(self, tp: TopicPartition, now_ms: int) -> bool:
        retry_ms = self._retry_ms.get(tp)
        return retry_ms is not None and now_ms >= retry_ms

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
    return PartitionOffline(what, path=directory, found=error_text(error), advice=advice)
