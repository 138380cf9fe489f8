"""A digest of the rows of a write: it distinguishes a replayed micro-batch from a different one with the same number.

The digest is a sum over the rows, and covers only topic, key, value and headers: a replay divides the rows among tasks
differently, chooses other partitions for null keys, and has other timestamps.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.files.commit_ledger import ContentSum
from storage.format.block import RecordColumns
from storage.format.hashing import siphash_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    UInt64s = NDArray[np.uint64]


# Arbitrary odd numbers. Sums that use them are stored on disk, so they never change.
_OF_VALUES: Final = np.uint64(0x9E3779B97F4A7C15)
_OF_KEYS: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_OF_HEADERS: Final = np.uint64(0x165667B19E3779F9)
_MIXED: Final = np.uint64(0xD6E8FEB86659FD93)


def content_of(records: RecordColumns, topic: str) -> ContentSum:
    """The digest of records for one topic."""
    rows = len(records)
    total = np.full(rows, zlib.crc32(topic.encode()), np.uint64)
    hashes = np.empty((rows, 1), np.uint64)
    for starts, lengths, factor in (
        (records.value_start, records.value_length, _OF_VALUES),
        (records.key_start, records.key_length, _OF_KEYS),
        (records.headers_start, records.headers_length, _OF_HEADERS),
    ):
        is_header = factor is _OF_HEADERS
        if is_header and not lengths.any():
            continue
        # A null value or key has hash 0, and so has a record without headers.
        present = np.where(lengths > 0, lengths, -1) if is_header else lengths
        siphash_columns(records.buffer, starts, present, 0, 0, hashes)
        total += hashes[:, 0] * factor
    total ^= total >> np.uint64(32)
    total *= _MIXED
    total ^= total >> np.uint64(29)
    return ContentSum(rows, int(total.sum(dtype=np.uint64)))
