"""Commits writes: appends staged batches to their partitions, as a leader, and eventually all of them once.

1. every staged file is read: whole, as written                  → nothing has begun
2. the write is entered into `kafkafs-commits` as pending, with the offset that each partition's first message will
   have, durably                                                 → it will be carried out: 3 to 5, by the next process
                                                                   that opens the log directory for writing
3. partition by partition the staged batches are appended, their offsets moved and nothing else changed, and flushed
                                                                 → what the partition has of them is counted from that
                                                                   offset on, and the others are appended
4. the file is replaced once: the write is no longer pending, and done if it is a query's micro-batch
                                                                 → a replay of it is dropped
5. the staged files are removed                                  → staging.remove_orphans

How a partition's share is counted and appended: storage.staged_writes.shares.

Appended batches must not change until the file says that the share is written or the write is over. Retention and
compaction, which remove or rewrite batches, leave everything from `kept_from` on alone. When a write cannot be finished
now, its finished shares are noted in the file and no longer restrict anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from storage.append.partition_log import PartitionLog
from storage.clock import Clock
from storage.errors import LogLocked, StorageError, error_text
from storage.files import commit_ledger
from storage.files.commit_ledger import ContentSum, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.files.dir_lock import DirLock
from storage.files.disk_protocol import Disk
from storage.staged_writes import shares, staging
from storage.staged_writes.ledger import CommitLedger
from storage.types import TopicPartition


class Owner(Protocol):
    """The log directory that is written to and that this process owns (OwnedDir)."""

    path: Path
    disk: Disk
    clock: Clock
    commits: CommitLedger
    unfinished: Mapping[TopicPartition, Exception]

    def log(self, tp: TopicPartition) -> PartitionLog:
        """A partition's log. PartitionOffline, UnknownTopicOrPartition."""

    def appendable(self, tp: TopicPartition, *, force: bool = False) -> PartitionLog:
        """The log of a partition, for appending. NotPermitted by the rules of guest_rules.check_append."""


class Committed(NamedTuple):
    """The result of a write: False for a replay that was dropped, and how many messages each partition got."""

    appended: bool
    records: dict[TopicPartition, int]


class CommitUnfinished(StorageError):
    """A write has begun and cannot be finished now. The next opening of the log directory for writing finishes it, so
    it must not be repeated under another id."""


class ReplayDiffers(StorageError):
    """A micro-batch that is done was submitted again with other content: its rows are not in the log."""


def commit(
    owned: Owner,
    write: WriteId,
    files: Iterable[StagedBatchFile],
    *,
    content: ContentSum | None = None,
    force: bool = False,
) -> Committed:
    """Commits a write: the staged files of each partition in the order given. A micro-batch that its query committed
    before is dropped. `content`: what the write consists of, remembered to recognise a replay; None: not compared.
    `force`: see guest_rules.check_append.

    ReplayDiffers when it was committed before with another content. CommitUnfinished when it has begun and is not
    finished. Any other error (FileNotFoundError or CorruptBatch of a staged file, PartitionOffline, NotPermitted,
    OSError): nothing was written, the staged files are unchanged.
    """
    if owned.commits.problem is not None:
        raise owned.commits.problem
    by_partition: dict[TopicPartition, list[StagedBatchFile]] = {}
    for file in files:
        by_partition.setdefault(file.tp, []).append(file)
    if owned.commits.state.is_done(write):
        if content is not None:
            _check_replay(owned, write, content)
        discard(owned, (file for group in by_partition.values() for file in group))
        return Committed(False, {})
    _refuse_behind_unfinished(owned, write)
    logs = {tp: owned.appendable(tp, force=force) for tp in sorted(by_partition)}
    for file in (file for group in by_partition.values() for file in group):
        for _ in staging.staged_spans(owned.path, file):
            pass
    parts = tuple(PendingPart(tp, log.log_end_offset, 0, tuple(by_partition[tp])) for tp, log in logs.items())
    if parts:
        _append(owned, PendingCommit(write, parts, content), logs)
    try:
        _end(owned, write, (file for part in parts for file in part.files))
    except OSError as error:
        raise _unfinished(owned, write, error) from error
    return Committed(True, {part.tp: part.records for part in parts})


def _append(owned: Owner, begun: PendingCommit, logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Steps 2 and 3. A failure before anything is in a log is undone."""
    written: list[TopicPartition] = []
    try:
        owned.commits.change(lambda ledger: ledger.begun(begun))
    except OSError as error:
        if _is_pending(owned, begun.write) and not _withdrawn(owned, begun.write):
            raise _unfinished(owned, begun.write, error) from error
        raise
    try:
        for part in begun.parts:
            _append_share(owned, begun.write, part, logs[part.tp])
            written.append(part.tp)
    except (StorageError, OSError) as error:
        # A log that failed may have a part of its share.
        untouched = all(logs[part.tp].log_end_offset == part.base_offset for part in begun.parts)
        if untouched and all(log.failure is None for log in logs.values()) and _withdrawn(owned, begun.write):
            raise
        _note_written(owned, begun.write, written)
        raise _unfinished(owned, begun.write, error) from error


def _is_pending(owned: Owner, write: WriteId) -> bool:
    return any(pending.write == write for pending in owned.commits.state.pending)


def _withdrawn(owned: Owner, write: WriteId) -> bool:
    """Withdraws a write that has begun; False if it remains begun."""
    with contextlib.suppress(OSError):
        owned.commits.change(lambda ledger: ledger.withdrawn(write))
    return not _is_pending(owned, write)


def _check_replay(owned: Owner, write: WriteId, content: ContentSum) -> None:
    known = owned.commits.state.content_of(write)
    last = owned.commits.state.queries[write.id]
    if known == content or (known is None and write.batch == last.batch and not last.contents):
        return  # or it was committed by a version that did not store contents
    rows = "rows that are no longer known" if known is None else f"{known.records} rows"
    raise ReplayDiffers(
        f"batch {write.batch} of write {write.id} was committed before, with other rows: these are not written",
        path=owned.path,
        expected=rows,
        found=f"{content.records} rows" + (", other ones" if known and known.records == content.records else ""),
        advice="A checkpoint that was put back to an earlier state plans other batches: begin with a new one, from the "
        "offsets that follow what is here. A query whose rows differ each time it runs cannot be replayed",
    )


def _append_share(owned: Owner, write: WriteId, part: PendingPart, log: PartitionLog) -> None:
    """Appends what a partition does not have of its share, and flushes it."""

    def note(moved: PendingPart) -> None:
        owned.commits.change(lambda ledger: ledger.with_part(write, moved))

    shares.append(owned.path, part, log, note)


def _note_written(owned: Owner, write: WriteId, partitions: Collection[TopicPartition]) -> None:
    """Notes that these partitions have their shares, flushed. If that fails, their batches still show it."""
    with contextlib.suppress(OSError):
        owned.commits.change(lambda ledger: ledger.written(write, partitions))


def _unfinished(owned: Owner, write: WriteId, error: Exception) -> CommitUnfinished:
    return CommitUnfinished(
        f"write {write.id} has begun but is not finished",
        path=owned.path,
        found=error_text(error),
        advice="It will be finished when the log directory is next opened for writing: do not repeat it",
    )


def finish_pending(owned: Owner) -> dict[TopicPartition, Exception]:
    """Carries out what an earlier process began, before anything else is appended here.

    A partition that no longer exists is skipped. What cannot be carried out now (the partition is offline, the disk
    full, a staged file missing) stays pending. Returns those partitions, and why.
    """
    unfinished: dict[TopicPartition, Exception] = {}
    for pending in owned.commits.state.pending:
        errors = {part.tp: error for part in pending.parts if (error := _roll_forward(owned, pending, part))}
        unfinished |= errors
        if errors:
            local_partitions = [part.tp for part in pending.parts if (owned.path / part.tp.dir_name).is_dir()]
            _note_written(owned, pending.write, [tp for tp in local_partitions if tp not in errors])
        else:
            with contextlib.suppress(OSError):
                _end(owned, pending.write, (file for part in pending.parts for file in part.files))
    return unfinished


def abort(disk: Disk, log_dir: Path, write: WriteId, files: Iterable[StagedBatchFile] = ()) -> None:
    """Removes what was staged for a write that will not be committed, except files of a pending write.

    `files`: those that its tasks reported. There may be others of tasks that ended without reporting (Spark kills its
    workers); a task that is still running may create one after this, an orphan. A single write's id is unique, so all
    of its files are removed. A micro-batch may have been taken over by a restarted query: its other files are removed
    only while no process holds the log directory, otherwise with its next commit. CorruptCheckpoint, OSError: the files
    that are left are orphans.
    """
    if write.batch is None:
        _discard_unwanted(disk, log_dir, staging.of_write(log_dir, write))
        return
    with _locked_if_free(disk, log_dir) as locked:
        own = [staging.path_of(log_dir, file) for file in files]
        _discard_unwanted(disk, log_dir, staging.of_write(log_dir, write) if locked else own)


def clear_earlier_attempts(disk: Disk, log_dir: Path, write: WriteId, attempt: str) -> bool:
    """Removes what earlier attempts at a query's batches, this one included, have staged: it will never be committed.
    Files of a pending write stay. False when the log directory is held, so that nothing was removed: a commit may be
    about to begin. CorruptCheckpoint, OSError.

    A driver that is wrongly thought dead loses what it has staged: its commit then fails, and nothing is written.
    """
    if not staging.of_earlier_attempts(log_dir, write, attempt):
        return True
    with _locked_if_free(disk, log_dir) as locked:
        if locked:
            _discard_unwanted(disk, log_dir, staging.of_earlier_attempts(log_dir, write, attempt))
        return locked


@contextlib.contextmanager
def _locked_if_free(disk: Disk, log_dir: Path) -> Iterator[bool]:
    """Holds the log directory during the block, unless another process holds it; yields whether this process does."""
    try:
        lock = DirLock(disk, log_dir)
    except LogLocked:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _discard_unwanted(disk: Disk, log_dir: Path, staged: Iterable[Path]) -> None:
    pending = commit_ledger.read(log_dir).staged_names()
    for path in staged:
        if path.name not in pending:
            staging.discard(disk, path)


def _refuse_behind_unfinished(owned: Owner, write: WriteId) -> None:
    """A query's batches come in order: nothing is committed after one that could not be carried out."""
    for pending in owned.commits.state.pending:
        if pending.write.id == write.id:
            raise CommitUnfinished(
                f"write {pending.write.id}, batch {pending.write.batch} was begun and cannot be carried out yet",
                path=owned.path,
                found="; ".join(f"{tp}: {error_text(error)}" for tp, error in owned.unfinished.items()),
                advice="`kafkafs recover` finishes it, or says why it cannot",
            )


def _roll_forward(owned: Owner, pending: PendingCommit, part: PendingPart) -> Exception | None:
    """Gives a partition its share; returns why it still does not have it."""
    if part.is_written or not (owned.path / part.tp.dir_name).is_dir():
        return None
    try:
        _append_share(owned, pending.write, part, owned.log(part.tp))
    except (StorageError, OSError) as error:
        return error
    return None


def _end(owned: Owner, write: WriteId, files: Iterable[StagedBatchFile]) -> None:
    """Steps 4 and 5."""
    owned.commits.change(lambda ledger: ledger.done(write, owned.clock.now_ms()))
    discard(owned, files)


def discard(owned: Owner, files: Iterable[StagedBatchFile]) -> None:
    """Removes staged files that no write needs any longer. Files that cannot be removed now are orphans."""
    for file in files:
        with contextlib.suppress(OSError):
            staging.discard(owned.disk, staging.path_of(owned.path, file))
