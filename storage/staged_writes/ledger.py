"""What a log directory's `kafkafs-commits` says of its writes: to who owns the directory, and to who only looks.

It tells upkeep how much of a log must stay as it is: the first batch of a pending write's share is how the share is
known again (`commit`).
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
    """The ledger of a log directory that we own. Thread-safe.

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
        """What it says now."""
        return self._ledger

    def change(self, changed: Callable[[Ledger], Ledger]) -> None:
        """Makes it say what `changed` makes of what it says, durably; several changes come one after the other.

        May be called with a log's locks held, and takes none. OSError: which of both it says is not known, and it is
        read again.
        """
        with self._lock:
            ledger = changed(self._ledger)
            if ledger == self._ledger:
                return
            try:
                replace_file(self._disk, self._path, commit_ledger.encode(ledger))
            except OSError:
                self._ledger = commit_ledger.read(self._path.parent)
                raise
            self._ledger = ledger


def holds(snapshot: LogSnapshot, part: PendingPart) -> bool:
    """Whether the write's first batch, and so all of its share, is in the log. Errors of reading."""
    if snapshot.log_end_offset <= part.base_offset:
        return False
    # Where the log start was moved behind it (DeleteRecords), it is in its segment nevertheless.
    snapshot = replace(snapshot, log_start_offset=min(snapshot.log_start_offset, part.base_offset))
    found = find_batch(snapshot, part.base_offset)
    if found is None:
        return False
    batch = found.segment.batch_at(found.position, snapshot.end_position(found.segment))
    return batch is not None and (int(batch.last_offset[0]), int(batch.crc[0])) == (part.last_offset, part.crc)


def kept_from(ledger: Ledger, snapshot: LogSnapshot) -> int | None:
    """From which offset on a log must be left as it is, for pending writes' sake; None when there is no such offset.

    The ledger's state is to be asked for after the snapshot was taken: a share that is appended later is not in it.
    """
    shares = [part for part in ledger.parts_of(snapshot.tp) if not part.written and _may_hold(snapshot, part)]
    return min((part.base_offset for part in shares), default=None)


def read_for_upkeep(directory: Path) -> Ledger:
    """The ledger of a directory that we only look at. One that does not parse tells of no writes, here as to the owner
    (CommitLedger): they cannot be finished any more."""
    try:
        return commit_ledger.read(directory)
    except CorruptCheckpoint:
        return Ledger()


def _may_hold(snapshot: LogSnapshot, part: PendingPart) -> bool:
    try:
        return holds(snapshot, part)
    except (StorageError, OSError):
        return True
