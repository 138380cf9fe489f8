"""Statistics of logs by topic and hour: messages, bytes, sizes, keys, compression. The workers scan the logs once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.arrow.split_reader import Split, read_split
from kafkafs.spark.jobs.tasks import reduce_tasks
from kafkafs.spark.tasks import LogRange, plan
from storage.files.opening import real_place
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.decoder import Decoder
from storage.format.hashing import murmur2_columns
from storage.log.counting import visible_end
from storage.log.log_dir import LogDir
from storage.types import NO_TIMESTAMP, Isolation, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from storage.format.block import BatchDamage, RecordBlock
    from storage.tier.tier import Tier

    UInt32s = NDArray[np.uint32]
    Int64s = NDArray[np.int64]


# Summaries that tasks compute separately and that can be merged: distinct keys, and the distribution of sizes. Pure.
#
# Distinct keys: the smallest hashes seen (k minimum values; Bar-Yossef et al. 2002). Up to K keys the count is exact,
# except for equal hashes of different keys (32 bits: the chance for a pair is one in 4 billion); beyond that its
# standard error is 1 / sqrt(K - 2), 2.2 %. Sizes: eight buckets for each doubling, so a quantile is accurate to 9 %.

K: Final = 2048
_HASHES: Final = 2**32

_BUCKETS_PER_DOUBLING: Final = 8
BUCKETS: Final = 1 + 31 * _BUCKETS_PER_DOUBLING + 1  # 0; 1 to 2^31


def least_hashes(*parts: UInt32s) -> UInt32s:
    """The K smallest distinct hashes of all parts, ascending."""
    return np.unique(np.concatenate(parts))[:K]


def distinct(hashes: UInt32s) -> int:
    """An estimate of the number of distinct keys from their smallest hashes."""
    seen: float = len(hashes)
    if len(hashes) == K:
        seen = (K - 1) / ((int(hashes[-1]) + 1) / _HASHES)
    # Corrects for different keys with equal hashes (balls thrown into _HASHES urns).
    return round(-_HASHES * math.log1p(-min(seen, _HASHES - 1) / _HASHES))


def size_counts(sizes: Int64s) -> Int64s:
    """The number of sizes (bytes, from 0 to 2^31) in each of BUCKETS buckets."""
    with np.errstate(divide="ignore"):
        buckets = np.floor(np.log2(sizes) * _BUCKETS_PER_DOUBLING) + 1
    return np.bincount(np.maximum(buckets, 0).astype(np.int64), minlength=BUCKETS)


def quantile(counts: Int64s, share: float) -> int:
    """The size that `share` (0 to 1) of the sizes do not exceed: the middle of its bucket."""
    bucket = int(np.searchsorted(np.cumsum(counts), max(math.ceil(share * int(counts.sum())), 1)))
    return 0 if bucket == 0 else round(2 ** ((bucket - 0.5) / _BUCKETS_PER_DOUBLING))


HOUR_MS: Final = 3_600_000
# The timestamps, in milliseconds, whose year has four digits.
CALENDAR_MS: Final = range(-62_135_596_800_000, 253_402_300_800_000)
_NO_HOUR: Final = -(2**62)
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class HourStats:
    """Messages of a topic in one hour (UTC).

    `hour_ms`: its beginning, None for messages without a timestamp. `key_bytes`, `value_bytes`: of the messages
    themselves; `log_bytes`: their share of the log, in which a batch's overhead is divided among its messages;
    `raw_bytes`: the same without compression. Sizes are of key and value together; quantiles are accurate to 9 %.
    `distinct_keys`: the number of different keys in all partitions, accurate to about 2 %. `tombstones`: messages
    whose value is null.
    """

    topic: str
    hour_ms: int | None
    messages: int
    key_bytes: int
    value_bytes: int
    log_bytes: int
    raw_bytes: int
    least_size: int
    median_size: int
    p90_size: int
    p99_size: int
    greatest_size: int
    without_key: int
    distinct_keys: int
    tombstones: int

    @property
    def compression_ratio(self) -> float:
        """The ratio of bytes without compression to bytes with it; 1 if nothing is compressed."""
        return self.raw_bytes / self.log_bytes if self.log_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Stats:
    """All hours, by topic and time; `damaged`: the number of damaged places, which are not counted."""

    hours: tuple[HourStats, ...]
    damaged: int


class _Part(NamedTuple):
    """Partial counts that can be merged. `sums`: in the order in which `_hour` unpacks them."""

    sums: NDArray[np.float64]
    least_size: int
    greatest_size: int
    sizes: NDArray[np.int64]
    hashes: NDArray[np.uint32]


_Key = tuple[str, int]
_DAMAGED: Final = ("", 0)


@dataclass(frozen=True, slots=True)
class _StatsTask:
    log_dir: Path
    splits: tuple[Split, ...]
    isolation: Isolation
    keep_damage: bool
    tier: Tier | None = None


def stats(
    spark: SparkSession,
    log_dir: Path | str,
    partitions: Iterable[TopicPartition],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    keep_damage: bool = False,
    allow_uncompiled: bool = False,
    tier: Tier | None = None,
) -> Stats:
    """Statistics of the partitions as they are now. StorageError: damage, unless `keep_damage`; OSError."""
    source = real_place(Path(log_dir).absolute())
    logs = LogDir.open_read_only(source, tier=tier)
    ranges = []
    for tp in sorted(partitions):
        snapshot = logs.log(tp).snapshot()
        ranges.append(LogRange(snapshot, snapshot.log_start_offset, visible_end(snapshot, isolation)))
    tasks = plan(ranges, int(spark.sparkContext.defaultParallelism))
    parts = reduce_tasks(
        spark,
        _count,
        _added,
        [_StatsTask(source, splits, isolation, keep_damage, tier) for splits in tasks],
        f"stats of {source.name}",
        allow_uncompiled=allow_uncompiled,
    )
    damaged = parts.pop(_DAMAGED, None)
    hours = [_hour(topic, hour, part) for (topic, hour), part in sorted(parts.items(), key=lambda item: item[0])]
    return Stats(tuple(hours), int(damaged.sums[0]) if damaged is not None else 0)


def _count(task: _StatsTask) -> dict[_Key, _Part]:
    """The partial counts of a task's splits, in a worker."""
    logs = LogDir.open_read_only(task.log_dir, tier=task.tier)
    decoder = Decoder()
    parts: dict[_Key, _Part] = {}

    def count(key: _Key, part: _Part) -> None:
        before = parts.get(key)
        parts[key] = part if before is None else _added(before, part)

    def damage(_tp: TopicPartition, found: BatchDamage) -> None:
        if not task.keep_damage:
            raise found.error
        count(_DAMAGED, _part(np.ones((7, 1)), np.zeros(1, np.int64), np.empty(0, np.uint32)))

    for split in task.splits:
        blocks = read_split(logs, split, decoder, on_loss=_gone, on_damage=damage, isolation=task.isolation)
        for block in blocks:
            for hour, part in _parts(block):
                count((split.tp.topic, hour), part)
    return parts


def _gone(_tp: TopicPartition, _offsets: OffsetRange, _why: str) -> None:
    """Ignores messages that retention removed after planning: they are no longer in the log."""


def _parts(block: RecordBlock) -> Iterator[tuple[int, _Part]]:
    """The block's records by hour."""
    hours = np.where(block.timestamp == NO_TIMESTAMP, _NO_HOUR, block.timestamp // HOUR_MS)
    hashes = np.empty(len(block), np.int32)
    murmur2_columns(block.buffer, block.key_start, block.key_length, hashes)
    log_bytes, raw_bytes = _shares(block)
    keys, values = np.maximum(block.key_length, 0), np.maximum(block.value_length, 0)
    columns = np.stack(
        [np.ones(len(block)), keys, values, log_bytes, raw_bytes, block.key_length < 0, block.value_length < 0]
    )
    sizes = keys + values
    first = int(hours[0])
    if (hours == first).all():
        yield first, _part(columns, sizes, hashes.view(np.uint32)[block.key_length >= 0])
        return
    for hour in np.unique(hours).tolist():
        rows = hours == hour
        keyed = hashes.view(np.uint32)[rows & (block.key_length >= 0)]
        yield hour, _part(columns[:, rows], sizes[rows], keyed)


def _part(columns: NDArray[np.float64], sizes: NDArray[np.int64], hashes: NDArray[np.uint32]) -> _Part:
    return _Part(columns.sum(axis=1), int(sizes.min()), int(sizes.max()), size_counts(sizes), least_hashes(hashes))


def _shares(block: RecordBlock) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each record, its share of its batch's bytes in the log, and of the batch's bytes without compression."""
    batches, slots, counts = np.unique(block.batch, return_inverse=True, return_counts=True)
    table = block.table
    stored = table.size[batches].astype(np.float64)
    # If a range divides a batch, only some of its records are here.
    per_record = stored / np.maximum(table.count[batches], counts)
    log_bytes = per_record[slots]
    if not (table.codec[batches] != 0).any():
        return log_bytes, log_bytes
    # With compression, the block's buffer holds what its batches decompress to, without their headers.
    total = len(block.buffer) + BATCH_HEADER_SIZE * len(batches)
    sizes = np.maximum(block.key_length, 0) + np.maximum(block.value_length, 0) + 1.0
    return log_bytes, sizes * (total / sizes.sum())


def _added(one: _Part, other: _Part) -> _Part:
    return _Part(
        one.sums + other.sums,
        min(one.least_size, other.least_size),
        max(one.greatest_size, other.greatest_size),
        one.sizes + other.sizes,
        least_hashes(one.hashes, other.hashes),
    )


def _hour(topic: str, hour: int, part: _Part) -> HourStats:
    messages, key_bytes, value_bytes, log_bytes, raw_bytes, without_key, tombstones = (round(x) for x in part.sums)
    median, p90, p99 = (
        min(max(quantile(part.sizes, share), part.least_size), part.greatest_size) for share in _QUANTILES
    )
    return HourStats(
        topic=topic,
        hour_ms=None if hour == _NO_HOUR else hour * HOUR_MS,
        messages=messages,
        key_bytes=key_bytes,
        value_bytes=value_bytes,
        log_bytes=log_bytes,
        raw_bytes=raw_bytes,
        least_size=part.least_size,
        median_size=median,
        p90_size=p90,
        p99_size=p99,
        greatest_size=part.greatest_size,
        without_key=without_key,
        distinct_keys=distinct(part.hashes),
        tombstones=tombstones,
    )
