"""The plans by which a directory's partitions are recovered, and a rehearsal of that (`recover --dry-run`)."""

from __future__ import annotations

from collections.abc import Iterable

from storage.directory.directory_checkpoints import DirectoryCheckpoints
from storage.errors import StorageError
from storage.files import dir_lock
from storage.files.disk import RealDisk
from storage.log.log_dir import LogDir
from storage.log.topic_info import TopicInfo
from storage.progress import Progress
from storage.recovery.recovery import RecoveryPlan, RecoveryReport
from storage.recovery.rehearsal import rehearse
from storage.types import TopicPartition


def recovery_plan(
    log_dir: LogDir,
    checkpoints: DirectoryCheckpoints,
    tp: TopicPartition,
    info: TopicInfo,
    *,
    clean: bool,
    gentle: bool = False,
    from_start: bool = False,
) -> RecoveryPlan:
    """The plan for a partition of this directory, whose topic is described by `info`.

    `from_start`: ignore the checkpointed recovery point. The others: see RecoveryPlan.
    """
    known = checkpoints.of(tp)
    return RecoveryPlan(
        tp,
        log_dir.path / tp.dir_name,
        info.config,
        clean,
        recovery_point=0 if from_start else known.recovery_point or 0,
        log_start_offset=known.log_start,
        tiered=info.is_tiered,
        producer_expiration_ms=log_dir.broker_config().producer_id_expiration_ms,
        gentle=gentle,
    )


def rehearse_recovery(
    log_dir: LogDir, partitions: Iterable[TopicPartition], progress: Progress
) -> tuple[list[RecoveryReport], dict[TopicPartition, Exception]]:
    """Predict what recovering these partitions as after a crash would do, without changes.

    Returns the reports, and the error of each partition that could not be recovered. LogLocked when another process
    holds the directory; OSError when its checkpoints cannot be read.
    """
    holder = dir_lock.holder(log_dir.path)
    if holder is not None:
        raise dir_lock.locked_error(log_dir.path.resolve() / dir_lock.NAME, holder)
    checkpoints = DirectoryCheckpoints(RealDisk(), log_dir.path)  # read, never written
    reports: list[RecoveryReport] = []
    errors: dict[TopicPartition, Exception] = {}
    for tp in partitions:
        try:
            plan = recovery_plan(log_dir, checkpoints, tp, log_dir.topic_info(tp.topic), clean=False)
            reports.append(rehearse(plan, clock=log_dir.clock, progress=progress))
        except (StorageError, OSError) as error:
            errors[tp] = error
    return reports, errors
