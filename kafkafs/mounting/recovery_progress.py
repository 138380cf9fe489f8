"""The progress of recovery: counted for @status.json, and forwarded to the process that waits for the mount."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from storage.progress import NoProgress, Progress


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """`running`: recoveries in progress. Bytes of .log files since the mount began: `total_bytes` to check, of which
    `checked_bytes` are checked."""

    running: int
    total_bytes: int
    checked_bytes: int


class RecoveryProgress:
    """A Progress that adds up several recoveries at once, and forwards each call to another. Thread-safe."""

    def __init__(self, listener: Progress) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._listener = listener
        self._status = RecoveryStatus(0, 0, 0)

    def begin(self, what: str, total: int) -> None:
        self._add(1, total, 0)
        self._listener.begin(what, total)

    def advance(self, amount: int) -> None:
        self._add(0, 0, amount)
        self._listener.advance(amount)

    def end(self) -> None:
        self._add(-1, 0, 0)
        self._listener.end()

    def stop_forwarding(self) -> None:
        """From now on only counts: no process waits for the mount any longer."""
        self._listener = NoProgress()

    def status(self) -> RecoveryStatus:
        """The state as it is now."""
        with self._lock:
            return self._status

    def _add(self, running: int, total: int, checked: int) -> None:
        with self._lock:
            before = self._status
            self._status = RecoveryStatus(
                before.running + running, before.total_bytes + total, before.checked_bytes + checked
            )
