"""The latest records of their keys as a list of offsets, to compact a part of a log without the keys of the rest."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage.format.block import RecordBlock
from storage.latest import offset_map_kernel
from storage.latest.latest_records import rows_among

Int64s = npt.NDArray[np.int64]

_NO_MAP: Final = np.zeros(3, np.uint64)
_NO_HASHES: Final = np.empty((0, 2), np.uint64)


class Survivors:
    """Offsets of the records that have no later one of the same key, ascending; 8 bytes each. Not thread-safe.

    Replaces a complete OffsetMap, with the same rules and the same kernel.
    """

    def __init__(self, offsets: Int64s) -> None:
        self._offsets = offsets

    def retain(
        self, block: RecordBlock, verdicts: npt.NDArray[np.uint8], kept: Int64s, deletes: Int64s, counts: Int64s
    ) -> npt.NDArray[np.uint8]:
        """As OffsetMap.retain."""
        rows = len(block)
        keep = np.empty(rows, np.uint8)
        # The kernel's marks are by offset, and offsets may be far apart: row numbers are passed instead.
        offset_map_kernel.retain(
            _NO_MAP,
            rows,
            0,
            np.packbits(rows_among(block.offset, self._offsets), bitorder="little"),
            _NO_HASHES,
            np.arange(rows, dtype=np.int64),
            block.key_length,
            block.value_length,
            block.batch,
            verdicts,
            keep,
            kept,
            deletes,
            counts,
        )
        return keep
