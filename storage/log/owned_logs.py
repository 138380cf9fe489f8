"""The logs of a directory that we own: recovered, opened, and offline where that failed, each by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from storage.clock import Clock
from storage.errors import PartitionOffline, StorageError, UnknownTopicOrPartition
from storage.files import names, topic_properties
from storage.files.disk import Disk
from storage.files.names import FileKind
from storage.log import partition_dirs, staging
from storage.log.commits import CommitLedger
from storage.log.directory_checkpoints import DirectoryCheckpoints, PartitionOffsets
from storage.log.health import PASSING_ERRORS
from storage.log.log_dir import LogDir
from storage.log.partition_log import PartitionLog
from storage.log.recovery import Recovery, RecoveryPlan, RecoveryReport
from storage.progress import Progress
from storage.types import TopicPartition

# A partition that a full disk kept from being opened is tried again when it is asked for, but no sooner.
RETRY_MS: Final = 1000


class OwnedLogs:
    """Logs by partition, each opened once. Thread-safe.

    `unsound`: partitions that must be checked when they are opened; the others were closed in order. `gentle`: see
    RecoveryPlan. `progress`: of what is recovered.
    """

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
        # Held from the look at the logs until what they say is written, and throughout a truncation: else a recovery
        # point of before it could be written after it. Taken before any log's own locks.
        self._checkpointing = Lock()
        # Guarded by the lock.
        self._lock = Lock()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._failures: dict[TopicPartition, PartitionOffline] = {}
        self._retry_ms: dict[TopicPartition, int] = {}  # of those that may pass: when to try again
        self._opening: dict[TopicPartition, Lock] = {}
        self._unsound = set(unsound)
        self._replicated: set[TopicPartition] = set()
        self._reports: dict[TopicPartition, RecoveryReport] = {}
        self._closed = False

    def get(self, tp: TopicPartition) -> PartitionLog:
        """A log, opened now if need be. UnknownTopicOrPartition; PartitionOffline when that failed, now or before.

        What failed for want of space, memory or descriptors is tried again.
        """
        with self._lock:
            log = self._logs.get(tp)
            if log is not None:
                return log
            opening = self._opening.setdefault(tp, Lock())
        with opening:
            with self._lock:
                self._check_open_locked()
                if tp in self._failures and not self._may_retry_locked(tp):
                    raise self._failures[tp]
                log = self._logs.get(tp)
                clean = tp not in self._unsound
            return log or self._open(tp, clean=clean, progress=self._progress)

    def all(self) -> list[PartitionLog]:
        """The logs that are open, by topic and partition."""
        with self._lock:
            return [self._logs[tp] for tp in sorted(self._logs)]

    def failures(self) -> dict[TopicPartition, Exception]:
        """The partitions that are offline, and why."""
        with self._lock:
            failed: dict[TopicPartition, Exception] = dict(self._failures)
            failed |= {tp: log.failure for tp, log in self._logs.items() if log.failure is not None}
            return dict(sorted(failed.items()))

    def reports(self) -> dict[TopicPartition, RecoveryReport]:
        """What the recovery of each partition that was opened did."""
        with self._lock:
            return dict(sorted(self._reports.items()))

    def recover(self, chosen: Collection[TopicPartition], progress: Progress, threads: int) -> None:
        """Opens these partitions as after a crash, several at once. Those that cannot be are offline. `threads`: for
        all of them."""
        if not chosen:
            return
        each = max(1, threads // len(chosen))
        progress.begin("recovery", sum(self._bytes_to_check(tp) for tp in chosen))
        try:
            if min(threads, len(chosen)) == 1:
                for tp in chosen:
                    self._recover_one(tp, _PartOf(progress), each)
                return
            with ThreadPoolExecutor(threads, "recovery") as pool:
                for task in [pool.submit(self._recover_one, tp, _PartOf(progress), each) for tp in chosen]:
                    task.result()
        finally:
            progress.end()

    def reindex(self, tp: TopicPartition, progress: Progress) -> RecoveryReport:
        """Opens a partition with indexes and producer snapshots rebuilt from all of its log. Errors as `get`."""
        self.forget([tp])
        threads = self._log_dir.broker_config().recovery_threads
        self._open(tp, clean=False, progress=progress, recovery_point=0, threads=threads)
        return self.reports()[tp]

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Closes logs as they are. When they are next asked for they are recovered, whatever failed before."""
        for tp in partitions:
            with self._lock:
                log = self._logs.pop(tp, None)
                self._failures.pop(tp, None)
                self._retry_ms.pop(tp, None)
                self._unsound.add(tp)
            if log is not None:
                log.abandon()
                self._checkpoints.set(tp, self.offsets_of(log))
            self._log_dir.forget(tp)

    def sound(self, partitions: Collection[TopicPartition]) -> None:
        """These have just been made, or removed: nothing of them needs to be checked."""
        with self._lock:
            self._unsound.difference_update(partitions)

    def unsound(self) -> set[TopicPartition]:
        """The partitions that were not recovered since the directory was last shut down cleanly, or were closed as
        they were since."""
        with self._lock:
            return set(self._unsound)

    def recoverable(self) -> set[TopicPartition]:
        """Of these, the ones that may yet be recovered."""
        with self._lock:
            return self._unsound - (self._failures.keys() - self._retry_ms.keys())

    def abandon(self) -> None:
        """Closes all logs as they are; none is opened any more."""
        with self._lock:
            self._closed = True
            logs = list(self._logs.values())
        for log in logs:
            log.abandon()

    def close(self) -> dict[TopicPartition, Exception]:
        """Closes all logs in order; none is opened any more. Returns what is offline or did not close, and why."""
        with self._lock:
            self._closed = True
            logs = dict(sorted(self._logs.items()))
            errors: dict[TopicPartition, Exception] = dict(self._failures)
        for tp, log in logs.items():
            try:
                log.close()
            except (StorageError, OSError) as error:
                errors[tp] = error
        return errors

    def checkpoint(self) -> None:
        """Writes the checkpoints as things are now; nothing is flushed for it. OSError."""
        with self._checkpointing:
            self._checkpoint_held()

    def _checkpoint_held(self) -> None:
        for log in self.all():
            self._checkpoints.set(log.tp, self.offsets_of(log))
        self._checkpoints.write()

    def truncate(self, log: PartitionLog, offset: int) -> list[Path]:
        """See OwnedDir.truncate_to."""
        with self._checkpointing:
            known = self.offsets_of(log)
            lowered = min(known.recovery_point or 0, offset)
            self._checkpoints.set(log.tp, replace(known, recovery_point=lowered))
            self._checkpoints.write()
            removed = log.truncate_to(offset)
            self._checkpoint_held()
            return removed

    def offsets_of(self, log: PartitionLog) -> PartitionOffsets:
        """A log's checkpoint lines as of now."""
        # The recovery point first: it may grow meanwhile, and the log end is never below it.
        recovery_point = log.recovery_point
        snapshot = log.snapshot()
        begins_late = snapshot.log_start_offset > snapshot.segments[0].base_offset
        high_watermark: int | None = snapshot.log_end_offset
        with self._lock:
            replicated = log.tp in self._replicated
        if replicated:
            # What only we have is not replicated: there the brokers' own high watermark stands.
            known = self._checkpoints.of(log.tp).high_watermark
            high_watermark = None if known is None else min(known, snapshot.log_end_offset)
        return PartitionOffsets(recovery_point, snapshot.log_start_offset if begins_late else None, high_watermark)

    def _recover_one(self, tp: TopicPartition, progress: Progress, threads: int) -> None:
        with contextlib.suppress(PartitionOffline):
            self._open(tp, clean=False, progress=progress, threads=threads)

    def _open(
        self,
        tp: TopicPartition,
        *,
        clean: bool,
        progress: Progress,
        recovery_point: int | None = None,
        threads: int = 1,
    ) -> PartitionLog:
        if tp.partition not in self._log_dir.partitions(tp.topic):
            raise UnknownTopicOrPartition(f"no partition {tp} here", path=self._log_dir.path)
        info = self._log_dir.topic_info(tp.topic)
        known = self._checkpoints.of(tp)
        plan = RecoveryPlan(
            tp,
            self._log_dir.path / tp.dir_name,
            info.config,
            clean,
            recovery_point=(known.recovery_point or 0) if recovery_point is None else recovery_point,
            log_start_offset=known.log_start or 0,
            producer_expiration_ms=self._log_dir.broker_config().producer_id_expiration_ms,
            gentle=self._gentle,
            threads=threads,
        )
        recovery = Recovery(plan, disk=self._disk, clock=self._clock, progress=progress)
        try:
            loaded = recovery.run()
            self._mend_properties(tp)
            if self._commits.problem is None:
                staging.remove_orphans(self._disk, plan.directory, self._commits.state, self._clock.now_ms())
            log = PartitionLog(tp, plan.directory, info.config, loaded, disk=self._disk, clock=self._clock)
        except (StorageError, OSError) as error:
            passing = isinstance(error, OSError) and error.errno in PASSING_ERRORS
            failure = _offline(tp, plan, error, passing=passing)
            with self._lock:
                self._failures[tp] = failure
                self._unsound.add(tp)
                self._retry_ms.pop(tp, None)
                if passing:
                    self._retry_ms[tp] = self._clock.now_ms() + RETRY_MS
            raise failure from error
        with self._lock:
            if self._closed:
                log.abandon()
                self._check_open_locked()
            self._reports[tp] = recovery.report
            self._logs[tp] = log
            self._failures.pop(tp, None)
            self._retry_ms.pop(tp, None)
            self._unsound.discard(tp)
            if info.replicas > 1:
                self._replicated.add(tp)
        return log

    def _mend_properties(self, tp: TopicPartition) -> None:
        """Finishes a change of the topic's configuration that was interrupted."""
        first = TopicPartition(tp.topic, self._log_dir.partitions(tp.topic)[0])
        directory = self._log_dir.path / tp.dir_name
        if tp != first and (directory / names.TOPIC_PROPERTIES).exists():
            overrides = topic_properties.read(self._log_dir.path / first.dir_name / names.TOPIC_PROPERTIES)
            if overrides is not None:
                partition_dirs.write_overrides(self._disk, [directory], overrides)

    def _bytes_to_check(self, tp: TopicPartition) -> int:
        point = self._checkpoints.of(tp).recovery_point or 0
        sizes = {}
        for path in (self._log_dir.path / tp.dir_name).iterdir():
            parsed = names.parse_segment_file(path.name)
            if parsed is not None and parsed.kind is FileKind.LOG and not parsed.state.value:
                sizes[parsed.offset] = path.stat().st_size
        first = max((offset for offset in sizes if offset <= point), default=0)
        return sum(size for offset, size in sizes.items() if offset >= first)

    def _may_retry_locked(self, tp: TopicPartition) -> bool:
        retry_ms = self._retry_ms.get(tp)
        return retry_ms is not None and self._clock.now_ms() >= retry_ms

    def _check_open_locked(self) -> None:
        if self._closed:
            raise PartitionOffline("log directory is closed", path=self._log_dir.path)


class _PartOf:
    """One of several recoveries that are one piece of work."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        self._whole.advance(amount)

    def end(self) -> None:
        pass


def _offline(tp: TopicPartition, plan: RecoveryPlan, error: Exception, *, passing: bool) -> PartitionOffline:
    if isinstance(error, PartitionOffline):
        return error
    advice = "It is tried again when it is next used" if passing else "Mend it, then open the log directory again"
    return PartitionOffline(f"{tp} cannot be opened", path=plan.directory, found=str(error), advice=advice)
