"""Small files in the user's cache directory, never in a log directory: each under a key, together within a limit.

Like any cache, a file is only a hint: whoever reads it must compare it with the present state of its source. All may be
removed at any time. If they cannot be written, their content is computed again after the next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Final

from storage.errors import error_text

_log = logging.getLogger(__name__)

_KEPT_PART: Final = 0.9  # of `max_bytes`, after making room
_MOST_DIGITS: Final = 18


def cache_directory(name: str) -> Path:
    """`$XDG_CACHE_HOME/kafkafs/<name>` (XDG base directory specification)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "kafkafs" / name


class CacheFiles:
    """The files of one kind, named by `suffix`. Thread-safe. Errors of the directory are never raised.

    `max_bytes` is the limit of what all processes keep there together: what they have written is counted in a file of
    its own. `is_used`: False where another user could write such files, because readers would believe them.
    """

    def __init__(self, directory: Path, suffix: str, max_bytes: int) -> None:
        # constant after construction
        self.directory = directory
        self.suffix = suffix
        self.max_bytes = max_bytes
        self.is_used = is_private(directory)
        # guarded by the lock
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._complained = False

    def path(self, key: bytes) -> Path:
        return self.directory / (hashlib.blake2b(key, digest_size=16).hexdigest() + self.suffix)

    def read(self, key: bytes) -> bytes | None:
        """The bytes written for a key; None if there is nothing. It may be damaged, or of another version."""
        try:
            return self.path(key).read_bytes() if self.is_used else None
        except OSError:
            return None

    def used(self, key: bytes) -> None:
        """Marks a file as recently used: the others make room first."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def write(self, key: bytes, data: bytes) -> None:
        """Keeps `data` for a key, if possible. A file that exists is only marked as used."""
        if self.read(key) == data:
            self.used(key)
            return
        with self._lock:
            try:
                if not self.is_used:
                    raise PermissionError(errno.EACCES, "other users can write there")
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._count_locked(self.path(key), len(data))
                self._write(self.path(key), data)
            except OSError as error:
                if not self._complained:
                    _log.warning("nothing can be kept in %s: %s", self.directory, error_text(error))
                    self._complained = True

    def used_bytes(self) -> int:
        """The size of all processes' files as of the last change that this one has made."""
        with self._lock:
            return self._used_bytes

    def _count_locked(self, path: Path, size: int) -> None:
        """Makes room for a file of this size, and counts it in place of the one that is there."""
        with open(self.directory / f"total-{self.suffix[1:]}", "r+b", opener=_private) as total:
            # Go on without the lock: a stopped process may hold it forever, and some file systems have no locks. Two
            # processes that count at the same moment may lose one's addition, until the limit is reached and all files
            # are counted.
            with contextlib.suppress(OSError):
                fcntl.flock(total, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = total.read(_MOST_DIGITS)
            used = int(text) - _size(path) + size if text.isdigit() else None
            if used is None or used > self.max_bytes:
                used = self._make_room(size) - _size(path) + size
            self._used_bytes = used
            total.seek(0)
            total.truncate()
            total.write(str(used).encode())

    def _write(self, path: Path, data: bytes) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with open(partial, "wb", opener=_private) as file:
                file.write(data)
            partial.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

    def _make_room(self, size: int) -> int:
        """Removes the least recently used files if `size` bytes do not fit; returns the size of the others."""
        files = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if self.suffix not in entry.name:  # also what a killed process has left of a file
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(size for _, size, _ in files)
        if used + size > self.max_bytes:
            for _, freed, path in sorted(files):
                if used + size <= self.max_bytes * _KEPT_PART:
                    break
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                used -= freed
        return used


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_private(directory: Path) -> bool:
    """Whether only we (and root) can write to a directory, and replace it. What does not exist yet will be ours."""
    for place in (directory, *directory.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            return False
        if stat.S_ISLNK(status.st_mode):
            return is_private(place.resolve() / directory.relative_to(place))
        others = stat.S_IWOTH | (stat.S_IWGRP if place == directory else 0)
        shared = status.st_mode & others and not (status.st_mode & stat.S_ISVTX and place != directory)
        if shared or status.st_uid not in (0, os.geteuid()):
            return False
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)
