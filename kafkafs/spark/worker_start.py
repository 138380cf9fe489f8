"""What a task costs beside its work, in the Python worker that runs it: two waits of Spark's that need not be.

- Spark's JVM sends a task in two pieces over a connection without TCP_NODELAY, so that the second leaves only when the
  first is acknowledged; the kernel puts that off by 40 ms, hoping for an answer to send along (tcp(7), TCP_QUICKACK).
  The first piece holds what is run: its being unpickled is the moment to acknowledge.
- pyspark.daemon collects garbage after every task, through all objects of all imported modules: some 20 ms.

Over Unix sockets (`spark.python.unix.domain.socket.enabled`) there is only the second.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Generic, ParamSpec, TypeVar

from pyspark import TaskContext

P = ParamSpec("P")
R = TypeVar("R")

_begun = False  # whether this process has run a task


class WorkerStart:
    """Held by what Spark sends to its workers: unpickled there, it does away with the waits. Of no effect elsewhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _start, ()


@dataclass(frozen=True, slots=True)
class Started(Generic[P, R]):
    """A function that takes a WorkerStart along to the workers."""

    work: Callable[P, R]
    start: WorkerStart = field(default_factory=WorkerStart)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.work(*args, **kwargs)


def _start() -> WorkerStart:
    global _begun
    if TaskContext.get() is not None:
        _acknowledge()
        if _begun and not gc.get_freeze_count():
            # What the first task imported stays: later collections need not look at it.
            gc.freeze()
        _begun = True
    return WorkerStart()


def _acknowledge() -> None:
    """Sends the acknowledgements that this process's connections within the machine hold back."""
    # Spark keeps its socket to itself, so it is looked for; a duplicate is closed without harm to it.
    for entry in os.scandir("/proc/self/fd"):
        # One that the listing itself had, a socket that listens or is closed: nothing waits for those.
        with suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    if _is_within_machine(connection):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _is_within_machine(connection: socket.socket) -> bool:
    """Whether it is a TCP connection to another process here. OSError when it is none to anybody."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return ip_address(connection.getpeername()[0]).is_loopback
