"""Digests of consecutive batches, byte for byte: a backup's manifest lists them, and a copy is compared with them.

Two digests: SHA-256 of the bytes, which proves that they are the same; and the CRC-32C of the batches' stored CRCs,
which is computed from headers alone and tells changed records from changed header fields that no CRC covers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.format.batches import BatchTable
from storage.format.checksum import crc32c

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

# A longer stretch of a log is listed as several ranges, so that a difference is found in a part of it.
RANGE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Consecutive batches of a log.

    `first_offset`: the first batch's base offset; that of a compressed message set of format v0 or v1 is unknown, and
    its last offset stands for it. `last_offset`: the last batch's. `batches`: their number, `size_bytes`: their bytes,
    of which `sha256` is the SHA-256 in hexadecimal. `crc_of_crcs`: the CRC-32C of their stored checksums, each as four
    bytes, big-endian. `min_timestamp`, `max_timestamp`: the least and the greatest of its messages, where they are
    known; they are not compared.
    """

    first_offset: int
    last_offset: int
    batches: int
    size_bytes: int
    sha256: str
    crc_of_crcs: int
    min_timestamp: int | None = field(default=None, compare=False)
    max_timestamp: int | None = field(default=None, compare=False)


class RangeDigest:
    """Digests batches that are added in order. Not thread-safe."""

    __slots__ = ("_crc", "_first", "_last", "_sha256", "batches", "size_bytes")

    def __init__(self) -> None:
        import hashlib

        self.batches = 0
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._crc = 0
        self._first = self._last = -1

    def add(self, parts: Iterable[memoryview], table: BatchTable) -> None:
        """Adds all batches of a table, whose bytes are in `parts`, back to back."""
        if not table.rows:
            return
        if not self.batches:
            self._first = known_offset(table, 0)
        self._last = int(table.last_offset[-1])
        self.batches += table.rows
        for part in parts:
            self.size_bytes += len(part)
            self._sha256.update(part)
        self._crc = crc32c(table.crc.astype(">u4").tobytes(), self._crc)

    def result(self) -> BatchRange:
        """The range of all batches that were added; there must be one."""
        return BatchRange(self._first, self._last, self.batches, self.size_bytes, self._sha256.hexdigest(), self._crc)


def known_offset(table: BatchTable, row: int) -> int:
    """A batch's base offset; its last offset where a compressed message set's base offset is unknown."""
    base = int(table.base_offset[row])
    return base if base >= 0 else int(table.last_offset[row])
