"""Arrow columns of decoded keys and values (`block_texts`), for the option `decode`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from kafkafs.arrow.block_texts import Decoding, Side
from kafkafs.arrow.text_arrays import strings

DECODED_TYPES: Final[dict[str, pa.DataType]] = {
    "key_json": pa.string(),
    "value_json": pa.string(),
    "key_schema_id": pa.int64(),
    "value_schema_id": pa.int64(),
    "decode_error": pa.string(),
}


def decoded_texts(decoding: Decoding, side: Side) -> tuple[pa.Array, int]:
    """The column `key_json` or `value_json`."""
    texts = decoding.texts(side)
    return strings(pa.string(), texts.data, texts.ends, texts.valid), len(texts.data)


def schema_ids(decoding: Decoding, side: Side) -> tuple[pa.Array, int]:
    """The column `key_schema_id` or `value_schema_id`."""
    ids = decoding.texts(side).ids.copy()
    return pa.array(ids, pa.int64(), mask=ids < 0), 0


def decode_errors(decoding: Decoding, rows: int) -> tuple[pa.Array, int]:
    """The column `decode_error`."""
    errors: list[str | None] = [None] * rows
    for side in decoding.sides:
        for at, error in decoding.texts(side).errors.items():
            before = errors[at]
            errors[at] = f"{side}: {error}" if before is None else f"{before}; {side}: {error}"
    return pa.array(errors, pa.string()), sum(len(error) for error in errors if error is not None)
