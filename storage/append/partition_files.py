"""A partition's files as its writer changes them, apart from the active segment, and which of them are not synced yet.

Nothing here locks: the PartitionLog that owns it holds its lock, except for `sync`, which touches no state. `Flushing`
is held too when files are taken or put back or the recovery point moves (storage.append.flushing).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage.files import leader_epochs, names, transaction_index
from storage.files.disk import opened, replace_file, sync_file
from storage.files.disk_protocol import Disk
from storage.files.leader_epochs import LeaderEpochs
from storage.files.names import FileKind, FileState
from storage.files.opening import exists
from storage.files.transaction_index import AbortedTxn
from storage.log.segment import Segment
from storage.log.segments import live_offsets


@dataclass(slots=True)
class Unsynced:
    """Files whose bytes may be lost in a power failure; `names`: the directory's entries may be lost as well."""

    paths: set[Path] = field(default_factory=set)
    names: bool = False


class PartitionFiles:
    """The files in one partition's directory. Errors: OSError.

    `recovery_point`: all messages below this offset are durable. `last_flush_ms`: when everything was last synced.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._unsynced = Unsynced()
        self._noted: Iterable[Path] = ()  # what `wrote` was last called with; these are among the unsynced
        self.recovery_point = 0
        self.last_flush_ms = 0

    # Unsynced files

    def wrote(self, paths: Iterable[Path], *, new: bool = False) -> None:
        """Notes files that were written to; `new`: files were also created, renamed or removed."""
        if paths is self._noted and not new:
            return  # the usual case: one append after another
        self._noted = paths
        self._unsynced.paths.update(paths)
        self._unsynced.names |= new

    def opened_with(self, segments: Sequence[Segment], recovery_point: int, now_ms: int) -> None:
        """Notes all files beyond the recovery point, which may not be on disk: recovery may have cut or rebuilt them.
        `segments`: those of the log."""
        self.recovery_point = recovery_point
        self.last_flush_ms = now_ms
        for number, segment in enumerate(segments):
            last = number == len(segments) - 1
            if last or segments[number + 1].base_offset > recovery_point:
                self.wrote((self._path(segment.base_offset, kind) for kind in FileKind), new=True)
        kind = FileKind.PRODUCER_SNAPSHOT
        self.wrote(self._path(at, kind) for at in live_offsets(self._directory, kind) if at >= recovery_point)

    @property
    def all_synced(self) -> bool:
        """True when nothing was written since it was last synced."""
        return not self._unsynced.paths

    def unsynced_below(self, base_offset: int) -> bool:
        """True when a file of a segment below this one is not synced. Needs no lock."""
        return any(_is_below(path, base_offset) for path in self._unsynced.paths.copy())

    def take_unsynced(self, below: int | None = None) -> Unsynced:
        """The files noted so far; pass them to `sync` and then to `synced` or `put_back` before anything else is taken.
        `below`: only files of segments below this base offset, the producer snapshot at it, and directory entries."""
        taken, self._unsynced, self._noted = self._unsynced, Unsynced(), ()
        if below is not None:
            later = {path for path in taken.paths if not _is_below(path, below)}
            taken.paths -= later
            self._unsynced.paths |= later
        return taken

    def synced(self, offset: int, now_ms: int | None) -> None:
        """Notes that all messages below `offset` are on disk; `now_ms`: when everything was synced, None if not
        everything was."""
        self.recovery_point = max(self.recovery_point, offset)
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def put_back(self, unsynced: Unsynced) -> None:
        """Notes files again that could not be synced."""
        self.wrote(unsynced.paths, new=unsynced.names)

    def sync(self, unsynced: Unsynced) -> None:
        """Makes these files durable. Needs no lock."""
        for path in sorted(unsynced.paths):
            # A segment that was removed meanwhile needs no syncing.
            with contextlib.suppress(FileNotFoundError):
                sync_file(self._disk, path)
        if unsynced.names:
            self._disk.sync_dir(self._directory)

    # Changes

    def remove_named(self, base_offset: int) -> None:
        """Removes all live files with this offset in their names."""
        for kind in FileKind:
            path = self._path(base_offset, kind)
            if exists(path):
                self._disk.unlink(path)
                self.wrote((), new=True)

    def rename_deleted(self, segments: Iterable[Segment]) -> list[Path]:
        """Renames the files of these segments, in this order, to `.deleted`; syncs the directory before and after."""
        if self._unsynced.names:
            self._disk.sync_dir(self._directory)
        renamed = []
        for segment in segments:
            renamed += set_aside(self._disk, self._directory, segment.base_offset, FileKind)
        self._disk.sync_dir(self._directory)
        return renamed

    def write_producer_snapshot(self, offset: int, content: bytes) -> None:
        """Writes `<offset>.snapshot`, except at offset 0."""
        if offset == 0:
            return
        path = self._path(offset, FileKind.PRODUCER_SNAPSHOT)
        try:
            with opened(self._disk, path, create=True) as file:
                file.truncate(0)
                file.write_at(0, content)
        except OSError:
            if exists(path):
                self._disk.unlink(path)  # half a snapshot is worse than none
            raise
        self.wrote((path,), new=True)

    def append_aborted(self, base_offset: int, aborted: Sequence[AbortedTxn]) -> None:
        """Adds entries to a segment's .txnindex."""
        path = self._path(base_offset, FileKind.TRANSACTION_INDEX)
        new = not exists(path)
        with opened(self._disk, path, create=True) as file:
            file.write_at(file.size(), transaction_index.encode(list(aborted)))
        self.wrote((path,), new=new)

    def write_epochs(self, epochs: LeaderEpochs) -> None:
        """Replaces the leader-epoch-checkpoint, durably."""
        path = self._directory / names.LEADER_EPOCH_CHECKPOINT
        replace_file(self._disk, path, leader_epochs.encode(epochs.entries))

    def _path(self, offset: int, kind: FileKind) -> Path:
        return self._directory / names.segment_file(offset, kind)


def set_aside(disk: Disk, directory: Path, base_offset: int, kinds: Iterable[FileKind]) -> list[Path]:
    """Renames a segment's files of these kinds to `.deleted`; returns their new names."""
    renamed = []
    for kind in kinds:
        path = directory / names.segment_file(base_offset, kind)
        if exists(path):
            renamed.append(directory / names.segment_file(base_offset, kind, FileState.DELETED))
            disk.rename(path, renamed[-1])
    return renamed


def _is_below(path: Path, base_offset: int) -> bool:
    parsed = names.parse_segment_file(path.name)
    if parsed is None:
        return False
    return parsed.offset < base_offset or (parsed.offset == base_offset and parsed.kind is FileKind.PRODUCER_SNAPSHOT)
