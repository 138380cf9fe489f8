"""JSON values of `decoded.jsonl`, encoded again by the schemas that their lines name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkafs.decoding import BadSchema, DoesNotFit, encode_json
from kafkafs.decoding.proto_indexes import BadIndexes, read_indexes
from kafkafs.decoding.schema_guids import GUID_HEADER_SIZE, guid_in, is_guid_header
from kafkafs.schemas.schema import PROTOBUF, Schema, SchemaLookup
from kafkafs.writing.line_parsers import JsonLines
from storage.errors import InvalidRecord

_FRAME_BYTES: Final = 5  # a zero byte and the id


def jsonl_with(schemas: SchemaLookup, topic: str) -> JsonLines:
    """Lines of jsonl for a topic; those of `decoded.jsonl` are encoded by these schemas."""

    def encode(side: str, schema_id: int, value: object, written: Callable[[], str], header: bytes | None) -> bytes:
        schema = schemas.by_id(schema_id, f"{topic}-{side}")
        if schema is None:
            raise InvalidRecord(
                f"no schema has the id {schema_id} here",
                advice="Schemas are in the topic _schemas, or where the option schemas=PATH says",
            )
        try:
            data = encode_json(schema, schemas, value, written)
        except DoesNotFit as error:
            raise InvalidRecord(f"does not fit the schema {schema_id}: {error}") from None
        except BadSchema as error:
            raise InvalidRecord(f"the schema {schema_id} cannot be used: {error}") from None
        if header is None or not is_guid_header(header):
            return data
        return _without_frame(data, schema, schemas, header)

    return JsonLines(encode)


def _without_frame(data: bytes, schema: Schema, schemas: SchemaLookup, header: bytes) -> bytes:
    """The data alone, for a record whose header names the schema by its GUID and, for Protobuf, the message type."""
    if schemas.by_guid(guid_in(header)) != schema:
        raise InvalidRecord(f"the record's header names another schema than {schema.schema_id}; leave out one of them")
    if schema.schema_type != PROTOBUF:
        return data[_FRAME_BYTES:]
    try:
        wanted, _ = read_indexes(header[GUID_HEADER_SIZE:] or b"\0")
    except BadIndexes as error:
        raise InvalidRecord(f"the record's header names no message type: {error}") from None
    found, at = read_indexes(data[_FRAME_BYTES:])
    if found != wanted:
        raise InvalidRecord(
            f"the value is the message {list(found)} of the schema, and the record's header names {list(wanted)}"
        )
    return data[_FRAME_BYTES + at :]
