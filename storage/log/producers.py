"""The transactions that are open at an offset: from a producer snapshot, then from the batches after it.

Sources: Kafka's ProducerStateManager, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import CorruptCheckpoint
from storage.files import names, producer_state
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.log.scanning import scan_batches
from storage.log.segments import live_offsets

if TYPE_CHECKING:
    from storage.files.producer_state import ProducerSnapshot
    from storage.log.snapshot import LogSnapshot


def newest_snapshot(directory: Path, snapshot: LogSnapshot) -> tuple[int, ProducerSnapshot] | None:
    """The newest valid .snapshot file within the log, and its offset; if there is none, that of a remote segment; or
    None.

    Snapshots at or below the log start are not used, nor are those that fail their CRC (a broker deletes both).
    """
    within = range(snapshot.log_start_offset + 1, snapshot.log_end_offset + 1)
    for offset in reversed(live_offsets(directory, FileKind.PRODUCER_SNAPSHOT)):
        if offset not in within:
            continue
        try:
            read = producer_state.read(directory / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
        except CorruptCheckpoint:
            continue
        if read is not None:
            return offset, read
    for segment in reversed(snapshot.segments):
        part = segment.remote_producers()
        if part is not None and part[0] in within:
            with suppress(CorruptCheckpoint):
                return part[0], producer_state.parse(part[1], segment.log.path)
    return None


class OpenTransactions:
    """The transactions that are open at `next_offset`: their first offsets by producer id."""

    __slots__ = ("first_offsets", "next_offset")

    def __init__(self, next_offset: int, first_offsets: dict[int, int]) -> None:
        self.next_offset = next_offset
        self.first_offsets = first_offsets

    @staticmethod
    def at_best_snapshot(directory: Path, snapshot: LogSnapshot) -> OpenTransactions:
        """The open transactions of `newest_snapshot`; without such a file none, at the log start."""
        newest = newest_snapshot(directory, snapshot)
        if newest is None:
            return OpenTransactions(snapshot.log_start_offset, {})
        offset, read = newest
        open_rows = read.table[read.table["current_txn_first_offset"] >= 0]
        ids, firsts = open_rows["producer_id"].tolist(), open_rows["current_txn_first_offset"].tolist()
        return OpenTransactions(offset, dict(zip(ids, firsts, strict=True)))

    def replay(self, snapshot: LogSnapshot, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Advances to the snapshot's log end. `on_bytes` is called with the number of file bytes of each step."""
        first = max(snapshot.segment_index(self.next_offset), 0)
        for index, segment in enumerate(snapshot.segments[first:]):
            end = snapshot.end_position(segment)
            start = segment.floor(self.next_offset, end) if index == 0 and end else 0
            for window in scan_batches(snapshot, segment, start, end):
                self.apply(window.table)
                on_bytes(int(window.table.size.sum()))
        self.next_offset = max(self.next_offset, snapshot.log_end_offset)

    def apply(self, table: BatchTable) -> None:
        """Advance over these batches; those below `next_offset` are ignored."""
        rows = np.flatnonzero(table.is_transactional & (table.last_offset >= self.next_offset))
        if len(rows):
            producers, control = table.producer_id[rows], table.is_control[rows]
            # A batch directly after a batch of the same transaction changes nothing.
            same = (producers[1:] == producers[:-1]) & ~control[1:] & ~control[:-1]
            telling = np.concatenate(([True], ~same))
            for row, producer, ends in zip(
                rows[telling].tolist(), producers[telling].tolist(), control[telling].tolist(), strict=True
            ):
                if ends:
                    self.first_offsets.pop(producer, None)
                else:
                    self.first_offsets.setdefault(producer, int(table.base_offset[row]))
        if table.rows:
            self.next_offset = max(self.next_offset, int(table.last_offset[-1]) + 1)

    @property
    def stable_offset(self) -> int:
        """The first offset of the earliest open transaction; `next_offset` if none is open."""
        return min(self.first_offsets.values(), default=self.next_offset)
