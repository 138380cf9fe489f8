"""Encoding of record batches, format v2 (`DefaultRecordBatch`, `MemoryRecordsBuilder`).

Uncompressed batches are byte for byte those that Kafka's Java producer makes from the same records and header fields;
for compressed ones only the content is the same. See storage/FORMAT.md, "Record batch".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import RecordTooLarge
from storage.format import encoder_kernel
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD,
    MOST_BATCH_BYTES,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from storage.format.block import Record, RecordColumns
from storage.format.checksum import crc32c
from storage.format.compression import Codec, compress
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = 2
NO_LEADER_EPOCH = -1
NO_PRODUCER_EPOCH = -1

_HEADER = struct.Struct(
    ">"
    "q"  # base offset
    "i"  # length: bytes after this field
    "i"  # partition leader epoch
    "b"  # magic
    "I"  # CRC-32C of all that follows
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # records count
)
_OFFSET = struct.Struct(">q")
_PLACE = struct.Struct(">qii")  # base offset, length, leader epoch
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_LENGTH_POSITION = 8
_LEADER_EPOCH_POSITION = 12
_MAGIC_POSITION = 16
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = 21  # the CRC covers the bytes from here on
_MAX_TIMESTAMP_POSITION = 35


@dataclass(frozen=True, slots=True)
class BatchFields:
    """Fields of a batch header other than base offset, codec and those that the records determine.

    With `log_append_time_ms` every record reads with that timestamp. `delete_horizon_ms` replaces the base timestamp.
    `base_timestamp`, `max_timestamp` and `last_offset_delta` are computed from the records if None; the cleaner sets
    those of the original batch.
    """

    leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    log_append_time_ms: int | None = None
    delete_horizon_ms: int | None = None
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    last_offset_delta: int | None = None

    def attributes(self, codec: Codec) -> int:
        """The attribute bits."""
        bits = int(codec) & CODEC_MASK
        if self.log_append_time_ms is not None:
            bits |= TIMESTAMP_TYPE_MASK
        if self.transactional:
            bits |= TRANSACTIONAL_MASK
        if self.control:
            bits |= CONTROL_MASK
        if self.delete_horizon_ms is not None:
            bits |= DELETE_HORIZON_MASK
        return bits


PLAIN = BatchFields()


class Encoded(NamedTuple):
    """Outcome of `encode_into`: the first row not encoded, the position after the batch, its greatest timestamp."""

    next_row: int
    end: int
    max_timestamp: int = NO_TIMESTAMP


class NewBatch(NamedTuple):
    """A finished batch without a producer, in writable memory, that is not part of a log yet.

    `offsets`: the number of offsets it uses.
    """

    data: memoryview
    offsets: int
    max_timestamp: int

    def place(self, base_offset: int, leader_epoch: int) -> None:
        """Sets base offset and leader epoch, as a leader does: the CRC does not cover them."""
        _PLACE.pack_into(self.data, 0, base_offset, len(self.data) - LOG_OVERHEAD, leader_epoch)


def encode_batch(
    records: RecordColumns | Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    fields: BatchFields = PLAIN,
) -> bytes:
    """A batch of all `records` (at least one). `level` is the codec's, None its default.

    Raises RecordTooLarge if the batch would exceed MOST_BATCH_BYTES, ValueError for columns or fields out of range.
    """
    columns = records if isinstance(records, RecordColumns) else RecordColumns.from_records(records)
    room = columns.max_size(0, len(columns))
    if codec != Codec.NONE:
        room += (room >> 2) + 1024  # compressing may enlarge: snappy by a sixth at worst, the others less
    out = bytearray(min(BATCH_HEADER_SIZE + room, MOST_BATCH_BYTES))
    encoded = encode_into(out, 0, columns, base_offset=base_offset, codec=codec, level=level, fields=fields)
    if encoded.next_row < len(columns):
        raise RecordTooLarge("record batch", expected=f"at most {MOST_BATCH_BYTES} bytes")
    return bytes(memoryview(out)[: encoded.end])


def encode_into(
    out: Buffer,
    position: int,
    columns: RecordColumns,
    first: int = 0,
    last: int | None = None,
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    fields: BatchFields = PLAIN,
) -> Encoded:
    """Write one batch of rows [first, last) into the writable `out` at `position`, with as many rows as fit.

    If no row fits, next_row is `first`, end is `position`, and nothing is written. With a codec the rows are those that
    would fit uncompressed. Offset deltas of a batch are 0, 1, 2 … from `first`, or the columns' own. Errors as
    for `encode_batch`.
    """
    target = memoryview(out).cast("B")
    last = len(columns) if last is None else last
    if not 0 <= first < last <= len(columns):
        raise ValueError(f"rows [{first}, {last}) of {len(columns)}; a batch without records is empty_batch()")
    if fields.delete_horizon_ms is not None:
        base_timestamp = fields.delete_horizon_ms
    elif fields.base_timestamp is not None:
        base_timestamp = fields.base_timestamp
    else:
        base_timestamp = int(columns.timestamp[first])
    start = position + BATCH_HEADER_SIZE
    if start > len(target):
        return Encoded(first, position)
    if codec == Codec.NONE:
        rows, end, max_timestamp = _encode_records(columns, first, last, base_timestamp, target, start)
    else:
        room = min(len(target) - start, columns.max_size(first, last))
        scratch = memoryview(bytearray(room))
        rows, used, max_timestamp = _encode_records(columns, first, last, base_timestamp, scratch, 0)
        if used > MOST_BATCH_BYTES:
            raise RecordTooLarge("record batch", expected=f"at most {MOST_BATCH_BYTES} bytes", found=used)
        compressed = compress(codec, scratch[:used], level=level) if rows > first else b""
        end = start + len(compressed)
        if end > len(target):
            raise ValueError("no room for the compressed records, which are larger than the records")
        target[start:end] = compressed
    if rows == first:
        return Encoded(first, position)
    delta = rows - first - 1 if columns.consecutive else int(columns.offset_delta[rows - 1])
    if fields.log_append_time_ms is not None:
        max_timestamp = fields.log_append_time_ms
    if fields.max_timestamp is not None:
        max_timestamp = fields.max_timestamp
    _write_header(
        target[position:end],
        base_offset,
        delta if fields.last_offset_delta is None else fields.last_offset_delta,
        base_timestamp,
        max_timestamp,
        rows - first,
        fields.attributes(codec),
        fields,
    )
    return Encoded(rows, end, max_timestamp)


def empty_batch(*, base_offset: int, last_offset: int, max_timestamp: int, fields: BatchFields = PLAIN) -> bytes:
    """The 61-byte header that compaction keeps of a batch whose producer must not be forgotten (`writeEmptyHeader`).

    Timestamp type, producer fields, sequence, transactional, control and leader epoch come from `fields`.
    """
    out = bytearray(BATCH_HEADER_SIZE)
    attributes = fields.attributes(Codec.NONE) & ~DELETE_HORIZON_MASK
    _write_header(
        memoryview(out), base_offset, last_offset - base_offset, NO_TIMESTAMP, max_timestamp, 0, attributes, fields
    )
    return bytes(out)


def move_batch(batch: memoryview, offsets: int, leader_epoch: int) -> None:
    """Add `offsets` to the offsets of a whole batch of any format, and set a v2 batch's leader epoch, as a leader does:
    the CRC covers neither. The offsets inside a compressed set of format v0 stay as they are."""
    (offset,) = _OFFSET.unpack_from(batch)
    _OFFSET.pack_into(batch, 0, offset + offsets)
    if batch[_MAGIC_POSITION] == MAGIC:
        _EPOCH.pack_into(batch, _LEADER_EPOCH_POSITION, leader_epoch)


def set_crc(buffer: Buffer, start: int, end: int) -> None:
    """Set the checksum of the v2 batch at buffer[start:end]."""
    view = memoryview(buffer)
    _CRC.pack_into(view, start + _CRC_POSITION, crc32c(view[start + _ATTRIBUTES_POSITION : end]))


def _encode_records(
    columns: RecordColumns, first: int, last: int, base_timestamp: int, out: memoryview, position: int
) -> tuple[int, int, int]:
    """(first row not encoded, end position, greatest timestamp)."""
    result = np.empty(encoder_kernel.ENCODE_RESULTS, np.int64)
    status = encoder_kernel.encode_records(
        memoryview(columns.buffer).cast("B"),
        columns.columns,
        columns.consecutive,
        first,
        last,
        base_timestamp,
        out,
        position,
        result,
    )
    rows, end, max_timestamp = (int(value) for value in result)
    if status == encoder_kernel.BAD_COLUMN:
        raise ValueError(f"row {rows} points outside its buffer, or its header count or offset delta is not an int32")
    if status == encoder_kernel.TOO_LARGE:
        raise RecordTooLarge(f"record {rows - first} of the batch", expected="at most 2147483647 bytes")
    return rows, end, max(max_timestamp, NO_TIMESTAMP)


def _write_header(
    batch: memoryview,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    attributes: int,
    fields: BatchFields,
) -> None:
    """Write the header of `batch`, whose records are already in place."""
    if len(batch) > MOST_BATCH_BYTES:
        raise RecordTooLarge("record batch", expected=f"at most {MOST_BATCH_BYTES} bytes", found=len(batch))
    try:
        _HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LOG_OVERHEAD,
            fields.leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            fields.producer_id,
            fields.producer_epoch,
            fields.base_sequence,
            count,
        )
    except struct.error as error:
        raise ValueError(f"batch header field out of range: {error}") from None
    set_crc(batch, 0, len(batch))
