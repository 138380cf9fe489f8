"""Plans for decoding the data of each schema of a topic's keys or values: by a program, by the library, or not at
all."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from kafkafs.decoding.error_texts import shortened
from kafkafs.decoding.message_indexes import CONFLUENT, GLUE
from kafkafs.schemas.schema import AVRO, DESCRIPTORS, JSON, PROTOBUF

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafs.decoding.avro_program import Programs
    from kafkafs.decoding.avro_resolution import ValueColumn
    from kafkafs.decoding.protobuf import ProtobufDecoder
    from kafkafs.schemas.schema import Schema, SchemaLookup

    Int64s = NDArray[np.int64]


# The most unknown ids to remember: keys and values that are not Avro can look like any id.
_MOST_UNKNOWN: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """How to decode one schema's data: from the kernel's instruction `entry` on, by the decoder `rows`, or not at all,
    for the reason in `error`. `schema_id`: -1 if the schema has none. `name`: the schema's name in errors, "" if it is
    unknown."""

    entry: int = -1
    rows: ProtobufDecoder | None = None
    error: str = ""
    schema_id: int = -1
    name: str = ""


SchemaKey = int | bytes | UUID | None
"""How data name their schema: by its id, by a GUID in a header (16 bytes), or by a UUID in AWS Glue's framing. None:
the data name no schema, and the user names its file."""


class SchemaPlans:
    """Plans by `SchemaKey` for one subject. Each is made at first use and kept; a schema that was unknown stays
    unknown. Threads can share it; the lock is held while a plan is made."""

    def __init__(
        self, schemas: SchemaLookup, subject: str, programs: Programs, reader: ValueColumn | None = None
    ) -> None:
        """With `reader`, programs show values in the shape of its columns, and only Avro schemas have plans."""
        self._schemas, self._subject, self._programs, self._reader = schemas, subject, programs, reader
        self._lock = threading.Lock()
        self._plans: dict[SchemaKey, SchemaPlan] = {}
        self._unknown: set[SchemaKey] = set()

    def plan(self, which: SchemaKey) -> SchemaPlan:
        """The plan for data with this key."""
        known = self._plans.get(which)
        if known is not None:
            return known
        with self._lock:
            plan = self._plans.get(which)
            if plan is not None:
                return plan
            schema = None if which in self._unknown else self._schema(which)
            if schema is None and which is None:
                return self._plans.setdefault(which, SchemaPlan(error="there is no file with a schema"))
            if schema is None:
                if len(self._unknown) < _MOST_UNKNOWN:
                    self._unknown.add(which)
                named = f"with the GUID {UUID(bytes=which)}" if isinstance(which, bytes) else str(which)
                return SchemaPlan(error=f"there is no schema {named}")
            name = schema.file or f"schema {which if isinstance(which, UUID) else schema.schema_id}"
            new = replace(self._new_plan(schema, which, name), schema_id=schema.schema_id, name=name)
            self._plans[which] = new
            return new

    def _schema(self, which: SchemaKey) -> Schema | None:
        if which is None:
            return self._schemas.of_file(self._subject)
        if isinstance(which, int):
            return self._schemas.by_id(which, self._subject)
        return self._schemas.by_guid(which if isinstance(which, bytes) else which.bytes)

    def _new_plan(self, schema: Schema, which: SchemaKey, name: str) -> SchemaPlan:
        # Imported only when needed: Kafka's own topics are read without schemas.
        from kafkafs.decoding import avro_resolution, avro_schema, protobuf
        from kafkafs.decoding.avro_schema import BadSchema

        try:
            if self._reader is not None:
                if schema.schema_type != AVRO:
                    kind = shortened(schema.schema_type)
                    return SchemaPlan(error=f"{name} is of the type {kind}, not AVRO")
                writer = avro_schema.parse(schema, self._schemas)
                return SchemaPlan(avro_resolution.add(self._programs, writer, self._reader))
            if schema.schema_type == AVRO:
                parsed, of_confluent = avro_schema.parse(schema, self._schemas), isinstance(which, int | bytes)
                return SchemaPlan(self._programs.add_avro(parsed, length_before_bytes=not of_confluent))
            if schema.schema_type == JSON:
                return SchemaPlan(self._programs.add_json())
            if schema.schema_type in (PROTOBUF, DESCRIPTORS):
                naming = GLUE if isinstance(which, UUID) else CONFLUENT
                return SchemaPlan(rows=protobuf.decoder(schema, self._schemas, naming))
            return SchemaPlan(error=f"{name} is of the unknown type {shortened(schema.schema_type)}")
        except BadSchema as error:
            return SchemaPlan(error=f"{name} cannot be used: {shortened(str(error))}")
        except RecursionError:
            return SchemaPlan(error=f"{name} cannot be used: its types are nested too deeply")
