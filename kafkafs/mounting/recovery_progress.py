"""How far recovery is: counted for @status.json, and passed on to who waits for the mount."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from storage.progress import NoProgress, Progress


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """`running`: works under way now; bytes of .log files to be checked, in all since the mount began, and checked."""

    running: int
    total_bytes: int
    checked_bytes: int


class RecoveryProgress:
    """A Progress that sums up, several works at once. Thread-safe."""

    def __init__(self, onlooker: Progress) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._onlooker = onlooker
        self._status = RecoveryStatus(0, 0, 0)

    def begin(self, what: str, total: int) -> None:
        """See Progress."""
        self._add(1, total, 0)
        self._onlooker.begin(what, total)

    def advance(self, amount: int) -> None:
        """See Progress."""
        self._add(0, 0, amount)
        self._onlooker.advance(amount)

    def end(self) -> None:
        """See Progress."""
        self._add(-1, 0, 0)
        self._onlooker.end()

    def unwatched(self) -> None:
        """Nobody waits any more."""
        self._onlooker = NoProgress()

    def status(self) -> RecoveryStatus:
        """As of now."""
        with self._lock:
            return self._status

    def _add(self, running: int, total: int, checked: int) -> None:
        with self._lock:
            before = self._status
            self._status = RecoveryStatus(
                before.running + running, before.total_bytes + total, before.checked_bytes + checked
            )
