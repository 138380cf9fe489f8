"""A log's flushes, one after the other, and the recovery point that they move.

The rule: files are taken for syncing, and the recovery point moves, only while `Flushing` is held; and the thread
that takes files has synced them, or put them back, before it releases `Flushing`. So a thread that holds it finds all
unsynced files among the noted ones, and the recovery point never passes a file that another thread is still syncing.

It is also held while files of the log are renamed, replaced or removed (retention, compaction, closing),
because a sync finds files by their names.

Order of locks: `Flushing` first, then the log's own lock; never the other way round. The log's lock is not held while
files are synced, so appends and readers continue. Where flush.messages requires it, a writer waits for a flush after
its append and not during it: it may have to wait for a flush that another thread has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from storage.append.health import OPENING_ERRORS, Health
from storage.append.partition_files import PartitionFiles
from storage.clock import Clock


class Flushing:
    """Held as a context manager while the set of a log's files changes; `flush` takes it by itself.

    `lock`: the log's own. It guards `files` and `health`.
    """

    def __init__(self, lock: Lock, files: PartitionFiles, health: Health, clock: Clock) -> None:
        # Constant after construction.
        self._clock = clock
        self._lock = lock
        # The lock that this class manages.
        self._held = Lock()
        # Guarded by the log's lock.
        self._files = files
        self._health = health

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()

    def flush(self, end_locked: Callable[[], int], *, only_sealed: bool = False) -> int:
        """Syncs what was written before the call; returns the recovery point. `end_locked` returns the offset up to
        which to flush and is called under the log's lock; with `only_sealed` that is the active segment's base offset,
        and only files below it are synced.

        PartitionOffline. A failed sync takes the log offline, also for threads that wait for the next flush. If only
        descriptors or memory were missing, the log stays online and the next flush syncs the files.
        """
        with self:
            return self._flush_held(end_locked, only_sealed=only_sealed)

    def flush_up_to(self, offset: int, end_locked: Callable[[], int]) -> None:
        """`flush` for a writer whose messages below `offset` must be on disk before it continues. Does nothing
        where another thread's flush has covered them meanwhile.

        Any failure takes the log offline: the messages are in the log, and cannot be reported as on disk.
        """
        with self:
            if self._files.recovery_point >= offset:
                return
            try:
                self._flush_held(end_locked)
            except OSError as error:
                with self._lock:
                    self._health.fail(error)
                raise

    def _flush_held(self, end_locked: Callable[[], int], *, only_sealed: bool = False) -> int:
        with self._lock:
            self._health.check()
            end = end_locked()
            unsynced = self._files.take_unsynced(end if only_sealed else None)
            now_ms = None if only_sealed else self._clock.now_ms()
        try:
            self._files.sync(unsynced)
        except BaseException as error:
            with self._lock:
                self._files.put_back(unsynced)
                if isinstance(error, OSError) and error.errno not in OPENING_ERRORS:
                    self._health.fail(error)
            raise
        with self._lock:
            self._files.synced(end, now_ms)
            return self._files.recovery_point
