"""Digests of records as a consumer sees them, whatever batches, codec and format version store them.

The digest is XXH3 with 128 bits over the records' canonical form. It detects accidents; it does not withstand somebody
who wants two logs to have the same digest. See storage/FORMAT.md, "Digests of records".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from storage.format import digest_kernel

if TYPE_CHECKING:
    from storage.format.block import RecordBlock


_ROOM: Final = 256 << 10  # stays in the processor's cache between writing and hashing
_NO_HEADERS: Final = np.empty((4, 0), np.int64)


class CanonicalRecords:
    """Writes records in canonical form, in parts of a recycled buffer. Use one per thread."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = np.empty(_ROOM, np.uint8)

    def parts(self, block: RecordBlock, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """Yield the rows `first` to `last` (excluded) of a block in parts; each part is valid until the next."""
        columns = np.ascontiguousarray(block.columns)
        spans, slot = _NO_HEADERS, 0
        if block.headers_count.any():
            spans = block.headers_spans()
            slot = int(np.maximum(block.headers_count[:first], 0).sum())
        row, end = first, len(block) if last is None else last
        while row < end:
            row, slot, used, needed = digest_kernel.canonical(block.buffer, columns, spans, slot, row, end, self._out)
            if used:
                yield self._out[:used].data
            elif needed:
                self._out = np.empty(needed, np.uint8)


class RecordDigest:
    """The digest of records that are added in offset order."""

    __slots__ = ("_hash", "records")

    def __init__(self) -> None:
        self.records = 0
        self._hash = xxhash.xxh3_128()

    def add(self, part: memoryview) -> None:
        """Add records in canonical form. The caller adds their number to `records`."""
        self._hash.update(part)

    def hexdigest(self) -> str:
        """32 hexadecimal digits, the most significant first."""
        return self._hash.hexdigest()
