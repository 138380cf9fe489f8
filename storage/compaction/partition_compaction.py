"""Compaction of a partition in its directory: which topics may be compacted, from which offset, and the checkpoint.

In a broker's directory only topics are compacted whose cleanup.policy was found there or given by a person (see
storage/DESIGN.md, "Sharing a directory with a broker"). In a partition with several replicas nothing at or above the
high watermark in the broker's checkpoint is compacted; nor are the messages by which a pending write counts how much of
its share is in the log (storage.staged_writes.commit). Source: LogCleanerManager (grabFilthiestCompactedLog,
doneCleaning).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.append.partition_log import PartitionLog
from storage.compaction.compaction import (
    CompactionResult,
    DirtyRange,
    OffsetMapLimits,
    Pace,
    Pass,
    PassInput,
    dirty_range,
    unpaced,
)
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import (
    NotPermitted,
)
from storage.files import checkpoints, names
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.log.topic_info import TopicInfo
from storage.staged_writes import ledger
from storage.types import TopicPartition


def dirty_range_of(owned: OwnedDir, tp: TopicPartition) -> DirtyRange:
    """The part of a partition that may be compacted now. A checkpoint outside of the log is corrected, as in a broker.

    Errors as `OwnedDir.log`.
    """
    log = owned.log(tp)
    return _dirty_range(owned, log, log.snapshot())


def _dirty_range(owned: OwnedDir, log: PartitionLog, snapshot: LogSnapshot) -> DirtyRange:
    tp = log.tp
    info = owned.topic_info(tp.topic)
    dirty = dirty_range(
        snapshot,
        log.config,
        owned.checkpoints.cleaner_offset(tp),
        owned.clock.now_ms(),
        high_watermark=_high_watermark(info, owned.checkpoints.of(tp).high_watermark),
        kept_from=ledger.kept_from(owned.commits.state, owned.path, tp),
    )
    if not dirty.checkpoint_holds:
        owned.note_cleaned(log, dirty.first_dirty)
    return dirty


def compact_partition(
    owned: OwnedDir,
    tp: TopicPartition,
    *,
    pace: Pace = unpaced,
    ended_early: Callable[[list[Path]], None] = lambda _: None,
) -> CompactionResult:
    """Compact a partition, whatever its dirty ratio; then move the cleaner's checkpoint.

    `ended_early`: gets the `.deleted` files of a pass that raises. NotPermitted when the topic may not be compacted;
    other errors as `Pass`, `OwnedDir.log`, and OSError.
    """
    log = owned.log(tp)  # first: the checkpoint at the end is for this log object only
    _check(owned.topic_info(tp.topic), is_broker=owned.log_dir.is_broker)
    snapshot = log.snapshot()
    dirty = _dirty_range(owned, log, snapshot)
    pass_input = PassInput(snapshot, dirty, log.config, log.active_producers(), owned.clock.now_ms())
    work = Pass(pass_input, OffsetMapLimits.of(owned.log_dir.broker_config()), pace=pace)
    try:
        result = work.run(log, owned.disk)
        if result.end_offset > result.first_dirty:
            owned.note_cleaned(log, result.end_offset)
        return result
    except BaseException:
        ended_early(work.replaced)
        raise


def preview_partition(log_dir: LogDir, tp: TopicPartition) -> CompactionResult:
    """Predict what `compact_partition` would do, without changes. Errors as there, CorruptCheckpoint too.

    Empty batches that are kept for their producers are not distinguished from those that are removed.
    """
    info = log_dir.topic_info(tp.topic)
    _check(info, is_broker=log_dir.is_broker)
    now_ms = log_dir.clock.now_ms()
    snapshot = log_dir.log(tp).snapshot()
    dirty = dirty_range(
        snapshot,
        info.config,
        checkpoints.read(log_dir.path / names.CLEANER_CHECKPOINT).get(tp),
        now_ms,
        high_watermark=_high_watermark(info, log_dir.high_watermark(tp)),
        kept_from=ledger.kept_from(ledger.read_for_upkeep(log_dir.path), log_dir.path, tp),
    )
    pass_input = PassInput(snapshot, dirty, info.config, (), now_ms)
    return Pass(pass_input, OffsetMapLimits.of(log_dir.broker_config())).rehearse()


def _check(info: TopicInfo, *, is_broker: bool) -> None:
    if not guest_rules.may_compact(info, is_broker=is_broker):
        raise NotPermitted(
            f"{info.topic} cannot be compacted",
            expected="compact in the topic's cleanup.policy",
            found=",".join(sorted(info.config.cleanup_policy)),
        )


def _high_watermark(info: TopicInfo, known: int | None) -> int | None:
    return None if info.replicas <= 1 else known or 0
