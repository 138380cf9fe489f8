"""Decoding: JSON from keys and values that serialisers wrote with a schema.

In: columns of keys and values, and a lookup of schemas (`kafkafs.schemas.schema.SchemaLookup`). Out: the format
`decoded.jsonl`, columns of JSON texts, and texts in the shape of the columns of one Avro schema.
"""
