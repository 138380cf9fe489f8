"""The message indexes before a Protobuf message: which of its schema's message types it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


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
