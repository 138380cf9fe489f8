"""An open file: what FUSE needs from it, and the handles of small files whose content is made when they are opened."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol, runtime_checkable

_LEAST_BUFFER = 128 << 10


class Handle(Protocol):
    """An open file. Reads may come from several threads and in any order."""

    @property
    def size(self) -> int:
        """Exact, in bytes, as of now."""

    @property
    def direct_io(self) -> bool:
        """Bypass the kernel's page cache: the file grows, is made again at each open, or is damaged.

        It decides what a short answer to a read means. Without the page cache it is a short read(2), and the next read
        gets the error. In the page cache it is the end of the file: the kernel reduces the inode's size to it and keeps
        the rest of the pages as zeros. So a handle in the page cache answers a whole read that touches damage with the
        error; the kernel then requests its pages one by one, and only those that touch the damage fail.
        """

    @property
    def keep_cache(self) -> bool:
        """The pages of this path that the page cache has from an earlier open are still right."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from the byte position `offset`; fewer or none at the end. Before damage also fewer if
        `direct_io`, otherwise the error."""

    def read_into(self, address: int, offset: int, size: int) -> int:
        """The same into memory at `address`, which has room for `size` bytes. Returns how many were written."""

    def close(self) -> None:
        """Ends the use of the handle; a second call does nothing."""


@runtime_checkable
class Syncs(Protocol):
    """An open file whose fsync(2) does something. sync(1) opens files for reading."""

    def sync(self) -> None:
        """Everything that was written to the file, by any process, is on disk when it returns."""


class WriteHandle(Handle, Syncs, Protocol):
    """A file opened for writing. Bytes are taken in the order of the writes."""

    def write(self, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False) -> int:
        """Takes bytes, which may be changed afterwards; returns how many. Raises an error of the first of them.

        `offset`: the writer's file position; None for a writer that appends (O_APPEND), whose position the kernel
        invents. `durable` (O_SYNC, O_DSYNC): what the bytes complete is on disk when this returns, and what `close`
        completes of them when that returns. When that fails its error is raised, although they were taken.
        """


@runtime_checkable
class HasHoles(Protocol):
    """A file opened for writing, in which a writer that skips a hole in its source thereby writes zeros."""

    def extend(self, size: int) -> None:
        """The writer sets the length of what it writes (ftruncate(2)): what it has not written up to there is zeros."""


class CopyingHandle:
    """What handles have in common whose fast way is `read_into`."""

    def read(self: Handle, offset: int, size: int) -> bytes:
        # A caller may ask for far more than there is; the file may be longer than it was a moment ago.
        size = min(size, max(self.size - offset, _LEAST_BUFFER))
        if size <= 0:
            return b""
        buffer = ctypes.create_string_buffer(size)
        count = self.read_into(ctypes.addressof(buffer), offset, size)
        return ctypes.string_at(buffer, count)


def read_parts(address: int, offset: int, end: int, part_at: Callable[[int], tuple[Handle, int, int]]) -> int:
    """`read_into` of a direct_io file that other open files make up, up to its position `end`. `part_at` gives for a
    position the file that has it, the position there, and where the part ends in this file."""
    position = offset
    while position < end:
        part, place, part_end = part_at(position)
        wanted = min(end, part_end) - position
        try:
            count = part.read_into(address + position - offset, place, wanted)
        except Exception:
            if position == offset:
                raise
            break  # up to the damage; the next read reports it
        position += count
        if count < wanted:
            break
    return position - offset


class BytesHandle:
    """A small file whose content was made when it was opened."""

    direct_io = True
    keep_cache = False

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]

    def read_into(self, address: int, offset: int, size: int) -> int:
        part = self._content[offset : offset + size]
        ctypes.memmove(address, part, len(part))
        return len(part)

    def close(self) -> None:
        pass


class SyncHandle(BytesHandle):
    """A file for writing, opened for reading."""

    def __init__(self, content: bytes, sync: Callable[[], object]) -> None:
        super().__init__(content)
        self._sync = sync

    def sync(self) -> None:
        self._sync()
