"""The column of record headers: lists of (key, value), null for a record without headers.

The decoder has checked that the headers parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkafs.arrow.text_arrays import strings
from storage.format import decode_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_CONTINUATION: Final = 0xC0, 0x80  # mask and value of a byte that continues a UTF-8 character


class HeaderColumn:
    """The headers of the batch that is being built."""

    def __init__(self, arrow_type: pa.DataType, capacity: int) -> None:
        self.size_bytes = 0
        self._type = arrow_type
        self._counts = np.empty(capacity, np.int64)
        self._parts: list[tuple[pa.Array, pa.Array]] = []

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        """Add the headers of the block's records as the rows from `row` on."""
        self._counts[row : row + len(block)] = block.headers_count
        if not block.headers_count.any():
            return
        key_start, key_length, value_start, value_length = block.headers_spans()
        keys, key_ends = _gathered(block, key_start, key_length)
        values, value_ends = _gathered(block, value_start, value_length)
        self.size_bytes += len(keys) + len(values)
        self._parts.append((_texts(keys, key_ends), strings(pa.binary(), values, value_ends, value_length >= 0)))

    def finish(self, rows: int) -> pa.Array:
        """Return the first `rows` rows; the next `add` begins a new array."""
        counts = self._counts[:rows]
        if not self._parts:
            return pa.nulls(rows, self._type)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        fields = self._type.value_type
        keys, values = (pa.concat_arrays(column) for column in zip(*self._parts, strict=True))
        self._parts = []
        self.size_bytes = 0
        headers = pa.StructArray.from_arrays([keys, values], fields=[fields[0], fields[1]])
        validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(self._type, rows, [validity, pa.py_buffer(offsets)], children=[headers])


def _gathered(block: RecordBlock, starts: Int64s, lengths: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
    data = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
    ends = np.empty(len(starts), np.int64)
    decode_kernel.gather(block.buffer, starts, lengths, b"", data, ends)
    return data, ends


def _texts(data: NDArray[np.uint8], ends: Int64s) -> pa.Array:
    """Header keys as text; bytes that are not valid UTF-8 are replaced, as Kafka's consumer does."""
    raw = data.tobytes()
    starts = np.append(0, ends[:-1])
    mask, value = _CONTINUATION
    begins = data[starts[starts < ends]]
    try:
        # If all bytes together are valid, and no key begins within a character, each key is valid.
        whole = not ((begins & mask) == value).any() and raw.decode() is not None
    except UnicodeDecodeError:
        whole = False
    if whole:
        return strings(pa.string(), data, ends)
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return pa.array([raw[start:end].decode(errors="replace") for start, end in bounds], pa.string())
