"""Compaction of a partition that has more keys than one offset map takes, by the workers; the owner swaps.

1. each task reads stretches of the log: hashes of keys with their offsets, and what is to know of transactions
2. a shuffle brings equal hashes together: which records are the latest of their keys
3. a second shuffle brings their offsets to the tasks that copy the groups of segments
4. the owner, which is the driver, puts the copies in place

What a worker does and what a crash leaves is `storage.compaction.divided_pass`'s and `key_scan`'s. No task holds more
keys than `places` were made for, and none holds values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kafkafs.spark.jobs.tasks import TO_DRIVER, gather, packed, scatter
from kafkafs.spark.planning import LEAST_TASK_BYTES, TASKS_PER_CORE, LogRange, plan
from storage.compaction.directory_compaction import compact_divided, preview_divided
from storage.compaction.key_scan import KeyChunk, KeyScan, Stretch, latest_offsets, spread
from storage.errors import StorageError
from storage.files.disk import RealDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage.compaction.cleaned_transactions import Passed
    from storage.compaction.compaction import CompactionResult
    from storage.compaction.divided_pass import Copied, DividedPass, GroupCopy, RunParts
    from storage.compaction.offset_map import Int64s
    from storage.directory.owned_dir import OwnedDir
    from storage.files.disk_protocol import Disk
    from storage.log.log_dir import LogDir
    from storage.types import TopicPartition

_KEYS_PER_PLACE: Final = 2_000_000  # about 150 MB in the task that has them
_KEYS_PER_SCAN: Final = 400_000  # the more, the less of a key that is often updated is shuffled
_TASK_BYTES: Final = 256 << 20
_LEAST_KEYS: Final = 100_000  # of a place: below, a task takes longer


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """How the work is cut: keys that a task may hold in each half of the shuffle, and bytes of log for a task; a group
    of segments is not cut."""

    keys_per_scan: int = _KEYS_PER_SCAN
    keys_per_place: int = _KEYS_PER_PLACE
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
    `storage.compaction.directory_compaction.compact_partition` does when its map takes all keys.

    The workers must see the directory under the same name, and `disk` goes to them. What was replaced is the caller's
    to unlink (`files`). Whatever fails, the log is as it was. StorageError, OSError, UncompiledKernels.
    """
    return compact_divided(owned, tp, _on_workers(spark, options, RealDisk() if disk is None else disk))


def preview(
    spark: SparkSession, log_dir: LogDir, tp: TopicPartition, options: CompactOptions = _DEFAULT
) -> CompactionResult:
    """What `compact` would do, changing nothing. Errors as there."""
    return preview_divided(log_dir, tp, _on_workers(spark, options, RealDisk()))


def _on_workers(spark: SparkSession, options: CompactOptions, disk: Disk) -> RunParts:
    """Has a pass done by Spark's workers."""

    def run_parts(work: DividedPass) -> list[Copied]:
        name = str(work.pass_input.snapshot.tp)
        cores = int(spark.sparkContext.defaultParallelism)
        secret, places = work.secret, _places(work.records(), cores, options)

        def scan(stretches: Iterable[Stretch]) -> Iterator[tuple[int, Any]]:
            for stretch in stretches:
                keys, given = KeyScan(stretch, secret, most_keys=options.keys_per_scan), 0
                for chunk in keys.chunks():
                    given += len(chunk.offsets)
                    yield from spread(chunk, places)
                yield TO_DRIVER, _Scanned(stretch.start_offset, keys.passed(), given)

        stretches = _stretches(work, cores, options)
        slow = options.allow_uncompiled
        found, scanned = scatter(spark, scan, stretches, places, f"keys of {name}", allow_uncompiled=slow)
        tasks = _tasks(work.copies((one.start_offset, one.passed) for one in scanned), cores, options)
        starts = np.array([task[0].start_offset for task in tasks], np.int64)

        def choose(chunks: Iterator[KeyChunk]) -> Iterator[tuple[int, _Chosen]]:
            held = list(chunks)
            latest = latest_offsets(held, secret)
            taken = sum(len(chunk.offsets) for chunk in held)
            for number, offsets in enumerate(np.split(latest, latest.searchsorted(starts[1:]))):
                if number == 0 or len(offsets):
                    yield number, _Chosen(offsets, *((taken, len(latest)) if number == 0 else (0, 0)))

        def copy(task: Sequence[GroupCopy], chosen: Iterator[_Chosen]) -> Iterator[_Made]:
            parts = list(chosen)
            latest = np.sort(np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]))
            copied = []
            for group in task:
                first, last = latest.searchsorted((group.start_offset, group.part.end_offset)).tolist()
                copied.append(group.run(latest[first:last], disk))
            yield _Made(copied, len(latest), sum(part.taken for part in parts), sum(part.given for part in parts))

        made = gather(spark, found, choose, copy, tasks, f"compact {name}", allow_uncompiled=slow)
        _check(scanned, made)
        return [copied for one in made for copied in one.copied]

    return run_parts


class _Scanned(NamedTuple):
    """What is to know of a stretch. `given`: how many offsets its keys came with."""

    start_offset: int
    passed: Passed
    given: int


class _Chosen(NamedTuple):
    """Offsets that are to stay, from one place to one task; with those for the first task, how many the place has
    `taken` from the stretches, and `given` to all tasks."""

    offsets: Int64s
    taken: int
    given: int


class _Made(NamedTuple):
    """What a task has made. `latest`: how many offsets it had; `taken`, `given`: what places have told it."""

    copied: list[Copied]
    latest: int
    taken: int
    given: int


def _check(scanned: Iterable[_Scanned], made: Sequence[_Made]) -> None:
    """An offset that got lost on the way would be a message that gets lost."""
    sent = sum(one.given for one in scanned), sum(one.given for one in made)
    arrived = sum(one.taken for one in made), sum(one.latest for one in made)
    if sent != arrived:
        raise StorageError("not all that was shuffled has arrived", expected=sent, found=arrived)


def _places(records: int, cores: int, options: CompactOptions) -> int:
    """Into how many parts the keys are shuffled."""
    return max(-(-records // options.keys_per_place), min(cores, -(-records // _LEAST_KEYS)), 1)


def _stretches(work: DividedPass, cores: int, options: CompactOptions) -> list[list[Stretch]]:
    """What each task reads for its keys."""
    ranges = [LogRange(work.pass_input.snapshot, group.start, group.end) for group in work.groups]
    tasks = plan(ranges, cores)
    total = sum(split.size_bytes for splits in tasks for split in splits)
    least = -(-total // options.task_bytes)
    if least > len(tasks):
        tasks = plan(ranges, cores, least_tasks=least)
    return [[work.stretch(split.start_offset, split.end_offset) for split in splits] for splits in tasks]


def _tasks(copies: Sequence[GroupCopy], cores: int, options: CompactOptions) -> list[list[GroupCopy]]:
    """What each task copies."""
    sizes = [copy.size for copy in copies]
    target = max(sum(sizes) // (cores * TASKS_PER_CORE), LEAST_TASK_BYTES)
    return list(packed(copies, sizes, min(target, options.task_bytes)))
