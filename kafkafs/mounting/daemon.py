"""Leaving the terminal: fork, and let the parent wait until the child is ready or has failed.

The child inherits only memory: no terminal, working directory or descriptors. Until it is ready, the parent shows its
progress and its messages, which arrive through a pipe as one JSON object a line, and what libraries write to its
stderr. From then on its stderr is the descriptor that it passed to `ready`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from kafkafs.mounting.mountpoint import FAILED, MountError
from storage.progress import Progress

_log = logging.getLogger(__name__)

_REPORT_SECONDS = 0.1  # between two reports of progress


@dataclass(frozen=True, slots=True)
class StartupListener:
    """The callbacks of a start. The work calls `ready` once it is ready, with the descriptor that becomes stderr;
    before that, `say` with lines for a person, and `progress`."""

    ready: Callable[[int], None]
    say: Callable[[str], None]
    progress: Progress


def start(work: Callable[[StartupListener], None], *, say: Callable[[str], None], progress: Progress) -> None:
    """Runs `work` in a child process; returns as soon as it is ready.

    Raises MountError: the error of `work`, or how the child ended.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # A file, not a pipe: fusermount inherits it and lives as long as the mount.
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            _be_the_child(work, writing, stderr)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            try:
                answer = _listen(pipe, say, progress)
            except BaseException:  # interrupted: otherwise the child would be left running, unknown to the user
                os.kill(child, signal.SIGTERM)
                raise
        stderr.seek(0)
        heard = stderr.read().decode(errors="replace").strip()
    if answer is not None and answer["exit"] == 0:
        return
    _, status = os.waitpid(child, 0)
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        answer = {"exit": FAILED, "message": f"the process that should serve ended {how} before it was ready"}
    raise MountError("\n".join(filter(None, (heard, answer["message"]))), answer["exit"])


def _listen(pipe: Iterable[bytes], say: Callable[[str], None], progress: Progress) -> dict[str, Any] | None:
    """Shows the child's messages up to its answer, which is returned; None when it ended without one."""
    for line in pipe:
        message: dict[str, Any] = json.loads(line)
        if "exit" in message:
            return message
        if "say" in message:
            say(message["say"])
        elif "begin" in message:
            progress.begin(message["begin"], message["total"])
        elif "advance" in message:
            progress.advance(message["advance"])
        else:
            progress.end()
    return None


class _Pipe:
    """The child's end of the pipe. Thread-safe; nothing is written after the answer."""

    def __init__(self, descriptor: int) -> None:
        self._lock = threading.Lock()
        self._descriptor = descriptor
        self._advanced = 0
        self._reported_at = 0.0
        self.answered = False

    def answer(self, exit_code: int, message: str = "") -> None:
        """Writes the last message. BrokenPipeError if the parent has ended."""
        with self._lock:
            self.answered = True
            try:
                self._write_locked({"exit": exit_code, "message": message})
            finally:
                os.close(self._descriptor)

    def say(self, line: str) -> None:
        """Sends a line that is shown to the user."""
        self._send({"say": line})

    def begin(self, what: str, total: int) -> None:
        self._send({"begin": what, "total": total})

    def advance(self, amount: int) -> None:
        with self._lock:
            self._advanced += amount
            if self.answered or time.monotonic() - self._reported_at < _REPORT_SECONDS:
                return
            with contextlib.suppress(BrokenPipeError):
                self._write_locked({"advance": self._advanced})
            self._reported_at = time.monotonic()
            self._advanced = 0

    def end(self) -> None:
        self._send({"end": True})

    def _send(self, what: dict[str, Any]) -> None:
        with self._lock:
            if not self.answered:
                with contextlib.suppress(BrokenPipeError):  # the answer will raise it
                    self._write_locked(what)

    def _write_locked(self, what: dict[str, Any]) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def _be_the_child(work: Callable[[StartupListener], None], writing: int, stderr: BinaryIO) -> NoReturn:
    """Runs the child to its end; it never returns, whatever happens."""
    pipe = _Pipe(writing)

    def ready(stderr_fd: int) -> None:
        pipe.answer(0)  # BrokenPipeError if the parent has ended: then nobody waits for the mount
        os.dup2(stderr_fd, 2)

    code = FAILED
    try:
        _detach(writing, stderr)
        work(StartupListener(ready, pipe.say, pipe))
        code = 0
    except BaseException as error:  # noqa: BLE001 - the child must not return into the parent's code
        explained = isinstance(error, MountError)
        code = error.exit_code if isinstance(error, MountError) else FAILED
        if pipe.answered:
            _log.error("ended: %s", error, exc_info=None if explained else error)
        else:
            pipe.answer(code, str(error) if explained else "".join(traceback.format_exception(error)))
    finally:
        logging.shutdown()
        os._exit(code)


def _detach(writing: int, stderr: BinaryIO) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, null), (2, stderr.fileno())):
        os.dup2(source, target)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, writing)
    os.closerange(writing + 1, limit)
    faulthandler.enable()
