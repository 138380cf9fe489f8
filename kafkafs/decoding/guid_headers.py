"""The newer form of the wire format: a record's header has the schema's GUID, so key and value are only data.

Source: io.confluent.kafka.serializers.schema.id.HeaderSchemaIdSerializer and SchemaId; confluent_kafka's
header_schema_id_serializer. The header is a byte 1, the GUID in 16 bytes, and for Protobuf the message indexes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage.errors import CorruptBatch

if TYPE_CHECKING:
    from storage.format.block import RecordBlock


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
    """The GUID headers by row, for keys and for values; if a record has several, the last."""
    keys: dict[int, bytes] = {}
    values: dict[int, bytes] = {}
    counts = np.maximum(block.headers_count, 0)
    # A header has at least two bytes. Rendering reports larger counts as an error.
    most = len(block.buffer) // 2
    if not counts.any() or int(counts.max()) > most or int(counts.sum()) > most:
        return keys, values
    try:
        spans = block.headers_spans()
    except CorruptBatch:
        return keys, values
    likely = (spans[1] == len(KEY_HEADER)) | (spans[1] == len(VALUE_HEADER))
    matches = np.flatnonzero(likely & (spans[3] >= GUID_HEADER_SIZE))
    if not len(matches):
        return keys, values
    rows = np.repeat(np.arange(len(block)), counts)
    for row, (name, name_length, start, length) in zip(
        rows[matches].tolist(), spans[:, matches].T.tolist(), strict=True
    ):
        header = bytes(block.buffer[name : name + name_length])
        side = keys if header == KEY_HEADER else values if header == VALUE_HEADER else None
        if side is not None and block.buffer[start] == _MAGIC:
            side[row] = bytes(block.buffer[start : start + length])
    return keys, values
