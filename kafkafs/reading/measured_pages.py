"""Pages that are in the machine's page cache only because somebody asked for a size.

Measuring reads whole segments, and the reader who has opened the file soon reads most of these pages again: so the
pages stay until the file is closed, or until there are too many. Then the pages that no reader has needed are dropped,
because a machine that runs a broker has better use for its memory. Pages that were in the page cache before stay there.
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
    """Spans of files that were measured, were not in the page cache before, and have not been read since.
    Thread-safe."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        # constant after construction
        self._most_bytes = most_bytes
        # guarded by the lock
        self._lock = threading.Lock()
        self._spans: dict[LogFile, list[tuple[int, int]]] = {}

    @contextmanager
    def measuring(self, segment: Segment, start: int, end: int) -> Iterator[None]:
        """Record the pages that are measured within the `with`. All pages of a segment that is still being written
        stay, because consumers read them."""
        spans = segment.log.uncached(start, end) if segment.sealed else []
        try:
            yield
        finally:
            if spans:
                self._add(segment.log, spans)

    def read(self, file: LogFile, start: int, end: int) -> None:
        """Keep the pages between these positions, because a reader needs them."""
        if file not in self._spans:
            return
        with self._lock:
            spans = self._spans.get(file, [])
            left = [part for span in spans for part in ((span[0], min(span[1], start)), (max(span[0], end), span[1]))]
            self._spans[file] = [(first, stop) for first, stop in left if first < stop]

    def drop(self, files: Iterable[LogFile]) -> None:
        """Drop the pages of these files that nobody has read."""
        with self._lock:
            dropped = [(file, self._spans.pop(file)) for file in set(files) if file in self._spans]
        for file, spans in dropped:
            with suppress(StorageError, OSError):  # a file that is gone has no pages
                file.uncache(spans)

    def drop_all(self) -> None:
        """Drop the pages of all files that nobody has read."""
        self.drop(list(self._spans))

    def _add(self, file: LogFile, spans: list[tuple[int, int]]) -> None:
        with self._lock:
            self._spans[file] = [*self._spans.get(file, ()), *spans]
            kept_bytes = sum(end - start for spans in self._spans.values() for start, end in spans)
        if kept_bytes > self._most_bytes:
            self.drop_all()
