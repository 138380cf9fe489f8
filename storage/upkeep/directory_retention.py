"""Retention of a partition in its directory: who may lose messages, and up to where (product.md, section 7).

In a broker's directory only topics are touched whose limits were found there or given by a person. Of a partition with
several replicas nothing goes at or above the high watermark that the broker wrote down; and nothing by which a share of
a pending write is known (storage.staged_writes.commit).
"""

from __future__ import annotations

from typing import NamedTuple

from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.files import checkpoints, names
from storage.log.log_dir import LogDir
from storage.log.topic_info import TopicInfo
from storage.staged_writes import ledger
from storage.types import TopicPartition
from storage.upkeep.retention import FreeBytes, RetentionResult, preview, retain


class _Leave(NamedTuple):
    """What may be done to a partition. `only_start`: no limits apply to it, but its log start offset does."""

    only_start: bool
    high_watermark: int | None


def retain_partition(
    owned: OwnedDir, tp: TopicPartition, *, free_bytes: FreeBytes, before: int | None = None
) -> RetentionResult | None:
    """One pass over one partition, see `retention.retain`; None when it is left alone.

    `before` is a person's word: it counts where limits would not. NotPermitted for it in topics that are the brokers'
    own; else errors as `retain` and `OwnedDir.log`.
    """
    info = owned.topic_info(tp.topic)
    known = owned.checkpoints.of(tp).high_watermark
    leave = _leave(info, known, before, is_broker=owned.log_dir.is_broker)
    if leave is None:
        return None
    return retain(
        owned.log(tp),
        clock=owned.clock,
        free_bytes=free_bytes,
        before=before,
        high_watermark=leave.high_watermark,
        only_start=leave.only_start,
        kept_from=lambda snapshot: ledger.kept_from(owned.commits.state, snapshot),
    )


def preview_partition(
    log_dir: LogDir, tp: TopicPartition, *, free_bytes: FreeBytes, before: int | None = None
) -> RetentionResult | None:
    """What `retain_partition` would do, changing nothing. Errors as there, CorruptCheckpoint too."""
    info = log_dir.topic_info(tp.topic)
    known = None
    if info.replicas > 1:
        known = checkpoints.read(log_dir.path / names.REPLICATION_CHECKPOINT).get(tp)
    leave = _leave(info, known, before, is_broker=log_dir.is_broker)
    if leave is None:
        return None
    return preview(
        log_dir.log(tp).snapshot(),
        info.config,
        clock=log_dir.clock,
        free_bytes=free_bytes,
        before=before,
        high_watermark=leave.high_watermark,
        only_start=leave.only_start,
        kept_from=lambda snapshot: ledger.kept_from(ledger.read_for_upkeep(log_dir.path), snapshot),
    )


def _leave(info: TopicInfo, known_high_watermark: int | None, before: int | None, *, is_broker: bool) -> _Leave | None:
    allowed = guest_rules.may_retain(info, is_broker=is_broker)
    if before is not None:
        guest_rules.check_records_may_go(info, is_broker=is_broker)
    elif not allowed and (is_broker or info.topic == names.CLUSTER_METADATA_TOPIC):
        return None
    high_watermark = None
    if info.replicas > 1:
        high_watermark = 0 if known_high_watermark is None else known_high_watermark
    return _Leave(only_start=not allowed, high_watermark=high_watermark)
