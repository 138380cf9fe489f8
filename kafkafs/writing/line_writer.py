"""From written bytes to messages: lines, batches, partitions. Shared by `@append` files and `kafkafs append`.

    writer = LineWriter(open_target(owned, "orders"), parse_txt)
    writer.write(b"one\\ntwo\\nthr")  # two messages, one batch
    writer.sync()                    # a third, and all of it is on disk

A write is taken up to its last complete line. Where a line fails, nothing from that line on is taken. A bad line does
not parse, or the topic refuses it; any line fails while the disk is full or its partition is offline.

FUSE cuts one write(2) into requests and drops the errors of all but the first: the caller then gets a short count and
writes the rest again. A request does not say which write(2) it belongs to, so the request after a failure is handled
according to its content, and to whether the error was told, that is, certainly delivered to the caller:

| error    | the next request        | what happens to it                                                              |
|----------|-------------------------|---------------------------------------------------------------------------------|
| either   | the refused bytes again | It continues the line that was begun before them. A bad line fails again, now   |
|          |                         | told; a line that met a full disk may be taken.                                 |
| not told | other bytes             | It is refused with the pending error. Nothing of it is taken.                   |
| told     | other bytes             | The caller has moved on, and the begun line is forgotten. If the caller had     |
|          |                         | ended its write within a line, the rest of that line is discarded up to its     |
|          |                         | newline (`_continues_locked`); otherwise, and after `sync`, which ends a line,  |
|          |                         | a new line begins.                                                              |

An error is told when it answers the first request of a write(2): the request before was answered with an error or a
short count, or was too small to have been cut. A short count alone does not tell the caller the error. Nor does an
error within an overlong line that fills a request: only the next request shows whether the caller continues with the
rest of the line or with another line.

`sync` raises an error that has not been told yet, and a disk error as long as it prevents taken bytes from becoming a
message. A durable write (O_SYNC) syncs the lines that it completes; it does not end a line as `sync` does, because one
write(2) may arrive in several requests. If that sync fails, all of the request is refused bytes.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from kafkafs.file_names import printable
from kafkafs.writing.destinations import Destination, Target
from kafkafs.writing.line_parsers import Buffer, Int64s, Parse, parse_jsonl, parse_txt
from storage.append.appender import AppendedLines
from storage.clock import Clock
from storage.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    NotPermitted,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from storage.format.encoder_kernel import split_lines

# Why what was written was refused. A system call tells a number (EINVAL) and no more, so the reason is logged, and
# `@status.json` has the last ones.

_log = logging.getLogger(__name__)

Refused = Callable[[int | None, Exception], None]
"""Gets the number of a refused line in its write, from 1 on (None: it is no line), and why it was refused."""

# Refused for what they are, and not for the state of the disk.
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

    def add(self, path: str, line: int | None, error: Exception) -> None:
        """Notes that a line, or without a number another request, was refused at a path of the tree."""
        now_ms = self._clock.now_ms()
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        path, reason = _printable(path), _printable(str(error))
        with self._lock:
            self._last.append({"time": time, "path": path, "line": line, "reason": reason})
            if now_ms // 1000 != self._second:
                self._second, self._logged = now_ms // 1000, 0
            self._logged += 1
            silent = self._logged > self.PER_SECOND
        if not silent:
            where = path if line is None else f"{path}: line {line} of the write"
            _log.warning("refused: %s: %s", where, reason)

    def at(self, path: str) -> Refused:
        """`add` for one path."""
        return lambda line, error: self.add(path, line, error)

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


def _printable(text: str) -> str:
    """The beginning of a text that may hold what was written, without anything that a terminal acts on."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
    return printable(short)


_NEWLINE: Final = 10
_FEW_LINES: Final = 16
_NO_ROWS: Final = np.zeros(0, np.int64)
# Errors of a line, not of the disk.
_BAD_LINES: Final = (InvalidRecord, RecordTooLarge, InvalidConfig)
# A request carries at most 32 pages, and the first may be partly used. Only after a request of this size or more can
# the next one belong to the same write(2). (A writev(2) of very many small parts is cut earlier; its caller, which
# writes the rest again, gets the error all the same.)
CUT_BYTES: Final = (128 << 10) - 4095
# Two different lines may begin with the same few bytes.
_NO_COINCIDENCE_BYTES: Final = 3

# The outcome of a request: how many of its bytes are taken, and why the line after them is not (None: all are).
_Outcome = tuple[int, Exception | None]


@dataclass(slots=True)
class _Failure:
    """Refused bytes, from the line that failed on."""

    data: bytes
    error: Exception
    told: bool  # the caller has certainly got the error
    may_be_cut: bool  # the request that it ends may be the first of several
    synced: bool = False  # `sync` was called since: a line within which the caller had ended is over
    done: int = 0  # so many bytes are lines that are in the log, though perhaps not on disk (a durable write)

    @property
    def ends_within_line(self) -> bool:
        """Whether the caller ended its write within a line. A request that is full may be the first of several: the
        kernel has dropped the others, and how they ended is unknown."""
        return not (self.synced or self.may_be_cut) and self.data[-1] != _NEWLINE

    @property
    def is_within_line(self) -> bool:
        """Whether the refused line continues after these bytes."""
        return _NEWLINE not in self.data

    def comes_again(self, data: Buffer) -> bool:
        """Whether `data` is the refused bytes again, perhaps cut at another place."""
        if self.told and self.is_within_line and len(data) < len(self.data):
            return False  # More of the same line, which may happen to look like its beginning.
        size = min(len(data), len(self.data))
        return data[:size] == self.data[:size]


class LineWriter:
    """One writer with one line buffer. Thread-safe: processes may share a descriptor."""

    def __init__(self, destination: Destination, parse: Parse, refused: Refused = lambda _line, _error: None) -> None:
        """`refused` is told of each bad line once."""
        # Constant after construction.
        self._parse = parse
        self._refused = refused
        # Appends lines without parsing them.
        self._append_lines: Callable[[bytearray, Buffer], AppendedLines | None] | None = None
        if parse is parse_txt and isinstance(destination, Target):
            self._append_lines = destination.append_lines
        # Guarded by the lock.
        self._lock = threading.Lock()
        self._destination = destination
        self._starts: Int64s = _NO_ROWS
        self._lengths: Int64s = _NO_ROWS
        self._begun = bytearray()  # the line that has no newline yet
        self._discarding = False  # the next bytes are the rest of an overlong line; then `_begun` is empty
        self._failure: _Failure | None = None  # of the last write, unless all of it was taken
        self._may_be_cut = False  # the next request may belong to the same write(2) as the last one
        self._durable = False  # the last write was a durable one
        self._lines = 0  # taken of the requests so far that may belong to the same write(2)

    def write(self, data: Buffer, *, durable: bool = False) -> int:
        """Takes `data` up to a line that fails; returns how many bytes, all of them if none fails.

        Raises the error if no byte is taken: InvalidRecord, RecordTooLarge, InvalidConfig, PartitionOffline, OSError.
        `durable`: every line that is complete is on disk when this returns; otherwise it raises what prevented that.
        """
        with self._lock:
            if not len(data):
                return 0
            self._durable = durable
            failure, begun = self._failure, bytes(self._begun) if durable else b""
            again = failure is not None and self._after_failure_locked(failure, data)
            if not self._may_be_cut:
                self._lines = 0
            before = failure if again else None
            taken, error = self._take_locked(data) if before is None else self._take_behind_locked(data, before.done)
            if durable and (done := bytes(data[:taken]).rfind(b"\n") + 1):
                self._sync_locked(data, done, begun, before)
            if before is not None and before.done > len(data):
                done = before.done - len(data)
                self._failure = _Failure(before.data[len(data) :], before.error, told=True, may_be_cut=True, done=done)
            if error is None:
                self._may_be_cut = len(data) >= CUT_BYTES
                return taken
            if isinstance(error, _BAD_LINES) and not again:
                self._refused(self._lines + 1, error)
            told = not taken and (again or not self._may_be_cut)
            self._refuse_locked(data, taken, error, told=told, again=again)
            if taken:
                return taken
            raise error

    def sync(self) -> None:
        """An unterminated last line becomes a message, and everything that was written is on disk when it returns.

        Errors as `write`; a bad last line is dropped. Also raises the error of a write that its caller has not been
        told, and an error that still prevents the beginning of a line from becoming a message.
        """
        with self._lock:
            failure = self._failure
            if failure is None:
                self._end_line_locked()
            else:
                failure.synced = True
            self._destination.sync()
            if failure is not None and (not failure.told or self._lacks_bytes_locked(failure)):
                failure.told = True
                raise failure.error

    def close(self) -> None:
        """Closes the writer. An unterminated last line becomes a message, unless a write failed after it began.

        Raises the error of that line, or the error of a write that its caller may not have been told. A second call
        does nothing.
        """
        with self._lock:
            failure, self._failure = self._failure, None
            try:
                if failure is None:
                    self._end_line_locked()
                elif not failure.told:
                    raise failure.error
                if self._durable:
                    self._destination.sync()
            finally:
                self._begun.clear()

    def abandon(self) -> None:
        """Forgets an unterminated last line, and what was refused."""
        with self._lock:
            self._give_up_locked()

    def _after_failure_locked(self, failure: _Failure, data: Buffer) -> bool:
        """Decides what `data`, the first request after a failure, continues: see the module's table. True when it is
        the refused bytes again. Raises the error if it was not told."""
        if failure.comes_again(data):
            self._failure = None
            return True
        continues = failure.ends_within_line and self._continues_locked(failure, data)
        self._give_up_locked()
        self._discarding = continues
        if not failure.told:
            self._refuse_locked(data, 0, failure.error, told=True, again=False)
            raise failure.error
        return False

    def _continues_locked(self, failure: _Failure, data: Buffer) -> bool:
        """Whether `data` continues the line within which the refused bytes end. Bytes that are known to begin a line do
        not: lines that were refused after a bad line, complete JSON, and an object that cannot be part of that line."""
        refused, given = failure.data, bytes(data)
        at = refused.find(_NEWLINE) + 1
        while at:
            if len(refused) - at >= _NO_COINCIDENCE_BYTES and given.startswith(refused[at:]):
                return False
            at = refused.find(_NEWLINE, at) + 1
        if self._parse is not parse_jsonl:
            return True
        line, newline, _ = given.partition(b"\n")
        begun = refused.rpartition(b"\n")[2]
        if not newline:
            return failure.is_within_line or not given.lstrip().startswith(b"{") or _may_begin_json(begun + given)
        if self._parses(line):
            return False
        return failure.is_within_line or self._parses(begun + line)

    def _parses(self, line: bytes) -> bool:
        return self._parse(line, np.zeros(1, np.int64), np.full(1, len(line), np.int64)).error is None

    def _take_behind_locked(self, data: Buffer, done: int) -> _Outcome:
        """`_take_locked` where the first `done` bytes are in the log already. Of those, fewer may come at first: a
        write(2) of the same bytes from another address is cut at another place."""
        if not done:
            return self._take_locked(data)
        self._begun.clear()
        self._lines += bytes(data[:done]).count(b"\n")
        if done >= len(data):
            return len(data), None
        taken, error = self._take_locked(data[done:])
        return done + taken, error

    def _sync_locked(self, data: Buffer, done: int, begun: bytes, before: _Failure | None) -> None:
        """Makes the lines durable that the first `done` bytes complete. If that fails, nothing of `data` counts as
        taken: the line that was `begun` before it still is. Lines that come again are not appended again. `before`: the
        failure after which `data` is the refused bytes again."""
        again = before is not None
        try:
            self._destination.sync()
        except Exception as error:
            self._refuse_locked(data, 0, error, told=again or not self._may_be_cut, again=again)
            self._begun[:] = begun
            assert self._failure is not None
            self._failure.done = done
            if before is not None and before.done > done:
                self._failure.data, self._failure.done = before.data, before.done
            raise

    def _refuse_locked(self, data: Buffer, taken: int, error: Exception, *, told: bool, again: bool) -> None:
        """Notes that of a request only the first `taken` bytes are taken."""
        failure = self._failure = _Failure(bytes(data[taken:]), error, told, len(data) >= CUT_BYTES)
        if not again and failure.is_within_line and failure.may_be_cut:
            failure.told = False
        self._may_be_cut = False

    def _give_up_locked(self) -> None:
        """Forgets what was refused, which will not be written again, and the line begun before it, which will not be
        finished."""
        self._begun.clear()
        self._discarding = False
        if self._failure is not None:
            self._failure = None
            self._destination.forget_refused()

    def _lacks_bytes_locked(self, failure: _Failure) -> bool:
        """Whether a disk error prevents bytes that were taken from becoming a message. (A bad line is refused as a
        whole, including its beginning.)"""
        return bool(self._begun) and not isinstance(failure.error, _BAD_LINES)

    def _end_line_locked(self) -> None:
        """The begun line becomes a message. A bad line is dropped; after other errors the line may still be
        finished."""
        if not self._begun:
            return
        try:
            self._append_locked(bytes(self._begun), np.zeros(1, np.int64), np.full(1, len(self._begun), np.int64))
        except _BAD_LINES as error:
            self._begun.clear()
            self._refused(self._lines + 1, error)
            raise
        self._begun.clear()

    def _take_locked(self, data: Buffer) -> _Outcome:
        """Takes lines up to one that fails. If nothing is taken, the begun line stays unchanged."""
        skipped = 0
        if self._discarding:
            skipped = bytes(data).find(b"\n") + 1
            if not skipped:
                return len(data), None
            self._discarding = False
            self._lines += 1
            if skipped == len(data):
                return skipped, None
        try:
            taken, error = self._take_lines_locked(data[skipped:] if skipped else data)
        except Exception as failure:  # noqa: BLE001 - kept until the caller is told
            return skipped, failure
        return skipped + taken, error

    def _take_lines_locked(self, data: Buffer) -> _Outcome:
        """`_take_locked` that raises the error if nothing is taken."""
        if self._append_lines is not None:
            done = self._append_lines(self._begun, data)
            if done is not None:
                self._lines += done[0]
                return self._keep_rest_locked(data, done[1])
        rows = self._split_locked(data)
        if rows == 0:
            self._begin_locked(data)
            return len(data), None
        starts, lengths = self._starts[:rows], self._lengths[:rows]
        end = int(starts[-1] + lengths[-1]) + 1
        buffer: Buffer = data
        before = len(self._begun)
        if before:
            buffer = b"".join((self._begun, data))
            starts[1:] += before
            lengths[0] += before
        taken, error = self._append_locked(buffer, starts, lengths)
        self._lines += taken
        if taken < rows:
            self._begun.clear()
            return int(starts[taken]) - before, error
        return self._keep_rest_locked(data, end)

    def _keep_rest_locked(self, data: Buffer, end: int) -> _Outcome:
        """Keeps the bytes after the last newline, which ends at `end`, as the beginning of a line."""
        self._begun.clear()
        if end < len(data):
            try:
                self._begin_locked(data[end:])
            except RecordTooLarge as error:
                return end, error
        return len(data), None

    def _split_locked(self, data: Buffer) -> int:
        while True:
            rows = int(split_lines(memoryview(data), 0, len(data), _NEWLINE, self._starts, self._lengths))
            if rows < len(self._starts):
                return rows
            size = min(max(_FEW_LINES, 8 * rows), len(data) + 1)
            self._starts, self._lengths = np.empty(size, np.int64), np.empty(size, np.int64)

    def _begin_locked(self, part: Buffer) -> None:
        """Keeps the beginning of a line. RecordTooLarge if it is too long for any message: then `part` is not kept."""
        longest = self._destination.longest_line(verbatim=self._parse is parse_txt)
        if len(self._begun) + len(part) > longest:
            raise RecordTooLarge("message", expected=f"a line of at most {longest} bytes")
        self._begun += part

    def _append_locked(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> tuple[int, Exception | None]:
        """Appends lines up to one that fails: how many, and why not the next one. Raises the error if it is the
        first."""
        parsed = self._parse(buffer, starts, lengths)
        taken = self._destination.append(parsed)
        error = parsed.error if taken.error is None else taken.error
        if error is not None and taken.rows == 0:
            raise error
        return taken.rows, error


def _may_begin_json(data: bytes) -> bool:
    """Whether more bytes may complete this to JSON. True in doubt."""
    text = data.decode(errors="ignore")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # A literal or an escape that is cut off is reported at its beginning.
        return error.msg.startswith("Unterminated string") or error.pos > len(text) - len("\\u0000")
    except RecursionError:
        pass
    return True
