"""The columns of records as DuckDB reads them: values as JSON, and timestamps in DuckDB's range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa


DECODED_COLUMNS: Final = ("key_json", "value_json", "value_schema_id", "decode_error")
# The value as JSON: without schemas; and with schemas, for a value that is not in the wire format.
AS_JSON: Final = "CASE WHEN json_valid(value) THEN value::JSON END AS value_json"
BYTES_AS_JSON: Final = "CASE WHEN json_valid(TRY(decode(value))) THEN decode(value)::JSON END AS value_json"
KEY_JSON: Final = "key_json::JSON AS key_json"
VALUE_JSON: Final = (
    "CASE WHEN value_schema_id IS NULL AND json_valid(value) THEN value::JSON ELSE value_json::JSON END AS value_json"
)
# The timestamps of DuckDB, in milliseconds; earlier and later ones become infinite.
_LEAST_MS: Final = -9_223_372_022_400_000
_MOST_MS: Final = (2**63 - 1) // 1000
_INFINITY: Final = 2**63 - 1


def with_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with timestamps in microseconds, as DuckDB has them."""
    from kafkafs.arrow.rows import TYPES

    place = schema.get_field_index("timestamp")
    return schema if place < 0 else schema.set(place, schema.field(place).with_type(TYPES["timestamp"]))


def in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with DuckDB's timestamps: those out of its range are infinite."""
    schema = with_microseconds(batch.schema)
    if schema == batch.schema:
        return batch
    import numpy as np
    import pyarrow as pa

    place = schema.get_field_index("timestamp")
    ms = batch.column(place).cast(pa.int64()).to_numpy(zero_copy_only=False)
    us = np.clip(ms, _LEAST_MS, _MOST_MS) * 1000
    us[ms > _MOST_MS] = _INFINITY
    us[ms < _LEAST_MS] = -_INFINITY
    return batch.set_column(place, schema.field(place), pa.array(us).cast(schema.field(place).type))
