"""Small files in the user's cache directory, never in a log directory: by what identifies them, and within a limit.

Like any cache, a file is only a hint: whoever reads one must compare it with what it was made of, as that is now. All
may be removed at any time. If they cannot be written, what they would hold is made again after the next start.
"""

from __future__ import annotations

import contextlib
import errno
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


def cache_directory(name: str) -> Path:
    """`$XDG_CACHE_HOME/kafkafs/<name>` (XDG base directory specification)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "kafkafs" / name


class CacheFiles:
    """The files of one kind, told by `suffix`. Thread-safe. Errors of the directory are never raised.

    `is_used`: False where another user could write such files: what they say of a log would be believed, and wrong.
    """

    def __init__(self, directory: Path, suffix: str, max_bytes: int) -> None:
        # constant after construction
        self.directory = directory
        self.suffix = suffix
        self.max_bytes = max_bytes
        self.is_used = _is_private(directory)
        # guarded by the lock
        self._lock = threading.Lock()
        self._used_bytes: int | None = None
        self._complained = False

    def path(self, key: bytes) -> Path:
        return self.directory / (hashlib.blake2b(key, digest_size=16).hexdigest() + self.suffix)

    def read(self, key: bytes) -> bytes | None:
        """What was written for a key; None if there is nothing. It may be damaged, or of another version."""
        try:
            return self.path(key).read_bytes() if self.is_used else None
        except OSError:
            return None

    def used(self, key: bytes) -> None:
        """Marks a file as recently used: the others make room first."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def write(self, key: bytes, data: bytes) -> None:
        """Keeps `data` for a key, if possible."""
        with self._lock:
            try:
                if not self.is_used:
                    raise PermissionError(errno.EACCES, "other users can write there")
                self._make_room_locked(len(data))
                self._write_locked(self.path(key), data)
            except OSError as error:
                if not self._complained:
                    _log.warning("nothing can be kept in %s: %s", self.directory, error_text(error))
                    self._complained = True

    def used_bytes(self) -> int:
        """The size of the files as of the last change."""
        with self._lock:
            return self._used_bytes or 0

    def _write_locked(self, path: Path, data: bytes) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with open(partial, "wb", opener=_private) as file:
                file.write(data)
            partial.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        self._used_bytes = (self._used_bytes or 0) + len(data)

    def _make_room_locked(self, size: int) -> None:
        if self._used_bytes is not None and self._used_bytes + size <= self.max_bytes:
            return
        files = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
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
        self._used_bytes = used


def _is_private(directory: Path) -> bool:
    """Whether only we (and root) can write to a directory, and replace it. What does not exist yet will be ours."""
    for place in (directory, *directory.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            return False
        if stat.S_ISLNK(status.st_mode):
            return _is_private(place.resolve() / directory.relative_to(place))
        others = stat.S_IWOTH | (stat.S_IWGRP if place == directory else 0)
        shared = status.st_mode & others and not (status.st_mode & stat.S_ISVTX and place != directory)
        if shared or status.st_uid not in (0, os.geteuid()):
            return False
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
