"""Scans in progress, for @status.json, and their end when the mount ends."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafs.view_index.parts import OnBytes

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
        """A scan of so many bytes of `path`; the value must be called with those that are done."""
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
