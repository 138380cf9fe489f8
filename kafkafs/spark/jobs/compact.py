"""Compaction of a partition with more keys than one offset map holds: Spark's workers copy, the owner swaps.

1. Tasks scan stretches of the log: hashes of keys with their offsets, and what must be known of transactions.
2. A shuffle brings equal hashes together: this finds the latest record of each key.
3. A second shuffle brings the latest records' offsets to the tasks that copy the groups of segments.
4. The owner, which is the driver, puts the copies in place.

What a worker does, and what a crash leaves, is described in `storage.compaction.divided_pass` and `key_scan`. No task
holds more keys than a bucket may have, and none holds values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.spark.jobs.tasks import TO_DRIVER, gather, packed, scatter
from kafkafs.spark.ranges import LEAST_TASK_BYTES, TASKS_PER_CORE, LogRange, plan_by_size
from storage.compaction.cleaner import compact_divided, preview_divided
from storage.compaction.divided_pass import KeyChunk, KeyScan, Stretch, latest_offsets, spread
from storage.errors import StorageError
from storage.files.disk import RealDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage.compaction.batch_filter import Passed
    from storage.compaction.compaction import CompactionResult
    from storage.compaction.divided_pass import Copied, DividedPass, GroupCopy, RunParts
    from storage.directory.owned_dir import OwnedDir
    from storage.files.disk_protocol import Disk
    from storage.latest.offset_map import Int64s, Secret
    from storage.log.log_dir import LogDir
    from storage.types import TopicPartition

KEYS_PER_BUCKET: Final = 2_000_000  # about 150 MB in the task that holds them
KEYS_PER_SCAN: Final = 400_000  # the more, the less is shuffled of keys that are updated often
_TASK_BYTES: Final = 256 << 20
_LEAST_KEYS: Final = 100_000  # of a bucket: with fewer, starting its task takes longer than its work


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """How the work is divided: keys that a task may hold, before and after the first shuffle, and bytes of log for a
    task; a group of segments is never divided."""

    keys_per_scan: int = KEYS_PER_SCAN
    keys_per_bucket: int = KEYS_PER_BUCKET
    task_bytes: int = _TASK_BYTES
    allow_uncompiled: bool = False


_DEFAULT: Final = CompactOptions()


def compact(
    spark: SparkSession,
    owned: OwnedDir,
    tp: TopicPartition,
    options: CompactOptions = _DEFAULT,
    *,
    disk: Disk | None = None,
) -> CompactionResult:
    """One pass over a partition, up to its first uncleanable offset, and the cleaner's checkpoint after it: what
    `storage.compaction.cleaner.compact_partition` does when its map holds all keys.

    The workers must see the directory under the same path, and use `disk`. The caller unlinks the replaced files
    (`files`). If anything fails, the log stays as it was. StorageError, OSError, UncompiledKernels.
    """
    return compact_divided(owned, tp, _on_workers(spark, options, RealDisk() if disk is None else disk))


def preview(
    spark: SparkSession, log_dir: LogDir, tp: TopicPartition, options: CompactOptions = _DEFAULT
) -> CompactionResult:
    """What `compact` would do, without changing anything. Errors as there."""
    return preview_divided(log_dir, tp, _on_workers(spark, options, RealDisk()))


def _on_workers(spark: SparkSession, options: CompactOptions, disk: Disk) -> RunParts:
    """A function that has Spark's workers do a pass."""

    def run(work: DividedPass) -> list[Copied]:
        name, slow = str(work.pass_input.snapshot.tp), options.allow_uncompiled
        cores = int(spark.sparkContext.defaultParallelism)
        buckets = bucket_count(work.records(), cores, options.keys_per_bucket)
        scan = partial(_scan, secret=work.secret, buckets=buckets, most_keys=options.keys_per_scan)
        stretches = _stretches(work, cores, options)
        keys, scans = scatter(spark, scan, stretches, buckets, f"keys of {name}", allow_uncompiled=slow)
        tasks = _copy_tasks(work.copies((scan.start_offset, scan.passed) for scan in scans), cores, options)
        find_latest = partial(_find_latest, secret=work.secret, starts=[task[0].start_offset for task in tasks])
        copy = partial(_copy, disk=disk)
        copies = gather(spark, keys, find_latest, copy, tasks, f"compact {name}", allow_uncompiled=slow)
        _check_nothing_lost(scans, copies)
        return [copied for one in copies for copied in one.copied]

    return run


class _Scanned(NamedTuple):
    """What the driver learns of a stretch. `sent`: the number of offsets that its keys were sent with."""

    start_offset: int
    passed: Passed
    sent: int


class Latest(NamedTuple):
    """Offsets of the latest records, from one bucket for one task, or all that a task has received. The message for the
    first task also counts the offsets that the bucket `received` from all stretches and `sent` to all tasks; the others
    have 0."""

    offsets: Int64s
    received: int
    sent: int

    @staticmethod
    def divided(latest: Int64s, received: int, starts: Sequence[int]) -> Iterator[tuple[int, Latest]]:
        """Those of a bucket, ascending, for each task that begins at one of `starts`."""
        by_task = np.split(latest, latest.searchsorted(np.array(starts[1:], np.int64)))
        yield 0, Latest(by_task[0], received, len(latest))
        for number, offsets in enumerate(by_task[1:], 1):
            if len(offsets):
                yield number, Latest(offsets, 0, 0)

    @staticmethod
    def together(found: Iterable[Latest]) -> Latest:
        """Those of all buckets, ascending."""
        parts = list(found)
        offsets = np.sort(np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]))
        return Latest(offsets, sum(part.received for part in parts), sum(part.sent for part in parts))


class _CopiedTask(NamedTuple):
    """What a copying task did. `offsets`: how many it received; `received`, `sent`: the sums of its `Latest`."""

    copied: list[Copied]
    offsets: int
    received: int
    sent: int


def _scan(
    stretches: Iterable[Stretch], *, secret: Secret, buckets: int, most_keys: int
) -> Iterator[tuple[int, KeyChunk | _Scanned]]:
    """Step 1, in a worker: chunks of keys for the buckets, and a `_Scanned` of each stretch for the driver."""
    for stretch in stretches:
        keys, sent = KeyScan(stretch, secret, most_keys=most_keys), 0
        for chunk in keys.chunks():
            sent += len(chunk.offsets)
            yield from spread(chunk, buckets)
        yield TO_DRIVER, _Scanned(stretch.start_offset, keys.passed(), sent)


def _find_latest(chunks: Iterator[KeyChunk], *, secret: Secret, starts: Sequence[int]) -> Iterator[tuple[int, Latest]]:
    """Step 2, in a worker that has all keys of a bucket: the offsets that stay, for each task that begins at one of
    `starts`."""
    held = list(chunks)
    return Latest.divided(latest_offsets(held, secret), sum(len(chunk.offsets) for chunk in held), starts)


def _copy(task: Sequence[GroupCopy], found: Iterator[Latest], *, disk: Disk) -> Iterator[_CopiedTask]:
    """Step 3, in a worker: copies of groups with the records that stay."""
    latest, received, sent = Latest.together(found)
    copied = []
    for group in task:
        first, last = latest.searchsorted((group.start_offset, group.part.end_offset)).tolist()
        copied.append(group.run(latest[first:last], disk))
    yield _CopiedTask(copied, len(latest), received, sent)


def _check_nothing_lost(scans: Iterable[_Scanned], copies: Sequence[_CopiedTask]) -> None:
    """StorageError: an offset that was lost on the way would be a lost message."""
    sent = sum(one.sent for one in scans), sum(one.sent for one in copies)
    received = sum(one.received for one in copies), sum(one.offsets for one in copies)
    if sent != received:
        raise StorageError("a shuffle lost offsets, so nothing was compacted", expected=sent, found=received)


def bucket_count(records: int, cores: int, keys_per_bucket: int) -> int:
    """How many parts the keys are divided into by their hashes."""
    return max(-(-records // keys_per_bucket), min(cores, -(-records // _LEAST_KEYS)), 1)


def _stretches(work: DividedPass, cores: int, options: CompactOptions) -> list[list[Stretch]]:
    """What each task scans."""
    ranges = [LogRange(work.pass_input.snapshot, group.start, group.end) for group in work.groups]
    tasks = plan_by_size(ranges, cores, options.task_bytes)
    return [[work.stretch(split.start_offset, split.end_offset) for split in splits] for splits in tasks]


def _copy_tasks(copies: Sequence[GroupCopy], cores: int, options: CompactOptions) -> list[list[GroupCopy]]:
    """What each task copies."""
    sizes = [copy.size for copy in copies]
    target = max(sum(sizes) // (cores * TASKS_PER_CORE), LEAST_TASK_BYTES)
    return list(packed(copies, sizes, min(target, options.task_bytes)))
