"""What Avro's resolution put onto a tape (`avro_resolution.Form`) → Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_resolution import Form, ValueColumn
from kafkafs.decoding.columns import ColumnDecoder, Room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kafkafs.decoding import AvroType
    from kafkafs.schemas.schema import SchemaLookup

    Int64s = NDArray[np.int64]

_ROOM: Final = 1 << 20
_MOST_KEPT: Final = 16 << 20
_MOST_ROWS: Final = 4096


class TypedColumn:
    """Reads the values of a topic as one Avro type, whichever schema wrote them. Not thread-safe."""

    def __init__(self, schemas: SchemaLookup, subject: str, reader: AvroType) -> None:
        """BadSchema if columns cannot express the type."""
        self._column = ValueColumn.of(reader)
        self._decoder = ColumnDecoder(schemas, subject, Programs(), self._column)
        self._room = Room(_ROOM, _ROOM)
        self.type = arrow_type(self._column)

    def read(self, column: pa.Array, guids: Mapping[int, bytes]) -> tuple[pa.Array, Int64s, dict[int, str]]:
        """The values of a binary column, the ids of their schemas, -1 where there is none, and errors by row. `guids`:
        the headers that name schemas (`schema_guids`), by row."""
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
        starts, lengths = bounds[:-1], np.diff(bounds)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        plain = np.frombuffer(b"" if data is None else data, np.uint8).data
        ids, errors = np.empty(len(column), np.int64), dict[int, str]()
        parts: list[pa.Array] = []
        row, room = 0, self._room
        while row < len(column):
            window = slice(row, row + _MOST_ROWS)
            headers = {at - row: header for at, header in guids.items() if at >= row}
            found, end = self._decoder.decode(plain, starts[window], lengths[window], room, 0, headers)
            if not found.rows:
                room.grow()
                continue
            there = found.texts[1, : found.rows] >= 0
            parts.append(_expanded(_Tape(self._column, room, end).array(self._column, int(there.sum())), there))
            ids[row : row + found.rows] = found.ids[: found.rows]
            errors.update((row + at, error) for at, error in found.errors.items())
            row += found.rows
        for at in np.flatnonzero((ids < 0) & (lengths >= 0)).tolist():
            errors.setdefault(at, "it is not in the wire format")
        if len(room.texts) > _MOST_KEPT:
            self._room = Room(_ROOM, _ROOM)
        return pa.concat_arrays([pa.nulls(0, self.type), *parts]), ids, errors


class _Tape:
    """What the kernel left in a room, column by column (`avro_resolution.Form`)."""

    def __init__(self, root: ValueColumn, room: Room, end: int) -> None:
        numbers, values = room.tape[: room.taped].reshape(-1, 2).T
        count = root.end()
        is_text = np.zeros(count, np.bool_)
        _mark_texts(root, is_text)
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        self._bounds = np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=count))))
        self._values = values[order]
        marked = is_text[numbers]
        self._pieces = (np.cumsum(marked) - 1)[order]  # for texts: which of all texts
        offsets = pa.py_buffer(np.concatenate(([0], values[marked])))
        buffers = [None, offsets, pa.py_buffer(room.texts[:end].tobytes())]
        pieces = len(offsets) // 8 - 1
        self._bytes = pa.Array.from_buffers(pa.large_binary(), pieces, buffers)
        self._texts = pa.Array.from_buffers(pa.large_string(), pieces, buffers)

    def array(self, column: ValueColumn, count: int) -> pa.Array:
        """The `count` values of a column."""
        kind = arrow_type(column)
        part = slice(self._bounds[column.number], self._bounds[column.number + 1])
        values = self._values[part]
        match column.form:
            case Form.NOTHING:
                return pa.nulls(count, kind)
            case Form.RECORD:
                return pa.StructArray.from_arrays(
                    [self.array(child, count) for child in column.children], fields=list(kind)
                )
            case Form.MAYBE:
                there = values.astype(np.bool_)
                return _expanded(self.array(column.children[0], int(there.sum())), there)
            case Form.LIST | Form.MAP:
                offsets = pa.array(np.concatenate(([0], np.cumsum(values))), pa.int32())
                items = self.array(column.children[0], offsets[-1].as_py())
                if column.form is Form.LIST:
                    return pa.ListArray.from_arrays(offsets, items, type=kind)
                return pa.MapArray.from_arrays(offsets, self._text(column.number + 1, pa.string()), items)
            case Form.TEXT | Form.JSON:
                return self._text(column.number, kind)
            case Form.DECIMAL:
                upper = slice(self._bounds[column.number + 1], self._bounds[column.number + 2])
                values = np.stack((values, self._values[upper]), 1)
            case Form.CELL if kind == pa.bool_():
                return pa.array(values.astype(np.bool_))
            case Form.CELL if kind.bit_width == 32:
                values = values.astype(np.uint32)  # an int's or a float's bits
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(np.ascontiguousarray(values))])

    def _text(self, number: int, kind: pa.DataType) -> pa.Array:
        pieces = self._texts if kind == pa.string() else self._bytes
        return pieces.take(pa.array(self._pieces[self._bounds[number] : self._bounds[number + 1]])).cast(kind)


def _mark_texts(column: ValueColumn, is_text: NDArray[np.bool_]) -> None:
    if column.form in (Form.TEXT, Form.JSON):
        is_text[column.number] = True
    elif column.form is Form.MAP:
        is_text[column.number + 1] = True
    for child in column.children:
        _mark_texts(child, is_text)


def _expanded(values: pa.Array, there: NDArray[np.bool_]) -> pa.Array:
    """With nulls where there is no value."""
    return values if there.all() else values.take(pa.array(np.cumsum(there) - 1, mask=~there))


def arrow_type(column: ValueColumn) -> pa.DataType:
    """The Arrow type of a column."""
    below = [arrow_type(child) for child in column.children]
    avro = column.avro
    match column.form:
        case Form.RECORD:
            return pa.struct([pa.field(name, kind) for (name, _), kind in zip(avro.fields, below, strict=True)])
        case Form.LIST:
            return pa.list_(below[0])
        case Form.MAP:
            return pa.map_(pa.string(), below[0])
        case Form.MAYBE:
            return below[0]
        case Form.DECIMAL:
            return pa.decimal128(avro.precision, avro.scale)
        case Form.TEXT if avro.kind in ("bytes", "fixed") and avro.logical is None:
            return pa.binary()
        case Form.CELL:
            return _LOGICAL.get(avro.logical or "") or _PLAIN[avro.kind]
    return pa.string()


_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
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
