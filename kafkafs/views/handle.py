"""An open file: what FUSE asks of it, and the handles of small files whose content is made when they are opened."""

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
        """Do not go through the kernel's page cache: the file grows, is made anew at each open, or is damaged.

        What a short answer to a read means hangs on it. Without the page cache it is a short read(2), and the next one
        meets the error. In the page cache it is the end of the file: the kernel takes the inode's size down to it, and
        keeps the rest of the pages as zeros. So a handle that goes through the page cache answers a read that touches
        damage with the error, whole; the kernel then asks for its pages one by one, and only those fail that do too.
        """

    @property
    def keep_cache(self) -> bool:
        """What the page cache holds of this path, from an earlier open, is still right."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from the byte position `offset`; fewer at the end, none at the end. Before damage fewer
        too, if `direct_io`; else the error."""

    def read_into(self, address: int, offset: int, size: int) -> int:
        """The same into memory at `address`, which has room for `size` bytes. Returns how many were put there."""

    def close(self) -> None:
        """Ends the use of the handle; a second call does nothing."""


@runtime_checkable
class Syncs(Protocol):
    """An open file whose fsync(2) does something. sync(1) opens files for reading."""

    def sync(self) -> None:
        """All that was written to the file, by whomever, is on disk when it returns."""


class WriteHandle(Handle, Syncs, Protocol):
    """A file opened for writing. Bytes count as they come."""

    def write(self, data: bytes | memoryview, offset: int | None = None) -> int:
        """Takes bytes, which may be changed afterwards; how many. Raises what is wrong with the first of them.

        `offset`: where the writer's file position is; None for one who appends (O_APPEND), whose position the kernel
        makes up.
        """


@runtime_checkable
class HasHoles(Protocol):
    """A file opened for writing in which a writer's leap forward, over a hole in what is copied, means zeros."""

    def extend(self, size: int) -> None:
        """The writer says how long what it writes is (ftruncate(2)): as far as it wrote less, there are zeros."""


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
