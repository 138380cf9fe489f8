"""Checks what a tier holds of the partitions of a log directory.

    remote-segment      damage in a remote segment, offsets that neither the directory nor the tier has, a tier that
                        cannot be reached
    remote-parts        objects of a remote segment are missing
    remote-orphans      objects that `__remote_log_metadata` does not name: nothing will ever remove them

Uploads that were not finished, and segments whose removal has begun, are not faults: a broker removes them. Indexes and
snapshots in the tier are not read: a broker uses them unchecked, and readers here never trust them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from storage.errors import StorageError
from storage.files import names
from storage.format.batches import BatchTable
from storage.log.intact import Break, walk
from storage.log.log_dir import LogDir
from storage.log.remote_metadata import KnownSegment, RemoteState
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.log.tiered_log import is_missing
from storage.progress import Progress, working
from storage.tier.remote_segments import RemoteSegment, TopicIdPartition
from storage.tier.tier import Tier
from storage.types import OffsetRange, TopicPartition
from storage.verify.batch_audit import BatchAudit
from storage.verify.findings import FaultKind, Finding, Findings, Repair

_UNNOTICED = Repair("a broker does not check it: consumers stop there")
_PUT_BACK = Repair(None, "put the objects back, from a copy of the tier")
_ORPHANED = Repair(None, "remove them, if no other broker's __remote_log_metadata names them", note=True)

_LISTED_ORPHANS = 10  # of a partition; the rest is counted


def verify_tier(
    log_dir: LogDir, tier: Tier, partitions: Collection[TopicPartition], progress: Progress, *, elsewhere: bool
) -> list[Finding]:
    """The faults in the tier of these partitions, every batch and record of their remote segments read. `log_dir`: with
    that tier. `elsewhere`: also orphans of partitions that are not in the log directory."""
    findings = Findings()
    for tp in partitions:
        try:
            snapshot = log_dir.log(tp).snapshot()
        except (StorageError, OSError):
            continue  # `verify` reports what is wrong with the partition's directory
        with working(progress, f"{tp} in the tier", sum(segment.size for segment in snapshot.remote)):
            for segment in snapshot.remote:
                _read_segment(snapshot, segment, findings, progress)
    _list_objects(log_dir, tier, partitions, findings, elsewhere=elsewhere)
    return findings.list()


def list_tier(log_dir: LogDir, tier: Tier, partitions: Collection[TopicPartition]) -> list[Finding]:
    """The faults that the tier's listings show, also for partitions that are not in the log directory."""
    findings = Findings()
    _list_objects(log_dir, tier, partitions, findings, elsewhere=True, gaps=True)
    return findings.list()


def _read_segment(snapshot: LogSnapshot, segment: Segment, findings: Findings, progress: Progress) -> None:
    path, base = segment.log.path, segment.base_offset
    batches = BatchAudit(segment.log, base, snapshot.epochs, snapshot.log_start_offset, findings, lambda _headers: None)

    def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        batches.visit(data, table, rows, origin)
        progress.advance(int(table.end[rows - 1] - table.position[0]))

    def passed(broken: Break, next_offset: int) -> None:
        batches.jump(next_offset)
        expected, found = (
            broken.expected or "a batch with the right CRC",
            f"{broken.found or 'other bytes'}{broken.behind}",
        )
        what = f"remote segment is damaged: {broken.fault.value}"
        findings.add(
            Finding(FaultKind.REMOTE_SEGMENT, path, _UNNOTICED, what, broken.position, broken.offset, expected, found)
        )

    end = snapshot.segments[snapshot.segment_index(base) + 1].base_offset
    try:
        walk(segment, visit, passed, end)
        batches.flush()
    except (StorageError, OSError) as error:
        findings.add(Finding.of_error(FaultKind.REMOTE_SEGMENT, error, path, _UNNOTICED))


def _list_objects(
    log_dir: LogDir,
    tier: Tier,
    partitions: Collection[TopicPartition],
    findings: Findings,
    *,
    elsewhere: bool,
    gaps: bool = False,
) -> None:
    """Adds missing and orphaned objects; `gaps`: also offsets that no segment has, which `_read_segment` finds too. A
    place that cannot be reached is a finding of its own, once."""
    unreachable: set[Path] = set()

    def attempt(path: Path, check: Callable[[], None]) -> None:
        try:
            check()
        except (StorageError, OSError) as error:
            finding = Finding.of_error(FaultKind.REMOTE_SEGMENT, error, path)
            if finding.path not in unreachable:
                unreachable.add(finding.path)
                findings.add(finding)

    for tp in partitions:
        if tp.topic not in names.KAFKAS_OWN_TOPICS:
            path = log_dir.path / tp.dir_name
            attempt(path, partial(_compare, log_dir, tier, tp, path, findings, gaps=gaps))
    if elsewhere:
        attempt(log_dir.path, partial(_find_orphans_elsewhere, log_dir, tier, findings))


def _find_gaps(log_dir: LogDir, tp: TopicPartition, path: Path, findings: Findings) -> None:
    snapshot = log_dir.log(tp).snapshot()
    gaps: list[OffsetRange] = []
    for segment, after in zip(snapshot.segments, (*snapshot.segments[1:], None), strict=True):
        if is_missing(segment):
            start = max(segment.base_offset, snapshot.log_start_offset)
            end = snapshot.log_end_offset if after is None else after.base_offset
            if gaps and gaps[-1].end == start:
                start = gaps.pop().start
            gaps.append(OffsetRange(start, end))
    for gap in gaps:
        what = f"offsets {gap.start} to {gap.end - 1} are neither here nor in the tier"
        findings.add(Finding(FaultKind.REMOTE_SEGMENT, path, _PUT_BACK, what, offset=gap.start))


def _compare(log_dir: LogDir, tier: Tier, tp: TopicPartition, path: Path, findings: Findings, *, gaps: bool) -> None:
    """Compares a partition's objects in the tier with the metadata; `gaps`: and its offsets with both."""
    topic_id = log_dir.topic_info(tp.topic).topic_id
    segments = tier.segments(tp.topic, tp.partition, topic_id)
    known = _known(log_dir, topic_id, tp.partition)
    if gaps:
        _find_gaps(log_dir, tp, path, findings)
    lacking = [
        (segment.base_offset, segment.segment_id or "", ", ".join(segment.missing))
        for segment in segments
        if segment.missing and _counts(segment, known)
    ]
    listed_ids = {segment.segment_id for segment in segments}
    lacking += [
        (event.base_offset, event.segment_id, "all its objects")
        for event in (known or {}).values()
        if event.state is RemoteState.FINISHED and event.segment_id not in listed_ids
    ]
    for base_offset, segment_id, suffixes in sorted(lacking):
        what = f"remote segment {base_offset}-{segment_id} lacks {suffixes}"
        findings.add(Finding(FaultKind.REMOTE_PARTS, path, _PUT_BACK, what, offset=base_offset))
    _report_orphans(path, str(tp), [segment for segment in segments if _is_orphan(segment, known)], findings)


def _find_orphans_elsewhere(log_dir: LogDir, tier: Tier, findings: Findings) -> None:
    """Orphans of partitions that are not in the log directory. Orphans of other brokers are judged by the metadata, if
    these are here; all objects of a topic that the cluster no longer has are orphaned."""
    local_partitions = {log_dir.topic_info(topic).topic_id: log_dir.partitions(topic) for topic in log_dir.topics()}
    cluster = log_dir.cluster_metadata()
    ids = None if cluster is None else {topic.topic_id for topic in cluster.topics.values()}
    for of in tier.partitions():
        if of.topic_id is None or of.partition in local_partitions.get(of.topic_id, ()):
            continue
        known = _known(log_dir, of.topic_id, of.partition)
        is_deleted = ids is not None and of.topic_id not in ids
        segments = tier.segments(of.topic, of.partition, of.topic_id)
        orphans = [segment for segment in segments if is_deleted or _is_orphan(segment, known)]
        _report_orphans(log_dir.path, _named(of), orphans, findings)


def _report_orphans(path: Path, partition: str, orphans: Sequence[RemoteSegment], findings: Findings) -> None:
    if orphans:
        listed = ", ".join(f"{orphan.base_offset}-{orphan.segment_id}" for orphan in islice(orphans, _LISTED_ORPHANS))
        more = ", …" if len(orphans) > _LISTED_ORPHANS else ""
        segments = f"{len(orphans)} segment{'s' if len(orphans) > 1 else ''}"
        size_bytes = sum(segment.stored_bytes for segment in orphans)
        what = f"{partition}: orphaned: {segments} with {size_bytes} bytes: {listed}{more}"
        findings.add(Finding(FaultKind.REMOTE_ORPHANS, path, _ORPHANED, what))


def _known(log_dir: LogDir, topic_id: str | None, partition: int) -> Mapping[str, KnownSegment] | None:
    """The segments that the metadata know of a partition; None without any metadata of it."""
    return None if topic_id is None else log_dir.remote_metadata.segments(topic_id, partition)


def _counts(segment: RemoteSegment, known: Mapping[str, KnownSegment] | None) -> bool:
    """Whether a segment's upload was finished, by the metadata or, without any, by its layout."""
    if known is None:
        return segment.is_complete
    event = known.get(segment.segment_id or "")
    return segment.segment_id is None or (event is not None and event.state is RemoteState.FINISHED)


def _is_orphan(segment: RemoteSegment, known: Mapping[str, KnownSegment] | None) -> bool:
    """Whether the metadata do not name a segment, or say that its removal has ended."""
    if known is None or segment.segment_id is None:
        return False
    event = known.get(segment.segment_id)
    return event is None or event.state is RemoteState.DELETE_FINISHED


def _named(of: TopicIdPartition) -> str:
    return f"{of.topic}/{of.partition} ({of.topic_id})"
