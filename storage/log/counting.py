"""The number of messages that a consumer sees in a range of offsets, from batch headers alone if possible.

A header's record count is exact, after compaction too. Only batches that the range cuts are decoded, and compressed
messages of the old formats, whose headers have no count. Control batches and aborted batches count as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.format.batches import UNKNOWN
from storage.format.decoder import Decoder
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.reader import find_batch
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock


def visible_end(snapshot: LogSnapshot, isolation: Isolation) -> int:
    """The offset where a consumer's reading ends (excluded): the log end, or the last stable offset."""
    return last_stable_offset(snapshot) if isolation is Isolation.READ_COMMITTED else snapshot.log_end_offset


def count_messages(
    snapshot: LogSnapshot,
    start_offset: int,
    end_offset: int,
    isolation: Isolation,
    *,
    on_bytes: Callable[[int], None] | None = None,
) -> int:
    """Return the number of messages from `start_offset` (included) to `end_offset` (excluded) that a consumer sees.

    `on_bytes` is called with the number of file bytes of each step. StorageError if damage hides the number.
    """
    total = 0
    for span in _spans(snapshot, start_offset, end_offset, isolation):
        total += int(span.counts.sum())
        if on_bytes is not None:
            on_bytes(int(span.window.table.size.sum()))
    return total


def nth_message(snapshot: LogSnapshot, start_offset: int, number: int, isolation: Isolation) -> int | None:
    """The offset of the `number`th message (from 1) at or after `start_offset`; None if there are fewer.

    StorageError if damage hides it.
    """
    missing = number
    for span in _spans(snapshot, start_offset, visible_end(snapshot, isolation), isolation):
        totals = span.counts.cumsum()
        if totals[-1] < missing:
            missing -= int(totals[-1])
            continue
        row = int(totals.searchsorted(missing))
        within = missing - (int(totals[row - 1]) if row else 0)
        return int(np.concatenate(span.offsets_of(row))[within - 1])
    return None


class _Span(NamedTuple):
    """Batches of a segment, and how many messages of each are visible. Valid until the next span is requested."""

    segment: Segment
    window: Window
    counts: NDArray[np.int64]
    first: int
    end: int
    decoder: Decoder

    def offsets_of(self, row: int) -> list[NDArray[np.int64]]:
        """The offsets within the range of the records in a row."""
        return [
            block.offset[(block.offset >= self.first) & (block.offset < self.end)].copy()
            for block in self._blocks(row, row + 1)
        ]

    def decode_counts(self, rows: NDArray[np.intp]) -> None:
        """Replace the counts of `rows`, ascending, by exact counts: adjoining rows are decoded together."""
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            self.counts[run] = 0
            for block in self._blocks(int(run[0]), int(run[-1]) + 1):
                inside = (block.offset >= self.first) & (block.offset < self.end)
                np.add(self.counts, np.bincount(block.batch[inside], minlength=len(self.counts)), out=self.counts)

    def _blocks(self, row: int, last_row: int) -> Iterator[RecordBlock]:
        window = self.window
        while row < last_row:
            block = self.decoder.decode(window.buffer, window.table, row, last_row, origin=window.origin)
            yield block
            block.check(self.segment.log.path)
            row = block.next_row


def _spans(snapshot: LogSnapshot, start_offset: int, end_offset: int, isolation: Isolation) -> Iterator[_Span]:
    """The batches of a range with their counts; each span has at least one row."""
    end = min(end_offset, visible_end(snapshot, isolation))
    start = max(start_offset, snapshot.log_start_offset)
    place = find_batch(snapshot, start) if start < end else None
    if place is None:
        return
    decoder = Decoder()
    position = place.position
    for segment in snapshot.segments[place.segment_index :]:
        if segment.base_offset >= end:
            return
        aborted = AbortedTransactions(snapshot, segment) if isolation is Isolation.READ_COMMITTED else None
        for window in scan_sound_batches(snapshot, segment, position):
            # A batch's first offset may be unknown, but it is above the end of the previous batch.
            rows = int(window.table.last_offset.searchsorted(end)) + 1
            table = window.table if rows >= window.table.rows else window.table.slice(0, rows)
            if not table.rows:
                continue
            span = _Span(segment, Window(window.buffer, window.origin, table), table.count.copy(), start, end, decoder)
            inside = table.last_offset < end
            cut = (table.base_offset < start) | ~inside | (table.count == UNKNOWN)
            span.counts[table.is_control] = 0
            cut &= ~table.is_control
            skipped = None if aborted is None else aborted.skip_rows(table)
            if skipped is not None:
                span.counts[skipped == 1] = 0
                cut &= skipped == 0
            if cut.any():
                span.decode_counts(np.flatnonzero(cut))
            yield span
            if not inside[-1] or rows < window.table.rows:
                return
        position = 0
