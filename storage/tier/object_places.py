"""Places with the objects of a tier or a backup: a directory, or a URL that fsspec knows (`s3://bucket/prefix`).

An object has a key: its path below the place, parts separated by `/`. A stranger may have filled the place, and root
may read it: in a directory no symbolic link is followed and only regular files are opened (storage/files/opening.py). A
place may be on another machine, so a request may be slow or fail at any time: it is repeated if that may help;
otherwise `TierUnavailable` names the request and the cause.
"""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from storage.errors import TierUnavailable
from storage.files.disk import RealDisk, replace_file
from storage.files.opening import open_below

_T = TypeVar("_T")
_NO_EXTRA: Final = "Install it: pip install 'kafkafs[store]', which has s3fs; gcsfs for gs://, adlfs for az://"
_WAITS_S: Final = (0.3, 1.0, 3.0)  # before these, s3fs, gcsfs and adlfs repeat a request on their own
_STATUS_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_ERRNO_AGAIN: Final = frozenset({errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.EREMOTEIO})
_PASSWORD: Final = re.compile(r"(?<=://)[^/@]*:[^/@]*@")
_O_NOATIME: Final[int] = getattr(os, "O_NOATIME", 0)


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An entry of a listing. `size`: bytes of an object, None for a directory. `version`: differs for an object that
    replaces another one of the same name, as far as the place can tell."""

    name: str
    size: int | None
    version: str = ""


class Place(ABC):
    """`name`: as the user gave it, without a password. `path`: the parts of its path; the last may name a partition.
    `is_local`: byte ranges are read as fast as a file's."""

    def __init__(self, name: str, path: tuple[str, ...], *, is_local: bool) -> None:
        self.name: Final = _PASSWORD.sub("***@", name)
        self.path: Final = path
        self.is_local: Final = is_local

    def object_name(self, key: str) -> str:
        """A key as a user would write it."""
        return f"{self.name.rstrip('/')}/{key}" if key else self.name

    @abstractmethod
    def entries(self, key: str) -> list[ListedObject]:
        """The entries directly in a directory, by name; the empty key is the place itself. Empty if there is nothing.
        TierUnavailable."""

    @abstractmethod
    def read(self, key: str, position: int, size: int) -> bytes:
        """Bytes of an object; fewer if it ends earlier. TierUnavailable."""

    @abstractmethod
    def size_of(self, key: str) -> int | None:
        """The size of an object; None if it does not exist. TierUnavailable."""

    @abstractmethod
    def keys(self) -> list[str]:
        """The keys of all objects, ascending. TierUnavailable."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Create an object, or replace it as a whole. TierUnavailable."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Remove the objects that exist. TierUnavailable."""

    @contextmanager
    def _plainly(self, key: str, request: str = "read") -> Iterator[None]:
        try:
            yield
        except TierUnavailable:
            raise
        except FileNotFoundError as error:
            what = "there is no such object" if key else "there is no such directory"
            raise TierUnavailable(what, path=self.object_name(key)) from error
        except Exception as error:  # every backend of fsspec has its own errors
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            raise TierUnavailable(f"cannot be {request}", path=self.object_name(key), found=reason) from error


class DirectoryPlace(Place):
    """A directory: a backend's own (LocalTieredStorage, Aiven's filesystem), a mounted bucket, or a copy of one."""

    def __init__(self, name: str) -> None:
        self._root: Final = Path(os.path.realpath(name))  # links in a path that the user names are followed
        super().__init__(name, self._root.parts, is_local=True)

    def entries(self, key: str) -> list[ListedObject]:
        with self._plainly(key):
            try:
                fd = self._open(key, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if not key:
                    raise
                return []
            try:
                with os.scandir(fd) as listing:
                    return sorted(filter(None, map(_entry, listing)), key=lambda entry: entry.name)
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

    def size_of(self, key: str) -> int | None:
        with self._plainly(key):
            try:
                fd = self._open(key, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                return os.fstat(fd).st_size
            finally:
                os.close(fd)

    def keys(self) -> list[str]:
        return sorted(self._keys_below("")) if self._root.is_dir() else []

    def _keys_below(self, key: str) -> Iterator[str]:
        for entry in self.entries(key):
            below = f"{key}/{entry.name}".lstrip("/")
            if entry.size is None:
                yield from self._keys_below(below)
            else:
                yield below

    def write(self, key: str, data: bytes) -> None:
        path = self._root / key
        with self._plainly(key, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(RealDisk(), path, data)

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            with self._plainly(key, "removed"), suppress(FileNotFoundError):
                RealDisk().unlink(self._root / key)

    def _open(self, key: str, flags: int) -> int:
        try:
            return open_below(self._root, key, flags | os.O_CLOEXEC | _O_NOATIME)
        except PermissionError:
            return open_below(self._root, key, flags | os.O_CLOEXEC)


def _entry(found: os.DirEntry[str]) -> ListedObject | None:
    try:
        status = found.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed after it was listed
        return None
    if stat.S_ISDIR(status.st_mode):
        return ListedObject(found.name, None)
    return ListedObject(found.name, status.st_size, str(status.st_mtime_ns)) if stat.S_ISREG(status.st_mode) else None


class UrlPlace(Place):
    """A URL, by fsspec (extra `store`). The backend takes its settings from the environment (`AWS_ENDPOINT_URL`,
    `AWS_PROFILE`, …) and from fsspec's configuration files. `parameters`: the backend's parameters for each upload
    (`StorageClass`). TierUnavailable if a package is missing."""

    def __init__(self, name: str, parameters: Mapping[str, str]) -> None:
        scheme, _, rest = name.partition("://")
        super().__init__(name, (scheme, *(part for part in rest.split("/") if part)), is_local=False)
        _import_backend(self.name, scheme.rpartition("::")[2])
        self._url: Final = name
        self._parameters: Final = dict(parameters)
        self._lock: Final = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None  # guarded by the lock

    def entries(self, key: str) -> list[ListedObject]:
        def request(system: Any, path: str) -> Any:
            try:
                return system.ls(path, detail=True)
            except FileNotFoundError:
                if not key:
                    raise
                return []

        entries = []
        for info in self._repeated("listed", key, request):
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            if info["type"] == "directory":
                entries.append(ListedObject(name, None))
            elif name and info["type"] == "file" and isinstance(info.get("size"), int):
                version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified")
                entries.append(ListedObject(name, info["size"], str(version or "")))
        return sorted(entries, key=lambda entry: entry.name)

    def read(self, key: str, position: int, size: int) -> bytes:
        if size <= 0:
            return b""
        end = position + size
        what = f"read from byte {position} to {end - 1}"
        return self._repeated(what, key, lambda system, path: bytes(system.cat_file(path, start=position, end=end)))

    def size_of(self, key: str) -> int | None:
        def request(system: Any, path: str) -> int | None:
            try:
                return int(system.info(path)["size"])
            except FileNotFoundError:
                return None

        return self._repeated("looked at", key, request)

    def keys(self) -> list[str]:
        def request(system: Any, path: str) -> list[str]:
            return sorted(str(name).removeprefix(path).lstrip("/") for name in system.find(path))

        return self._repeated("listed", "", request)

    def write(self, key: str, data: bytes) -> None:
        self._repeated("written", key, lambda system, path: system.pipe_file(path, data, **self._parameters))

    def remove(self, keys: Sequence[str]) -> None:
        def request(system: Any, root: str) -> None:
            with suppress(FileNotFoundError):
                system.rm([f"{root}/{key}" for key in keys])

        if keys:
            self._repeated("removed", "", request)

    def _repeated(self, what: str, key: str, request: Callable[[Any, str], _T]) -> _T:
        """Return the answer to a request, which is called with the file system and the path of the object."""
        with self._plainly(key, what):
            for wait_s in _WAITS_S:
                system, root = self._system()
                try:
                    return request(system, f"{root}/{key}".rstrip("/"))
                except Exception as error:  # every backend of fsspec has its own errors
                    if not _may_help(error):
                        raise
                time.sleep(wait_s * random.uniform(0.5, 1.5))
            system, root = self._system()
            return request(system, f"{root}/{key}".rstrip("/"))

    def _system(self) -> tuple[Any, str]:
        """The file system and the root in it. Each process has its own: the threads of a backend do not survive a
        fork."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                import fsspec

                system, root = fsspec.core.url_to_fs(self._url, use_listings_cache=False, skip_instance_cache=True)
                self._opened = (os.getpid(), system, str(root).rstrip("/"))
            return self._opened[1], self._opened[2]


def _may_help(error: BaseException) -> bool:
    """Whether repeating a request that failed with this error may succeed."""
    cause = error.__cause__ or error
    response = getattr(cause, "response", None)
    answer = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    for status in (answer, *(getattr(cause, name, None) for name in ("status", "status_code", "code"))):
        if isinstance(status, int):
            return status in _STATUS_AGAIN
    if isinstance(error, OSError):
        return isinstance(error, (ConnectionError, TimeoutError)) or error.errno in _ERRNO_AGAIN
    return "http" in type(cause).__module__ and "Error" in type(cause).__name__


def _import_backend(name: str, scheme: str) -> None:
    """Import a backend early: it takes most of a second, for which a reader of a mount should not wait."""
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        what = f"a package that reads {scheme}:// is not installed"
        raise TierUnavailable(what, path=name, found=error, advice=_NO_EXTRA) from error
    except ValueError as error:
        raise TierUnavailable("is a URL of an unknown kind", path=name, found=error) from error


def open_place(name: str, parameters: Mapping[str, str] | None = None) -> Place:
    """The place that the user names: a URL if it has `://` in it, otherwise a directory. Nothing is read from it before
    it is used. `parameters`, TierUnavailable: see `UrlPlace`."""
    if name.startswith("file://"):
        return DirectoryPlace(name.removeprefix("file://"))
    return UrlPlace(name, parameters or {}) if "://" in name else DirectoryPlace(name)
