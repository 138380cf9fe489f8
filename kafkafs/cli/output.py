"""Output of large amounts of data: one thread makes bytes, another writes them, through a few recycled buffers.

Reading, checking and rendering run without the GIL, and so does write(2), so the two overlap. Where there is another
processor, a third thread renders the second half of each block.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kafkafs.formats.format import MOST_LINE_BYTES, line_too_long
from storage.files.descriptors import wait_for_room

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from typing import BinaryIO

    from kafkafs.formats.format import Format
    from storage.errors import LineTooLong
    from storage.format.block import RecordBlock

_BUFFER_BYTES: Final = 4 << 20  # most blocks fit into the rest of a buffer and need not be divided
_BUFFERS: Final = 4
_LEAST_SHARED: Final = 1024  # records of a block that two threads render
_PIPE_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2  # how often an idle writer checks whether its reader still exists


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: memoryview) -> None:
        """Writes all of `data`. OSError; BrokenPipeError if nobody reads."""

    def is_gone(self) -> bool:
        """Whether the reader has closed its end."""


class FileSink:
    """A file descriptor: a pipe, a file, a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, 0)
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        if self._is_pipe:
            with suppress(OSError):  # more than /proc/sys/fs/pipe-max-size, or too many pipes of this user
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                wait_for_room(self._fd)
            except OSError as error:
                error.filename = "stdout"
                raise

    def is_gone(self) -> bool:
        return self._is_pipe and any(event & select.POLLERR for _, event in self._poll.poll(0))


class StreamSink:
    """A Python stream without a descriptor."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: memoryview) -> None:
        self._stream.write(data)

    def is_gone(self) -> bool:
        return False


def stdout_sink() -> Sink:
    """The descriptor of stdout if there is one. Flushes earlier output first."""
    sys.stdout.flush()
    try:
        return FileSink(sys.stdout.fileno())
    except io.UnsupportedOperation:
        return StreamSink(sys.stdout.buffer)


class OutputClosed(Exception):
    """The output is no longer wanted."""


class Output:
    """Takes bytes from the thread that makes them. Otherwise not thread-safe."""

    def __init__(self, most_line_bytes: int | None = MOST_LINE_BYTES) -> None:
        """`most_line_bytes`: the limit for the line of a record; None: no limit."""
        # constant after construction
        self._most_line_bytes = most_line_bytes
        # have their own locking
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[memoryview, int] | str | BaseException | None] = SimpleQueue()
        self._stop = threading.Event()
        # used by the making thread alone
        self._used = 0
        self._helper: ThreadPoolExecutor | None = None
        self._is_shared = len(os.sched_getaffinity(0)) > 1
        # The kernel gives memory when it is first written to, so little output needs little memory.
        self._view, *others = (np.empty(_BUFFER_BYTES, np.uint8).data for _ in range(_BUFFERS))
        for buffer in others:
            self._free.put(buffer)

    def render(self, form: Format, block: RecordBlock) -> list[LineTooLong]:
        """Renders the records of a block; returns an error for each that is too long and was left out."""
        if not self._is_shared or len(block) < _LEAST_SHARED or len(block.buffer) > _BUFFER_BYTES:
            return self._render(form, block, 0)
        if self._helper is None:
            from concurrent.futures import ThreadPoolExecutor

            self._helper = ThreadPoolExecutor(1)
        half, buffer = len(block) // 2, self._next()
        second = self._helper.submit(form.render_rows, block, buffer, 0, half)
        try:
            too_long = self._render(form, block.select(slice(0, half)), 0)
        finally:
            second.exception()  # waits: the block and the buffer are in use until then
        self._pass_on()
        self._view = buffer
        row, self._used = second.result()
        return too_long + self._render(form, block, row)

    def _render(self, form: Format, block: RecordBlock, row: int) -> list[LineTooLong]:
        too_long = []
        while row < len(block):
            row, self._used = form.render_rows(block, self._view, self._used, row)
            if row == len(block):
                break
            if self._used:
                self.flush()
                continue
            record, sizes = block.select(slice(row, row + 1)), np.empty(1, np.int64)
            form.measure(record, sizes)
            size = int(sizes[0])
            if self._most_line_bytes is not None and size > self._most_line_bytes:
                too_long.append(line_too_long(int(record.offset[0]), size))
            else:
                line = np.empty(size, np.uint8).data  # larger than a buffer
                form.render(record, line)
                self.put(line)
            row += 1
        return too_long

    def put(self, data: memoryview) -> None:
        """Takes bytes unchanged."""
        while data:
            part = data[: len(self._view) - self._used]
            self._view[self._used : self._used + len(part)] = part
            self._used += len(part)
            data = data[len(part) :]
            if self._used == len(self._view):
                self.flush()

    def flush(self) -> None:
        """Passes on everything that was taken so far. Raises OutputClosed."""
        if self._used:
            self._pass_on()
            self._view = self._next()

    def _pass_on(self) -> None:
        self._full.put((self._view, self._used))
        self._used = 0

    def _next(self) -> memoryview:
        """A buffer that is free. Raises OutputClosed."""
        buffer = self._free.get()
        if buffer is None or self._stop.is_set():
            raise OutputClosed
        return buffer

    def report(self, message: str) -> None:
        """Prints a line on stderr, after everything that was taken before."""
        self.flush()
        self._full.put(message)

    def wait(self, seconds: float) -> None:
        """Sleeps. Raises OutputClosed."""
        if self._stop.wait(seconds):
            raise OutputClosed

    def _make(self, make: Callable[[Output], None]) -> None:
        try:
            make(self)
            self.flush()
            self._full.put(None)
        except OutputClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the writing thread
            self._full.put(error)

    def run(self, make: Callable[[Output], None], sink: Sink, say: Callable[[str], None]) -> None:
        """Runs `make(self)` in a thread of its own and writes what it makes, until it ends or nobody reads any longer.

        Raises the error of `make`, after all output was written; OSError of the sink.
        """
        maker = threading.Thread(target=self._make, args=(make,), name="make", daemon=True)
        maker.start()
        try:
            while True:
                try:
                    item = self._full.get(timeout=_LOOK_SECONDS)
                except Empty:
                    if sink.is_gone():
                        return
                    continue
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, str):
                    say(item)
                    continue
                buffer, used = item
                sink.write(buffer[:used])
                self._free.put(buffer)
        finally:
            self._stop.set()
            self._free.put(None)
            maker.join(_LOOK_SECONDS)  # it may be in a long read; there is no need to wait for it
