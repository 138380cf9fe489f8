"""Checks a segment's batches and their records: headers against one another, every record against its header.

Windows come with their bytes, whose CRCs were right. Headers are collected until some thousands can be compared at
once. What can only be judged by the whole log (producers, transactions) is thinned out and kept for later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import DecompressionFailed, StorageError, UnsupportedFormat
from storage.files import names
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import LogFile
from storage.format.batches import MAGIC_AT, MAX_MAGIC, NO_PRODUCER_ID, BatchTable
from storage.format.control_records import ControlRecord, ControlType, control_records
from storage.format.decoder import NO_RECORDS, Decoder
from storage.types import TimestampType
from storage.verify.findings import RECOVER, SALVAGE, FaultKind, Finding, Findings, Repair
from storage.verify.index_audit import Flags

# Headers compared at once: few numpy calls for each lot, and little memory.
_LOT = 16_384
_LEFT = Repair("leaves it: it checks only lengths, CRCs and offsets", SALVAGE)


@dataclass(slots=True)
class ProducerTrail:
    """A segment's batches that matter for producers: a ProducerTable gets the same state from them as from all.

    For each producer the first and last batch, those around a marker, and where transactional ones begin; `markers` are
    by base offset. `broken`: a marker did not parse, or batches are missing.
    """

    tables: list[BatchTable] = field(default_factory=list)
    markers: dict[int, ControlRecord] = field(default_factory=dict)
    broken: bool = False


class BatchAudit:
    """Checks all batches of one segment, in order. `epochs`: None if the checkpoint cannot be read. `show` is called
    with each lot of headers, too."""

    def __init__(
        self,
        log: LogFile,
        base_offset: int,
        epochs: LeaderEpochs | None,
        log_start_offset: int,
        findings: Findings,
        show: Callable[[BatchTable], None],
    ) -> None:
        self._log = log
        self._path: Path = log.path
        self._findings = findings
        self._show = show
        self._decoder = Decoder(verify_crc=False, verify_inner_crc=True)
        self._waiting: list[BatchTable] = []
        self._greatest: list[npt.NDArray[np.int64]] = []
        self._rows = 0
        self._last_offset = base_offset - 1
        self._log_start_offset = log_start_offset
        self._knows_epochs = epochs is not None
        entries = () if epochs is None else epochs.entries
        self._epoch_starts = np.array([entry.start_offset for entry in entries], np.int64)
        self._epoch_numbers = np.array([entry.epoch for entry in entries], np.int64)
        self.dense = True
        self.first_epoch = self.latest_epoch = -1
        self.trail = ProducerTrail()

    def visit(self, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        """Checks the first `rows` of `table`; `data` holds their bytes, from the file position `origin` on."""
        headers = BatchTable(table.data[:, :rows].copy(), rows)
        self._waiting.append(headers)
        self._rows += rows
        if rows == 1 and self._has_unknown_magic(headers):
            self._greatest.append(np.full(1, NO_RECORDS, np.int64))
            return
        self._check_records(data, headers, origin)
        if (headers.attributes & 0x20).any():
            self._collect_markers(data, headers, origin)
        if self._rows >= _LOT:
            self.flush()

    def jump(self, next_offset: int) -> None:
        """Continues at `next_offset` after damage."""
        self.flush()
        self._last_offset = next_offset - 1
        self.dense = False
        self.trail.broken = True

    def flush(self) -> None:
        """Compares the collected headers."""
        if not self._rows:
            return
        lot = self._waiting[0] if len(self._waiting) == 1 else BatchTable.concat(self._waiting)
        greatest = np.concatenate(self._greatest)
        self._waiting, self._greatest, self._rows = [], [], 0
        self._check_offsets(lot)
        has_maximum = (greatest != NO_RECORDS) & (lot.magic > 0) & (lot.timestamp_type == TimestampType.CREATE_TIME)
        self._report(lot, has_maximum & (greatest != lot.max_timestamp), FaultKind.BATCH_MAX_TIMESTAMP)
        self._check_epochs(lot)
        self._follow_producers(lot)
        self._show(lot)
        self._last_offset = int(lot.last_offset[-1])

    # A window

    def _has_unknown_magic(self, headers: BatchTable) -> bool:
        """Whether the magic is unknown: check_segment passes such a batch alone, as if it were v2."""
        position = int(headers.position[0])
        magic = self._log.read(position + MAGIC_AT, 1)[0]
        if magic <= MAX_MAGIC:
            return False
        how, offset = Repair("keeps it: the CRC does not cover the magic", SALVAGE), int(headers.base_offset[0])
        self._findings.add(Finding(FaultKind.BATCH_MAGIC, self._path, how, "", position, offset, "0, 1 or 2", magic))
        return True

    def _check_records(self, data: memoryview, headers: BatchTable, origin: int) -> None:
        row = 0
        while row < headers.rows:
            audit = self._decoder.audit(data, headers, row, headers.rows, origin=origin)
            self._greatest.append(audit.greatest)
            for index in np.flatnonzero(audit.misplaced >= 0).tolist():
                base, last = int(headers.base_offset[row + index]), int(headers.last_offset[row + index])
                position, offset = int(headers.position[row + index]), int(audit.misplaced_offset[index])
                misplaced = f"{offset} as record {int(audit.misplaced[index])}"
                self._add(FaultKind.RECORD_OFFSET, position, offset, "", f"ascending, {base} to {last}", misplaced)
            row = audit.next_row
            if audit.damage is not None:
                error = audit.damage.error
                self._findings.add(Finding.of_error(_kind_of(error), error, self._path, _LEFT))
                self._greatest.append(np.full(1, NO_RECORDS, np.int64))
                row += 1

    def _collect_markers(self, data: memoryview, headers: BatchTable, origin: int) -> None:
        rows = np.flatnonzero(headers.is_control & (headers.count > 0))
        control = BatchTable(np.ascontiguousarray(headers.data[:, rows]), len(rows))
        for row in range(control.rows):
            block = self._decoder.decode(data, control, row, row + 1, origin=origin, control=True)
            if block.damage is not None:
                self.trail.broken = True
                continue  # reported with the records
            base = int(control.base_offset[row])
            try:
                records = control_records(block)
            except StorageError as error:
                self.trail.broken = True
                position = int(control.position[row])
                self._add(FaultKind.MARKER, position, base, error.what, error.expected, error.found)
                continue
            if not control.is_transactional[row]:
                continue
            ends = [record for record in records if record.type in (ControlType.ABORT, ControlType.COMMIT)]
            if ends:
                self.trail.markers[base] = ends[0]
            else:
                self.trail.broken = True
                what = "control batch is not a transaction marker"
                self._add(FaultKind.MARKER, int(control.position[row]), base, what)

    # A lot

    def _check_offsets(self, lot: BatchTable) -> None:
        """Checks that base offsets come after the previous batch too; the walk has checked the last offsets."""
        base, last = lot.base_offset, lot.last_offset
        before = np.concatenate(([self._last_offset], last[:-1]))
        known = base >= 0
        self.dense &= not (known & ((base > before + 1) | (lot.count != last - base + 1))).any()
        self._report(lot, known & (base <= before), FaultKind.BATCH_OVERLAP)
        self._report(lot, known & (lot.count > last - base + 1), FaultKind.BATCH_COUNT)
        self._report(lot, lot.is_transactional & (lot.producer_id == NO_PRODUCER_ID), FaultKind.BATCH_PRODUCER)

    def _check_epochs(self, lot: BatchTable) -> None:
        """Leader epochs never decrease, and are the ones in the checkpoint."""
        numbers = lot.leader_epoch
        known = (lot.magic == MAX_MAGIC) & (numbers >= 0)
        if not known.any():
            return
        if self.first_epoch < 0:
            self.first_epoch = int(numbers[known.argmax()])
        running = np.maximum.accumulate(np.concatenate(([self.latest_epoch], numbers)))
        self._report(lot, known & (numbers < running[:-1]), FaultKind.BATCH_EPOCH)
        self.latest_epoch = int(running[-1])
        if not self._knows_epochs:
            return
        if len(self._epoch_starts):
            slots = self._epoch_starts.searchsorted(lot.base_offset, side="right") - 1
            # There are no epochs below the log start; a crash may have lost where the start is.
            wrong = known & (slots >= 0) & (self._epoch_numbers[slots] != running[1:])
            how = Repair("only adds newer epochs", f"remove {names.LEADER_EPOCH_CHECKPOINT}, then {RECOVER}")
        else:
            wrong = known & (lot.last_offset >= self._log_start_offset)
            how = Repair("assigns the epochs of the batches that it checks", RECOVER)
        self._report(lot, wrong, FaultKind.EPOCHS_UNTRUE, how)

    def _follow_producers(self, lot: BatchTable) -> None:
        rows = np.flatnonzero((lot.magic == MAX_MAGIC) & (lot.producer_id != NO_PRODUCER_ID))
        if not len(rows):
            return
        order = rows[np.argsort(lot.producer_id[rows], kind="stable")]
        producers = lot.producer_id[order]
        control, transactional = lot.is_control[order], lot.is_transactional[order]
        kept = np.ones(len(order), np.bool_)
        # Of a producer's consecutive equal batches, only the first and the last are needed.
        same = producers[1:] == producers[:-1]
        same &= ~control[1:] & ~control[:-1] & (transactional[1:] == transactional[:-1])
        kept[1:-1] = ~(same[1:] & same[:-1])
        chosen = np.sort(order[kept])
        self.trail.tables.append(BatchTable(np.ascontiguousarray(lot.data[:, chosen]), len(chosen)))

    # Reporting

    def _report(self, lot: BatchTable, wrong: Flags, kind: FaultKind, how: Repair = _LEFT) -> None:
        """Reports the first of the wrong rows, and how many there are."""
        if wrong.any():
            row = int(wrong.argmax())
            offset = int(lot.base_offset[row]) if lot.base_offset[row] >= 0 else int(lot.last_offset[row])
            position, more = int(lot.position[row]), int(wrong.sum()) - 1
            self._findings.add(Finding(kind, self._path, how, position=position, offset=offset, more=more))

    def _add(
        self, kind: FaultKind, position: int, offset: int, what: str, expected: object = None, found: object = None
    ) -> None:
        self._findings.add(Finding(kind, self._path, _LEFT, what, position, offset, expected, found))


def _kind_of(error: StorageError) -> FaultKind:
    if isinstance(error, UnsupportedFormat):
        return FaultKind.CODEC
    return FaultKind.COMPRESSION if isinstance(error, DecompressionFailed) else FaultKind.RECORDS
