"""RecordBlock: many decoded records as columns over one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np

from storage.errors import CorruptBatch, StorageError
from storage.format import decode_kernel
from storage.format.batches import BatchTable, Int64Property

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


class RecordColumn(IntEnum):
    """Rows of `columns`; the kernels have the same numbers."""

    OFFSET = 0
    TIMESTAMP = 1
    KEY_START = 2
    KEY_LENGTH = 3
    VALUE_START = 4
    VALUE_LENGTH = 5
    HEADERS_START = 6
    HEADERS_COUNT = 7
    BATCH = 8  # of a RecordBlock
    HEADERS_LENGTH = 8  # of RecordColumns


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

    Valid until the Decoder that made it decodes again; `detach` makes a permanent copy. Starts are positions in
    `buffer`, length -1 is null, `batch` is a row of `table`, `headers_start` the position of a v2 record's first
    header. `next_row` is the first row of the range that was not decoded: the end of the range, the row of `damage`, or
    the row where the arena was full.
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

    def detach(self) -> Self:
        """A copy that owns its memory. It holds the whole buffer: for few records of many, use `gather`."""
        return type(self)(
            memoryview(bytes(self.buffer)), self.table.copy(), self.columns.copy(), self.next_row, self.damage
        )

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
        """One key; for API edges."""
        return self._bytes(int(self.key_start[index]), int(self.key_length[index]))

    def value(self, index: int) -> bytes | None:
        """One value; for API edges."""
        return self._bytes(int(self.value_start[index]), int(self.value_length[index]))

    def measure_headers(self) -> Int64s:
        """Bytes that each record's encoded headers take. Raises CorruptBatch for headers that do not parse; the decoder
        lets none through."""
        return self._find_headers(np.empty((4, 0), np.int64))

    def headers_spans(self) -> Int64s:
        """One column a header, record by record: start and length of its name, start and length of its value, -1 null.
        Raises CorruptBatch as `measure_headers` does."""
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
        """One record's headers in stored order; for API edges. Names are UTF-8 by Kafka's rule, unchecked."""
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
