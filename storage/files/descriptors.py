"""Descriptors: a process has only so many of them, and a log directory may have thousands of partitions.

Files that are written to again and again (the active segment's three, of each partition) are *held*: their descriptor
is opened when it is needed and, once there are too many, closed again where nobody has used it lately. Files that are
read are opened for each read (`log_file`), and need none of this.

What closing a descriptor must not do:

- lose an error of writing back. A file that was written to is synced first. When that fails, the kernel may tell nobody
  else: so the error is kept, every later use of the file raises it, and so does `sync_path` of its path, which is how
  a log makes its files durable. Only `hold` of the path, which follows a recovery, or a new file, forgets it.
- take another file for the one that was written to. When it is opened again it must be the same inode on the same
  device, with the size and the modification time that it was left with (we alone write it), else ESTALE. An inode's
  number alone is no identity: a file that is made after another was removed often gets it.

The lock of a log directory is never held through this: it goes with the first descriptor that is closed (`dir_lock`).
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

# What a full table of descriptors answers: the process's own, and the system's.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
# So many are held whatever the limit says.
_LEAST: Final = 6
# So many are closed where one was missing: the next is missing soon.
_GIVEN_BACK: Final = 8


def raise_limit() -> None:
    """Lets the process have as many descriptors as it may: the soft limit becomes the hard one.

    For programs, at their start; a library leaves the limits of its process alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system that refuses leaves us what we have
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def half_the_limit() -> int:
    """How many descriptors may be held: half of those that the process may have now. The rest is for what is opened and
    closed at once, and for everybody else in the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(_LEAST, soft // 2)


class HeldFiles:
    """Files that are held, of all log directories in this process, since the limit is the process's. Thread-safe.

    `limit`: how many may have a descriptor. Those in use at this moment are never closed, so it may be exceeded by as
    many as there are threads that write.

    Locks: a HeldFile's own guards its descriptor, and is held while the file is written to. It may be held when `_lock`
    is taken. Who holds `_lock` only tries a file's: one that is in use is passed over. Nothing is synced under `_lock`.
    """

    def __init__(self, limit: Callable[[], int] = half_the_limit) -> None:
        # Constant after construction.
        self._limit = limit
        # Guarded by the lock.
        self._lock = Lock()
        # Those with a descriptor. Weakly: who forgets to close one is not kept in memory by us.
        self._open: OrderedDict[ref[HeldFile], None] = OrderedDict()
        self._failures: dict[Path, OSError] = {}  # of those whose descriptor could not be closed without a loss

    def __len__(self) -> int:
        """How many descriptors there are."""
        return len(self._open)

    def hold(self, disk: Disk, path: Path, *, create: bool = False) -> HeldFile:
        """A file as `disk.open` gives it, which need not keep its descriptor. OSError."""
        with self._lock:
            self._failures.pop(path, None)
        return HeldFile(self, disk, path, disk.open(path, create=create))

    def failure(self, path: Path) -> OSError | None:
        """What kept a file of that path from being synced when its descriptor was closed."""
        with self._lock:
            return self._failures.get(path)

    def give_back(self) -> int:
        """Closes a few descriptors that were not used lately; returns how many."""
        with self._lock:
            chosen = self._choose_locked(_GIVEN_BACK)
        self._close(chosen)
        return len(chosen)

    def forget_all(self) -> None:
        """For a forked child, to which the parent's files mean nothing; its locks may be held by threads that are not
        there."""
        self._lock = Lock()
        self._open = OrderedDict()

    def opened(self, file: HeldFile) -> None:
        """It has a descriptor now; called under its lock. Others may lose theirs."""
        with self._lock:
            self._open[file.ref] = None
            chosen = self._choose_locked(len(self._open) - self._limit())
        self._close(chosen)

    def kept(self, file: HeldFile) -> None:
        """It has a descriptor still, although it was chosen to lose it; called under its lock."""
        with self._lock:
            self._open[file.ref] = None

    def closed(self, file: HeldFile) -> None:
        """It has none any more; called under its lock."""
        with self._lock:
            self._open.pop(file.ref, None)

    def failed(self, path: Path, error: OSError) -> None:
        """Notes what was lost with a descriptor."""
        with self._lock:
            self._failures[path] = error

    def _choose_locked(self, count: int) -> list[HeldFile]:
        """Up to `count` files that were not used since they were last looked at, taken off the list, their locks held:
        the oldest first, but who was used goes to the end once (the clock algorithm)."""
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

    OSError of all: also what was lost when its descriptor was closed; ESTALE, FileNotFoundError when the path does not
    mean the file any more.
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
        self._left: tuple[int, ...] = ()  # its marks when its descriptor was closed
        self._failure: OSError | None = None
        self._is_closed = False
        with self.lock:
            held.opened(self)

    def fileno(self) -> int:
        """The descriptor, which is valid until the file is next left alone."""
        with self.lock:
            return self._descriptor_locked().fileno()

    def size(self) -> int:
        """See DiskFile."""
        with self.lock:
            if self._file is None:
                self._check_locked()
                return self._left[_SIZE]
            return self._file.size()

    def write_at(self, position: int, *buffers: Buffer) -> int:
        """See DiskFile."""
        with self.lock:
            file = self._file
            if file is None:
                file = self._descriptor_locked()
            self.used = self._unsynced = True
            if len(buffers) == 1:  # mostly, and then worth a quicker call
                return file.write_at(position, buffers[0])
            return file.write_at(position, *buffers)

    def truncate(self, size_bytes: int) -> None:
        """See DiskFile. Without a descriptor nothing is done where the file has that size: so what undoes a write that
        found no descriptor needs none."""
        with self.lock:
            if self._file is None:
                self._check_locked()
                if size_bytes == self._left[_SIZE]:
                    return
            file = self._file or self._descriptor_locked()
            self.used = self._unsynced = True
            file.truncate(size_bytes)

    def sync(self) -> None:
        """See DiskFile."""
        with self.lock:
            if self._file is None:
                self._check_locked()  # it was synced when its descriptor was closed
                return
            self._file.sync()
            self._unsynced = False

    def close(self) -> None:
        """See DiskFile. Safe to call twice."""
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
        """Closes the descriptor, and keeps what goes wrong with that."""
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
        except BaseException:  # interrupted: it is as it was
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
                raise OSError(errno.ESTALE, "not the file any more that was written to", str(self.path))
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
    """A file that is written to again and again. See HeldFiles.hold."""
    return held_files.hold(disk, path, create=create)


def sync_path(disk: Disk, path: Path) -> None:
    """Makes a file's bytes durable, whoever wrote them. OSError, also for what was lost before: see HeldFiles."""
    failure = held_files.failure(path)
    if failure is not None:
        raise _again(failure, path)
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def open_fd(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
    """os.open, which closes held descriptors where there are no more."""
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR or not held_files.give_back():
            raise
    return os.open(path, flags, mode)


def wait_for_room(fd: int) -> None:
    """Waits until a descriptor that would block takes more, or will never. select(2) knows none from 1024 on."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


_SIZE: Final = 0


def _marks(file: DiskFile) -> tuple[int, ...]:
    """What tells a file from others, its size first."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


def _again(error: OSError, path: Path) -> OSError:
    again = OSError(error.errno, error.strerror, str(path))
    again.__cause__ = error
    return again
