"""Record headers → an Arrow column of lists of (key, value), null where a record has none.

The decoder has checked that they parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage.format import decode_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]

_CONTINUATION: Final = 0xC0, 0x80  # mask and value of a byte that goes on with a UTF-8 character


class HeaderSpans(NamedTuple):
    """All headers of a block's records, record by record: positions in its buffer; a value length of -1 is null."""

    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s


class HeaderColumn:
    """The headers of the batch that is being built."""

    def __init__(self, arrow_type: pa.DataType, capacity: int) -> None:
        self.size_bytes = 0
        self._type = arrow_type
        self._counts = np.empty(capacity, np.int64)
        self._parts: list[tuple[pa.Array, pa.Array]] = []

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        """Adds the headers of the block's records as the rows from `row` on."""
        self._counts[row : row + len(block)] = block.headers_count
        if not block.headers_count.any():
            return
        spans = header_spans(block)
        keys, key_ends = _gathered(block, spans.key_start, spans.key_length)
        values, value_ends = _gathered(block, spans.value_start, spans.value_length)
        self.size_bytes += len(keys) + len(values)
        self._parts.append((_texts(keys, key_ends), _byte_strings(values, value_ends, spans.value_length >= 0)))

    def finish(self, rows: int) -> pa.Array:
        """The first `rows` rows; the next `add` begins a new array."""
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


def header_spans(block: RecordBlock) -> HeaderSpans:
    """Where the headers of a block's records lie."""
    return HeaderSpans(*block.headers_spans())


def _gathered(block: RecordBlock, starts: Int64s, lengths: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
    data = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
    ends = np.empty(len(starts), np.int64)
    decode_kernel.gather(block.buffer, starts, lengths, b"", data, ends)
    return data, ends


def _offsets(ends: Int64s) -> NDArray[np.int32]:
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return offsets


def _byte_strings(data: NDArray[np.uint8], ends: Int64s, valid: NDArray[np.bool_]) -> pa.Array:
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(ends), [validity, pa.py_buffer(_offsets(ends)), pa.py_buffer(data)])


def _texts(data: NDArray[np.uint8], ends: Int64s) -> pa.Array:
    """Header keys as text; bytes that are not valid UTF-8 are replaced, as Kafka's consumer does."""
    raw = data.tobytes()
    starts = np.append(0, ends[:-1])
    mask, value = _CONTINUATION
    begins = data[starts[starts < ends]]
    try:
        # If all together are valid, and none begins within a character, each is valid.
        whole = not ((begins & mask) == value).any() and raw.decode() is not None
    except UnicodeDecodeError:
        whole = False
    if whole:
        return pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(_offsets(ends)), pa.py_buffer(data)])
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return pa.array([raw[start:end].decode(errors="replace") for start, end in bounds], pa.string())
