"""How each schema id of a topic's keys or values is decoded: by a program, by a library, or not at all."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kafkafs.decoding import avro_schema, protobuf
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.schemas.schema import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from kafkafs.decoding.avro_program import Programs
    from kafkafs.schemas.schema import Schema, SchemaLookup

# Ids that no schema has, of which it is remembered: keys and values that are no Avro can look like any id.
_MOST_UNKNOWN: Final = 1_000_000


class RowDecoder(Protocol):
    """Decodes one datum (without magic byte and id) to a JSON text. Raises `protobuf.CannotDecode`."""

    def decode(self, data: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """For one schema id: the kernel's first instruction, or a decoder of single rows, or why there is none."""

    entry: int = -1
    rows: RowDecoder | None = None
    error: str = ""


class Plans:
    """Plans by schema id for one subject, made when first asked for and then kept: what was said of an id, that it is
    unknown included, never changes. Threads can share it; the lock guards the making."""

    def __init__(self, schemas: SchemaLookup, subject: str, programs: Programs) -> None:
        self._schemas, self._subject, self._programs = schemas, subject, programs
        self._lock = threading.Lock()
        self._plans: dict[int, Plan] = {}
        self._unknown: set[int] = set()

    def plan(self, schema_id: int) -> Plan:
        """The plan for this id."""
        found = self._plans.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            found = self._plans.get(schema_id)
            if found is not None:
                return found
            schema = None if schema_id in self._unknown else self._schemas.by_id(schema_id, self._subject)
            if schema is None:
                if len(self._unknown) < _MOST_UNKNOWN:
                    self._unknown.add(schema_id)
                return Plan(error=f"there is no schema {schema_id}")
            self._plans[schema_id] = made = self._made(schema)
            return made

    def _made(self, schema: Schema) -> Plan:
        try:
            if schema.schema_type == AVRO:
                return Plan(self._programs.add_avro(avro_schema.parse(schema, self._schemas)))
            if schema.schema_type == JSON:
                return Plan(self._programs.add_json())
            if schema.schema_type == PROTOBUF:
                return Plan(rows=protobuf.decoder(schema, self._schemas))
            return Plan(error=f"schema {schema.schema_id} is of the unknown type {schema.schema_type}")
        except BadSchema as error:
            return Plan(error=f"schema {schema.schema_id} cannot be used: {error}")
        except RecursionError:
            return Plan(error=f"schema {schema.schema_id} cannot be used: its types are nested too deeply")
