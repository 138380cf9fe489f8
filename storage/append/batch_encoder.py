"""Records made into batches (format v2) as a topic's configuration requires: which records, what size, which codec.

Used by everything that writes as a leader does. Source: Kafka's LogValidator.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage.config import LogConfig
from storage.errors import InvalidRecord, RecordTooLarge
from storage.format import encoder_kernel
from storage.format.batches import BATCH_HEADER_SIZE, MOST_BATCH_BYTES, TIMESTAMP_TYPE_MASK
from storage.format.block import RecordColumns
from storage.format.checksum import CRC32C_TABLES
from storage.format.compression import Codec
from storage.format.decoder import LEAST_RECORD, MOST_HEADERS, MOST_RECORDS
from storage.format.record_batch import PLAIN, BatchFields, Encoded, NewBatch, encode_into, set_crc
from storage.types import NO_TIMESTAMP, TimestampType

Bytes = bytes | bytearray | memoryview

_NEWLINE: Final = 10
_TABLES: Final = CRC32C_TABLES.data  # getting the buffer from numpy each time is slower

# The most bytes of a record per byte of input, reached by an empty line, which is one newline: length, attributes,
# timestamp, five for the offset, key, value, headers.
_MOST_BYTES_A_BYTE: Final = 12
# An uncompressed batch of at most this many bytes never has more records or headers than readers accept: a header takes
# at least two bytes.
ALWAYS_READ: Final = min(LEAST_RECORD * MOST_RECORDS, 2 * MOST_HEADERS)

CODECS: Final = {codec.config_name: codec for codec in Codec} | {"producer": Codec.NONE}


class BatchEncoder:
    """Makes batches. Not thread-safe: each writer has its own, and the buffer is reused."""

    def __init__(self) -> None:
        self._out = memoryview(bytearray())
        # The configuration, for lines.
        self._config: LogConfig | None = None
        self._plain_limit = 0  # the largest batch of plain lines; 0 where the topic needs more
        self._attributes = 0

    def encode(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, now_ms: int
    ) -> tuple[int, NewBatch]:
        """The row after a batch, and the batch: of rows from `row` on, at most up to `stop`.

        The batch is valid until the next call. RecordTooLarge if the first row alone, as stored, exceeds
        max.message.bytes or segment.bytes, or has more headers than readers accept.
        """
        codec = CODECS[config.compression_type]
        limit = size_limit(config)
        if limit > ALWAYS_READ or codec is not Codec.NONE:
            stop = _readable_rows(columns, row, stop)
        append_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        fields = BatchFields(log_append_time_ms=now_ms) if append_time else PLAIN
        if codec is not Codec.NONE:
            return self._compressed(columns, row, stop, config, codec, fields)
        # Enough for values that do not overlap in the buffer; values that share bytes may need more.
        guess = BATCH_HEADER_SIZE + (stop - row) * encoder_kernel.RECORD_OVERHEAD + memoryview(columns.buffer).nbytes
        out = self._buffer(min(guess, limit))
        encoded = encode_into(out, 0, columns, row, stop, fields=fields)
        if encoded.next_row < stop and guess < limit:
            out = self._buffer(min(BATCH_HEADER_SIZE + columns.max_size(row, stop), limit))
            encoded = encode_into(out, 0, columns, row, stop, fields=fields)
        if encoded.next_row == row:
            raise too_large(config, BATCH_HEADER_SIZE + columns.max_size(row, row + 1))
        return encoded.next_row, _new(out, row, encoded)

    def encode_lines(self, begun: Bytes, data: Bytes, config: LogConfig, now_ms: int) -> tuple[int, NewBatch] | None:
        """How many bytes of `data` the lines take that end in it, and the batch of these lines; `begun` is the
        beginning of the first line. Each line is a message's value. The batch has the bytes that `encode` would
        produce, and is valid until the next call.

        None if the lines need more than that: no line ends, the lines do not fit into one batch, the topic compresses,
        needs keys, or has an old format.
        """
        if config is not self._config:
            self._config = config
            self._plain_limit = min(size_limit(config), ALWAYS_READ) if _takes_plain_lines(config) else 0
            append_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
            self._attributes = TIMESTAMP_TYPE_MASK if append_time else 0
        room = BATCH_HEADER_SIZE + len(begun) + _MOST_BYTES_A_BYTE * len(data)
        out = self._buffer(min(room, self._plain_limit))
        lines, end, taken = encoder_kernel.encode_lines(begun, data, _NEWLINE, now_ms, self._attributes, out, _TABLES)
        if not lines:
            return None
        if not encoder_kernel.SEALS:
            set_crc(out, 0, end)
        return taken, NewBatch(out[:end], lines, now_ms)

    def _compressed(
        self, columns: RecordColumns, row: int, stop: int, config: LogConfig, codec: Codec, fields: BatchFields
    ) -> tuple[int, NewBatch]:
        """A batch of no more rows than fit uncompressed, or of a single record that only fits compressed."""
        limit = size_limit(config)
        last = stop
        while True:
            size = columns.max_size(row, last)
            while size > limit and last > row + 1:
                last = row + max(1, (last - row) * limit // size)
                size = columns.max_size(row, last)
            # Compressing may enlarge the data: snappy by a sixth at worst.
            out = self._buffer(BATCH_HEADER_SIZE + size + (size >> 2) + 1024)
            encoded = encode_into(
                out, 0, columns, row, last, codec=codec, level=codec_level(codec, config), fields=fields
            )
            if encoded.end <= limit:
                return encoded.next_row, _new(out, row, encoded)
            if last == row + 1:
                raise too_large(config, encoded.end)
            last = row + (last - row) // 2

    def _buffer(self, size: int) -> memoryview:
        """A buffer of exactly this size."""
        if len(self._out) < size:
            self._out = memoryview(bytearray(size))
        return self._out[:size]


def _readable_rows(columns: RecordColumns, row: int, stop: int) -> int:
    """The end, at most `stop`, of the rows that readers accept in one batch (`format/decoder.py`)."""
    headers = columns.headers_count[row : min(stop, row + MOST_RECORDS)]
    if int(headers.sum()) <= MOST_HEADERS:
        return row + len(headers)
    rows = int(np.cumsum(headers).searchsorted(MOST_HEADERS, side="right"))
    if not rows:
        raise RecordTooLarge("headers of a message", expected=f"at most {MOST_HEADERS}", found=int(headers[0]))
    return row + rows


def _new(out: memoryview, row: int, encoded: Encoded) -> NewBatch:
    return NewBatch(out[: encoded.end], encoded.next_row - row, encoded.max_timestamp)


def _takes_plain_lines(config: LogConfig) -> bool:
    """Whether lines can be stored unchanged: no key is needed, nothing is compressed."""
    return config.message_magic == 2 and CODECS[config.compression_type] is Codec.NONE and not config.compact


def size_limit(config: LogConfig) -> int:
    """The largest batch that may be stored, including the 12 bytes of offset and length."""
    return min(config.max_message_bytes, config.segment_bytes, MOST_BATCH_BYTES)


def too_large(config: LogConfig, size: int) -> RecordTooLarge:
    """The error for a batch of one message that exceeds the limit."""
    key = "max.message.bytes" if config.max_message_bytes <= config.segment_bytes else "segment.bytes"
    limit = f"{key} = {size_limit(config)}" if size_limit(config) < MOST_BATCH_BYTES else f"{MOST_BATCH_BYTES} bytes"
    return RecordTooLarge("message", expected=f"at most {limit} as stored", found=size)


def codec_level(codec: Codec, config: LogConfig) -> int | None:
    """The configured level of a codec; None for a codec without levels."""
    if codec is Codec.GZIP:
        return config.compression_gzip_level
    if codec is Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec is Codec.ZSTD else None


def with_timestamps(columns: RecordColumns, config: LogConfig, now_ms: int) -> RecordColumns:
    """The columns with now in place of a timestamp of -1, or of every timestamp under LogAppendTime."""
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return columns.with_timestamps(now_ms)
    missing = columns.timestamp == NO_TIMESTAMP
    return columns.with_timestamps(np.where(missing, now_ms, columns.timestamp)) if missing.any() else columns


def taken_rows(columns: RecordColumns, config: LogConfig, now_ms: int) -> tuple[int, InvalidRecord | None]:
    """How many of the records the topic accepts, and the fault of the next record."""
    rows = len(columns)
    stop, error = rows, None
    if config.compact:
        stop, error = _before(columns.key_length < 0, stop, error, "a compacted topic accepts no message without a key")
    stamps = columns.timestamp
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if rows and config.message_magic == 2:  # the extremes usually suffice
        least, greatest = int(stamps.min()), int(stamps.max())
        if least >= 0 and now_ms - least <= before and greatest - now_ms <= after:
            return stop, error
    early = (stamps < 0) | (now_ms - np.maximum(stamps, 0) > before)
    stop, error = _before(early, stop, error, f"timestamp is too far in the past (before.max is {before} ms)")
    late = np.maximum(stamps, 0) - now_ms > after
    stop, error = _before(late, stop, error, f"timestamp is too far in the future (after.max is {after} ms)")
    if config.message_magic < 2:
        named = f"message.format.version {config.message_format_version} has no headers"
        stop, error = _before(columns.headers_count > 0, stop, error, named)
    return stop, error


def _before(
    wrong: npt.NDArray[np.bool_], stop: int, error: InvalidRecord | None, what: str
) -> tuple[int, InvalidRecord | None]:
    """The smaller of `stop` and the first wrong row, with its error."""
    at = int(wrong.argmax()) if len(wrong) else 0
    if at < stop and wrong[at]:
        return at, InvalidRecord(what)
    return stop, error
