"""Why segments are still there: which rule of retention keeps each of them, and when it will go. Reads, never changes.

All rules walk from the oldest segment and stop at the first that stays. So one segment with a timestamp in the future
keeps all those after it, however old these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.config import LogConfig
from storage.errors import CorruptData
from storage.log.greatest_timestamp import greatest_timestamp, retention_timestamp_ms
from storage.log.reader import batch_records, find_batch
from storage.log.snapshot import LogSnapshot
from storage.log.tiering import is_tiered

if TYPE_CHECKING:
    from storage.log.segment import Segment


NO_LIMIT: Final = "no limit was set"  # Kafka's defaults do not count
ONLY_COMPACTED: Final = "cleanup.policy"
EMPTY: Final = "active and empty"
UNTOUCHABLE: Final = "high watermark or a pending write"
TIERED: Final = "remote.storage.enable"  # the broker removes copied segments, and only the broker knows which these are
OLDER: Final = "an older segment stays"


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment that a pass would leave.

    `kept_by`: the configuration keys whose limits it does not exceed, or another reason of those above.
    `largest_timestamp`: what `retention.ms` is compared with, epoch ms; `future_offset`: the offset of the message with
    that timestamp if the timestamp is in the future, otherwise None. `goes_at`: when `retention.ms` will remove it,
    epoch ms; `goes_after_bytes`: after how many more bytes `retention.bytes` will; None where that will not happen.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    kept_by: tuple[str, ...]
    largest_timestamp: int
    future_offset: int | None
    goes_at: int | None
    goes_after_bytes: int | None


def kept_segments(
    snapshot: LogSnapshot, config: LogConfig, removed: int, now_ms: int, limit: int, *, only_start: bool
) -> tuple[KeptSegment, ...]:
    """The segments that stay once the oldest `removed` are gone. `config`: with the limits that count; `limit`: the
    offset from which on nothing may be removed; `only_start`: limits do not count at all."""
    rest = snapshot.segments[removed:]
    total = sum(snapshot.end_position(segment) for segment in rest)
    tiered = may_be_tiered(snapshot, config)
    limited = config.delete and not only_start and not tiered
    by_time, by_size = limited and config.retention_ms >= 0, limited and config.retention_bytes >= 0
    kept: list[KeptSegment] = []
    goes_at, before_bytes = -1, 0
    for number, segment in enumerate(rest):
        last = number + 1 == len(rest)
        next_offset = snapshot.log_end_offset if last else rest[number + 1].base_offset
        size, largest = snapshot.end_position(segment), retention_timestamp_ms(snapshot, segment)
        before_bytes += size
        goes_at = max(goes_at, largest + config.retention_ms + 1) if by_time else -1
        empty = last and size == 0
        if empty:
            kept_by: tuple[str, ...] = (EMPTY,)
        elif tiered:
            kept_by = (TIERED,)
        elif not config.delete:
            kept_by = (ONLY_COMPACTED,)
        elif next_offset > limit:
            kept_by = (UNTOUCHABLE,)
        else:
            kept_by = (NO_LIMIT,) if only_start else _limits(config, now_ms - largest, older=number > 0)
        kept.append(
            KeptSegment(
                segment.base_offset,
                next_offset,
                size,
                kept_by,
                largest,
                _offset_of(snapshot, segment) if largest > now_ms else None,
                goes_at if by_time and not empty else None,
                max(config.retention_bytes - total + before_bytes, 0) if by_size and not empty else None,
            )
        )
    return tuple(kept)


def may_be_tiered(snapshot: LogSnapshot, config: LogConfig) -> bool:
    """Whether a log's retention is the broker's matter, because it has copied segments elsewhere."""
    return snapshot.remote_offsets is not None or is_tiered(config.other)


def _limits(config: LogConfig, age_ms: int, *, older: bool) -> tuple[str, ...]:
    """The limits that were set and that a segment does not exceed. `older`: an older segment stays."""
    limits = {
        "retention.ms": config.retention_ms,
        "retention.bytes": config.retention_bytes,
        "retention.free.bytes": config.retention_free_bytes,
    }
    set_ones = tuple(name for name, value in limits.items() if value >= 0)
    if not set_ones:
        return (NO_LIMIT,)
    by_time = age_ms <= config.retention_ms
    if older and (not by_time or "retention.ms" not in set_ones):
        # It is kept only because an older segment is kept.
        return (OLDER,)
    return tuple(name for name in set_ones if name != "retention.ms" or by_time)


def _offset_of(snapshot: LogSnapshot, segment: Segment) -> int | None:
    """The offset of the first message with the greatest timestamp of a segment; None where it has no timestamps,
    or where it cannot be read."""
    greatest = greatest_timestamp(snapshot, segment)
    try:
        place = find_batch(snapshot, greatest.offset) if greatest.timestamp >= 0 else None
        if place is None:
            return None
        with batch_records(snapshot, place.segment, place.position) as block:
            rows = np.flatnonzero(block.timestamp == greatest.timestamp)
            return int(block.offset[rows[0]]) if len(rows) else None
    except CorruptData:
        return None  # verify reports the fault
