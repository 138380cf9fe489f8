"""Commands that print are filters: a closed pipe or ^C ends them as it ends cat, without a word.

Others have something to put in order first: ^C is a KeyboardInterrupt to them, which `main` tells in a line.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click


def die_like_a_filter(ctx: click.Context) -> None:
    """Gives SIGPIPE and SIGINT back to the system. Not in a test, where the process is somebody else's."""
    if ctx.find_root().obj == "process":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_without_a_trace(ctx: click.Context) -> None:
    """Has ^C raise KeyboardInterrupt, and no library log the calls that it breaks off. Not in a test, as above."""
    if ctx.find_root().obj == "process" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def unlogged() -> Iterator[None]:
    """Nothing is logged: where a library sets its own handler, which `end_without_a_trace` can replace only later."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    logging.disable()
    raise KeyboardInterrupt
