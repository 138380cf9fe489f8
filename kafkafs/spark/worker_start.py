"""Removes two delays that Spark adds to every task in a Python worker.

- Spark's JVM sends a task in two pieces over a connection without TCP_NODELAY, so the second is sent only when the
  first is acknowledged; the kernel delays that by 40 ms, to send it with an answer (tcp(7), TCP_QUICKACK). The first
  piece holds the function: the acknowledgement is sent while the function is unpickled.
- pyspark.daemon collects garbage after every task, and after everything else that the driver's Python workers do,
  through all objects of all imported modules: 20 to 50 ms.

Over Unix sockets (`spark.python.unix.domain.socket.enabled`) there is only the second delay.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from pyspark import TaskContext

if TYPE_CHECKING:
    pass


P = ParamSpec("P")
R = TypeVar("R")

_begun = False  # whether this worker has begun something before


class WorkerStart:
    """An attribute of objects that Spark sends to its workers: unpickling it there removes the delays, and so does
    creating it there. It has no effect elsewhere."""

    def __init__(self) -> None:
        global _begun
        if TaskContext.get() is not None or _is_worker():
            if _begun and not gc.get_freeze_count():
                # What the first task imported is never freed: later collections need not examine it.
                gc.freeze()
            _begun = True

    def __reduce__(self) -> tuple[Any, ...]:
        return _start, ()


@dataclass(frozen=True, slots=True)
class Started(Generic[P, R]):
    """A function that is sent to the workers together with a WorkerStart."""

    work: Callable[P, R]
    start: WorkerStart = field(default_factory=WorkerStart)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.work(*args, **kwargs)


def _start() -> WorkerStart:
    if TaskContext.get() is not None:
        _acknowledge()
    return WorkerStart()


def _is_worker() -> bool:
    """Whether this process is a Python worker, for tasks or for the driver."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon"


def _acknowledge() -> None:
    """Sends the delayed acknowledgements of this process's connections within the machine."""
    # Spark does not expose its socket, so all are examined; closing a duplicate does not affect the original.
    for entry in os.scandir("/proc/self/fd"):
        # Raised for the listing's own descriptor, and for listening or closed sockets: none of these matter.
        with suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    if _is_within_machine(connection):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _is_within_machine(connection: socket.socket) -> bool:
    """Whether it is a TCP connection to another process on this machine. OSError if it is not connected."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return ip_address(connection.getpeername()[0]).is_loopback
