"""What the page cache of the machine has only because somebody asked for a size.

Measuring reads whole segments, and most of it is soon read again by whoever has opened the file: so the pages stay
until the file is closed, or until there are too many of them. Then those go that no reader has needed: a machine that
runs a broker has better use for its memory. What was in the page cache before stays there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from storage.errors import StorageError
from storage.files.log_file import LogFile
from storage.log.segment import Segment

MOST_BYTES = 1 << 30


class MeasuredPages:
    """The spans of files that were measured, were not in the page cache before, and no reader has needed since.

    Thread-safe.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        # constant after construction
        self._most_bytes = most_bytes
        # guarded by the lock
        self._lock = threading.Lock()
        self._spans: dict[LogFile, list[tuple[int, int]]] = {}

    @contextmanager
    def measuring(self, segment: Segment, start: int, end: int) -> Iterator[None]:
        """While a file is measured from one position to another. Of a segment that is still written, everything stays:
        consumers read it."""
        spans = segment.log.uncached(start, end) if segment.sealed else []
        try:
            yield
        finally:
            if spans:
                self._add(segment.log, spans)

    def read(self, file: LogFile, start: int, end: int) -> None:
        """A reader needs what is between these positions: it stays."""
        if file not in self._spans:
            return
        with self._lock:
            spans = self._spans.get(file, [])
            left = [part for span in spans for part in ((span[0], min(span[1], start)), (max(span[0], end), span[1]))]
            self._spans[file] = [(first, stop) for first, stop in left if first < stop]

    def drop(self, files: Iterable[LogFile]) -> None:
        """Drops what nobody has read of these files."""
        with self._lock:
            dropped = [(file, self._spans.pop(file)) for file in set(files) if file in self._spans]
        for file, spans in dropped:
            with suppress(StorageError, OSError):  # a file that is gone has no pages
                file.uncache(spans)

    def drop_all(self) -> None:
        """The same of all files."""
        self.drop(list(self._spans))

    def _add(self, file: LogFile, spans: list[tuple[int, int]]) -> None:
        with self._lock:
            self._spans[file] = [*self._spans.get(file, ()), *spans]
            kept_bytes = sum(end - start for spans in self._spans.values() for start, end in spans)
        if kept_bytes > self._most_bytes:
            self.drop_all()
