"""Transactions in a pass of the cleaner: which batches were aborted, and which markers are no longer needed.

Source: CleanedTransactionMetadata, UnifiedLog.collectAbortedTransactions. One difference: an ABORT marker whose
transaction has batches here but no .txnindex entry is an error, not the marker of an empty transaction. Kafka would
remove the marker and keep the batches, which would then count as committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptIndex
from storage.files import transaction_index
from storage.files.names import FileKind
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import BatchTable
from storage.format.control_records import ControlType
from storage.log.snapshot import LogSnapshot

EMPTIED: Final = None  # as a marker: a control batch whose record was cleaned away

Markers = Mapping[int, ControlType]


@dataclass(slots=True)
class _Aborted:
    transaction: AbortedTxn
    observed: bool = False


class CleanedTransactions:
    """Follows the batches of a log, in order. `take_retained` returns the aborted transactions that have batches left,
    for the cleaned segment's .txnindex."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()  # producers with batches of other transactions since their last COMMIT
        self._retained: list[AbortedTxn] = []

    def take_retained(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers were passed since the last call and are still needed."""
        taken, self._retained = self._retained, []
        return taken

    def discardable(self, table: BatchTable, markers: Markers) -> npt.NDArray[np.bool_]:
        """Which of the next batches belong to aborted transactions or are control batches that are no longer needed.

        `markers`: the types of control records by row; a control batch without any is an empty one. CorruptIndex when
        the .txnindex files lack an aborted transaction.
        """
        discardable_rows = np.zeros(table.rows, np.bool_)
        transactional = table.is_transactional
        controls = np.flatnonzero(table.is_control)
        if not len(controls) and not transactional.any():
            return discardable_rows
        first = 0
        for stop in (*controls.tolist(), table.rows):
            rows = first + np.flatnonzero(transactional[first:stop])
            if len(rows):
                discardable_rows[rows] = self._of_aborted(table, rows)
            if stop < table.rows:
                discardable_rows[stop] = self._ends(table, stop, markers)
            first = stop + 1
        return discardable_rows

    def _of_aborted(self, table: BatchTable, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Which of these batches, without a marker between them, belong to aborted transactions."""
        self._begin_up_to(int(table.last_offset[rows[-1]]))
        producers = table.producer_id[rows]
        aborted = np.isin(producers, np.fromiter(self._aborted, np.int64, len(self._aborted)))
        for producer in np.unique(producers[aborted]).tolist():
            self._aborted[producer].observed = True
        self._committed.update(np.unique(producers[~aborted]).tolist())
        return aborted

    def _ends(self, table: BatchTable, row: int, markers: Markers) -> bool:
        """Whether a control batch may go: no batch of its transaction is left."""
        self._begin_up_to(int(table.last_offset[row]))
        producer = int(table.producer_id[row])
        kind = markers.get(row, EMPTIED)
        if kind is EMPTIED:
            return True
        if kind is ControlType.ABORT:
            ended = self._aborted.pop(producer, None)
            if ended is None and producer in self._committed:
                raise CorruptIndex(
                    "an aborted transaction is not in the .txnindex files",
                    offset=int(table.last_offset[row]),
                    found=f"an ABORT marker of producer {producer}",
                    advice="`kafkafs reindex` rebuilds them from the log",
                )
            if ended is not None and ended.observed:
                self._retained.append(ended.transaction)
                return False
            return True
        if kind is ControlType.COMMIT:
            known = producer in self._committed
            self._committed.discard(producer)
            return not known
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            transaction = self._coming.popleft()
            self._aborted.setdefault(transaction.producer_id, _Aborted(transaction))


def collect_aborted(snapshot: LogSnapshot, start: int, end: int) -> list[AbortedTxn]:
    """The aborted transactions with offsets from `start` (included) to `end` (excluded), from the .txnindex files.

    CorruptIndex when one of these files cannot be read.
    """
    aborted: list[AbortedTxn] = []
    for segment in snapshot.segments[max(snapshot.segment_index(start), 0) :]:
        path = segment.path_of(FileKind.TRANSACTION_INDEX)
        index = transaction_index.load(path, segment.base_offset, growing=not segment.sealed)
        if index.problem is not None:
            raise index.problem
        slots, complete = index.collect(start, end)
        aborted += [index.entry(int(slot)) for slot in slots]
        if complete:
            break
    return aborted
