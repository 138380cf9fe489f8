"""Bytes written → messages: lines, batches, partitions. What `@append` files and `kafkafs append` share.

    writer = LineWriter(open_target(owned, "orders"), parse_txt)
    writer.write(b"one\\ntwo\\nthr")  # two messages, one batch
    writer.sync()                    # a third, and all of it is on disk

A write is taken up to its last complete line. What goes wrong is one of two things. A bad line (one that does not
parse, or that the topic does not take): it is gone, and the rest of it too, should it come later. Anything else (the
disk is full, a partition offline): nothing of the write is taken, and the same bytes may be written again; what of them
some of a topic's partitions have already got is not appended twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from kafkafs.lines import Buffer, Int64s, Parse, parse_txt
from kafkafs.targets import Destination, Target
from storage.errors import InvalidConfig, InvalidRecord, RecordTooLarge
from storage.format.lines_kernel import split_lines
from storage.log.appender import AppendedLines

_NEWLINE: Final = 10
_FEW_LINES: Final = 16
_NO_ROWS: Final = np.zeros(0, np.int64)
# Errors of a line, not of the disk.
_BAD_LINES: Final = (InvalidRecord, RecordTooLarge, InvalidConfig)


class LineWriter:
    """One writer with one line buffer. Thread-safe: processes may share a descriptor."""

    def __init__(self, destination: Destination, parse: Parse) -> None:
        # Constant after construction.
        self._parse = parse
        # Takes lines as they are.
        self._append_lines: Callable[[bytearray, Buffer], AppendedLines | None] | None = None
        if parse is parse_txt and isinstance(destination, Target):
            self._append_lines = destination.append_lines
        # Guarded by the lock.
        self._lock = threading.Lock()
        self._destination = destination
        self._starts: Int64s = _NO_ROWS
        self._lengths: Int64s = _NO_ROWS
        self._begun = bytearray()  # the line that has no newline yet
        self._discarding = False  # the rest of a bad line
        self._refused = False  # the last write failed: what was begun may lack a part

    def write(self, data: Buffer) -> int:
        """Takes `data` up to a bad line or an error; returns how many bytes, all of them when nothing is wrong.

        Raises what is wrong when that is none: InvalidRecord, RecordTooLarge, PartitionOffline, OSError.
        """
        with self._lock:
            skipped = self._skip_locked(data) if self._discarding else 0
            try:
                return skipped + self._write_locked(data[skipped:] if skipped else data)
            except Exception:
                if not skipped:
                    raise
                # The rest comes again, and is then as bad as now.
                self._discarding = self._refused = False
                return skipped

    def end_line(self) -> None:
        """What stands after the last newline becomes a message. Errors as `write`; a bad line is then gone."""
        with self._lock:
            if self._begun:
                self._end_line_locked()

    def sync(self) -> None:
        """As `end_line`, and all that was written is on disk when it returns. Errors as `write`."""
        self.end_line()
        with self._lock:
            self._destination.sync()

    def close(self) -> None:
        """The end for good: as `end_line`. A second call does nothing."""
        with self._lock:
            if self._begun:
                try:
                    self._end_line_locked()
                finally:
                    self._begun.clear()

    def abandon(self) -> None:
        """Forgets what stands after the last newline."""
        with self._lock:
            self._begun.clear()

    def _end_line_locked(self) -> None:
        if not self._refused:
            try:
                self._take_locked(bytes(self._begun), np.zeros(1, np.int64), np.full(1, len(self._begun), np.int64))
            except _BAD_LINES:
                self._begun.clear()
                raise
        self._begun.clear()

    def _skip_locked(self, data: Buffer) -> int:
        newline = bytes(data).find(b"\n")
        if newline < 0:
            return len(data)
        self._discarding = False
        return newline + 1

    def _write_locked(self, data: Buffer) -> int:
        if not len(data):
            return 0
        if self._append_lines is not None:
            try:
                done = self._append_lines(self._begun, data)
            except Exception:
                self._refused = True
                raise
            if done is not None:
                return self._keep_rest_locked(data, done[1])
        rows = self._split_locked(data)
        if rows == 0:
            self._begin_locked(data, len(data), data)
            return len(data)
        starts, lengths = self._starts[:rows], self._lengths[:rows]
        end = int(starts[-1] + lengths[-1]) + 1
        buffer: Buffer = data
        before = len(self._begun)
        if before:
            buffer = b"".join((self._begun, data))
            starts[1:] += before
            lengths[0] += before
        try:
            taken = self._take_locked(buffer, starts, lengths)
        except _BAD_LINES:
            self._bad_line_locked(data)
            raise
        except Exception:
            self._refused = True
            raise
        if taken < rows:
            self._begun.clear()
            return int(starts[taken]) - before
        return self._keep_rest_locked(data, end)

    def _keep_rest_locked(self, data: Buffer, end: int) -> int:
        """What follows the last newline, at `end`, is a line's beginning; how many bytes of `data` are taken."""
        self._begun.clear()
        if end < len(data):
            try:
                self._begin_locked(data[end:], len(data) - end, None)
            except RecordTooLarge:
                return end
        self._refused = False
        return len(data)

    def _split_locked(self, data: Buffer) -> int:
        while True:
            rows = int(split_lines(memoryview(data), 0, len(data), _NEWLINE, self._starts, self._lengths))
            if rows < len(self._starts):
                return rows
            size = min(max(_FEW_LINES, 8 * rows), len(data) + 1)
            self._starts, self._lengths = np.empty(size, np.int64), np.empty(size, np.int64)

    def _begin_locked(self, part: Buffer, size: int, whole: Buffer | None) -> None:
        """Keeps a line's beginning, unless no message can be so long. `whole`: the write that fails then."""
        longest = self._destination.longest_line(verbatim=self._parse is parse_txt)
        if len(self._begun) + size > longest:
            if whole is not None:
                self._bad_line_locked(whole)
            raise RecordTooLarge("message", expected=f"a line of at most {longest} bytes")
        self._begun += part
        self._refused = False

    def _bad_line_locked(self, data: Buffer) -> None:
        """Nothing of the write was taken. Whatever line it ended in is not whole any more."""
        self._begun.clear()
        self._discarding = data[-1] != _NEWLINE

    def _take_locked(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> int:
        """Appends lines up to a bad one or an error, and returns how many; raises what is wrong when that is none."""
        parsed = self._parse(buffer, starts, lengths)
        taken = self._destination.append(parsed)
        error = parsed.error if taken.error is None else taken.error
        if error is not None and taken.rows == 0:
            raise error
        return taken.rows
