"""One schema as a registry keeps it, and what a decoder asks of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

AVRO: Final = "AVRO"
PROTOBUF: Final = "PROTOBUF"
JSON: Final = "JSON"


@dataclass(frozen=True, slots=True)
class Reference:
    """One entry of a schema's references: `name` is how the text calls it (an Avro full name, a .proto path, a URI)."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """`schema_id` is the number in the wire format's header; `schema_type` is AVRO, PROTOBUF or JSON."""

    schema_id: int
    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()


class SchemaLookup(Protocol):
    """Where a decoder finds schemas. Answers may be kept: an id never changes its schema. Threads can share it."""

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        """The schema with this id; `subject` (`<topic>-key`, `<topic>-value`) tells contexts apart. None: unknown."""

    def by_guid(self, guid: bytes) -> Schema | None:
        """The schema with this GUID (16 bytes, from the header `__key_schema_id` or `__value_schema_id`)."""

    def referenced(self, reference: Reference) -> Schema | None:
        """The schema that a reference names, deleted versions included. None: it is not there."""
