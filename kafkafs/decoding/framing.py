"""What is in front of a value that a schema registry knows: an id or a GUID, and the indexes of Protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage.errors import CorruptBatch

if TYPE_CHECKING:
    from storage.format.block import RecordBlock


# The newer form of the wire format: a record's header has the schema's GUID, and key and value are data alone.
#
# Source: io.confluent.kafka.serializers.schema.id.HeaderSchemaIdSerializer and SchemaId; confluent_kafka's
# header_schema_id_serializer. The header is a byte 1, the GUID in 16 bytes, and for Protobuf the message indexes.

KEY_HEADER: Final = b"__key_schema_id"
VALUE_HEADER: Final = b"__value_schema_id"
GUID_HEADER_SIZE: Final = 17
_MAGIC: Final = 1


def is_guid_header(value: bytes) -> bool:
    """Whether a header's value names a schema."""
    return len(value) >= GUID_HEADER_SIZE and value[0] == _MAGIC


def guid_in(header: bytes) -> bytes:
    """The GUID in a header's value."""
    return header[1:GUID_HEADER_SIZE]


def find_guids(block: RecordBlock) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The values of such headers by row, for keys and for values; of several the last."""
    keys: dict[int, bytes] = {}
    values: dict[int, bytes] = {}
    counts = np.maximum(block.headers_count, 0)
    # A header has two bytes at least. Counts that cannot be are an error, and rendering says so.
    most = len(block.buffer) // 2
    if not counts.any() or int(counts.max()) > most or int(counts.sum()) > most:
        return keys, values
    try:
        spans = block.headers_spans()
    except CorruptBatch:
        return keys, values
    likely = (spans[1] == len(KEY_HEADER)) | (spans[1] == len(VALUE_HEADER))
    found = np.flatnonzero(likely & (spans[3] >= GUID_HEADER_SIZE))
    if not len(found):
        return keys, values
    rows = np.repeat(np.arange(len(block)), counts)
    for row, (name, name_length, start, length) in zip(rows[found].tolist(), spans[:, found].T.tolist(), strict=True):
        header = bytes(block.buffer[name : name + name_length])
        side = keys if header == KEY_HEADER else values if header == VALUE_HEADER else None
        if side is not None and block.buffer[start] == _MAGIC:
            side[row] = bytes(block.buffer[start : start + length])
    return keys, values


# The message indexes before a Protobuf message: which of its schema's message types it is.

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


# How long the texts of errors are.

MOST_SHOWN: Final = 300


def shortened(text: str) -> str:
    """At most about 300 characters: the beginning and the end, which says what is wrong, of a long text. What a schema
    names may be megabytes, and each message repeats it."""
    return text if len(text) <= MOST_SHOWN else f"{text[:100]}… {text[-200:]}"
