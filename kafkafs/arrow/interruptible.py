"""Calls that ^C interrupts: a thread runs them, so that the caller's thread can be interrupted while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_AGAIN_SECONDS: Final = 0.05  # DuckDB ignores an interrupt that comes before a statement begins
_GRACE_SECONDS: Final = 0.4


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.ended = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Caller:
    """Runs calls in another thread. For one caller's thread."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt` ends the running call, if it can."""
        self._interrupt = interrupt
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._running: _Call | None = None
        # A daemon, because a call that does not end must not keep the process alive.
        threading.Thread(target=self._run, name="sql", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether an interrupted call has not ended yet."""
        return self._running is not None and not self._running.ended.is_set()

    def __call__(self, function: Callable[[], _Result]) -> _Result:
        """Return the function's result, or raise its error. ^C raises KeyboardInterrupt within a second; `is_busy` then
        says whether the function still runs."""
        call = self._running = _Call(function)
        try:
            self._calls.put(call)
            # A signal just before a wait without a timeout would not end the wait.
            while not call.ended.wait(_AGAIN_SECONDS):
                pass
        except KeyboardInterrupt:
            self.interrupt()
            raise
        if call.error is not None:
            raise call.error
        result: _Result = call.result
        return result

    def interrupt(self) -> None:
        """Interrupt the running call, and wait a moment for its end."""
        for _ in range(int(_GRACE_SECONDS / _AGAIN_SECONDS)):
            if not self.is_busy:
                break
            self._interrupt()
            assert self._running is not None
            self._running.ended.wait(_AGAIN_SECONDS)

    def close(self) -> None:
        """End the thread, after the running call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.function()
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                call.error = error
            call.ended.set()
            del call
