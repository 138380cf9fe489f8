"""JSON values of `decoded.jsonl`, encoded again by the schemas that their lines name."""

from __future__ import annotations

from kafkafs.decoding import BadSchema, DoesNotFit, encode_json
from kafkafs.schemas.schema import SchemaLookup
from kafkafs.writing.line_parsers import JsonLines
from storage.errors import InvalidRecord


def jsonl_with(schemas: SchemaLookup, topic: str) -> JsonLines:
    """Lines of jsonl for a topic; those of `decoded.jsonl` are encoded by these schemas."""

    def encode(side: str, schema_id: int, value: object) -> bytes:
        schema = schemas.by_id(schema_id, f"{topic}-{side}")
        if schema is None:
            raise InvalidRecord(
                f"no schema has the id {schema_id} here",
                advice="Schemas are in the topic _schemas, or where the option schemas=PATH says",
            )
        try:
            return encode_json(schema, schemas, value)
        except DoesNotFit as error:
            raise InvalidRecord(f"does not fit the schema {schema_id}: {error}") from None
        except BadSchema as error:
            raise InvalidRecord(f"the schema {schema_id} cannot be used: {error}") from None

    return JsonLines(encode)
