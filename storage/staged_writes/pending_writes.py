"""Pending writes with a share that can never be carried out, because the staged files are missing or damaged.

Opening the log directory for writing finishes their other shares. They stay pending, and their query can write no more.
A person may give them up, which loses those shares here, though not in the source that they came from:

1. `kafkafs-commits` is replaced: the write is not pending   → what partitions have of it stays; a query that plays its
                                                               micro-batch again writes all of it
2. its remaining staged files are removed                    → otherwise orphans (staging.remove_orphans)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from storage.errors import CorruptBatch
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart
from storage.log.log_dir import LogDir
from storage.staged_writes import commit, staging
from storage.staged_writes.commit import Owner


class Share(Enum):
    """The state of a partition's share of a pending write."""

    WRITTEN = "written"  # it is in the log, as an opening has noted
    WAITING = "waiting"  # the next opening for writing appends the rest, or the first one after the partition's repair
    LOST = "lost"  # the staged files are missing or damaged
    NONE = "no partition"  # the partition was deleted


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A pending write, and the states of its shares, in their order."""

    commit: PendingCommit
    shares: tuple[tuple[PendingPart, Share], ...]

    @property
    def is_stuck(self) -> bool:
        """True when it can no longer be finished."""
        return any(share is Share.LOST for _, share in self.shares)

    def __str__(self) -> str:
        batch = "" if self.commit.write.batch is None else f", micro-batch {self.commit.write.batch}"
        shares = (f"{part.tp} {part.records} messages {share.value}" for part, share in self.shares)
        return f"write {self.commit.write.id}{batch}: {'; '.join(shares)}"


def pending_writes(log_dir: LogDir, ledger: Ledger) -> list[PendingWrite]:
    """All pending writes, in the order in which they began."""
    return [
        PendingWrite(commit, tuple((part, _share(log_dir, part)) for part in commit.parts)) for commit in ledger.pending
    ]


def give_up(owned: Owner, write: PendingWrite) -> None:
    """Gives a write up. OSError: it may still be pending."""
    owned.commits.change(lambda ledger: ledger.withdrawn(write.commit.write))
    commit.discard(owned, (file for part in write.commit.parts for file in part.files))


def _share(log_dir: LogDir, part: PendingPart) -> Share:
    if not (log_dir.path / part.tp.dir_name).is_dir():
        return Share.NONE
    if part.is_written:
        return Share.WRITTEN
    return Share.WAITING if _is_whole(log_dir.path, part) else Share.LOST


def _is_whole(path: Path, part: PendingPart) -> bool:
    try:
        for file in part.files:
            for _ in staging.staged_spans(path, file):
                pass
    except (FileNotFoundError, CorruptBatch):
        return False
    except OSError:
        return True  # a disk that cannot be read now may work later
    return True
