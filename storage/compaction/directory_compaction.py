"""Compaction of a partition in its directory: which topics may be compacted, from which offset, and the checkpoint.

In a broker's directory only topics are compacted whose cleanup.policy was found there or given by a person (see
storage/DESIGN.md, "Sharing a directory with a broker"). In a partition with several replicas nothing at or above the
high watermark in the broker's checkpoint is compacted; nor is anything from the first batch on that identifies a share
of a pending write (storage.staged_writes.commit). Source: LogCleanerManager (grabFilthiestCompactedLog, doneCleaning).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.append.partition_log import PartitionLog
from storage.compaction.compaction import CompactionResult, DirtyRange, Limits, Pass, PassInput, dirty_range
from storage.compaction.divided_pass import DividedPass, RunParts
from storage.compaction.rewriting import Pace, unpaced
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import NotPermitted
from storage.files import checkpoints, names
from storage.log.log_dir import LogDir
from storage.log.topic_info import TopicInfo
from storage.staged_writes import ledger
from storage.types import TopicPartition


def dirty_range_of(owned: OwnedDir, tp: TopicPartition) -> DirtyRange:
    """The part of a partition that may be compacted now. A checkpoint outside of the log is corrected, as in a broker.

    Errors as `OwnedDir.log`.
    """
    log, info = owned.log(tp), owned.topic_info(tp.topic)
    snapshot = log.snapshot()
    dirty = dirty_range(
        snapshot,
        log.config,
        owned.checkpoints.cleaner_offset(tp),
        owned.clock.now_ms(),
        high_watermark=_high_watermark(info, owned.checkpoints.of(tp).high_watermark),
        kept_from=ledger.kept_from(owned.commits.state, snapshot),
    )
    if not dirty.checkpoint_holds:
        owned.note_cleaned(log, dirty.first_dirty)
    return dirty


def compact_partition(
    owned: OwnedDir,
    tp: TopicPartition,
    *,
    dirty: DirtyRange | None = None,
    pace: Pace = unpaced,
    ended_early: Callable[[list[Path]], None] = lambda _: None,
) -> CompactionResult:
    """One pass over one partition, whatever its dirty ratio, and the cleaner's checkpoint after it.

    `dirty`: as `dirty_range_of` gave it. `ended_early`: gets the `.deleted` files of a pass that raises. NotPermitted
    when the topic may not be compacted; other errors as `Pass`, `OwnedDir.log`, and OSError.
    """
    log = owned.log(tp)  # first: the checkpoint at the end is for this log object only
    work = Pass(pass_input_of(owned, tp, dirty), Limits.of(owned.log_dir.broker_config()), pace=pace)
    try:
        return _noted(owned, log, work.run(log, owned.disk))
    except BaseException:
        ended_early(work.replaced)
        raise


def compact_divided(owned: OwnedDir, tp: TopicPartition, run_parts: RunParts) -> CompactionResult:
    """As `compact_partition`, up to the first uncleanable offset, with the work done by other processes.

    `run_parts` has the parts of the pass done; if it is interrupted anywhere, nothing has changed. Errors as
    `compact_partition`, and those of `run_parts`.
    """
    log = owned.log(tp)
    work = DividedPass(pass_input_of(owned, tp))
    return _noted(owned, log, work.run(log, owned.disk, run_parts))


def pass_input_of(owned: OwnedDir, tp: TopicPartition, dirty: DirtyRange | None = None) -> PassInput:
    """The input of a pass over a partition. Errors as `compact_partition`."""
    _check(owned.topic_info(tp.topic), is_broker=owned.log_dir.is_broker)
    log = owned.log(tp)
    return PassInput(
        log.snapshot(),
        dirty_range_of(owned, tp) if dirty is None else dirty,
        log.config,
        log.active_producers(),
        owned.clock.now_ms(),
    )


def _noted(owned: OwnedDir, log: PartitionLog, result: CompactionResult) -> CompactionResult:
    if result.end_offset > result.first_dirty:
        owned.note_cleaned(log, result.end_offset)
    return result


def preview_partition(log_dir: LogDir, tp: TopicPartition) -> CompactionResult:
    """What `compact_partition` would do, changing nothing. Errors as there, CorruptCheckpoint too.

    Empty batches that are kept for their producers are not distinguished from those that are removed.
    """
    return Pass(preview_pass_input(log_dir, tp), Limits.of(log_dir.broker_config())).rehearse()


def preview_divided(log_dir: LogDir, tp: TopicPartition, run_parts: RunParts) -> CompactionResult:
    """What `compact_divided` would do. As `preview_partition`."""
    return DividedPass(preview_pass_input(log_dir, tp), dry_run=True).rehearse(run_parts)


def preview_pass_input(log_dir: LogDir, tp: TopicPartition) -> PassInput:
    """The input that a pass over a partition would have. Errors as `preview_partition`."""
    info = log_dir.topic_info(tp.topic)
    _check(info, is_broker=log_dir.is_broker)
    now_ms = log_dir.clock.now_ms()
    snapshot = log_dir.log(tp).snapshot()
    dirty = dirty_range(
        snapshot,
        info.config,
        checkpoints.read(log_dir.path / names.CLEANER_CHECKPOINT).get(tp),
        now_ms,
        high_watermark=_high_watermark(info, checkpoints.read(log_dir.path / names.REPLICATION_CHECKPOINT).get(tp)),
        kept_from=ledger.kept_from(ledger.read_for_upkeep(log_dir.path), snapshot),
    )
    return PassInput(snapshot, dirty, info.config, (), now_ms)


def _check(info: TopicInfo, *, is_broker: bool) -> None:
    if not guest_rules.may_compact(info, is_broker=is_broker):
        raise NotPermitted(
            f"{info.topic} may not be compacted",
            expected="cleanup.policy with compact, of the topic or given for it",
            found=",".join(sorted(info.config.cleanup_policy)),
        )


def _high_watermark(info: TopicInfo, known: int | None) -> int | None:
    return None if info.replicas <= 1 else known or 0
