"""The message indexes before a Protobuf message: which of its schema's message types it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Types within types; protoc allows fewer.
_MOST_INDEXES: Final = 100


class BadIndexes(Exception):
    """Indexes that are none, or of no message type."""


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes and where the message begins: a count and as many numbers, as zigzag varints; a count of 0 is [0]
    (io.confluent.kafka.schemaregistry.protobuf.MessageIndexes). Raises BadIndexes."""
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


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """The inverse of `read_indexes`, in its shortest form."""
    if indexes == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(indexes), *indexes):
        rest = number << 1
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def indexes_of(file: Any) -> Iterator[tuple[int, ...]]:
    """The indexes of all message types of a file descriptor but those of map entries: the outer ones first."""
    waiting: list[tuple[tuple[int, ...], Any]] = [
        ((i,), found) for i, found in enumerate(file.message_types_by_name.values())
    ]
    while waiting:
        indexes, found = waiting.pop(0)
        yield indexes
        nested = [inner for inner in found.nested_types if not inner.GetOptions().map_entry]
        waiting += [((*indexes, i), inner) for i, inner in enumerate(nested)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    bits = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise BadIndexes("the data end within the message indexes")
        byte = data[at]
        at += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            return bits >> 1 ^ -(bits & 1), at
    raise BadIndexes("a message index has more than 32 bits")
