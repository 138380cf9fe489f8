"""The identity of a partition's directory: it differs for a directory that is made later under the same name.

A topic that is deleted and created again has a directory of the same name, with segments of the same names, and file
systems reuse the inode numbers of removed files. So an inode number alone does not identify a directory. The identity
also includes the time when the directory was created, if the file system keeps it (statx(2); ext4, xfs, btrfs and
tmpfs do), and the topic's id, if a broker or kafkafs wrote it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import CorruptCheckpoint
from storage.files import c_library, names
from storage.files.partition_metadata import read

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
# struct statx: the mask says which fields are filled in.
_MASK: Final = struct.Struct("=I")
_BIRTH: Final = struct.Struct("=80xqI")  # seconds, nanoseconds


class DirIdentity(NamedTuple):
    """A partition's directory. `born_ns`: when it was created, in epoch ns; `topic_id`; both None if unknown."""

    device: int
    inode: int
    born_ns: int | None
    topic_id: str | None

    @staticmethod
    def of(directory: Path) -> DirIdentity:
        """The directory at this path now. FileNotFoundError or NotADirectoryError when there is none."""
        status = os.stat(directory)  # noqa: PTH116
        try:
            topic_id = read(directory / names.PARTITION_METADATA)
        except (CorruptCheckpoint, OSError):  # code that needs the id reports the error
            topic_id = None
        return DirIdentity(status.st_dev, status.st_ino, _born_ns(directory), topic_id)

    def may_be(self, other: DirIdentity) -> bool:
        """False when the two are certainly not the same directory of the same topic."""
        return (
            self.device == other.device
            and self.inode == other.inode
            and _may_equal(self.born_ns, other.born_ns)
            and _may_equal(self.topic_id, other.topic_id)
        )

    def may_be_seen_elsewhere_as(self, other: DirIdentity) -> bool:
        """`may_be` for an identity that may come from another machine, where device numbers differ and inode
        numbers may differ."""
        return _may_equal(self.born_ns, other.born_ns) and _may_equal(self.topic_id, other.topic_id)

    def with_known(self, other: DirIdentity) -> DirIdentity:
        """This identity, completed by a later one of the same directory: a broker writes the topic's id some time after
        it has created the directory."""
        born_ns = self.born_ns if other.born_ns is None else other.born_ns
        return DirIdentity(self.device, self.inode, born_ns, other.topic_id or self.topic_id)


def _may_equal(left: object, right: object) -> bool:
    return left is None or right is None or left == right


def _born_ns(path: Path) -> int | None:
    call = c_library.function("statx")
    if call is None:
        return None
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if call(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:
        return None
    if not _MASK.unpack_from(answer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BIRTH.unpack_from(answer)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
