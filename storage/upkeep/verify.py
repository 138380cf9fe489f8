"""The invariants of a log directory, checked: read-only, taking no lock. The oracle of the tests.

A directory that nobody writes to is assumed. One that was not shut down cleanly may hold unfinished work, which is told
apart from damage (`Severity`); a directory that was opened, recovered and closed in order gives no finding at all.

Checked: names; segments that follow one another; each segment (segment_audit.py); producer snapshots, leader epochs and
offset checkpoints against the log's ends; topic ids and configurations, the same in all partitions; leftovers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage.errors import CorruptCheckpoint
from storage.files import (
    checkpoints,
    leader_epochs,
    meta_properties,
    names,
    partition_metadata,
    producer_state,
    topic_properties,
)
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import DirKind, FileKind, FileState
from storage.format.decoder import Decoder
from storage.log.producer_table import ProducerTable
from storage.log.segment import Segment
from storage.progress import NoProgress, Progress
from storage.types import TopicPartition
from storage.upkeep.findings import RECOVER, REINDEX, Finding, Findings, Severity
from storage.upkeep.segment_audit import AuditState, SegmentAudit

_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
_OPENING = "the next opening for writing"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a partition's files begin and end: base offset of the first segment, offset behind the last batch."""

    first_offset: int
    next_offset: int


def verify_log_dir(
    path: Path, only: Collection[TopicPartition] | None = None, *, progress: Progress | None = None
) -> list[Finding]:
    """Everything wrong in a log directory, by path; `only`: of these partitions, and of the directory's own files.

    OSError when the directory cannot be listed.
    """
    findings = Findings()
    clean = (path / names.CLEAN_SHUTDOWN).exists()
    _read(findings, path / names.META_PROPERTIES, meta_properties.read, None)
    partitions = _check_names(path, findings, clean=clean)
    chosen = [tp for tp in partitions if only is None or tp in only]
    report = progress or NoProgress()
    report.begin("verify", sum(_size(path / tp.dir_name) for tp in chosen))
    ends: dict[TopicPartition, LogEnds] = {}
    # What is wrong with this file is found below.
    log_starts = _read(Findings(), path / names.LOG_START_CHECKPOINT, checkpoints.read, dict[TopicPartition, int]())
    try:
        for tp in chosen:
            # A broker checks the cluster's metadata log at each start, and nobody else may close it.
            closed = clean and tp.topic != names.CLUSTER_METADATA_TOPIC
            ends[tp] = _check_partition(path / tp.dir_name, findings, log_starts.get(tp, 0), clean=closed)
            report.advance(_size(path / tp.dir_name))
    finally:
        report.end()
    _check_checkpoints(path, ends, findings)
    _check_topics(path, partitions, findings)
    return findings.list()


def verify_partition(directory: Path, *, clean: bool = True) -> list[Finding]:
    """Everything wrong within one partition's directory. `clean`: it was closed in order, so nothing is unfinished."""
    findings = Findings()
    _check_partition(directory, findings, 0, clean=clean)
    return findings.list()


def _check_names(path: Path, findings: Findings, *, clean: bool) -> list[TopicPartition]:
    """The partitions that are there; whatever else is, and should not be, is found."""
    partitions = []
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            if entry.name.endswith(names.TEMPORARY_SUFFIX):
                findings.add(
                    entry, "a checkpoint's unfinished successor", repair=_OPENING, severity=Severity.UNFINISHED
                )
            continue
        parsed = names.parse_dir(entry.name)
        if parsed.kind is DirKind.DELETED:
            findings.add(entry, "partition awaits removal", repair=_OPENING, severity=Severity.UNFINISHED)
        elif parsed.kind is DirKind.UNPARSABLE:
            findings.add(entry, f"directory {parsed.reason}", repair="move it elsewhere")
        elif parsed.partition is not None and parsed.kind in (DirKind.PARTITION, DirKind.CLUSTER_METADATA):
            partitions.append(parsed.partition)
    return sorted(partitions)


# One partition


def _check_partition(directory: Path, findings: Findings, log_start: int, *, clean: bool) -> LogEnds:
    files: dict[FileKind, list[int]] = {kind: [] for kind in FileKind}
    for entry in sorted(directory.iterdir()):
        parsed = names.parse_segment_file(entry.name)
        if parsed is None:
            if names.is_misnamed(entry.name):
                findings.add(entry, "segment file's name holds no offset: a broker refuses to start", repair="move it")
            elif entry.name.endswith(names.TEMPORARY_SUFFIX):
                findings.add(
                    entry, "a checkpoint's unfinished successor", repair=_OPENING, severity=Severity.UNFINISHED
                )
        elif parsed.state is FileState.LIVE:
            files[parsed.kind].append(parsed.offset)
        else:
            # A broker that is stopped leaves .deleted files to its next start; replacements end with the process.
            findings.add(entry, "left over", found=parsed.state.value, repair=_OPENING, severity=Severity.UNFINISHED)
    for kind in _INDEXES:
        for offset in sorted(set(files[kind]) - set(files[FileKind.LOG])):
            path = directory / names.segment_file(offset, kind)
            findings.add(path, "index has no .log", repair=_OPENING, severity=Severity.UNFINISHED)
    epochs = _read(findings, directory / names.LEADER_EPOCH_CHECKPOINT, leader_epochs.read, LeaderEpochs())
    ends = _check_segments(directory, sorted(files[FileKind.LOG]), epochs, findings, log_start, clean=clean)
    _check_snapshots(directory, files[FileKind.PRODUCER_SNAPSHOT], ends, findings, clean=clean)
    beyond = [entry for entry in epochs.entries if entry.start_offset > ends.next_offset]
    if beyond:
        findings.add(
            directory / names.LEADER_EPOCH_CHECKPOINT,
            "leader epoch begins beyond the log end",
            offset=beyond[0].start_offset,
            expected=f"at most {ends.next_offset}",
            found=beyond[0].start_offset,
            repair=RECOVER,
            severity=Severity.DAMAGE if clean else Severity.UNFINISHED,
        )
    return ends


def _check_segments(
    directory: Path, bases: list[int], epochs: LeaderEpochs, findings: Findings, log_start: int, *, clean: bool
) -> LogEnds:
    if not bases:
        findings.add(directory, "partition has no segment", repair=_OPENING, severity=Severity.UNFINISHED)
        return LogEnds(0, 0)
    state = AuditState(_producers_at(directory, bases[0]), epochs, Decoder(verify_crc=False), bases[0], log_start)
    for base in bases:
        path = directory / names.segment_file(base, FileKind.LOG)
        if base < state.next_offset:
            findings.add(
                path,
                "segment begins before the one before it ends",
                offset=base,
                expected=f"a base offset from {state.next_offset}",
                found=base,
                repair=RECOVER,
            )
        status = path.stat()
        segment = Segment(directory, base, LogFile(path, FileIdentity.of(status)), status.st_size)
        sealed = base != bases[-1]
        try:
            SegmentAudit(segment, state, findings, sealed=sealed, settled=clean).run()
        except OSError as error:
            findings.add_error(error, path)
    return LogEnds(bases[0], state.next_offset)


def _producers_at(directory: Path, offset: int) -> ProducerTable:
    """What the snapshot at the first segment's base knows of producers before it."""
    try:
        snapshot = producer_state.read(directory / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
    except (CorruptCheckpoint, OSError):
        snapshot = None
    return ProducerTable(offset, () if snapshot is None else snapshot.entries())


def _check_snapshots(directory: Path, offsets: list[int], ends: LogEnds, findings: Findings, *, clean: bool) -> None:
    for offset in offsets:
        path = directory / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT)
        _read(findings, path, producer_state.read, None, repair=REINDEX)
        if offset > ends.next_offset:
            findings.add(
                path,
                "producer snapshot lies beyond the log end",
                offset=offset,
                expected=f"at most {ends.next_offset}",
                found=offset,
                repair=RECOVER,
                severity=Severity.DAMAGE if clean else Severity.UNFINISHED,
            )


# The directory


def _check_checkpoints(path: Path, ends: Mapping[TopicPartition, LogEnds], findings: Findings) -> None:
    for name in (
        names.RECOVERY_POINT_CHECKPOINT,
        names.LOG_START_CHECKPOINT,
        names.REPLICATION_CHECKPOINT,
        names.CLEANER_CHECKPOINT,
    ):
        offsets = _read(findings, path / name, checkpoints.read, dict[TopicPartition, int]())
        for tp, offset in offsets.items():
            if tp in ends and not 0 <= offset <= ends[tp].next_offset:
                findings.add(
                    path / name,
                    f"checkpoint of {tp} lies beyond its log",
                    offset=offset,
                    expected=f"0 to {ends[tp].next_offset}",
                    found=offset,
                    repair=RECOVER,
                )


def _check_topics(path: Path, partitions: list[TopicPartition], findings: Findings) -> None:
    """A topic has one id and one configuration, in all of its partitions, and no other topic has its id."""
    ids: dict[str, tuple[str, Path]] = {}
    overrides: dict[str, tuple[dict[str, str] | None, Path]] = {}
    topic_of_id: dict[str, str] = {}
    for tp in partitions:
        directory = path / tp.dir_name
        metadata = directory / names.PARTITION_METADATA
        topic_id = _read(findings, metadata, partition_metadata.read, None)
        if topic_id is not None:
            first_id, where = ids.setdefault(tp.topic, (topic_id, metadata))
            if topic_id != first_id:
                _differs(findings, metadata, "topic id differs from that in another partition", first_id, topic_id)
            owner = topic_of_id.setdefault(topic_id, tp.topic)
            if owner != tp.topic:
                _differs(findings, metadata, f"topic id is that of topic {owner}", "an id of its own", topic_id)
        properties = directory / names.TOPIC_PROPERTIES
        values = _read(findings, properties, topic_properties.read, None)
        first, where = overrides.setdefault(tp.topic, (values, properties))
        if values != first:
            _differs(findings, properties, f"configuration differs from {where}", first, values)


def _differs(findings: Findings, path: Path, what: str, expected: object, found: object) -> None:
    findings.add(path, what, expected=expected, found=found, repair=_OPENING)


def _read(
    findings: Findings, path: Path, read: Callable[[Path], T | None], default: T, *, repair: str | None = RECOVER
) -> T:
    """A small file's content; `default` where there is none, or where it does not parse, which is found."""
    try:
        content = read(path)
    except (CorruptCheckpoint, OSError) as error:
        findings.add_error(error, path, repair=repair)
        return default
    return default if content is None else content


def _size(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.glob("*" + FileKind.LOG.value))
