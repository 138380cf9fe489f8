"""Finding the message type of Protobuf data among those of its schema.

| data | before the message |
|---|---|
| of Confluent's registry | message indexes, as varints (`CONFLUENT`) |
| of AWS Glue's registry | a number among all message types in the order of their full names (`GLUE`) |
| of a file that the user names | nothing (`named_type`) |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

# The deepest nesting of types; protoc allows less.
_MOST_INDEXES: Final = 100


class BadIndexes(Exception):
    """Invalid indexes, or indexes of no message type."""


Indexes = tuple[int, ...]


class TypeNaming(NamedTuple):
    """How data name their message type. `read` returns the indexes before a message, and where the message begins;
    `find` returns the descriptor for these indexes in a file. Both raise BadIndexes."""

    read: Callable[[bytes], tuple[Indexes, int]]
    find: Callable[[Any, Indexes], Any]


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes and where the message begins. A count comes first, then as many numbers, as zigzag varints; a
    count of 0 means [0] (io.confluent.kafka.schemaregistry.protobuf.MessageIndexes). Raises BadIndexes."""
    count, at = _varint(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise BadIndexes(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _find_type(file: Any, indexes: Indexes) -> Any:
    """The message type at `indexes`. Java's clients do not count the entry types of map fields among the nested types,
    Python's do."""
    for with_entries in (False, True):
        types = list(file.message_types_by_name.values())
        message_type = None
        for index in indexes:
            if not 0 <= index < len(types):
                break
            message_type = types[index]
            types = [
                nested for nested in message_type.nested_types if with_entries or not nested.GetOptions().map_entry
            ]  # fmt: skip
        else:
            return message_type
    raise BadIndexes(f"there is no message type {list(indexes)} in the schema")


def _find_sorted(file: Any, indexes: Indexes) -> Any:
    """The message type at `indexes` in the order of names (Glue's MessageIndexFinder; all names are ASCII)."""
    types = sorted(_all_types(file), key=lambda message_type: str(message_type.full_name))
    if not 0 <= indexes[0] < len(types):
        raise BadIndexes(f"there is no message type {indexes[0]} in the schema")
    return types[indexes[0]]


def _all_types(file: Any) -> list[Any]:
    types = list(file.message_types_by_name.values())
    for message_type in types:  # the list grows
        types += message_type.nested_types
    return types


def named_type(name: str) -> TypeNaming:
    """The naming for data of one message type, named in full or without the package; "": the file's only type."""

    def find(file: Any, _: Indexes) -> Any:
        types = _all_types(file) if name else list(file.message_types_by_name.values())
        names = [str(message_type.full_name) for message_type in types]
        for full in (name, f"{file.package}.{name}"):
            if full in names:
                return types[names.index(full)]
        if not name and len(types) == 1:
            return types[0]
        shown = ", ".join(names[:20]) or "none"
        if name:
            raise BadIndexes(f"the file has no message type {name}; its types: {shown}")
        raise BadIndexes(f"the file has {len(types)} message types; name one as FILE:MESSAGE: {shown}")

    return TypeNaming(lambda _: ((), 0), find)


def _glue_index(data: bytes) -> tuple[Indexes, int]:
    bits, at = _bits(data, 0)
    return (bits,), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    bits, at = _bits(data, at)
    return bits >> 1 ^ -(bits & 1), at


def _bits(data: bytes, at: int) -> tuple[int, int]:
    bits = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise BadIndexes("the data end within the message indexes")
        byte = data[at]
        at += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            return bits, at
    raise BadIndexes("a message index has more than 32 bits")


CONFLUENT: Final = TypeNaming(read_indexes, _find_type)
GLUE: Final = TypeNaming(_glue_index, _find_sorted)
