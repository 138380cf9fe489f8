"""The origin of a request: the kernel gives the calling thread, and /proc its process and parents."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

_GENERATIONS = 16  # of parents that are examined
_INIT = 1


class Callers(Protocol):
    """The origin of the current request."""

    def thread(self) -> int:
        """The id of the calling thread; 0 if it is unknown."""

    def kin(self) -> Iterator[Collection[int]]:
        """The threads that may have opened a file for the caller, nearest first: its own, its process's, parents'."""


class OneCaller:
    """All requests have the same origin: a tree that serves one program."""

    def thread(self) -> int:
        return 1

    def kin(self) -> Iterator[Collection[int]]:
        yield (1,)


class Processes:
    """The processes of this machine. `thread` returns the calling thread's id, 0 for one in another pid namespace."""

    def __init__(self, thread: Callable[[], int]) -> None:
        self._thread = thread

    def thread(self) -> int:
        return self._thread()

    def kin(self) -> Iterator[Collection[int]]:
        asking = self._thread()
        yield (asking,)
        process = asking
        for _ in range(_GENERATIONS):
            if process <= _INIT:
                return
            try:
                process, parent = _family(process)
                yield {int(name) for name in os.listdir(f"/proc/{process}/task")}  # noqa: PTH208 - names alone
            except (OSError, ValueError):
                return  # the process has ended meanwhile, or /proc hides it
            process = parent


def _family(thread: int) -> tuple[int, int]:
    """The process of a thread, and the parent of that process."""
    found = {"Tgid": 0, "PPid": 0}
    with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as above
        for line in file:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value)
    return found["Tgid"], found["PPid"]
