"""Values of Avro schemas to a typed Arrow column: each becomes JSON in the shape of one schema's columns
(`kafkafs/decoding/avro_resolution.py`), which pyarrow reads.

Values that JSON would change become strings: floats as their bits, to keep NaN, and bytes and decimals in base64. A
column of a union of several types is the JSON text that `decoded.jsonl` shows.
"""

from __future__ import annotations

import json
import math
import struct
from binascii import a2b_base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from kafkafs.arrow.spans import spans
from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_resolution import Form, ValueColumn
from kafkafs.decoding.columns import ColumnDecoder
from kafkafs.decoding.rooms import Room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kafkafs.decoding.avro_schema import AvroType
    from kafkafs.schemas.schema import SchemaLookup

    Int64s = NDArray[np.int64]
    Bools = NDArray[np.bool_]

_ROOM: Final = 8 << 20  # only the used part takes memory
_MOST_KEPT: Final = 16 << 20
_MOST_ROWS: Final = 4096
_PARSING: Final = {"newlines_in_values": False, "unexpected_field_behavior": "ignore"}
_TOO_DEEP: Final = "it is nested too deeply"


class AvroColumn:
    """Reads a topic's values as one Avro type, whichever schema wrote them. Not thread-safe."""

    def __init__(self, schemas: SchemaLookup, subject: str, reader: AvroType) -> None:
        """BadSchema if columns cannot express the type."""
        self._column = ValueColumn.of(reader)
        self._decoder = ColumnDecoder(schemas, subject, Programs(), self._column)
        self._parsing = arrow_json.ParseOptions(explicit_schema=pa.schema(list(_text_type(self._column))), **_PARSING)
        self._has_json = _has_json(self._column)
        self._room = Room(_ROOM)
        self.type = arrow_type(self._column)

    def read(self, column: pa.Array, guids: Mapping[int, bytes]) -> tuple[pa.Array, Int64s, dict[int, str]]:
        """Return the values of a binary column, the ids of their schemas (-1: no schema), and errors by row. `guids`:
        by row, the headers that name schemas (`guid_headers.find_guids`)."""
        plain, starts, lengths = spans(column)
        ids, errors = np.empty(len(column), np.int64), dict[int, str]()
        parts: list[pa.Array] = []
        row, room = 0, self._room
        while row < len(column):
            window = slice(row, row + _MOST_ROWS)
            headers = {at - row: header for at, header in guids.items() if at >= row}
            decoded, end = self._decoder.decode(plain, starts[window], lengths[window], room, 0, headers)
            if not decoded.rows:
                room.grow()
                continue
            has_text = decoded.texts[1, : decoded.rows] >= 0
            values, failed = self._values(room.texts[:end], has_text)
            parts.append(values)
            ids[row : row + decoded.rows] = decoded.ids[: decoded.rows]
            for at in np.flatnonzero(~has_text & (lengths[row : row + decoded.rows] >= 0)).tolist():
                errors[row + at] = decoded.errors.get(at, "it is not in the wire format")
            for at, why in failed.items():
                name = "the schema" if decoded.ids[at] < 0 else f"schema {decoded.ids[at]}"
                errors[row + at] = f"{name} does not fit the data: {why}"
            row += decoded.rows
        if len(room.texts) > _MOST_KEPT:
            self._room = Room(_ROOM)
        return pa.concat_arrays([pa.nulls(0, self.type), *parts]), ids, errors

    def _values(self, texts: NDArray[np.uint8], has_text: Bools) -> tuple[pa.Array, dict[int, str]]:
        """Return the values of some rows, null for those without a text, and by row the reasons why texts could not be
        read."""
        failed: dict[int, str] = {}
        rows, objects = np.flatnonzero(has_text), None
        if self._has_json:
            rows, texts, objects = _parsed(rows, texts, failed)
        if not len(rows):
            return pa.nulls(len(has_text), self.type), failed
        read = pa.nulls(len(rows))  # nulls for a record without fields, which is JSON
        if self._column.form is Form.RECORD:
            reading = arrow_json.ReadOptions(use_threads=False, block_size=len(texts) + 1)
            table = arrow_json.read_json(pa.BufferReader(pa.py_buffer(texts)), reading, self._parsing)
            (read,) = table.to_struct_array().chunks
        array = _Arrays(failed).array(self._column, read, rows, objects)
        if len(rows) == len(has_text) and not failed:
            return array, failed
        places = np.full(len(has_text), -1)
        places[rows] = np.arange(len(rows))
        places[list(failed)] = -1
        return array.take(pa.array(places, mask=places < 0)), failed


def _parsed(
    rows: Int64s, texts: NDArray[np.uint8], failed: dict[int, str]
) -> tuple[Int64s, NDArray[np.uint8], list[Any]]:
    """The rows whose texts Python can parse, these texts, and their values."""
    kept, lines, objects = [], [], []
    for row, line in zip(rows.tolist(), texts.tobytes().splitlines(keepends=True), strict=True):
        try:
            objects.append(json.loads(line))
        except RecursionError:
            failed[row] = _TOO_DEEP
            continue
        kept.append(row)
        lines.append(line)
    return np.array(kept, np.int64), np.frombuffer(b"".join(lines), np.uint8), objects


def arrow_type(column: ValueColumn) -> pa.DataType:
    """The Arrow type of a column."""
    below = [arrow_type(child) for child in column.children]
    avro = column.avro
    match column.form:
        case Form.BOOLEAN:
            return pa.bool_()
        case Form.NUMBER | Form.FLOAT:
            return _LOGICAL.get(avro.logical or "") or _PLAIN[avro.kind]
        case Form.DECIMAL:
            return pa.decimal128(avro.precision, avro.scale)
        case Form.BYTES:
            return pa.binary()
        case Form.RECORD:
            return pa.struct([pa.field(name, kind) for (name, _), kind in zip(avro.fields, below, strict=True)])
        case Form.LIST:
            return pa.list_(below[0])
        case Form.MAP:
            return pa.map_(pa.string(), below[0])
        case Form.MAYBE:
            return below[0]
    return pa.string()


_PLAIN: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _text_type(column: ValueColumn) -> pa.DataType:
    """The type as which pyarrow reads a column's JSON (`Form`)."""
    below = [_text_type(child) for child in column.children]
    match column.form:
        case Form.NOTHING | Form.BOOLEAN:
            return pa.bool_()  # not pa.null(): pyarrow loses the length of a list of nulls
        case Form.NUMBER | Form.TIME:
            return pa.int64()
        case Form.JSON:
            return pa.struct([])
        case Form.RECORD:
            return pa.struct([(str(place), kind) for place, kind in enumerate(below)])
        case Form.LIST:
            return pa.list_(below[0])
        case Form.MAP:
            return pa.list_(pa.struct([("k", pa.string()), ("v", below[0])]))
        case Form.MAYBE:
            return below[0]
    return pa.string()


def _has_json(column: ValueColumn) -> bool:
    return column.form is Form.JSON or any(map(_has_json, column.children))


# Dates and timestamps of the years 1 to 9999, which readers accept: in days, and per day in the units of columns.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_DAYS: Final = {"date": (1, 1), "timestamp-millis": (86_400_000, 1000), "timestamp-micros": (86_400_000_000, 1)}
_TIMES: Final = {
    "time-millis": (86_400_000, pa.int32(), pa.time32("ms")),
    "time-micros": (86_400_000_000, pa.int64(), pa.time64("us")),
}


class _Arrays:
    """Makes the arrays of columns from the arrays that pyarrow has read. `failed` gets the rows with a value that its
    column cannot express, and the reasons."""

    def __init__(self, failed: dict[int, str]) -> None:
        self._failed = failed

    def array(self, column: ValueColumn, read: pa.Array, rows: Int64s, objects: list[Any] | None) -> pa.Array:
        """Return a column's array. `rows`: the row of each value; `objects`: the values as Python objects, if the
        column contains a JSON column."""
        match column.form:
            case Form.NOTHING:
                return pa.nulls(len(read), arrow_type(column))
            case Form.BOOLEAN | Form.TEXT:
                return read
            case Form.NUMBER:
                return self._numbers(column, read, rows)
            case Form.TIME:
                return _times(read, column.avro.logical or "")
            case Form.FLOAT:
                return _floats(read, arrow_type(column))
            case Form.DECIMAL:
                return self._decimals(column, _from_base64(read), rows)
            case Form.BYTES:
                return _from_base64(read)
            case Form.MAYBE:
                return self.array(column.children[0], read, rows, objects)
            case Form.RECORD:
                return self._struct(column, read, rows, objects)
            case Form.LIST | Form.MAP:
                return self._items(column, read, rows, objects)
            case Form.JSON:
                return self._texts(column.avro, rows, objects or [])

    def _struct(self, column: ValueColumn, read: pa.Array, rows: Int64s, objects: list[Any] | None) -> pa.Array:
        fields = []
        for place, (child, values) in enumerate(zip(column.children, read.flatten(), strict=True)):
            below = None
            if objects is not None and _has_json(child):
                below = [value if value is None else value[str(place)] for value in objects]
            fields.append(self.array(child, values, rows, below))
        mask = read.is_null() if read.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(arrow_type(column)), mask=mask)

    def _items(self, column: ValueColumn, read: pa.Array, rows: Int64s, objects: list[Any] | None) -> pa.Array:
        child, items = column.children[0], read.flatten()
        lengths = pc.list_value_length(read).fill_null(0).to_numpy(zero_copy_only=False)
        absent = np.append(read.is_null().to_numpy(zero_copy_only=False), False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32(), mask=absent)
        rows = np.repeat(rows, lengths)
        below = None if objects is None else [item for value in objects if value is not None for item in value]
        if column.form is Form.LIST:
            return pa.ListArray.from_arrays(offsets, self.array(child, items, rows, below), type=arrow_type(column))
        keys, values = items.flatten()
        below = None if below is None else [item["v"] for item in below]
        return pa.MapArray.from_arrays(offsets, keys, self.array(child, values, rows, below))

    def _numbers(self, column: ValueColumn, read: pa.Array, rows: Int64s) -> pa.Array:
        kind = arrow_type(column)
        per_day, factor = _DAYS.get((column.avro.logical or "").removeprefix("local-"), (0, 1))
        if per_day:
            numbers = read.fill_null(0).to_numpy()
            beyond = (numbers < _FIRST_DAY * per_day) | (numbers >= (_LAST_DAY + 1) * per_day)
            self._fail(column, rows[beyond])
            read = _where(np.where(beyond, 0, numbers) * factor, read)
        return read.cast(pa.int32()).cast(kind) if kind.bit_width == 32 else read.cast(kind)

    def _decimals(self, column: ValueColumn, read: pa.Array, rows: Int64s) -> pa.Array:
        """Decimals in two's complement, big-endian."""
        plain, starts, lengths = spans(read)
        data = np.frombuffer(plain, np.uint8) if len(plain) else np.zeros(1, np.uint8)
        lengths = np.maximum(lengths, 0)
        ends = (starts + lengths)[:, None]
        sign = np.where(lengths > 0, data[np.minimum(starts, len(data) - 1)] >> 7, 0) * 255
        places = ends - 16 + np.arange(16)
        low_bytes = np.where(places >= starts[:, None], data[np.clip(places, 0, len(data) - 1)], sign[:, None])
        numbers = np.ascontiguousarray(low_bytes[:, ::-1].astype(np.uint8))
        low, high = numbers.view("<u8").T
        negative = high >> 63 == 1
        low, high = np.where(negative, ~low + 1, low), np.where(negative, ~high + (low == 0), high)
        limit = 10**column.avro.precision
        most_high, most_low = np.uint64(limit >> 64), np.uint64(limit & 0xFFFFFFFFFFFFFFFF)
        beyond = (high > most_high) | ((high == most_high) & (low >= most_low))
        for at in np.flatnonzero(lengths > 16).tolist():
            number = int.from_bytes(data[starts[at] : starts[at] + lengths[at]].tobytes(), "big", signed=True)
            beyond[at] = abs(number) >= limit
        numbers[beyond] = 0
        self._fail(column, rows[beyond])
        valid = None if not read.null_count else pa.py_buffer(np.packbits(read.is_valid(), bitorder="little"))
        return pa.Array.from_buffers(arrow_type(column), len(read), [valid, pa.py_buffer(numbers)])

    def _texts(self, kind: AvroType, rows: Int64s, objects: list[Any]) -> pa.Array:
        texts = []
        for row, value in zip(rows.tolist(), objects, strict=True):
            try:
                texts.append(None if value is None else _shown(kind, value["j"]))
            except RecursionError:
                self._failed[row] = _TOO_DEEP
                texts.append(None)
        return pa.array(texts, pa.string())

    def _fail(self, column: ValueColumn, rows: Int64s) -> None:
        where = f" in field {'.'.join(column.path)}" if column.path else ""
        for row in rows.tolist():
            self._failed[row] = f"a number is beyond what its column can express{where}"


def _where(values: NDArray[np.generic], read: pa.Array) -> pa.Array:
    """An array of these values, with nulls in the rows where `read` has nulls."""
    return pa.array(values, mask=read.is_null().to_numpy(zero_copy_only=False) if read.null_count else None)


def _times(read: pa.Array, logical: str) -> pa.Array:
    """Times of day as texts; other logical types as their numbers."""
    per_day, width, kind = _TIMES[logical]
    numbers = read.fill_null(0).to_numpy()
    inside = (numbers >= 0) & (numbers < per_day)
    texts = _where(np.where(inside, numbers, 0), read).cast(width).cast(kind).cast(pa.string())
    return texts if inside.all() else pc.if_else(pa.array(inside), texts, read.cast(pa.string()))


def _letters(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The bytes of strings, and the bounds of each string in them."""
    _, offsets, plain = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    return np.frombuffer(plain or b"", np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def _decoded(letters: NDArray[np.uint8], is_padding: Bools) -> NDArray[np.uint8]:
    """Decode base64: each four letters, also padding, become three bytes."""
    return np.frombuffer(a2b_base64(np.where(is_padding, np.uint8(ord("A")), letters).data), np.uint8)


def _from_base64(texts: pa.Array) -> pa.Array:
    """Decode strings in base64."""
    letters, bounds = _letters(texts)
    is_padding = letters == ord("=")
    ends = bounds // 4 * 3 - np.concatenate(([0], np.cumsum(is_padding, dtype=np.int32)))[bounds]
    # Of three bytes, one or two are left out for as many "=" at the end.
    kept = ~is_padding.reshape(-1, 4)[:, 1:].reshape(-1)
    data = _decoded(letters, is_padding)[kept]
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    read = pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    return pc.if_else(texts.is_valid(), read, pa.scalar(None, pa.binary())) if texts.null_count else read


def _floats(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Floats from their bits, or from numbers that were promoted to floats."""
    values = np.zeros(len(texts), kind.to_pandas_dtype())
    size, (letters, bounds) = values.itemsize, _letters(texts)
    width = 12 if size == 8 else 8
    is_padding = letters == ord("=")
    if (np.diff(bounds) == width).all() and is_padding[width - 1 :: width].all():  # no promoted number, and no null
        return pa.array(
            _decoded(letters, is_padding).reshape(-1, width * 3 // 4)[:, :size].copy().view(values.dtype)[:, 0]
        )
    is_bits = pc.ends_with(texts, "=").fill_null(True)
    plain, starts, lengths = spans(_from_base64(pc.if_else(is_bits, texts, "")))
    data = np.frombuffer(plain, np.uint8)
    for bits in np.dtype("<f4"), np.dtype("<f8"):
        chosen = lengths == bits.itemsize
        if chosen.any():
            places = starts[chosen][:, None] + np.arange(bits.itemsize)
            with np.errstate(invalid="ignore"):  # a signalling NaN
                values[chosen] = data[places].view(bits)[:, 0]
    digits = texts.filter(pc.invert(is_bits)).cast(pa.int64())
    values[~is_bits.to_numpy(zero_copy_only=False)] = digits.to_numpy()
    return _where(values, texts)


def _shown(kind: AvroType, value: Any) -> str:
    """A value of a JSON column as `decoded.jsonl` shows it (`avro_resolution`)."""
    if kind.kind == "union":
        ((branch, below),) = value.items()
        return _shown(kind.branches[int(branch)], below)
    if kind.kind == "record":
        fields = (
            f"{_quoted(name)}:{_shown(field, value[str(place)])}" for place, (name, field) in enumerate(kind.fields)
        )
        return "{" + ",".join(fields) + "}"
    if kind.item is not None:
        item = kind.item
        if kind.kind == "array":
            return "[" + ",".join(_shown(item, element) for element in value) + "]"
        return "{" + ",".join(f"{_quoted(entry['k'])}:{_shown(item, entry['v'])}" for entry in value) + "}"
    if kind.kind in ("float", "double"):
        return _shown_float(kind.kind, value)
    return _quoted(value)


def _shown_float(kind: str, value: float | str) -> str:
    if isinstance(value, float) or (isinstance(value, str) and not value.endswith("=")):
        return _quoted(value)
    if isinstance(value, str):
        (number,) = struct.unpack("<f", a2b_base64(value))
    else:
        number = float(str(np.float32(value))) if kind == "float" else float(value)
    return _quoted(number if math.isfinite(number) else _NOT_FINITE[str(number)])


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
