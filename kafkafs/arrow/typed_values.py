"""Values of one Avro record schema, or of the first message type of a Protobuf schema → a typed Arrow column.

All values are read as one version of the subject, whichever version wrote them: by Avro's resolution rules, or by the
numbers of Protobuf's fields. That version is chosen by the first run into a directory, so that all its files have the
same columns.

| column | |
|---|---|
| `value` | a struct with the fields of the version; null where there is no value, or it could not be decoded |
| `value_bytes` | the value as it is in the log where it could not be decoded, otherwise null |
| `value_schema_id` | the id of the schema that wrote it |
| `decode_error` | why it could not be decoded |
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafs.arrow.block_texts import schemas_for
from kafkafs.decoding import proto_program, protobuf
from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_resolution import MOST_COLUMNS, Form, ValueColumn
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.decoding.columns import HEADER_SIZE, ColumnDecoder, Room
from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.decoding.framing import shortened
from kafkafs.decoding.guid_headers import GUID_HEADER_SIZE, VALUE_HEADER, is_guid_header
from kafkafs.decoding.message_indexes import BadIndexes
from kafkafs.decoding.proto_any import is_repeated
from kafkafs.schemas.registry import AVRO, PROTOBUF
from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from kafkafs.schemas.registry import Reference, Schema, SchemaLookup
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]


# What Avro's resolution put onto a tape (`avro_resolution.Form`) → Arrow arrays.

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
        the headers that name schemas (`framing.find_guids`), by row."""
        plain, starts, lengths = _spans(column)
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


def _spans(column: pa.Array) -> tuple[memoryview, Int64s, Int64s]:
    """The data of a binary column, and where each value is: starts and lengths, -1 for null."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return np.frombuffer(b"" if data is None else data, np.uint8).data, starts, lengths


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


# Protobuf: the text that decoded.jsonl shows (`TextDecoder`), read as one schema, → Arrow arrays.


class _Converter(NamedTuple):
    """How a field is read from JSON. `unset`: its value where JSON does not name it."""

    type: pa.DataType
    read: Callable[[Any], Any]
    unset: Any = None


class ProtobufColumn:
    """Reads the values of a topic as the first message type of a schema. Not thread-safe.

    Fields that are not set have their default, or null where Protobuf tells that from the default. Timestamps are in
    microseconds, rounded down. JSON text: Duration, Struct, Value, ListValue, Any and messages without fields.
    """

    def __init__(self, schemas: SchemaLookup, subject: str, reader: Schema) -> None:
        """BadSchema if columns cannot express the type."""
        kind = protobuf.decoder(reader, schemas).message_type((0,))
        self._columns = 0
        self._root = self._message(kind, frozenset())
        self._schemas = _ReadAs(schemas, reader, kind.full_name)
        self._decoder = TextDecoder(self._schemas, subject)
        self.type = self._root.type
        if not pa.types.is_struct(self.type):
            raise BadSchema(f"the message type {kind.full_name} has no fields")

    def read(self, column: pa.Array, guids: Mapping[int, bytes]) -> tuple[pa.Array, Int64s, dict[int, str]]:
        """As `TypedColumn.read`."""
        plain, starts, lengths = _spans(column)
        texts, ends, ids, errors = self._decoder.decode(plain, starts, lengths, guids)
        for row in np.flatnonzero(lengths >= 0).tolist():
            start, here = int(starts[row]) + HEADER_SIZE, int(ids[row])
            first = guids[row][GUID_HEADER_SIZE:] if row in guids else bytes(plain[start : start + 2])
            if here < 0:
                errors.setdefault(row, "it is not in the wire format")
            elif here in self._schemas.others:
                errors[row] = self._schemas.others[here]
            elif first[:1] != b"\0" and first[:2] != b"\2\0" and (first or row not in guids):
                errors[row] = f"it is not of the first message type of schema {here}"
        data, begins = texts.tobytes(), np.concatenate(([0], ends[:-1])).tolist()
        there = [row for row in np.flatnonzero(lengths >= 0).tolist() if row not in errors]
        read = json.loads(b"[%b]" % b",".join(data[begins[row] : int(ends[row])] for row in there))
        values: list[Any] = [None] * len(column)
        for row, value in zip(there, read, strict=True):
            values[row] = self._root.read(value)
        return pa.array(values, self.type), ids, errors

    def _field(self, field: Any, within: frozenset[str]) -> _Converter:
        self._columns += 1
        if self._columns > MOST_COLUMNS:
            raise BadSchema(f"it has more than {MOST_COLUMNS} columns")
        below = field.message_type
        if below is not None and below.GetOptions().map_entry:
            key, value = (self._field(below.fields_by_name[name], within) for name in ("key", "value"))
            return _Converter(
                pa.map_(key.type, value.type),
                lambda found: [(key.read(name), value.read(one)) for name, one in found.items()],
                [],
            )
        one = self._one(field, within)
        if is_repeated(field):
            return _Converter(pa.list_(one.type), lambda found: [one.read(item) for item in found], [])
        return one._replace(unset=None) if field.has_presence else one

    def _one(self, field: Any, within: frozenset[str]) -> _Converter:
        if field.message_type is not None:
            return self._message(field.message_type, within)
        if field.enum_type is not None:
            if field.enum_type.full_name == "google.protobuf.NullValue":
                return _JSON
            return _Converter(pa.string(), str, field.enum_type.values[0].name)
        return _PROTOBUF[field.type]

    def _message(self, kind: Any, within: frozenset[str]) -> _Converter:
        if kind.full_name in within:
            raise BadSchema(f"{kind.full_name} contains itself")
        match proto_program.kind_of(kind):
            case proto_program.Kind.TIMESTAMP:
                return _Converter(pa.timestamp("us", tz="UTC"), datetime.fromisoformat)
            case proto_program.Kind.WRAPPER:
                return self._one(kind.fields_by_name["value"], within)
            case proto_program.Kind.MESSAGE if kind.fields:
                fields = [(field.name, self._field(field, within | {kind.full_name})) for field in kind.fields]
                return _Converter(
                    pa.struct([pa.field(name, field.type) for name, field in fields]),
                    lambda found: {
                        name: field.read(found[name]) if name in found else field.unset for name, field in fields
                    },
                )
        return _JSON


class _ReadAs:
    """Schemas of which those of one Protobuf message type are answered with `reader`. `others`: ids of the rest, and
    why their values cannot be read so. For one thread."""

    def __init__(self, schemas: SchemaLookup, reader: Schema, name: str) -> None:
        self._schemas, self._reader, self._name = schemas, reader, name
        self.others: dict[int, str] = {}

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self._as_reader(self._schemas.by_id(schema_id, subject))

    def by_guid(self, guid: bytes) -> Schema | None:
        return self._as_reader(self._schemas.by_guid(guid))

    def referenced(self, reference: Reference) -> Schema | None:
        return self._schemas.referenced(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self._schemas.by_message_type(name)

    def _as_reader(self, found: Schema | None) -> Schema | None:
        if found is None:
            return None
        kind = shortened(found.schema_type)
        if found.schema_type == PROTOBUF:
            try:
                kind = protobuf.decoder(found, self._schemas).message_type((0,)).full_name
            except (BadSchema, BadIndexes) as error:
                kind = shortened(str(error))
            if kind == self._name:
                return replace(self._reader, schema_id=found.schema_id)
        self.others[found.schema_id] = f"schema {found.schema_id} is of the type {kind}, not {self._name}"
        return found


def _is_true(found: Any) -> bool:
    return found in (True, "true")  # a map's key is a text


_JSON: Final = _Converter(pa.string(), partial(json.dumps, ensure_ascii=False, separators=(",", ":")))
_INT32: Final = _Converter(pa.int32(), int, 0)
_INT64: Final = _Converter(pa.int64(), int, 0)
_PROTOBUF: Final[dict[int, _Converter]] = {  # by FieldDescriptorProto.Type
    1: _Converter(pa.float64(), float, 0.0),
    2: _Converter(pa.float32(), float, 0.0),
    3: _INT64,
    4: _Converter(pa.decimal128(20, 0), Decimal, Decimal(0)),
    5: _INT32,
    6: _Converter(pa.decimal128(20, 0), Decimal, Decimal(0)),
    7: _INT64,
    8: _Converter(pa.bool_(), _is_true, False),
    9: _Converter(pa.string(), str, ""),
    12: _Converter(pa.binary(), b64decode, b""),
    13: _INT64,
    15: _INT32,
    16: _INT64,
    17: _INT32,
    18: _INT64,
}


@dataclass(frozen=True, slots=True)
class TypedForm:
    """What a worker needs: the values of `topic` are read as the schema `schema_id`."""

    topic: str
    schema_id: int
    paths: tuple[Path, ...]
    schemas: Path | None

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    def reader(self) -> Schema:
        """The schema. InvalidConfig if it is not there any longer."""
        found = schemas_for(self.paths, self.schemas).by_id(self.schema_id, self.subject)
        if found is None:
            raise InvalidConfig(
                f"the schema {self.schema_id}, as which this directory's files have their values, is not here",
                path=self.schemas or self.paths[0],
                advice="Name the place that has it with --schemas, or export to another directory",
            )
        return found


def typed_form(
    paths: tuple[Path, ...], schemas: Path | None, chosen: Iterable[TopicPartition], before: int | None
) -> TypedForm:
    """The form of an export of these partitions. `before`: the schema of the directory's files; None: it has none yet.

    InvalidConfig unless they are of one topic whose newest schema is an Avro record or a Protobuf message that columns
    can express.
    """
    topics = sorted({tp.topic for tp in chosen})
    if len(topics) != 1:
        raise InvalidConfig(
            "decoded values are exported topic by topic, because each has columns of its own",
            expected="one topic",
            found=", ".join(topics[:5]) or "none",
        )
    source = schemas_for(paths, schemas)
    form = TypedForm(topics[0], -1 if before is None else before, paths, schemas)
    if before is None:
        newest = source.registry().newest(form.subject)
        if newest is None:
            raise InvalidConfig(f"the subject {form.subject} has no schema", path=schemas or paths[0])
        form = TypedForm(form.topic, newest.schema.schema_id, paths, schemas)
    try:
        _column(form, source)
    except BadSchema as error:
        raise InvalidConfig(
            f"the values of {form.topic} cannot be columns: schema {form.schema_id}: {error}",
            advice="spark.read.format('kafkafs') with the option decode has them as JSON",
        ) from None
    return form


class TypedValues:
    """Turns the values of Arrow batches into typed columns. For one task; not thread-safe."""

    def __init__(self, form: TypedForm, *, keep_headers: bool = True) -> None:
        """The batches have a column of headers, which name the schemas of some values; `keep_headers`: they keep it."""
        source = schemas_for(form.paths, form.schemas)
        self._column = _column(form, source)
        self._keep_headers = keep_headers
        self.undecoded = 0  # values so far that are null because of an error
        self.type: pa.DataType = self._column.type  # of the column `value`

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of the module's description in place of `value`."""
        at = batch.schema.get_field_index("value")
        column = batch.column(at)
        typed, ids, errors = self._column.read(column, _guids(batch))
        self.undecoded += len(errors)
        failed = np.zeros(len(column), np.bool_)
        failed[list(errors)] = True
        batch = batch.set_column(at, pa.field("value", self._column.type), typed)
        for name, added in (
            ("value_bytes", pc.if_else(pa.array(failed), column, pa.scalar(None, column.type))),
            ("value_schema_id", pa.array(ids, mask=ids < 0)),
            ("decode_error", pa.array([errors.get(row) for row in range(len(column))], pa.string())),
        ):
            here = batch.schema.get_field_index(name)
            if here < 0:
                batch = batch.append_column(name, added)
            elif name == "decode_error":  # what is wrong with its text comes first
                batch = batch.set_column(here, name, pc.coalesce(batch.column(here), added))
        return batch if self._keep_headers else batch.drop_columns(["headers"])


def _guids(batch: pa.RecordBatch) -> dict[int, bytes]:
    """The headers that name schemas of values, by row; of several the last."""
    headers = batch.column(batch.schema.get_field_index("headers"))
    entries = headers.flatten()
    if not len(entries):
        return {}
    named = pc.equal(entries.field(0), VALUE_HEADER.decode()).to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(headers).to_numpy()
    found = {int(rows[at]): entries.field(1)[int(at)].as_py() for at in np.flatnonzero(named)}
    return {row: value for row, value in found.items() if value is not None and is_guid_header(value)}


def _column(form: TypedForm, schemas: SchemaLookup) -> TypedColumn | ProtobufColumn:
    """What reads the values. BadSchema if columns cannot express the schema."""
    schema = form.reader()
    if schema.schema_type == PROTOBUF:
        return ProtobufColumn(schemas, form.subject, schema)
    if schema.schema_type != AVRO:
        raise BadSchema(f"it is of the type {schema.schema_type}, not AVRO or PROTOBUF")
    parsed = parse_avro(schema, schemas)
    if parsed.kind != "record":
        raise BadSchema(f"it is of the type {parsed}, not a record")
    return TypedColumn(schemas, form.subject, parsed)
