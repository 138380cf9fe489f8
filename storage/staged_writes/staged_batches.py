"""Prepares staged batches for their place in a log: offsets, leader epoch, append time, the topic's format.

In format v2 the checksum does not cover offset and epoch, so the bytes stay as they were staged; LogAppendTime
rewrites timestamp and checksum. Old formats are encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from storage.append import message_sets
from storage.append.append_values import WholeAppend
from storage.append.batch_checks import scanned
from storage.config import LogConfig
from storage.errors import CorruptBatch, RecordTooLarge
from storage.files.commit_ledger import StagedBatchFile
from storage.format.batches import TIMESTAMP_TYPE_MASK, BatchTable, Column
from storage.format.block import Record
from storage.format.decoder import Decoder
from storage.format.record_batch import set_base_offset_and_epoch, set_log_append_time
from storage.staged_writes import staging
from storage.types import TimestampType


class StagedBatches:
    """The staged files of one partition, in order, read once to check that they are whole.

    CorruptBatch when they are not, FileNotFoundError when one is missing, OSError.
    """

    def __init__(self, log_dir: Path, files: Sequence[StagedBatchFile], config: LogConfig, time_ms: int) -> None:
        self._log_dir = log_dir
        self._files = files
        self._config = config
        self._time_ms = time_ms
        self._table = BatchTable.concat(table.copy() for file in files for _, table in staging.windows(log_dir, file))
        self.records = int(self._table.count.sum())
        if not self._table.rows or self.records != sum(file.records for file in files):
            path = log_dir / files[0].tp.dir_name
            raise CorruptBatch("staged files do not hold the records that were written", path=path, found=self.records)

    def place(self, base_offset: int, leader_epoch: int) -> WholeAppend:
        """The batches as they must be appended at an offset."""
        if self._config.message_magic < 2:
            return self._in_old_format(base_offset)
        table = self._table.copy()
        counts = table.last_offset - table.base_offset + 1
        sizes = table.size
        table.data[Column.BASE_OFFSET, : table.rows] = base_offset + counts.cumsum() - counts
        table.data[Column.LAST_OFFSET, : table.rows] = table.base_offset + counts - 1
        table.data[Column.POSITION, : table.rows] = sizes.cumsum() - sizes
        table.data[Column.LEADER_EPOCH, : table.rows] = leader_epoch
        if self._config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            table.data[Column.MAX_TIMESTAMP, : table.rows] = self._time_ms
            table.data[Column.ATTRIBUTES, : table.rows] |= TIMESTAMP_TYPE_MASK
        return WholeAppend(table, self._placed(table.base_offset.tolist(), leader_epoch))

    def first(self, base_offset: int) -> tuple[int, int]:
        """Last offset and checksum of the first batch at an offset: they identify it later."""
        chunk = next(iter(self.place(base_offset, 0).chunks))
        table = scanned(chunk, self._log_dir)
        return int(table.last_offset[0]), int(table.crc[0])

    def _placed(self, base_offsets: list[int], leader_epoch: int) -> Iterator[memoryview]:
        append_time = self._config.timestamp_type is TimestampType.LOG_APPEND_TIME
        offsets = iter(base_offsets)
        for data, table in self._windows():
            for position in table.position.tolist():
                set_base_offset_and_epoch(data, position, next(offsets), leader_epoch)
                if append_time:
                    set_log_append_time(data, position, self._time_ms)
            yield data

    def _windows(self) -> Iterator[tuple[memoryview, BatchTable]]:
        for file in self._files:
            yield from staging.windows(self._log_dir, file)

    def _in_old_format(self, base_offset: int) -> WholeAppend:
        sets = b"".join(self._message_sets(base_offset))
        table = scanned(memoryview(sets), self._log_dir)
        # A compressed set shows only its last offset.
        table.data[Column.BASE_OFFSET, 1 : table.rows] = table.last_offset[:-1] + 1
        table.data[Column.BASE_OFFSET, 0] = base_offset
        return WholeAppend(table, (memoryview(sets),))

    def _message_sets(self, offset: int) -> Iterator[bytes]:
        decoder = Decoder()
        for data, table in self._windows():
            row = 0
            while row < table.rows:
                block = decoder.decode(data, table, row, origin=0)
                if block.damage is not None:
                    raise block.damage.error
                records = [Record(block.key(n), block.value(n), (), int(block.timestamp[n])) for n in range(len(block))]
                for encoded, count in self._encoded(records, offset):
                    yield encoded
                    offset += count
                row = block.next_row

    def _encoded(self, records: Sequence[Record], offset: int) -> Iterator[tuple[bytes, int]]:
        """The records as as few sets as the topic's limits allow; compressed bytes depend on the offsets."""
        try:
            yield message_sets.encode_message_sets(records, self._config, offset, self._time_ms), len(records)
        except RecordTooLarge:
            if len(records) == 1:
                raise
            half = len(records) // 2
            yield from self._encoded(records[:half], offset)
            yield from self._encoded(records[half:], offset + half)
