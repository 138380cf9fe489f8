"""Decoding: what serialisers wrote with a schema, as JSON, and JSON as they would write it.

In: columns of keys and values, and where schemas are found (`kafkafs.schemas.registry.SchemaLookup`). Out: the format
`decoded.jsonl`, columns of JSON texts, bytes in the wire format, and the types of an Avro schema.
"""

from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.decoding.decoded_jsonl import DecodedJsonl, OwnTopicDecoder, TextDecoder, own_texts
from kafkafs.decoding.encoding import encode_json
from kafkafs.decoding.framing import DoesNotFit, find_guids

__all__ = [
    "AvroType",
    "BadSchema",
    "DecodedJsonl",
    "DoesNotFit",
    "OwnTopicDecoder",
    "TextDecoder",
    "encode_json",
    "find_guids",
    "own_texts",
    "parse_avro",
]
