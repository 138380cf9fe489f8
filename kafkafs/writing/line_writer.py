"""From written bytes to messages: lines, batches, partitions. Shared by `@append` files and `kafkafs append`.

    writer = LineWriter(open_target(owned, "orders"), parse_txt)
    writer.write(b"one\\ntwo\\nthr")  # two messages, one batch
    writer.sync()                    # a third, and all of it is on disk

A write appends its complete lines and keeps the beginning of the next line. If a line fails, the lines before it are
appended, and nothing from that line on is taken, now or later: every further write and sync raises the same error. A
line fails if it does not parse, if the topic refuses it, and while the disk is full or its partition is offline.

So it does not matter how FUSE divides a write(2) into requests: if a later request than the first fails, the caller of
write(2) gets a short count, and its next call fails with the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from kafkafs.writing.destinations import LineDestination, Taken, Target
from kafkafs.writing.line_parsers import Buffer, Int64s, Parse, parse_txt
from kafkafs.writing.refused_lines import Refused
from storage.append.appender import AppendedLines
from storage.errors import RecordTooLarge
from storage.format.encoder_kernel import split_lines

_NEWLINE: Final = 10
_FEW_LINES: Final = 16
_NO_ROWS: Final = np.zeros(0, np.int64)


class LineWriter:
    """A writer with its line buffer. Thread-safe: processes may share a descriptor.

    InvalidRecord, RecordTooLarge, InvalidConfig, PartitionOffline, OSError: why a line was not appended, or is not
    on disk.
    """

    def __init__(
        self, destination: LineDestination, parse: Parse, refused: Refused = lambda _line, _error, _elsewhere: None
    ) -> None:
        """`refused` is called at most once: the first error is the error of all further calls."""
        # Constant after construction.
        self._parse = parse
        self._refused = refused
        # Appends lines without parsing them; None: they must be parsed.
        self._append_lines: Callable[[bytearray, Buffer], AppendedLines | None] | None = None
        if parse is parse_txt and isinstance(destination, Target):
            self._append_lines = destination.append_lines
        # Guarded by the lock.
        self._lock = threading.Lock()
        self._destination = destination
        self._starts: Int64s = _NO_ROWS
        self._lengths: Int64s = _NO_ROWS
        self._begun = bytearray()  # the line that has no newline yet
        self._accepted = 0  # complete lines
        self._error: Exception | None = None  # the first one
        self._durable = False  # the last write was a durable one

    def write(self, data: Buffer, *, durable: bool = False) -> int:
        """Takes `data` up to a line that fails, or all of it; returns how many bytes it took.

        Raises the error if no byte is taken, or the error of an earlier call. `durable`: every complete line is on disk
        when this returns; raises the error that prevents this.
        """
        with self._lock:
            self._check_locked()
            if not len(data):
                return 0
            self._durable = durable
            accepted = self._accepted
            try:
                taken, outcome = self._take_locked(data)
            except Exception as error:
                self._refuse_locked(accepted + 1, error)
                raise
            self._accepted += outcome.rows
            if durable and outcome.rows:
                self._sync_locked(accepted + 1)
            if outcome.error is not None:
                self._refuse_locked(self._accepted + 1, outcome.error, outcome.elsewhere)
                if not taken:
                    self._check_locked()
            return taken

    def sync(self) -> None:
        """An unterminated last line becomes a message, and everything that was accepted is on disk when it returns.

        Raises the error of this or an earlier call, after accepted lines are on disk.
        """
        with self._lock:
            self._end_line_locked()
            self._sync_locked(None)
            self._check_locked()

    def close(self) -> None:
        """Closes the writer. An unterminated last line becomes a message, unless a write has failed.

        Raises the error of that line. A second call does nothing.
        """
        with self._lock:
            is_known = self._error is not None
            self._end_line_locked()
            if self._durable:
                self._sync_locked(None)
            if not is_known:
                self._check_locked()

    def _check_locked(self) -> None:
        """Raises the first error, if there was an error."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _refuse_locked(self, line: int | None, error: Exception, elsewhere: int = 0) -> None:
        """Keeps the first error: from now on nothing is taken, and the line that was begun becomes no message."""
        if self._error is None:
            self._error = error
            self._begun.clear()
            self._refused(line, error, elsewhere)

    def _sync_locked(self, line: int | None) -> None:
        """`line`: the first that counts as refused if this fails."""
        try:
            self._destination.sync()
        except Exception as error:
            self._refuse_locked(line, error)
            raise

    def _end_line_locked(self) -> None:
        """The begun line becomes a message, or is refused."""
        if not self._begun:
            return
        try:
            line = bytes(self._begun)
            taken = self._append_locked(line, np.zeros(1, np.int64), np.full(1, len(line), np.int64))
            if taken.error is not None:
                raise taken.error
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._refuse_locked(self._accepted + 1, error)
        else:
            self._accepted += 1
            self._begun.clear()

    def _take_locked(self, data: Buffer) -> tuple[int, Taken]:
        """Takes lines up to a line that fails; returns how many bytes of `data` they are, and the outcome."""
        if self._append_lines is not None:
            done = self._append_lines(self._begun, data)
            if done is not None:
                return self._keep_rest_locked(data, done[1], Taken(done[0]))
        rows = self._split_locked(data)
        if rows == 0:
            self._begin_locked(data)
            return len(data), Taken(0)
        starts, lengths = self._starts[:rows], self._lengths[:rows]
        end = int(starts[-1] + lengths[-1]) + 1
        buffer: Buffer = data
        before = len(self._begun)
        if before:
            buffer = b"".join((self._begun, data))
            starts[1:] += before
            lengths[0] += before
        taken = self._append_locked(buffer, starts, lengths)
        if taken.error is not None:
            return max(0, int(starts[taken.rows]) - before), taken
        return self._keep_rest_locked(data, end, taken)

    def _keep_rest_locked(self, data: Buffer, end: int, taken: Taken) -> tuple[int, Taken]:
        """Keeps the bytes after the last newline, which ends at `end`, as the beginning of a line."""
        self._begun.clear()
        if end < len(data):
            try:
                self._begin_locked(data[end:])
            except RecordTooLarge as error:
                return end, taken._replace(error=error)
        return len(data), taken

    def _split_locked(self, data: Buffer) -> int:
        while True:
            rows = int(split_lines(memoryview(data), 0, len(data), _NEWLINE, self._starts, self._lengths))
            if rows < len(self._starts):
                return rows
            size = min(max(_FEW_LINES, 8 * rows), len(data) + 1)
            self._starts, self._lengths = np.empty(size, np.int64), np.empty(size, np.int64)

    def _begin_locked(self, part: Buffer) -> None:
        """Keeps the beginning of a line. RecordTooLarge if it is too long for any message."""
        longest = self._destination.longest_line(verbatim=self._parse is parse_txt)
        if len(self._begun) + len(part) > longest:
            raise RecordTooLarge("message", expected=f"a line of at most {longest} bytes")
        self._begun += part

    def _append_locked(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> Taken:
        """Appends lines up to a line that fails."""
        parsed = self._parse(buffer, starts, lengths)
        taken = self._destination.append(parsed)
        return taken if taken.error is not None or parsed.error is None else taken._replace(error=parsed.error)
