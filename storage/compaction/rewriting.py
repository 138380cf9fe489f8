"""Copies groups of segments through a BatchFilter, in a pass of this or another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from storage.append.swap import CleanedSegment
from storage.compaction.batch_filter import BatchFilter, Sink, read_markers
from storage.compaction.cleaned_transactions import CleanedTransactions
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import BatchTable, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

# Called with the number of bytes just read or written. May wait, and may raise to end the pass.
Pace = Callable[[int], None]


def unpaced(_: int) -> None:
    """No limit."""


def windows(snapshot: LogSnapshot, segment: Segment, start: int, pace: Pace = unpaced) -> Iterator[Window]:
    """The batches of a segment from a byte position on. Damage is raised."""
    for window in scan_sound_batches(snapshot, segment, start):
        yield window
        pace(int(window.table.size.sum()))


def between(window: Window, start: int, end: int) -> Window:
    """The batches of a window with last offsets from `start` (included) to `end` (excluded)."""
    first, last = window.table.last_offset.searchsorted((start, end)).tolist()
    if first == 0 and last == window.table.rows:
        return window
    return Window(window.buffer, window.origin, window.table.slice(first, last).copy())


def counting_blocks(window: Window, decoder: Decoder, transactions: CleanedTransactions) -> Iterator[RecordBlock]:
    """The records of a window among which the latest of each key is sought: without those of aborted transactions and
    control records. Damage is raised."""
    table = window.table
    discardable = transactions.discardable(table, read_markers(window, decoder))
    skip = (discardable & ~table.is_control).astype(np.uint8)
    row = 0
    while row < table.rows:
        block = decoder.decode(window.buffer, table, row, origin=window.origin, skip=skip)
        block.check()
        row = block.next_row
        yield block


class Rewriter:
    """Copies groups of segments in order. `legacy_horizon_ms`: tombstones in formats without a delete horizon are
    removed from segments that were last changed before this time."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        batches: BatchFilter,
        transactions: CleanedTransactions,
        legacy_horizon_ms: int,
        pace: Pace = unpaced,
    ) -> None:
        """`transactions`: the object that `batches` uses."""
        self._snapshot = snapshot
        self._batches = batches
        self._transactions = transactions
        self._legacy_horizon_ms = legacy_horizon_ms
        self._pace = pace

    def write(self, group: Sequence[Segment], cleaned: CleanedSegment) -> None:
        """Writes the rest of a group as a finished segment. StorageError for damage; OSError."""
        aborted = self.copy(group, lambda data: self._append(cleaned, data))
        cleaned.finish(aborted, group[-1].log.stat().st_mtime_ns)

    def copy(self, group: Sequence[Segment], sink: Sink) -> list[AbortedTxn]:
        """Passes the rest of a group to `sink`; returns the aborted transactions that end in it and are still
        needed."""
        for segment in group:
            retain_legacy = segment.mtime_ms() > self._legacy_horizon_ms
            for window in windows(self._snapshot, segment, 0, self._pace):
                self._batches.filter(window, sink, retain_legacy_deletes=retain_legacy)
        self._batches.flush(sink)
        return self._transactions.take_retained()

    def _append(self, cleaned: CleanedSegment, data: memoryview) -> None:
        table = BatchTable.empty(4096)
        start = 0
        while start < len(data):
            table.clear()
            outcome = scan(data, cleaned.size, table, start)
            cleaned.append(data[start : outcome.next_start], table)
            start = outcome.next_start
        self._pace(len(data))
