"""Arrow batches → RecordColumns, for the sink, without a Python object for each record.

Arrow has keys, values and headers in separate buffers. They are copied once, into one buffer; values alone are not
copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from storage.errors import InvalidRecord
from storage.format.block import RecordColumns
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    UInt64s = NDArray[np.uint64]


_MOST_VARINT_BYTES = 5


class _Bytes:
    """A column of strings or bytes: the start and length of each row in `data`; length -1 is null."""

    def __init__(self, array: pa.Array) -> None:
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offsets, data = array.buffers()
        bounds = np.zeros(len(array) + 1, np.int64)
        if offsets is not None and len(array):
            bounds[:] = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset :][: len(array) + 1]
        self.starts = bounds[:-1] - bounds[0]
        self.lengths = np.diff(bounds)
        if array.null_count:
            self.lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
        self.data = memoryview(b"" if data is None else data).cast("B")[int(bounds[0]) : int(bounds[-1])]


def record_columns(
    key: pa.Array | None, value: pa.Array, headers: pa.Array | None, timestamp: pa.Array | None = None
) -> RecordColumns:
    """Return the records of one Arrow batch.

    `headers`: lists of structs of a key and a value; `timestamp`: microseconds, which are cut to milliseconds, null for
    none. InvalidRecord for a header without a key.
    """
    values = _Bytes(value)
    parts, position = [values.data], len(values.data)
    columns = {"value_start": values.starts, "value_length": values.lengths}
    if key is not None:
        keys = _Bytes(key)
        columns |= {"key_start": keys.starts + position, "key_length": keys.lengths}
        parts.append(keys.data)
        position += len(keys.data)
    if headers is not None and len(headers.flatten()):
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        encoded, ends = _encoded_headers(*headers.flatten().flatten())
        bounds = np.concatenate([[0], ends])[np.concatenate([[0], counts.cumsum()])]
        columns |= {
            "headers_start": bounds[:-1] + position,
            "headers_length": np.diff(bounds),
            "headers_count": counts,
        }
        parts.append(encoded.data)
    buffer = values.data if len(parts) == 1 else b"".join(parts)
    return RecordColumns(buffer, timestamp=_milliseconds(timestamp), **columns)


def _milliseconds(timestamp: pa.Array | None) -> Int64s:
    if timestamp is None:
        return np.full(1, NO_TIMESTAMP, np.int64)
    microseconds = timestamp.cast(pa.timestamp("us", timestamp.type.tz)).cast(pa.int64())
    milliseconds: Int64s = microseconds.fill_null(0).to_numpy(zero_copy_only=False) // 1000
    if timestamp.null_count:
        milliseconds[timestamp.is_null().to_numpy(zero_copy_only=False)] = NO_TIMESTAMP
    return milliseconds


def _encoded_headers(key: pa.Array, value: pa.Array) -> tuple[NDArray[np.uint8], Int64s]:
    """Headers back to back as format v2 stores them (name and value, each after its length), and where each ends."""
    if key.null_count:
        raise InvalidRecord("a header has no key")
    names, values = _Bytes(key), _Bytes(value)
    name_length, value_length = names.lengths * 2, np.where(values.lengths < 0, 1, values.lengths * 2)  # zigzag
    name_at = _varint_bytes(name_length)
    value_varint = _varint_bytes(value_length)
    sizes = name_at + names.lengths + value_varint + np.maximum(values.lengths, 0)
    ends = sizes.cumsum()
    starts = ends - sizes
    out = np.zeros(int(ends[-1]), np.uint8)
    _put_varints(out, starts, name_length, name_at)
    _put_bytes(out, starts + name_at, names)
    value_at = starts + name_at + names.lengths
    _put_varints(out, value_at, value_length, value_varint)
    _put_bytes(out, value_at + value_varint, values)
    return out, ends


def _varint_bytes(numbers: Int64s) -> Int64s:
    limits = [1 << 7 * size for size in range(1, _MOST_VARINT_BYTES)]
    return np.searchsorted(limits, numbers, side="right").astype(np.int64) + 1


def _put_varints(out: NDArray[np.uint8], at: Int64s, numbers: Int64s, sizes: Int64s) -> None:
    for byte in range(int(sizes.max())):
        rows = sizes > byte
        more = np.where(sizes[rows] > byte + 1, 0x80, 0)
        out[at[rows] + byte] = (numbers[rows] >> 7 * byte) & 0x7F | more


def _put_bytes(out: NDArray[np.uint8], at: Int64s, column: _Bytes) -> None:
    lengths = np.maximum(column.lengths, 0)
    source = np.frombuffer(column.data, np.uint8)
    # The buffer may have bytes for a null; they are not copied.
    within = np.arange(int(lengths.sum())) - np.repeat(lengths.cumsum() - lengths, lengths)
    out[np.repeat(at, lengths) + within] = source[np.repeat(column.starts, lengths) + within]
