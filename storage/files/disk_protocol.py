"""The operations of the engine on a log directory, as Protocols. `disk` implements them; tests make them fail.

Every call is one disk operation: it either happened or it did not, and nothing is durable until the `sync` that
covers it returned: `DiskFile.sync` for a file's bytes, `Disk.sync_dir` for the names in a directory (fsync(2)).
Errors are the OSErrors of the system calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class DiskFile(Protocol):
    """A file open for writing. Not thread-safe: its owner holds the partition's lock."""

    path: Path

    def fileno(self) -> int:
        """The descriptor, for fcntl locks."""

    def size(self) -> int:
        """The file's size in bytes, from the system."""

    def write_at(self, position: int, *buffers: Buffer) -> int:
        """Writes all buffers back to back at a byte position; returns the position after them.

        A write that fails half-way (ENOSPC, EIO) raises; how much reached the file is then unknown.
        """

    def truncate(self, size_bytes: int) -> None:
        """Truncates the file, or extends it with zeros."""

    def sync(self) -> None:
        """Makes the file's bytes and size durable (fdatasync)."""

    def close(self) -> None:
        """Closes the descriptor. Does not sync."""


class Disk(Protocol):
    """All operations of the engine on a log directory."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Opens an existing file for writing; with `create`, creates an empty one if there is none."""

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces a target file."""

    def unlink(self, path: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Gives a file a second name (link(2)). Neither name may be written through afterwards."""

    def copy(self, source_fd: int, target: Path, size_bytes: int) -> int:
        """Copies the first `size_bytes` of an open file to a new one; returns how many bytes there were.

        Where the file system can, both share their blocks until one of them is changed (copy_file_range(2)).
        """

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Sets the modification time, as Kafka's cleaner does for the files it creates."""

    def sync_dir(self, path: Path) -> None:
        """Makes the creations, renames and removals of names in a directory durable."""
