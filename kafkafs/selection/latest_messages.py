"""Messages by a list of offsets: the last message of every key, once a scan has found them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.latest.latest_records import rows_among
from storage.types import MAX_OFFSET

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.batches import BatchTable
    from storage.format.block import RecordBlock
    from storage.latest.offset_map import Int64s
    from storage.log.snapshot import LogSnapshot

DEFAULT_LATEST_BYTES: Final = 512 << 20  # for the keys of one scan


class ChosenOffsets:
    """The messages at some offsets, ascending (a MessageFilter of kafkafs.view_index.pieces). Equal only to itself."""

    def __init__(self, offsets: Int64s) -> None:
        self.offsets = offsets

    def skips(self, table: BatchTable) -> NDArray[np.uint8] | None:
        """See MessageFilter. A batch whose base offset is unknown (-1) is not skipped without need."""
        first = self.offsets.searchsorted(table.base_offset)
        behind = self.offsets.searchsorted(table.last_offset, side="right")
        return np.equal(first, behind).view(np.uint8)

    def mask(self, block: RecordBlock) -> NDArray[np.bool_] | None:
        """See MessageFilter."""
        mask = rows_among(block.offset, self.offsets)
        return None if mask.all() else mask

    def apply(self, block: RecordBlock) -> RecordBlock:
        """See MessageFilter."""
        mask = self.mask(block)
        return block if mask is None else block.select(mask)

    def spans(self, snapshot: LogSnapshot, start_offset: int) -> Iterator[tuple[int, int]]:
        """Offsets from (included) and to (excluded) which the messages at `start_offset` and after it lie, one pair for
        each segment that holds any."""
        for slot, segment in enumerate(snapshot.segments):
            behind = snapshot.segments[slot + 1].base_offset if slot + 1 < len(snapshot.segments) else MAX_OFFSET
            first, last = self.offsets.searchsorted((max(segment.base_offset, start_offset), behind)).tolist()
            if first < last:
                yield int(self.offsets[first]), int(self.offsets[last - 1]) + 1

    def may_hold(self, _table: BatchTable, _row: int, _times: tuple[int, int]) -> bool:
        """See MessageFilter. Nothing in the header of a damaged batch is certain."""
        return True
