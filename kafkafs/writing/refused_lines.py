"""The reasons why lines were refused.

A system call answers only a number (EINVAL), so the reason is logged, and `@status.json` has the last reasons.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from kafkafs.file_names import printable
from storage.clock import Clock
from storage.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    NotPermitted,
    RecordTooLarge,
    UnknownTopicOrPartition,
)

_log = logging.getLogger(__name__)

Refused = Callable[[int | None, Exception, int], None]
"""Gets the number of a refused line among those of its open file, from 1 on (None: no line was refused), the error, and
how many later lines are in other partitions all the same."""

# Refused for their content, not for the state of the disk.
_REFUSALS: Final = (
    InvalidRecord, RecordTooLarge, InvalidConfig, InvalidTopic, NotPermitted, UnknownTopicOrPartition,
)  # fmt: skip
_LONGEST_TEXT: Final = 500


class RefusedLines:
    """The last refusals. Thread-safe."""

    KEPT = 20
    PER_SECOND = 10  # lines in the log; those beyond are kept here only

    def __init__(self, clock: Clock) -> None:
        # constant after construction
        self._clock = clock
        # guarded by the lock
        self._lock = threading.Lock()
        self._last: deque[dict[str, Any]] = deque(maxlen=self.KEPT)
        self._second = -1
        self._logged = 0

    def add(self, path: str, line: int | None, error: Exception, elsewhere: int = 0) -> None:
        """Notes that a line, or without a number another request, was refused at a path of the tree. For `elsewhere`
        see Refused."""
        now_ms = self._clock.now_ms()
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        path, reason = _printable(path), _printable(reason_of(error, elsewhere))
        with self._lock:
            self._last.append({"time": time, "path": path, "line": line, "reason": reason})
            if now_ms // 1000 != self._second:
                self._second, self._logged = now_ms // 1000, 0
            self._logged += 1
            silent = self._logged > self.PER_SECOND
        if not silent:
            where = path if line is None else f"{path}: line {line}, after {line - 1} accepted lines"
            _log.warning("refused: %s: %s", where, reason)

    def at(self, path: str) -> Refused:
        """A function that adds refusals at this path."""
        return lambda line, error, elsewhere: self.add(path, line, error, elsewhere)

    @contextmanager
    def noting(self, path: str) -> Iterator[None]:
        """Notes a refusal that the block raises."""
        try:
            yield
        except _REFUSALS as error:
            self.add(path, None, error)
            raise

    def status(self) -> list[dict[str, Any]]:
        """For @status.json: the oldest first."""
        with self._lock:
            return list(self._last)


def reason_of(error: Exception, elsewhere: int) -> str:
    """The text of a refusal: the error, and how many later lines are in other partitions."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)  # no path below the mount
    if not elsewhere:
        return reason
    return f"{reason}. {elsewhere} of the lines after it are in other partitions"


def _printable(text: str) -> str:
    """The beginning of a text that may contain written bytes, without control characters."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
    return printable(short)
