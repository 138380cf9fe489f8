"""The messages that a read_committed reader may see: up to the last stable offset, without aborted transactions.

A transactional batch is aborted if the next marker of its producer after it is an ABORT. The markers are read from the
log itself: a .txnindex names the aborted transactions too, but a missing, stale or truncated one looks like one without
entries, and a reader would then return aborted messages. So one scan of the headers of a segment with transactional
batches collects its markers, and keeps them; other segments cost nothing. The .txnindex is used if the log is damaged,
so that a marker may be lost. Compaction keeps a transaction's marker as long as any of its batches exists
(CleanedTransactionMetadata), so the rule holds on compacted logs too.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from storage.errors import CorruptBatch, TierUnavailable
from storage.format.batches import BatchTable
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from storage.log.producers import OpenTransactions
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot

Int64s = npt.NDArray[np.int64]

MARKERS_KEPT: Final = 2_000_000  # 17 bytes each
_STABLE_KEPT: Final = 64


def last_stable_offset(snapshot: LogSnapshot, on_bytes: Callable[[int], None] = lambda _: None) -> int:
    """The first offset of the earliest transaction that is open at the log end; the log end if none is open.

    A broker also limits it by the high watermark; for kafkafs all that the files have counts as replicated. Without a
    snapshot of the producers the whole log is read: `on_bytes` is called with the number of file bytes of each step.
    """
    return snapshot.transactions.last_stable_offset(snapshot, on_bytes)


class AbortedTransactions:
    """Says which of a segment's batches belong to aborted transactions. Thread-safe.

    `decider`: the last marker on which the answers so far depend. As long as that marker is in the log, no truncation
    has removed any of the others, because a truncation removes from the end.
    """

    __slots__ = ("_deciders", "_lock", "_segment", "_snapshot", "_stable_offset")

    def __init__(self, snapshot: LogSnapshot, segment: Segment, stable_offset: int | None = None) -> None:
        """`stable_offset`: the snapshot's last stable offset, for answers that must outlive the snapshot's files; by
        default it is looked up when it is first needed."""
        self._snapshot = snapshot
        self._segment = segment
        self._stable_offset = stable_offset
        self._deciders: dict[Segment, int] = {}
        self._lock = Lock()  # guards the deciders

    @property
    def decider(self) -> DecidingMarker | None:
        with self._lock:
            return max(map(DecidingMarker._make, self._deciders.items()), key=attrgetter("offset"), default=None)

    def skip_rows(self, table: BatchTable) -> npt.NDArray[np.uint8] | None:
        """1 for each row (of batches of the segment, below the last stable offset) whose transaction was aborted; None
        if none was."""
        rows = np.flatnonzero(table.is_transactional & ~table.is_control)
        if not len(rows):
            return None
        if self._stable_offset is None:
            self._stable_offset = last_stable_offset(self._snapshot)
        # From the last stable offset on nothing is decided, and a search for markers would go on to the log's end.
        rows = rows[table.last_offset[rows] < self._stable_offset]
        skip, deciders = self._snapshot.transactions.aborted_rows(self._snapshot, self._segment, table, rows)
        with self._lock:
            for decider in deciders:
                self._deciders[decider.segment] = max(decider.offset, self._deciders.get(decider.segment, -1))
        return skip if skip.any() else None


class Markers(NamedTuple):
    """The transaction markers of a segment up to the position `end`, ascending by producer id, then offset."""

    producer_id: Int64s
    offset: Int64s
    aborts: npt.NDArray[np.bool_]
    end: int

    def outcomes(self, producer_id: int, offsets: Int64s) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], int]:
        """For a producer's batches (their last offsets): which have a later marker in this segment, which are aborted
        by it, and the offset of the last of these markers, -1 if there is none."""
        first, last = np.searchsorted(self.producer_id, [producer_id, producer_id + 1]).tolist()
        slots = first + np.searchsorted(self.offset[first:last], offsets, side="right")
        decided = slots < last
        aborted = np.zeros(len(offsets), np.bool_)
        aborted[decided] = self.aborts[slots[decided]]
        return decided, aborted, int(self.offset[slots[decided]].max()) if decided.any() else -1


def _cost(markers: Markers) -> int:
    # At least two segments are kept, however many markers they have.
    return min(len(markers.offset), MARKERS_KEPT // 2)


_NO_MARKERS: Final = Markers(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_), 0)


class Transactions:
    """A log's transactions, kept from one snapshot to the next (TransactionOutcomes). Thread-safe."""

    def __init__(self, directory: Path) -> None:
        # Constant after construction.
        self._directory = directory
        # Guarded by the lock, which is held while a segment is scanned, because other callers need the same answer.
        self._lock = Lock()
        self._markers: LRUCache[Segment, Markers] = LRUCache(MARKERS_KEPT, _cost)
        self._open: OpenTransactions | None = None
        self._generation = -1
        self._stable: LRUCache[int, int] = LRUCache(_STABLE_KEPT)  # by log end
        self._decoder: Decoder | None = None

    def last_stable_offset(self, snapshot: LogSnapshot, on_bytes: Callable[[int], None] = lambda _: None) -> int:
        end = snapshot.log_end_offset
        with self._lock:
            self._enter_locked(snapshot.generation)
            known = self._stable.get(end)
            if known is None:
                known = self._stable_end_locked(snapshot, on_bytes)
                self._stable[end] = known
        return min(max(known, snapshot.log_start_offset), end)

    def _enter_locked(self, generation: int) -> None:
        """Forget everything that a truncation may have changed. Callers may still use an older snapshot."""
        if generation != self._generation:
            self._open = None
            self._generation = generation
            self._stable.clear()

    def _stable_end_locked(self, snapshot: LogSnapshot, on_bytes: Callable[[int], None]) -> int:
        state = self._open
        if state is None or state.next_offset > snapshot.log_end_offset:
            state = OpenTransactions.at_best_snapshot(self._directory, snapshot)
        state.replay(snapshot, on_bytes)
        if self._open is None or state.next_offset >= self._open.next_offset:
            self._open = state
        return state.stable_offset

    def aborted_rows(
        self, snapshot: LogSnapshot, segment: Segment, table: BatchTable, rows: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.uint8], list[DecidingMarker]]:
        skip = np.zeros(table.rows, np.uint8)
        deciders: list[DecidingMarker] = []
        for later in snapshot.segments[max(snapshot.segment_index(segment.base_offset), 0) :]:
            if not len(rows):
                break
            markers = self._markers_of(snapshot, later)
            undecided = []
            last_marker = -1
            producers = table.producer_id[rows]
            for producer in np.unique(producers).tolist():
                own = rows[producers == producer]
                decided, aborted, marker = markers.outcomes(producer, table.last_offset[own])
                last_marker = max(last_marker, marker)
                skip[own[aborted]] = 1
                undecided.append(own[~decided])
            rows = np.sort(np.concatenate(undecided))
            if last_marker >= 0:
                deciders.append(DecidingMarker(later, last_marker))
        return skip, deciders

    def _markers_of(self, snapshot: LogSnapshot, segment: Segment) -> Markers:
        end = snapshot.end_position(segment)
        with self._lock:
            known = self._markers.get(segment, _NO_MARKERS)
            if known.end < end:
                known = self._markers[segment] = self._collect_locked(snapshot, segment, known, end)
        return known

    def _collect_locked(self, snapshot: LogSnapshot, segment: Segment, known: Markers, end: int) -> Markers:
        producers, offsets, aborts = [known.producer_id], [known.offset], [known.aborts]
        whole = True
        for window in scan_batches(snapshot, segment, known.end, end):
            if window.damage is not None:
                whole = False
                if isinstance(window.damage.error, TierUnavailable) and segment.transaction_index().missing:
                    raise window.damage.error  # it may become readable later; until then its markers are unknown
            elif window.table.rows:
                markers = self._read_markers_locked(window)
                whole = whole and markers is not None
                if markers is not None:
                    producers.append(markers[0])
                    offsets.append(markers[1])
                    aborts.append(markers[2])
        if not whole:
            index = segment.transaction_index()
            lost = ~np.isin(index.last_offset, np.concatenate(offsets))
            producers.append(index.producer_id[lost])
            offsets.append(index.last_offset[lost])
            aborts.append(np.ones(int(lost.sum()), np.bool_))
        producer, offset = np.concatenate(producers), np.concatenate(offsets)
        order = np.lexsort((offset, producer))
        return Markers(producer[order], offset[order], np.concatenate(aborts)[order], end)

    def _read_markers_locked(self, window: Window) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]] | None:
        """Producer ids, offsets, and whether they abort, of the markers in a window; None if a marker cannot be
        read."""
        table = window.table
        rows = np.flatnonzero(table.is_control & table.is_transactional)
        markers = BatchTable(np.ascontiguousarray(table.data[:, rows]), len(rows))
        kinds: list[bool] = []
        if len(rows):
            if self._decoder is None:
                self._decoder = Decoder()
            block = self._decoder.decode(window.buffer, markers, origin=window.origin, control=True)
            try:
                records = control_records(block)
            except CorruptBatch:
                return None
            if block.damage is not None or len(records) != len(rows):
                return None
            kinds = [record.type is ControlType.ABORT for record in records]
        return markers.producer_id, markers.last_offset, np.array(kinds, np.bool_)
