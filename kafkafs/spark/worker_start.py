"""Remove two delays that Spark adds to every task in a Python worker.

- Spark's JVM sends a task in two pieces over a connection without TCP_NODELAY, so it sends the second piece only when
  the kernel acknowledges the first. The kernel waits up to 40 ms, to send the acknowledgement along with an answer
  (tcp(7), TCP_QUICKACK). The first piece holds the function: unpickling it sends the acknowledgement at once.
- pyspark.daemon collects garbage after every task, and after every other job of the driver's Python workers. Going
  through all objects of all imported modules takes 20 to 50 ms.

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
from typing import Any, Generic, ParamSpec, TypeVar

from pyspark import TaskContext

P = ParamSpec("P")
R = TypeVar("R")

_begun = False  # whether this worker has started work before


class WorkerStart:
    """An attribute of objects that Spark sends to its workers. Creating or unpickling it in a worker removes the
    delays; it has no effect elsewhere."""

    def __init__(self) -> None:
        global _begun
        if TaskContext.get() is not None or _is_worker():
            if _begun and not gc.get_freeze_count():
                # Modules that the first task imported are never freed: later collections need not examine them.
                gc.freeze()
            _begun = True

    def __reduce__(self) -> tuple[Any, ...]:
        return _start, ()


@dataclass(frozen=True, slots=True)
class Started(Generic[P, R]):
    """A function that Spark sends to the workers together with a WorkerStart."""

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
    """Send the delayed acknowledgements of this process's connections within the machine."""
    # Spark does not expose its socket, so examine all sockets; closing a duplicate does not affect the original.
    for entry in os.scandir("/proc/self/fd"):
        # The listing's own descriptor and listening or closed sockets raise OSError: none of them matter.
        with suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    if _is_within_machine(connection):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _is_within_machine(connection: socket.socket) -> bool:
    """Whether this is a TCP connection to another process on this machine. OSError if it is not connected."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return ip_address(connection.getpeername()[0]).is_loopback
