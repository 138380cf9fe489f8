"""Finds out what recovery would do by running it on a copy: `recover --dry-run`.

The copy of a partition's directory is a temporary directory. Its small files are copies, its .log files are links to
the real ones, which are read and never written: a cut is only noted. So the report comes from the same code.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage.clock import Clock
from storage.errors import PartitionOffline
from storage.files import names, offset_index, time_index
from storage.files.disk import RealDisk, RealFile
from storage.files.disk_protocol import Buffer, DiskFile
from storage.files.listing import paths_in
from storage.files.log_file import open_quietly
from storage.files.names import FileKind
from storage.files.opening import links_of_ours, open_file, status_of
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.files.sparse_index import used_parts
from storage.progress import Progress
from storage.recovery.recovery import Recovery, RecoveryPlan, RecoveryReport

# The sizes of entries of the files that are rebuilt whatever is in them.
_REBUILT: Final = {
    FileKind.OFFSET_INDEX.value: offset_index.ENTRY_SIZE,
    FileKind.TIME_INDEX.value: time_index.ENTRY_SIZE,
}


def rehearse(plan: RecoveryPlan, *, clock: Clock, progress: Progress | None = None) -> RecoveryReport:
    """The report that `Recovery` would produce; nothing is changed. Errors as Recovery's."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-recover-") as place, contextlib.ExitStack() as links:
        shadow = Path(place) / plan.directory.name
        shadow.mkdir()
        links.enter_context(links_of_ours(shadow))
        for path in paths_in(plan.directory):
            parsed = names.parse_segment_file(path.name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue  # no segment, whatever its name
            if stat.S_ISLNK(mode) or (parsed is not None and parsed.kind is FileKind.LOG):
                (shadow / path.name).symlink_to(path.absolute())
            elif stat.S_ISREG(mode):
                _copy(path, shadow / path.name)
        recovery = Recovery(replace(plan, directory=shadow), disk=_ShadowDisk(), clock=clock, progress=progress)
        try:
            recovery.run()
        except PartitionOffline as error:
            error.path = None if error.path is None else plan.directory / error.path.name
            raise
        return recovery.report


def _copy(path: Path, target: Path) -> None:
    """Copies a file, if it is still there. The preallocated zeros of an index, 10 MiB in a broker, become a hole."""
    entry_size = next((size for suffix, size in _REBUILT.items() if path.name.endswith(suffix)), None)
    if entry_size is None:
        content = read_whole(path, MOST_ENTRIES_BYTES)
        if content is not None:
            target.write_bytes(content)
        return
    with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0, opener=open_quietly) as source:
        size = os.fstat(source.fileno()).st_size
        used = used_parts(source.fileno(), entry_size) if size <= MOST_ENTRIES_BYTES else ()
        target.write_bytes(b"".join(used))
        os.truncate(target, size)


class _ShadowDisk(RealDisk):
    """A Disk on which the files that links point to cannot be changed. The copies are removed soon: none is synced."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:  # type: ignore[override]
        if path.is_symlink():
            return _LinkedFile(path)
        return _CopiedFile(path, open_file(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))

    def sync_dir(self, path: Path) -> None:
        pass


class _CopiedFile(RealFile):
    def sync(self) -> None:
        pass


class _LinkedFile:
    """A DiskFile whose truncation is only remembered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = status_of(path).st_size

    def fileno(self) -> int:
        raise OSError("a linked file has no descriptor")

    def size(self) -> int:
        return self._size

    def write_at(self, position: int, *buffers: Buffer) -> int:
        raise OSError(f"{self.path.name} must not be written in a rehearsal")

    def truncate(self, size_bytes: int) -> None:
        self._size = size_bytes

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass
