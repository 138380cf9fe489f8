"""Records to be encoded: `Record` tuples at API edges, `RecordColumns` everywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.format import encoder_kernel
from storage.format.block import RecordColumn, RecordFields, record_column
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from storage.format.block import RecordBlock

    Int64s = NDArray[np.int64]

Headers = Sequence[tuple[bytes, bytes | None]]


class Record(NamedTuple):
    """One record to write: None is null, header names are UTF-8, the timestamp epoch milliseconds (-1 none)."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = NO_TIMESTAMP


_LENGTHS = [RecordColumn.KEY_LENGTH, RecordColumn.VALUE_LENGTH, RecordColumn.HEADERS_LENGTH]


class RecordColumns(RecordFields):
    """Records to be encoded, over one `buffer` that holds their keys, values and encoded headers (without their count).

    `timestamp` is epoch milliseconds. Offset deltas are 0, 1, 2 … where `consecutive`, otherwise each record's offset
    less its batch's base offset.
    """

    __slots__ = ("buffer", "consecutive")

    def __init__(
        self,
        buffer: Buffer,
        value_start: Int64s,
        value_length: Int64s,
        timestamp: Int64s | int,
        key_start: Int64s | int = 0,
        key_length: Int64s | int = -1,
        headers_start: Int64s | int = 0,
        headers_length: Int64s | int = 0,
        headers_count: Int64s | int = 0,
        offset_delta: Int64s | None = None,
    ) -> None:
        """A number, or an array of one element, holds for every record but for `value_start`."""
        columns = np.empty((len(RecordColumn), len(value_start)), np.int64)
        try:
            columns[RecordColumn.OFFSET] = 0 if offset_delta is None else offset_delta
            columns[RecordColumn.TIMESTAMP] = timestamp
            columns[RecordColumn.KEY_START] = key_start
            columns[RecordColumn.KEY_LENGTH] = key_length
            columns[RecordColumn.VALUE_START] = value_start
            columns[RecordColumn.VALUE_LENGTH] = value_length
            columns[RecordColumn.HEADERS_START] = headers_start
            columns[RecordColumn.HEADERS_COUNT] = headers_count
            columns[RecordColumn.HEADERS_LENGTH] = headers_length
        except ValueError:
            raise ValueError(f"a column is shorter or longer than the {len(value_start)} records") from None
        super().__init__(columns)
        self.buffer = buffer
        self.consecutive = offset_delta is None

    @classmethod
    def _of(cls, buffer: Buffer, columns: Int64s, consecutive: bool) -> RecordColumns:
        made = cls.__new__(cls)
        made.buffer, made.columns, made.consecutive = buffer, columns, consecutive
        return made

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RecordColumns:
        """Lay `records` out in one buffer: key, value and headers of each in turn."""
        parts: list[bytes] = []
        rows: list[tuple[int, int, int, int, int, int, int, int, int]] = []  # in the order of RecordColumn
        position = 0
        for key, value, headers, timestamp in records:
            key_length = -1 if key is None else len(key)
            value_start = position + max(key_length, 0)
            value_length = -1 if value is None else len(value)
            headers_start = value_start + max(value_length, 0)
            encoded = encode_headers(headers) if headers else b""
            parts += (key or b"", value or b"", encoded)
            lengths = len(headers), len(encoded)
            rows.append((0, timestamp, position, key_length, value_start, value_length, headers_start, *lengths))
            position = headers_start + len(encoded)
        columns = np.array(rows, np.int64).reshape(len(rows), len(RecordColumn)).T.copy()
        return cls._of(b"".join(parts), columns, True)

    @classmethod
    def from_block(cls, block: RecordBlock, offset_delta: Int64s | None = None) -> RecordColumns:
        """Columns over a decoded block's own buffer, which must stay valid: no field is copied.

        Raises CorruptBatch where a record's headers do not parse (the decoder lets none through).
        """
        columns = np.array(block.columns, np.int64, order="C")
        columns[RecordColumn.HEADERS_LENGTH] = block.measure_headers()
        # A record without headers may point anywhere, the end of another buffer included.
        columns[RecordColumn.HEADERS_START][block.headers_count <= 0] = 0
        np.maximum(columns[RecordColumn.HEADERS_COUNT], 0, out=columns[RecordColumn.HEADERS_COUNT])
        if offset_delta is not None:
            columns[RecordColumn.OFFSET] = offset_delta
        return cls._of(block.buffer, columns, offset_delta is None)

    offset_delta = record_column(RecordColumn.OFFSET)
    headers_length = record_column(RecordColumn.HEADERS_LENGTH)

    def take(self, rows: NDArray[np.integer]) -> RecordColumns:
        """The records at these indices, over the same buffer."""
        return self._of(self.buffer, np.take(self.columns, rows, axis=1), self.consecutive)

    def with_timestamps(self, stamps: Int64s | int) -> RecordColumns:
        """The same records with other timestamps, over the same buffer."""
        columns = self.columns.copy()
        columns[RecordColumn.TIMESTAMP] = stamps
        return self._of(self.buffer, columns, self.consecutive)

    def field(self, start: RecordColumn, length: RecordColumn, row: int) -> bytes | None:
        """One key, value or encoded headers of a record, by the columns of its start and length; for API edges."""
        at, size = int(self.columns[start, row]), int(self.columns[length, row])
        return None if size < 0 else bytes(memoryview(self.buffer).cast("B")[at : at + size])

    def key(self, row: int) -> bytes | None:
        """One key; for API edges."""
        return self.field(RecordColumn.KEY_START, RecordColumn.KEY_LENGTH, row)

    def value(self, row: int) -> bytes | None:
        """One value; for API edges."""
        return self.field(RecordColumn.VALUE_START, RecordColumn.VALUE_LENGTH, row)

    def max_size(self, first: int, last: int) -> int:
        """The most bytes that rows [first, last) can take as v2 records."""
        size = memoryview(self.buffer).nbytes  # no field is larger; a length beyond it is found when encoding
        lengths = self.columns[_LENGTHS, first:last]
        return (last - first) * encoder_kernel.RECORD_OVERHEAD + int(np.clip(lengths, 0, size).sum())


def encode_headers(headers: Headers) -> bytes:
    """A record's headers as format v2 stores them, without their count (`DefaultRecord.writeTo`)."""
    out = bytearray()
    for name, value in headers:
        out += encode_varint(len(name))
        out += name
        if value is None:
            out += b"\x01"
        else:
            out += encode_varint(len(value))
            out += value
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """A zigzag base-128 integer, least significant group first (`ByteUtils.writeVarint`, `writeVarlong`)."""
    rest = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
