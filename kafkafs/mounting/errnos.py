"""The errno that answers each error (kafkafs/CONTRACT.md, "Errors"), and one wrapper for all calls of FUSE.

Damaged data is answered with EIO and logged in one line with file, position, offset, expected and found; at most
`DataErrors.PER_SECOND` lines a second, so that a `grep -r` over a broken disk does not fill the log. An error of any
other type is a bug: it is logged with its traceback, answered with EIO, and never reaches libfuse.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kafkafs.reading.growth import SizeWasEstimated
from kafkafs.tree.paths import NameTooLong, NoSuchPath
from storage import errors

_log = logging.getLogger(__name__)

# The first class that matches decides, so subclasses come before their bases.
_ERRNO: tuple[tuple[type[Exception], int], ...] = (
    (errors.OffsetOutOfRange, errno.ERANGE),
    (errors.LogTruncated, errno.ESTALE),
    (SizeWasEstimated, errno.ESTALE),
    (errors.CorruptData, errno.EIO),
    (errors.UnsupportedFormat, errno.EPROTO),
    (errors.RecordTooLarge, errno.EMSGSIZE),
    (errors.LineTooLong, errno.EFBIG),
    (errors.InvalidRecord, errno.EINVAL),
    (errors.InvalidConfig, errno.EINVAL),
    (errors.InvalidTopic, errno.EINVAL),
    (errors.UnknownTopicOrPartition, errno.ENOENT),
    (errors.NotALogDir, errno.ENOENT),
    (errors.NotPermitted, errno.EPERM),
    (errors.LogLocked, errno.EBUSY),
    (errors.ReadOnlyLogDir, errno.EROFS),
    (errors.PartitionOffline, errno.EIO),
    (errors.TierUnavailable, errno.EIO),
    (errors.TooManyKeys, errno.ENOMEM),
    (NoSuchPath, errno.ENOENT),
    (NameTooLong, errno.ENAMETOOLONG),
    # A name that is not UTF-8, which no file here has. fusepy decodes paths before we see them.
    (UnicodeError, errno.ENOENT),
)


def errno_of(error: BaseException) -> int | None:
    """The positive errno for `error`; None for an unexpected error."""
    if isinstance(error, errors.PartitionUnavailable) and error.reason is not None:
        error = error.reason  # so that a full disk is answered with ENOSPC
    for kind, number in _ERRNO:
        if isinstance(error, kind):
            return number
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return error.errno
    return None


@dataclass(frozen=True, slots=True)
class DataErrorStatus:
    """The errors so far. `count`: answers for damaged data or failed disks; `bugs`: answers for bugs; `last`: the last
    error of either kind, as text."""

    count: int
    bugs: int
    last: str | None


class DataErrors:
    """Counts and logs the errors that were answered with EIO or EPROTO. Thread-safe."""

    PER_SECOND = 10

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        # constant after construction
        self._now = now
        # guarded by the lock
        self._lock = threading.Lock()
        self._count = 0
        self._bugs = 0
        self._last: str | None = None
        self._second = -1
        self._logged = 0
        self._held_back = 0

    def report(self, operation: str, error: BaseException) -> None:
        """Counts an answer for damaged data, and logs a line unless too many were logged this second."""
        text = " ".join(f"{operation}: {errors.error_text(error)}".split())  # one line, whatever is in it
        with self._lock:
            self._count += 1
            self._last = text
            write, held_back = self._may_write_locked()
        if held_back:
            _log.error("%d more errors were not logged", held_back)
        if write:
            _log.error("%s", text)

    def report_bug(self, operation: str, error: BaseException) -> None:
        """Counts a bug, and logs its traceback."""
        with self._lock:
            self._bugs += 1
            self._last = f"{operation}: {type(error).__name__}: {errors.error_text(error)}"
            write, _ = self._may_write_locked()
        if write:
            _log.error("bug in %s, answered EIO", operation, exc_info=error)

    def status(self) -> DataErrorStatus:
        """The counts so far."""
        with self._lock:
            return DataErrorStatus(self._count, self._bugs, self._last)

    def _may_write_locked(self) -> tuple[bool, int]:
        """Whether to log now, and how many lines were held back before."""
        second = int(self._now())
        held_back = 0
        if second != self._second:
            held_back, self._held_back = self._held_back, 0
            self._second, self._logged = second, 0
        self._logged += 1
        if self._logged > self.PER_SECOND:
            self._held_back += 1
            return False, held_back
        return True, held_back


data_errors = DataErrors()


def answer(operation: Callable[..., int | None], *arguments: object) -> int:
    """Calls a FUSE operation. Returns its result (0 for None), or the negative errno of its error.

    Nothing escapes, not even SystemExit: libfuse would continue with whatever ctypes returns for it.
    """
    try:
        return operation(*arguments) or 0
    except BaseException as error:  # noqa: BLE001 - see above
        return -refusal(operation.__name__, error)


def refusal(operation: str, error: BaseException) -> int:
    """The positive errno for `error`. Reports bugs, errors answered with EIO or EPROTO, and the two errors whose texts
    say what to do: TooManyKeys and LineTooLong."""
    number = errno_of(error)
    if number is None:
        data_errors.report_bug(operation, error)
        return errno.EIO
    if number in (errno.EIO, errno.EPROTO) or isinstance(error, errors.TooManyKeys | errors.LineTooLong):
        data_errors.report(operation, error)
    return number
