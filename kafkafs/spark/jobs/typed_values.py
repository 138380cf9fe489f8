"""Values of one Avro record schema → a typed Arrow column, for the export with `decode`.

All values are read as one version of the subject, whichever version wrote them, by Avro's resolution rules (fastavro).
That version is chosen by the first run into a directory, so that all its files have the same columns.

| column | |
|---|---|
| `value` | a struct with the fields of the version; null where there is no value, or it could not be decoded |
| `value_bytes` | the value as it is in the log where it could not be decoded, otherwise null |
| `value_schema_id` | the id of the schema that wrote it |
| `decode_error` | why it could not be decoded |
"""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafs.decoding import AvroType, BadSchema, TextDecoder, parse_avro
from kafkafs.decoding.schema_guids import VALUE_HEADER, is_guid_header
from kafkafs.schemas.schema import AVRO
from kafkafs.spark.decoded_columns import schemas_for
from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkafs.schemas.schema import Schema, SchemaLookup
    from storage.types import TopicPartition

_MOST_PRECISION: Final = 38  # of decimal128, and of Spark's decimals
_HEADER_BYTES: Final = 5
_STEP: Final = 256
_LARGE_BYTES: Final = 16 << 20

_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TypedForm:
    """What a worker needs: the values of `topic` are read as the schema `schema_id`."""

    topic: str
    schema_id: int
    log_dir: Path
    schemas: Path | None

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    def reader(self) -> Schema:
        """The schema. InvalidConfig if it is not there any longer."""
        found = schemas_for((self.log_dir,), self.schemas).by_id(self.schema_id, self.subject)
        if found is None:
            raise InvalidConfig(
                f"the schema {self.schema_id}, as which this directory's files have their values, is not here",
                path=self.log_dir,
                advice="Name the place that has it with --schemas, or export to another directory",
            )
        return found


def typed_form(log_dir: Path, schemas: Path | None, chosen: Iterable[TopicPartition], before: int | None) -> TypedForm:
    """The form of an export of these partitions. `before`: the schema of the directory's files; None: it has none yet.

    InvalidConfig unless they are of one topic whose newest schema is an Avro record that columns can express.
    """
    if find_spec("fastavro") is None:
        raise InvalidConfig("decoded values need the packages of an extra: pip install 'kafkafs[schemas]'")
    topics = sorted({tp.topic for tp in chosen})
    if len(topics) != 1:
        raise InvalidConfig(
            "decoded values are exported topic by topic, because each has columns of its own",
            expected="one topic",
            found=", ".join(topics[:5]) or "none",
        )
    source = schemas_for((log_dir,), schemas)
    form = TypedForm(topics[0], -1 if before is None else before, log_dir, schemas)
    if before is None:
        newest = source.registry().newest(form.subject)
        if newest is None:
            raise InvalidConfig(f"the subject {form.subject} has no schema", path=schemas or log_dir)
        form = TypedForm(form.topic, newest.schema.schema_id, log_dir, schemas)
    try:
        arrow_type(_record(form.reader(), source))
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
        source = schemas_for((form.log_dir,), form.schemas)
        record = _record(form.reader(), source)
        self._keep_headers = keep_headers
        self._schemas: SchemaLookup = source
        self._subject = form.subject
        self._type = arrow_type(record)
        self._convert = _converter(record)
        self._reader = _parsed(form.reader(), source)
        self._writers: dict[int, Any] = {}
        # It knows every fault and limit of the data, which fastavro does not.
        self._checks = TextDecoder(source, form.subject)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of the module's description in place of `value`."""
        at = batch.schema.get_field_index("value")
        column = batch.column(at)
        values: list[Any] = []
        ids: list[int | None] = []
        errors: list[str | None] = []
        guids = _guids(batch)
        row, step = 0, _STEP
        while row < len(column):
            part = column.slice(row, step)
            headers = {at - row: header for at, header in guids.items() if row <= at < row + len(part)}
            found_ids, found_errors, size = self._checked(part, headers)
            for index, raw in enumerate(part.to_pylist()):
                error = found_errors.get(index)
                value, error = self._value(raw, found_ids[index], error, is_framed=index not in headers)
                values.append(value)
                errors.append(error)
                ids.append(None if found_ids[index] < 0 else found_ids[index])
            row += len(part)
            # A few bytes may decode to a text a thousand times as long.
            step = max(1, step // 8) if size > _LARGE_BYTES else min(2 * step, _STEP)
        typed = self._column(values, errors)
        raw_left = pa.array(
            [raw if error is not None else None for raw, error in zip(column.to_pylist(), errors, strict=True)],
            pa.binary(),
        )
        batch = batch.set_column(at, pa.field("value", self._type), typed)
        for name, added in (
            ("value_bytes", raw_left),
            ("value_schema_id", pa.array(ids, pa.int64())),
            ("decode_error", pa.array(errors, pa.string())),
        ):
            batch = batch.append_column(name, added)
        return batch if self._keep_headers else batch.drop_columns(["headers"])

    def _checked(self, column: pa.Array, guids: dict[int, bytes]) -> tuple[list[int], dict[int, str], int]:
        """The ids and errors of values, and the size of their texts."""
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
        lengths = np.diff(bounds)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        plain = np.frombuffer(b"" if data is None else data, np.uint8)
        texts, _, ids, errors = self._checks.decode(plain.data, bounds[:-1], lengths, guids)
        return ids.tolist(), errors, len(texts)

    def _value(
        self, raw: bytes | None, schema_id: int, error: str | None, *, is_framed: bool
    ) -> tuple[Any, str | None]:
        """The value as fastavro reads it, and why there is none."""
        from fastavro import schemaless_reader

        if raw is None or error is not None:
            return None, error
        if schema_id < 0:
            return None, "it is not in the wire format"
        try:
            writer = self._writer(schema_id)
            data = raw[_HEADER_BYTES:] if is_framed else raw
            found = schemaless_reader(io.BytesIO(data), writer, self._reader)
            return self._convert(found), None
        # What fastavro raises for schemas that do not resolve, and for dates beyond Python's, is of many kinds.
        except Exception as problem:  # noqa: BLE001
            text = " ".join(str(problem).split())[:300] or type(problem).__name__
            return None, f"schema {schema_id} is not read as the newest one: {text}"

    def _writer(self, schema_id: int) -> Any:
        if schema_id not in self._writers:
            schema = self._schemas.by_id(schema_id, self._subject)
            if schema is None or schema.schema_type != AVRO:
                raise BadSchema("it is not Avro")
            self._writers[schema_id] = _parsed(schema, self._schemas)
        return self._writers[schema_id]

    def _column(self, values: list[Any], errors: list[str | None]) -> pa.Array:
        """The values as Arrow; one that Arrow refuses becomes null, and gets an error."""
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self._type)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    values[row], errors[row] = None, f"a column cannot express it: {error}"
            return pa.array(values, self._type)


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


def arrow_type(avro: AvroType, within: tuple[AvroType, ...] = ()) -> pa.DataType:
    """The Arrow type of an Avro type. BadSchema for one that contains itself."""
    if avro in within:
        raise BadSchema(f"{avro} contains itself")
    below = (*within, avro)
    match avro.kind:
        case "record":
            return pa.struct([pa.field(name, arrow_type(field, below)) for name, field in avro.fields])
        case "array":
            assert avro.item is not None
            return pa.list_(arrow_type(avro.item, below))
        case "map":
            assert avro.item is not None
            return pa.map_(pa.string(), arrow_type(avro.item, below))
        case "union":
            branches = _branches(avro)
            return arrow_type(branches[0], below) if len(branches) == 1 else pa.string()
    if avro.logical == "decimal":
        return pa.decimal128(avro.precision, avro.scale) if avro.precision <= _MOST_PRECISION else pa.string()
    return _LOGICAL.get(avro.logical or "") or _PLAIN[avro.kind]


def _branches(avro: AvroType) -> list[AvroType]:
    return [branch for branch in avro.branches if branch.kind != "null"]


_PLAIN: Final[dict[str, pa.DataType]] = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "time-millis": pa.string(),  # readers of Parquet differ in what they make of times of day
    "time-micros": pa.string(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


def _converter(avro: AvroType) -> _Convert:
    """What makes of fastavro's value what Arrow takes."""
    match avro.kind:
        case "record":
            fields = [(name, _converter(field)) for name, field in avro.fields]
            return lambda value: {name: convert(value[name]) for name, convert in fields}
        case "array":
            assert avro.item is not None
            item = _converter(avro.item)
            return lambda value: [item(one) for one in value]
        case "map":
            assert avro.item is not None
            item = _converter(avro.item)
            return lambda value: [(key, item(one)) for key, one in value.items()]
        case "union":
            branches = _branches(avro)
            convert = _converter(branches[0]) if len(branches) == 1 else _json
            return lambda value: None if value is None else convert(value)
    is_text = avro.logical in ("uuid", "time-millis", "time-micros") or (
        avro.logical == "decimal" and avro.precision > _MOST_PRECISION
    )
    return _text if is_text else lambda value: value


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.time) else str(value)


def _json(value: Any) -> str:
    """The value of a union of several types."""

    def other(found: Any) -> str:
        if isinstance(found, bytes):
            return base64.b64encode(found).decode()
        return found.isoformat() if hasattr(found, "isoformat") else str(found)

    return json.dumps(value, default=other, ensure_ascii=False)


def _record(schema: Schema, schemas: SchemaLookup) -> AvroType:
    """The type of a schema. BadSchema unless it is a record's."""
    if schema.schema_type != AVRO:
        raise BadSchema(f"it is of the type {schema.schema_type}, not AVRO")
    parsed = parse_avro(schema, schemas)
    if parsed.kind != "record":
        raise BadSchema(f"it is of the type {parsed}, not a record")
    return parsed


def _parsed(schema: Schema, schemas: SchemaLookup) -> Any:
    """As fastavro takes it, with the schemas that it refers to."""
    from fastavro.schema import parse_schema

    named: dict[str, Any] = {}
    seen: set[tuple[str, int]] = set()

    def add(one: Schema) -> Any:
        for reference in one.references:
            place = reference.subject, reference.version
            if place in seen:
                continue
            seen.add(place)
            found = schemas.referenced(reference)
            if found is None:
                raise BadSchema(f"refers to {reference.name}, which is not among the schemas")
            add(found)
        return parse_schema(json.loads(one.text), named_schemas=named)

    return add(schema)
