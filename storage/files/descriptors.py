"""Descriptors: their number per process is limited, and a log directory may have thousands of partitions.

Files that are written to repeatedly (the three of each partition's active segment) are *held*: their descriptor is
opened when it is needed and, once there are too many, closed again if it was not used lately. Files that are read are
opened for each read (`log_file`) and need none of this. See storage/DESIGN.md, "Descriptors and locks".

Closing a descriptor must not

- lose a writeback error. A file that was written to is synced first. If that fails, the kernel may report the error to
  nobody else. So the error is kept, every later use of the file raises it, and so does `sync_path` of its path, which
  is how a log makes its files durable. Only `hold` of the path, after a recovery or for a new file, clears it.
- confuse another file with the one that was written to. When it is opened again it must have the same inode and device,
  and the size and modification time that it had when it was closed (only we write it); otherwise ESTALE. An inode
  number alone does not identify a file: a file made after another was removed often gets the same one.

The lock of a log directory is never held through this module: closing any descriptor of the lock file releases the lock
(`dir_lock`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import ref

if TYPE_CHECKING:
    from storage.files.disk_protocol import Buffer, Disk, DiskFile

# Errors of a full descriptor table: the process's, and the system's.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
# At least this many may be held, whatever the limit is.
_LEAST: Final = 6
# This many are closed when one is missing: more will be needed soon.
_GIVEN_BACK: Final = 8


def raise_limit() -> None:
    """Raises the soft limit on descriptors to the hard limit.

    For programs, at their start; a library does not change the limits of its process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # if the system refuses, the limit stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def half_the_limit() -> int:
    """How many descriptors may be held: half of what the process may have now. The rest is for files that are opened
    and closed at once, and for all other code in the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(_LEAST, soft // 2)


class HeldFiles:
    """The held files of all log directories in this process, since the limit is per process. Thread-safe.

    `limit`: how many may have a descriptor. Those in use are never closed, so the limit may be exceeded by the number
    of threads that write.

    Locks: each HeldFile's own lock guards its descriptor and is held while the file is written to. `_lock` may be taken
    while a file's lock is held. With `_lock` held, a file's lock is only tried: a file in use is skipped. Nothing is
    synced under `_lock`.
    """

    def __init__(self, limit: Callable[[], int] = half_the_limit) -> None:
        # Constant after construction.
        self._limit = limit
        # Guarded by the lock.
        self._lock = Lock()
        # Files with a descriptor. Weak references: a file that nobody closed is not kept in memory.
        self._open: OrderedDict[ref[HeldFile], None] = OrderedDict()
        self._failures: dict[Path, OSError] = {}  # of files that lost data when their descriptor was closed

    def __len__(self) -> int:
        """How many descriptors there are."""
        return len(self._open)

    def hold(self, disk: Disk, path: Path, *, create: bool = False) -> HeldFile:
        """A file as from `disk.open`, which need not keep its descriptor. OSError."""
        with self._lock:
            self._failures.pop(path, None)
        return HeldFile(self, disk, path, disk.open(path, create=create))

    def failure(self, path: Path) -> OSError | None:
        """The error of syncing the file at that path when its descriptor was closed; None if there was none."""
        with self._lock:
            return self._failures.get(path)

    def give_back(self) -> int:
        """Closes a few descriptors that were not used lately; returns their number."""
        with self._lock:
            chosen = self._choose_locked(_GIVEN_BACK)
        self._close(chosen)
        return len(chosen)

    def forget_all(self) -> None:
        """For a forked child, which does not use the parent's files; locks may be held by threads that do not exist in
        the child."""
        self._lock = Lock()
        self._open = OrderedDict()

    def opened(self, file: HeldFile) -> None:
        """Registers a file that now has a descriptor; called under its lock. May close those of others."""
        with self._lock:
            self._open[file.ref] = None
            chosen = self._choose_locked(len(self._open) - self._limit())
        self._close(chosen)

    def kept(self, file: HeldFile) -> None:
        """Registers a file that keeps its descriptor although it was chosen; called under its lock."""
        with self._lock:
            self._open[file.ref] = None

    def closed(self, file: HeldFile) -> None:
        """Removes a file without a descriptor; called under its lock."""
        with self._lock:
            self._open.pop(file.ref, None)

    def failed(self, path: Path, error: OSError) -> None:
        """Keeps the error that closing a descriptor raised."""
        with self._lock:
            self._failures[path] = error

    def _choose_locked(self, count: int) -> list[HeldFile]:
        """Up to `count` files that were not used since they were last examined, removed from the list, their locks
        held. The oldest come first; a file that was used goes to the end of the list once (the clock algorithm)."""
        chosen: list[HeldFile] = []
        for _ in range(2 * len(self._open) if count > 0 else 0):
            if len(chosen) >= count or not self._open:
                break
            known, _ = self._open.popitem(last=False)
            file = known()
            if file is None:
                continue
            if file.used or not file.lock.acquire(blocking=False):
                file.used = False
                self._open[known] = None
            else:
                chosen.append(file)
        return chosen

    def _close(self, chosen: list[HeldFile]) -> None:
        with contextlib.ExitStack() as locks:
            for file in chosen:
                locks.callback(file.lock.release)
            for file in chosen:
                file.let_go_locked()


class HeldFile:
    """A DiskFile whose descriptor may be closed and opened again between two uses. Thread-safe.

    All methods raise OSError, also the one from closing its descriptor earlier; ESTALE or FileNotFoundError when the
    path no longer names this file.
    """

    __slots__ = (
        "__weakref__",
        "_disk",
        "_failure",
        "_file",
        "_held",
        "_is_closed",
        "_left",
        "_unsynced",
        "lock",
        "path",
        "ref",
        "used",
    )

    def __init__(self, held: HeldFiles, disk: Disk, path: Path, file: DiskFile) -> None:
        # Constant after construction.
        self.path = path
        self.ref = ref(self)
        self._held = held
        self._disk = disk
        # Written without a lock: a hint.
        self.used = True
        # Guarded by the lock.
        self.lock = Lock()
        self._file: DiskFile | None = file  # None while it has no descriptor
        self._unsynced = False  # written to since it was last synced by us
        self._left: tuple[int, ...] = ()  # its `_marks` when its descriptor was closed
        self._failure: OSError | None = None
        self._is_closed = False
        with self.lock:
            held.opened(self)

    def fileno(self) -> int:
        """The descriptor, valid until the file is next idle."""
        with self.lock:
            return self._descriptor_locked().fileno()

    def size(self) -> int:
        with self.lock:
            if self._file is None:
                self._check_locked()
                return self._left[_SIZE]
            return self._file.size()

    def write_at(self, position: int, *buffers: Buffer) -> int:
        with self.lock:
            file = self._file
            if file is None:
                file = self._descriptor_locked()
            self.used = self._unsynced = True
            if len(buffers) == 1:  # the usual case, worth a faster call
                return file.write_at(position, buffers[0])
            return file.write_at(position, *buffers)

    def truncate(self, size_bytes: int) -> None:
        """Without a descriptor, nothing is done if the file already has that size: undoing a write that
        failed for want of a descriptor then needs none."""
        with self.lock:
            if self._file is None:
                self._check_locked()
                if size_bytes == self._left[_SIZE]:
                    return
            file = self._file or self._descriptor_locked()
            self.used = self._unsynced = True
            file.truncate(size_bytes)

    def sync(self) -> None:
        with self.lock:
            if self._file is None:
                self._check_locked()  # it was synced when its descriptor was closed
                return
            self._file.sync()
            self._unsynced = False

    def close(self) -> None:
        """Safe to call twice."""
        with self.lock:
            self._is_closed = True
            file, self._file = self._file, None
            if file is not None:
                self._held.closed(self)
                file.close()

    def __del__(self) -> None:
        # Its constructor may have failed.
        if (file := getattr(self, "_file", None)) is not None:
            file.close()

    def let_go_locked(self) -> None:
        """Closes the descriptor, and keeps the error if that fails."""
        file = self._file
        if file is None:
            return
        try:
            if self._unsynced:
                file.sync()
                self._unsynced = False
            self._left = _marks(file)
        except OSError as error:
            self._lost(error)
        except BaseException:  # interrupted: nothing has changed
            self._held.kept(self)
            raise
        self._file = None
        try:
            file.close()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self._failure = error
        self._held.failed(self.path, error)

    def _descriptor_locked(self) -> DiskFile:
        if self._file is None:
            self._check_locked()
            file = self._disk.open(self.path)
            if _marks(file) != self._left:
                file.close()
                raise OSError(errno.ESTALE, "no longer the file that was written to", str(self.path))
            self._file = file
            self._held.opened(self)
        return self._file

    def _check_locked(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "file is closed", str(self.path))
        if self._failure is not None:
            raise _again(self._failure, self.path)


held_files = HeldFiles()
os.register_at_fork(after_in_child=held_files.forget_all)


def hold(disk: Disk, path: Path, *, create: bool = False) -> HeldFile:
    """A file that is written to repeatedly. See HeldFiles.hold."""
    return held_files.hold(disk, path, create=create)


def sync_path(disk: Disk, path: Path) -> None:
    """Makes a file's bytes durable, whoever wrote them. OSError, also for an earlier failure: see HeldFiles."""
    failure = held_files.failure(path)
    if failure is not None:
        raise _again(failure, path)
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def open_fd(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """os.open, which closes held descriptors when no descriptor is left."""
    try:
        return os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR or not held_files.give_back():
            raise
    return os.open(path, flags, mode, dir_fd=dir_fd)


def wait_for_room(fd: int) -> None:
    """Waits until a descriptor that would block accepts more data, or never will. select(2) is limited to 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


_SIZE: Final = 0


def _marks(file: DiskFile) -> tuple[int, ...]:
    """What distinguishes a file from others, its size first."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


def _again(error: OSError, path: Path) -> OSError:
    again = OSError(error.errno, error.strerror, str(path))
    again.__cause__ = error
    return again
