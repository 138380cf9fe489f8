"""Retention: which of a log's oldest segments are removed and why, and a pass that removes them.

Policies are pure: given a log's segments they return how many of the oldest to remove. Kafka's three, in Kafka's order
(log start offset, size, time), then ours (free disk space). Each starts at the oldest segment and stops at the first
that must stay. Source: UnifiedLog.deleteOldSegments. See storage/DESIGN.md, "Retention".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from storage.append.partition_log import PartitionLog
from storage.clock import Clock
from storage.config import LogConfig
from storage.directory import guest_rules
from storage.errors import NotPermitted, OffsetOutOfRange
from storage.log.greatest_timestamp import retention_timestamp_ms
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition
from storage.upkeep.kept_segments import KeptSegment, kept_segments, may_be_tiered

if TYPE_CHECKING:
    from storage.log.segment import Segment

# The offset from which on nothing may be removed, None when everything may (storage.staged_writes.commit). Called after
# the log's snapshot was taken.
KeptFrom = Callable[[], int | None]

# Bytes free on a log directory's disk, including those of files that only await their removal.
FreeBytes = Callable[[], int]

_AS_TOTAL: Final = -2  # of local.retention.*: the same as retention.*
HIGH_WATERMARK: Final = -1  # as an offset to delete records before


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as a policy sees it: offsets from `base_offset` to `next_offset` (excluded).

    `largest_timestamp_ms`: of its messages, the file's mtime where they carry none; called only when needed, because it
    may have to read the segment.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    largest_timestamp_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as policies see it: `segments` ascending, the active one last. `high_watermark`: nothing at or above it may
    be removed, because of replicas or of pending writes."""

    segments: tuple[SegmentInfo, ...]
    log_start_offset: int
    high_watermark: int
    now_ms: int
    config: LogConfig

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def without(self, count: int) -> LogState:
        """The log without its oldest `count` segments."""
        return replace(self, segments=self.segments[count:])

    def oldest_while(self, holds: Callable[[SegmentInfo], bool]) -> int:
        """How many of the oldest segments satisfy `holds`, up to the first that does not.

        A segment that is not below the high watermark, and an active one without messages, do not count.
        """
        for count, segment in enumerate(self.segments):
            is_empty_last = count == len(self.segments) - 1 and not segment.size_bytes
            if is_empty_last or segment.next_offset > self.high_watermark or not holds(segment):
                return count
        return len(self.segments)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Decides how many of a log's oldest segments may be removed (`expired`), including the active one if it should be
    removed too. Pure, apart from what `by_free_space` is given."""

    reason: str
    expired: Callable[[LogState], int]


def _below_log_start(log: LogState) -> int:
    """Segments entirely below the log start offset; never the active one."""
    return log.oldest_while(
        lambda segment: segment is not log.segments[-1] and segment.next_offset <= log.log_start_offset
    )


def _by_size(log: LogState) -> int:
    """Segments, while the log without its oldest one still has at least `retention.bytes`."""
    limit, excess = log.config.retention_bytes, log.size_bytes - log.config.retention_bytes

    def goes(segment: SegmentInfo) -> bool:
        nonlocal excess
        excess -= segment.size_bytes
        return excess >= 0

    return log.oldest_while(goes) if limit >= 0 else 0


def _by_time(log: LogState) -> int:
    """Segments whose newest message is older than `retention.ms`."""
    limit = log.config.retention_ms
    return log.oldest_while(lambda segment: log.now_ms - segment.largest_timestamp_ms() > limit) if limit >= 0 else 0


LOG_START_BREACH: Final = RetentionPolicy("below the log start offset", _below_log_start)
BY_SIZE: Final = RetentionPolicy("retention.bytes", _by_size)
BY_TIME: Final = RetentionPolicy("retention.ms", _by_time)


def by_free_space(free_bytes: FreeBytes) -> RetentionPolicy:
    """Segments, while less than `retention.free.bytes` is free on the disk. The active segment stays: other programs
    may be filling the disk, and then everything would be removed."""

    def expired(log: LogState) -> int:
        required_bytes = log.config.retention_free_bytes
        missing = required_bytes - free_bytes() if required_bytes >= 0 else 0

        def goes(segment: SegmentInfo) -> bool:
            nonlocal missing
            before, missing = missing, missing - segment.size_bytes
            return before > 0 and segment is not log.segments[-1]

        return log.oldest_while(goes)

    return RetentionPolicy("retention.free.bytes", expired)


def policies_for(config: LogConfig, free_bytes: FreeBytes) -> tuple[RetentionPolicy, ...]:
    """The policies that apply under `cleanup.policy`, in order: a topic that is only compacted never loses messages by
    size, time or space."""
    if not config.delete:
        return (LOG_START_BREACH,)
    return (LOG_START_BREACH, BY_SIZE, BY_TIME, by_free_space(free_bytes))


@dataclass(frozen=True, slots=True)
class ExpiredSegment:
    """A segment to be removed, and the configuration key or other reason for it."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class BrokersRetention:
    """The segments of a tiered log that a broker would remove: by `retention.*` from the whole log, wherever its
    segments are, and by `local.retention.*` from this directory, once they are copied."""

    total: tuple[ExpiredSegment, ...]
    local: tuple[ExpiredSegment, ...]


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """The result of a pass over a log. `segments`: removed, or to be removed in a dry run, the oldest first. `rolled`:
    the active segment was removed too (or would be) and replaced by an empty one. `files`: renamed to `.deleted`, to be
    unlinked after `file.delete.delay.ms`. `kept`: in a dry run the segments that stay, and why. `brokers`: what the
    broker would remove from a tiered log."""

    tp: TopicPartition
    segments: tuple[ExpiredSegment, ...]
    log_start_offset: int
    log_end_offset: int
    rolled: bool = False
    dry_run: bool = False
    files: tuple[Path, ...] = ()
    kept: tuple[KeptSegment, ...] = ()
    brokers: BrokersRetention | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the .log files that are removed."""
        return sum(segment.size_bytes for segment in self.segments)


def plan(log: LogState, policies: Sequence[RetentionPolicy]) -> tuple[ExpiredSegment, ...]:
    """The oldest segments to remove: each policy is applied to the segments that the previous ones leave."""
    expired: list[ExpiredSegment] = []
    for policy in policies:
        count = policy.expired(log)
        expired += [
            ExpiredSegment(segment.base_offset, segment.next_offset, segment.size_bytes, policy.reason)
            for segment in log.segments[:count]
        ]
        log = log.without(count)
    return tuple(expired)


def _all_may_go() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Retention:
    """The parameters of a retention pass over a log. Kafka's default limits do not count: only configured ones do.

    `before`: first move the log start there, as DeleteRecords does (HIGH_WATERMARK: to the end of what may be read).
    `high_watermark`: nothing at or above it is removed; None: the log end. `only_start`: only the log start counts.
    `kept_from`: nothing from this offset on is removed, even if the offset comes to lie below the log start.
    """

    clock: Clock
    free_bytes: FreeBytes
    before: int | None = None
    high_watermark: int | None = None
    only_start: bool = False
    kept_from: KeptFrom = _all_may_go

    def preview(self, snapshot: LogSnapshot, config: LogConfig) -> RetentionResult:
        """Predict what `run` would do to a log in this state, without changes. Errors as there."""
        config = guest_rules.retention_config(config)
        start = self._log_start(snapshot, config)
        now_ms = self.clock.now_ms()
        expired = self._expired(snapshot, config, start, now_ms)
        if expired:
            start = max(start, expired[-1].next_offset)
        everything = bool(expired) and len(expired) == len(snapshot.segments)
        limit = self._limit(snapshot)
        kept = kept_segments(snapshot, config, len(expired), now_ms, limit, only_start=self.only_start)
        end = snapshot.log_end_offset
        start = snapshot.whole_start_offset if start == snapshot.log_start_offset else start
        return RetentionResult(snapshot.tp, expired, start, end, rolled=everything, dry_run=True, kept=kept)

    def run(self, log: PartitionLog) -> RetentionResult:
        """Run retention over a log. Writers continue meanwhile: a segment that was begun after the snapshot stays until
        the next pass. Crash-safe, see PartitionLog.remove_segments.

        NotPermitted: `before` in a log that is only compacted; OffsetOutOfRange: `before` above the high watermark;
        SegmentGone: another thread has removed segments meanwhile; PartitionOffline, OSError.
        """
        config = guest_rules.retention_config(log.config)
        now_ms = self.clock.now_ms()
        snapshot = log.snapshot()
        start = self._log_start(snapshot, config)
        log.increment_log_start_offset(start)
        expired = self._expired(snapshot, config, start, now_ms)
        everything = bool(expired) and len(expired) == len(snapshot.segments)
        if everything:
            # Messages appended meanwhile are in the segment that is now the last but one: check it again. Messages
            # appended since the roll are in the active segment, which stays.
            log.roll()
            snapshot = log.snapshot()
            expired = self._expired(snapshot, config, start, now_ms)[: len(snapshot.segments) - 1]
        files = tuple(log.remove_segments(snapshot.segments[: len(expired)]))
        rolled = everything and len(expired) == len(snapshot.segments) - 1
        start = log.snapshot().whole_start_offset
        return RetentionResult(log.tp, expired, start, log.log_end_offset, rolled=rolled, files=files)

    def _log_start(self, snapshot: LogSnapshot, config: LogConfig) -> int:
        """The log start offset once the records before `before` are deleted (Partition.deleteRecordsOnLeader)."""
        if self.before is None:
            return snapshot.log_start_offset
        if not config.delete:
            raise NotPermitted(f"{snapshot.tp} is only compacted: its records cannot be deleted")
        high_watermark = snapshot.log_end_offset if self.high_watermark is None else self.high_watermark
        end = min(high_watermark, snapshot.log_end_offset)
        offset = end if self.before == HIGH_WATERMARK else self.before
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(
                f"records of {snapshot.tp} to be deleted end outside of the log", offset=offset, expected=f"0 to {end}"
            )
        if snapshot.remote_offsets is not None and offset < snapshot.log_start_offset:
            raise snapshot.out_of_range(f"records of {snapshot.tp} cannot be deleted", offset)
        return max(snapshot.log_start_offset, offset)

    def _expired(self, snapshot: LogSnapshot, config: LogConfig, start: int, now_ms: int) -> tuple[ExpiredSegment, ...]:
        only_start = self.only_start or may_be_tiered(snapshot, config)
        policies = (LOG_START_BREACH,) if only_start else policies_for(config, self.free_bytes)
        return plan(_state(snapshot, config, start, self._limit(snapshot), now_ms), policies)

    def _limit(self, snapshot: LogSnapshot) -> int:
        """The offset from which on nothing may be removed."""
        limits = (self.high_watermark, self.kept_from())
        return min((offset for offset in limits if offset is not None), default=snapshot.log_end_offset)


def left_alone(snapshot: LogSnapshot, config: LogConfig, now_ms: int) -> RetentionResult:
    """The preview of a log that no pass would look at."""
    kept = kept_segments(snapshot, config, 0, now_ms, snapshot.log_end_offset, only_start=True)
    start, end = snapshot.whole_start_offset, snapshot.log_end_offset
    return RetentionResult(snapshot.tp, (), start, end, dry_run=True, kept=kept)


def brokers_retention(snapshot: LogSnapshot, config: LogConfig, now_ms: int) -> BrokersRetention:
    """The segments that the broker of a tiered log would remove. Kafka's default limits count, as for a broker.
    Segments that the snapshot lacks (LogSnapshot.remote_offsets) are left out."""
    whole = _state(snapshot, config, snapshot.log_start_offset, snapshot.log_end_offset, now_ms)
    try:
        ms, size = (int(config.other.get(name, _AS_TOTAL)) for name in ("local.retention.ms", "local.retention.bytes"))
    except ValueError:
        ms = size = _AS_TOTAL
    local = replace(
        config,
        retention_ms=config.retention_ms if ms == _AS_TOTAL else ms,
        retention_bytes=config.retention_bytes if size == _AS_TOTAL else size,
    )
    local_state = replace(whole, segments=whole.segments[len(snapshot.remote) :], config=local)
    return BrokersRetention(
        plan(whole, (LOG_START_BREACH, BY_SIZE, BY_TIME)),
        tuple(
            replace(
                segment, reason=f"local.{segment.reason}" if segment.reason.startswith("retention.") else segment.reason
            )
            for segment in plan(local_state, (LOG_START_BREACH, BY_SIZE, BY_TIME))
        ),
    )


def first_pass(
    snapshot: LogSnapshot, config: LogConfig, now_ms: int, timestamp_of: Callable[[LogSnapshot, Segment], int]
) -> tuple[ExpiredSegment, ...]:
    """The segments that a broker's first retention pass after its start removes from a log. `timestamp_of`: what the
    broker takes for a segment's greatest timestamp."""
    state = _state(snapshot, config, snapshot.log_start_offset, snapshot.log_end_offset, now_ms)
    by_limits = (BY_SIZE, BY_TIME) if config.delete else ()
    segments = tuple(
        replace(info, largest_timestamp_ms=partial(timestamp_of, snapshot, segment))
        for info, segment in zip(state.segments, snapshot.segments, strict=True)
    )
    return plan(replace(state, segments=segments), (LOG_START_BREACH, *by_limits))


def disk_free_bytes(path: Path) -> FreeBytes:
    """A function that returns the free bytes on the disk of a directory (psutil.disk_usage)."""
    return lambda: int(psutil.disk_usage(str(path)).free)


def _state(snapshot: LogSnapshot, config: LogConfig, log_start: int, high_watermark: int, now_ms: int) -> LogState:
    ends = [*(segment.base_offset for segment in snapshot.segments[1:]), snapshot.log_end_offset]
    segments = tuple(
        SegmentInfo(
            segment.base_offset,
            end,
            snapshot.end_position(segment),
            lambda segment=segment: retention_timestamp_ms(snapshot, segment),  # type: ignore[misc]
        )
        for segment, end in zip(snapshot.segments, ends, strict=False)  # a log without a segment has an end, too
    )
    return LogState(segments, log_start, high_watermark, now_ms, config)
