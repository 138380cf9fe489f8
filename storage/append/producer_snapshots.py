"""Producer state of a log when it is opened: the newest good snapshot, then the batches after it.

Sources: Kafka's UnifiedLog.rebuildProducerState, ProducerStateManager.truncateAndReload, removeStraySnapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.append.producer_table import ProducerTable
from storage.clock import Clock
from storage.errors import CorruptCheckpoint
from storage.files import names, producer_state
from storage.files.disk import opened
from storage.files.disk_protocol import Disk
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.log.segment import Segment
from storage.log.segment_check import check_segment
from storage.log.segments import live_offsets


class ProducerSnapshots:
    """The `.snapshot` files of one partition, and how the newest of them is loaded into producer state."""

    def __init__(self, disk: Disk, directory: Path, *, clock: Clock, expiration_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._expiration_ms = expiration_ms
        self.offsets = live_offsets(directory, FileKind.PRODUCER_SNAPSHOT)
        self.corrupt: list[int] = []  # offsets of snapshots that were removed because they could not be read

    def remove_strays(self, base_offsets: Sequence[int]) -> None:
        """Removes snapshots at offsets where no segment begins, except for the last if it is above the last base."""
        strays = [offset for offset in self.offsets if offset not in set(base_offsets)]
        if strays and base_offsets and strays[-1] >= base_offsets[-1]:
            strays.pop()
        for offset in strays:
            self._remove(offset)

    def reload(self, log_start_offset: int, end_offset: int) -> ProducerTable:
        """The state of the newest valid snapshot up to `end_offset`. Removes snapshots above that, at or below the log
        start, and corrupt ones. Without any, the state is empty at the log start."""
        for offset in list(self.offsets):
            if offset > end_offset or offset <= log_start_offset:
                self._remove(offset)
        while self.offsets:
            offset = self.offsets[-1]
            try:
                read = producer_state.read(self._path(offset))
            except CorruptCheckpoint:
                self.corrupt.append(offset)
                read = None
            if read is None:
                self._remove(offset)
                continue
            table = ProducerTable(offset, read.entries())
            self.expire(table)
            return table
        return ProducerTable(log_start_offset)

    def expire(self, table: ProducerTable) -> None:
        """Removes the producers that loading a snapshot of this state would leave out."""
        table.expire(self._clock.now_ms(), self._expiration_ms)

    def write(self, table: ProducerTable) -> None:
        """Writes a snapshot of the state at its end, durably, unless the newest one is as new (takeSnapshot)."""
        newest = self.offsets[-1] if self.offsets else 0
        if table.end_offset <= newest:
            return
        with opened(self._disk, self._path(table.end_offset), create=True) as file:
            file.truncate(0)
            file.write_at(0, table.snapshot())
            file.sync()
        self.offsets.append(table.end_offset)

    def _remove(self, offset: int) -> None:
        self._disk.unlink(self._path(offset))
        self.offsets.remove(offset)

    def _path(self, offset: int) -> Path:
        return self._directory / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT)


def rebuild(
    snapshots: ProducerSnapshots, segments: Sequence[Segment], log_start_offset: int, end_offset: int, *, clean: bool
) -> ProducerTable:
    """The producer state at `end_offset`. Writes snapshots at the bases of the last two segments and at `end_offset`.

    After a clean shutdown a log without any snapshot is not read: it was written before Kafka had producer state.
    """
    marks = [segment.base_offset for segment in segments[-2:]]
    if clean and not snapshots.offsets:
        table = ProducerTable()
        for offset in (*marks, end_offset):
            table.end_offset = offset
            if offset > log_start_offset:
                snapshots.write(table)
        return table
    table = snapshots.reload(log_start_offset, end_offset)
    for index, segment in enumerate(segments):
        last = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
        if last <= table.end_offset or segment.base_offset >= end_offset:
            continue
        table.end_offset = max(segment.base_offset, table.end_offset, log_start_offset)
        if segment.base_offset in marks and table.end_offset > log_start_offset:
            snapshots.write(table)
        replay(table, segment)
    table.end_offset = end_offset
    if end_offset > log_start_offset:  # the next opening would remove a snapshot at the log start
        snapshots.write(table)
    return table


def replay(table: ProducerTable, segment: Segment) -> None:
    """Applies the batches of a segment that the state does not cover yet."""
    start = segment.floor(table.end_offset, segment.size) if table.end_offset > segment.base_offset else 0
    from_offset = table.end_offset

    def visit(data: memoryview, batches: BatchTable, rows: int, origin: int) -> None:
        first = int(batches.last_offset[:rows].searchsorted(from_offset))
        if first < rows:
            changes = table.changes(data, batches, first, rows, origin)
            table.commit(changes, int(batches.last_offset[rows - 1]) + 1)

    check_segment(segment.log, segment.base_offset, segment.size, visit, start=start)
