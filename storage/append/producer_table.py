"""What a log knows of its producers, updated with each append; the content of `.snapshot` and `.txnindex` files.

Sources: Kafka's ProducerStateManager, ProducerAppendInfo, ProducerStateEntry, as a follower runs them: sequences are
recorded, not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.clock import Clock
from storage.errors import CorruptBatch, CorruptCheckpoint
from storage.files import names, producer_state
from storage.files.disk import opened
from storage.files.disk_protocol import Disk
from storage.files.names import FileKind
from storage.files.producer_state import ProducerEntry
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import NO_PRODUCER_ID, NO_SEQUENCE, BatchTable
from storage.format.control_records import ControlRecord, ControlType, control_records
from storage.format.decoder import Decoder
from storage.log.segment import Segment
from storage.log.segment_check import check_segment
from storage.log.segments import live_offsets

_MAX_SEQUENCE = 2**31 - 1
_UNKNOWN = ProducerEntry(NO_PRODUCER_ID, -1, NO_SEQUENCE, -1, 0, -1)


@dataclass(frozen=True, slots=True)
class ProducerChanges:
    """What a range of batches changes about the producers; `commit` applies it."""

    entries: dict[int, ProducerEntry]
    aborted: tuple[AbortedTxn, ...]
    end_offset: int


class ProducerTable:
    """Producers by id, as of the offset `end_offset`. Not thread-safe: the log's lock must be held."""

    def __init__(self, end_offset: int = 0, entries: Iterable[ProducerEntry] = ()) -> None:
        self.end_offset = end_offset
        self._entries = {entry.producer_id: entry for entry in entries}
        self._decoder = Decoder(verify_crc=False)

    def entries(self) -> list[ProducerEntry]:
        """All producers, in the order in which a broker's HashMap would write them to a snapshot."""
        size = 16
        while len(self._entries) > size * 3 // 4:
            size *= 2
        return sorted(self._entries.values(), key=lambda entry: _bucket(entry.producer_id, size))

    def snapshot(self) -> bytes:
        """The bytes of a .snapshot file."""
        return producer_state.encode(self.entries())

    def changes(
        self, data: memoryview, table: BatchTable, first: int, last: int, origin: int
    ) -> ProducerChanges | None:
        """What appending the rows `first` to `last` changes; `data` holds their bytes, from the position `origin` on.

        None where no batch has a producer. CorruptBatch for a marker that does not parse.
        """
        rows = (
            np.flatnonzero((table.magic[first:last] == 2) & (table.producer_id[first:last] != NO_PRODUCER_ID)) + first
        )
        if not len(rows):
            return None
        markers = self._markers(data, table, rows, origin)
        return self.changes_of(table, rows, markers, int(table.last_offset[last - 1]) + 1)

    def changes_of(
        self, table: BatchTable, rows: np.ndarray, markers: Mapping[int, ControlRecord], end_offset: int
    ) -> ProducerChanges:
        """`changes`, given the rows that have a producer and, by row, those of them that end a transaction."""
        entries: dict[int, ProducerEntry] = {}
        aborted: list[AbortedTxn] = []
        for row in rows.tolist():
            producer = int(table.producer_id[row])
            entry = entries.get(producer) or self._entries.get(producer) or _UNKNOWN._replace(producer_id=producer)
            marker = markers.get(row)
            if marker is None:
                entries[producer] = _with_batch(entry, table, row)
                continue
            if marker.type is ControlType.ABORT and entry.current_txn_first_offset >= 0:
                stable = self._next_open(entries, producer, marker.offset + 1)
                aborted.append(AbortedTxn(producer, entry.current_txn_first_offset, marker.offset, stable))
            entries[producer] = _with_marker(entry, marker)
        return ProducerChanges(entries, tuple(aborted), end_offset)

    def commit(self, changes: ProducerChanges | None, end_offset: int) -> None:
        """Applies changes, once their batches are in the log; `end_offset` is the log's end then."""
        if changes is not None:
            self._entries.update(changes.entries)
        self.end_offset = end_offset

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Removes producers that were silent for so long and have no open transaction (removeExpiredProducers)."""
        self._entries = {entry.producer_id: entry for entry in self.active(now_ms, expiration_ms)}

    def active(self, now_ms: int, expiration_ms: int) -> list[ProducerEntry]:
        """The producers that `expire` would keep."""
        return [
            entry
            for entry in self._entries.values()
            if entry.current_txn_first_offset >= 0 or now_ms - entry.timestamp < expiration_ms
        ]

    def _next_open(self, changed: dict[int, ProducerEntry], producer: int, default: int) -> int:
        """The first offset of the earliest open transaction of another producer (findNextIncompleteTxn)."""
        current = self._entries | changed
        first_offsets = (entry.current_txn_first_offset for other, entry in current.items() if other != producer)
        return min((first for first in first_offsets if first >= 0), default=default)

    def _markers(self, data: memoryview, table: BatchTable, rows: np.ndarray, origin: int) -> dict[int, ControlRecord]:
        """Transaction markers by row."""
        chosen = rows[table.is_control[rows] & table.is_transactional[rows]]
        if not len(chosen):
            return {}
        part = BatchTable(np.ascontiguousarray(table.data[:, chosen]), len(chosen))
        block = self._decoder.decode(data, part, origin=origin, control=True)
        block.check()
        found = {}
        for record in control_records(block):
            if record.type in (ControlType.ABORT, ControlType.COMMIT):
                found[int(chosen[record.row])] = record
        missing = [int(row) for row in chosen.tolist() if row not in found and int(table.count[row]) > 0]
        if missing:
            raise CorruptBatch("control batch is not a transaction marker", offset=int(table.base_offset[missing[0]]))
        return found


def _with_batch(entry: ProducerEntry, table: BatchTable, row: int) -> ProducerEntry:
    """ProducerStateEntry.addBatch; also notes the first offset of a transaction that begins."""
    if table.is_control[row]:
        return entry
    first_offset, last_offset = int(table.base_offset[row]), int(table.last_offset[row])
    sequence = int(table.base_sequence[row])
    delta = last_offset - first_offset
    if sequence != NO_SEQUENCE:
        sequence = _incremented(sequence, delta)
    open_from = entry.current_txn_first_offset
    if open_from < 0 and bool(table.is_transactional[row]):
        open_from = first_offset
    return entry._replace(
        epoch=int(table.producer_epoch[row]),
        last_sequence=sequence,
        last_offset=last_offset,
        offset_delta=delta,
        timestamp=int(table.max_timestamp[row]),
        current_txn_first_offset=open_from,
    )


def _with_marker(entry: ProducerEntry, marker: ControlRecord) -> ProducerEntry:
    """ProducerAppendInfo.appendEndTxnMarker: a marker of another epoch resets the batches."""
    if marker.producer_epoch != entry.epoch:
        entry = entry._replace(epoch=marker.producer_epoch, last_sequence=NO_SEQUENCE, last_offset=-1, offset_delta=0)
    return entry._replace(
        timestamp=marker.timestamp,
        coordinator_epoch=-1 if marker.coordinator_epoch is None else marker.coordinator_epoch,
        current_txn_first_offset=-1,
    )


def _incremented(sequence: int, delta: int) -> int:
    """DefaultRecordBatch.incrementSequence: 2^31 - 1 is followed by 0."""
    total = sequence + delta
    return total if total <= _MAX_SEQUENCE else total - _MAX_SEQUENCE - 1


def _bucket(producer_id: int, size: int) -> int:
    """In which of `size` buckets a java.util.HashMap stores a Long."""
    folded = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
    return (folded ^ (folded >> 16)) & (size - 1)


# Producer state of a log when it is opened: the newest good snapshot, then the batches after it.
#
# Sources: Kafka's UnifiedLog.rebuildProducerState, ProducerStateManager.truncateAndReload, removeStraySnapshots.


class ProducerSnapshots:
    """The `.snapshot` files of one partition, and how the newest of them is loaded into producer state."""

    def __init__(self, disk: Disk, directory: Path, *, clock: Clock, expiration_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._expiration_ms = expiration_ms
        self.offsets = live_offsets(directory, FileKind.PRODUCER_SNAPSHOT)

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
    """The producer state at `end_offset`, with snapshots written at the bases of the last two segments and there.

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
    if end_offset > log_start_offset:  # the next opening would remove one at the start
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
