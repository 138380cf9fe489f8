"""Protobuf descriptors as numbers for the kernel.

A type is its kind, its number of fields, and 1 if the kernel must not skip unknown fields. Then follow its fields by
ascending number, of eight numbers each: its tag; FieldDescriptorProto.Type; flags; start and length of `,"name":` in
the literals; the place of the type or enum of its values; the value that a map's entry has if it lacks the field; and
the bit of its oneof, 0 if it has none or is the only member. An enum is its number of values (-1: NullValue), 1 if it
is closed, and by ascending number: the number, start and length of its name in quotes.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kafkafs.decoding.avro_program import quoted
from kafkafs.decoding.proto_any import (
    is_repeated,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


_OWN: Final = "google.protobuf."
# The wire type of a single value, by FieldDescriptorProto.Type: 64 bits, 32 bits, with a length, a group; others are
# varints.
_WIRE_TYPES: Final = {1: 1, 6: 1, 16: 1, 2: 5, 7: 5, 15: 5, 9: 2, 11: 2, 12: 2, 10: 3}
_MOST_ONEOFS: Final = 62
# Added after the last literal: the kernel copies this many bytes at once.
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
    """Properties of a field."""

    REPEATED = 1
    PRESENCE = 2
    MAP = 4


class Arrays(NamedTuple):
    """The kernel's input: types and enums, literals, and three numbers for each root."""

    numbers: NDArray[np.int64]
    literals: NDArray[np.uint8]
    roots: NDArray[np.int64]


class ProtoProgram:
    """The types of one schema, each added when data first need it. Arrays stay valid after they are handed out. Threads
    can share it; the lock guards adding."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: list[int] = []
        self._literals = bytearray()
        self._roots: list[int] = []
        self._places: dict[str, int] = {}  # by full name
        self._known: set[bytes] = set()
        self.arrays = Arrays(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))

    def add(self, indexes: bytes, kind: Any) -> None:
        """Add the message type (a descriptor) of the data that begin with these message indexes."""
        with self._lock:
            if indexes in self._known:
                return
            before = len(self._numbers), len(self._literals), dict(self._places)
            try:
                root = self._add_types(kind)
            except BaseException:  # an incomplete type would be used as if it were complete
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
        """Add the type and all types of its fields; return its place."""
        new, waiting = [], [root]
        while waiting:
            message_type = waiting.pop()
            if message_type.full_name in self._places:
                continue
            self._places[message_type.full_name] = len(self._numbers)
            fields = sorted(message_type.fields, key=lambda field: int(field.number))
            covered = kind_of(message_type) is not Kind.UNCOVERED and len(message_type.oneofs) <= _MOST_ONEOFS
            # The library drops a map's entry that has an unknown field.
            strict = message_type.is_extendable or message_type.GetOptions().map_entry
            self._numbers += (
                kind_of(message_type) if covered else Kind.UNCOVERED,
                len(fields) if covered else 0,
                int(strict),
            )
            if covered:
                new.append((message_type, fields, len(self._numbers)))
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


def kind_of(message_type: Any) -> Kind:
    """The kind of a message type. UNCOVERED, with few exceptions, if the library writes it in a form or order of its
    own."""
    known = {
        "Timestamp": Kind.TIMESTAMP,
        "Duration": Kind.DURATION,
        "Struct": Kind.STRUCT,
        "Struct.FieldsEntry": Kind.MESSAGE,
        "Value": Kind.VALUE,
        "ListValue": Kind.LIST,
        "Empty": Kind.MESSAGE,
    }
    if message_type.GetOptions().message_set_wire_format:
        return Kind.UNCOVERED
    if message_type.file.name == "google/protobuf/wrappers.proto":
        return Kind.WRAPPER
    if message_type.full_name.startswith(_OWN):
        return known.get(message_type.full_name.removeprefix(_OWN), Kind.UNCOVERED)
    return Kind.MESSAGE
