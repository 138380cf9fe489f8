"""Threads that measure segments and render in advance of sequential readers.

Only `Workers.start` starts them: FUSE forks, and threads started before the fork do not exist in the daemon.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

_log = logging.getLogger(__name__)

# In addition to the thread that answers FUSE. More threads than processors only compete for the interpreter's lock.
DEFAULT_WORKERS = 1 if (os.cpu_count() or 1) <= 2 else 2


class _Job(NamedTuple):
    do: Callable[[], None]
    long: bool


class Workers:
    """A few threads that take jobs from one queue. Without `start` there are none, and nothing is done in advance."""

    def __init__(self, count: int = 2) -> None:
        # constant after construction
        self.count = count
        # has its own locking
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # guarded by the lock
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def running(self) -> bool:
        return bool(self._threads)

    def start(self) -> None:
        """Starts the threads (after any fork)."""
        with self._lock:
            if self._threads:
                return
            for number in range(self.count):
                thread = threading.Thread(target=self._work, name=f"render-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """Lets running jobs finish, drops the others, and ends the threads."""
        with self._lock:
            threads, self._threads = self._threads, []
        while not self._jobs.empty():
            self._jobs.get()
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()

    def submit(self, do: Callable[[], None], *, long: bool = False) -> bool:
        """Queues a job; False if there is no thread to do it. `help` does not take a `long` job."""
        if not self._threads:
            return False
        self._jobs.put(_Job(do, long))
        return True

    def help(self) -> bool:
        """Does one queued job in the calling thread, which would otherwise wait; False if there is none."""
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return False
        if job is None or job.long:
            self._jobs.put(job)
            return False
        _do(job)
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(job)


def _do(job: _Job) -> None:
    try:
        job.do()
    except Exception:  # noqa: BLE001 - a job's failure must not end the thread; the reader gets the error itself
        _log.debug("work in advance failed", exc_info=True)
