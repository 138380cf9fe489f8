"""Checks one segment: every batch, every record, and the index entries against them. Read-only, and independent.

The .log is read once, window by window, around any damage; memory does not grow with the segment. What later segments
need is put into a SegmentReport, so that segments can be checked in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import DecompressionFailed, IndexFault, StorageError, UnsupportedFormat
from storage.files import names, offset_index, sparse_index, time_index, transaction_index
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import LogFile
from storage.files.names import FileKind
from storage.files.transaction_index import TransactionIndex
from storage.format.batches import MAGIC_AT, MAX_MAGIC, MAX_RELATIVE_OFFSET, NO_PRODUCER_ID, BatchTable
from storage.format.control_records import ControlRecord, ControlType, control_records
from storage.format.decoder import NO_RECORDS, Decoder
from storage.log.intact import Break, Fault, walk
from storage.log.segment import Segment
from storage.progress import Progress
from storage.types import TimestampType
from storage.verify.findings import RECOVER, REINDEX, SALVAGE, FaultKind, Finding, Findings, Repair

# Checks a segment's indexes against its batches: entries are compared with thousands of batches at a time.

_Flags = npt.NDArray[np.bool_]

# The faults that loading a file reports.
_OFFSET_KINDS = {
    IndexFault.SIZE: FaultKind.INDEX_SIZE,
    IndexFault.ORDER: FaultKind.INDEX_ORDER,
    IndexFault.BEYOND_LOG: FaultKind.INDEX_BEYOND_LOG,
}
_TIME_KINDS = {IndexFault.SIZE: FaultKind.TIME_INDEX_SIZE, IndexFault.ORDER: FaultKind.TIME_INDEX_ORDER}


class IndexAudit:
    """The .index and .timeindex of one segment. `settled`: the segment was closed in order, so nothing is unfinished.

    `recovery`: what recovery would do to wrong indexes. `visit` gets the batches in order.
    """

    def __init__(
        self, segment: Segment, indexes: LoadedIndexes, findings: Findings, *, settled: bool, recovery: str
    ) -> None:
        self._segment = segment
        self._findings = findings
        self._settled = settled
        self._how = Repair(recovery, REINDEX)
        self._offset_path = segment.path_of(FileKind.OFFSET_INDEX)
        self._time_path = segment.path_of(FileKind.TIME_INDEX)
        self._offsets, self._times = indexes.offsets, indexes.times
        self._offset_keys, self._positions = self._offsets.offsets, self._offsets.positions
        self._timestamps, self._time_offsets = self._times.timestamps, self._times.offsets
        self._next_entry = self._next_time = 0
        self._known_offsets = np.zeros(len(self._offset_keys), np.bool_)
        self._last_offset = segment.base_offset - 1
        self._max_timestamp = -1

    def visit(self, part: BatchTable) -> None:
        """Compares the entries for these batches."""
        self._match_offset_entries(part)
        self._match_time_entries(part)
        self._max_timestamp = max(self._max_timestamp, int(part.max_timestamp.max()))
        self._last_offset = int(part.last_offset[-1])

    def pass_over(self, end: int, next_offset: int) -> None:
        """Damage up to the position `end`, after which offsets continue with `next_offset`: entries there are not
        judged."""
        stop = int(self._positions.searchsorted(end))
        self._known_offsets[self._next_entry : stop] = True
        self._next_entry = max(self._next_entry, stop)
        self._next_time = max(self._next_time, int(self._time_offsets.searchsorted(next_offset)))

    def finish(self, *, whole: bool) -> None:
        """Checks the files themselves, and entries that match no batch. `whole`: the log has no damage."""
        size, time_size, findings = offset_index.ENTRY_SIZE, time_index.ENTRY_SIZE, self._findings
        self._check_file(self._offsets, self._offset_path, size, _OFFSET_KINDS, FaultKind.INDEX_NOT_TRIMMED)
        self._check_file(self._times, self._time_path, time_size, _TIME_KINDS, FaultKind.TIME_INDEX_NOT_TRIMMED)
        if self._offsets.missing and self._segment.size:
            findings.add(Finding(FaultKind.INDEX_MISSING, self._offset_path, Repair("rebuilds it", REINDEX)))
        unknown: _Flags = ~self._known_offsets
        unknown[self._next_entry :] = False
        self._report(FaultKind.INDEX_OFFSET, unknown, self._offset_path, self._offset_keys, size)
        beyond = self._positions >= self._segment.size
        path, positions = self._offset_path, self._positions
        self._report(FaultKind.INDEX_BEYOND_LOG, beyond, path, self._offset_keys, size, founds=positions)
        if not whole:
            return
        beyond = np.arange(len(self._time_offsets)) >= self._next_time
        expected = f"an offset up to {self._last_offset}"
        self._report(
            FaultKind.TIME_INDEX_BEYOND_LOG, beyond, self._time_path, self._time_offsets, time_size, expected=expected
        )
        last = self._times.last.timestamp
        if self._settled and last < self._max_timestamp:
            found = last if len(self._times) else "no entry"
            kind, greatest = FaultKind.TIME_INDEX_INCOMPLETE, self._max_timestamp
            findings.add(Finding(kind, self._time_path, self._how, expected=greatest, found=found))

    def _match_offset_entries(self, part: BatchTable) -> None:
        """Entries that point into these batches: at a batch's start, with no earlier batch that holds their offset."""
        stop = int(self._positions.searchsorted(int(part.end[-1])))
        first = self._next_entry
        if stop > first:
            positions, offsets = self._positions[first:stop], self._offset_keys[first:stop]
            rows = np.minimum(part.position.searchsorted(positions), part.rows - 1)
            astray = part.position[rows] != positions
            before = np.concatenate(([self._last_offset], part.last_offset))[rows]
            behind = ~astray & (offsets <= before)
            self._report(
                FaultKind.INDEX_POSITION, astray, self._offset_path, offsets, offset_index.ENTRY_SIZE, first,
                expected="a position where a batch begins", founds=positions,
            )  # fmt: skip
            self._report(
                FaultKind.INDEX_FLOOR, behind, self._offset_path, offsets, offset_index.ENTRY_SIZE, first,
                expected="an offset above those before that position", founds=offsets,
            )  # fmt: skip
            self._next_entry = stop
        # An entry's offset is its batch's last one, or that of the whole append that began there (before 3.9.1).
        low, high = self._offset_keys.searchsorted((self._last_offset + 1, int(part.last_offset[-1]) + 1))
        keys = self._offset_keys[low:high]
        self._known_offsets[low:high] |= part.last_offset[part.last_offset.searchsorted(keys)] == keys

    def _match_time_entries(self, part: BatchTable) -> None:
        """Entries with offsets in these batches: the greatest timestamp up to there, at the first batch that has it."""
        first = self._next_time
        stop = int(self._time_offsets.searchsorted(int(part.last_offset[-1]), side="right"))
        if stop <= first:
            return
        timestamps, offsets = self._timestamps[first:stop], self._time_offsets[first:stop]
        running = np.maximum.accumulate(np.concatenate(([self._max_timestamp], part.max_timestamp)))
        rows = part.last_offset.searchsorted(offsets)
        untrue = part.base_offset[rows] > offsets
        untrue |= (part.max_timestamp[rows] != timestamps) | (running[rows] >= timestamps)
        self._report(
            FaultKind.TIME_INDEX_UNTRUE, untrue, self._time_path, offsets, time_index.ENTRY_SIZE, first,
            expected="the greatest timestamp so far, at the first batch that has it", founds=timestamps,
        )  # fmt: skip
        self._next_time = stop

    def _check_file(
        self,
        index: sparse_index.SparseIndex,
        path: Path,
        entry_size: int,
        kinds: dict[IndexFault, FaultKind],
        not_trimmed: FaultKind,
    ) -> None:
        """Reports the fault that loading found, and a file that is not trimmed although it was closed in order."""
        if index.problem is not None:
            kind, how = kinds.get(index.problem.fault, FaultKind.UNREADABLE), self._how._replace(note=not self._settled)
            self._findings.add(Finding.of_error(kind, index.problem, path, how))
        elif not index.missing:
            size, used = path.lstat().st_size, len(index) * entry_size
            if size != used:
                how = Repair("trims it", REINDEX, note=not self._settled)
                what, expected = "" if self._settled else "index is preallocated", f"{used} bytes"
                self._findings.add(Finding(not_trimmed, path, how, what, position=used, expected=expected, found=size))

    def _report(
        self,
        kind: FaultKind,
        wrong: _Flags,
        path: Path,
        offsets: npt.NDArray[np.int64],
        entry_size: int,
        first: int = 0,
        *,
        expected: str | None = None,
        founds: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Reports the wrong entries, counted from the slot `first`."""
        for slot in np.flatnonzero(wrong).tolist() if wrong.any() else ():
            position, found = (first + slot) * entry_size, None if founds is None else int(founds[slot])
            self._findings.add(Finding(kind, path, self._how, "", position, int(offsets[slot]), expected, found))


class LoadedIndexes:
    """A segment's indexes, loaded before its log is read, so that everything they refer to is in the log by then."""

    __slots__ = ("aborts", "offsets", "times")

    def __init__(self, directory: Path, base_offset: int) -> None:
        def path(kind: FileKind) -> Path:
            return directory / names.segment_file(base_offset, kind)

        self.offsets = offset_index.load(path(FileKind.OFFSET_INDEX), base_offset)
        self.times = time_index.load(path(FileKind.TIME_INDEX), base_offset)
        self.aborts = transaction_index.load(path(FileKind.TRANSACTION_INDEX), base_offset)


# Checks a segment's batches and their records: headers against one another, every record against its header.
#
# Windows come with their bytes, whose CRCs were right. Headers are collected until some thousands can be compared at
# once. What can only be judged by the whole log (producers, transactions) is thinned out and kept for later.

# Headers compared at once: few numpy calls for each lot, and little memory.
_LOT = 16_384
_LEFT = Repair("leaves it: only lengths, CRCs and offsets are looked at", SALVAGE)


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
    """Checks all batches of one segment, in order. `show` is called with each lot of headers, too."""

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
        self._decoder = Decoder(verify_crc=False, verify_inner_crc=True)
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

    def visit(self, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        """The first `rows` of `table`; `data` holds their bytes, from the file position `origin` on."""
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
        """Offsets continue here, after damage."""
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
        told = (greatest != NO_RECORDS) & (lot.magic > 0) & (lot.timestamp_type == TimestampType.CREATE_TIME)
        self._report(lot, told & (greatest != lot.max_timestamp), FaultKind.BATCH_MAX_TIMESTAMP)
        self._check_epochs(lot)
        self._follow_producers(lot)
        self._show(lot)
        self._last_offset = int(lot.last_offset[-1])

    # A window

    def _has_unknown_magic(self, headers: BatchTable) -> bool:
        """check_segment passes such a batch alone, as if it were of v2."""
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
                found = f"{offset} as record {int(audit.misplaced[index])}"
                self._add(FaultKind.RECORD_OFFSET, position, offset, "", f"ascending, {base} to {last}", found)
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
            ends = [one for one in records if one.type in (ControlType.ABORT, ControlType.COMMIT)]
            if ends:
                self.trail.markers[base] = ends[0]
            else:
                self.trail.broken = True
                what = "control batch is not a transaction marker"
                self._add(FaultKind.MARKER, int(control.position[row]), base, what)

    # A lot

    def _check_offsets(self, lot: BatchTable) -> None:
        """Base offsets must also come after the batch before (the walk has checked the last offsets)."""
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
        if len(self._epoch_starts):
            slots = self._epoch_starts.searchsorted(lot.base_offset, side="right") - 1
            # There are no epochs below the log start; a crash may have lost where the start is.
            wrong = known & (slots >= 0) & (self._epoch_numbers[slots] != running[1:])
            how = Repair("only adds newer epochs", f"remove {names.LEADER_EPOCH_CHECKPOINT}, then {RECOVER}")
        else:
            wrong = known & (lot.last_offset >= self._log_start_offset)
            how = Repair("assigns the epochs of what it checks", RECOVER)
        self._report(lot, wrong, FaultKind.EPOCHS_UNTRUE, how)

    def _follow_producers(self, lot: BatchTable) -> None:
        rows = np.flatnonzero((lot.magic == MAX_MAGIC) & (lot.producer_id != NO_PRODUCER_ID))
        if not len(rows):
            return
        order = rows[np.argsort(lot.producer_id[rows], kind="stable")]
        producers = lot.producer_id[order]
        control, transactional = lot.is_control[order], lot.is_transactional[order]
        kept = np.ones(len(order), np.bool_)
        # Between a producer's equal batches no other is needed.
        same = producers[1:] == producers[:-1]
        same &= ~control[1:] & ~control[:-1] & (transactional[1:] == transactional[:-1])
        kept[1:-1] = ~(same[1:] & same[:-1])
        chosen = np.sort(order[kept])
        self.trail.tables.append(BatchTable(np.ascontiguousarray(lot.data[:, chosen]), len(chosen)))

    # Reporting

    def _report(self, lot: BatchTable, wrong: _Flags, kind: FaultKind, how: Repair = _LEFT) -> None:
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


_MAX_POSITION = 2**31 - 1
_KINDS = {
    Fault.CRC: FaultKind.BATCH_CRC,
    Fault.CUT_OFF: FaultKind.BATCH_CUT_OFF,
    Fault.LENGTH: FaultKind.BATCH_LENGTH,
    Fault.ZEROS: FaultKind.LOG_ZEROS,
    Fault.GARBAGE: FaultKind.LOG_GARBAGE,
    Fault.ORDER: FaultKind.BATCH_ORDER,
    Fault.RANGE: FaultKind.BATCH_RANGE,
}


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The parameters of a segment's check. `end_offset`: where the next one begins. `settled`: it was closed in order,
    so nothing at its end may be unfinished. `sealed`: others follow. `checked`: recovery would check it."""

    directory: Path
    base_offset: int
    end_offset: int
    epochs: LeaderEpochs
    log_start_offset: int
    sealed: bool
    settled: bool
    checked: bool
    later_segments: int


@dataclass(slots=True)
class SegmentReport:
    """The findings, and what the check of the whole log needs. `whole`: no bytes are damaged. `dense`: no offset is
    missing, so that nothing was compacted away."""

    plan: SegmentPlan
    findings: Findings
    next_offset: int
    trail: ProducerTrail
    aborts: TransactionIndex
    whole: bool
    dense: bool = False
    first_epoch: int = -1
    latest_epoch: int = -1

    @staticmethod
    def unread(plan: SegmentPlan) -> SegmentReport:
        """The report on a segment that could not be read."""
        nothing = TransactionIndex(np.empty((4, 0), np.int64))
        return SegmentReport(plan, Findings(), plan.base_offset, ProducerTrail(broken=True), nothing, whole=False)


def audit_segment(plan: SegmentPlan, progress: Progress) -> SegmentReport:
    """Checks one segment. OSError when its .log cannot be read."""
    findings = Findings()
    # Before the log's size is taken: everything they refer to is there by then, even if the log grows.
    indexes = LoadedIndexes(plan.directory, plan.base_offset)
    segment = Segment.at(plan.directory, plan.base_offset)
    path = segment.log.path
    recovery = "rebuilds it" if plan.checked else "leaves it: the segment is below the recovery point"
    index_audit = IndexAudit(segment, indexes, findings, settled=plan.settled or plan.sealed, recovery=recovery)
    batches = BatchAudit(segment.log, plan.base_offset, plan.epochs, plan.log_start_offset, findings, index_audit.visit)

    def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        batches.visit(data, table, rows, origin)
        progress.advance(int(table.end[rows - 1] - table.position[0]))

    def passed(broken: Break, next_offset: int) -> None:
        batches.jump(next_offset)
        index_audit.pass_over(broken.end, next_offset)
        _report_break(plan, path, broken, findings)
        progress.advance(broken.end - broken.position)

    walked = walk(segment, visit, passed, plan.end_offset)
    batches.flush()
    index_audit.finish(whole=not walked.breaks)
    if segment.size > _MAX_POSITION:
        expected = f"at most {_MAX_POSITION} bytes"
        findings.add(Finding(FaultKind.SEGMENT_TOO_LARGE, path, expected=expected, found=segment.size))
    if walked.next_offset - 1 - plan.base_offset > MAX_RELATIVE_OFFSET:
        how = Repair("splits it" if plan.checked else recovery, RECOVER, note=True)
        expected = f"offsets up to {plan.base_offset + MAX_RELATIVE_OFFSET}"
        findings.add(Finding(FaultKind.SEGMENT_SPAN, path, how, expected=expected, found=walked.next_offset - 1))
    report = SegmentReport(plan, findings, walked.next_offset, batches.trail, indexes.aborts, not walked.breaks)
    report.dense = batches.dense
    report.first_epoch, report.latest_epoch = batches.first_epoch, batches.latest_epoch
    _check_invented_aborts(report, segment.path_of(FileKind.TRANSACTION_INDEX), recovery)
    return report


def _report_break(plan: SegmentPlan, path: Path, broken: Break, findings: Findings) -> None:
    """Reports damage; or, at the end of a log that was not closed, a torn tail."""
    size = broken.end - broken.position
    torn = not (plan.sealed or plan.settled or broken.behind or broken.fault is Fault.ORDER)
    if not plan.checked:
        recovery = "leaves it: it is below the recovery point; readers fail there"
    else:
        recovery = "cuts the log here, removing " + (f"{size} bytes" if torn else "everything after it")
        recovery += f" and {plan.later_segments} later segments" if plan.later_segments else ""
    behind = f", {size} bytes{broken.behind}" if size and broken.behind else ""
    kind, how = _KINDS[broken.fault], Repair(recovery, SALVAGE)
    if torn:
        kind, how = FaultKind.LOG_CUT_OFF, Repair(recovery, RECOVER, note=True)
    expected, found = broken.expected or "a batch with a right CRC", f"{broken.found or 'another'}{behind}"
    findings.add(Finding(kind, path, how, "", broken.position, broken.offset, expected, found))


def _check_invented_aborts(report: SegmentReport, path: Path, recovery: str) -> None:
    """Checks that each entry of the .txnindex is an abort marker of this segment."""
    aborts, findings = report.aborts, report.findings
    if aborts.problem is not None:
        how = Repair("rebuilds it in any case", REINDEX)
        findings.add(Finding.of_error(FaultKind.TXN_INDEX_CORRUPT, aborts.problem, path, how))
        return
    if not report.whole:
        return
    markers = {
        marker.offset: marker.producer_id
        for marker in report.trail.markers.values()
        if marker.type is ControlType.ABORT
    }
    for slot, entry in enumerate(aborts.entries()):
        if markers.get(entry.last_offset) != entry.producer_id:
            position, offset = slot * transaction_index.ENTRY_SIZE, entry.last_offset
            expected, found = f"an abort of producer {entry.producer_id}", markers.get(offset, "none")
            how = Repair(recovery, REINDEX)
            findings.add(Finding(FaultKind.TXN_INDEX_INVENTED, path, how, "", position, offset, expected, found))
