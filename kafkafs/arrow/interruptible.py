"""Calls that ^C interrupts: a thread runs them, so that the caller's thread can be interrupted while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_AGAIN_SECONDS: Final = 0.05  # DuckDB ignores an interrupt that comes before a statement begins
_GRACE_SECONDS: Final = 0.4


class Caller:
    """Runs calls in another thread. For one caller's thread."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt` ends the running call, if it can."""
        self._interrupt = interrupt
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._running: Future[Any] | None = None
        # A daemon, because a call that does not end must not keep the process alive.
        threading.Thread(target=self._run, name="sql", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether an interrupted call has not ended yet."""
        return self._running is not None and not self._running.done()

    def __call__(self, function: Callable[[], _Result]) -> _Result:
        """Return the function's result, or raise its error. ^C raises KeyboardInterrupt within a second; `is_busy` then
        says whether the function still runs."""
        running: Future[_Result] = Future()
        self._running = running
        try:
            self._calls.put((function, running))
            # A signal just before a wait without a timeout would not end the wait.
            while wait([running], _AGAIN_SECONDS).not_done:
                pass
        except KeyboardInterrupt:
            self.interrupt()
            raise
        return running.result()

    def interrupt(self) -> None:
        """Interrupt the running call, and wait a moment for its end."""
        for _ in range(int(_GRACE_SECONDS / _AGAIN_SECONDS)):
            if not self.is_busy:
                break
            self._interrupt()
            assert self._running is not None
            wait([self._running], _AGAIN_SECONDS)

    def close(self) -> None:
        """End the thread, after the running call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, running = call
            try:
                running.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                running.set_exception(error)
            del call, function, running
