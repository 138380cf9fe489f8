"""The background work of a log directory that we own: one thread that runs due tasks, and waits.

- flush: syncs messages older than `flush.ms`, and sealed segments
- retention: every `log.retention.check.interval.ms`, over all partitions with configured limits
- checkpoints: recovery points, log starts, high watermarks, at the shortest of Kafka's three intervals
- deletion: files renamed to `.deleted` are unlinked `file.delete.delay.ms` later
- compaction: the dirtiest partition first, then the next; `log.cleaner.backoff.ms` later when none is dirty enough.
  Between two windows of a pass all other due work is done, so that nothing waits for it

A partition that fails is taken offline by its own log; the others, and the thread, continue. Any error in a loop over
partitions, even a bug, is caught for each of them, so that none is skipped because of another. Sources: Kafka's
LogManager (startup, flushDirtyLogs, cleanupLogs, deleteLogs), LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final, Protocol

from storage.append.partition_log import PartitionLog
from storage.compaction.cleaner import Cleaner, CompactionStopped
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import LogClosed, StorageError, UnknownTopicOrPartition, error_text
from storage.types import TopicPartition
from storage.upkeep.partition_retention import retain_partition
from storage.upkeep.retention import FreeBytes, disk_free_bytes

_LOG = logging.getLogger(__name__)

FLUSH: Final = "flush"
RETENTION: Final = "retention"
CHECKPOINTS: Final = "checkpoints"
DELETION: Final = "deletion"
COMPACTION: Final = "compaction"

# flush.ms is checked at least every _FLUSH_LOOK_MS, because other threads open logs and change their configurations,
# and at most every _LEAST_FLUSH_MS.
_FLUSH_LOOK_MS: Final = 1000
_LEAST_FLUSH_MS: Final = 10
_NEVER_MS: Final = 3_600_000


class Waiter(Protocol):
    """The wait of the thread; passed in, so that no test sleeps."""

    def wait(self, timeout_ms: int) -> None:
        """Returns after that time, or earlier when woken. A wake before the call makes it return at once."""

    def wake(self) -> None:
        """Ends the wait, or the next one. Called from any thread."""


class EventWaiter:
    """A Waiter on the machine's time."""

    def __init__(self) -> None:
        self._event = Event()

    def wait(self, timeout_ms: int) -> None:
        self._event.wait(timeout_ms / 1000)
        self._event.clear()

    def wake(self) -> None:
        self._event.set()


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A kind of background work: `result` of its last run as a text, its `errors` by partition ("" is the
    directory). Times in epoch milliseconds, None before the first run."""

    name: str
    running: bool
    runs: int
    last_run_ms: int | None
    last_duration_ms: int | None
    next_run_ms: int
    result: str
    errors: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The status of all tasks. `state`: "not started", "waiting", "running" or "stopped"; what awaits deletion, in
    files and bytes; the dirty ratio of each compacted partition, when it was last computed."""

    state: str
    tasks: tuple[TaskStatus, ...]
    awaiting_deletion_files: int
    awaiting_deletion_bytes: int
    dirty_ratios: dict[str, float]


@dataclass(slots=True)
class _Awaiting:
    due_ms: int
    paths: list[Path]
    size_bytes: int


class _Report:
    """The outcome of one run of a task."""

    def __init__(self) -> None:
        self.result = ""
        self.errors: dict[str, str] = {}
        self.bugs: dict[str, Exception] = {}  # the unexpected errors, which are logged in full

    @contextlib.contextmanager
    def failing_alone(self, tp: TopicPartition) -> Iterator[None]:
        """Notes an error within the block and keeps it from affecting other partitions."""
        try:
            yield
        except (UnknownTopicOrPartition, LogClosed):
            pass  # it was removed just now
        except (StorageError, OSError) as error:
            self.errors[str(tp)] = _text(error)
        except Exception as error:  # noqa: BLE001 - one partition's bug must not stop work on the others
            self.errors[str(tp)] = _text(error)
            self.bugs[str(tp)] = error


@dataclass(slots=True)
class _PeriodicTask:
    name: str
    run: Callable[[_Report], int]  # returns when to run again, epoch ms
    next_run_ms: int
    status: TaskStatus


class Maintenance:
    """Works on one OwnedDir from `start` to `stop`. Thread-safe; only the thread (or a test) calls `run_due`."""

    def __init__(self, owned: OwnedDir, *, waiter: Waiter | None = None, free_bytes: FreeBytes | None = None) -> None:
        # Constant after construction.
        self._owned = owned
        self._clock = owned.clock
        self._config = owned.log_dir.broker_config()
        self._waiter = EventWaiter() if waiter is None else waiter
        self._disk_free = disk_free_bytes(owned.path) if free_bytes is None else free_bytes
        self._thread = Thread(target=self._work, name="maintenance", daemon=True)
        now_ms = self._clock.now_ms()
        later_ms = now_ms + self._config.initial_task_delay_ms
        self._tasks = [
            _task(FLUSH, self._flush, now_ms),
            _task(RETENTION, self._retention, later_ms),
            _task(CHECKPOINTS, self._checkpoints, later_ms),
            _task(DELETION, self._deletion, now_ms),
            _task(COMPACTION, self._compaction, later_ms),
        ]
        self._cleaner = Cleaner(owned, self._pause, self._unlink_later)
        # Guarded by the lock.
        self._lock = Lock()
        self._awaiting: list[_Awaiting] = []
        self._state = "not started"
        self._stopping = False
        self._looked_ms = now_ms

    def start(self) -> None:
        """Starts the thread: after a fork, not before it."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the partition that it works on, then deletes the files that await deletion. Safe to
        call twice.

        The directory is closed after this, not before.
        """
        with self._lock:
            self._stopping = True
        self._waiter.wake()
        if self._thread.is_alive():
            self._thread.join()
        report = _Report()
        with self._lock:
            self._state = "stopped"
            awaiting, self._awaiting = self._awaiting, []
        for entry in awaiting:
            self._unlink(entry, report)
        for where, error in report.errors.items():
            _LOG.warning("%s: %s", where or self._owned.path, error)

    def delete_later(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Unlinks files, already renamed to `.deleted`, after a delay."""
        chosen = list(paths)
        if not chosen:
            return
        size = 0
        for path in chosen:
            with contextlib.suppress(OSError):
                size += path.lstat().st_size
        with self._lock:
            self._awaiting.append(_Awaiting(self._clock.now_ms() + delay_ms, chosen, size))
        self._waiter.wake()

    def status(self) -> MaintenanceStatus:
        """The current status, for @status.json."""
        with self._lock:
            files = sum(len(entry.paths) for entry in self._awaiting)
            size = sum(entry.size_bytes for entry in self._awaiting)
            dirty = {str(tp): round(dirty.ratio, 3) for tp, dirty in self._cleaner.dirty.items()}
            return MaintenanceStatus(self._state, tuple(task.status for task in self._tasks), files, size, dirty)

    # The thread

    def _work(self) -> None:
        while not self._is_stopping():
            wait_ms = self.run_due()
            if not self._is_stopping():
                self._waiter.wait(wait_ms)

    def run_due(self) -> int:
        """Does everything that is due; returns the milliseconds until something will be. Never raises."""
        self._run_tasks(self._tasks)
        with self._lock:
            self._state = "waiting"
            now_ms = self._clock.now_ms()
            due = [task.next_run_ms for task in self._tasks] + [entry.due_ms for entry in self._awaiting]
            return min(max(min(due) - now_ms, 0), _NEVER_MS)

    def _run_tasks(self, tasks: Iterable[_PeriodicTask]) -> None:
        self._follow_clock()
        for task in tasks:
            if self._is_due(task):
                self._run(task)

    def _is_due(self, task: _PeriodicTask) -> bool:
        now_ms = self._clock.now_ms()
        with self._lock:
            if self._stopping:
                return False
            waited = task.name == DELETION and any(entry.due_ms <= now_ms for entry in self._awaiting)
            return waited or task.next_run_ms <= now_ms

    def _follow_clock(self) -> None:
        """When the wall clock is set back, moves all planned times back with it."""
        now_ms = self._clock.now_ms()
        with self._lock:
            back_ms = max(self._looked_ms - now_ms, 0)
            self._looked_ms = now_ms
            if back_ms:
                for task in self._tasks:
                    task.next_run_ms -= back_ms
                for entry in self._awaiting:
                    entry.due_ms -= back_ms

    def _run(self, task: _PeriodicTask) -> None:
        started_ms = self._clock.now_ms()
        report = _Report()
        with self._lock:
            self._state = "running"
            task.status = replace(task.status, running=True)
        try:
            next_run_ms = task.run(report)
        except OSError as error:
            report.errors[""] = error_text(error)
            next_run_ms = started_ms + _FLUSH_LOOK_MS * 10
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread: what else is to be done still is
            _LOG.exception("%s failed", task.name)
            report.errors[""] = repr(error)
            next_run_ms = started_ms + _FLUSH_LOOK_MS * 10
        for where, text in report.errors.items():
            if (where, text) not in task.status.errors:
                bug = report.bugs.get(where)
                _LOG.warning("%s: %s: %s", task.name, where or self._owned.path, text, exc_info=bug)
        now_ms = self._clock.now_ms()
        with self._lock:
            self._looked_ms = max(self._looked_ms, now_ms)  # the plan follows this time, should it be set back
            task.next_run_ms = max(next_run_ms, now_ms + 1)
            if task.name in (FLUSH, COMPACTION) and not (report.result or report.errors) and task.status.runs:
                # They run all the time: their status shows the last run that did something.
                task.status = replace(task.status, running=False, next_run_ms=task.next_run_ms)
                return
            task.status = TaskStatus(
                task.name,
                running=False,
                runs=task.status.runs + 1,
                last_run_ms=started_ms,
                last_duration_ms=now_ms - started_ms,
                next_run_ms=task.next_run_ms,
                result=report.result,
                errors=tuple(sorted(report.errors.items())),
            )

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping

    # The tasks

    def _flush(self, report: _Report) -> int:
        """Syncs every log that has waited flush.ms, so that no message waits longer than that. Of the others it syncs
        sealed segments, so that little is left to recover (UnifiedLog.roll)."""
        now_ms = self._clock.now_ms()
        next_ms = now_ms + min(_FLUSH_LOOK_MS, self._config.flush_scheduler_interval_ms)
        flushed = 0
        for log in self._working_logs():
            if self._is_stopping():
                break
            every_ms = max(log.config.flush_ms, _LEAST_FLUSH_MS)
            # What is appended right after this has waited no longer than flush.ms at the next run.
            since_ms = now_ms
            if log.recovery_point < log.log_end_offset:
                if not 0 <= now_ms - log.last_flush_ms < every_ms:  # also when the clock was set back
                    with report.failing_alone(log.tp):
                        log.flush()
                        flushed += 1
                else:
                    since_ms = log.last_flush_ms
            flushed += self._flush_sealed(log, report)
            next_ms = min(next_ms, since_ms + every_ms)
        report.result = f"{flushed} log(s) flushed" if flushed else ""
        return max(next_ms, now_ms + _LEAST_FLUSH_MS)

    def _flush_sealed(self, log: PartitionLog, report: _Report) -> bool:
        if not log.has_unsynced_sealed:
            return False
        with report.failing_alone(log.tp):
            log.flush(only_sealed=True)
        return True

    def _retention(self, report: _Report) -> int:
        segments = size = 0
        failed = self._owned.failures()
        opened = {log.tp for log in self._owned.logs()}
        for tp in self._owned.partitions():
            if self._is_stopping():
                break
            if tp in failed:
                continue
            with report.failing_alone(tp):
                if tp not in opened and not self._has_limits(tp.topic):
                    continue  # nothing can have expired, so it need not be opened
                result = retain_partition(self._owned, tp, free_bytes=self._free_bytes)
                if result is None:
                    continue
                segments += len(result.segments)
                size += result.size_bytes
                self._unlink_later(tp, result.files)
        report.result = f"{segments} segment(s) removed, {size} bytes"
        return self._clock.now_ms() + self._config.retention_check_interval_ms

    def _checkpoints(self, report: _Report) -> int:
        config = self._config
        self._owned.checkpoint()
        report.result = "written"
        return self._clock.now_ms() + max(
            min(
                config.recovery_point_checkpoint_interval_ms,
                config.log_start_checkpoint_interval_ms,
                config.high_watermark_checkpoint_interval_ms,
            ),
            1,
        )

    def _deletion(self, report: _Report) -> int:
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [entry for entry in self._awaiting if entry.due_ms <= now_ms]
            self._awaiting = [entry for entry in self._awaiting if entry.due_ms > now_ms]
        files = sum(len(entry.paths) for entry in due)
        for entry in due:
            self._unlink(entry, report)
            if entry.paths:
                entry.due_ms = now_ms + _FLUSH_LOOK_MS * 10
                files -= len(entry.paths)
                with self._lock:
                    self._awaiting.append(entry)
        report.result = f"{files} file(s) deleted"
        with self._lock:
            return min((entry.due_ms for entry in self._awaiting), default=now_ms + _NEVER_MS)

    def _unlink_later(self, tp: TopicPartition, files: Sequence[Path]) -> None:
        if files:
            self.delete_later(files, self._owned.topic_info(tp.topic).config.file_delete_delay_ms)

    def _unlink(self, entry: _Awaiting, report: _Report) -> None:
        """Removes the files of an entry; those that could not be removed stay in it."""
        kept = []
        for path in entry.paths:
            try:
                self._owned.disk.unlink(path)
            except FileNotFoundError:
                pass  # its topic was deleted meanwhile
            except OSError as error:
                kept.append(path)
                report.errors[path.parent.name] = error_text(error)
        entry.paths = kept

    def _compaction(self, report: _Report) -> int:
        """Compact one partition; the next follows at once, as long as a partition needs compaction."""
        if not self._config.cleaner_enable:
            return self._clock.now_ms() + _NEVER_MS
        result = None
        with contextlib.suppress(CompactionStopped):
            result = self._cleaner.clean_dirtiest()
        report.errors |= {str(tp): _text(error) for tp, error in self._cleaner.errors.items()}
        if result is None:
            return self._clock.now_ms() + self._config.cleaner_backoff_ms
        counts = result.counts
        gone = f"{counts.records_gone} of {counts.records_read} records removed, {counts.bytes_gone} bytes"
        report.result = f"{result.tp}: {gone}"
        return self._clock.now_ms()

    def _pause(self, wait_ms: int) -> None:
        """Between two windows of compaction: waits, and does other work that is due."""
        until_ms = self._clock.now_ms() + wait_ms
        others = [task for task in self._tasks if task.name != COMPACTION]
        while True:
            if self._is_stopping():
                raise CompactionStopped
            self._run_tasks(others)
            now_ms = self._clock.now_ms()
            # A clock that is set back must not make this wait longer.
            if not now_ms < until_ms <= now_ms + wait_ms:
                return
            self._waiter.wait(until_ms - now_ms)

    def _working_logs(self) -> list[PartitionLog]:
        return [log for log in self._owned.logs() if log.failure is None]

    def _has_limits(self, topic: str) -> bool:
        config = guest_rules.retention_config(self._owned.topic_info(topic).config)
        limits = (config.retention_ms, config.retention_bytes, config.retention_free_bytes)
        return config.delete and max(limits) >= 0 and self._owned.may_retain(topic)

    def _free_bytes(self) -> int:
        """The free bytes, including those of files that await deletion."""
        with self._lock:
            awaiting = sum(entry.size_bytes for entry in self._awaiting)
        return self._disk_free() + awaiting


def _text(error: Exception) -> str:
    return error_text(error) if isinstance(error, StorageError | OSError) else repr(error)


def _task(name: str, run: Callable[[_Report], int], next_run_ms: int) -> _PeriodicTask:
    return _PeriodicTask(name, run, next_run_ms, TaskStatus(name, False, 0, None, None, next_run_ms, "", ()))
