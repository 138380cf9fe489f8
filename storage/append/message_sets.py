"""Encoding of formats v0 and v1: plain messages and wrapper messages.

Kafka 4 reads these formats and no longer writes them. Used for topics with an old message.format.version and by
tests, not on the hot path. See storage/FORMAT.md, "Message sets". Source: `LegacyRecord`,
`AbstractLegacyRecordBatch`, `MemoryRecordsBuilder.appendLegacyRecord`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from storage.append.batch_encoder import CODECS, codec_level, size_limit, too_large
from storage.config import LogConfig
from storage.errors import InvalidRecord, RecordTooLarge, UnsupportedFormat
from storage.format.batches import LOG_OVERHEAD, TIMESTAMP_TYPE_MASK
from storage.format.block import Record, RecordColumns
from storage.format.checksum import crc32
from storage.format.compression import Codec, compress
from storage.format.decoder import MOST_RECORDS
from storage.types import NO_TIMESTAMP, TimestampType

_OVERHEAD = struct.Struct(
    ">"
    "q"  # offset
    "i"  # size: bytes after this field
)
_CRC = struct.Struct(">I")  # CRC-32 of all that follows it
_MAGIC_ATTRIBUTES = struct.Struct(">bb")
_TIMESTAMP = struct.Struct(">q")  # v1 only
_LENGTH = struct.Struct(">i")  # -1 null
_NULL = _LENGTH.pack(-1)
MOST_MESSAGE_BYTES = 2**31 - 1  # of a message after offset and size


def encode(
    records: Sequence[Record],
    magic: int,
    *,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
) -> bytes:
    """A message set of `records` (at least one): messages one after another, or one wrapper message with a codec.

    `offsets` are absolute, ascending; None counts from `base_offset`. A v1 wrapper keeps its inner offsets relative to
    `base_offset`. With `log_append_time_ms` (v1) every message reads with that timestamp. v0 has no timestamps: the
    records' own are dropped. Raises InvalidRecord for headers, UnsupportedFormat for zstd or another magic.
    """
    if magic not in (0, 1):
        raise UnsupportedFormat("not a message set's format", expected="magic 0 or 1", found=magic)
    if codec not in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        raise UnsupportedFormat("codec unknown before format v2", expected="none, gzip, snappy, lz4", found=codec)
    if magic == 0 and log_append_time_ms is not None:
        raise UnsupportedFormat("format v0 has no timestamps")
    if not records:
        raise ValueError("a message set without messages")
    if offsets is None:
        offsets = range(base_offset, base_offset + len(records))
    # Inner offsets: v0 absolute, v1 relative to the set's first (MemoryRecordsBuilder.toInnerOffset).
    start = base_offset if codec != Codec.NONE and magic == 1 else 0
    type_bit = 0 if log_append_time_ms is None else TIMESTAMP_TYPE_MASK
    out = []
    greatest = NO_TIMESTAMP if log_append_time_ms is None else log_append_time_ms
    for record, offset in zip(records, offsets, strict=True):
        if record.headers:
            raise InvalidRecord(f"format v{magic} has no record headers", offset=offset)
        timestamp = log_append_time_ms
        if timestamp is None:
            timestamp = record.timestamp
            greatest = max(greatest, timestamp)
        out.append(message(offset - start, record.key, record.value, magic, type_bit, timestamp))
    messages = b"".join(out)
    if codec == Codec.NONE:
        return messages
    value = compress(codec, messages, magic=magic, level=level)
    return message(offsets[-1], None, value, magic, codec | type_bit, greatest)


def message(
    offset: int, key: bytes | None, value: bytes | None, magic: int, attributes: int = 0, timestamp: int = NO_TIMESTAMP
) -> bytes:
    """A message with its offset and size; `timestamp` is left out of v0."""
    body = b"".join(
        (
            _MAGIC_ATTRIBUTES.pack(magic, attributes),
            b"" if magic == 0 else _TIMESTAMP.pack(timestamp),
            _NULL if key is None else _LENGTH.pack(len(key)) + key,
            _NULL if value is None else _LENGTH.pack(len(value)) + value,
        )
    )
    size = _CRC.size + len(body)
    if size > MOST_MESSAGE_BYTES:
        limit = MOST_MESSAGE_BYTES + LOG_OVERHEAD
        raise RecordTooLarge("message", expected=f"at most {limit} bytes", found=size + LOG_OVERHEAD)
    return _OVERHEAD.pack(offset, size) + _CRC.pack(crc32(body)) + body


# Records as message sets, formats v0 and v1, which a topic's message.format.version may still require.
#
# A compressed set holds its messages' offsets inside the compressed bytes, so it is encoded once the offsets are known.


def encode_message_sets(records: Sequence[Record], config: LogConfig, base_offset: int, now_ms: int) -> bytes:
    """A message set of all `records` at its offset. RecordTooLarge above max.message.bytes or segment.bytes."""
    codec = CODECS[config.compression_type]
    magic = config.message_magic
    append_time = now_ms if magic and config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    data = encode(
        records,
        magic,
        base_offset=base_offset,
        codec=codec,
        level=codec_level(codec, config),
        log_append_time_ms=append_time,
    )
    if len(data) > size_limit(config):
        raise too_large(config, len(data))
    return data


def records_of(columns: RecordColumns, first: int, last: int, config: LogConfig) -> list[Record]:
    """The rows from `first` on that fit one set, at least one row: within the size limit, and no more rows than readers
    accept."""
    limit = size_limit(config)
    records: list[Record] = []
    size = 0
    for row in range(first, min(last, first + MOST_RECORDS)):
        key = columns.key(row)
        value = columns.value(row)
        size += len(key or b"") + len(value or b"")
        if records and size > limit:
            break
        records.append(Record(key, value, (), int(columns.timestamp[row])))
    return records
