"""`segments/*`: a partition's real files, byte for byte. No descriptor is kept: each read opens and checks the file."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from kafkafs.paths import NoSuchPath
from kafkafs.views.base import FILE_MODE, Attributes, File, Handle, Kind, read_through
from storage.files import names
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind
from storage.log.snapshot import Log

_REMEMBERED = 4096
_IMMUTABLE = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


@dataclass(frozen=True, slots=True)
class Content:
    """What tells one state of a file from another. The mtime may be set to what it was: the ctime may not."""

    identity: FileIdentity
    size: int
    ctime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> Content:
        return Content(FileIdentity.of(status), status.st_size, status.st_ctime_ns)


class SeenFiles:
    """The state of the files behind each path at its last open: the page cache may keep what it has only if that is
    still it."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, tuple[Content, ...]] = OrderedDict()

    def same_as_before(self, path: Hashable, *content: Content) -> bool:
        """Whether its files were in this state when it was last opened; remembers it for the next time."""
        with self._lock:
            before = self._seen.pop(path, None)
            self._seen[path] = content
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            return before == content


class SegmentFile(File):
    """One real file of a partition's directory."""

    def __init__(self, log: Log, name: str, seen: SeenFiles) -> None:
        self._log = log
        self._name = name
        self._path = log.path / name
        self._seen = seen

    def attributes(self) -> Attributes:
        status = self._status()
        return Attributes(Kind.FILE, status.st_size, status.st_mtime_ns, FILE_MODE)

    def xattrs(self) -> Mapping[str, bytes]:
        parsed = names.parse_segment_file(self._name)
        return {} if parsed is None else {"user.kafka.base_offset": str(parsed.offset).encode()}

    def open(self) -> Handle:
        status = self._status()
        file = LogFile(self._path, FileIdentity.of(status))
        sealed = self._is_sealed()
        unchanged = sealed and self._seen.same_as_before(str(self._path), Content.of(status))
        return SegmentFileHandle(file, status.st_size, sealed=sealed, unchanged=unchanged)

    def _status(self) -> os.stat_result:
        try:
            status = self._path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise NoSuchPath(self._name) from None
        if not stat.S_ISREG(status.st_mode):
            raise NoSuchPath(self._name)
        return status

    def _is_sealed(self) -> bool:
        """Whether the file belongs to a segment that is written no more."""
        parsed = names.parse_segment_file(self._name)
        active = self._log.snapshot().active
        return (
            parsed is not None
            and parsed.kind in _IMMUTABLE
            and active is not None
            and parsed.offset < active.base_offset
        )


class SegmentFileHandle:
    """An open real file."""

    def __init__(self, file: LogFile, size: int, *, sealed: bool, unchanged: bool) -> None:
        self._file = file
        self._size = size
        self.direct_io = not sealed
        self.keep_cache = sealed and unchanged

    @property
    def size(self) -> int:
        return self._file.stat().st_size if self.direct_io else self._size

    def read(self, offset: int, size: int) -> bytes:
        return read_through(self, offset, size)

    def read_into(self, address: int, offset: int, size: int) -> int:
        if size <= 0:
            return 0
        target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        return len(self._file.read(offset, size, target))

    def close(self) -> None:
        pass
