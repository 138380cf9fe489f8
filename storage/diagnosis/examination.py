"""Examines the log directories of one broker: `examine` puts the checks together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from storage.clock import Clock
from storage.config.log_config import read_overrides
from storage.diagnosis.broker_properties import BrokerProperties
from storage.diagnosis.damage import of_denied, of_finding
from storage.diagnosis.directory_checks import (
    LogDirState,
    check_checkpoints,
    check_identity,
    check_lock,
    check_names,
    check_placement,
    check_space,
    metadata_dir_of,
    metadata_of,
    not_a_file,
)
from storage.diagnosis.first_retention import check_retention, unless_it_ends
from storage.diagnosis.future_logs import check_futures, taken_futures
from storage.diagnosis.log_loading import check_files, of_high_watermark, of_out_of_range, of_recovery
from storage.diagnosis.partition_checks import check_absent, check_remote, check_remote_epochs, check_topics
from storage.diagnosis.predictions import Diagnosis, Prediction, Reaction
from storage.diagnosis.quorum_checks import check_quorum
from storage.directory.directory_checkpoints import DirectoryCheckpoints
from storage.directory.recovery_plans import recovery_plan
from storage.errors import CorruptCheckpoint, StorageError
from storage.files import checkpoints, dir_lock, names
from storage.files.disk import RealDisk
from storage.files.listing import paths_in
from storage.files.metadata_replay import ClusterMetadata
from storage.log.log_dir import LogDir
from storage.log.places import check_log_dir
from storage.log.read_only_log import ReadOnlyLog
from storage.log.remote_metadata import RemoteMetadata
from storage.log.scanning import scan_batches
from storage.log.segments import bytes_from
from storage.log.snapshot import ReadableLog
from storage.progress import NoProgress, Progress
from storage.recovery.overflow_split import OffsetsOutOfRange
from storage.recovery.recovery import RecoveryPlan, RecoveryReport
from storage.recovery.rehearsal import rehearse
from storage.types import TopicPartition
from storage.upkeep.kept_segments import may_be_tiered
from storage.verify.verify import verify_log_dir

_RECOVERED_BYTES_S = 200_000_000  # by one thread of a broker, about


def examine(
    paths: Sequence[Path],
    *,
    properties: BrokerProperties | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Diagnosis:
    """Predict what a broker with these log directories will do when it starts. Nothing is changed.

    `quick`: reads no log, so damage is not found, nor is anything that recovery would cut. NotALogDir; OSError if a
    directory cannot be read.
    """
    for path in paths:
        # Next to others an empty directory is a new disk, which the broker formats.
        if len(paths) == 1 or paths_in(path):
            check_log_dir(path)
    dirs = [LogDirState.of(path) for path in paths]
    metadata_dir = metadata_dir_of(dirs, properties)
    metadata = None
    predictions: list[Prediction] = [*check_identity(dirs, metadata_dir, properties), *check_names(dirs)]
    try:
        metadata = metadata_of(metadata_dir)
    except PermissionError as error:
        predictions.append(of_denied(error, metadata_dir.metadata_log))
    # Without one of these files nobody knows which partitions the broker serves.
    are_assigned = not any(prediction.reaction is Reaction.UNKNOWN for prediction in predictions)
    predictions += _permitted(check_quorum(dirs, metadata_dir, metadata), metadata_dir.metadata_log)
    node_id = next((state.meta.node_id for state in dirs if state.meta is not None), None)
    node_id = properties.node_id if properties is not None and properties.node_id is not None else node_id
    has_others = properties is not None and properties.has_others
    has_topics = metadata is not None or has_others or not are_assigned
    offline = set()
    present = {tp for state in dirs for tp in state.partitions}
    events = RemoteMetadata(lambda: [] if quick else _logs_of_events(dirs, metadata))
    for state in dirs:
        own = [*_permitted(check_lock(state), state.path), *check_space(state)]
        own += check_checkpoints(state, has_topics=has_topics)
        denied, points = set(), _recovery_points(state.path)
        for tp, directory in (*state.loaded(), *((tp, directory) for _, tp, directory in state.asides)):
            point = points.get(tp, 0)
            checks = check_files(directory, tp, clean=state.clean, recovery_point=point, is_rehearsed=not quick)
            of_files = list(_permitted(checks, directory))
            denied |= {directory for prediction in of_files if prediction.reaction is Reaction.UNKNOWN}
            own += of_files
        state = state.without(denied)
        own += check_topics(state, metadata, node_id, properties) if are_assigned else ()
        own += _permitted(_recovery_work(state, points), state.path)
        try:
            if state.partitions:
                own += check_remote(LogDir.open_read_only(state.path), state.partitions, properties, events)
            if not quick and (state.partitions or state.asides):
                log_dir = LogDir.open_read_only(
                    state.path, config=None if properties is None else properties.config, clock=clock
                )
                logs = {tp: state.path / tp.dir_name for tp in state.partitions}
                taken = taken_futures(state, metadata, node_id)
                logs |= {tp: path for tp, path in taken if tp not in present}
                own += _damage(state, logs, log_dir, metadata, progress or NoProgress())
        except OSError as error:
            not_a_file(state.path, error)  # the checks have reported it
        if any(prediction.reaction is Reaction.OFFLINE for prediction in own):
            offline.add(state.path)
            own += [] if quick or len(dirs) == 1 else _transactions_offline(state)
        predictions += own
    if are_assigned:
        predictions += _permitted(check_futures(dirs, metadata, node_id), metadata_dir.path)
    places = {tp: state.path for state in dirs for tp, _ in state.loaded()}
    # Logs that are being moved, but will not replace their partition's log: they stay beside it, or are set aside.
    futures = [future for future in predictions if future.name == "being-moved" and future.reaction is Reaction.IGNORES]
    moved = {future.tp for future in futures if future.tp is not None}
    places = {**dict.fromkeys(moved, metadata_dir.path), **places}
    absent: list[Prediction] = []
    if are_assigned:
        predictions += check_placement(dirs, metadata, node_id)
        absent += check_absent(places, metadata, node_id, metadata_dir.path)
    offline |= {metadata_dir.path for prediction in absent if prediction.reaction is Reaction.OFFLINE}
    predictions += absent
    stays = metadata_dir.path not in offline and len(offline) < len(dirs)
    return Diagnosis((), stays, quick).with_more(unless_it_ends(predictions))


def _permitted(checks: Iterator[Prediction], place: Path) -> Iterator[Prediction]:
    """The predictions of checks, which end with one about the first file that this user may not read: `place`, unless
    its error names it."""
    try:
        yield from checks
    except PermissionError as error:
        yield of_denied(error, place)


def _logs_of_events(dirs: Sequence[LogDirState], metadata: ClusterMetadata | None) -> list[ReadableLog]:
    """The logs in which a broker keeps what is in tiered storage; none if other brokers may know more. StorageError,
    OSError."""
    topic = None if metadata is None else metadata.topics.get(names.REMOTE_LOG_METADATA_TOPIC)
    if topic is None or any(len(partition.replicas) > 1 for partition in topic.partitions.values()):
        return []
    return [log for state in dirs for log in LogDir.open_read_only(state.path).remote_metadata_logs()]


def _recovery_points(directory: Path) -> dict[TopicPartition, int]:
    """The checkpointed recovery points of a directory; without a file that can be read there are none, as
    `check_checkpoints` says."""
    with contextlib.suppress(CorruptCheckpoint, OSError):
        return checkpoints.read(directory / names.RECOVERY_POINT_CHECKPOINT)
    return {}


def _recovery_work(state: LogDirState, points: Mapping[TopicPartition, int]) -> Iterator[Prediction]:
    """How much a broker will check after an unclean shutdown."""
    if state.clean or not state.partitions:
        return
    size = sum(bytes_from(state.path / tp.dir_name, points.get(tp, 0)) for tp in state.partitions)
    seconds = size // _RECOVERED_BYTES_S
    yield Prediction(
        "unclean",
        Reaction.RECOVERS,
        state.path / names.CLEAN_SHUTDOWN,
        "the directory was not shut down cleanly",
        f"checks {size} bytes of {len(state.partitions)} partitions, for about {seconds} s with one thread",
        "num.recovery.threads.per.data.dir makes it quicker; `kafkafs recover` does the same",
    )


def _transactions_offline(state: LogDirState) -> Iterator[Prediction]:
    """Logs that may stop a broker that continues without the other logs of this directory."""
    for tp in state.partitions:
        with contextlib.suppress(StorageError, OSError):  # the other checks report what cannot be read
            snapshot = LogDir.open_read_only(state.path).log(tp).snapshot()
            windows = (scan_batches(snapshot, segment, 0, segment.size) for segment in snapshot.segments)
            if any(window.table.is_transactional.any() for window in chain.from_iterable(windows)):
                yield Prediction(
                    "transactions-offline",
                    Reaction.OFFLINE,
                    state.path / tp.dir_name,
                    "has transactions, in a log directory that goes offline",
                    "may end: when it loads this log after it took the directory offline, it looks up the first "
                    "offset of the last transaction, and fails; which comes first is not known",
                    "Resolve what takes the directory offline, or start without that directory",
                    tp,
                )


def _damage(
    state: LogDirState,
    logs: Mapping[TopicPartition, Path],
    log_dir: LogDir,
    metadata: ClusterMetadata | None,
    progress: Progress,
) -> Iterator[Prediction]:
    """The batches that loading these logs will remove, and damage that a broker does not notice."""
    reports: dict[TopicPartition, RecoveryReport] = {}
    removed = list(_permitted(_removed(state, logs, log_dir, metadata, progress, reports), state.path))
    yield from removed
    by_dir = {state.path / tp.dir_name: tp for tp in state.partitions}
    seen = {(prediction.name, prediction.path) for prediction in removed}
    for finding in verify_log_dir(state.path, state.partitions, progress=progress):
        tp_of = by_dir.get(finding.path.parent) or by_dir.get(finding.path)
        if tp_of is None:
            continue
        prediction = of_finding(finding, tp_of, reports.get(tp_of), clean=state.clean)
        if prediction is not None and (prediction.name, prediction.path) not in seen:
            seen.add((prediction.name, prediction.path))
            yield prediction


def _removed(
    state: LogDirState,
    logs: Mapping[TopicPartition, Path],
    log_dir: LogDir,
    metadata: ClusterMetadata | None,
    progress: Progress,
    reports: dict[TopicPartition, RecoveryReport],
) -> Iterator[Prediction]:
    """The batches that recovery and then retention remove from the logs. `reports` gets the reports of recovery."""
    if dir_lock.holder(state.path) is None:
        known = DirectoryCheckpoints(RealDisk(), state.path)  # read, never written
        for tp, outcome in _rehearsed(log_dir, state, logs, known, progress):
            if isinstance(outcome, RecoveryReport):
                reports[tp] = outcome
                removed = list(of_recovery(outcome, logs[tp], known.of(tp), clean=state.clean))
                yield from removed
                if tp in state.partitions:
                    leads = _is_only_replica(metadata, tp)
                    unreadable = of_high_watermark(outcome, logs[tp], known.of(tp), leads=leads)
                    yield from () if unreadable is None else (unreadable,)
                yield from check_remote_epochs(logs[tp], outcome, metadata, known.of(tp).log_start)
                yield from _retention(log_dir, logs[tp], metadata, outcome, are_cut=bool(removed) and not state.clean)
            elif isinstance(outcome, OffsetsOutOfRange) and outcome.path is not None:
                yield from of_out_of_range(outcome.path, tp, clean=state.clean)
            elif isinstance(outcome, PermissionError) and tp in state.partitions:
                continue  # verify reports it
            elif isinstance(outcome, PermissionError):
                yield of_denied(outcome, logs[tp])
            else:
                yield Prediction(
                    "unreadable", Reaction.OFFLINE, logs[tp], str(outcome),
                    "takes the directory offline", "", tp,
                )  # fmt: skip


def _is_only_replica(metadata: ClusterMetadata | None, tp: TopicPartition) -> bool:
    """Whether no other broker has a replica of a partition, as far as the metadata tell."""
    topic = None if metadata is None else metadata.topics.get(tp.topic)
    described = None if topic is None else topic.partitions.get(tp.partition)
    return described is None or len(described.replicas) == 1


def _retention(
    log_dir: LogDir, directory: Path, metadata: ClusterMetadata | None, report: RecoveryReport, *, are_cut: bool
) -> Iterator[Prediction]:
    """Segments that retention removes from the part of a log that recovery leaves."""
    topic = None if metadata is None else metadata.topics.get(report.tp.topic)
    if topic is not None:
        config, _ = read_overrides(log_dir.broker_config().topic_defaults, topic.configs)
        snapshot = (
            log_dir.log(report.tp)
            if directory.name == report.tp.dir_name
            else ReadOnlyLog(report.tp, directory, lambda: report.log_start_offset)
        ).snapshot()
        kept = tuple(segment for segment in snapshot.segments if segment.base_offset not in report.removed_segments)
        if not kept:
            return  # recovery restarts the log
        if are_cut:
            last = kept[-1].size if kept != snapshot.segments else snapshot.active_end
            snapshot = replace(
                snapshot,
                segments=kept,
                log_start_offset=report.log_start_offset,
                log_end_offset=report.log_end_offset,
                active_end=last,
                active_size=last,
            )
        if not may_be_tiered(snapshot, config):
            yield from check_retention(snapshot, config, log_dir.clock.now_ms(), report)


def _rehearsed(
    log_dir: LogDir,
    state: LogDirState,
    logs: Mapping[TopicPartition, Path],
    known: DirectoryCheckpoints,
    progress: Progress,
) -> Iterator[tuple[TopicPartition, RecoveryReport | Exception]]:
    """Each partition's recovery as the broker will do it, on copies of the small files."""
    for tp, directory in logs.items():
        try:
            if directory.name == tp.dir_name:
                plan = recovery_plan(log_dir, known, tp, log_dir.topic_info(tp.topic), clean=state.clean)
            else:
                offsets, config = known.of(tp), log_dir.broker_config().topic_defaults
                plan = RecoveryPlan(tp, directory, config, state.clean, offsets.recovery_point or 0, offsets.log_start)
        except PermissionError as error:
            yield tp, error
            continue
        try:
            yield tp, rehearse(plan, clock=log_dir.clock, progress=progress)
        except (StorageError, OSError) as error:
            yield tp, error
