"""A progress bar on stderr if that is a terminal; otherwise nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storage.progress import NoProgress, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """The Progress that long work reports to."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    """A bar per piece of work; rich has its own lock. Its thread starts with the first bar: fork before that."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def begin(self, what: str, total: int) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import Progress as Bars

            self._bars = Bars(console=Console(stderr=True), transient=True)
            self._bars.start()
        self._task = self._bars.add_task(what, total=total)

    def advance(self, amount: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, amount)

    def end(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def close(self) -> None:
        """Removes all bars."""
        if self._bars is not None:
            self._bars.stop()
