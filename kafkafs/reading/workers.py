"""Threads that measure segments and render in advance of sequential readers.

Only `Workers.start` starts them: FUSE forks, and threads started before the fork do not exist in the daemon.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kafkafs.reading.workbench import Workbench, workbench
from storage.log.segment import LARGE_WINDOW_BYTES, Segment

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
        # locks itself
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
        with suppress(Empty):
            # Never blocks: `help` takes jobs at the same time.
            while threads:
                self._jobs.get_nowait()
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


# Scans in progress, for @status.json, and their end when the mount ends.

_SHOWN_BYTES = 32 << 20  # scans of at least this size are listed


@dataclass(slots=True)
class _Scan:
    """A scan in progress: bytes of a file or of a log."""

    path: str
    total_bytes: int
    done_bytes: int = 0


class Scans:
    """The scans of one index. Thread-safe."""

    def __init__(self) -> None:
        # counted without a lock by at most two threads: a number for people
        self.scanned_bytes = 0
        self.stopping = False  # whether scans are to end, with OSError (ESHUTDOWN)
        # guarded by the lock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._scans: dict[int, _Scan] = {}

    @contextmanager
    def scan(self, path: Path, total_bytes: int) -> Iterator[OnBytes]:
        """Show a scan of `total_bytes` bytes of `path`; call the value with the bytes of each step."""
        scan = _Scan(str(path), max(0, total_bytes))

        def advance(done: int) -> None:
            scan.done_bytes += done
            self.scanned_bytes += done
            if self.stopping:
                raise OSError(errno.ESHUTDOWN, os.strerror(errno.ESHUTDOWN))

        if scan.total_bytes < _SHOWN_BYTES:
            yield advance
            return
        with self._lock:
            number = next(self._numbers)
            self._scans[number] = scan
        try:
            yield advance
        finally:
            with self._lock:
                del self._scans[number]

    def status(self) -> list[dict[str, Any]]:
        """The large scans that are running."""
        with self._lock:
            return [
                {"file": scan.path, "done_bytes": scan.done_bytes, "total_bytes": scan.total_bytes}
                for scan in self._scans.values()
            ]


# One pass over a large stretch of a segment, shared among threads: parts of it that begin where the offset index says
# that a batch begins.

PART_BYTES = 8 << 20  # the least that one thread takes at a time
_PARTS = 8  # the most for one segment
AWAITED_PART_BYTES = 1 << 20  # of a pass for which a reader is waiting

# Read, decoded and summed up at a time. Each step of a window releases the interpreter's lock, and getting it back from
# another thread costs more than a smaller window would gain from the processor's cache.
_WINDOW_BYTES = LARGE_WINDOW_BYTES

OnBytes = Callable[[int], None]
"""Called with the number of file bytes after each step; may raise to end the work."""

Result = TypeVar("Result")

Pass = Callable[[Workbench, Result, int, int], int]
"""Adds what it finds in the batches that begin in [start, stop) to a result; returns the position after them."""


def window_bytes(start: int, stop: int) -> int:
    """The window for a pass over the batches that begin in [start, stop): a short pass has a small window, whose
    buffers are recycled."""
    return min(_WINDOW_BYTES, max(stop - start, 1))


@dataclass(slots=True)
class _FilePart(Generic[Result]):
    """The batches that begin in [start, stop), for one thread. `reached`: where the first batch after them begins; -1
    until the pass over them has ended."""

    start: int
    stop: int
    result: Result
    reached: int = -1
    failure: BaseException | None = None


def in_parts(
    segment: Segment,
    start: int,
    end: int,
    workers: Workers,
    make: Callable[[], Result],
    do: Pass[Result],
    *,
    known: npt.NDArray[np.int64],
    awaited: bool = False,
) -> tuple[list[Result], int]:
    """The results that `do` fills from the batches that begin in [start, end), in order, made by `make`; and the
    position after them. A worker takes some of the parts, if one is free. `known`: positions where batches begin, in
    order; `awaited`: a reader is waiting, so the parts are small, and `help` takes some too."""
    edges = _edges(segment, start, end, AWAITED_PART_BYTES if awaited else PART_BYTES, known)
    parts = [_FilePart(first, last, make()) for first, last in pairwise(edges)] if len(edges) > 2 else []
    if parts:
        _do_together(parts, do, workers, long=not awaited)
    results: list[Result] = []
    reached = start

    def add(stop: int) -> None:
        nonlocal reached
        result = make()
        with workbench() as bench:
            reached = do(bench, result, reached, stop)
        results.append(result)

    # Where the offset index says that parts begin is right only if the batches before end exactly there.
    for part in parts:
        if reached < part.start:
            add(part.start)
        if reached == part.start and part.reached >= 0:
            results.append(part.result)
            reached = part.reached
    if reached < end:
        add(end)
    return results, reached


def _edges(segment: Segment, start: int, end: int, part_bytes: int, known: npt.NDArray[np.int64]) -> list[int]:
    count = min(_PARTS, (end - start) // part_bytes)
    edges = [start]
    if count > 1:
        hints = known if len(known) and known[-1] >= end else segment.offset_index(end).positions
        for part in range(1, count):
            slot = int(hints.searchsorted(start + part * (end - start) // count))
            if slot < len(hints) and edges[-1] < int(hints[slot]) < end:
                edges.append(int(hints[slot]))
    edges.append(end)
    return edges


def _do_together(parts: list[_FilePart[Result]], do: Pass[Result], workers: Workers, *, long: bool) -> None:
    """Does the parts in this thread and, if one is free, a worker."""
    changed = threading.Condition()
    waiting = list(reversed(parts))
    under_way = 0

    def work() -> None:
        nonlocal under_way
        with workbench() as bench:
            while True:
                with changed:
                    if not waiting:
                        return
                    part = waiting.pop()
                    under_way += 1
                try:
                    part.reached = do(bench, part.result, part.start, part.stop)
                except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits for the result
                    part.failure = error
                finally:
                    with changed:
                        under_way -= 1
                        changed.notify()

    for _ in range(max(1, workers.count - 1)):
        workers.submit(work, long=long)
    work()
    with changed:
        while under_way:
            changed.wait()
    for part in parts:
        if part.failure is not None:
            raise part.failure
