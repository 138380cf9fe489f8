"""`-o modes=below`: the permissions of the log directory's own files decide who may read and write a path.

The kernel checks the modes that stat shows (`default_permissions`). A view of several files permits what all of
them permit; if they belong to different users or groups, it permits nothing, except to root. Modes are not cached: a
chmod counts at the next stat.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from kafkafs.tree.node import NodeKind
from storage.errors import StorageError
from storage.log.log_dir import LogDir
from storage.types import TopicPartition

_READ, _WRITE, _SEARCH = 0o444, 0o222, 0o111


@dataclass(frozen=True, slots=True)
class Permissions:
    """The owner that stat shows, and the bits that a file or directory has at most."""

    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class ModesBelow:
    """The permissions of a tree over a log directory."""

    log_dir: LogDir

    def of(self, path: str, kind: NodeKind) -> Permissions:
        """The permissions of a path of the tree; none at all if the files below it cannot be looked at."""
        try:
            base = self.log_dir.path.stat()
            directories, logs = base.st_mode, _READ | _WRITE
            for status in self._below(path):
                if (status.st_uid, status.st_gid) != (base.st_uid, base.st_gid):
                    return Permissions(base.st_uid, base.st_gid, 0)
                if stat.S_ISDIR(status.st_mode):
                    directories &= status.st_mode
                else:
                    logs &= status.st_mode
        except (StorageError, OSError):
            return Permissions(0, 0, 0)
        enters = directories & _SEARCH
        writes = directories & logs & enters << 1
        lists = directories & enters << 2
        reads = lists | lists >> 2 if kind is NodeKind.DIRECTORY else logs & enters << 2
        return Permissions(base.st_uid, base.st_gid, reads | writes)

    def _below(self, path: str) -> Iterator[os.stat_result]:
        """The status of the partition directories that a path shows, and of their `.log` files."""
        topic, _, rest = path.lstrip("/").partition("/")
        if not topic or topic.startswith("@"):
            return
        number = rest.partition("/")[0]
        numbers = [int(number)] if number.isascii() and number.isdigit() else self.log_dir.partitions(topic)
        for partition in numbers:
            tp = TopicPartition(topic, partition)
            yield (self.log_dir.path / tp.dir_name).stat()
            snapshot = self.log_dir.log(tp).snapshot()
            for segment in snapshot.segments[len(snapshot.remote) :]:
                with suppress(FileNotFoundError):  # retention has just removed it
                    yield segment.log.path.lstat()
