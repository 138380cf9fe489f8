"""The framing of AWS Glue's schema registry: a byte 3, a byte for compression, the UUID of the schema's version, data.

Source: com.amazonaws.services.schemaregistry.utils.AWSSchemaRegistryConstants. Compression: 0 is none, 5 is zlib.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Int64s = NDArray[np.int64]

GLUE_HEADER_SIZE: Final = 18
_MAGIC: Final = 3
_PLAIN: Final = 0
_ZLIB: Final = 5
# The largest data of one value, and of all values that are inflated at once.
MOST_INFLATED: Final = 64 << 20


class GlueRows(NamedTuple):
    """The rows in this framing, the versions that they name, for each row the index of its version, and the rows with
    compressed data."""

    rows: Int64s
    versions: list[UUID]
    which: Int64s
    compressed: Int64s


def find_glue(buffer: Buffer, starts: Int64s, lengths: Int64s, rows: Int64s) -> GlueRows:
    """Return the rows that are in this framing."""
    rows = rows[lengths[rows] >= GLUE_HEADER_SIZE]
    if not len(rows):
        return GlueRows(rows, [], rows, rows)
    data = np.frombuffer(memoryview(buffer), np.uint8)
    rows = rows[data[starts[rows]] == _MAGIC]
    compression = data[starts[rows] + 1]
    is_framed = np.isin(compression, (_PLAIN, _ZLIB))
    rows, compression = rows[is_framed], compression[is_framed]
    if not len(rows):
        return GlueRows(rows, [], rows, rows)
    uuids = data[starts[rows][:, None] + np.arange(2, GLUE_HEADER_SIZE)]
    versions, which = np.unique(uuids, axis=0, return_inverse=True)
    named = [UUID(bytes=version.tobytes()) for version in versions]
    return GlueRows(rows, named, which.reshape(-1), rows[compression == _ZLIB])


class Inflated(NamedTuple):
    """The data of the first rows, one after another, and errors by row."""

    buffer: bytes
    starts: Int64s
    lengths: Int64s
    errors: dict[int, str]


def inflate(buffer: Buffer, starts: Int64s, lengths: Int64s, compressed: Int64s) -> Inflated:
    """Inflate the data of the first rows, at least one, up to MOST_INFLATED bytes together. `starts` and `lengths`: of
    the data in `buffer`; `compressed`: the rows with compressed data."""
    view, left = memoryview(buffer).cast("B"), MOST_INFLATED
    inflating, parts, errors = set(compressed.tolist()), list[bytes](), dict[int, str]()
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        part = bytes(view[start : start + max(length, 0)])
        if row in inflating:
            part, errors[row] = _inflated(part)
        left -= len(part)
        if left < 0 and row:
            break
        parts.append(part)
    sizes = np.array([len(part) for part in parts], np.int64)
    errors = {row: error for row, error in errors.items() if error}
    return Inflated(b"".join(parts), np.cumsum(sizes) - sizes, sizes, errors)


def _inflated(data: bytes) -> tuple[bytes, str]:
    """The data and "", or no data and the error."""
    inflating = zlib.decompressobj()
    try:
        whole = inflating.decompress(data, MOST_INFLATED)
    except zlib.error as error:
        return b"", f"its data do not decompress: {error}"
    if not inflating.eof:
        if len(whole) == MOST_INFLATED:
            return b"", f"its data decompress to more than {MOST_INFLATED >> 20} MiB"
        return b"", "its compressed data are cut off"
    return whole, ""
