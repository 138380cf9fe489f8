"""The interface of all nodes of the tree, called views here, and what most of them have in common.

A view is cheap to make and holds no descriptor; `kafkafs.mounting.operations` looks a view up for each call. Errors are
StorageErrors, NoSuchPath or OSErrors: `kafkafs.mounting.errnos` has the errno of each.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from kafkafs.reading.handle import Handle, WriteHandle

FILE_MODE = 0o444
DIRECTORY_MODE = 0o555


class NodeKind(IntEnum):
    """The kinds of nodes that FUSE distinguishes; the value is the type in st_mode."""

    DIRECTORY = stat.S_IFDIR
    FILE = stat.S_IFREG


class Attributes(NamedTuple):
    """The attributes that stat shows. `size` in bytes, `mtime_ns` since the epoch; `mode` is the permission bits
    without the type."""

    kind: NodeKind
    size: int
    mtime_ns: int
    mode: int
    nlink: int = 1


class Entry(NamedTuple):
    """A name in a directory."""

    name: str
    kind: NodeKind


class View(Protocol):
    """A node of the tree that exists."""

    def attributes(self) -> Attributes:
        """Return the attributes for stat. Must be fast: every stat of the path calls it."""

    def list(self) -> Iterable[Entry]:
        """The names in a directory, without `.` and `..`. NotADirectoryError for a file."""

    def open(self) -> Handle:
        """Opens a file for reading. IsADirectoryError for a directory."""

    def open_to_write(self) -> WriteHandle:
        """Opens a file for writing. OSError (EROFS) for a file that can only be read."""


class Directory:
    """The base of directories: opening fails with EISDIR."""

    def open(self) -> Handle:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def open_to_write(self) -> WriteHandle:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


class File:
    """The base of files: listing fails with ENOTDIR, opening for writing with EROFS."""

    def list(self) -> Iterable[Entry]:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def open_to_write(self) -> WriteHandle:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
