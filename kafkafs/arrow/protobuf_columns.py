"""Values of a Protobuf schema's first message type to a typed Arrow column, by way of the JSON that `decoded.jsonl`
shows."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkafs.arrow.spans import spans
from kafkafs.decoding import proto_program, protobuf
from kafkafs.decoding.avro_resolution import MOST_COLUMNS
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.columns import HEADER_SIZE
from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.decoding.error_texts import shortened
from kafkafs.decoding.guid_headers import GUID_HEADER_SIZE
from kafkafs.decoding.message_indexes import BadIndexes
from kafkafs.decoding.proto_any import is_repeated
from kafkafs.schemas.schema import PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kafkafs.schemas.schema import Reference, Schema, SchemaLookup

    Int64s = NDArray[np.int64]


class _Converter(NamedTuple):
    """How to read a field from JSON. `unset`: its value if the JSON lacks it."""

    type: pa.DataType
    read: Callable[[Any], Any]
    unset: Any = None


class ProtobufColumn:
    """Reads the values of a topic as the first message type of a schema. Not thread-safe.

    Fields that are not set have their default, or null if Protobuf distinguishes unset fields from the default.
    Timestamps are in microseconds, rounded down. JSON text: Duration, Struct, Value, ListValue, Any and messages
    without fields.
    """

    def __init__(self, schemas: SchemaLookup, subject: str, reader: Schema) -> None:
        """BadSchema if columns cannot express the type."""
        kind = protobuf.decoder(reader, schemas).message_type(_FIRST)
        self._columns = 0
        self._root = self._message(kind, frozenset())
        self._schemas = _ReadAs(schemas, reader, kind.full_name)
        self._decoder = TextDecoder(self._schemas, subject)
        self.type = self._root.type
        if not pa.types.is_struct(self.type):
            raise BadSchema(f"the message type {kind.full_name} has no fields")

    def read(self, column: pa.Array, guids: Mapping[int, bytes]) -> tuple[pa.Array, Int64s, dict[int, str]]:
        """Read a binary column; arguments and result are those of `AvroColumn.read`."""
        plain, starts, lengths = spans(column)
        texts, ends, ids, errors = self._decoder.decode(plain, starts, lengths, guids)
        for row in np.flatnonzero(lengths >= 0).tolist():
            start, schema_id = int(starts[row]) + HEADER_SIZE, int(ids[row])
            first = guids[row][GUID_HEADER_SIZE:] if row in guids else bytes(plain[start : start + 2])
            if schema_id < 0:
                if not self._schemas.has_file:
                    errors.setdefault(row, "it is not in the wire format")
            elif schema_id in self._schemas.others:
                errors[row] = self._schemas.others[schema_id]
            elif first[:1] != b"\0" and first[:2] != b"\2\0" and (first or row not in guids):
                errors[row] = f"it is not of the first message type of schema {schema_id}"
        data, begins = texts.tobytes(), np.concatenate(([0], ends[:-1])).tolist()
        decoded_rows = [row for row in np.flatnonzero(lengths >= 0).tolist() if row not in errors]
        read = json.loads(b"[%b]" % b",".join(data[begins[row] : int(ends[row])] for row in decoded_rows))
        values: list[Any] = [None] * len(column)
        for row, value in zip(decoded_rows, read, strict=True):
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
                lambda content: [(key.read(name), value.read(single)) for name, single in content.items()],
                [],
            )
        single = self._one(field, within)
        if is_repeated(field):
            return _Converter(pa.list_(single.type), lambda content: [single.read(item) for item in content], [])
        return single._replace(unset=None) if field.has_presence else single

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
    """Schemas whose message type can be read as `reader`'s are all replaced by `reader`. `others`: ids of other
    schemas, with the reasons why their values cannot be read. For one thread."""

    def __init__(self, schemas: SchemaLookup, reader: Schema, name: str) -> None:
        self._schemas, self._reader, self._name = schemas, reader, name
        self.others: dict[int, str] = {}
        self.has_file = False  # whether the schema of values without an id is in a file; known after `of_file`

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self._as_reader(self._schemas.by_id(schema_id, subject))

    def by_guid(self, guid: bytes) -> Schema | None:
        return self._as_reader(self._schemas.by_guid(guid))

    def referenced(self, reference: Reference) -> Schema | None:
        return self._schemas.referenced(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self._schemas.by_message_type(name)

    def of_file(self, subject: str) -> Schema | None:
        schema = self._schemas.of_file(subject)
        self.has_file = schema is not None
        return schema

    def _as_reader(self, schema: Schema | None) -> Schema | None:
        if schema is None:
            return None
        kind = shortened(schema.schema_type)
        if schema.schema_type == PROTOBUF:
            try:
                kind = protobuf.decoder(schema, self._schemas).message_type(_FIRST).full_name
            except (BadSchema, BadIndexes) as error:
                kind = shortened(str(error))
            if kind == self._name:
                return replace(self._reader, schema_id=schema.schema_id)
        self.others[schema.schema_id] = f"schema {schema.schema_id} is of the type {kind}, not {self._name}"
        return schema


def _is_true(content: Any) -> bool:
    return content in (True, "true")  # a map's key is a text


_FIRST: Final = (0,)  # ignored where the user has named the type
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
