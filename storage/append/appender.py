"""Records made into batches and appended to a log as a leader does: the log determines offsets, timestamps and codec.

A batch is encoded and compressed before the log's lock is taken; under the lock only the offset and the leader epoch
are filled in, which are not covered by the checksum. Sources: Kafka's LogValidator, UnifiedLog.append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from storage.append import message_sets
from storage.append.append_values import BytesAt
from storage.append.batch_encoder import BatchEncoder, Bytes, taken_rows, with_timestamps
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import InvalidRecord, RecordTooLarge, StorageError
from storage.format.block import Record, RecordColumns
from storage.format.record_batch import NewBatch


class LeaderLog(Protocol):
    """The log that an Appender appends to: a PartitionLog, or a staged file."""

    @property
    def config(self) -> LogConfig:
        """The topic's configuration."""

    def append(self, place: BytesAt) -> int:
        """Append as PartitionLog.append does."""

    def append_batch(self, batch: NewBatch, now_ms: int) -> int:
        """Append a batch as PartitionLog.append_batch does."""


class Appended(NamedTuple):
    """The result of appending records: the first `taken` are in the log, at `base_offset` to `last_offset` (-1: none),
    with other writers' messages between them if they took several batches. `error`: why the next one was not appended;
    None when all were."""

    taken: int
    base_offset: int
    last_offset: int
    error: Exception | None


# The result of appending lines: how many are in the log, and how many bytes of the data they take.
AppendedLines = tuple[int, int]


class Appender:
    """Appends for one writer. Not thread-safe: each writer has its own, and buffers are reused."""

    def __init__(self, log: LeaderLog, *, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self._encoder = BatchEncoder()

    def append(self, records: RecordColumns | Sequence[Record]) -> Appended:
        """Appends records in order, as one batch where Kafka's limits allow it; `records` may be changed afterwards.

        A timestamp of -1 becomes now. Appending stops at the first record that the topic does not accept: InvalidRecord
        (a null key in a compacted topic, a timestamp out of bounds, headers in an old format), RecordTooLarge (above
        max.message.bytes as stored, compressed). It also stops at PartitionOffline or an OSError: then nothing of the
        current batch is in the log. None of these is raised: the error is in the result.
        """
        columns = records if isinstance(records, RecordColumns) else RecordColumns.from_records(records)
        config = self.log.config
        now_ms = self._clock.now_ms()
        columns = with_timestamps(columns, config, now_ms)
        stop, refused = taken_rows(columns, config, now_ms)
        row, base_offset, last_offset = 0, -1, -1
        error: Exception | None = refused
        while row < stop:
            try:
                next_row, base = self._append_one(columns, row, stop, config, now_ms)
            except (StorageError, OSError) as failure:
                error = failure
                break
            base_offset = base if base_offset < 0 else base_offset
            row, last_offset = next_row, base + next_row - row - 1
        return Appended(row, base_offset, last_offset, error)

    def append_lines(self, begun: Bytes, data: Bytes) -> AppendedLines | None:
        """Appends all lines that end in `data` as one batch; `begun` is the beginning of the first line.

        The log is the same as after `append` of the lines as values. None if a line needs more than that: nothing was
        appended, and the caller uses `append`. PartitionOffline, OSError: none of the lines is in the log.
        """
        now_ms = self._clock.now_ms()
        encoded = self._encoder.encode_lines(begun, data, self.log.config, now_ms)
        if encoded is None:
            return None
        taken, batch = encoded
        try:
            self.log.append_batch(batch, now_ms)
        except RecordTooLarge:
            return None  # the configuration has just changed
        return batch.offsets, taken

    def acceptable(self, columns: RecordColumns) -> tuple[int, InvalidRecord | None]:
        """How many of the records the topic accepts, regardless of their sizes, and the fault of the next record."""
        config, now_ms = self.log.config, self._clock.now_ms()
        return taken_rows(with_timestamps(columns, config, now_ms), config, now_ms)

    def _append_one(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
    ) -> tuple[int, int]:
        """Appends one batch of rows from `row` on; returns the row after it, and its base offset."""
        if config.message_magic < 2:
            return _append_old(self.log, columns, row, stop, config, now_ms)
        next_row, batch = self._encoder.encode(columns, row, stop, config, now_ms)
        return next_row, self.log.append_batch(batch, now_ms)


def _append_old(
    log: LeaderLog, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
) -> tuple[int, int]:
    """`_append_one` for a message set, which is encoded under the log's lock: inner offsets are compressed with it."""
    records = message_sets.records_of(columns, row, stop, config)
    while True:

        def place(base_offset: int, _epoch: int, chosen: Sequence[Record] = records) -> bytes:
            return message_sets.encode_message_sets(chosen, config, base_offset, now_ms)

        try:
            return row + len(records), log.append(place)
        except RecordTooLarge:
            if len(records) == 1:
                raise
            records = records[: len(records) // 2]
