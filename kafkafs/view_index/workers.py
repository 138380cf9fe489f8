"""Threads that measure segments and render ahead of sequential readers.

They are started by `Workers.start` alone: FUSE forks, and threads started before vanish in the daemon.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

_log = logging.getLogger(__name__)

# Beside the thread that answers FUSE. More threads than processors only take the interpreter's lock from each other.
DEFAULT_WORKERS = 1 if (os.cpu_count() or 1) <= 2 else 2


class _Job(NamedTuple):
    do: Callable[[], None]
    long: bool


class Workers:
    """A few threads that take jobs from one queue. Without `start` there are none, and nothing is done ahead."""

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
        """Lets the jobs under way finish, drops the others, and ends the threads."""
        with self._lock:
            threads, self._threads = self._threads, []
        while not self._jobs.empty():
            self._jobs.get()
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()

    def submit(self, do: Callable[[], None], *, long: bool = False) -> bool:
        """Queues a job; False if there is nobody to do it. A `long` one is nothing for who helps while waiting."""
        if not self._threads:
            return False
        self._jobs.put(_Job(do, long))
        return True

    def help(self) -> bool:
        """Does one job that waits, in the thread of one who has nothing better to do; False if none waits."""
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
    except Exception:  # noqa: BLE001 - a job's failure must not end the thread; the reader meets it itself
        _log.debug("work ahead failed", exc_info=True)
