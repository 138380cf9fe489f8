"""Compaction of a partition in its directory: who may be compacted, from where on, and what is written down.

In a broker's directory only topics are touched whose cleanup.policy was found there or given by a person (product.md,
section 7). Of a partition with several replicas nothing at or above the high watermark that the broker wrote down is
looked at. Source: LogCleanerManager (grabFilthiestCompactedLog, doneCleaning).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.clock import Clock
from storage.errors import NotPermitted
from storage.files import checkpoints, names
from storage.files.producer_state import ProducerEntry
from storage.log import guest_rules
from storage.log.log_dir import LogDir
from storage.log.owned_dir import OwnedDir
from storage.log.topic_info import TopicInfo
from storage.types import TopicPartition
from storage.upkeep.compaction import CompactionResult, DirtyRange, Limits, Pace, Pass, dirty_range


def dirty_range_of(owned: OwnedDir, tp: TopicPartition) -> DirtyRange:
    """What of a partition may be compacted now. A checkpoint outside of the log is set right, as a broker does.

    Errors as `OwnedDir.log`.
    """
    log, info = owned.log(tp), owned.topic_info(tp.topic)
    dirty = dirty_range(
        log.snapshot(),
        log.config,
        owned.checkpoints.cleaner_offset(tp),
        owned.clock.now_ms(),
        high_watermark=_high_watermark(info, owned.checkpoints.of(tp).high_watermark),
    )
    if not dirty.checkpoint_holds:
        owned.checkpoints.set_cleaner_offset(tp, dirty.first_dirty)
    return dirty


def compact_partition(
    owned: OwnedDir,
    tp: TopicPartition,
    *,
    dirty: DirtyRange | None = None,
    pace: Pace = lambda _: None,
    ended_early: Callable[[list[Path]], None] = lambda _: None,
) -> CompactionResult:
    """One pass over one partition, whatever its dirty ratio, and the cleaner's checkpoint after it.

    `dirty`: as `dirty_range_of` gave it. `ended_early`: gets the `.deleted` files of a pass that raises. NotPermitted
    when the topic may not be compacted; else errors as `Pass`, `OwnedDir.log`, and OSError.
    """
    _check(owned.topic_info(tp.topic), is_broker=owned.log_dir.is_broker)
    log = owned.log(tp)
    config = owned.log_dir.broker_config()
    work = Pass(
        log.snapshot(),
        dirty_range_of(owned, tp) if dirty is None else dirty,
        log.config,
        Limits.of(config),
        log.active_producers(),
        now_ms=owned.clock.now_ms(),
        pace=pace,
    )
    try:
        result = work.run(log, owned.disk)
        if result.end_offset > result.first_dirty:
            owned.checkpoints.set_cleaner_offset(tp, result.end_offset)
    except BaseException:
        ended_early(work.replaced)
        raise
    return result


def preview_partition(log_dir: LogDir, tp: TopicPartition, *, clock: Clock | None = None) -> CompactionResult:
    """What `compact_partition` would do, changing nothing. Errors as there, CorruptCheckpoint too.

    Empty batches that stay for their producers' sake are not told apart from those that go.
    """
    info = log_dir.topic_info(tp.topic)
    _check(info, is_broker=log_dir.is_broker)
    now_ms = (clock or log_dir.clock).now_ms()
    snapshot = log_dir.log(tp).snapshot()
    dirty = dirty_range(
        snapshot,
        info.config,
        _read(log_dir.path / names.CLEANER_CHECKPOINT, tp),
        now_ms,
        high_watermark=_high_watermark(info, _read(log_dir.path / names.REPLICATION_CHECKPOINT, tp)),
    )
    nobody: list[ProducerEntry] = []
    limits = Limits.of(log_dir.broker_config())
    return Pass(snapshot, dirty, info.config, limits, nobody, now_ms=now_ms).rehearse()


def _check(info: TopicInfo, *, is_broker: bool) -> None:
    if not guest_rules.may_compact(info, is_broker=is_broker):
        raise NotPermitted(
            f"{info.topic} is not to be compacted",
            expected="cleanup.policy with compact, of the topic or given for it",
            found=",".join(sorted(info.config.cleanup_policy)),
        )


def _high_watermark(info: TopicInfo, known: int | None) -> int | None:
    return None if info.replicas <= 1 else known or 0


def _read(path: Path, tp: TopicPartition) -> int | None:
    return checkpoints.read(path).get(tp) if path.exists() else None
