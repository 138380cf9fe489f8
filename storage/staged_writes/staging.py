"""Staged files: one task's messages for one partition, in its directory, until the commit appends them.

A task of a write makes a staged file for each partition that it has messages for, next to the segments. Only the commit
is left to the one process that may write the log. The file is a segment's .log: an Appender writes it as it would write
the log, in the topic's format and codec, with offsets from 0; the commit only moves these offsets.

Brokers ignore the files. A write whose driver was killed may continue elsewhere, so files are removed only when it is
certain that no write needs them:

- staging a micro-batch removes what earlier attempts at it have staged (`commit.clear_earlier_attempts`)
- opening a partition for writing removes those of a micro-batch that its query has committed (another attempt at a
  task, a driver that died), and those untouched for a week
- `kafkafs recover` on the log directory removes all that belong to no pending write (`unowned`)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage.append.append_values import BytesAt
from storage.append.appender import Appender
from storage.append.batch_checks import scanned
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import CorruptBatch, SegmentGone, StorageError
from storage.files import names
from storage.files.commit_ledger import Ledger, StagedBatchFile, WriteId
from storage.files.disk import begin_writeback, opened, sync_file
from storage.files.disk_protocol import Disk, DiskFile
from storage.files.listing import paths_in, scan_quietly
from storage.files.log_file import LogFile
from storage.files.names import StagedName
from storage.format.block import RecordColumns
from storage.format.record_batch import NewBatch
from storage.log.batch_spans import BatchSpan, spans_between
from storage.log.isolation import Transactions
from storage.log.segment import Segment, check_crcs
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

KEPT_MS: Final = 7 * 24 * 3600 * 1000


class _StagedLog:
    """A staged file as a log that an Appender writes (LeaderLog)."""

    def __init__(self, disk: Disk, path: Path, config: LogConfig) -> None:
        # The offsets inside a compressed set of format v0 cannot be moved.
        self.config = config if config.message_magic else replace(config, compression_type="uncompressed")
        self.path = path
        self.is_created = False
        self.end_offset = self.size = 0
        self._disk = disk
        self._file: DiskFile | None = None
        self._begun = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the file for appending during the block. OSError."""
        with opened(self._disk, self.path, create=not self.is_created) as self._file:
            self.is_created = True
            yield

    def append(self, place: BytesAt) -> int:
        data = memoryview(place(self.end_offset, 0))
        return self._write(data, int(scanned(data, self.path).last_offset[-1]) + 1)

    def append_batch(self, batch: NewBatch, now_ms: int) -> int:
        batch.place(self.end_offset, 0)
        return self._write(batch.data, self.end_offset + batch.offsets)

    def _write(self, data: memoryview, end_offset: int) -> int:
        assert self._file is not None
        self.size = self._file.write_at(self.size, data)
        self._begun = begin_writeback(self._file, self._begun, self.size)
        base_offset, self.end_offset = self.end_offset, end_offset
        return base_offset


class StagedFileWriter:
    """Writes one staged file. Not thread-safe. Needs no lock on the log directory: no other process uses the file. The
    file is open during each `append` only, because a task may write to thousands of partitions."""

    def __init__(
        self,
        disk: Disk,
        log_dir: Path,
        tp: TopicPartition,
        write: WriteId,
        *,
        config: LogConfig,
        clock: Clock,
        attempt: str = "",
    ) -> None:
        """`attempt`: identifies the attempt at this write, see names.StagedName."""
        path = log_dir / tp.dir_name / str(StagedName.new(write.id, write.batch or 0, attempt))
        self._disk = disk
        self._tp = tp
        self._log = _StagedLog(disk, path, config)
        self._appender = Appender(self._log, clock=clock)

    def append(self, columns: RecordColumns) -> None:
        """Adds records, as many to a batch as Kafka's limits allow; a timestamp of -1 becomes now, and every timestamp
        where the topic has LogAppendTime.

        InvalidRecord or RecordTooLarge for the first record that the topic does not accept, OSError: the file is of no
        use then.
        """
        with self._log.opened():
            error = self._appender.append(columns).error
        if error is not None:
            raise error

    def finish(self) -> StagedBatchFile | None:
        """Makes the file durable; None when nothing was added. OSError."""
        log = self._log
        if not log.is_created:
            return None
        sync_file(self._disk, log.path)
        self._disk.sync_dir(log.path.parent)
        return StagedBatchFile(self._tp, log.path.name, log.size, log.end_offset)

    def discard(self) -> None:
        """Removes the file, if possible: the task failed."""
        with contextlib.suppress(OSError):  # also where nothing was added
            self._disk.unlink(self._log.path)


def staged_spans(log_dir: Path, file: StagedBatchFile, first_offset: int = 0) -> Iterator[BatchSpan]:
    """A staged file's batches from this offset on, their CRCs checked; the caller may change their bytes. CorruptBatch
    when the file does not hold what was written; FileNotFoundError, OSError."""
    path = path_of(log_dir, file)
    size, end_offset = file.size_bytes, first_offset
    segment = Segment(path.parent, 0, LogFile(path), size)
    snapshot = LogSnapshot(file.tp, (segment,), 0, file.records, size, size, 0, Transactions(path.parent))
    try:
        for span in spans_between(snapshot, first_offset):
            assert isinstance(span.data, memoryview)
            check_crcs(span.data, span.table, span.origin)
            yield span
            end_offset = int(span.table.last_offset[-1]) + 1
    except SegmentGone as error:
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise _spoilt(path, error) from error
    except StorageError as error:
        raise _spoilt(path, error) from error
    if end_offset != file.records:
        raise _spoilt(path)


def _spoilt(path: Path, error: StorageError | None = None) -> CorruptBatch:
    position = None if error is None else error.position
    return CorruptBatch("staged file does not hold the batches that were written", path=path, position=position)


def path_of(log_dir: Path, file: StagedBatchFile) -> Path:
    """The path of a staged file."""
    return log_dir / file.tp.dir_name / file.name


def of_write(log_dir: Path, write: WriteId) -> list[Path]:
    """All files staged for a write, by any attempt at its tasks. OSError."""
    return [
        path
        for path in _all_staged(log_dir)
        if (staged := names.parse_staged(path.name)) and (staged.write, staged.batch) == (write.id, write.batch or 0)
    ]


def of_earlier_attempts(log_dir: Path, write: WriteId, attempt: str) -> list[Path]:
    """All files that attempts other than this one have staged for the query, up to this batch of it. OSError."""
    mark = names.attempt_mark(attempt)
    return [
        path
        for path in _all_staged(log_dir)
        if (staged := names.parse_staged(path.name))
        and staged.write == write.id
        and staged.batch <= (write.batch or 0)
        and not staged.unique.startswith(mark)
    ]


def _all_staged(log_dir: Path) -> Iterator[Path]:
    with scan_quietly(log_dir) as entries:
        directories = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in directories:
        with contextlib.suppress(FileNotFoundError):  # a topic may be removed at any time
            yield from (path for path in paths_in(log_dir / name) if path.name.endswith(names.STAGED_SUFFIX))


def discard(disk: Disk, path: Path) -> None:
    """Removes a staged file that is no longer needed. OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)


def unowned(log_dir: Path, partitions: Iterable[TopicPartition], ledger: Ledger) -> list[Path]:
    """The staged files in these partitions that belong to no pending write, by name. OSError."""
    pending = ledger.staged_names()
    return [
        path
        for tp in partitions
        for path in paths_in(log_dir / tp.dir_name)
        if names.parse_staged(path.name) is not None and path.name not in pending
    ]


def remove_orphans(disk: Disk, directory: Path, ledger: Ledger, now_ms: int) -> list[str]:
    """Removes the staged files of a partition that will never be committed, if possible; returns their names."""
    removed = []
    pending = ledger.staged_names()
    for path in paths_in(directory):
        staged = names.parse_staged(path.name)
        if staged is None or path.name in pending:
            continue
        with contextlib.suppress(OSError):
            old = now_ms - path.lstat().st_mtime_ns // 1_000_000 > KEPT_MS
            if old or ledger.is_done(WriteId(staged.write, staged.batch)):
                disk.unlink(path)
                removed.append(path.name)
    return removed
