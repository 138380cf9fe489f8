"""`segments/*`: a partition's real files, byte for byte, and the .log files of its remote segments. No descriptor stays
open: each read opens and checks the file."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.tree.paths import NoSuchPath
from kafkafs.views.handle import CopyingHandle, Handle
from kafkafs.views.path_pages import PathPages
from storage.files import names
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind, FileState
from storage.log.snapshot import Log
from storage.log.tiered_file import TieredFile

_REMEMBERED = 4096
_IMMUTABLE = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


@dataclass(frozen=True, slots=True)
class FileContent:
    """What distinguishes one state of a file from another. A program can set the mtime back, but not the ctime."""

    identity: FileIdentity
    size: int
    ctime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> FileContent:
        return FileContent(FileIdentity.of(status), status.st_size, status.st_ctime_ns)


class SeenFiles:
    """What the page cache may hold of each recently opened file. Thread-safe."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, PathPages] = OrderedDict()

    def find(self, path: str) -> PathPages | None:
        """The pages of a file that was opened."""
        with self._lock:
            return self._seen.get(path)

    def open(self, path: str, content: FileContent, *, sealed: bool) -> tuple[PathPages, bool, bool]:
        """The pages of a file that is being opened, and the two results of PathPages.open."""
        with self._lock:
            pages = self._seen.pop(path, None) or PathPages()
            self._seen[path] = pages
            if len(self._seen) > _REMEMBERED:
                unused = (path for path, one in self._seen.items() if not one.is_in_use and one is not pages)
                self._seen.pop(next(unused, ""), None)
            return pages, *pages.open(content, content.size, sealed=sealed)


class SegmentFile(File):
    """One real file of a partition's directory, or the .log of a remote segment."""

    def __init__(self, log: Log, name: str, seen: SeenFiles) -> None:
        self._log = log
        self._name = name
        self._path = f"{log.path}/{name}"
        self._seen = seen

    def attributes(self) -> Attributes:
        _, status = self._found()
        pages = self._seen.find(self._path)
        if pages is not None:
            pages.check(status.st_size)
        return Attributes(NodeKind.FILE, status.st_size, status.st_mtime_ns, FILE_MODE)

    def xattrs(self) -> Mapping[str, bytes]:
        parsed = names.parse_segment_file(self._name)
        return {} if parsed is None else {"user.kafka.base_offset": str(parsed.offset).encode()}

    def open(self) -> Handle:
        file, status = self._found()
        content = FileContent.of(status)
        sealed = self._is_sealed()
        if sealed and not isinstance(file, TieredFile):
            file.fix(status)  # content that another generation of the topic, or a truncation, puts there is not read
        return SegmentFileHandle(file, content, *self._seen.open(self._path, content, sealed=sealed))

    def _found(self) -> tuple[LogFile, os.stat_result]:
        """The file as the log has it where it is in a tier or may move there, otherwise by its path."""
        parsed = names.parse_segment_file(self._name)
        if parsed is not None and parsed.kind is FileKind.LOG and parsed.state is FileState.LIVE:
            snapshot = self._log.snapshot()
            slot = snapshot.segment_index(parsed.offset)
            file = snapshot.segments[slot].log if slot >= 0 else None
            if isinstance(file, TieredFile) and snapshot.segments[slot].base_offset == parsed.offset:
                return file, file.stat()
        status = self._status()
        return LogFile(self._path, FileIdentity.of(status)), status

    def _status(self) -> os.stat_result:
        try:
            status = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise NoSuchPath(self._name) from None
        if not stat.S_ISREG(status.st_mode):
            raise NoSuchPath(self._name)
        return status

    def _is_sealed(self) -> bool:
        """Whether the file belongs to a segment that is no longer written."""
        parsed = names.parse_segment_file(self._name)
        active = self._log.snapshot().active
        return (
            parsed is not None
            and parsed.kind in _IMMUTABLE
            and active is not None
            and parsed.offset < active.base_offset
        )


class SegmentFileHandle(CopyingHandle):
    """An open real file."""

    def __init__(
        self, file: LogFile, content: FileContent, pages: PathPages, direct_io: bool, keep_cache: bool
    ) -> None:
        self._file = file
        self._content = content
        self._pages = pages
        self._open = True
        self.direct_io = direct_io
        self.keep_cache = keep_cache

    @property
    def size(self) -> int:
        return self._file.stat().st_size if self.direct_io else self._content.size

    def read_into(self, address: int, offset: int, size: int) -> int:
        if size <= 0:
            return 0
        target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        return len(self._file.read(offset, size, target))

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self.direct_io:
                self._pages.close(self._content, self._content.size)
