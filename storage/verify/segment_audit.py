"""Checks one segment: every batch, every record, and the index entries against them. Read-only, and independent.

The .log is read once, window by window, around any damage; memory does not grow with the segment. What later segments
need is put into a SegmentReport, so that segments can be checked in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.files import transaction_index
from storage.files.leader_epochs import LeaderEpochs
from storage.files.names import FileKind
from storage.files.transaction_index import TransactionIndex
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable
from storage.format.control_records import ControlType
from storage.log.intact import COUNTED, Break, BreakReason, walk
from storage.log.segment import Segment
from storage.progress import Progress
from storage.verify.batch_audit import BatchAudit, ProducerTrail
from storage.verify.findings import RECOVER, REINDEX, SALVAGE, FaultKind, Finding, Findings, Repair
from storage.verify.index_audit import IndexAudit, LoadedIndexes

_MAX_POSITION = 2**31 - 1
_KINDS = {
    BreakReason.CRC: FaultKind.BATCH_CRC,
    BreakReason.CUT_OFF: FaultKind.BATCH_CUT_OFF,
    BreakReason.LENGTH: FaultKind.BATCH_LENGTH,
    BreakReason.ZEROS: FaultKind.LOG_ZEROS,
    BreakReason.GARBAGE: FaultKind.LOG_GARBAGE,
    BreakReason.ORDER: FaultKind.BATCH_ORDER,
    BreakReason.TWICE: FaultKind.BATCH_TWICE,
    BreakReason.RANGE: FaultKind.BATCH_RANGE,
}


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The parameters of a segment's check. `end_offset`: where the next one begins. `settled`: it was closed in order,
    so nothing at its end may be unfinished. `sealed`: others follow. `checked`: recovery would check it."""

    directory: Path
    base_offset: int
    end_offset: int
    epochs: LeaderEpochs | None
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
        """The report on a segment that could not be read: it may have every offset before the next segment."""
        nothing = TransactionIndex(np.empty((4, 0), np.int64))
        return SegmentReport(plan, Findings(), plan.end_offset, ProducerTrail(broken=True), nothing, whole=False)


def audit_segment(plan: SegmentPlan, progress: Progress) -> SegmentReport:
    """Checks one segment. OSError when its .log cannot be read."""
    findings = Findings()
    # Load the indexes before the log's size is taken: then the log has everything that they refer to, even if it grows.
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
    torn = not (plan.sealed or plan.settled or broken.behind or broken.fault in COUNTED)
    if broken.fault in COUNTED:
        recovery = "leaves it, as a broker does"
    elif not plan.checked:
        recovery = "leaves it: it is below the recovery point; readers fail there"
    else:
        recovery = "cuts the log here, removing " + (f"{size} bytes" if torn else "everything after it")
        recovery += f" and {plan.later_segments} later segments" if plan.later_segments else ""
    behind = f", {size} bytes{broken.behind}" if size and broken.behind else ""
    kind, how = _KINDS[broken.fault], Repair(recovery, SALVAGE)
    if broken.fault is BreakReason.TWICE:
        how = Repair(recovery, SALVAGE, note=True)
    elif torn:
        kind, how = FaultKind.LOG_CUT_OFF, Repair(recovery, RECOVER, note=True)
    expected, found = broken.expected or "a batch with the right CRC", f"{broken.found or 'other bytes'}{behind}"
    findings.add(Finding(kind, path, how, "", broken.position, broken.offset, expected, found))


def _check_invented_aborts(report: SegmentReport, path: Path, recovery: str) -> None:
    """Checks that each entry of the .txnindex is an abort marker of this segment."""
    aborts, findings = report.aborts, report.findings
    if aborts.problem is not None:
        always = not report.plan.sealed or transaction_index.stops_at(path) is not None
        how = Repair("rebuilds it in any case" if always else recovery, REINDEX)
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
