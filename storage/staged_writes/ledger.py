"""The content of a log directory's `kafkafs-commits`, for the owner of the directory and for read-only users.

It tells upkeep how much of a log must not change: a pending write's share is recognised by its first batch (`commit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock

from storage.errors import CorruptCheckpoint, StorageError
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingPart
from storage.files.disk import replace_file
from storage.files.disk_protocol import Disk
from storage.log.reader import find_batch
from storage.log.snapshot import LogSnapshot


class CommitLedger:
    """The ledger of a log directory that this process owns. Thread-safe.

    `problem`: why its file could not be understood; then nothing is committed, and nothing in it is changed.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        # Constant after construction.
        self._disk = disk
        self._path = directory / names.COMMITS
        # Guarded by the lock.
        self._lock = Lock()
        self.problem: CorruptCheckpoint | None = None
        self._ledger = Ledger()
        try:
            self._ledger = commit_ledger.read(directory)
        except CorruptCheckpoint as error:
            self.problem = error

    @property
    def state(self) -> Ledger:
        """The current content."""
        return self._ledger

    def change(self, changed: Callable[[Ledger], Ledger]) -> None:
        """Replaces the content by what `changed` returns for it, durably; concurrent changes are made one after
        another.

        The caller may hold a log's locks; none are taken here. OSError: `state` is what the file has, which is the old
        content, or the new one that a loss of power may undo.
        """
        with self._lock:
            ledger = changed(self._ledger)
            if ledger == self._ledger:
                return
            before = self._inode()
            try:
                replace_file(self._disk, self._path, commit_ledger.encode(ledger))
            except OSError:
                # The new file was created while the old one was there, so their inodes differ. To read it again would
                # need a descriptor, and there may be none left.
                if self._inode() != before:
                    self._ledger = ledger
                raise
            self._ledger = ledger

    def _inode(self) -> int | None:
        """Of the file; None without one."""
        try:
            return self._path.lstat().st_ino
        except FileNotFoundError:
            return None


def holds(snapshot: LogSnapshot, part: PendingPart) -> bool:
    """Whether the write's first batch, and so all of its share, is in the log. Errors of reading."""
    if snapshot.log_end_offset <= part.base_offset:
        return False
    # Where the log start was moved above it (DeleteRecords), it is still in its segment.
    snapshot = replace(snapshot, log_start_offset=min(snapshot.log_start_offset, part.base_offset))
    found = find_batch(snapshot, part.base_offset)
    if found is None:
        return False
    batch = found.segment.batch_at(found.position, snapshot.end_position(found.segment))
    return batch is not None and (int(batch.last_offset[0]), int(batch.crc[0])) == (part.last_offset, part.crc)


def kept_from(ledger: Ledger, snapshot: LogSnapshot) -> int | None:
    """The offset from which on a log must not change because of pending writes; None when there is none.

    Read the ledger's state after taking the snapshot: a share that is appended later is not in the snapshot.
    """
    shares = [part for part in ledger.parts_of(snapshot.tp) if not part.written and _may_hold(snapshot, part)]
    return min((part.base_offset for part in shares), default=None)


def read_for_upkeep(directory: Path) -> Ledger:
    """The ledger of a directory opened read-only. One that does not parse counts as empty, here as for the owner
    (CommitLedger): its writes can no longer be finished."""
    try:
        return commit_ledger.read(directory)
    except CorruptCheckpoint:
        return Ledger()


def _may_hold(snapshot: LogSnapshot, part: PendingPart) -> bool:
    try:
        return holds(snapshot, part)
    except (StorageError, OSError):
        return True
