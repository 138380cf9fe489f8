"""Staged files: whole batches for one partition that wait in its directory to be appended in one step.

A task of a write makes one for each partition that it has messages for, next to the segments, so that only the commit
is left to the one process that may write the log. Their batches are of format v2, offsets from 0 in each, compressed
as the topic requires; for a topic with an old message.format.version they are converted when they get their offsets.

Brokers ignore the files. Since only the driver knows whether a write whose driver was killed continues elsewhere, files
are removed when that is certain:

- staging a micro-batch removes what earlier attempts at it have staged (`commit.clear_earlier_attempts`)
- opening a partition for writing removes those of a micro-batch that its query has committed (another attempt at a
  task, a driver that died), and those untouched for a week
- `kafkafs recover` on the log directory removes all that belong to no pending write (`unowned`)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from storage.append import message_sets
from storage.append.batch_encoder import BatchEncoder, taken_rows, with_timestamps
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import CorruptBatch, RecordTooLarge
from storage.files import names
from storage.files.commit_ledger import Ledger, StagedBatchFile, WriteId
from storage.files.disk import begin_writeback, opened, sync_file
from storage.files.disk_protocol import Disk
from storage.files.listing import paths_in, scan_quietly
from storage.files.log_file import LogFile
from storage.files.names import StagedName
from storage.format.batches import BatchTable, ScanStop, scan
from storage.format.block import RecordColumns
from storage.format.decoder import verify_crcs
from storage.format.record_batch import encode_batch
from storage.types import TopicPartition

KEPT_MS: Final = 7 * 24 * 3600 * 1000
WINDOW_BYTES: Final = 9 << 17  # batches have up to 1 MiB and 12 bytes by default; one that is cut off is read twice
WINDOW_ROWS: Final = 4096


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
        self._disk = disk
        self._tp = tp
        self._directory = log_dir / tp.dir_name
        self._path = self._directory / str(StagedName.new(write.id, write.batch or 0, attempt))
        self._config = config
        self._clock = clock
        self._encoder = BatchEncoder()
        self._is_created = False
        self._position = self._begun = 0
        self._records = 0

    def append(self, columns: RecordColumns) -> None:
        """Adds records, as many to a batch as Kafka's limits allow; a timestamp of -1 becomes now.

        InvalidRecord or RecordTooLarge for the first record that the topic does not accept, OSError.
        """
        now_ms = self._clock.now_ms()
        columns = with_timestamps(columns, self._config, now_ms)
        stop, refused = taken_rows(columns, self._config, now_ms)
        if refused is not None:
            raise refused
        with opened(self._disk, self._path, create=not self._is_created) as file:
            self._is_created = True
            row = 0
            while row < stop:
                if self._config.message_magic < 2:
                    next_row, data = _for_old_format(columns, row, stop, self._config, now_ms)
                else:
                    next_row, batch = self._encoder.encode(columns, row, stop, self._config, now_ms)
                    data = batch.data
                self._position = file.write_at(self._position, data)
                self._begun = begin_writeback(file, self._begun, self._position)
                self._records += next_row - row
                row = next_row

    def finish(self) -> StagedBatchFile | None:
        """Makes the file durable; None when nothing was added. OSError."""
        if not self._is_created:
            return None
        sync_file(self._disk, self._path)
        self._disk.sync_dir(self._directory)
        return StagedBatchFile(self._tp, self._path.name, self._position, self._records)

    def discard(self) -> None:
        """Removes the file, if possible: the task failed."""
        if self._is_created:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)


def _for_old_format(
    columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
) -> tuple[int, memoryview]:
    """BatchEncoder.encode for as many records as a message set may hold."""
    records = message_sets.records_of(columns, row, stop, config)
    while True:
        try:
            message_sets.encode_message_sets(records, config, 0, now_ms)
        except RecordTooLarge:
            if len(records) == 1:
                raise
            records = records[: len(records) // 2]
        else:
            return row + len(records), memoryview(encode_batch(records))


def windows(log_dir: Path, file: StagedBatchFile) -> Iterator[tuple[memoryview, BatchTable]]:
    """A staged file's batches, about a MiB at a time: their bytes, which the caller may change, and headers.

    Both are valid until the next are requested. Positions in the table count from the start of the bytes. CorruptBatch
    when the file does not hold what was written; OSError.
    """
    log = LogFile(path_of(log_dir, file))
    # One buffer for all: newly allocated memory costs more than processing the bytes.
    buffer, table = bytearray(min(WINDOW_BYTES, file.size_bytes)), BatchTable.empty(WINDOW_ROWS)
    position = 0
    while position < file.size_bytes:
        data = log.read(position, min(len(buffer), file.size_bytes - position), buffer)
        table.rows = 0
        outcome = scan(data, 0, table)
        damage = verify_crcs(data, table, 0, table.rows, 0) if table.rows else None
        if damage is not None or outcome.stop not in (ScanStop.END, ScanStop.FULL):
            raise _spoilt(log.path, position)
        if not table.rows:
            if len(data) < len(buffer) or position + len(data) == file.size_bytes:
                raise _spoilt(log.path, position)
            buffer = bytearray(2 * len(buffer))
            continue
        position += outcome.next_start
        yield data[: outcome.next_start], table


def _spoilt(path: Path, position: int) -> CorruptBatch:
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
