"""The content of a log directory's `kafkafs-commits`, for the owner of the directory and for read-only users.

The ledger says how much of a log upkeep must not change: the batches of a pending write's share are counted there
(`commit`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from storage.errors import CorruptCheckpoint
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger
from storage.files.disk import replace_file
from storage.files.disk_protocol import Disk
from storage.types import TopicPartition


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
        """The file's inode; None if there is no file."""
        try:
            return self._path.lstat().st_ino
        except FileNotFoundError:
            return None


def kept_from(ledger: Ledger, log_dir: Path, tp: TopicPartition) -> int | None:
    """The offset from which on a partition's log must not change because of pending writes; None when there is none. A
    share whose staged files are gone can no longer be finished, and restricts nothing.

    Read the ledger's state after taking a snapshot: a share that is appended later is not in the snapshot.
    """
    waiting = [
        part.base_offset
        for part in ledger.parts_of(tp)
        if not part.is_written and all((log_dir / tp.dir_name / file.name).exists() for file in part.files)
    ]
    return min(waiting, default=None)


def read_for_upkeep(directory: Path) -> Ledger:
    """The ledger of a directory opened read-only. A ledger that does not parse counts as empty, here as for the owner
    (CommitLedger): its writes can no longer be finished."""
    try:
        return commit_ledger.read(directory)
    except CorruptCheckpoint:
        return Ledger()
