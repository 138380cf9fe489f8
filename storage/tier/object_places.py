"""Where a tier's objects are: a directory, or a URL that fsspec knows (`s3://bucket/prefix`).

An object has a key: its path below the place, parts separated by `/`. What is in a place may come from a stranger, and
who reads it may be root: in a directory no symbolic link is followed and only regular files are opened
(storage/files/opening.py). A place may be on another machine, so a request may be slow or fail at any time:
`TierUnavailable` then says what and why.
"""

from __future__ import annotations

import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage.errors import TierUnavailable
from storage.files.opening import open_below

_NO_EXTRA: Final = "Install it: pip install 'kafkafs[tier]'"
_O_NOATIME: Final[int] = getattr(os, "O_NOATIME", 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing says of a name. `size`: bytes of an object, None for a directory. `version`: differs for an object
    that replaces another one of the same name, as far as the place can tell."""

    name: str
    size: int | None
    version: str = ""


class Place(ABC):
    """`name`: as the person gave it. `path`: the parts of its path; the last may name a partition. `is_local`: byte
    ranges are read as fast as a file's."""

    def __init__(self, name: str, path: tuple[str, ...], *, is_local: bool) -> None:
        self.name: Final = name
        self.path: Final = path
        self.is_local: Final = is_local

    def object_name(self, key: str) -> str:
        """A key as a person would write it."""
        return f"{self.name.rstrip('/')}/{key}" if key else self.name

    @abstractmethod
    def entries(self, key: str) -> list[Entry]:
        """What is directly in a directory, which the empty key is too, by name; empty where there is nothing.
        TierUnavailable."""

    @abstractmethod
    def read(self, key: str, position: int, size: int) -> bytes:
        """Bytes of an object; fewer if it ends before. TierUnavailable."""

    @contextmanager
    def _plainly(self, key: str) -> Iterator[None]:
        try:
            yield
        except TierUnavailable:
            raise
        except FileNotFoundError as error:
            what = "is not in the tier" if key else "there is no such directory"
            raise TierUnavailable(what, path=self.object_name(key)) from error
        except Exception as error:  # every backend of fsspec has errors of its own
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            raise TierUnavailable("cannot be read", path=self.object_name(key), found=reason) from error


class Directory(Place):
    """A directory: a backend's own (LocalTieredStorage, Aiven's filesystem), a mounted bucket, or a copy of one."""

    def __init__(self, name: str) -> None:
        self._root: Final = Path(os.path.realpath(name))  # a person has named it
        super().__init__(name, self._root.parts, is_local=True)

    def entries(self, key: str) -> list[Entry]:
        with self._plainly(key):
            try:
                fd = self._open(key, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if not key:
                    raise
                return []
            try:
                with os.scandir(fd) as found:
                    return sorted(filter(None, map(_entry, found)), key=lambda entry: entry.name)
            finally:
                os.close(fd)

    def read(self, key: str, position: int, size: int) -> bytes:
        with self._plainly(key):
            fd = self._open(key, os.O_RDONLY)
            try:
                data = os.pread(fd, size, position)
                while 0 < len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
                    data += more
                return data
            finally:
                os.close(fd)

    def _open(self, key: str, flags: int) -> int:
        try:
            return open_below(self._root, key, flags | os.O_CLOEXEC | _O_NOATIME)
        except PermissionError:
            return open_below(self._root, key, flags | os.O_CLOEXEC)


def _entry(found: os.DirEntry[str]) -> Entry | None:
    try:
        status = found.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        return None
    if stat.S_ISDIR(status.st_mode):
        return Entry(found.name, None)
    return Entry(found.name, status.st_size, str(status.st_mtime_ns)) if stat.S_ISREG(status.st_mode) else None


class Url(Place):
    """A URL, by fsspec (extra `tier`). Settings of its backend are those that it takes from the environment
    (`AWS_ENDPOINT_URL`, `AWS_PROFILE`, …) and from fsspec's configuration files. TierUnavailable where a package is
    missing."""

    def __init__(self, name: str) -> None:
        scheme, _, rest = name.partition("://")
        _import_backend(name, scheme.rpartition("::")[2])
        super().__init__(name, (scheme, *(part for part in rest.split("/") if part)), is_local=False)
        self._lock: Final = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None  # guarded by the lock

    def entries(self, key: str) -> list[Entry]:
        with self._plainly(key):
            system, root = self._system()
            try:
                found = system.ls(f"{root}/{key}".rstrip("/"), detail=True)
            except FileNotFoundError:
                if not key:
                    raise
                return []
            entries = []
            for info in found:
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                if info["type"] == "directory":
                    entries.append(Entry(name, None))
                elif name and info["type"] == "file" and isinstance(info.get("size"), int):
                    version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified")
                    entries.append(Entry(name, info["size"], str(version or "")))
            return sorted(entries, key=lambda entry: entry.name)

    def read(self, key: str, position: int, size: int) -> bytes:
        if size <= 0:
            return b""
        with self._plainly(key):
            system, root = self._system()
            data: bytes = system.cat_file(f"{root}/{key}", start=position, end=position + size)
            return data

    def _system(self) -> tuple[Any, str]:
        """The file system and the root in it. One for each process: the threads of a backend do not survive a fork."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                import fsspec

                system, root = fsspec.core.url_to_fs(self.name, use_listings_cache=False, skip_instance_cache=True)
                self._opened = (os.getpid(), system, str(root).rstrip("/"))
            return self._opened[1], self._opened[2]


def _import_backend(name: str, scheme: str) -> None:
    """At once: it takes most of a second, for which a reader of a mount should not wait."""
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        what = f"a package that reads {scheme}:// is not installed"
        raise TierUnavailable(what, path=name, found=error, advice=_NO_EXTRA) from error
    except ValueError as error:
        raise TierUnavailable("is a URL of an unknown kind", path=name, found=error) from error


def open_place(name: str) -> Place:
    """The place that a person names: a URL with `://` in it, or else a directory. It is first looked at when used.
    TierUnavailable as `Url`."""
    if name.startswith("file://"):
        return Directory(name.removeprefix("file://"))
    return Url(name) if "://" in name else Directory(name)
