"""The last message of a writable mount to the `kafkafs umount` that waits for it.

The two processes are not related, so neither an exit code nor a pipe connects them, and the tree is gone by then. The
server keeps an anonymous file (memfd_create(2)) and notes in it how it ended. `umount` opens that file through
/proc/PID/fd before it unmounts, and reads it when the server has ended: an open file outlives its process. Only the
same user and root may open it (proc_pid_fd(5)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_NAME = "kafkafs-last-word"
_LINK = f"/memfd:{_NAME} "  # what its link in /proc/PID/fd begins with
_ENDED = b"ended\n"  # an error's message follows, if there was one
_MAX_BYTES = 64 << 10


@contextlib.contextmanager
def record_outcome() -> Iterator[None]:
    """Record for `watch_outcome` how the block ended: without an error, or with which error."""
    descriptor = os.memfd_create(_NAME)
    message = ""
    try:
        yield
    except BaseException as error:
        message = str(error) or type(error).__name__
        raise
    finally:
        with contextlib.suppress(OSError):  # a limit on the size of files (RLIMIT_FSIZE)
            os.write(descriptor, _ENDED + message.encode(errors="replace")[:_MAX_BYTES])
        os.close(descriptor)


@contextlib.contextmanager
def watch_outcome(pid: int) -> Iterator[Callable[[], str | None]]:
    """Yield a function that returns the outcome of a process; call it when the process has ended. The outcome is the
    message of its error; it is empty if there was no error, or if the process records none that this user may read.
    None: the process ended before it could record its outcome."""
    with contextlib.ExitStack() as stack:
        file = _file_of(pid)
        if file is None:
            yield lambda: ""
        else:
            stack.enter_context(file)
            yield lambda: _message(file.read())


def _message(data: bytes) -> str | None:
    return data.removeprefix(_ENDED).decode(errors="replace") if data.startswith(_ENDED) else None


def _file_of(pid: int) -> BinaryIO | None:
    with contextlib.suppress(OSError):
        for link in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(_LINK):
                    return link.open("rb")
    return None
