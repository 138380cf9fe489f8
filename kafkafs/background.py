"""Leaving the terminal: fork, and let the parent wait until the child is ready or has failed.

The child gets nothing of the parent's but memory: no terminal, no working directory, no descriptors. What libraries
write to its stderr until it is ready is shown by the parent; after that stderr is what the child chose.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from kafkafs.mountpoint import FAILED, MountError

_log = logging.getLogger(__name__)

Ready = Callable[[int], None]  # with the descriptor that stderr shall have from now on


def start(work: Callable[[Ready], None]) -> None:
    """Runs `work(ready)` in a child process; returns as soon as it has called `ready`.

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
                report = pipe.read()
            except BaseException:  # interrupted: nobody would know of that child
                os.kill(child, signal.SIGTERM)
                raise
        stderr.seek(0)
        heard = stderr.read().decode(errors="replace").strip()
    answer = json.loads(report) if report else None
    if answer is not None and answer["exit"] == 0:
        return
    _, status = os.waitpid(child, 0)
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        answer = {"exit": FAILED, "message": f"the process that should serve ended {how} before it was ready"}
    raise MountError("\n".join(filter(None, (heard, answer["message"]))), answer["exit"])


def _be_the_child(work: Callable[[Ready], None], writing: int, stderr: BinaryIO) -> NoReturn:
    """The child's whole life: it ends in here, whatever happens."""
    told = False

    def tell(exit_code: int, message: str = "") -> None:
        nonlocal told
        told = True
        try:
            os.write(writing, json.dumps({"exit": exit_code, "message": message}).encode())
        finally:
            os.close(writing)

    def ready(stderr_fd: int) -> None:
        tell(0)  # BrokenPipeError if the parent has gone: then nobody wants the mount
        os.dup2(stderr_fd, 2)

    code = FAILED
    try:
        _detach(writing, stderr)
        work(ready)
        code = 0
    except BaseException as error:  # noqa: BLE001 - nothing of the parent's may run in the child
        explained = isinstance(error, MountError)
        code = error.exit_code if isinstance(error, MountError) else FAILED
        if told:
            _log.error("ended: %s", error, exc_info=None if explained else error)
        else:
            tell(code, str(error) if explained else "".join(traceback.format_exception(error)))
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
