"""The check of a log directory with its segments distributed to the workers. `storage.verify` has the checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkafs.spark.jobs.tasks import packed, run_tasks
from kafkafs.spark.ranges import TASKS_PER_CORE
from storage.errors import StorageError
from storage.files import names
from storage.files.names import FileKind
from storage.files.opening import real_place
from storage.log.log_dir import LogDir
from storage.progress import NoProgress
from storage.verify.partition_audit import PartitionAudit
from storage.verify.segment_audit import verify_tier
from storage.verify.verify import verify_log_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage.tier.tier import Tier
    from storage.types import TopicPartition
    from storage.verify.findings import Finding
    from storage.verify.segment_audit import SegmentPlan, SegmentReport

_LEAST_BYTES: Final = 8 << 20  # of a task: starting a smaller one takes longer than its work


def verify(
    spark: SparkSession,
    log_dir: Path | str,
    only: Collection[TopicPartition] | None = None,
    *,
    allow_uncompiled: bool = False,
) -> list[Finding]:
    """All findings in a log directory, by path, as from `verify_log_dir`. StorageError; OSError."""
    path = real_place(Path(log_dir).absolute())
    cores = int(spark.sparkContext.defaultParallelism)

    def audit(plans: Sequence[SegmentPlan]) -> Iterator[SegmentReport]:
        sizes = [_size(plan) for plan in plans]
        # A segment is never divided, because it is checked against its own indexes.
        tasks = list(packed(plans, sizes, max(sum(sizes) // (cores * TASKS_PER_CORE), _LEAST_BYTES)))
        done = run_tasks(spark, _audit, tasks, f"verify {path.name}", allow_uncompiled=allow_uncompiled)
        return (report for reports in done for report in reports)

    return verify_log_dir(path, only, audit_segments=audit)


def verify_remote(
    spark: SparkSession,
    log_dir: LogDir,
    chosen: Sequence[TopicPartition],
    *,
    tier: Tier | None,
    allow_uncompiled: bool = False,
) -> list[Finding]:
    """`verify_tier`, with the remote segments distributed. `log_dir` has the tier `tier`, which workers open too."""
    cores = int(spark.sparkContext.defaultParallelism)
    remote = []
    for tp in chosen:
        with suppress(StorageError, OSError):
            remote += [(tp, segment.base_offset, segment.size) for segment in log_dir.log(tp).snapshot().remote]
    sizes = [size for *_, size in remote]
    divided = packed(remote, sizes, max(sum(sizes) // (cores * TASKS_PER_CORE), _LEAST_BYTES))

    def audit(task: Sequence[tuple[TopicPartition, int, int]]) -> list[Finding]:
        here = LogDir.open_read_only(path, tier=tier)
        return verify_tier(here, {tp for tp, *_ in task}, NoProgress(), only={one[:2] for one in task})

    path = log_dir.path
    tasks = run_tasks(spark, audit, list(divided), f"verify the tier of {path.name}", allow_uncompiled=allow_uncompiled)
    return sorted((one for found in tasks for one in found), key=lambda one: str(one.path))


def _audit(plans: Sequence[SegmentPlan]) -> list[SegmentReport]:
    """Checks segments, in a worker."""
    return [PartitionAudit.audit(plan, NoProgress()) for plan in plans]


def _size(plan: SegmentPlan) -> int:
    try:
        return (plan.directory / names.segment_file(plan.base_offset, FileKind.LOG)).lstat().st_size
    except OSError:
        return 0
