"""Leaving the terminal: fork, and let the parent wait until the child is ready or has failed.

The child gets nothing of the parent's but memory: no terminal, no working directory, no descriptors. Until it is ready
the parent shows its progress and what it says, which come through a pipe, a JSON object a line; and what libraries
write to its stderr, which after that is what the child chose.
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

_TELL_SECONDS = 0.1  # between two tellings of progress


@dataclass(frozen=True, slots=True)
class Onlooker:
    """Who waits until the work is ready, and is told then by `ready`, with the descriptor that stderr shall have from
    then on; and until then hears of its `progress`, and what it has to `say` to a person, line by line."""

    ready: Callable[[int], None]
    say: Callable[[str], None]
    progress: Progress


def start(work: Callable[[Onlooker], None], *, say: Callable[[str], None], progress: Progress) -> None:
    """Runs `work` in a child process; returns as soon as that is ready.

    Raises MountError: the one that `work` raised before that, or one that tells how the child ended.
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
            except BaseException:  # interrupted: nobody would know of that child
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
    """Shows what the child tells, up to its answer; None when it ended without one."""
    for line in pipe:
        told: dict[str, Any] = json.loads(line)
        if "exit" in told:
            return told
        if "say" in told:
            say(told["say"])
        elif "begin" in told:
            progress.begin(told["begin"], told["total"])
        elif "advance" in told:
            progress.advance(told["advance"])
        else:
            progress.end()
    return None


class _Pipe:
    """The child's end. Thread-safe; after the answer nothing is told any more."""

    def __init__(self, descriptor: int) -> None:
        self._lock = threading.Lock()
        self._descriptor = descriptor
        self._advanced = 0
        self._told_at = 0.0
        self.answered = False

    def answer(self, exit_code: int, message: str = "") -> None:
        """The last word. BrokenPipeError if the parent has gone."""
        with self._lock:
            self.answered = True
            try:
                self._write_locked({"exit": exit_code, "message": message})
            finally:
                os.close(self._descriptor)

    def say(self, line: str) -> None:
        """A line for a person."""
        self._tell({"say": line})

    def begin(self, what: str, total: int) -> None:
        """See Progress."""
        self._tell({"begin": what, "total": total})

    def advance(self, amount: int) -> None:
        """See Progress."""
        with self._lock:
            self._advanced += amount
            if self.answered or time.monotonic() - self._told_at < _TELL_SECONDS:
                return
            with contextlib.suppress(BrokenPipeError):
                self._write_locked({"advance": self._advanced})
            self._told_at = time.monotonic()
            self._advanced = 0

    def end(self) -> None:
        """See Progress."""
        self._tell({"end": True})

    def _tell(self, what: dict[str, Any]) -> None:
        with self._lock:
            if not self.answered:
                with contextlib.suppress(BrokenPipeError):  # the answer will meet it
                    self._write_locked(what)

    def _write_locked(self, what: dict[str, Any]) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def _be_the_child(work: Callable[[Onlooker], None], writing: int, stderr: BinaryIO) -> NoReturn:
    """The child's whole life: it ends in here, whatever happens."""
    pipe = _Pipe(writing)

    def ready(stderr_fd: int) -> None:
        pipe.answer(0)  # BrokenPipeError if the parent has gone: then nobody wants the mount
        os.dup2(stderr_fd, 2)

    code = FAILED
    try:
        _detach(writing, stderr)
        work(Onlooker(ready, pipe.say, pipe))
        code = 0
    except BaseException as error:  # noqa: BLE001 - nothing of the parent's may run in the child
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
