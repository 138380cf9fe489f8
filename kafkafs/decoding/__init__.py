"""Decoding: what serialisers wrote with a schema, as JSON, and JSON as they would write it.

In: columns of keys and values, and where schemas are found (`kafkafs.schemas.registry.SchemaLookup`). Out: the format
`decoded.jsonl`, columns of JSON texts, bytes in the wire format, and the types of an Avro schema.
"""
