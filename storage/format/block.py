"""RecordBlock: many decoded records as columns over one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from storage.errors import CorruptBatch, StorageError
from storage.format import decode_kernel, encoder_kernel
from storage.format.batches import BatchTable, Int64Property
from storage.format.columns import RecordColumn
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Int64s = NDArray[np.int64]


def record_column(column: RecordColumn, doc: str | None = None) -> Int64Property:
    """A row of `RecordFields.columns` as its property, a view."""
    return Int64Property(lambda records: records.columns[column, :], doc=doc)


class RecordFields:
    """Records as int64 columns over a buffer: starts are positions in it, lengths are bytes with -1 for null.

    `columns` has shape (9, records): see RecordColumn.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Int64s) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    timestamp = record_column(
        RecordColumn.TIMESTAMP, "Epoch milliseconds, -1 none; the append time where the batch says so."
    )
    key_start = record_column(RecordColumn.KEY_START)
    key_length = record_column(RecordColumn.KEY_LENGTH)
    value_start = record_column(RecordColumn.VALUE_START)
    value_length = record_column(RecordColumn.VALUE_LENGTH)
    headers_start = record_column(RecordColumn.HEADERS_START)
    headers_count = record_column(RecordColumn.HEADERS_COUNT)


@dataclass(frozen=True, slots=True)
class BatchDamage:
    """Where decoding stopped: the table row and file position of the first bad batch, and its error.

    `end`: the file position after it, where reading continues.
    """

    row: int
    position: int
    end: int
    error: StorageError


class RecordBlock(RecordFields):
    """Records in log order: int64 columns over one read-only `buffer`.

    Valid until the Decoder that made it decodes again. Starts are positions in `buffer`, length -1 is null, `batch` is
    a row of `table`, `headers_start` the position of a v2 record's first header. `next_row` is the first row of the
    range that was not decoded: the end of the range, the row of `damage`, or the row where the arena was full.
    """

    __slots__ = ("buffer", "damage", "next_row", "table")

    def __init__(
        self, buffer: memoryview, table: BatchTable, columns: Int64s, next_row: int, damage: BatchDamage | None = None
    ) -> None:
        super().__init__(columns)
        self.buffer = buffer
        self.table = table
        self.next_row = next_row
        self.damage = damage

    offset = record_column(RecordColumn.OFFSET)
    batch = record_column(RecordColumn.BATCH)

    def check(self, path: Path | None = None) -> None:
        """Raises the error of the damage where there is one; `path` is the file that the error names."""
        if self.damage is not None:
            self.damage.error.path = path or self.damage.error.path
            raise self.damage.error

    def select(self, rows: NDArray[np.bool_] | NDArray[np.integer] | slice) -> Self:
        """The records at a mask, indices or a slice: columns are copied, the buffer is shared."""
        if isinstance(rows, slice):
            columns = self.columns[:, rows].copy()
        else:
            indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
            columns = np.take(self.columns, indices, axis=1)
        return type(self)(self.buffer, self.table, columns, self.next_row, self.damage)

    def gather(self, column: Literal["key", "value"], separator: bytes | None = None) -> tuple[memoryview, Int64s]:
        """All keys or values one after the other, each followed by `separator`, and where each ends (before it).

        Null counts as empty: `key_length` or `value_length` is below 0 there. The memory is the caller's.
        """
        first = RecordColumn.KEY_START if column == "key" else RecordColumn.VALUE_START
        starts, lengths = self.columns[first], self.columns[first + 1]
        gap = b"" if separator is None else separator
        total = int(np.maximum(lengths, 0).sum()) + len(gap) * len(self)
        out = np.empty(total, np.uint8)
        ends = np.empty(len(self), np.int64)
        decode_kernel.gather(self.buffer, starts, lengths, gap, out, ends)
        return out.data, ends

    def key(self, index: int) -> bytes | None:
        """The key of a record; for API edges."""
        return self._bytes(int(self.key_start[index]), int(self.key_length[index]))

    def value(self, index: int) -> bytes | None:
        """The value of a record; for API edges."""
        return self._bytes(int(self.value_start[index]), int(self.value_length[index]))

    def measure_headers(self) -> Int64s:
        """Bytes that each record's encoded headers take. Raises CorruptBatch for headers that do not parse; the decoder
        lets none through."""
        return self._find_headers(np.empty((4, 0), np.int64))

    def headers_spans(self) -> Int64s:
        """A column for each header, record by record: start and length of its name, start and length of its value, -1
        null. Raises CorruptBatch as `measure_headers` does."""
        spans = np.empty((4, int(np.maximum(self.headers_count, 0).sum())), np.int64)
        self._find_headers(spans)
        return spans

    def _find_headers(self, spans: Int64s) -> Int64s:
        starts, counts = np.ascontiguousarray(self.headers_start), np.ascontiguousarray(self.headers_count)
        lengths, fault = np.empty(len(self), np.int64), np.empty(4, np.int64)
        done = decode_kernel.find_headers(self.buffer, starts, counts, lengths, fault, spans)
        if done < len(self):
            raise CorruptBatch("record headers do not parse", offset=int(self.offset[done]))
        return lengths

    def headers(self, index: int) -> list[tuple[bytes, bytes | None]]:
        """A record's headers in stored order; for API edges. Names are UTF-8 by Kafka's rule, unchecked."""
        at = int(self.headers_start[index])
        headers = []
        for _ in range(int(self.headers_count[index])):
            length, at = self._varint(at)
            name = bytes(self.buffer[at : at + length])
            length, at = self._varint(at + length)
            headers.append((name, self._bytes(at, length)))
            at += max(length, 0)
        return headers

    def _bytes(self, start: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(self.buffer[start : start + length])

    def _varint(self, at: int) -> tuple[int, int]:
        raw = shift = 0
        while at < len(self.buffer) and shift < 35:
            byte = self.buffer[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1), at
            shift += 7
        raise CorruptBatch("header does not parse", advice="Columns and buffer do not belong together")


# Records to be encoded: `Record` tuples at API edges, `RecordColumns` everywhere else.

Headers = Sequence[tuple[bytes, bytes | None]]


class Record(NamedTuple):
    """A record to write: None is null, header names are UTF-8, the timestamp epoch milliseconds (-1 none)."""

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
        """A number, or an array of one element, applies to every record, except in `value_start`."""
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
        block = cls.__new__(cls)
        block.buffer, block.columns, block.consecutive = buffer, columns, consecutive
        return block

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
        """These records with other timestamps, over the same buffer."""
        columns = self.columns.copy()
        columns[RecordColumn.TIMESTAMP] = stamps
        return self._of(self.buffer, columns, self.consecutive)

    def field(self, start: RecordColumn, length: RecordColumn, row: int) -> bytes | None:
        """A key, value or encoded headers of a record, by the columns of its start and length; for API edges."""
        at, size = int(self.columns[start, row]), int(self.columns[length, row])
        return None if size < 0 else bytes(memoryview(self.buffer).cast("B")[at : at + size])

    def key(self, row: int) -> bytes | None:
        """The key of a record; for API edges."""
        return self.field(RecordColumn.KEY_START, RecordColumn.KEY_LENGTH, row)

    def value(self, row: int) -> bytes | None:
        """The value of a record; for API edges."""
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
