"""A schema as a registry keeps it, and the questions that a decoder asks (`SchemaLookup`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

AVRO: Final = "AVRO"
PROTOBUF: Final = "PROTOBUF"
DESCRIPTORS: Final = "DESCRIPTORS"
JSON: Final = "JSON"

NEWEST: Final = -1
"""The version of a reference that means the newest one (Confluent's "latest")."""
FILE: Final = -2
"""The version of a reference that means another file; its subject is that file's name in `Registry.files`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An entry of a schema's references: `name` is how the text calls it (an Avro full name, a .proto path, a URI)."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """`schema_id` is the number in the wire format's header, -1 without one; `schema_type` is AVRO, PROTOBUF or JSON.

    `file` is set for the schema of a file that the user has named for a topic (`topic_files`). Its type may also be
    DESCRIPTORS: the text is a compiled Protobuf descriptor set in base64. `message`: the full name of its message type.
    """

    schema_id: int
    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()
    file: str = ""
    message: str = ""


class SchemaLookup(Protocol):
    """Where a decoder finds schemas. Answers may be kept: an id never changes its schema. Threads can share it."""

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        """The schema with this id; `subject` (`<topic>-key`, `<topic>-value`) decides between contexts. None:
        unknown."""

    def by_guid(self, guid: bytes) -> Schema | None:
        """The schema with this GUID (16 bytes, from the header `__key_schema_id` or `__value_schema_id`), or with this
        UUID in AWS Glue's framing."""

    def referenced(self, reference: Reference) -> Schema | None:
        """The schema that a reference names, deleted versions included. None: missing."""

    def by_message_type(self, name: str) -> Schema | None:
        """The Protobuf schema that declares the message type with this full name; always the same if there are several.
        None: unknown."""

    def of_file(self, subject: str) -> Schema | None:
        """The schema of the file that the user has named for this subject, whose data have no framing. None: no such
        file."""


def guid_of(text: str, references: Iterable[Reference]) -> bytes:
    """The GUID that Confluent's registry gives a schema without metadata and rules: an MD5 of its text and of its
    references as they were registered (MD5.ofSchema)."""
    from hashlib import md5

    digest = md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False)
    for reference in references:
        digest.update(reference.name.encode("utf-8", "surrogatepass"))
        digest.update(reference.subject.encode("utf-8", "surrogatepass"))
        digest.update(struct.pack(">i", reference.version))
    return digest.digest()
