"""Decoding: data that serialisers wrote with a schema to JSON, and JSON to the same data.

In: columns of keys and values, and a lookup of schemas (`kafkafs.schemas.registry.SchemaLookup`). Out: the format
`decoded.jsonl`, columns of JSON texts, bytes in the wire format, and the types of an Avro schema.
"""
