"""Records to be encoded: `Record` tuples at API edges, `RecordColumns` everywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import CorruptBatch
from storage.format import decode_kernel, encoder_kernel
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from storage.format.block import RecordBlock

    Int64s = NDArray[np.int64]

Headers = Sequence[tuple[bytes, bytes | None]]


class Record(NamedTuple):
    """One record to write: None is null, header names are UTF-8, the timestamp epoch milliseconds (-1 none)."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = NO_TIMESTAMP


def _constant(value: int) -> Int64s:
    column = np.full(1, value, np.int64)
    column.flags.writeable = False
    return column


_ZERO = _constant(0)
_NULL = _constant(-1)
_NO_SPANS = np.empty((4, 0), np.int64)
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """Records as int64 columns over one `buffer`; a column of one element holds for every row but `value_start`'s.

    Starts are positions in `buffer`, lengths are bytes with -1 for null. `timestamp` is epoch milliseconds. Headers lie
    encoded in `buffer`, without their count: `headers_start`, `headers_length`, `headers_count`. `offset_delta` is each
    record's offset less its batch's base offset; empty means consecutive.
    """

    buffer: Buffer
    value_start: Int64s
    value_length: Int64s
    timestamp: Int64s
    key_start: Int64s = field(default_factory=lambda: _ZERO)
    key_length: Int64s = field(default_factory=lambda: _NULL)
    headers_start: Int64s = field(default_factory=lambda: _ZERO)
    headers_length: Int64s = field(default_factory=lambda: _ZERO)
    headers_count: Int64s = field(default_factory=lambda: _ZERO)
    offset_delta: Int64s = field(default_factory=lambda: _NONE)

    def __len__(self) -> int:
        return len(self.value_start)

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RecordColumns:
        """Lay `records` out in one buffer: key, value and headers of each in turn."""
        parts: list[bytes] = []
        rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        position = 0
        for key, value, headers, timestamp in records:
            key_length = -1 if key is None else len(key)
            value_start = position + max(key_length, 0)
            value_length = -1 if value is None else len(value)
            headers_start = value_start + max(value_length, 0)
            encoded = encode_headers(headers) if headers else b""
            parts += (key or b"", value or b"", encoded)
            rows.append(
                (
                    position,
                    key_length,
                    value_start,
                    value_length,
                    headers_start,
                    len(encoded),
                    len(headers),
                    timestamp,
                )
            )
            position = headers_start + len(encoded)
        columns = np.array(rows, np.int64).reshape(len(rows), 8).T.copy()
        return cls(
            buffer=b"".join(parts),
            key_start=columns[0],
            key_length=columns[1],
            value_start=columns[2],
            value_length=columns[3],
            headers_start=columns[4],
            headers_length=columns[5],
            headers_count=columns[6],
            timestamp=columns[7],
        )

    @classmethod
    def from_block(cls, block: RecordBlock, offset_delta: Int64s | None = None) -> RecordColumns:
        """Columns over a decoded block's own buffer: nothing is copied, and the block must stay valid.

        Raises CorruptBatch where a record's headers do not parse (the decoder lets none through).
        """
        headers_start = np.ascontiguousarray(block.headers_start)
        headers_count = np.ascontiguousarray(block.headers_count)
        headers_length = np.zeros(len(block), np.int64)
        done = decode_kernel.find_headers(
            block.buffer, headers_start, headers_count, headers_length, np.empty(4, np.int64), _NO_SPANS
        )
        if done < len(block):
            raise CorruptBatch("record headers do not parse", offset=int(block.offset[done]))
        # A record without headers may point anywhere, the end of another buffer included.
        headers_start = np.where(headers_count > 0, headers_start, 0)
        return cls(
            buffer=block.buffer,
            key_start=np.ascontiguousarray(block.key_start),
            key_length=np.ascontiguousarray(block.key_length),
            value_start=np.ascontiguousarray(block.value_start),
            value_length=np.ascontiguousarray(block.value_length),
            headers_start=headers_start,
            headers_length=headers_length,
            headers_count=np.maximum(headers_count, 0),
            timestamp=np.ascontiguousarray(block.timestamp),
            offset_delta=_NONE if offset_delta is None else np.ascontiguousarray(offset_delta, np.int64),
        )

    def max_size(self, first: int, last: int) -> int:
        """At most this many bytes do rows [first, last) take as v2 records."""
        rows = last - first
        total = rows * encoder_kernel.RECORD_OVERHEAD
        size = memoryview(self.buffer).nbytes  # no field is larger; a length beyond it is found when encoding
        for lengths in (self.key_length, self.value_length, self.headers_length):
            if len(lengths) == 1:
                total += rows * min(max(int(lengths[0]), 0), size)
            else:
                total += int(np.clip(lengths[first:last], 0, size).sum())
        return total


def encode_headers(headers: Headers) -> bytes:
    """A record's headers as format v2 stores them, without their count (`DefaultRecord.writeTo`)."""
    out = bytearray()
    for name, value in headers:
        out += encode_varint(len(name))
        out += name
        if value is None:
            out += b"\x01"
        else:
            out += encode_varint(len(value))
            out += value
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """A zigzag base-128 integer, least significant group first (`ByteUtils.writeVarint`, `writeVarlong`)."""
    rest = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
