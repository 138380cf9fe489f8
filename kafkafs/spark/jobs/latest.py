"""The last message of every key as a Parquet table, for any number of keys: what `latest.jsonl` shows, at scale.

For each partition:
1. Tasks read stretches of the log: hashes of keys with the offsets of their last messages.
2. A shuffle brings equal hashes together: this finds the last message of each key.
3. A second shuffle brings the offsets to the tasks that read those messages and write them.

No task holds more keys than a bucket may have, and of values none but those that it is writing. The tasks of a data
source cannot exchange anything, so this is a job and no option of the source. The table is of one moment, so it is made
as a whole, next to its place, and gets its name at the end; what a killed run leaves begins with a dot and ends with
`.unfinished`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import numpy as np

from kafkafs.arrow.split_reader import Split, read_split
from kafkafs.spark.jobs.compact import KEYS_PER_BUCKET, KEYS_PER_SCAN, Latest, bucket_count
from kafkafs.spark.jobs.export_layout import table_file
from kafkafs.spark.jobs.parquet_files import DayFiles
from kafkafs.spark.jobs.tasks import TO_DRIVER, gather, scatter
from kafkafs.spark.ranges import LogRange, plan_by_size
from storage.compaction.divided_pass import KeyChunk, spread
from storage.errors import NotPermitted, OffsetOutOfRange, SegmentGone, StorageError
from storage.files.disk import RealDisk
from storage.files.opening import real_place
from storage.format.decoder import Decoder
from storage.latest.latest_records import rows_among, tombstones_marked
from storage.latest.offset_map import OffsetMap, hash_keys, new_secret
from storage.log.counting import visible_end
from storage.log.log_dir import LogDir
from storage.log.places import check_destination
from storage.types import Isolation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkafs.spark.jobs.commits import ExportFile
    from storage.files.disk_protocol import Disk
    from storage.format.block import BatchDamage, RecordBlock
    from storage.latest.offset_map import Int64s, Secret
    from storage.tier.tier import Tier
    from storage.types import OffsetRange, TopicPartition

_TASK_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class LatestOptions:
    """What is written, and how the work is divided: see ExportOptions and CompactOptions."""

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    columns: tuple[str, ...] = ()
    compression: str = "snappy"
    allow_uncompiled: bool = False
    tier: Tier | None = None
    keys_per_scan: int = KEYS_PER_SCAN
    keys_per_bucket: int = KEYS_PER_BUCKET
    task_bytes: int = _TASK_BYTES


@dataclass(frozen=True, slots=True)
class LatestTable:
    """The result of a run. `ends`: for each partition the offset up to which (excluded) the table shows its log.
    `undated`: messages whose timestamp microseconds cannot express, so that the column has null."""

    files: int
    messages: int
    size_bytes: int
    undated: int
    ends: dict[TopicPartition, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Work:
    """The parameters of the tasks of a partition."""

    log_dir: Path
    staging: Path
    secret: Secret
    options: LatestOptions
    disk: Disk


class _Written(NamedTuple):
    """What a task has written; `offsets`: how many it had received, `sent`: how many buckets had sent, to all tasks."""

    files: list[ExportFile]
    undated: int
    offsets: int
    received: int
    sent: int


def latest(
    spark: SparkSession,
    log_dir: Path | str,
    directory: Path | str,
    partitions: Iterable[TopicPartition],
    options: LatestOptions,
    *,
    disk: Disk | None = None,
) -> LatestTable:
    """Writes the last message of every key of each partition, without tombstones and messages without a key, to Parquet
    files in `directory`, which must not exist yet, or be empty.

    The driver and the workers must see both directories under the same paths; both use `disk`. StorageError: damage,
    which may hide the last message of any key; messages that are removed before they are read. OSError. Then there is
    no `directory`.
    """
    began = time.monotonic()
    source, target = real_place(Path(log_dir).absolute()), real_place(Path(directory).absolute())
    _check_target(source, target)
    disk = RealDisk() if disk is None else disk
    staging = target.parent / f".{target.name}.{uuid4().hex}.unfinished"
    disk.mkdir(staging)
    try:
        logs = LogDir.open_read_only(source, tier=options.tier)
        ends: dict[TopicPartition, int] = {}
        written: list[_Written] = []
        for tp in sorted(partitions):
            snapshot = logs.log(tp).snapshot()
            ends[tp] = visible_end(snapshot, options.isolation)
            work = _Work(source, staging, new_secret(), options, disk)
            written += _partition(spark, work, LogRange(snapshot, snapshot.log_start_offset, ends[tp]))
        files = [file for one in written for file in one.files]
        _place(disk, staging, target, files)
    except BaseException:
        _remove(staging)
        raise
    rows, size_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    undated = sum(one.undated for one in written)
    return LatestTable(len(files), rows, size_bytes, undated, ends, time.monotonic() - began)


def _partition(spark: SparkSession, work: _Work, log_range: LogRange) -> list[_Written]:
    """The files of one partition."""
    options, tp = work.options, log_range.snapshot.tp
    cores = int(spark.sparkContext.defaultParallelism)
    tasks = plan_by_size([log_range], cores, options.task_bytes)
    if not tasks:
        return []
    buckets = bucket_count(log_range.end_offset - log_range.start_offset, cores, options.keys_per_bucket)
    scan = partial(_scan, work=work, buckets=buckets)
    slow = options.allow_uncompiled
    keys, sent = scatter(spark, scan, tasks, buckets, f"keys of {tp}", allow_uncompiled=slow)
    find_latest = partial(_find_latest, secret=work.secret, starts=[task[0].start_offset for task in tasks])
    write = partial(_write, work=work)
    written = gather(spark, keys, find_latest, write, tasks, f"latest of {tp}", allow_uncompiled=slow)
    expected = sum(sent), sum(one.sent for one in written)
    found = sum(one.received for one in written), sum(one.offsets for one in written)
    if expected != found:
        # An offset that was lost on the way would be a lost message.
        raise StorageError("a shuffle lost offsets, so nothing was written", expected=expected, found=found)
    return written


def _scan(splits: Sequence[Split], *, work: _Work, buckets: int) -> Iterator[tuple[int, KeyChunk | int]]:
    """Step 1, in a worker: chunks of keys for the buckets, and for the driver how many offsets were sent."""
    sent = 0
    for chunk in _chunks(_blocks(work, splits), work.secret, work.options.keys_per_scan):
        sent += len(chunk.offsets)
        yield from spread(chunk, buckets)
    yield TO_DRIVER, sent


def _chunks(blocks: Iterable[RecordBlock], secret: Secret, most_keys: int) -> Iterator[KeyChunk]:
    """The keys of some blocks with the offsets of their last messages, `~offset` for a tombstone; in the order of the
    log, so that of a key that is in several chunks the last chunk has the last message."""
    known = OffsetMap.for_keys(most_keys, secret)
    for block in blocks:
        hashes = np.empty((len(block), 2), np.uint64)
        hash_keys(block, secret, hashes)
        rows = np.flatnonzero(block.key_length >= 0)
        hashes, offsets = hashes[rows], tombstones_marked(block)[rows]
        done = 0
        while (done := done + known.put_rows(hashes[done:], offsets[done:])) < len(offsets):
            yield KeyChunk(True, *known.drain())
    if len(known):
        yield KeyChunk(True, *known.drain())


def _find_latest(chunks: Iterator[KeyChunk], *, secret: Secret, starts: Sequence[int]) -> Iterator[tuple[int, Latest]]:
    """Step 2, in a worker that has all keys of a bucket: the offsets of last messages, for each task that begins at one
    of `starts`."""
    held = sorted(chunks, key=_first_offset)  # of one scan they do not overlap
    known = OffsetMap.for_keys(sum(len(chunk.offsets) for chunk in held), secret)
    for chunk in held:
        known.put_hashed(chunk.hashes, chunk.offsets)
    found = known.drain()[1]
    return Latest.divided(np.sort(found[found >= 0]), sum(len(chunk.offsets) for chunk in held), starts)


def _first_offset(chunk: KeyChunk) -> int:
    """Any of a chunk's offsets shows where in the log it is."""
    offset = int(chunk.offsets[0])
    return offset if offset >= 0 else ~offset


def _write(splits: Sequence[Split], found: Iterator[Latest], *, work: _Work) -> Iterator[_Written]:
    """Step 3, in a worker: the files with the last messages that are in these splits."""
    offsets, received, sent = Latest.together(found)
    options, tp = work.options, splits[0].tp
    files = DayFiles(work.disk, work.staging, tp, options.columns, options.compression, name=table_file)
    missing = len(offsets)
    try:
        for block in _blocks(work, _shrunk(splits, offsets)):
            chosen = block.select(rows_among(block.offset, offsets))
            missing -= len(chosen)
            files.add(chosen)
        if missing:
            raise SegmentGone(f"{missing} of the last messages of {tp} were removed before they were read")
        written = files.close()
    except BaseException:
        files.abandon()
        raise
    yield _Written(written, files.beyond, len(offsets), received, sent)


def _shrunk(splits: Sequence[Split], offsets: Int64s) -> Iterator[Split]:
    """The parts of the splits from the first to the last of the offsets in each."""
    for split in splits:
        first, last = offsets.searchsorted((split.start_offset, split.end_offset)).tolist()
        if first < last:
            yield Split(split.tp, int(offsets[first]), int(offsets[last - 1]) + 1, split.size_bytes, split.identity)


def _blocks(work: _Work, splits: Iterable[Split]) -> Iterator[RecordBlock]:
    logs, decoder = LogDir.open_read_only(work.log_dir, tier=work.options.tier), Decoder()
    for split in splits:
        yield from read_split(
            logs, split, decoder, on_loss=_raise_loss, on_damage=_raise_damage, isolation=work.options.isolation
        )


def _raise_loss(tp: TopicPartition, offsets: OffsetRange, why: str) -> None:
    raise OffsetOutOfRange(
        f"messages of {tp} were removed before they were read",
        offset=offsets.start,
        found=f"offsets {offsets.start} to {offsets.end - 1} missing: {why}",
        advice="Run it again",
    )


def _raise_damage(_tp: TopicPartition, damage: BatchDamage) -> None:
    raise damage.error


def _check_target(source: Path, target: Path) -> None:
    check_destination(target, source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotPermitted(
            "the table's directory is not empty: a table is made as a whole and never changed",
            path=target,
            advice="Choose another directory, or remove this one",
        )


def _place(disk: Disk, staging: Path, target: Path, files: Iterable[ExportFile]) -> None:
    """Makes the table of what the tasks have written.

    1. what attempts of tasks that Spark gave up have left is removed; the files get their names, still within `staging`
    2. its directories are synced                      → a crash up to here: no table
    3. it gets its name, and its parent is synced      → the table, whole
    """
    wanted = {file.staged: staging / file.path for file in files}
    for path in list(staging.iterdir()):
        if path.name not in wanted:
            disk.unlink(path)
    for parent in sorted({path.parent for path in wanted.values()}):
        disk.mkdir(parent)
    for staged, path in wanted.items():
        disk.rename(staging / staged, path)
    for parent in sorted({path.parent for path in wanted.values()}):
        disk.sync_dir(parent)
    disk.sync_dir(staging)
    disk.rename(staging, target)
    disk.sync_dir(target.parent)


def _remove(staging: Path) -> None:
    """Removes what a failed run has written; what a task that Spark gave up still writes stays."""
    for path in sorted(staging.rglob("*"), reverse=True):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
    with suppress(OSError):
        staging.rmdir()
