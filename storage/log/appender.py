"""Records made into batches and appended to a log as a leader does: offsets, timestamps, codec, format are the log's.

A batch is encoded and compressed before the log's lock is taken; under it only the offset and the leader epoch are put
in, which lie outside the checksum. Sources: Kafka's LogValidator, UnifiedLog.append (kafka-facts 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import InvalidRecord, RecordTooLarge, StorageError
from storage.format import message_set
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.compression import Codec
from storage.format.encoder_kernel import RECORD_OVERHEAD
from storage.format.record_batch import PLAIN, BatchFields, encode_into, set_base_offset_and_epoch
from storage.format.record_columns import Record, RecordColumns
from storage.log.loaded_log import AppendResult
from storage.log.partition_log import PartitionLog
from storage.types import NO_TIMESTAMP, TimestampType

_CODECS: Final = {codec.config_name: codec for codec in Codec} | {"producer": Codec.NONE}


class Appended(NamedTuple):
    """What became of records to append: the first `taken` are in the log, at `base_offset` to `last_offset` (-1: none),
    with others' messages between them if they took several batches. `error`: why the next one is not; None for all."""

    taken: int
    base_offset: int
    last_offset: int
    error: Exception | None


class Appender:
    """One writer's way into a log. Not thread-safe: each writer has its own, and buffers are used again."""

    def __init__(self, log: PartitionLog, *, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self._out = bytearray()

    def append(self, records: RecordColumns | Sequence[Record]) -> Appended:
        """Appends records in order, as one batch where Kafka's limits allow it; `records` may be changed afterwards.

        A timestamp of -1 becomes now. The first record that the topic does not take ends it: InvalidRecord (a null key
        in a compacted topic, a timestamp out of bounds, headers in an old format), RecordTooLarge (above
        max.message.bytes as stored, compressed). So does PartitionOffline or an OSError: then nothing of the batch
        at hand is in the log. None of these is raised: it is in the result.
        """
        columns = records if isinstance(records, RecordColumns) else RecordColumns.from_records(records)
        config = self.log.config
        now_ms = self._clock.now_ms()
        columns = _with_timestamps(columns, config, now_ms)
        stop, refused = _taken_rows(columns, config, now_ms)
        row, base_offset, last_offset = 0, -1, -1
        error: Exception | None = refused
        while row < stop:
            try:
                row, result = self._append_one(columns, row, stop, config, now_ms)
            except (StorageError, OSError) as failure:
                error = failure
                break
            base_offset = result.base_offset if base_offset < 0 else base_offset
            last_offset = result.last_offset
        return Appended(row, base_offset, last_offset, error)

    def acceptable(self, columns: RecordColumns) -> tuple[int, InvalidRecord | None]:
        """How many of the records the topic takes, their sizes aside, and what is wrong with the next one."""
        config, now_ms = self.log.config, self._clock.now_ms()
        return _taken_rows(_with_timestamps(columns, config, now_ms), config, now_ms)

    def _append_one(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
    ) -> tuple[int, AppendResult]:
        """Appends one batch of rows from `row` on; the row behind it."""
        if config.message_magic < 2:
            return _append_old(self.log, columns, row, stop, config, now_ms)
        next_row, batch = self._encoded(columns, row, stop, config, now_ms)

        def place(base_offset: int, leader_epoch: int) -> memoryview:
            set_base_offset_and_epoch(batch, 0, base_offset, leader_epoch)
            return batch

        return next_row, self.log.append(place)

    def _encoded(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
    ) -> tuple[int, memoryview]:
        codec = _CODECS[config.compression_type]
        limit = _limit(config)
        append_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        fields = BatchFields(log_append_time_ms=now_ms) if append_time else PLAIN
        if codec is not Codec.NONE:
            return self._compressed(columns, row, stop, config, codec, fields)
        # Room for values that lie side by side in the buffer; those that share bytes may need more.
        guess = BATCH_HEADER_SIZE + (stop - row) * RECORD_OVERHEAD + memoryview(columns.buffer).nbytes
        out = self._buffer(min(guess, limit))
        next_row, end = encode_into(out, 0, columns, row, stop, fields=fields)
        if next_row < stop and guess < limit:
            out = self._buffer(min(BATCH_HEADER_SIZE + columns.max_size(row, stop), limit))
            next_row, end = encode_into(out, 0, columns, row, stop, fields=fields)
        if next_row == row:
            raise _too_large(config, BATCH_HEADER_SIZE + columns.max_size(row, row + 1))
        return next_row, out[:end]

    def _compressed(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, codec: Codec, fields: BatchFields
    ) -> tuple[int, memoryview]:
        """A batch of no more rows than fit uncompressed: one may hold a single record that only fits compressed."""
        limit = _limit(config)
        last = stop
        while True:
            size = columns.max_size(row, last)
            while size > limit and last > row + 1:
                last = row + max(1, (last - row) * limit // size)
                size = columns.max_size(row, last)
            # Compressing may enlarge: snappy by a sixth at worst.
            out = self._buffer(BATCH_HEADER_SIZE + size + (size >> 2) + 1024)
            next_row, end = encode_into(
                out, 0, columns, row, last, codec=codec, level=_level(codec, config), fields=fields
            )
            if end <= limit:
                return next_row, out[:end]
            if last == row + 1:
                raise _too_large(config, end)
            last = row + (last - row) // 2

    def _buffer(self, size: int) -> memoryview:
        if len(self._out) < size:
            self._out = bytearray(size)
        return memoryview(self._out)[:size]


def _limit(config: LogConfig) -> int:
    """No stored batch is larger, the 12 bytes of offset and length included."""
    return min(config.max_message_bytes, config.segment_bytes)


def _too_large(config: LogConfig, size: int) -> RecordTooLarge:
    key = "max.message.bytes" if config.max_message_bytes <= config.segment_bytes else "segment.bytes"
    return RecordTooLarge("message", expected=f"at most {key} = {_limit(config)} as stored", found=size)


def _level(codec: Codec, config: LogConfig) -> int | None:
    if codec is Codec.GZIP:
        return config.compression_gzip_level
    if codec is Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec is Codec.ZSTD else None


def _with_timestamps(columns: RecordColumns, config: LogConfig, now_ms: int) -> RecordColumns:
    """With now in place of -1, or of every timestamp where the log's clock counts."""
    stamps: npt.NDArray[np.int64] = columns.timestamp
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        stamps = np.full(1, now_ms, np.int64)
    else:
        if len(stamps) == 1:
            return columns if stamps[0] != NO_TIMESTAMP else _at(columns, np.full(1, now_ms, np.int64))
        missing = stamps == NO_TIMESTAMP
        if not missing.any():
            return columns
        stamps = np.where(missing, now_ms, stamps)
    return _at(columns, stamps)


def _at(columns: RecordColumns, stamps: npt.NDArray[np.int64]) -> RecordColumns:
    """With other timestamps; dataclasses.replace takes as long as encoding a kilobyte."""
    return RecordColumns(
        columns.buffer,
        columns.value_start,
        columns.value_length,
        stamps,
        columns.key_start,
        columns.key_length,
        columns.headers_start,
        columns.headers_length,
        columns.headers_count,
        columns.offset_delta,
    )


def _taken_rows(columns: RecordColumns, config: LogConfig, now_ms: int) -> tuple[int, InvalidRecord | None]:
    """How many of the records the topic takes, and what is wrong with the next one."""
    rows = len(columns)
    stop, error = rows, None
    if config.compact:
        stop, error = _before(columns.key_length < 0, stop, error, "a compacted topic takes no message without a key")
    stamps = columns.timestamp
    if len(stamps) == 1 and stamps[0] == now_ms and config.message_magic == 2:
        return stop, error
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    early = (stamps < 0) | (now_ms - np.maximum(stamps, 0) > before)
    stop, error = _before(early, stop, error, f"timestamp lies too far in the past (before.max is {before} ms)")
    late = np.maximum(stamps, 0) - now_ms > after
    stop, error = _before(late, stop, error, f"timestamp lies too far in the future (after.max is {after} ms)")
    if config.message_magic < 2:
        named = f"message.format.version {config.message_format_version} has no headers"
        stop, error = _before(columns.headers_count > 0, stop, error, named)
    return stop, error


def _before(
    wrong: npt.NDArray[np.bool_], stop: int, error: InvalidRecord | None, what: str
) -> tuple[int, InvalidRecord | None]:
    """The lesser of `stop` and the first wrong row, with its error. A column of one element is every row's."""
    at = int(wrong.argmax()) if len(wrong) else 0
    if at < min(stop, len(wrong)) and wrong[at]:
        return at, InvalidRecord(what)
    return stop, error


# Formats before v2. Their inner offsets are within the compressed bytes, so they are encoded under the log's lock.


def _append_old(
    log: PartitionLog, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
) -> tuple[int, AppendResult]:
    codec = _CODECS[config.compression_type]
    limit = _limit(config)
    magic = config.message_magic
    append_time = now_ms if magic and config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    records = _records(columns, row, stop, limit)
    while True:

        def place(base_offset: int, _epoch: int, chosen: Sequence[Record] = records) -> bytes:
            data = message_set.encode(
                chosen,
                magic,
                base_offset=base_offset,
                codec=codec,
                level=_level(codec, config),
                log_append_time_ms=append_time,
            )
            if len(data) > limit:
                raise _too_large(config, len(data))
            return data

        try:
            return row + len(records), log.append(place)
        except RecordTooLarge:
            if len(records) == 1:
                raise
            records = records[: len(records) // 2]


def _records(columns: RecordColumns, first: int, last: int, limit: int) -> list[Record]:
    """Rows from `first` on, at least one, with keys and values of no more than `limit` bytes together."""
    data = memoryview(columns.buffer).cast("B")
    found: list[Record] = []
    size = 0
    for row in range(first, last):
        key = _field(data, columns.key_start, columns.key_length, row)
        value = _field(data, columns.value_start, columns.value_length, row)
        size += len(key or b"") + len(value or b"")
        if found and size > limit:
            break
        found.append(Record(key, value, (), int(columns.timestamp[row if len(columns.timestamp) > 1 else 0])))
    return found


def _field(data: memoryview, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], row: int) -> bytes | None:
    length = int(lengths[row if len(lengths) > 1 else 0])
    start = int(starts[row if len(starts) > 1 else 0])
    return None if length < 0 else bytes(data[start : start + length])
