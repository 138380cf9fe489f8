"""Whether a log still works: open, closed, or offline after an error that left its files in doubt.

Nothing here locks: the PartitionLog that owns it holds its lock.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from storage.errors import LogClosed, PartitionOffline, error_text

# A full disk or a process short of descriptors works again later; any other error puts the files in doubt. An error
# that keeps a file from being opened says nothing about its bytes, while a sync on a full disk has lost some.
OPENING_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
PASSING_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, *OPENING_ERRORS})


class Health:
    """The health of one log. `failure`: what took it offline, None while it works. `closed`: nothing more is
    written."""

    __slots__ = ("_path", "closed", "failure")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failure: Exception | None = None
        self.closed = False

    def check(self) -> None:
        """LogClosed unless the log is open; PartitionOffline unless it works."""
        if self.closed:
            raise LogClosed("log is closed", path=self._path)
        if self.failure is not None:
            self.check_online()

    def check_online(self) -> None:
        """PartitionOffline after a failure."""
        if self.failure is not None:
            raise PartitionOffline(
                "partition is offline after an earlier failure",
                path=self._path,
                found=error_text(self.failure),
                advice="Repair the disk, then mount again",
            ) from self.failure

    def fail(self, error: Exception) -> None:
        """Takes the log offline; the first error remains the reason."""
        if self.failure is None:
            self.failure = error

    @contextlib.contextmanager
    def failing(self, in_doubt: Callable[[], bool] | None = None) -> Iterator[None]:
        """An OSError within the block takes the log offline. With `in_doubt`, a temporary error does so only if
        `in_doubt()` returns True, because a failed change could not be undone."""
        try:
            yield
        except OSError as error:
            self.failed(error, in_doubt=in_doubt is None or in_doubt())
            raise

    def failed(self, error: OSError, *, in_doubt: bool) -> None:
        """Takes the log offline if the failed change could not be undone (`in_doubt`), or the error is not
        temporary."""
        if in_doubt or error.errno not in PASSING_ERRORS:
            self.fail(error)
