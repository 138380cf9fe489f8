"""Checks what a tier holds of the partitions of a log directory: every batch and every record of remote segments.

Indexes and snapshots there are not looked at: a broker takes them as they are, and readers here believe none of them.
"""

from __future__ import annotations

from collections.abc import Collection

from storage.errors import StorageError
from storage.format.batches import BatchTable
from storage.log.intact import Break, walk
from storage.log.log_dir import LogDir
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.progress import Progress
from storage.types import TopicPartition
from storage.verify.batch_audit import BatchAudit
from storage.verify.findings import FaultKind, Finding, Findings, Repair

_ASIDE = Repair("a broker does not look at it: consumers stop there")


def verify_tier(log_dir: LogDir, chosen: Collection[TopicPartition], progress: Progress) -> list[Finding]:
    """What is wrong with the remote segments that are part of these partitions' logs, by path. `log_dir`: with a
    tier."""
    findings = Findings()
    for tp in chosen:
        try:
            snapshot = log_dir.log(tp).snapshot()
        except (StorageError, OSError):
            continue  # what is wrong with the directory itself is found elsewhere
        progress.begin(f"{tp} in the tier", sum(segment.size for segment in snapshot.remote))
        try:
            for segment in snapshot.remote:
                _audit(snapshot, segment, findings, progress)
        finally:
            progress.end()
    return findings.list()


def _audit(snapshot: LogSnapshot, segment: Segment, findings: Findings, progress: Progress) -> None:
    path, base = segment.log.path, segment.base_offset
    batches = BatchAudit(
        segment.log, base, snapshot.epochs, snapshot.log_start_offset, findings, lambda _headers: None
    )  # fmt: skip

    def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        batches.visit(data, table, rows, origin)
        progress.advance(int(table.end[rows - 1] - table.position[0]))

    def passed(broken: Break, next_offset: int) -> None:
        batches.jump(next_offset)
        expected, found = broken.expected or "a batch with a right CRC", f"{broken.found or 'another'}{broken.behind}"
        what = f"remote segment is damaged: {broken.fault.value}"
        findings.add(
            Finding(FaultKind.REMOTE_SEGMENT, path, _ASIDE, what, broken.position, broken.offset, expected, found)
        )

    end = snapshot.segments[snapshot.segment_index(base) + 1].base_offset
    try:
        walk(segment, visit, passed, end, look=batches.look)
        batches.flush()
    except (StorageError, OSError) as error:
        findings.add(Finding.of_error(FaultKind.REMOTE_SEGMENT, error, path, _ASIDE))
