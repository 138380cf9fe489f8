"""Orders of events between threads, forced: a thread held at a disk operation, locks that tell who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread, current_thread
from typing import Generic, TypeVar

BOUND_SECONDS = 60

T = TypeVar("T")


class Worker(Thread, Generic[T]):
    """Runs one thing on a thread of its own, which may be anywhere: `done` or, at a watched lock, waiting."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self.settled = Event()
        self.waits = False
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self.settled.set()

    def until_settled(self) -> None:
        """Returns when the work has ended or waits at a watched lock."""
        assert self.settled.wait(BOUND_SECONDS)

    def result(self) -> T:
        """What the work gave; what it raised is raised here."""
        self.join(BOUND_SECONDS)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result[0]


class WatchedLock:
    """A lock that tells Workers which have to wait for it."""

    def __init__(self) -> None:
        self._lock = Lock()

    def acquire(self) -> bool:
        if not self._lock.acquire(blocking=False):
            thread = current_thread()
            if isinstance(thread, Worker):
                thread.waits = True
                thread.settled.set()
            self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Gate:
    """Holds the first Worker that comes to an operation whose name begins so, until `open`; others pass.

    To be a FaultyDisk's `fail`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._held: Thread | None = None
        self._reached = Event()
        self._opened = Event()
        self._errno: int | None = None

    def __call__(self, what: str, _path: Path) -> int | None:
        thread = current_thread()
        if not what.startswith(self._what) or not isinstance(thread, Worker):
            return None
        if self._held is None:
            self._held = thread
            self._reached.set()
            assert self._opened.wait(BOUND_SECONDS)
        return self._errno if thread is self._held else None

    def until_reached(self) -> None:
        assert self._reached.wait(BOUND_SECONDS)

    def open(self, errno: int | None = None) -> None:
        """Lets it go on; with an `errno` its operations of that name fail so."""
        self._errno = errno
        self._opened.set()
