"""Reads byte spans of a .log file with pread, from the intended file and no other.

In Kafka a segment's name refers to different files over time: retention and compaction rename a file to `.deleted`, a
compacted segment gets its name, a topic that is created again starts over. So a LogFile is one inode. It is opened for
each read, checked and closed again: no open descriptor holds a deleted file's disk space, and nothing is read through a
mapping (if another process truncates a mapped file, SIGBUS kills the reader).

But inode numbers are reused, and a file may be truncated and appended to. So a file that is no longer written can be
bound to its present size and modification time (`fix`): a file with another size or time counts as another file, and is
not read. And whoever owns a file and removes it calls `mark_removed`.

Nothing here locks: a LogFile may be read from any number of threads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from storage.errors import SegmentGone
from storage.files.file_mark import FileMark
from storage.files.names import FileState
from storage.files.opening import open_directory, open_file, status_of
from storage.files.page_cache import uncached_spans

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_O_NOATIME: int = getattr(os, "O_NOATIME", 0)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512  # of st_blocks, on every file system

# A segment only ever moves to a later of these, keeping its inode (LocalLog.replaceSegments, deleteSegmentFiles).
_LATER_STATES = {
    FileState.CLEANED: (FileState.SWAP, FileState.LIVE, FileState.DELETED),
    FileState.SWAP: (FileState.LIVE, FileState.DELETED),
    FileState.LIVE: (FileState.DELETED,),
    FileState.DELETED: (),
}


def open_quietly(path: str | os.PathLike[str], flags: int = _READ_FLAGS) -> int:
    """A descriptor of a file, or with O_DIRECTORY of a directory, for reading, that does not change the access time if
    that is permitted (open(2), O_NOATIME). Errors as `opening`.

    Can be the `opener` of the built-in open. Only a file's owner and root may use O_NOATIME.
    """
    opens = open_directory if flags & os.O_DIRECTORY else open_file
    if _O_NOATIME:
        try:
            return opens(path, flags | _O_NOATIME)
        except PermissionError:
            pass
    return opens(path, flags)


class FileIdentity(NamedTuple):
    """A file's identity: stays the same when the file is renamed, and differs for another file of the same name."""

    device: int
    inode: int

    @staticmethod
    def of(status: os.stat_result) -> FileIdentity:
        return FileIdentity(status.st_dev, status.st_ino)


class LogFile:
    """A .log file by its identity, under whatever name Kafka has given it meanwhile."""

    __slots__ = ("_fixed", "_flags", "_is_removed", "_on_change", "_place", "identity")

    def __init__(self, path: Path | str, identity: FileIdentity | None = None) -> None:
        """`identity`: from the caller's stat; by default that of the file there now (FileNotFoundError)."""
        self._place = os.fspath(path)
        self._flags = _READ_FLAGS | _O_NOATIME
        self._fixed: FileMark | None = None
        self._is_removed = False
        self._on_change: Callable[[], None] | None = None
        self.identity = FileIdentity.of(status_of(self._place)) if identity is None else identity

    @property
    def path(self) -> Path:
        """Where the file was when it was last opened or examined."""
        return Path(self._place)

    @property
    def fixed(self) -> FileMark | None:
        """The state that it is bound to; None while it may grow."""
        return self._fixed

    def fix(self, status: os.stat_result, on_change: Callable[[], None] | None = None) -> None:
        """From now on the file counts as gone unless it has the size and modification time of `status`.

        `on_change` is called when these differ, before SegmentGone is raised: lists of files must be refreshed.
        """
        self._on_change = on_change
        self._fixed = FileMark.of(status)

    def mark_removed(self) -> None:
        """From now on the file counts as gone: its owner has removed it, and another file may get its inode."""
        self._is_removed = True

    def is_as_fixed(self, status: os.stat_result) -> bool:
        """Whether a status shows this file with the content that it had when it was fixed; also False when the times do
        not prove it."""
        return self._fixed is not None and self.is_it(status) and self._fixed.still_shows(status)

    def read(self, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        """Reads `size` bytes from a byte position, fewer if the file ends before.

        `into`: a writable buffer of at least `size` bytes to read into; the result is its filled part. SegmentGone when
        the file was removed; OSError when the disk fails.
        """
        fd = self._open()
        try:
            if into is None:
                data = os.pread(fd, size, position)
                # A single pread reads at most 2 GiB, and less after a signal or on a network file system.
                while 0 < len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
                    data += more
                return memoryview(data)
            target = memoryview(into)[:size]
            filled = 0
            while filled < size:
                count = os.preadv(fd, [target[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
            return target[:filled]
        finally:
            os.close(fd)

    def skip_hole(self, position: int) -> int:
        """The first byte position from `position` on that is not in a hole, which reads as zeros and may be larger than
        any disk; the end of the file if there is none; `position` if that is beyond the end. Raises as `read`."""
        fd = self._open()
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system without holes
                return position
            return max(position, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def has_holes(self) -> bool:
        """Whether the disk has fewer bytes of the file than its size. Raises as `stat`."""
        status = self.stat()
        return status.st_blocks * _BLOCK_BYTES < status.st_size

    def read_each(self, positions: Iterable[int], size: int) -> list[bytes]:
        """Reads `size` bytes from each of these byte positions, fewer where the file ends before. Raises as `read`."""
        fd = self._open()
        try:
            return [os.pread(fd, size, position) for position in positions]
        finally:
            os.close(fd)

    def uncached(self, start: int, end: int) -> list[tuple[int, int]]:
        """Which spans of the bytes from `start` to `end` the page cache does not have; none where the kernel does not
        say (`page_cache`). Raises as `read`."""
        fd = self._open()
        try:
            return uncached_spans(fd, start, min(end, os.fstat(fd).st_size))
        finally:
            os.close(fd)

    def uncache(self, spans: Iterable[tuple[int, int]]) -> None:
        """Lets the page cache drop these spans, from a position to another (excluded). Pages that were written and are
        not on disk yet stay. Raises as `read`."""
        fd = self._open()
        try:
            for start, end in spans:
                first = start - start % _PAGE_BYTES  # the kernel drops only whole pages
                os.posix_fadvise(fd, first, end - first, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def stat(self) -> os.stat_result:
        """The file's status. SegmentGone when it was removed."""
        for place in self._places():
            try:
                status = status_of(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self.is_it(status):
                self._check(status)
                self._place = place
                return status
        raise self._gone()

    def _open(self) -> int:
        if self._is_removed:
            raise self._gone()
        for place in self._places():
            try:
                fd = open_file(place, self._flags)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                if not self._flags & _O_NOATIME:
                    raise
                self._flags &= ~_O_NOATIME
                return self._open()
            status = os.fstat(fd)
            if self.is_it(status):
                try:
                    self._check(status)
                except SegmentGone:
                    os.close(fd)
                    raise
                self._place = place
                return fd
            os.close(fd)
        raise self._gone()

    def is_it(self, status: os.stat_result) -> bool:
        """Whether a status is this file's, by its inode."""
        return status.st_ino == self.identity.inode and status.st_dev == self.identity.device

    def _check(self, status: os.stat_result) -> None:
        mark = self._fixed
        if mark is None or mark.shows(status):
            return
        if self._on_change is not None:
            self._on_change()
        raise SegmentGone(
            "segment file was written over since it was looked at: its log was truncated, or its topic made again",
            path=self._place,
        )

    def _places(self) -> Iterator[str]:
        """Paths where the file may be: the last known one, then the names that Kafka may have given it since."""
        place = self._place
        yield place
        state = next((state for state in _LATER_STATES if state.value and place.endswith(state.value)), FileState.LIVE)
        bare = place.removesuffix(state.value) if state.value else place
        for later in _LATER_STATES[state]:
            yield bare + later.value

    def _gone(self) -> SegmentGone:
        return SegmentGone(
            "segment file is gone: retention, compaction or truncation removed it, or its topic was deleted",
            path=self._place,
        )
