"""Calls that ^C interrupts: a thread runs them, and the caller's thread waits and can be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_AGAIN_SECONDS: Final = 0.05  # DuckDB forgets an interrupt that comes before a statement begins
_GRACE_SECONDS: Final = 0.4


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.ended = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Caller:
    """Runs calls in a thread of its own. For one thread."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt` makes the call that is running end, if it can."""
        self._interrupt = interrupt
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._running: _Call | None = None
        # A daemon: a call that does not end must not keep the process.
        threading.Thread(target=self._run, name="sql", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether an interrupted call has not ended yet."""
        return self._running is not None and not self._running.ended.is_set()

    def __call__(self, function: Callable[[], _Result]) -> _Result:
        """The result of the function. What it raises; KeyboardInterrupt, less than a second after ^C: `is_busy` then
        tells whether the function still runs."""
        call = self._running = _Call(function)
        try:
            self._calls.put(call)
            # A signal that comes just before a wait without an end does not end it.
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
        """Interrupts the call that is running, and waits a moment for its end."""
        for _ in range(int(_GRACE_SECONDS / _AGAIN_SECONDS)):
            if not self.is_busy:
                break
            self._interrupt()
            assert self._running is not None
            self._running.ended.wait(_AGAIN_SECONDS)

    def close(self) -> None:
        """Ends the thread, after the call that is running."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.function()
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                call.error = error
            call.ended.set()
            del call
