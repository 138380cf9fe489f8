"""Decoding Protobuf data to JSON with the protobuf library."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkafs.decoding import proto_kernel
from kafkafs.decoding.avro_program import POWERS
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.error_texts import shortened
from kafkafs.decoding.message_indexes import CONFLUENT, BadIndexes, TypeNaming, named_type
from kafkafs.decoding.proto_any import (
    AnyTypes,
    TooMuch,
    show_plainly,
)
from kafkafs.decoding.proto_files import compiled_files, longest_name
from kafkafs.decoding.proto_maps import in_order
from kafkafs.decoding.proto_program import ProtoProgram
from storage.types import is_compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.proto_files import Compiled
    from kafkafs.schemas.schema import Schema, SchemaLookup

    Int64s = NDArray[np.int64]

# As an object of the library, a message takes many times its size.
MOST_BYTES: Final = 4 << 20
# The text of n bytes of data has at most MOST_TEXT plus TEXT_PER_BYTE * n bytes, as for Avro. The length is checked
# only if the schema's names could make the text longer than _NOT_COUNTED.
MOST_TEXT: Final = 1 << 20
TEXT_PER_BYTE: Final = 16
_NOT_COUNTED: Final = 64 << 20
_MOST_OF_INDEXES: Final = 64  # data with longer indexes are left to the library
_SLOTS: Final = 1 << 17  # of the kernel: three numbers for each field that occurs, in all messages within each other


class CannotDecode(Exception):
    """A datum that does not fit its schema; the message says why."""


class ProtobufDecoder:
    """Decodes data of one schema. Threads can share it: the library's descriptors do not change."""

    def __init__(self, compiled: Compiled, schemas: SchemaLookup | None = None, naming: TypeNaming = CONFLUENT) -> None:
        """`schemas`: has the types of an Any that the schema itself lacks. `naming`: how the data name their message
        type."""
        self._naming = naming
        self._compiled = compiled  # kept, so that its descriptors are counted
        self._types = AnyTypes(compiled, schemas)
        self._file = compiled.file
        self._classes: dict[tuple[int, ...], Any] = {}  # by message indexes; at most as many as message types
        longest = longest_name(self._file)
        self._longest_name = longest
        self._most_of_kernel = min(MOST_BYTES, _NOT_COUNTED // max(longest, 1))
        self.program = ProtoProgram()

    def message_type(self, indexes: tuple[int, ...]) -> Any:
        """Return the descriptor of a message type. BadIndexes."""
        return self._naming.find(self._file, indexes)

    def decode(self, data: bytes) -> bytes:
        """Return the JSON text of message indexes and message: the proto3 mapping with the field names of the .proto,
        without unset fields. Raises CannotDecode."""
        if len(data) > MOST_BYTES:
            raise CannotDecode(f"Protobuf data are decoded up to {MOST_BYTES >> 20} MiB, these are {len(data)} bytes")
        try:
            indexes, at = self._naming.read(data)
            message = self._class(indexes)()
        except BadIndexes as error:
            raise CannotDecode(str(error)) from None
        try:
            message.MergeFromString(data[at:])  # unlike a whole parse, MergeFromString does not ask for required fields
            show_plainly(message, self._types)
            return self._text(self._fields(message), len(data)).encode()
        except CannotDecode:
            raise
        except TooMuch as error:
            raise CannotDecode(str(error)) from None
        # The library's errors for bad data depend on the type and on its version.
        except Exception as error:  # noqa: BLE001
            raise CannotDecode(_reason(error)) from None

    def decode_rows(
        self, buffer: Buffer, columns: Int64s, rows: Int64s, out: NDArray[np.uint8], position: int, texts: Int64s
    ) -> tuple[int, int]:
        """Decode the ordinary rows among these; the results are `proto_kernel.run`'s. Without a compiled kernel decode
        nothing, because the library is faster then."""
        if not len(rows) or not is_compiled(proto_kernel):
            return len(rows), position
        self._learn(buffer, columns, int(rows[0]))
        slots = np.empty(_SLOTS, np.int64)
        return proto_kernel.run(
            *self.program.arrays, POWERS, buffer, columns, rows, self._most_of_kernel, out, position, texts, slots
        )

    def _learn(self, buffer: Buffer, columns: Int64s, row: int) -> None:
        """Add the message type of this row's data to the kernel's types; most other rows have the same type."""
        start, length = columns[:2, row].tolist()
        begin = bytes(memoryview(buffer).cast("B")[start : start + min(length, _MOST_OF_INDEXES)])
        try:
            indexes, at = self._naming.read(begin)
            kind = self._class(indexes).DESCRIPTOR
        except (BadIndexes, TypeError):  # TypeError is the library's for an invalid type; `decode` reports both
            return
        self.program.add(begin[:at], kind)

    def _text(self, fields: Any, size: int) -> str:
        encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
        longest = max(self._longest_name, self._types.longest_name)
        if size * longest <= _NOT_COUNTED:
            return encoder.encode(fields)
        most, parts, length = MOST_TEXT + TEXT_PER_BYTE * size, [], 0
        for part in encoder.iterencode(fields):
            parts.append(part)
            length += len(part)
            if length > most:
                raise CannotDecode("the JSON text would be longer than 1 MiB and 16 times the data")
        return "".join(parts)

    def _fields(self, message: Any) -> Any:
        from google.protobuf import json_format

        fields = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._types)
        return in_order(fields, message.DESCRIPTOR)

    def _class(self, indexes: tuple[int, ...]) -> Any:
        from google.protobuf import message_factory

        message_class = self._classes.get(indexes)
        if message_class is None:
            message_class = message_factory.GetMessageClass(self.message_type(indexes))
            self._classes[indexes] = message_class
        return message_class


def decoder(schema: Schema, schemas: SchemaLookup, naming: TypeNaming = CONFLUENT) -> ProtobufDecoder:
    """The decoder for data of `schema`. Raises BadSchema, also if grpcio-tools is not installed, or if the file that
    the user names lacks the message type."""
    if not schema.file:
        return ProtobufDecoder(compiled_files(schema, schemas), schemas, naming)
    new = ProtobufDecoder(compiled_files(schema, schemas), schemas, named_type(schema.message))
    try:
        new.message_type(())
    except BadIndexes as error:
        raise BadSchema(str(error)) from None
    return new


def _reason(error: Exception) -> str:
    """An error's reason in one line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)
