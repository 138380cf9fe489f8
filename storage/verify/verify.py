"""Checks the invariants of a log directory: read-only, without a lock. The tests use it as their oracle, too.

A directory that was opened, recovered and closed in order has no findings. One that was not shut down cleanly, or that
a broker holds now, may have unfinished work, which is distinguished from damage (`Severity`). Findings in a directory
that another process writes to are confirmed by a second look.

Checked are names; the sequence of segments; each segment (segment_audit.py), several at once, also of logs that are
being moved here (`-future`); producer snapshots, leader epochs and offset checkpoints against the log's ends; topic ids
and configurations, which must be the same in all partitions; leftovers; pending writes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from storage.files import (
    checkpoints,
    dir_lock,
    meta_properties,
    names,
    partition_metadata,
    topic_properties,
)
from storage.files.listing import paths_in
from storage.files.names import DirKind, FileKind
from storage.files.opening import exists, real_place
from storage.log.log_dir import LogDir
from storage.log.places import check_log_dir
from storage.progress import NoProgress, Progress, working
from storage.types import TopicPartition
from storage.verify.findings import (
    DROP_LOST_WRITES,
    LEFT,
    MOVE_AWAY,
    OPENING,
    RECOVER,
    UNFINISHED,
    FaultKind,
    Finding,
    Findings,
    Repair,
    Severity,
)
from storage.verify.partition_audit import LogEnds, PartitionAudit, PartitionPlan, read_small
from storage.verify.segment_audit import SegmentReport

# Checks pending writes (storage.staged_writes.commit) and staged files.


def check_writes(findings: Findings, path: Path, staged: Iterable[Path], *, held: bool) -> None:
    """Checks the pending writes of a log directory, and the files `staged` in it, listed before. `held`: another
    process writes to it."""
    from storage.files import commit_ledger  # here, since most directories have no such writes
    from storage.files.commit_ledger import Ledger, WriteId
    from storage.staged_writes.pending_writes import pending_writes

    ledger = read_small(
        findings,
        FaultKind.WRITES_CORRUPT,
        path,
        commit_ledger.read,
        Ledger(),
        Repair(
            "leaves it",
            f"move {names.COMMITS} elsewhere: a query that then starts again may write its last micro-batch twice",
        ),
    )
    for write in pending_writes(LogDir.open_read_only(path), ledger):
        if held and write.commit not in commit_ledger.read(path).pending:
            continue  # it has been carried out meanwhile
        kind, how = FaultKind.WRITE_PENDING, Repair("finishes it", OPENING, note=True)
        if write.is_stuck:
            kind, how = FaultKind.WRITE_STUCK, Repair("finishes what it can", f"{RECOVER} {DROP_LOST_WRITES}")
        findings.add(Finding(kind, path / names.COMMITS, how, found=str(write)))
    for file in staged:
        name = names.parse_staged(file.name)
        if name is not None and file.name not in ledger.staged_names() and exists(file):
            if ledger.is_done(WriteId(name.write, name.batch)):
                how = Repair("removes it", OPENING, note=True)
            else:
                command = f"{RECOVER}, if no write from Spark is under way"
                how = Repair("leaves it for a week: its write may be under way", command, note=True)
            findings.add(Finding(FaultKind.STAGED_ORPHAN, file, how))


_LOOKS = 3  # how often a partition that another process writes to is checked

_EMPTY = Repair("treats it as empty", RECOVER)
_MADE_ANEW = Repair("creates it again, empty, and another replica fills it if one exists", note=True)

_GAP = Repair("leaves it: a gap is accepted", "copy the lost file back, with the broker stopped", note=True)

_ELSEWHERE = Repair(note=True)

_Offsets = Mapping[TopicPartition, int]


@dataclass
class _Directory:
    """A log directory being checked. `clean`: nothing in it may be unfinished. `held`: another process writes to it."""

    path: Path
    clean: bool
    held: bool
    findings: Findings = field(default_factory=Findings)
    ends: dict[TopicPartition, LogEnds] = field(default_factory=dict)

    @cached_property
    def log_dir(self) -> LogDir:
        return LogDir.open_read_only(self.path)


def verify_log_dir(
    path: Path,
    only: Collection[TopicPartition] | None = None,
    *,
    progress: Progress | None = None,
    workers: int | None = None,
) -> list[Finding]:
    """Everything wrong in a log directory, by path; `only`: in these partitions, and in the directory's own files.

    `workers`: threads that check segments, by default as many as there are processors. NotALogDir; OSError when the
    directory cannot be listed.
    """
    path = real_place(path)
    check_log_dir(path)
    held = dir_lock.holder(path) is not None
    directory = _Directory(path, clean=not held and exists(path / names.CLEAN_SHUTDOWN), held=held)
    findings = directory.findings
    read_small(findings, FaultKind.META_PROPERTIES, path / names.META_PROPERTIES, meta_properties.read, None, LEFT)
    partitions = _check_names(directory)
    chosen = partitions if only is None else sorted(set(only).intersection(partitions))
    # Read before the logs: everything that checkpoints refer to is in the logs by then.
    known = {
        name: read_small(
            findings, FaultKind.CHECKPOINT_CORRUPT, path / name, checkpoints.read, dict[TopicPartition, int](), _EMPTY
        )
        for name in (
            names.RECOVERY_POINT_CHECKPOINT,
            names.LOG_START_CHECKPOINT,
            names.REPLICATION_CHECKPOINT,
            names.CLEANER_CHECKPOINT,
        )
    }
    report = progress or NoProgress()
    total = sum(_size(path / tp.dir_name) for tp in chosen)
    count = workers or len(os.sched_getaffinity(0))
    with working(report, "verify", total), ThreadPoolExecutor(count, "verify") as pool:
        _check_partitions(directory, chosen, known, pool, report)
    _check_futures(directory, only)
    _check_checkpoints(directory, known)
    unlisted = {finding.path for finding in findings if finding.kind is FaultKind.NOT_PERMITTED}
    _check_topics(directory, [tp for tp in partitions if path / tp.dir_name not in unlisted])
    _check_writes(directory, chosen)
    if only is None:
        with suppress(OSError):  # files of the metadata that cannot be read have findings
            _check_absent(directory)
    return findings.list()


def verify_partition(directory: Path, *, clean: bool = True) -> list[Finding]:
    """Everything wrong within one partition's directory. `clean`: it was closed in order, so nothing is unfinished."""
    audit = PartitionAudit(PartitionPlan(directory, clean))
    findings, _ = audit.finish([audit.audit(plan, NoProgress()) for plan in audit.segments()])
    return findings.list()


def _check_names(directory: _Directory) -> list[TopicPartition]:
    """The partitions that are there; other entries that should not be there are findings."""
    partitions, findings = [], directory.findings
    for entry in paths_in(directory.path):
        if not entry.is_dir():
            if entry.name.endswith(names.TEMPORARY_SUFFIX):
                findings.add(Finding(FaultKind.CHECKPOINT_UNFINISHED, entry, UNFINISHED))
            continue
        parsed = names.parse_dir(entry.name)
        if parsed.kind is DirKind.DELETED:
            findings.add(Finding(FaultKind.DIR_AWAITS_REMOVAL, entry, UNFINISHED))
        elif parsed.kind is DirKind.UNPARSABLE:
            findings.add(Finding(FaultKind.DIR_UNPARSABLE, entry, MOVE_AWAY, f"directory {parsed.reason}"))
        elif parsed.partition is not None and parsed.kind in (DirKind.PARTITION, DirKind.CLUSTER_METADATA):
            partitions.append(parsed.partition)
    return sorted(partitions)


# Partitions


def _check_partitions(
    directory: _Directory,
    chosen: Iterable[TopicPartition],
    known: Mapping[str, _Offsets],
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    """Checks all of them, up to a few partitions ahead of the one that is finished next."""
    waiting: deque[tuple[_Started, list[Future[SegmentReport]]]] = deque()

    def finish() -> None:
        begun, futures = waiting.popleft()
        _finish(directory, begun, [future.result() for future in futures])

    for begun in _begin(directory, chosen, known):
        waiting.append(
            (begun, [pool.submit(begun.audit.audit, segment, progress) for segment in begun.audit.segments()])
        )
        if len(waiting) > 2:
            finish()
    while waiting:
        finish()


def _check_futures(directory: _Directory, only: Collection[TopicPartition] | None) -> None:
    """Checks logs that are being moved here from another log directory, each by itself."""
    for entry in paths_in(directory.path):
        parsed = names.parse_dir(entry.name)
        if parsed.kind is DirKind.FUTURE and entry.is_dir() and (only is None or parsed.partition in only):
            try:
                findings = Findings()
                findings.extend(verify_partition(entry, clean=directory.clean))
            except OSError as error:
                directory.findings.add(Finding.of_error(FaultKind.UNREADABLE, error, entry))
                continue
            directory.findings.extend(
                _confirmed(findings, PartitionPlan(entry, clean=False)) if directory.held else findings
            )


class _Started(NamedTuple):
    """A partition whose check has begun."""

    tp: TopicPartition
    plan: PartitionPlan
    audit: PartitionAudit


def _begin(
    directory: _Directory, chosen: Iterable[TopicPartition], known: Mapping[str, _Offsets]
) -> Iterator[_Started]:
    for tp in chosen:
        plan = PartitionPlan(
            directory.path / tp.dir_name,
            # A broker checks the cluster's metadata log at each start, and no other process closes it.
            directory.clean and tp.topic != names.CLUSTER_METADATA_TOPIC,
            known[names.LOG_START_CHECKPOINT].get(tp, 0),
            known[names.RECOVERY_POINT_CHECKPOINT].get(tp, 0),
        )
        try:
            audit = PartitionAudit(plan)
        except OSError as error:
            directory.findings.add(Finding.of_error(FaultKind.UNREADABLE, error, plan.directory))
            continue
        yield _Started(tp, plan, audit)


def _finish(directory: _Directory, started: _Started, reports: list[SegmentReport]) -> None:
    findings, directory.ends[started.tp] = started.audit.finish(reports)
    directory.findings.extend(_confirmed(findings, started.plan) if directory.held else findings)
    ends = directory.ends[started.tp]
    remote = None
    with suppress(OSError):  # a checkpoint that cannot be read has a finding
        remote = directory.log_dir.remote_offsets(started.tp, ends.first_offset) if reports else None
    if remote is not None:
        path = started.plan.directory / names.segment_file(remote.end, FileKind.LOG)
        elsewhere = f"offsets {remote.start} to {remote.end - 1} in tiered storage"
        finding = Finding(FaultKind.REMOTE_SEGMENTS, path, _ELSEWHERE, offset=remote.start, found=elsewhere)
        directory.findings.add(finding)
    gaps = ends.gaps
    if gaps and not _is_cleaned(directory, started.tp):
        for first, base in gaps:
            path = started.plan.directory / names.segment_file(base, FileKind.LOG)
            expected = f"a segment with the offsets {first} to {base - 1}"
            directory.findings.add(Finding(FaultKind.SEGMENT_GAP, path, _GAP, offset=first, expected=expected))


def _is_cleaned(directory: _Directory, tp: TopicPartition) -> bool:
    # Imported here because it loads the reading of configurations, which only gaps need.
    from storage.log.segment_gaps import is_cleaned

    return is_cleaned(directory.log_dir, tp)


def _confirmed(findings: Findings, plan: PartitionPlan) -> Findings:
    """The findings that a second look confirms: in a log that is being written to, some are temporary."""
    for _ in range(_LOOKS - 1):
        if not any(finding.severity is Severity.FINDING for finding in findings):
            break
        seen = {(finding.kind, finding.path, finding.position, finding.offset) for finding in findings}
        again = Findings()
        for finding in verify_partition(plan.directory, clean=False) if plan.directory.exists() else ():
            if (finding.kind, finding.path, finding.position, finding.offset) in seen:
                again.add(finding)
        findings = again
    return findings


# The directory


def _check_checkpoints(directory: _Directory, known: Mapping[str, _Offsets]) -> None:
    for name, offsets in known.items():
        for tp, offset in offsets.items():
            if tp in directory.ends and not 0 <= offset <= directory.ends[tp].next_offset:
                is_start = name == names.LOG_START_CHECKPOINT
                how = Repair("restarts the log there" if is_start else "corrects it", RECOVER)
                what, expected = f"checkpoint of {tp} is beyond its log", f"0 to {directory.ends[tp].next_offset}"
                finding = Finding(
                    FaultKind.CHECKPOINT_BEYOND_LOG, directory.path / name, how, what,
                    offset=offset, expected=expected, found=offset,
                )  # fmt: skip
                directory.findings.add(finding)


def _check_topics(directory: _Directory, partitions: list[TopicPartition]) -> None:
    """Checks that all partitions of a topic have one id and one configuration, and no other topic has that id."""
    findings = directory.findings
    ids: dict[str, str | None] = {}
    overrides: dict[str, tuple[dict[str, str], Path]] = {}
    topic_of_id: dict[str, str] = {}
    for tp in partitions:
        metadata = directory.path / tp.dir_name / names.PARTITION_METADATA
        before = len(findings)
        topic_id = read_small(findings, FaultKind.TOPIC_ID_CORRUPT, metadata, partition_metadata.read, None, LEFT)
        if len(findings) > before:
            continue
        first_id = ids.setdefault(tp.topic, topic_id)
        if topic_id is None and first_id is not None:
            _differs(findings, FaultKind.TOPIC_ID_MISSING, metadata, first_id, None)
        elif topic_id is not None:
            if topic_id != first_id:
                _differs(findings, FaultKind.TOPIC_ID_DIFFERS, metadata, first_id, topic_id)
            owner = topic_of_id.setdefault(topic_id, tp.topic)
            if owner != tp.topic:
                _differs(findings, FaultKind.TOPIC_ID_SHARED, metadata, f"an id other than that of {owner}", topic_id)
    for tp in partitions:
        properties = directory.path / tp.dir_name / names.TOPIC_PROPERTIES
        # A file that sets nothing means the same as none.
        values = read_small(findings, FaultKind.TOPIC_CONFIG_CORRUPT, properties, topic_properties.read, None) or {}
        first, where = overrides.setdefault(tp.topic, (values, properties))
        if values != first:
            what = f"configuration differs from {where}"
            _differs(findings, FaultKind.TOPIC_CONFIG_DIFFERS, properties, first, values, what)


def _check_absent(directory: _Directory) -> None:
    """Notes partitions that the cluster's metadata assigns to this broker and that are not here: they may be in another
    of its log directories."""
    if not (directory.path / f"{names.CLUSTER_METADATA_TOPIC}-0").is_dir():
        return
    metadata = directory.log_dir.cluster_metadata()
    path = directory.path / names.META_PROPERTIES
    broker = read_small(Findings(), FaultKind.META_PROPERTIES, path, meta_properties.read, None)
    if metadata is None or broker is None:
        return
    for tp in directory.log_dir.absent():
        topic = metadata.topics.get(tp.topic)
        known = None if topic is None else topic.partitions.get(tp.partition)
        if known is not None and broker.node_id in known.replicas:
            expected = f"{tp}, unless another log directory of this broker has it"
            directory.findings.add(
                Finding(FaultKind.PARTITION_ABSENT, directory.path / tp.dir_name, _MADE_ANEW, expected=expected)
            )


def _check_writes(directory: _Directory, chosen: Iterable[TopicPartition]) -> None:
    """Checks staged writes, if there are any."""
    staged = [file for tp in chosen for file in _ending(directory.path / tp.dir_name, names.STAGED_SUFFIX)]
    if staged or exists(directory.path / names.COMMITS):
        check_writes(directory.findings, directory.path, staged, held=directory.held)


def _differs(findings: Findings, kind: FaultKind, path: Path, expected: object, found: object, what: str = "") -> None:
    findings.add(Finding(kind, path, Repair("leaves it", OPENING), what, expected=expected, found=found))


def _size(directory: Path) -> int:
    try:
        return sum(entry.lstat().st_size for entry in _ending(directory, FileKind.LOG.value))
    except OSError:  # its check reports it
        return 0


def _ending(directory: Path, ending: str) -> list[Path]:
    """The files of a partition with this ending; none where it was removed, or cannot be listed."""
    try:
        return [path for path in paths_in(directory) if path.name.endswith(ending)]
    except OSError:
        return []
