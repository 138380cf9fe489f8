"""One segment checked: every batch, every record, and every index entry against them. Read-only.

The .log is read once, window by window; index entries are compared as their batches pass by, so that memory does not
grow with the segment. At the first batch that is not sound the rest of the segment is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError
from storage.files import offset_index, sparse_index, time_index, transaction_index
from storage.files.leader_epochs import LeaderEpochs
from storage.files.names import FileKind
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import BatchTable
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from storage.log.producer_table import ProducerTable
from storage.log.segment import Segment
from storage.log.segment_check import check_segment, intact_batch_behind
from storage.types import TimestampType
from storage.upkeep.findings import RECOVER, REINDEX, SALVAGE, Findings, Severity

_MAGIC_AT = 16
_MAX_MAGIC = 2
_UNSEEN = -2


@dataclass(slots=True)
class AuditState:
    """What goes along from segment to segment: the producers, and the offset that must not be passed back."""

    producers: ProducerTable
    epochs: LeaderEpochs
    decoder: Decoder
    next_offset: int
    log_start_offset: int = 0


class SegmentAudit:
    """The check of one segment. `settled`: it was closed in order, so nothing at its end may be unfinished."""

    def __init__(self, segment: Segment, state: AuditState, findings: Findings, *, sealed: bool, settled: bool) -> None:
        self._segment = segment
        self._state = state
        self._findings = findings
        self._sealed = sealed
        self._settled = settled
        self._log_path = segment.log.path
        base_offset = segment.base_offset
        self._offsets = offset_index.load(segment.path_of(FileKind.OFFSET_INDEX), base_offset, segment.size)
        self._times = time_index.load(segment.path_of(FileKind.TIME_INDEX), base_offset)
        self._aborts = transaction_index.load(segment.path_of(FileKind.TRANSACTION_INDEX), base_offset)
        self._offset_keys = self._offsets.offsets
        self._positions = self._offsets.positions
        self._time_offsets = self._times.offsets
        self._next_entry = self._next_time = 0
        self._known_offsets = np.zeros(len(self._offset_keys), np.bool_)
        self._last_offset = base_offset - 1
        self._max_timestamp = -1
        self._latest_epoch = -1
        self._epoch_starts = np.array([entry.start_offset for entry in state.epochs.entries], np.int64)
        self._epoch_numbers = np.array([entry.epoch for entry in state.epochs.entries], np.int64)
        self._aborted: list[AbortedTxn] = []
        self._markers: dict[int, int] = {}  # an abort marker's offset → its producer
        self._producers_failed = False

    def run(self) -> None:
        """Checks everything; `state` is at the segment's end afterwards."""
        segment, state = self._segment, self._state
        if state.producers.end_offset < segment.base_offset:
            state.producers.end_offset = segment.base_offset
        check = check_segment(segment.log, segment.base_offset, segment.size, self._visit)
        if check.invalid_bytes:
            self._report_end(check.end, check.next_offset)
        self._check_offset_index(check.end)
        self._check_time_index(check.end)
        self._check_transaction_index(whole=not check.invalid_bytes)
        state.next_offset = max(state.next_offset, check.next_offset)

    def _report_end(self, position: int, next_offset: int) -> None:
        """What stands behind the last sound batch: a torn tail that recovery cuts, or damage."""
        behind = intact_batch_behind(self._segment.log, position + 1, self._segment.size)
        torn = not self._sealed and not self._settled and behind is None
        self._findings.add(
            self._log_path,
            "log ends in bytes that are no sound batch" if torn else "no sound batch begins here",
            position=position,
            offset=next_offset,
            expected="a whole batch with a right CRC and ascending offsets",
            found=f"{self._segment.size - position} bytes"
            + ("" if behind is None else f", intact again from position {behind}"),
            repair=RECOVER if torn else SALVAGE,
            severity=Severity.UNFINISHED if torn else Severity.DAMAGE,
        )

    # Batches

    def _visit(self, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        part = table if rows == table.rows else BatchTable(np.ascontiguousarray(table.data[:, :rows]), rows)
        if rows == 1 and self._has_unknown_magic(part):
            self._last_offset = int(part.last_offset[-1])
            return
        self._check_offsets(part)
        self._check_records(data, part, origin)
        self._check_epochs(part)
        self._follow_producers(data, part, origin)
        self._match_offset_entries(part)
        self._match_time_entries(part)
        self._max_timestamp = max(self._max_timestamp, int(part.max_timestamp.max()))
        self._last_offset = int(part.last_offset[-1])

    def _has_unknown_magic(self, part: BatchTable) -> bool:
        position = int(part.position[0])
        magic = self._segment.log.read(position + _MAGIC_AT, 1)[0]
        if magic <= _MAX_MAGIC:
            return False
        self._damage(position, int(part.base_offset[0]), "batch has an unknown magic", "0, 1 or 2", magic, SALVAGE)
        return True

    def _check_offsets(self, part: BatchTable) -> None:
        """Base offsets, too, must lie behind the batch before (check_segment saw to the last ones)."""
        base, last = part.base_offset, part.last_offset
        before = np.concatenate(([self._last_offset], last[:-1]))
        known = base >= 0
        self._report_rows(part, known & (base <= before), "batch begins before the one before it ends", SALVAGE)
        self._report_rows(part, known & (last < base), "batch ends before it begins", SALVAGE)
        many = known & (part.count >= 0) & (part.count > last - base + 1)
        self._report_rows(part, many, "batch counts more records than it has offsets", SALVAGE)

    def _check_records(self, data: memoryview, part: BatchTable, origin: int) -> None:
        """Records parse, count and offsets are the header's, and so is the greatest timestamp."""
        counts = np.zeros(part.rows, np.int64)
        greatest = np.full(part.rows, _UNSEEN, np.int64)
        row = 0
        while row < part.rows:
            block = self._state.decoder.decode(data, part, row, part.rows, origin=origin, control=True)
            rows = block.batch
            counts += np.bincount(rows, minlength=part.rows)
            np.maximum.at(greatest, rows, block.timestamp)
            outside = (block.offset > part.last_offset[rows]) | (block.offset < part.base_offset[rows])
            same = rows[1:] == rows[:-1]
            outside[1:] |= same & (block.offset[1:] <= block.offset[:-1])
            if outside.any():
                wrong = int(outside.argmax())
                self._damage(
                    int(part.position[rows[wrong]]),
                    int(block.offset[wrong]),
                    "record's offset does not fit its batch",
                    f"ascending, {int(part.base_offset[rows[wrong]])} to {int(part.last_offset[rows[wrong]])}",
                    int(block.offset[wrong]),
                    SALVAGE,
                )
            if block.damage is None:
                row = block.next_row
                continue
            row = block.damage.row + 1
            counts[block.damage.row] = part.count[block.damage.row]
            greatest[block.damage.row] = _UNSEEN
            self._findings.add_error(block.damage.error, self._log_path, repair=SALVAGE)
        self._report_rows(
            part, (part.count >= 0) & (counts != part.count), "batch holds another number of records", SALVAGE
        )
        told = (greatest != _UNSEEN) & (part.magic > 0) & (part.timestamp_type == TimestampType.CREATE_TIME)
        self._report_rows(part, told & (greatest != part.max_timestamp), "batch has another max timestamp", SALVAGE)

    def _check_epochs(self, part: BatchTable) -> None:
        """Leader epochs never fall, and the checkpoint knows them."""
        numbers = part.leader_epoch
        known = (part.magic == _MAX_MAGIC) & (numbers >= 0)
        if not known.any():
            return
        running = np.maximum.accumulate(np.concatenate(([self._latest_epoch], numbers)))
        self._report_rows(part, known & (numbers < running[:-1]), "leader epoch falls", SALVAGE)
        self._latest_epoch = int(running[-1])
        if len(self._epoch_starts):
            slots = self._epoch_starts.searchsorted(part.base_offset, side="right") - 1
            # What lies below the log start has no epochs any more; where the start is, a crash may have forgotten.
            wrong = known & (slots >= 0) & (self._epoch_numbers[slots] != running[1:])
        else:
            wrong = known & (part.last_offset >= self._state.log_start_offset)
        self._report_rows(part, wrong, "leader-epoch-checkpoint has another epoch", RECOVER)

    def _follow_producers(self, data: memoryview, part: BatchTable, origin: int) -> None:
        if self._producers_failed:
            return
        try:
            changes = self._state.producers.changes(data, part, 0, part.rows, origin)
            control = np.flatnonzero(part.is_control & part.is_transactional & (part.count > 0))
            if len(control):
                markers = BatchTable(np.ascontiguousarray(part.data[:, control]), len(control))
                block = self._state.decoder.decode(data, markers, origin=origin, control=True)
                for record in control_records(block):
                    if record.type is ControlType.ABORT:
                        self._markers[record.offset] = record.producer_id
        except StorageError as error:
            self._producers_failed = True
            self._findings.add_error(error, self._log_path, repair=SALVAGE)
            return
        if changes is not None:
            self._aborted.extend(changes.aborted)
        self._state.producers.commit(changes, int(part.last_offset[-1]) + 1)

    # Indexes

    def _match_offset_entries(self, part: BatchTable) -> None:
        """Entries that point into these batches: at a batch's start, with no earlier batch that holds their offset."""
        stop = int(self._positions.searchsorted(int(part.end[-1])))
        path = self._segment.path_of(FileKind.OFFSET_INDEX)
        for slot in range(self._next_entry, stop):
            position, offset = int(self._positions[slot]), int(self._offset_keys[slot])
            row = int(part.position.searchsorted(position))
            at = slot * offset_index.ENTRY_SIZE
            if row >= part.rows or int(part.position[row]) != position:
                self._findings.add(
                    path,
                    "index entry points into the middle of a batch",
                    position=at,
                    offset=offset,
                    expected="a position where a batch begins",
                    found=position,
                    repair=REINDEX,
                )
                continue
            before = int(part.last_offset[row - 1]) if row else self._last_offset
            if offset <= before:
                self._findings.add(
                    path,
                    "index entry points behind its offset",
                    position=at,
                    offset=offset,
                    expected=f"an offset above {before}",
                    found=offset,
                    repair=REINDEX,
                )
        self._next_entry = max(self._next_entry, stop)
        # An entry's offset is its batch's last one, or that of the whole append that began there (before 3.9.1).
        slots = self._offset_keys.searchsorted(part.last_offset)
        inside = slots < len(self._offset_keys)
        hits = slots[inside][self._offset_keys[slots[inside]] == part.last_offset[inside]]
        self._known_offsets[hits] = True

    def _match_time_entries(self, part: BatchTable) -> None:
        """Entries whose offset lies in these batches: the greatest timestamp up to there, at the first that has it."""
        stop = int(self._time_offsets.searchsorted(int(part.last_offset[-1]), side="right"))
        running = np.maximum.accumulate(np.concatenate(([self._max_timestamp], part.max_timestamp)))
        for slot in range(self._next_time, stop):
            timestamp, offset = int(self._times.timestamps[slot]), int(self._time_offsets[slot])
            row = int(part.last_offset.searchsorted(offset))
            truth = int(part.max_timestamp[row])
            in_batch = int(part.base_offset[row]) <= offset
            if in_batch and truth == timestamp and int(running[row]) < timestamp:
                continue
            self._findings.add(
                self._segment.path_of(FileKind.TIME_INDEX),
                "time index entry is not true",
                position=slot * time_index.ENTRY_SIZE,
                offset=offset,
                expected=f"the first batch with the greatest timestamp so far, {int(running[row + 1])}",
                found=timestamp,
                repair=REINDEX,
            )
        self._next_time = max(self._next_time, stop)

    def _check_offset_index(self, end: int) -> None:
        path = self._segment.path_of(FileKind.OFFSET_INDEX)
        self._check_index_file(self._offsets, offset_index.ENTRY_SIZE)
        if self._offsets.missing and self._segment.size:
            self._findings.add(path, "index is missing", repair=REINDEX)
        checked: npt.NDArray[np.bool_] = (self._positions < end) & ~self._known_offsets
        if checked.any():
            slot = int(checked.argmax())
            self._findings.add(
                path,
                "index entry has an offset that is no batch's last",
                position=slot * offset_index.ENTRY_SIZE,
                offset=int(self._offset_keys[slot]),
                repair=REINDEX,
            )

    def _check_time_index(self, end: int) -> None:
        path = self._segment.path_of(FileKind.TIME_INDEX)
        self._check_index_file(self._times, time_index.ENTRY_SIZE)
        if end < self._segment.size:
            return
        for slot in range(self._next_time, len(self._times)):
            self._findings.add(
                path,
                "time index entry points beyond the end of the segment",
                position=slot * time_index.ENTRY_SIZE,
                offset=int(self._time_offsets[slot]),
                expected=f"an offset up to {self._last_offset}",
                repair=REINDEX,
            )
        last = self._times.last.timestamp
        if (self._sealed or self._settled) and last < self._max_timestamp:
            self._findings.add(
                path,
                "time index lacks the segment's greatest timestamp",
                expected=self._max_timestamp,
                found=last if len(self._times) else "no entry",
                repair=REINDEX,
            )

    def _check_index_file(self, index: sparse_index.SparseIndex, entry_size: int) -> None:
        """What loading the file found; where it was closed in order, that it is trimmed."""
        kind = FileKind.OFFSET_INDEX if entry_size == offset_index.ENTRY_SIZE else FileKind.TIME_INDEX
        path = self._segment.path_of(kind)
        settled = self._sealed or self._settled
        if index.problem is not None:
            self._findings.add_error(
                index.problem, path, repair=REINDEX, severity=Severity.DAMAGE if settled else Severity.UNFINISHED
            )
        elif settled and not index.missing:
            size = path.stat().st_size
            if size != len(index) * entry_size:
                self._findings.add(
                    path,
                    "index is not trimmed to its entries",
                    position=len(index) * entry_size,
                    expected=f"{len(index) * entry_size} bytes",
                    found=size,
                    repair=REINDEX,
                )

    def _check_transaction_index(self, *, whole: bool) -> None:
        """Each entry is an abort marker of this segment, and each abort that the log shows has its entry."""
        path = self._segment.path_of(FileKind.TRANSACTION_INDEX)
        if self._aborts.problem is not None:
            self._findings.add_error(self._aborts.problem, path, repair=REINDEX)
            return
        entries = {entry.last_offset: entry for entry in self._aborts.entries()}
        for slot, entry in enumerate(self._aborts.entries()):
            if whole and self._markers.get(entry.last_offset) != entry.producer_id:
                self._findings.add(
                    path,
                    "transaction index entry has no abort marker in the log",
                    position=slot * transaction_index.ENTRY_SIZE,
                    offset=entry.last_offset,
                    expected=f"an abort of producer {entry.producer_id}",
                    repair=REINDEX,
                )
        for aborted in self._aborted:
            stored = entries.get(aborted.last_offset)
            if stored is None or stored.first_offset > aborted.first_offset:
                self._findings.add(
                    path,
                    "aborted transaction is not in the transaction index",
                    offset=aborted.last_offset,
                    expected=f"producer {aborted.producer_id}, {aborted.first_offset} to {aborted.last_offset}",
                    found="no entry" if stored is None else f"first offset {stored.first_offset}",
                    repair=REINDEX,
                )

    # Reporting

    def _report_rows(self, part: BatchTable, wrong: npt.NDArray[np.bool_], what: str, repair: str) -> None:
        """The first of the rows that are wrong, and how many there are."""
        if wrong.any():
            row = int(wrong.argmax())
            found = f"{int(wrong.sum())} such batches" if wrong.sum() > 1 else None
            self._damage(int(part.position[row]), int(part.base_offset[row]), what, None, found, repair)

    def _damage(
        self, position: int, offset: int, what: str, expected: object, found: object, repair: str | None
    ) -> None:
        self._findings.add(
            self._log_path, what, position=position, offset=offset, expected=expected, found=found, repair=repair
        )
