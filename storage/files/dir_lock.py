"""`.lock`: only one process writes to a log directory. Compatible with a broker's lock (Kafka's FileLock).

Both take a POSIX record lock (fcntl(2)) on the whole file. Such a lock does not survive fork(2), and closing *any*
descriptor of the file in the process releases it. So the file is opened once, by the process that serves, and nowhere
else; `_held` prevents a second opening in the same process, as the JVM's OverlappingFileLockException does. A broker
unlinks the file when it stops, so after locking we check that the name still refers to the file we hold. See
storage/DESIGN.md, "Sharing a directory with a broker".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from storage.errors import LogLocked
from storage.files.disk_protocol import Disk, DiskFile
from storage.files.opening import open_file

NAME = ".lock"

_POLL_S: Final = 0.02
_T = TypeVar("_T")

# struct flock of fcntl(2) on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")

# Directories that this process has locked. Empty in a forked child, which does not inherit the locks.
_held: set[Path] = set()
_held_guard = threading.Lock()
os.register_at_fork(after_in_child=_held.clear)


class DirLock:
    """The lock on one log directory, held from construction until `release`. Errors: LogLocked, OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory.resolve() / NAME
        with _held_guard:
            if self._path in _held:
                raise locked_error(self._path, os.getpid())
            self._file = self._acquire()
            _held.add(self._path)

    def _acquire(self) -> DiskFile:
        while True:
            # Opened once: closing its descriptor would release the lock.
            file = self._disk.open(self._path, create=True)
            with contextlib.ExitStack() as failed:
                failed.callback(file.close)
                try:
                    fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    raise locked_error(self._path, _holder_of(file.fileno())) from None
                if _same_file(file.fileno(), self._path):
                    failed.pop_all()
                    return file
                # The previous holder unlinked it between our open and our lock: that file no longer guards anything.

    def release(self) -> None:
        """Unlinks the file while it is still locked, as a broker does, then releases the lock. Safe to call twice.

        OSError when the file could not be unlinked: it then remains, unlocked.
        """
        with _held_guard:
            if self._file.fileno() < 0:
                return
            _held.discard(self._path)
            try:
                if _same_file(self._file.fileno(), self._path):
                    self._disk.unlink(self._path)
            finally:
                self._file.close()


def when_free(act: Callable[[], _T], timeout_s: float) -> _T:
    """Return what `act` returns. Calls `act` until it does not raise LogLocked, or `timeout_s` seconds have passed. A
    command holds the lock for moments, a mount or a broker for as long as it runs."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except LogLocked:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)


def holder(directory: Path) -> int | None:
    """The pid of the process that holds the directory's lock, or None. Changes nothing."""
    path = directory.resolve() / NAME
    with _held_guard:
        if path in _held:
            return os.getpid()
        try:
            fd = open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):  # only a regular file can be a lock
                return None
            raise
        try:
            return _holder_of(fd)
        finally:
            os.close(fd)


def locked_error(path: Path, pid: int | None) -> LogLocked:
    """The error that names the process holding the lock file `path`."""
    return LogLocked(
        "the log directory is in use",
        path=path.parent,
        found=f"its lock held by {describe_process(pid)}",
        advice="Stop that process",
    )


def describe_process(pid: int | None) -> str:
    """`kafkafs mount (process 4711)`, or as much of that as is known."""
    if pid is None or pid <= 0:
        return "another process"
    import psutil  # imported late: every command checks the lock, and few find a holder

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        command = process.cmdline()
        # A broker's command line is a class path of kilobytes; people recognize its main class.
        broker = next((word for word in command if word.startswith("kafka.")), None)
        if len(command) > 1 and Path(command[0]).name.startswith("python"):
            command = [Path(command[1]).name, *command[2:]]
        return f"{broker or ' '.join(command[:4]) or process.name()} (process {pid})"
    return f"process {pid}"


def _holder_of(fd: int) -> int | None:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    return None if kind == fcntl.F_UNLCK else pid


def _same_file(fd: int, path: Path) -> bool:
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)
