"""Checks one partition: its segments independently, then what continues from one to the next. Read-only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from storage.append.producer_table import ProducerTable
from storage.errors import CorruptCheckpoint, StorageError
from storage.files import leader_epochs, names, producer_state
from storage.files.listing import paths_in
from storage.files.names import FileKind, FileState
from storage.files.opening import is_directory
from storage.files.producer_state import ProducerEntry
from storage.files.transaction_index import AbortedTxn
from storage.progress import Progress
from storage.types import MAX_OFFSET
from storage.verify.findings import (
    MOVE_AWAY,
    OPENING,
    RECOVER,
    RECOVERED,
    REINDEX,
    SALVAGE,
    UNFINISHED,
    FaultKind,
    Finding,
    Findings,
    Repair,
)
from storage.verify.segment_audit import SegmentPlan, SegmentReport, audit_segment

_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
_SNAPSHOT_REBUILT = Repair("rebuilds it when it needs it", REINDEX)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The parameters of a partition's check. `clean`: it was closed in order, so nothing is unfinished.
    `log_start_offset` and `recovery_point`: as checkpointed, 0 without."""

    directory: Path
    clean: bool
    log_start_offset: int = 0
    recovery_point: int = 0


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a partition's files begin and end: base offset of the first segment, offset after the last batch. `gaps`:
    offsets that are missing between two segments, first and next one; compaction makes them too."""

    first_offset: int
    next_offset: int
    gaps: tuple[tuple[int, int], ...] = ()


class PartitionAudit:
    """The check of one partition in three steps: the files (`segments`), each segment by itself (`audit`, from any
    thread or process, in any order), all of them together (`finish`)."""

    def __init__(self, plan: PartitionPlan) -> None:
        self._plan = plan
        self._findings = Findings()
        self._files = self._check_names()
        self._epochs = read_small(
            self._findings, FaultKind.EPOCHS_CORRUPT, plan.directory / names.LEADER_EPOCH_CHECKPOINT,
            leader_epochs.read, None, Repair("rebuilds it from the log", RECOVER),
        )  # fmt: skip

    def segments(self) -> list[SegmentPlan]:
        """The segments to check, in order."""
        plan, bases = self._plan, sorted(self._files[FileKind.LOG])
        below = [base for base in bases if base <= plan.recovery_point]
        return [
            SegmentPlan(
                directory=plan.directory,
                base_offset=base,
                end_offset=bases[row + 1] if row + 1 < len(bases) else MAX_OFFSET,
                epochs=self._epochs,
                log_start_offset=plan.log_start_offset,
                sealed=row + 1 < len(bases),
                settled=plan.clean,
                checked=not below or base >= below[-1],
                later_segments=len(bases) - row - 1,
            )
            for row, base in enumerate(bases)
        ]

    @staticmethod
    def audit(plan: SegmentPlan, progress: Progress) -> SegmentReport:
        """`audit_segment`; a .log that cannot be read is a finding."""
        try:
            return audit_segment(plan, progress)
        except (OSError, StorageError) as error:
            path = plan.directory / names.segment_file(plan.base_offset, FileKind.LOG)
            report = SegmentReport.unread(plan)
            report.findings.add(Finding.of_error(FaultKind.UNREADABLE, error, path))
            return report

    def finish(self, reports: list[SegmentReport]) -> tuple[Findings, LogEnds]:
        """Checks them together. `reports`: those of all segments, in order."""
        if not reports:
            how = Repair("creates an empty segment", OPENING, note=not self._plan.clean)
            self._findings.add(Finding(FaultKind.PARTITION_EMPTY, self._plan.directory, how))
            return self._findings, LogEnds(0, 0)
        first, next_offset, latest_epoch = reports[0].plan.base_offset, reports[0].plan.base_offset, -1
        gaps: list[tuple[int, int]] = []
        whole = False  # of the previous segment: after damage nobody knows where it ended
        for report in reports:
            self._findings.extend(report.findings)
            base = report.plan.base_offset
            path = self._path(base, FileKind.LOG)
            if base < next_offset:
                how = Repair("leaves it: it does not check names", "move one of them elsewhere, then kafkafs recover")
                expected = f"a base offset from {next_offset}"
                self._findings.add(
                    Finding(FaultKind.SEGMENT_OVERLAP, path, how, offset=base, expected=expected, found=base)
                )
            if whole and base > next_offset:
                gaps.append((next_offset, base))
            whole = report.whole
            if 0 <= report.first_epoch < latest_epoch:
                how, expected = Repair("leaves it", SALVAGE), f"{latest_epoch} or more"
                self._findings.add(
                    Finding(FaultKind.BATCH_EPOCH, path, how, offset=base, expected=expected, found=report.first_epoch)
                )
            latest_epoch = max(latest_epoch, report.latest_epoch)
            next_offset = max(next_offset, report.next_offset)
        ends = LogEnds(first, next_offset, tuple(gaps))
        self._check_ends(ends)
        self._check_producers(reports, self._snapshots())
        return self._findings, ends

    # Files

    def _path(self, offset: int, kind: FileKind) -> Path:
        return self._plan.directory / names.segment_file(offset, kind)

    def _check_names(self) -> dict[FileKind, set[int]]:
        """Live files by kind and offset; other files that should not be there are findings."""
        files: dict[FileKind, set[int]] = {kind: set() for kind in FileKind}
        findings, clean = self._findings, self._plan.clean
        for entry in paths_in(self._plan.directory):
            parsed = names.parse_segment_file(entry.name)
            if parsed is None:
                if names.is_misnamed(entry.name):
                    findings.add(Finding(FaultKind.FILE_MISNAMED, entry, MOVE_AWAY))
                elif names.is_staged_segment(entry.name):
                    findings.add(Finding(FaultKind.FILE_LEFT_OVER, entry, UNFINISHED, found=names.STAGED_SUFFIX))
                elif entry.name.endswith(names.TEMPORARY_SUFFIX):
                    findings.add(Finding(FaultKind.CHECKPOINT_UNFINISHED, entry, UNFINISHED))
            elif parsed.state is FileState.LIVE:
                files[parsed.kind].add(parsed.offset)
            elif not is_directory(entry):  # which recovery leaves alone
                # A stopped broker leaves .deleted files until its next start; replacements end with the process.
                doing = "finishes the replacement" if parsed.state is FileState.SWAP else "removes it"
                how = Repair(doing, OPENING, note=parsed.state is FileState.DELETED or not clean)
                findings.add(Finding(FaultKind.FILE_LEFT_OVER, entry, how, found=parsed.state.value))
        for kind in _INDEXES:
            for offset in sorted(files[kind] - files[FileKind.LOG]):
                how = Repair("removes it", OPENING, note=not clean)
                findings.add(Finding(FaultKind.INDEX_WITHOUT_LOG, self._path(offset, kind), how))
        return files

    def _check_ends(self, ends: LogEnds) -> None:
        """Checks that no epoch and no snapshot is beyond the log end."""
        entries = () if self._epochs is None else self._epochs.entries
        epochs = [entry.start_offset for entry in entries if entry.start_offset > ends.next_offset]
        snapshots = [at for at in sorted(self._files[FileKind.PRODUCER_SNAPSHOT]) if at > ends.next_offset]
        checkpoint = self._plan.directory / names.LEADER_EPOCH_CHECKPOINT
        faults = [(FaultKind.EPOCHS_BEYOND_LOG, checkpoint, at) for at in epochs[:1]]
        faults += [(FaultKind.SNAPSHOT_BEYOND_LOG, self._path(at, FileKind.PRODUCER_SNAPSHOT), at) for at in snapshots]
        how, expected = Repair("removes it", RECOVER, note=not self._plan.clean), f"at most {ends.next_offset}"
        for kind, path, offset in faults:
            self._findings.add(Finding(kind, path, how, offset=offset, expected=expected, found=offset))

    # Producers

    def _snapshots(self) -> dict[int, dict[int, ProducerEntry]]:
        """Producers by id, by the offset of their snapshot; snapshots that do not parse are findings."""
        snapshots = {}
        for offset in sorted(self._files[FileKind.PRODUCER_SNAPSHOT]):
            path = self._path(offset, FileKind.PRODUCER_SNAPSHOT)
            # A full disk, or a crash before it was written, leaves an empty one: whoever loads it removes it.
            empty = False
            with suppress(OSError):  # which reading it reports
                empty = path.lstat().st_size == 0
            how = _SNAPSHOT_REBUILT._replace(note=empty)
            snapshot = read_small(self._findings, FaultKind.SNAPSHOT_CORRUPT, path, producer_state.read, None, how)
            if snapshot is not None:
                snapshots[offset] = {entry.producer_id: entry for entry in snapshot.entries()}
        return snapshots

    def _check_producers(self, reports: list[SegmentReport], snapshots: dict[int, dict[int, ProducerEntry]]) -> None:
        """Checks that aborted transactions have entries, and that snapshots agree with the batches before them where
        all of those exist (compaction removes a producer's batches, but snapshots still have it)."""
        first = reports[0].plan.base_offset
        table = ProducerTable(first, snapshots.get(first, {}).values())
        seen: set[int] = set()
        next_offset = first
        dense = True
        for report in reports:
            base = report.plan.base_offset
            dense &= base == next_offset
            if dense:
                self._check_snapshot(base, snapshots, table, seen)
            dense &= report.dense
            next_offset = report.next_offset
            markers = report.trail.markers
            aborted: list[AbortedTxn] = []
            for part in report.trail.tables:
                rows = {
                    row: markers[base]
                    for row, base in enumerate(part.base_offset.tolist())
                    if base in markers and part.is_control[row]
                }
                unknown = part.is_control & part.is_transactional
                unknown[list(rows)] = False
                end_offset = int(part.last_offset[-1]) + 1
                changes = table.changes_of(part, np.flatnonzero(~unknown), rows, end_offset)
                seen.update(part.producer_id.tolist())
                aborted += changes.aborted
                table.commit(changes, end_offset)
            if report.trail.broken:
                return  # anything may be missing here
            self._check_aborts(report, aborted)
        if dense:
            self._check_snapshot(next_offset, snapshots, table, seen)

    def _check_aborts(self, report: SegmentReport, aborted: list[AbortedTxn]) -> None:
        if report.aborts.problem is not None:
            return
        stored = {entry.last_offset: entry.first_offset for entry in report.aborts.entries()}
        path = self._path(report.plan.base_offset, FileKind.TRANSACTION_INDEX)
        how = Repair("rebuilds it" if report.plan.checked else "leaves it: it is below the recovery point", REINDEX)
        for transaction in aborted:
            first, last = transaction.first_offset, transaction.last_offset
            if last not in stored or stored[last] > first:
                expected = f"producer {transaction.producer_id}, {first} to {last}"
                found = f"first offset {stored[last]}" if last in stored else "no entry"
                self._findings.add(
                    Finding(FaultKind.TXN_INDEX_INCOMPLETE, path, how, offset=last, expected=expected, found=found)
                )

    def _check_snapshot(
        self, offset: int, snapshots: dict[int, dict[int, ProducerEntry]], table: ProducerTable, seen: set[int]
    ) -> None:
        """Checks the producers of the log: a snapshot may lack them, or what they did before they expired, but must not
        have other values."""
        stored, path = snapshots.get(offset, {}), self._path(offset, FileKind.PRODUCER_SNAPSHOT)
        for entry in table.entries():
            stored_entry = stored.get(entry.producer_id)
            if stored_entry is not None and entry.producer_id in seen and not _is_true(stored_entry, entry):
                how = _SNAPSHOT_REBUILT
                self._findings.add(
                    Finding(FaultKind.SNAPSHOT_UNTRUE, path, how, offset=offset, expected=entry, found=stored_entry)
                )


def _is_true(stored: ProducerEntry, seen: ProducerEntry) -> bool:
    """Whether a snapshot agrees with the log about a producer, or lacks only what it did before it expired."""
    if stored.coordinator_epoch == -1:
        seen = seen._replace(coordinator_epoch=-1)
    if stored.last_offset == -1:
        seen = seen._replace(last_sequence=-1, last_offset=-1, offset_delta=0)
    return stored == seen


def read_small(
    findings: Findings,
    kind: FaultKind,
    path: Path,
    read: Callable[[Path], T | None],
    default: T,
    how: Repair = RECOVERED,
) -> T:
    """A small file's content; `default` where there is none, or where it does not parse, which is a finding."""
    try:
        content = read(path)
    except (CorruptCheckpoint, OSError) as error:
        findings.add(Finding.of_error(kind, error, path, how))
        return default
    return default if content is None else content
