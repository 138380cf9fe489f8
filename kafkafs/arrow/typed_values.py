"""Values of one Avro record schema, or of the first message type of a Protobuf schema, to a typed Arrow column.

All values are read as one version of the subject, whichever version wrote them: by Avro's resolution rules
(`avro_columns`), or by the numbers of Protobuf's fields (`protobuf_columns`). The first run into a directory chooses
the version, so that all its files have the same columns.

| column | |
|---|---|
| `value` | a struct with the fields of the version; null if there is no value, or it could not be decoded |
| `value_bytes` | the value's bytes in the log if it could not be decoded, otherwise null |
| `value_schema_id` | the id of the schema that wrote it |
| `decode_error` | why it could not be decoded |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafs.arrow.avro_columns import AvroColumn
from kafkafs.arrow.protobuf_columns import ProtobufColumn
from kafkafs.arrow.topic_schemas import schemas_for
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.decoding.guid_headers import VALUE_HEADER, is_guid_header
from kafkafs.schemas.schema import AVRO, DESCRIPTORS, PROTOBUF
from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkafs.schemas.places import SchemaPlaces
    from kafkafs.schemas.schema import Schema, SchemaLookup
    from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TypedForm:
    """A worker's instructions: read the values of `topic` as the schema `schema_id`. A negative number stands for the
    schema of the file that the user names (`_number`)."""

    topic: str
    schema_id: int
    paths: tuple[Path, ...]
    schemas: SchemaPlaces

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    def reader(self) -> Schema:
        """The schema. InvalidConfig if it no longer exists."""
        source = schemas_for(self.paths, self.schemas)
        schema = source.by_id(self.schema_id, self.subject) if self.schema_id >= 0 else source.of_file(self.subject)
        if schema is None or (self.schema_id < 0 and _number(schema) != self.schema_id):
            named = f"schema {self.schema_id}" if self.schema_id >= 0 else "schema of the file"
            raise InvalidConfig(
                f"the {named}, which this directory's files use for their values, is missing",
                path=self.schemas.directory or self.paths[0],
                advice="Name the place that has it with --schemas, or export to another directory",
            )
        return schema


def typed_form(
    paths: tuple[Path, ...], schemas: SchemaPlaces, chosen: Iterable[TopicPartition], before: int | None
) -> TypedForm:
    """The form of an export of these partitions. `before`: the schema of the directory's files; None if there are none.

    InvalidConfig unless they belong to one topic, whose newest schema is an Avro record or a Protobuf message that
    columns can express.
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
        schema, newest = source.of_file(form.subject), source.registry().newest(form.subject)
        if schema is None and newest is not None:
            schema = newest.schema
        if schema is None:
            raise InvalidConfig(f"the subject {form.subject} has no schema", path=schemas.directory or paths[0])
        form = TypedForm(form.topic, _number(schema), paths, schemas)
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
        """The batches must have the column `headers`, because headers name the schemas of some values. Without
        `keep_headers` it is removed."""
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
            index = batch.schema.get_field_index(name)
            if index < 0:
                batch = batch.append_column(name, added)
            elif name == "decode_error":  # the error of the text comes first
                batch = batch.set_column(index, name, pc.coalesce(batch.column(index), added))
        return batch if self._keep_headers else batch.drop_columns(["headers"])


def _number(schema: Schema) -> int:
    """The id of a schema; for the schema of a file a negative number, which changes with its content."""
    if not schema.file:
        return schema.schema_id
    return -1 - crc32(f"{schema.schema_type} {schema.message} {schema.text}".encode())


def _guids(batch: pa.RecordBatch) -> dict[int, bytes]:
    """By row, the header that names the schema of the value; if a record has several, the last."""
    headers = batch.column(batch.schema.get_field_index("headers"))
    entries = headers.flatten()
    if not len(entries):
        return {}
    named = pc.equal(entries.field(0), VALUE_HEADER.decode()).to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(headers).to_numpy()
    by_row = {int(rows[at]): entries.field(1)[int(at)].as_py() for at in np.flatnonzero(named)}
    return {row: value for row, value in by_row.items() if value is not None and is_guid_header(value)}


def _column(form: TypedForm, schemas: SchemaLookup) -> AvroColumn | ProtobufColumn:
    """The reader of the values. BadSchema if columns cannot express the schema."""
    schema = form.reader()
    if schema.schema_type in (PROTOBUF, DESCRIPTORS):
        return ProtobufColumn(schemas, form.subject, schema)
    if schema.schema_type != AVRO:
        raise BadSchema(f"it is of the type {schema.schema_type}, not AVRO or PROTOBUF")
    parsed = parse_avro(schema, schemas)
    if parsed.kind != "record":
        raise BadSchema(f"it is of the type {parsed}, not a record")
    return AvroColumn(schemas, form.subject, parsed)
