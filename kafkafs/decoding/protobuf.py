"""Protobuf data to JSON, and JSON to data, by the protobuf library."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkafs.decoding import proto_kernel
from kafkafs.decoding.avro_program import POWERS
from kafkafs.decoding.does_not_fit import DoesNotFit, shortened
from kafkafs.decoding.proto_files import compiled_files
from kafkafs.decoding.proto_indexes import BadIndexes, indexes_of, read_indexes, write_indexes
from kafkafs.decoding.proto_order import in_order
from kafkafs.decoding.proto_program import ProtoProgram

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.proto_files import Compiled
    from kafkafs.schemas.schema import Schema, SchemaLookup

    Int64s = NDArray[np.int64]

# A message takes many times its size while it is an object of the library.
_MOST_BYTES: Final = 4 << 20
# The text of n bytes of data is at most this long and 16 n, as for Avro. It is counted where the schema's names could
# make it longer than the second number.
_MOST_TEXT: Final = 1 << 20
_NOT_COUNTED: Final = 64 << 20
_MOST_WITHIN_EACH_OTHER: Final = 100  # messages below the outermost one: the limit of the library's decoding
_MOST_OF_INDEXES: Final = 64  # longer ones are for the library alone
_SLOTS: Final = 1 << 14  # of the kernel: three numbers for each field of the messages that are within each other
_FLOAT_MAX: Final = 3.4028234663852886e38


class CannotDecode(Exception):
    """A datum that its schema does not fit; the message says why."""


class ProtobufDecoder:
    """For the data of one schema. Threads can share it: the library's descriptors do not change."""

    def __init__(self, compiled: Compiled) -> None:
        self._pool, self._file, self.descriptors = compiled
        self._classes: dict[tuple[int, ...], Any] = {}  # by message indexes; there are as many as message types
        longest = _longest_name(self._file)
        self._longest_name = longest
        self._most_of_kernel = min(_MOST_BYTES, _NOT_COUNTED // max(longest, 1))
        self.program = ProtoProgram()

    def decode(self, data: bytes) -> bytes:
        """The JSON text of message indexes and message: the proto3 mapping with the field names of the .proto, unset
        fields left out. Raises CannotDecode."""
        if len(data) > _MOST_BYTES:
            raise CannotDecode(f"Protobuf data are decoded up to {_MOST_BYTES >> 20} MiB, these are {len(data)} bytes")
        try:
            indexes, at = read_indexes(data)
            message = self._class(indexes)()
        except BadIndexes as error:
            raise CannotDecode(str(error)) from None
        try:
            message.MergeFromString(data[at:])  # unlike a whole parse it does not ask for required fields
            return self._text(self._fields(message), len(data)).encode()
        except CannotDecode:
            raise
        # What the library raises for bad data depends on the type, and on its version.
        except Exception as error:  # noqa: BLE001
            raise CannotDecode(_reason(error)) from None

    def decode_rows(
        self, buffer: Buffer, columns: Int64s, rows: Int64s, out: NDArray[np.uint8], position: int, texts: Int64s
    ) -> tuple[int, int]:
        """Decodes what is ordinary of these rows, as `proto_kernel.run` does, with the same results. Nothing without a
        compiled kernel, since the library is faster then."""
        if not len(rows) or not proto_kernel.is_compiled():
            return len(rows), position
        self._learn(buffer, columns, int(rows[0]))
        slots = np.empty(_SLOTS, np.int64)
        return proto_kernel.run(
            *self.program.arrays, POWERS, buffer, columns, rows, self._most_of_kernel, out, position, texts, slots
        )

    def _learn(self, buffer: Buffer, columns: Int64s, row: int) -> None:
        """Has the kernel know the message type of this row's data, and so that of most others."""
        start, length = columns[:2, row].tolist()
        begin = bytes(memoryview(buffer).cast("B")[start : start + min(length, _MOST_OF_INDEXES)])
        try:
            indexes, at = read_indexes(begin)
            kind = self._class(indexes).DESCRIPTOR
        except (BadIndexes, TypeError):  # the library's if the type is no good, for `decode` to tell
            return
        self.program.add(begin[:at], kind)

    def encode(self, value: object) -> bytes:
        """Message indexes and message of the first message type that `value` fits: outer types come first. Raises
        DoesNotFit."""
        if not isinstance(value, dict):
            raise DoesNotFit.at((), "an object", value)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:  # google.protobuf.Value would take it, and not be shown
            raise DoesNotFit("a number is larger than a double can hold") from None
        refusals = []
        for indexes in indexes_of(self._file):
            try:
                return write_indexes(indexes) + bytes(self._message(indexes, value).SerializePartialToString())
            except Exception as error:  # noqa: BLE001
                name = self._class(indexes).DESCRIPTOR.full_name
                refusals.append(f"as {name}: {_reason(error).partition(' Available Fields')[0]}")
        raise DoesNotFit("; ".join(refusals[:3]) or "the schema has no message type")

    def _text(self, fields: Any, size: int) -> str:
        encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
        if size * self._longest_name <= _NOT_COUNTED:
            return encoder.encode(fields)
        most, parts, length = _MOST_TEXT + 16 * size, [], 0
        for part in encoder.iterencode(fields):
            parts.append(part)
            length += len(part)
            if length > most:
                raise CannotDecode("the JSON text would be longer than 1 MiB and 16 times the data")
        return "".join(parts)

    def _message(self, indexes: tuple[int, ...], value: object) -> Any:
        from google.protobuf import json_format

        def parsed(fields: Any) -> Any:
            kind = self._class(indexes)
            return json_format.ParseDict(
                fields, kind(), descriptor_pool=self._pool, max_recursion_depth=_MOST_WITHIN_EACH_OTHER + 1
            )

        try:
            return parsed(value)
        except json_format.ParseError:
            # The library writes the largest float in its shortest form and refuses to read that, which is a little
            # above it. What a double would have become is compared.
            lowered = _with_largest_floats(value)
            if lowered == value:
                raise
            message = parsed(lowered)
            if self._fields(message) != value:
                raise
            return message

    def _fields(self, message: Any) -> Any:
        from google.protobuf import json_format

        fields = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        return in_order(fields, message.DESCRIPTOR)

    def _class(self, indexes: tuple[int, ...]) -> Any:
        from google.protobuf import message_factory

        found = self._classes.get(indexes)
        if found is None:
            found = message_factory.GetMessageClass(_message_type(self._file, indexes))
            self._classes[indexes] = found
        return found


def _message_type(file: Any, indexes: tuple[int, ...]) -> Any:
    """The message type at `indexes`. Java's clients count nested types without the entry types of map fields, Python's
    with them. Raises BadIndexes."""
    for with_entries in (False, True):
        types = list(file.message_types_by_name.values())
        found = None
        for index in indexes:
            if not 0 <= index < len(types):
                break
            found = types[index]
            types = [
                nested for nested in found.nested_types if with_entries or not nested.GetOptions().map_entry
            ]  # fmt: skip
        else:
            return found
    raise BadIndexes(f"there is no message type {list(indexes)} in the schema")


def _longest_name(file: Any) -> int:
    """Of the fields and symbols that the file can name, in bytes, or more."""
    files, waiting, longest = set(), [file], 0
    while waiting:
        found = waiting.pop()
        if found.name not in files:
            files.add(found.name)
            waiting += found.dependencies
            longest = max(longest, *map(len, re.findall(rb"[\w.]+", found.serialized_pb)))
    return longest


def decoder(schema: Schema, schemas: SchemaLookup) -> ProtobufDecoder:
    """The decoder for data of `schema`. Raises BadSchema, also where grpcio-tools is not installed."""
    return ProtobufDecoder(compiled_files(schema, schemas))


def _with_largest_floats(value: Any) -> Any:
    """With the largest float in place of its shortest form."""

    def lowered(text: str) -> float:
        number = float(text)
        return math.copysign(_FLOAT_MAX, number) if abs(number) == 3.4028235e38 else number

    return json.loads(json.dumps(value), parse_float=lowered)


def _reason(error: Exception) -> str:
    """One line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)
