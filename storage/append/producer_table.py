"""The state of a log's producers, updated with each append; the content of `.snapshot` and `.txnindex` files.

Sources: Kafka's ProducerStateManager, ProducerAppendInfo, ProducerStateEntry, as a follower runs them: sequences are
recorded, not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import CorruptBatch
from storage.files import producer_state
from storage.files.producer_state import ProducerEntry
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import NO_PRODUCER_ID, NO_SEQUENCE, BatchTable
from storage.format.control_records import ControlRecord, ControlType, control_records
from storage.format.decoder import Decoder

_MAX_SEQUENCE = 2**31 - 1
_UNKNOWN = ProducerEntry(NO_PRODUCER_ID, -1, NO_SEQUENCE, -1, 0, -1)


@dataclass(frozen=True, slots=True)
class ProducerChanges:
    """The changes of a range of batches to the producers; `commit` applies it."""

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
        """The changes that appending the rows `first` to `last` makes; `data` holds their bytes, from the position
        `origin` on.

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
        """`changes`, given the rows that have a producer, and the transaction markers among them by row."""
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
        markers = {}
        for record in control_records(block):
            if record.type in (ControlType.ABORT, ControlType.COMMIT):
                markers[int(chosen[record.row])] = record
        missing = [int(row) for row in chosen.tolist() if row not in markers and int(table.count[row]) > 0]
        if missing:
            raise CorruptBatch("control batch is not a transaction marker", offset=int(table.base_offset[missing[0]]))
        return markers


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
