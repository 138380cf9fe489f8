"""How each schema id of a topic's keys or values is decoded: by a program, by a library, or not at all."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from kafkafs.decoding.framing import shortened
from kafkafs.schemas.registry import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafs.decoding.avro_program import Programs
    from kafkafs.decoding.avro_resolution import ValueColumn
    from kafkafs.decoding.protobuf import ProtobufDecoder
    from kafkafs.schemas.registry import Schema, SchemaLookup

    Int64s = NDArray[np.int64]


# Ids that no schema has, of which it is remembered: keys and values that are no Avro can look like any id.
_MOST_UNKNOWN: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """For one schema: the kernel's first instruction, or a decoder of single rows, or why there is none; and its id,
    -1 if it is unknown."""

    entry: int = -1
    rows: ProtobufDecoder | None = None
    error: str = ""
    schema_id: int = -1


class SchemaPlans:
    """Plans by schema id and GUID for one subject, made when first asked for and then kept: what was said of one never
    changes, also that it is unknown. Threads can share it; the lock guards the making."""

    def __init__(
        self, schemas: SchemaLookup, subject: str, programs: Programs, reader: ValueColumn | None = None
    ) -> None:
        """With `reader` the programs show values in the shape of its columns, and there are none but of Avro."""
        self._schemas, self._subject, self._programs, self._reader = schemas, subject, programs, reader
        self._lock = threading.Lock()
        self._plans: dict[int | bytes, SchemaPlan] = {}  # by id or GUID
        self._unknown: set[int | bytes] = set()

    def plan(self, which: int | bytes) -> SchemaPlan:
        """The plan for this id or GUID (16 bytes)."""
        found = self._plans.get(which)
        if found is not None:
            return found
        with self._lock:
            found = self._plans.get(which)
            if found is not None:
                return found
            schema = None if which in self._unknown else self._schema(which)
            if schema is None:
                if len(self._unknown) < _MOST_UNKNOWN:
                    self._unknown.add(which)
                named = f"schema {which}" if isinstance(which, int) else f"schema with the GUID {UUID(bytes=which)}"
                return SchemaPlan(error=f"there is no {named}")
            self._plans[which] = made = replace(self._made(schema), schema_id=schema.schema_id)
            return made

    def _schema(self, which: int | bytes) -> Schema | None:
        if isinstance(which, int):
            return self._schemas.by_id(which, self._subject)
        return self._schemas.by_guid(which)

    def _made(self, schema: Schema) -> SchemaPlan:
        # Imported here: Kafka's own topics are read without schemas.
        from kafkafs.decoding import avro_resolution, avro_schema, protobuf
        from kafkafs.decoding.avro_schema import BadSchema

        try:
            if self._reader is not None:
                if schema.schema_type != AVRO:
                    kind = shortened(schema.schema_type)
                    return SchemaPlan(error=f"schema {schema.schema_id} is of the type {kind}, not AVRO")
                writer = avro_schema.parse(schema, self._schemas)
                return SchemaPlan(avro_resolution.add(self._programs, writer, self._reader))
            if schema.schema_type == AVRO:
                return SchemaPlan(self._programs.add_avro(avro_schema.parse(schema, self._schemas)))
            if schema.schema_type == JSON:
                return SchemaPlan(self._programs.add_json())
            if schema.schema_type == PROTOBUF:
                return SchemaPlan(rows=protobuf.decoder(schema, self._schemas))
            return SchemaPlan(error=f"schema {schema.schema_id} is of the unknown type {shortened(schema.schema_type)}")
        except BadSchema as error:
            return SchemaPlan(error=f"schema {schema.schema_id} cannot be used: {shortened(str(error))}")
        except RecursionError:
            return SchemaPlan(error=f"schema {schema.schema_id} cannot be used: its types are nested too deeply")
