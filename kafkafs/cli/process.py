"""How a command's process ends and is interrupted: exit codes, signals, standard streams."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

import click

# Exit codes of all commands (kafkafs/CONTRACT.md, "Errors"). 0 is fine; click itself uses 2 for wrong usage.

FOUND = 1  # the check found something
HELD = 3  # the log directory is held by another process
DATA_ERROR = 4  # I/O or data error
INTERRUPTED = 130  # by ^C, after cleaning up; the code that a shell reports for SIGINT


# Signals. Commands that only print are filters: a closed pipe or ^C ends them silently, as it ends cat.
#
# Other commands must clean up first: for them ^C is a KeyboardInterrupt, which `main` reports in one line.


def use_default_signals(ctx: click.Context) -> None:
    """Restores the default actions of SIGPIPE and SIGINT, in the real program only (a test has its own handlers)."""
    if ctx.find_root().obj == "process":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise our parent wants it ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_quietly(ctx: click.Context) -> None:
    """Makes ^C raise KeyboardInterrupt, without libraries logging the calls that it ends. In the real program only."""
    if ctx.find_root().obj == "process" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        import logging

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            logging.disable()
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)


@contextmanager
def interrupts_kept(ctx: click.Context) -> Iterator[None]:
    """Within the block ^C raises KeyboardInterrupt, at the latest at the block's end: while Python forks, it drops an
    exception that a function of os.register_at_fork raises. In the real program only."""
    came = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    if ctx.find_root().obj == "process" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def logging_disabled() -> Iterator[None]:
    """Disables logging while a library has its own handler of ^C, which `interrupt_quietly` can replace only later."""
    import logging

    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def leave_at_once(code: int) -> NoReturn:
    """Ends the process although a thread runs a library's code that cannot be interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


# Standard streams that are closed, or that cannot be written to.
#
# If descriptor 2 is closed, the next file that is opened, a log, say, could get it, and text that a library writes to
# stderr would go into that file. So closed streams are opened at the start, stdin and stdout in such a way that using
# them fails.

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
    """The name of the file that an error is about; `stdout` if that cannot be written to; None if it is not known.

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
