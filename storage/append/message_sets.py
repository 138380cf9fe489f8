"""Records as message sets, formats v0 and v1, which a topic's message.format.version may still require.

The messages of a compressed set carry their offsets inside the compressed bytes, so the set has to be encoded for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.append.batch_encoder import CODECS, codec_level, size_limit, too_large
from storage.config import LogConfig
from storage.format import message_set
from storage.format.decoder import MOST_RECORDS
from storage.format.record_columns import Record, RecordColumns
from storage.types import TimestampType


def encode(records: Sequence[Record], config: LogConfig, base_offset: int, now_ms: int) -> bytes:
    """One message set of all `records` at its offset. RecordTooLarge above max.message.bytes or segment.bytes."""
    codec = CODECS[config.compression_type]
    magic = config.message_magic
    append_time = now_ms if magic and config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    data = message_set.encode(
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
    """Rows from `first` on, at least one, whose keys and values together are not larger than a set may be, and not more
    than are read of one."""
    limit = size_limit(config)
    found: list[Record] = []
    size = 0
    for row in range(first, min(last, first + MOST_RECORDS)):
        key = columns.key(row)
        value = columns.value(row)
        size += len(key or b"") + len(value or b"")
        if found and size > limit:
            break
        found.append(Record(key, value, (), int(columns.timestamp[row])))
    return found
