"""Commands that print are filters: a closed pipe or ^C ends them as it ends cat, without a word."""

from __future__ import annotations

import signal

import click


def die_like_a_filter(ctx: click.Context) -> None:
    """Gives SIGPIPE and SIGINT back to the system. Not in a test, where the process is somebody else's."""
    if ctx.find_root().obj == "process":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)
