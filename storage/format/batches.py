"""BatchTable: the headers of many record batches as columns, and the scan that fills it.

Source of the layouts: storage/FORMAT.md, "Record batch" and "Message sets" (DefaultRecordBatch, LegacyRecord,
FileLogInputStream).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.format import decode_kernel
from storage.format.columns import Column
from storage.types import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Int64s = NDArray[np.int64]


NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
UNKNOWN = -1  # a base offset or record count that is known only after decompression

LENGTH = slice(8, 12)  # where any batch or message has its length
LOG_OVERHEAD = LENGTH.stop  # bytes of offset and length before what the length counts
BATCH_HEADER_SIZE = 61  # of format v2
MAGIC_AT = 16  # where any batch or message has its format's version
MAX_MAGIC = 2
# A batch that takes more is never in memory as a whole: it is checked and copied in parts, and its records are not
# read.
MOST_BATCH_BYTES = 256 << 20
MAX_RELATIVE_OFFSET = 2**31 - 1  # of an offset to its segment's or batch's base offset

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

_TIMES = struct.Struct(">27xqq")  # of a v2 header: base timestamp, greatest timestamp
_TIME_OF_V1 = struct.Struct(">18xq")


class ScanStop(IntEnum):
    """Why a header scan stopped at `ScanOutcome.next_start`."""

    END = 0  # the span ended, after or within a batch: more bytes are needed
    FULL = 1  # the table is full
    CORRUPT = 2  # an impossible length; 0 in a preallocated tail
    UNSUPPORTED = 3  # a magic value other than 0, 1, 2


class ScanOutcome(NamedTuple):
    """Outcome of a scan: where in the buffer the next batch begins, and why the scan stopped."""

    next_start: int
    stop: ScanStop


class Int64Property(property):
    """A property whose value is an int64 array."""

    if TYPE_CHECKING:

        def __get__(self, owner: object, kind: type | None = None, /) -> Int64s: ...  # type: ignore[override]


def _column(column: Column, doc: str | None = None) -> Int64Property:
    """A column of a BatchTable as its property, a view."""
    return Int64Property(lambda table: table.data[column, : table.rows], doc=doc)


class BatchTable:
    """Batch headers in log order. Every property is an int64 or bool array over the `rows` batches, mostly a view.

    `data` has shape (len(Column), capacity). Offsets are record offsets, `position` and `size` are bytes in the file,
    timestamps are epoch milliseconds, -1 is "none". A format v0 or v1 message that is not compressed is a batch of one;
    of a compressed one `base_offset` and `count` are -1, since they are unknown before decompression.
    """

    __slots__ = ("data", "rows")

    def __init__(self, data: Int64s, rows: int) -> None:
        self.data = data
        self.rows = rows

    @classmethod
    def empty(cls, capacity: int) -> Self:
        """A table of no rows with room for `capacity`, or a few more.

        Columns a multiple of 4 KiB apart would share cache sets, which makes scanning four times slower.
        """
        if capacity % 512 == 0:
            capacity += 8 if capacity else 0
        return cls(np.empty((len(Column), capacity), np.int64), 0)

    @classmethod
    def concat(cls, tables: Iterable[BatchTable]) -> Self:
        """A copy of the rows of all `tables`, in order."""
        parts = [table.data[:, : table.rows] for table in tables]
        if not parts:
            return cls.empty(0)
        data = np.ascontiguousarray(np.concatenate(parts, axis=1))
        return cls(data, data.shape[1])

    def slice(self, first: int, last: int) -> Self:
        """Rows [first, last) as a view: cheap, not C-contiguous, not usable as a target of `scan`."""
        part = self.data[:, : self.rows][:, first:last]
        return type(self)(part, part.shape[1])

    def copy(self) -> Self:
        """A copy of the rows."""
        return type(self)(np.ascontiguousarray(self.data[:, : self.rows].copy()), self.rows)

    def clear(self) -> None:
        """Forget all rows, keep the capacity."""
        self.rows = 0

    def __len__(self) -> int:
        return self.rows

    @property
    def capacity(self) -> int:
        return int(self.data.shape[1])

    position = _column(Column.POSITION, "Where the batch begins in the file.")
    size = _column(Column.SIZE, "Bytes of the whole batch, the 12 of offset and length included.")
    base_offset = _column(Column.BASE_OFFSET)
    last_offset = _column(Column.LAST_OFFSET)
    count = _column(Column.COUNT, "Records declared by the header.")
    magic = _column(Column.MAGIC)
    attributes = _column(Column.ATTRIBUTES, "The attribute bits as stored: 16 in v2, 8 before.")
    base_timestamp = _column(Column.BASE_TIMESTAMP, "The first record's timestamp, or the delete horizon.")
    max_timestamp = _column(Column.MAX_TIMESTAMP, "The largest record timestamp, or the append time.")
    producer_id = _column(Column.PRODUCER_ID)
    producer_epoch = _column(Column.PRODUCER_EPOCH)
    base_sequence = _column(Column.BASE_SEQUENCE)
    leader_epoch = _column(Column.LEADER_EPOCH)
    crc = _column(Column.CRC, "The stored checksum, unsigned: CRC-32C in v2, CRC-32 before.")

    @property
    def end(self) -> Int64s:
        """Where the batch ends in the file."""
        return self.position + self.size

    @property
    def codec(self) -> Int64s:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> NDArray[np.bool_]:
        return self._v2_flag(CONTROL_MASK)

    @property
    def is_transactional(self) -> NDArray[np.bool_]:
        return self._v2_flag(TRANSACTIONAL_MASK)

    @property
    def has_delete_horizon(self) -> NDArray[np.bool_]:
        return self._v2_flag(DELETE_HORIZON_MASK)

    def _v2_flag(self, mask: int) -> NDArray[np.bool_]:
        flags: NDArray[np.bool_] = (self.attributes & mask != 0) & (self.magic == 2)
        return flags

    @property
    def timestamp_type(self) -> Int64s:
        """Values of `TimestampType`; v0 has none."""
        stored = (self.attributes & TIMESTAMP_TYPE_MASK) >> 3
        return np.where(self.magic == 0, int(TimestampType.NO_TIMESTAMP_TYPE), stored)


def times_of(table: BatchTable, row: int) -> tuple[int, int]:
    """Least and greatest timestamp in a batch's header; the first message's may not be the least of all.

    Equal where the header has just one. (-1, -1) for messages without a timestamp.
    """
    greatest = int(table.max_timestamp[row])
    base = int(table.base_timestamp[row])
    # With a delete horizon, or append time, the base has another meaning.
    plain = int(table.magic[row]) == 2 and not int(table.attributes[row]) & (DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK)
    return (base, greatest) if plain and NO_TIMESTAMP < base < greatest else (greatest, greatest)


def claimed_times(table: BatchTable, row: int) -> tuple[int, int]:
    """The two timestamps in a batch's header, whatever they mean: of a damaged batch either may be right."""
    return int(table.base_timestamp[row]), int(table.max_timestamp[row])


def claimed_times_in(head: bytes | memoryview) -> tuple[int, int] | None:
    """`claimed_times` of the first bytes of what may be a batch, whatever its length and checksum are; None if
    they are too few, or of a format without timestamps."""
    if len(head) > MAGIC_AT and head[MAGIC_AT] == 1 and len(head) >= _TIME_OF_V1.size:
        (timestamp,) = _TIME_OF_V1.unpack_from(head)
        return timestamp, timestamp
    if len(head) < BATCH_HEADER_SIZE or head[MAGIC_AT] != 2:
        return None
    base, greatest = _TIMES.unpack_from(head)
    return base, greatest


def scan(buffer: Buffer, position: int, table: BatchTable, start: int = 0, end: int | None = None) -> ScanOutcome:
    """Append the headers of the whole batches in buffer[start:end] to `table`.

    `position` is the file position of buffer[0]. Only lengths and the magic are checked; the decoder checks
    CRCs and records. One compiled call without the GIL.
    """
    data = memoryview(buffer).cast("B")
    rows, next_start, stop = decode_kernel.scan(
        data, start, len(data) if end is None else end, position, table.data, table.rows
    )
    table.rows = rows
    return ScanOutcome(next_start, ScanStop(stop))


def header_of(head: Buffer, position: int, size: int) -> BatchTable:
    """The header of the batch of `size` bytes at the file position `position`, as a table of one row, from its first
    BATCH_HEADER_SIZE bytes. An undefined magic counts as v2, as in Kafka."""
    copy = bytearray(head)
    copy[LENGTH] = (len(copy) - LOG_OVERHEAD).to_bytes(4, "big")
    copy[MAGIC_AT] = min(copy[MAGIC_AT], MAX_MAGIC)
    table = BatchTable.empty(1)
    scan(copy, position, table)
    table.data[Column.SIZE, 0] = size
    return table
