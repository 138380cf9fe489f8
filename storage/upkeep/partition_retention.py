"""Retention of a partition in its directory: which partitions may lose messages, and up to which offset.

In a broker's directory only topics are changed whose limits were configured there or requested by a person. A
partition with several replicas loses nothing at or above the high watermark that the broker checkpointed, and none of
the messages by which a pending write counts how much of its share is in the log (storage.staged_writes.commit).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.files import names
from storage.log.log_dir import LogDir
from storage.staged_writes import ledger
from storage.types import TopicPartition
from storage.upkeep.kept_segments import may_be_tiered
from storage.upkeep.retention import FreeBytes, KeptFrom, Retention, RetentionResult, brokers_retention, left_alone


def retain_partition(
    owned: OwnedDir, tp: TopicPartition, *, free_bytes: FreeBytes, before: int | None = None
) -> RetentionResult | None:
    """Run retention over a partition, as `Retention.run`; None when it is left alone.

    `before` is an explicit request: it applies where limits would not. NotPermitted for it in topics that belong to the
    brokers; otherwise errors as `Retention.run` and `OwnedDir.log`.
    """
    retention = _retention(
        owned.log_dir, tp, free_bytes, before,
        lambda: owned.checkpoints.of(tp).high_watermark, lambda: ledger.kept_from(owned.commits.state, owned.path, tp),
    )  # fmt: skip
    return None if retention is None else retention.run(owned.log(tp))


def preview_partition(
    log_dir: LogDir, tp: TopicPartition, *, free_bytes: FreeBytes, before: int | None = None
) -> RetentionResult | None:
    """Predict what `retain_partition` would do, without changes; also for a partition that is left alone, except the
    cluster's metadata log. Errors as there, CorruptCheckpoint too."""
    retention = _retention(
        log_dir, tp, free_bytes, before,
        lambda: log_dir.high_watermark(tp),
        lambda: ledger.kept_from(ledger.read_for_upkeep(log_dir.path), log_dir.path, tp),
    )  # fmt: skip
    if tp.topic == names.CLUSTER_METADATA_TOPIC:
        return None
    snapshot, config = log_dir.log(tp).snapshot(), log_dir.topic_info(tp.topic).config
    now_ms = log_dir.clock.now_ms()
    result = left_alone(snapshot, config, now_ms) if retention is None else retention.preview(snapshot, config)
    if not may_be_tiered(snapshot, config):
        return result
    return replace(result, brokers=brokers_retention(snapshot, config, now_ms))


def _retention(
    log_dir: LogDir,
    tp: TopicPartition,
    free_bytes: FreeBytes,
    before: int | None,
    high_watermark: Callable[[], int | None],
    kept_from: KeptFrom,
) -> Retention | None:
    """The retention pass that a partition allows; None if it allows none. `high_watermark`: as the broker checkpointed
    it."""
    info, is_broker = log_dir.topic_info(tp.topic), log_dir.is_broker
    allowed = guest_rules.may_retain(info, is_broker=is_broker)
    if before is not None:
        guest_rules.check_records_may_go(info, is_broker=is_broker)
    elif not allowed and (is_broker or tp.topic == names.CLUSTER_METADATA_TOPIC):
        return None
    limit = (high_watermark() or 0) if info.replicas > 1 else None
    return Retention(log_dir.clock, free_bytes, before, limit, only_start=not allowed, kept_from=kept_from)
