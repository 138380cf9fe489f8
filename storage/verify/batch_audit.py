"""The batches of a segment and what is in them: headers against one another, every record against its header.

Windows come with their bytes, whose CRCs were right. Several threads may look at the records; headers are kept until
some thousands are compared at once. What only the log as a whole can judge (producers, transactions) is kept, thinned
out, for later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import DecompressionFailed, StorageError, UnsupportedFormat
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import LogFile
from storage.format.batches import MAGIC_AT, MAX_MAGIC, NO_PRODUCER_ID, BatchTable
from storage.format.control_records import ControlRecord, ControlType, control_records
from storage.format.decoder import NO_RECORDS, Decoder, RecordAudit
from storage.types import TimestampType
from storage.verify.findings import RECOVER, SALVAGE, Findings, Kind

# Headers compared at once: some numpy calls for each lot, and little memory.
_LOT = 16_384
_LEFT = "leaves it: only lengths, CRCs and offsets are looked at"

_Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class ProducerTrail:
    """What a segment says of producers, thinned out so that a ProducerTable comes to the same state by it.

    Of each producer the first and last batch, those around a marker, and where transactional ones begin; `markers` are
    by base offset. `broken`: a marker did not parse, or batches are missing.
    """

    tables: list[BatchTable] = field(default_factory=list)
    markers: dict[int, ControlRecord] = field(default_factory=dict)
    broken: bool = False


class BatchAudit:
    """All batches of one segment, shown in order. `show`: is given each lot of headers, too."""

    def __init__(
        self,
        log: LogFile,
        base_offset: int,
        epochs: LeaderEpochs,
        log_start_offset: int,
        findings: Findings,
        show: Callable[[BatchTable], None],
    ) -> None:
        self._log = log
        self._path: Path = log.path
        self._findings = findings
        self._show = show
        # Any thread takes a decoder, or adds what it saw in a window, by the position of its first batch.
        self._decoders: deque[Decoder] = deque()
        self._looked: dict[int, list[RecordAudit]] = {}
        self._waiting: list[BatchTable] = []
        self._greatest: list[npt.NDArray[np.int64]] = []
        self._rows = 0
        self._last_offset = base_offset - 1
        self._log_start_offset = log_start_offset
        self._epoch_starts = np.array([entry.start_offset for entry in epochs.entries], np.int64)
        self._epoch_numbers = np.array([entry.epoch for entry in epochs.entries], np.int64)
        self.dense = True
        self.first_epoch = self.latest_epoch = -1
        self.trail = ProducerTrail()

    def look(self, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        """Looks at the records of a window that `visit` is given later, or never: any thread, in any order.

        Arguments as for `visit`.
        """
        decoder = self._decoder()
        audits, row = [], 0
        while row < rows:
            audit = decoder.audit(data, table, row, rows, origin=origin)
            audits.append(audit)
            row = audit.next_row + (audit.damage is not None)
        self._decoders.append(decoder)
        self._looked[int(table.position[0])] = audits

    def visit(self, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        """The first `rows` of `table`, which were looked at; `data` holds their bytes, from the file position `origin`
        on."""
        headers = BatchTable(table.data[:, :rows].copy(), rows)
        audits = self._looked.pop(int(headers.position[0]))
        self._waiting.append(headers)
        self._rows += rows
        if rows == 1 and self._has_unknown_magic(headers):
            self._greatest.append(np.full(1, NO_RECORDS, np.int64))
            return
        self._report_records(headers, audits)
        if (headers.attributes & 0x20).any():
            self._collect_markers(data, headers, origin)
        if self._rows >= _LOT:
            self.flush()

    def jump(self, next_offset: int) -> None:
        """Offsets go on from here, behind damage."""
        self.flush()
        self._looked.clear()
        self._last_offset = next_offset - 1
        self.dense = False
        self.trail.broken = True

    def flush(self) -> None:
        """Compares the headers that wait."""
        if not self._rows:
            return
        lot = self._waiting[0] if len(self._waiting) == 1 else BatchTable.concat(self._waiting)
        greatest = np.concatenate(self._greatest)
        self._waiting, self._greatest, self._rows = [], [], 0
        self._check_offsets(lot)
        told = (greatest != NO_RECORDS) & (lot.magic > 0) & (lot.timestamp_type == TimestampType.CREATE_TIME)
        self._report(lot, told & (greatest != lot.max_timestamp), Kind.BATCH_MAX_TIMESTAMP)
        self._check_epochs(lot)
        self._follow_producers(lot)
        self._show(lot)
        self._last_offset = int(lot.last_offset[-1])

    # A window

    def _has_unknown_magic(self, headers: BatchTable) -> bool:
        """check_segment shows such a batch alone, as if it were of v2."""
        position = int(headers.position[0])
        magic = self._log.read(position + MAGIC_AT, 1)[0]
        if magic <= MAX_MAGIC:
            return False
        self._add(
            Kind.BATCH_MAGIC, position, int(headers.base_offset[0]), expected="0, 1 or 2", found=magic,
            recovery="keeps it: the magic lies outside the CRC",
        )  # fmt: skip
        return True

    def _decoder(self) -> Decoder:
        try:
            return self._decoders.pop()
        except IndexError:
            return Decoder(verify_crc=False, verify_inner_crc=True)

    def _report_records(self, headers: BatchTable, audits: list[RecordAudit]) -> None:
        """`audits`: of these batches, and perhaps of some behind them."""
        row = 0
        for audit in audits:
            rows = min(len(audit.greatest), headers.rows - row)
            self._greatest.append(audit.greatest[:rows])
            if (audit.misplaced[:rows] >= 0).any():
                for index in np.flatnonzero(audit.misplaced[:rows] >= 0).tolist():
                    base, last = int(headers.base_offset[row + index]), int(headers.last_offset[row + index])
                    self._add(
                        Kind.RECORD_OFFSET, int(headers.position[row + index]), int(audit.misplaced_offset[index]),
                        expected=f"ascending, {base} to {last}",
                        found=f"{int(audit.misplaced_offset[index])} as record {int(audit.misplaced[index])}",
                    )  # fmt: skip
            row += rows
            if row == headers.rows:
                break
            if audit.damage is not None:
                error = audit.damage.error
                self._findings.add_error(_kind_of(error), error, self._path, recovery=_LEFT, repair=SALVAGE)
                self._greatest.append(np.full(1, NO_RECORDS, np.int64))
                row += 1

    def _collect_markers(self, data: memoryview, headers: BatchTable, origin: int) -> None:
        rows = np.flatnonzero(headers.is_control & (headers.count > 0))
        control = BatchTable(np.ascontiguousarray(headers.data[:, rows]), len(rows))
        decoder = self._decoder()
        for row in range(control.rows):
            block = decoder.decode(data, control, row, row + 1, origin=origin, control=True)
            if block.damage is not None:
                self.trail.broken = True
                continue  # found among the records
            base = int(control.base_offset[row])
            try:
                records = control_records(block)
            except StorageError as error:
                self.trail.broken = True
                self._add(
                    Kind.MARKER, int(control.position[row]), base, what=error.what, expected=error.expected,
                    found=error.found,
                )  # fmt: skip
                continue
            if not control.is_transactional[row]:
                continue
            ends = [one for one in records if one.type in (ControlType.ABORT, ControlType.COMMIT)]
            if ends:
                self.trail.markers[base] = ends[0]
            else:
                self.trail.broken = True
                self._add(Kind.MARKER, int(control.position[row]), base, what="control batch is no transaction marker")

    # A lot

    def _check_offsets(self, lot: BatchTable) -> None:
        """Base offsets, too, lie behind the batch before (the walk saw to the last ones)."""
        base, last = lot.base_offset, lot.last_offset
        before = np.concatenate(([self._last_offset], last[:-1]))
        known = base >= 0
        self.dense &= not (known & ((base > before + 1) | (lot.count != last - base + 1))).any()
        self._report(lot, known & (base <= before), Kind.BATCH_OVERLAP)
        self._report(lot, known & (lot.count > last - base + 1), Kind.BATCH_COUNT)
        self._report(lot, lot.is_transactional & (lot.producer_id == NO_PRODUCER_ID), Kind.BATCH_PRODUCER)

    def _check_epochs(self, lot: BatchTable) -> None:
        """Leader epochs never fall, and the checkpoint knows them."""
        numbers = lot.leader_epoch
        known = (lot.magic == MAX_MAGIC) & (numbers >= 0)
        if not known.any():
            return
        if self.first_epoch < 0:
            self.first_epoch = int(numbers[known.argmax()])
        running = np.maximum.accumulate(np.concatenate(([self.latest_epoch], numbers)))
        self._report(lot, known & (numbers < running[:-1]), Kind.BATCH_EPOCH)
        self.latest_epoch = int(running[-1])
        if len(self._epoch_starts):
            slots = self._epoch_starts.searchsorted(lot.base_offset, side="right") - 1
            # What lies below the log start has no epochs any more; where the start is, a crash may have forgotten.
            wrong = known & (slots >= 0) & (self._epoch_numbers[slots] != running[1:])
        else:
            wrong = known & (lot.last_offset >= self._log_start_offset)
        self._report(lot, wrong, Kind.EPOCHS_UNTRUE, recovery="assigns the epochs of what it checks", repair=RECOVER)

    def _follow_producers(self, lot: BatchTable) -> None:
        rows = np.flatnonzero((lot.magic == MAX_MAGIC) & (lot.producer_id != NO_PRODUCER_ID))
        if not len(rows):
            return
        order = rows[np.argsort(lot.producer_id[rows], kind="stable")]
        producers = lot.producer_id[order]
        control, transactional = lot.is_control[order], lot.is_transactional[order]
        kept = np.ones(len(order), np.bool_)
        # In the middle of a producer's like batches there is nothing to learn.
        same = producers[1:] == producers[:-1]
        same &= ~control[1:] & ~control[:-1] & (transactional[1:] == transactional[:-1])
        kept[1:-1] = ~(same[1:] & same[:-1])
        chosen = np.sort(order[kept])
        self.trail.tables.append(BatchTable(np.ascontiguousarray(lot.data[:, chosen]), len(chosen)))

    # Reporting

    def _report(
        self, lot: BatchTable, wrong: _Flags, kind: Kind, *, recovery: str = _LEFT, repair: str = SALVAGE
    ) -> None:
        """The first of the rows that are wrong, and how many there are."""
        if wrong.any():
            row = int(wrong.argmax())
            offset = int(lot.base_offset[row]) if lot.base_offset[row] >= 0 else int(lot.last_offset[row])
            self._findings.add(
                kind, self._path, position=int(lot.position[row]), offset=offset, recovery=recovery, repair=repair,
                more=int(wrong.sum()) - 1,
            )  # fmt: skip

    def _add(
        self,
        kind: Kind,
        position: int,
        offset: int,
        *,
        what: str | None = None,
        expected: object = None,
        found: object = None,
        recovery: str = _LEFT,
    ) -> None:
        self._findings.add(
            kind, self._path, what, position=position, offset=offset, expected=expected, found=found,
            recovery=recovery, repair=SALVAGE,
        )  # fmt: skip


def _kind_of(error: StorageError) -> Kind:
    if isinstance(error, UnsupportedFormat):
        return Kind.CODEC
    return Kind.COMPRESSION if isinstance(error, DecompressionFailed) else Kind.RECORDS
