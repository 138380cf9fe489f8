"""Blocks of records to Arrow batches with the columns of Spark's Kafka source, without a Python object for each record.

Keys and values are copied from a block directly into the memory of the Arrow batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from kafkafs.arrow.block_texts import Decoding, Side
from kafkafs.arrow.decoded_columns import DECODED_TYPES, decode_errors, decoded_texts, schema_ids
from kafkafs.arrow.header_column import HEADERS, HeaderColumn
from storage.errors import InvalidRecord
from storage.format import decode_kernel
from storage.format.columns import RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

    _Numbers = NDArray[np.signedinteger]
    _Start = Literal[RecordColumn.KEY_START, RecordColumn.VALUE_START]
    _Fill = Callable[[TopicPartition, RecordBlock, _Numbers], None]

# A batch ends when it reaches one of the lower limits, and never exceeds an upper one: of rows, and of bytes of keys,
# values and headers (the other columns stay far below the remaining 8 MiB of 64).
LEAST_ROWS: Final = 10_000
MOST_ROWS: Final = 20_000
LEAST_BYTES: Final = 32 << 20
MOST_BYTES: Final = 56 << 20

MOST_MILLISECONDS: Final = (2**63 - 1) // 1000

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


# The unit of a log's timestamps, which scans keep.
MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


def arrow_schema(columns: Sequence[str], other_types: Mapping[str, pa.DataType] | None = None) -> pa.Schema:
    """The Arrow schema of these columns, which are keys of TYPES or DECODED_TYPES. `other_types`: replace theirs."""
    types = TYPES | DECODED_TYPES | dict(other_types or {})
    return pa.schema([(name, types[name]) for name in columns])


def arrow_batches(
    parts: Iterable[tuple[TopicPartition, RecordBlock]],
    columns: Sequence[str] | pa.Schema,
    decoding: Decoding | None = None,
    *,
    replace_errors: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of blocks as batches of 10,000 to 20,000 rows. The last batch may have fewer, and batches of
    large rows do, so that only a batch of a single row exceeds 64 MiB. Each batch owns its memory. `decoding`: for
    columns of decoded values, which may make a batch larger.

    A schema, instead of names, may have timestamps in MILLISECONDS, and keys and values as strings. OverflowError for a
    timestamp that microseconds cannot express, as in Spark's Kafka source; InvalidRecord if bytes of a string are not
    UTF-8, unless `replace_errors`, which replaces them with U+FFFD.
    """
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
    builder = _Builder(schema, decoding, replace_errors)
    for tp, block in parts:
        at = 0
        while at < len(block):
            end = builder.fitting(block, at)
            if end == at:
                yield builder.finish()
                continue
            builder.add(tp, block if end - at == len(block) else block.select(slice(at, end)))
            at = end
            if builder.rows >= LEAST_ROWS or builder.size_bytes >= LEAST_BYTES:
                yield builder.finish()
    if builder.rows:
        yield builder.finish()


class _Column(Protocol):
    """A column of the batch being built."""

    size_bytes: int

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        """Add the block's records as the rows from `row` on."""

    def finish(self, rows: int) -> pa.Array:
        """Return the first `rows` rows; the next `add` begins a new array."""


class _Builder:
    """Builds batches of one schema, one after another."""

    def __init__(self, schema: pa.Schema, decoding: Decoding | None, replace_errors: bool) -> None:
        self.rows = 0
        self._schema = schema
        self._decoding = decoding
        self._columns: list[_Column] = [_column(field, decoding, replace_errors) for field in schema]

    @property
    def size_bytes(self) -> int:
        return sum(column.size_bytes for column in self._columns)

    def fitting(self, block: RecordBlock, start: int) -> int:
        """The row up to which the block's records from `start` on fit; `start` if none fits and the batch has rows."""
        end = min(len(block), start + MOST_ROWS - self.rows)
        if self._decoding is not None:
            end = min(end, start + self._decoding.step)
        size_bytes = self.size_bytes
        # A block's records are not larger than its buffer, which may also hold other blocks' records.
        if size_bytes + len(block.buffer) <= MOST_BYTES:
            return end
        totals = _record_bytes(block, start, end).cumsum()
        fit = start + int(totals.searchsorted(MOST_BYTES - size_bytes, side="right"))
        return max(fit, start if self.rows else start + 1)

    def add(self, tp: TopicPartition, block: RecordBlock) -> None:
        if self._decoding is not None:
            self._decoding.take(tp, block)
        for column in self._columns:
            column.add(tp, block, self.rows)
        self.rows += len(block)

    def finish(self) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_arrays([column.finish(self.rows) for column in self._columns], schema=self._schema)
        self.rows = 0
        return batch


def _record_bytes(block: RecordBlock, start: int, end: int) -> NDArray[np.int64]:
    """An upper bound for the bytes of keys, values and headers in each row of [start, end)."""
    sizes = np.maximum(block.key_length[start:end], 0) + np.maximum(block.value_length[start:end], 0)
    for row in np.flatnonzero(block.headers_count[start:end]).tolist():
        sizes[row] += sum(len(name) + len(value or b"") for name, value in block.headers(start + row))
    return sizes


class _BytesColumn:
    """A column of keys or values."""

    def __init__(self, start_column: _Start) -> None:
        self.size_bytes = 0
        self._start_column = start_column
        self._expected_bytes = 1 << 20
        self._data = np.empty(0, np.uint8)
        self._ends = np.empty(MOST_ROWS, np.int64)
        self._begin()

    def _begin(self) -> None:
        self._offsets = np.empty(MOST_ROWS + 1, np.int32)
        self._offsets[0] = 0
        self._valid: NDArray[np.bool_] | None = None
        self.size_bytes = 0

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        starts, lengths = block.columns[self._start_column], block.columns[self._start_column + 1]
        count, used = len(lengths), self.size_bytes
        if int(lengths.min()) < 0:
            if self._valid is None:
                self._valid = np.ones(MOST_ROWS, np.bool_)
            np.greater_equal(lengths, 0, out=self._valid[row : row + count])
            if int(lengths.max()) <= 0:  # all are empty or null, like the keys of a topic without keys
                self._offsets[row + 1 : row + 1 + count] = used
                return
            total = int(np.maximum(lengths, 0).sum())
        else:
            total = int(lengths.sum())
        if used + total > len(self._data):
            self._grow(used + total)
        ends = self._ends[:count]
        decode_kernel.gather(block.buffer, starts, lengths, b"", self._data[used:], ends)
        np.add(ends, used, out=self._offsets[row + 1 : row + 1 + count], casting="unsafe")
        self.size_bytes += total

    def _grow(self, needed: int) -> None:
        larger = np.empty(max(needed, self._expected_bytes), np.uint8)
        if self.size_bytes:
            larger = np.empty(max(2 * needed, self._expected_bytes), np.uint8)
            larger[: self.size_bytes] = self._data[: self.size_bytes]
        self._data = larger

    def finish(self, rows: int) -> pa.Array:
        validity, nulls = None, 0
        if self._valid is not None:
            valid = self._valid[:rows]
            nulls = rows - int(np.count_nonzero(valid))
            validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
        data = pa.py_buffer(self._data[: self.size_bytes])
        offsets = pa.py_buffer(self._offsets[: rows + 1])
        # The next batch will probably have about the same size.
        self._expected_bytes = self.size_bytes + self.size_bytes // 8
        self._data = np.empty(0, np.uint8)
        self._begin()
        return pa.Array.from_buffers(pa.binary(), rows, [validity, offsets, data], nulls)


class _StringColumn(_BytesColumn):
    """A column of keys or values as text."""

    def __init__(self, start_column: _Start, replace_errors: bool) -> None:
        super().__init__(start_column)
        self._replace_errors = replace_errors
        self._places: list[tuple[TopicPartition, NDArray[np.int64]]] = []  # the offsets of the rows, for errors

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        super().add(tp, block, row)
        self._places.append((tp, block.offset.copy()))

    def finish(self, rows: int) -> pa.Array:
        raw = super().finish(rows)
        places, self._places = self._places, []
        text = pa.Array.from_buffers(pa.string(), rows, raw.buffers(), raw.null_count)
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:
            values = raw.to_pylist()
            if not self._replace_errors:
                raise self._first_error(values, places) from None
            text = pa.array([value and value.decode(errors="replace") for value in values], pa.string())
        return text

    def _first_error(
        self, values: Sequence[bytes | None], places: Sequence[tuple[TopicPartition, NDArray[np.int64]]]
    ) -> InvalidRecord:
        side = "key" if self._start_column is RecordColumn.KEY_START else "value"
        of_rows = ((tp, int(offset)) for tp, offsets in places for offset in offsets)
        for (tp, offset), value in zip(of_rows, values, strict=True):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                advice = "text='replace' reads it with U+FFFD instead, text=False as bytes"
                return InvalidRecord(f"{side} of {tp} is not UTF-8: {error.reason}", offset=offset, advice=advice)
        raise AssertionError("Arrow and Python disagree about UTF-8")


class _PartsColumn:
    """A column whose rows `part` makes block by block: it returns an array, and the number of bytes to count for it."""

    def __init__(self, part: Callable[[TopicPartition, RecordBlock], tuple[pa.Array, int]]) -> None:
        self.size_bytes = 0
        self._part = part
        self._parts: list[pa.Array] = []

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        part, size_bytes = self._part(tp, block)
        self._parts.append(part)
        self.size_bytes += size_bytes

    def finish(self, rows: int) -> pa.Array:
        parts, self._parts, self.size_bytes = self._parts, [], 0
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _topics(tp: TopicPartition, block: RecordBlock) -> tuple[pa.Array, int]:
    return pa.repeat(pa.scalar(tp.topic, pa.string()), len(block)), 0


class _NumberColumn:
    """A column of fixed width, never null."""

    def __init__(self, arrow_type: pa.DataType, fill: _Fill) -> None:
        self.size_bytes = 0
        self._type = arrow_type
        self._dtype = np.dtype(f"i{arrow_type.bit_width // 8}")
        self._fill = fill
        self._values = np.empty(MOST_ROWS, self._dtype)

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        self._fill(tp, block, self._values[row : row + len(block)])

    def finish(self, rows: int) -> pa.Array:
        values = pa.py_buffer(self._values[:rows])
        self._values = np.empty(MOST_ROWS, self._dtype)
        return pa.Array.from_buffers(self._type, rows, [None, values], 0)


def _partitions(tp: TopicPartition, block: RecordBlock, out: _Numbers) -> None:
    out[:] = tp.partition


def _offsets(tp: TopicPartition, block: RecordBlock, out: _Numbers) -> None:
    out[:] = block.offset


def _timestamps(tp: TopicPartition, block: RecordBlock, out: _Numbers) -> None:
    milliseconds = block.timestamp
    if int(milliseconds.max()) > MOST_MILLISECONDS or int(milliseconds.min()) < -MOST_MILLISECONDS:
        row = int(((milliseconds > MOST_MILLISECONDS) | (milliseconds < -MOST_MILLISECONDS)).argmax())
        raise OverflowError(
            f"timestamp {milliseconds[row]} of offset {block.offset[row]} in {tp} is out of Spark's range "
            "(leave the timestamps out with option columns)"
        )
    np.multiply(milliseconds, 1000, out=out)


def _milliseconds(tp: TopicPartition, block: RecordBlock, out: _Numbers) -> None:
    out[:] = block.timestamp


def _timestamp_types(tp: TopicPartition, block: RecordBlock, out: _Numbers) -> None:
    of_batches = block.table.timestamp_type[int(block.batch[0]) : int(block.batch[-1]) + 1]
    first = of_batches[0]
    out[:] = first if (of_batches == first).all() else block.table.timestamp_type[block.batch]


def _column(field: pa.Field, decoding: Decoding | None, replace_errors: bool) -> _Column:
    name = field.name
    if decoding is not None:
        side: Side = "key" if name.startswith("key") else "value"
        match name:
            case "key_json" | "value_json":
                return _PartsColumn(lambda _tp, _block: decoded_texts(decoding, side))
            case "key_schema_id" | "value_schema_id":
                return _PartsColumn(lambda _tp, _block: schema_ids(decoding, side))
            case "decode_error":
                return _PartsColumn(lambda _tp, block: decode_errors(decoding, len(block)))
    if name in ("key", "value"):
        start: _Start = RecordColumn.KEY_START if name == "key" else RecordColumn.VALUE_START
        return _BytesColumn(start) if field.type == pa.binary() else _StringColumn(start, replace_errors)
    if field.type == MILLISECONDS:
        return _NumberColumn(MILLISECONDS, _milliseconds)
    if name == "topic":
        return _PartsColumn(_topics)
    if name == "headers":
        return HeaderColumn(HEADERS, MOST_ROWS)
    return _NumberColumn(TYPES[name], _NUMBERS[name])


_NUMBERS: Final[dict[str, _Fill]] = {
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
}
