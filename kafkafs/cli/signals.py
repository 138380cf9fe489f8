"""Signals. Commands that only print are filters: a closed pipe or ^C ends them silently, as it ends cat.

Other commands must clean up first: for them ^C is a KeyboardInterrupt, which `main` reports in one line.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click


def use_default_signals(ctx: click.Context) -> None:
    """Restores the default actions of SIGPIPE and SIGINT, in the real program only (a test has its own handlers)."""
    if ctx.find_root().obj == "process":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise our parent wants it ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_quietly(ctx: click.Context) -> None:
    """Makes ^C raise KeyboardInterrupt, without libraries logging the calls that it ends. In the real program only."""
    if ctx.find_root().obj == "process" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def interrupts_kept(ctx: click.Context) -> Iterator[None]:
    """^C within the block raises KeyboardInterrupt, at its end at the latest: what is raised while Python forks, in a
    function of os.register_at_fork, is dropped. In the real program only."""
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
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    logging.disable()
    raise KeyboardInterrupt
