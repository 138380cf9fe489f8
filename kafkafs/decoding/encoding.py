"""JSON values to bytes in the wire format, by any kind of schema."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from kafkafs.decoding import avro_encoder, avro_schema, protobuf
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.does_not_fit import DoesNotFit
from kafkafs.schemas.schema import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from kafkafs.schemas.schema import Schema, SchemaLookup


def encode_json(
    schema: Schema, schemas: SchemaLookup, value: object, written: Callable[[], str] | None = None
) -> bytes:
    """The bytes of `value`, which has the form that decoded.jsonl shows: a zero byte, the schema's id, the data.

    Avro: a union's branch is the first that the value fits (kafkafs/CONTRACT.md, "Decoding in detail"). Protobuf: the
    message type is the first of the schema that has all the fields. JSON: the text that `written` gives, which is valid
    JSON, without it a new one; it is not compared with the schema.
    Raises DoesNotFit, which names the field, and BadSchema if the schema cannot be used. Threads can call it.
    """
    header = b"\0" + schema.schema_id.to_bytes(4, "big")
    if schema.schema_type == AVRO:
        return header + avro_encoder.encode(_avro_type(schema, cast("Hashable", schemas)), value)
    if schema.schema_type == PROTOBUF:
        return header + protobuf.decoder(schema, schemas).encode(value)
    if schema.schema_type == JSON and written is not None:
        return header + written().encode()
    if schema.schema_type == JSON:
        try:
            return header + json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise DoesNotFit(f"the value is not JSON: {error}") from None
    raise BadSchema(f"schema {schema.schema_id} is of the unknown type {schema.schema_type}")


@lru_cache(maxsize=64)
def _avro_type(schema: Schema, schemas: Any) -> AvroType:
    """Parsed once for each SchemaLookup: an id never changes its schema, nor a reference what it names."""
    try:
        return avro_schema.parse(schema, schemas)
    except RecursionError:
        raise BadSchema("its types are nested too deeply") from None
