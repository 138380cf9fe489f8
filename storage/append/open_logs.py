"""Limits the open files of active segments to half of the process's descriptors.

A log directory may have thousands of partitions, and each needs three descriptors while it grows. A log is *at rest*,
without descriptors, from its opening until it grows. Before it opens its files, the logs that have had theirs open for
longest are flushed and put at rest. The flush comes first because the kernel may report a failed writeback to nobody
once a file is closed; a flush that fails takes its log offline, as any other.

Locks: `make_room` is called without any log's lock, and takes those of the logs that it puts at rest. The lock here may
be taken while a log's lock is held.
"""

from __future__ import annotations

from itertools import islice
from threading import Lock
from typing import Final, Protocol

from storage.files import descriptors

_FILES: Final = 3  # of an active segment


class RestableLog(Protocol):
    """A log that can be put at rest."""

    def rest(self) -> None:
        """Flushes the log and closes its files until it grows again; a log that is in use adds itself again."""


class OpenLogs:
    """The logs of one log directory that have open files. Thread-safe."""

    def __init__(self) -> None:
        # Guarded by the lock: in the order in which they were opened.
        self._lock = Lock()
        self._logs: dict[RestableLog, None] = {}

    def add(self, log: RestableLog) -> None:
        """Notes a log that has opened its files."""
        with self._lock:
            self._logs[log] = None

    def remove(self, log: RestableLog) -> None:
        """Notes a log that has closed its files for good."""
        with self._lock:
            self._logs.pop(log, None)

    def make_room(self) -> None:
        """Puts logs at rest until one more may open its files. Logs that are in use meanwhile are passed over, so the
        limit may be exceeded by the number of threads that write."""
        with self._lock:
            excess = len(self._logs) + 1 - descriptors.half_the_limit() // _FILES
            oldest = list(islice(self._logs, max(excess, 0)))
            for log in oldest:
                del self._logs[log]
        for log in oldest:
            log.rest()
