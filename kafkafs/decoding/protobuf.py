"""Protobuf data to JSON, by the protobuf library."""

from __future__ import annotations

import json
import threading
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kafkafs.decoding import proto_kernel
from kafkafs.decoding.avro_program import POWERS, quoted
from kafkafs.decoding.framing import BadIndexes, read_indexes, shortened
from kafkafs.decoding.proto_any import (
    ANY,
    AnyTypes,
    TooMuch,
    is_repeated,
    show_plainly,
    without_marks,
)
from kafkafs.decoding.proto_files import compiled_files, longest_name
from storage.types import is_compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.proto_files import Compiled
    from kafkafs.schemas.registry import Schema, SchemaLookup

    Int64s = NDArray[np.int64]


# The order of a Protobuf map's entries in JSON: that of their keys.
#
# The protobuf library gives them in an order that differs between processes. A view must show the same bytes to all.

_LIBRARYS_OWN = "google.protobuf."


def in_order(fields: Any, kind: Any) -> Any:
    """The JSON value of a message of the type `kind` (a descriptor), with all maps in it in order."""
    if kind.full_name == ANY:
        return _sorted(fields, is_any=True)
    if kind.full_name.startswith(_LIBRARYS_OWN):
        return _sorted(fields)  # Struct is a map
    if not _may_have_maps(kind):
        return fields
    for field in kind.fields:
        below = field.message_type
        if below is None or field.name not in fields:
            continue
        found = fields[field.name]
        if below.GetOptions().map_entry:
            value_type = below.fields_by_name["value"].message_type
            found = {
                key: found[key] if value_type is None else in_order(found[key], value_type) for key in sorted(found)
            }
        elif isinstance(found, list) and not below.full_name.startswith(_LIBRARYS_OWN):
            found = [in_order(one, below) for one in found]
        else:
            found = in_order(found, below)
        fields[field.name] = found
    return fields


def _sorted(value: Any, *, is_any: bool = False) -> Any:
    """With all objects in order. `is_any`: what is within an Any may be another one."""
    if isinstance(value, dict):
        value = without_marks(value) if is_any else value
        return {key: _sorted(value[key], is_any=is_any) for key in sorted(value)}
    return [_sorted(one, is_any=is_any) for one in value] if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _may_have_maps(kind: Any) -> bool:
    """Whether a message of this type may hold a map, at any depth."""
    seen, waiting = {kind.full_name}, [kind]
    while waiting:
        for field in waiting.pop().fields:
            below = field.message_type
            if below is None or below.full_name in seen:
                continue
            if below.GetOptions().map_entry or below.full_name in (f"{_LIBRARYS_OWN}Struct", f"{_LIBRARYS_OWN}Any"):
                return True
            if below.full_name in (f"{_LIBRARYS_OWN}Value", f"{_LIBRARYS_OWN}ListValue"):
                return True
            seen.add(below.full_name)
            waiting.append(below)
    return False


# Protobuf descriptors as numbers for the kernel.
#
# A type is its kind, how many fields it has, and 1 if fields that it does not know are not passed over; then its fields
# by ascending number, of eight numbers each: its tag; FieldDescriptorProto.Type; flags; start and length of
# `,"name":` in the literals; the place of the type or enum below; the value of a map's entry that lacks one; and the
# bit of its oneof, 0 if it has none or is the only member. An enum is how many values it has (-1: NullValue), 1 if it
# is closed, and by ascending number: the number, start and length of its name in quotes.

_OWN: Final = "google.protobuf."
# Of a single value, by FieldDescriptorProto.Type: 64 bits, 32 bits, with a length, a group; others are varints.
_WIRE_TYPES: Final = {1: 1, 6: 1, 16: 1, 2: 5, 7: 5, 15: 5, 9: 2, 11: 2, 12: 2, 10: 3}
_MOST_ONEOFS: Final = 62
# Behind the last literal: so many are copied at once.
_SPARE: Final = bytes(16)


class Kind(IntEnum):
    """How a type is written; the kernel has the same numbers."""

    MESSAGE = 0
    TIMESTAMP = 1
    DURATION = 2
    WRAPPER = 3
    STRUCT = 4
    VALUE = 5
    LIST = 6
    UNCOVERED = 7


class Flag(IntEnum):
    """Of a field."""

    REPEATED = 1
    PRESENCE = 2
    MAP = 4


class Arrays(NamedTuple):
    """What the kernel reads: types and enums, literals, and three numbers for each root."""

    numbers: NDArray[np.int64]
    literals: NDArray[np.uint8]
    roots: NDArray[np.int64]


class ProtoProgram:
    """The types of one schema, each added when data first need it. Arrays that were handed out stay valid. Threads can
    share it; the lock guards adding."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: list[int] = []
        self._literals = bytearray()
        self._roots: list[int] = []
        self._places: dict[str, int] = {}  # by full name
        self._known: set[bytes] = set()
        self.arrays = Arrays(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))

    def add(self, indexes: bytes, kind: Any) -> None:
        """Adds the message type (a descriptor) of the data that begin with these message indexes."""
        with self._lock:
            if indexes in self._known:
                return
            before = len(self._numbers), len(self._literals), dict(self._places)
            try:
                root = self._add_types(kind)
            except BaseException:  # a type that is there in part would be believed
                del self._numbers[before[0] :], self._literals[before[1] :]
                self._places = before[2]
                raise
            self._known.add(indexes)
            self._roots += (*self._literal(indexes), root)
            self.arrays = Arrays(
                np.array(self._numbers, np.int64),
                np.frombuffer(self._literals + _SPARE, np.uint8),
                np.array(self._roots, np.int64),
            )

    def _literal(self, text: bytes) -> tuple[int, int]:
        start = len(self._literals)
        self._literals += text
        return start, len(text)

    def _add_types(self, root: Any) -> int:
        """Adds the type and all below it; its place."""
        new, waiting = [], [root]
        while waiting:
            found = waiting.pop()
            if found.full_name in self._places:
                continue
            self._places[found.full_name] = len(self._numbers)
            fields = sorted(found.fields, key=lambda field: int(field.number))
            covered = kind_of(found) is not Kind.UNCOVERED and len(found.oneofs) <= _MOST_ONEOFS
            # The library drops an entry of a map with a field that it does not know.
            strict = found.is_extendable or found.GetOptions().map_entry
            self._numbers += (kind_of(found) if covered else Kind.UNCOVERED, len(fields) if covered else 0, int(strict))
            if covered:
                new.append((found, fields, len(self._numbers)))
                self._numbers += [0] * (8 * len(fields))
                waiting += [field.message_type for field in fields if field.message_type is not None]
        for _, fields, place in new:
            for i, field in enumerate(fields):
                self._numbers[place + 8 * i : place + 8 * i + 8] = self._field(field)
        return self._places[root.full_name]

    def _field(self, field: Any) -> tuple[int, ...]:
        below, default = -1, 0
        if field.message_type is not None:
            below = self._places[field.message_type.full_name]
        elif field.enum_type is not None:
            below, default = self._enum(field.enum_type), int(field.enum_type.values[0].number)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        flags = (
            (Flag.REPEATED if is_repeated(field) else 0)
            | (Flag.MAP if is_map else 0)
            | (Flag.PRESENCE if field.has_presence else 0)
        )
        name = self._literal(b"," + quoted(field.name) + b":")
        oneof = field.containing_oneof
        bit = 1 << oneof.index if oneof is not None and len(oneof.fields) > 1 else 0
        return field.number << 3 | _WIRE_TYPES.get(field.type, 0), field.type, int(flags), *name, below, default, bit

    def _enum(self, enum: Any) -> int:
        place = self._places.get(enum.full_name)
        if place is None:
            place = self._places[enum.full_name] = len(self._numbers)
            named = {} if enum.full_name == f"{_OWN}NullValue" else enum.values_by_number
            numbers = sorted(set(named))  # the library has a number once for each of its aliases
            self._numbers += (len(numbers) or -1, int(enum.is_closed))
            for number in numbers:
                self._numbers += (number, *self._literal(quoted(named[number].name)))
        return place


def kind_of(found: Any) -> Kind:
    """The kind of a message type. What the library writes in a form or order of its own is not covered, but for the
    types that are used much."""
    known = {
        "Timestamp": Kind.TIMESTAMP,
        "Duration": Kind.DURATION,
        "Struct": Kind.STRUCT,
        "Struct.FieldsEntry": Kind.MESSAGE,
        "Value": Kind.VALUE,
        "ListValue": Kind.LIST,
        "Empty": Kind.MESSAGE,
    }
    if found.GetOptions().message_set_wire_format:
        return Kind.UNCOVERED
    if found.file.name == "google/protobuf/wrappers.proto":
        return Kind.WRAPPER
    if found.full_name.startswith(_OWN):
        return known.get(found.full_name.removeprefix(_OWN), Kind.UNCOVERED)
    return Kind.MESSAGE


# A message takes many times its size while it is an object of the library.
MOST_BYTES: Final = 4 << 20
# The text of n bytes of data has at most MOST_TEXT and TEXT_PER_BYTE * n bytes, as for Avro. It is counted where the
# schema's names could make it longer than _NOT_COUNTED.
MOST_TEXT: Final = 1 << 20
TEXT_PER_BYTE: Final = 16
_NOT_COUNTED: Final = 64 << 20
_MOST_OF_INDEXES: Final = 64  # longer ones are for the library alone
_SLOTS: Final = 1 << 17  # of the kernel: three numbers for all that occurs in messages within each other


class CannotDecode(Exception):
    """A datum that its schema does not fit; the message says why."""


class ProtobufDecoder:
    """For the data of one schema. Threads can share it: the library's descriptors do not change."""

    def __init__(self, compiled: Compiled, schemas: SchemaLookup | None = None) -> None:
        """`schemas`: where the types of an Any are found that the schema itself does not have."""
        self._compiled = compiled  # counted while this uses it
        self._types = AnyTypes(compiled, schemas)
        self._file = compiled.file
        self._classes: dict[tuple[int, ...], Any] = {}  # by message indexes; there are as many as message types
        longest = longest_name(self._file)
        self._longest_name = longest
        self._most_of_kernel = min(MOST_BYTES, _NOT_COUNTED // max(longest, 1))
        self.program = ProtoProgram()

    def message_type(self, indexes: tuple[int, ...]) -> Any:
        """The descriptor of a message type. BadIndexes."""
        return _message_type(self._file, indexes)

    def decode(self, data: bytes) -> bytes:
        """The JSON text of message indexes and message: the proto3 mapping with the field names of the .proto, unset
        fields left out. Raises CannotDecode."""
        if len(data) > MOST_BYTES:
            raise CannotDecode(f"Protobuf data are decoded up to {MOST_BYTES >> 20} MiB, these are {len(data)} bytes")
        try:
            indexes, at = read_indexes(data)
            message = self._class(indexes)()
        except BadIndexes as error:
            raise CannotDecode(str(error)) from None
        try:
            message.MergeFromString(data[at:])  # unlike a whole parse it does not ask for required fields
            show_plainly(message, self._types)
            return self._text(self._fields(message), len(data)).encode()
        except CannotDecode:
            raise
        except TooMuch as error:
            raise CannotDecode(str(error)) from None
        # What the library raises for bad data depends on the type, and on its version.
        except Exception as error:  # noqa: BLE001
            raise CannotDecode(_reason(error)) from None

    def decode_rows(
        self, buffer: Buffer, columns: Int64s, rows: Int64s, out: NDArray[np.uint8], position: int, texts: Int64s
    ) -> tuple[int, int]:
        """Decodes what is ordinary of these rows, as `proto_kernel.run` does, with the same results. Nothing without a
        compiled kernel, since the library is faster then."""
        if not len(rows) or not is_compiled(proto_kernel):
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


def decoder(schema: Schema, schemas: SchemaLookup) -> ProtobufDecoder:
    """The decoder for data of `schema`. Raises BadSchema, also where grpcio-tools is not installed."""
    return ProtobufDecoder(compiled_files(schema, schemas), schemas)


def _reason(error: Exception) -> str:
    """One line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)
