"""Standard streams that are closed, or that cannot be written to.

A descriptor from 0 to 2 that is closed would be given to the next file that is opened, a log, say, and what a library
writes to stderr would go there. So they are opened at the start, stdin and stdout in such a way that using them fails.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

# Descriptor, name in `sys`, how /dev/null is opened there, mode of the stream. Nobody misses what goes to stderr.
_STREAMS: Final = ((0, "stdin", os.O_WRONLY, "r"), (1, "stdout", os.O_RDONLY, "w"), (2, "stderr", os.O_WRONLY, "w"))


def open_closed() -> None:
    """Opens the standard streams that this process was started without."""
    for fd, name, flags, mode in _STREAMS:
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def name_of_failed(error: OSError) -> str | None:
    """What an error is about: its file; `stdout` if that cannot be written to; None if it is not known.

    What stdout has not taken is dropped: the interpreter would try once more at its end, and fail.
    """
    if error.filename:
        return str(error.filename)
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
            sys.stdout.flush()
        return "stdout"
    return None
