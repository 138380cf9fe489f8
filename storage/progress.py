"""The interface that long work reports to; the command line and @status.json implement it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """A sink for progress. Called from worker threads: implementations lock for themselves."""

    def begin(self, what: str, total: int) -> None:
        """Work named `what` begins; `total` is in the unit that `advance` counts (bytes, unless stated otherwise)."""

    def advance(self, amount: int) -> None:
        """`amount` more has been done."""

    def end(self) -> None:
        """The work that began last is over, successfully or not."""


class NoProgress:
    """Discards all reports."""

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def end(self) -> None:
        pass


@contextmanager
def working(progress: Progress, what: str, total: int) -> Iterator[None]:
    """Report the block's work to `progress`, as `Progress.begin` says."""
    progress.begin(what, total)
    try:
        yield
    finally:
        progress.end()
