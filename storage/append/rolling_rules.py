"""When a log rolls. Pure, except for the random jitter.

Source: LogSegment.shouldRoll, LogConfig.maxSegmentMs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from storage.config import LogConfig
from storage.files import offset_index, time_index
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable
from storage.types import NO_TIMESTAMP

OFFSET_ENTRY_SIZE: Final = offset_index.ENTRY_SIZE
TIME_ENTRY_SIZE: Final = time_index.ENTRY_SIZE


@dataclass(frozen=True, slots=True)
class RollLimits:
    """A log's configured limits for rolling. The segment's jitter is already subtracted from `segment_ms`; an index
    with `offset_entries` or `time_entries` entries is full."""

    segment_bytes: int
    segment_ms: int
    offset_entries: int
    time_entries: int

    @staticmethod
    def of(config: LogConfig, jitter_ms: int) -> RollLimits:
        """The limits of a log with this configuration. One slot of a time index is reserved for the final entry."""
        index_bytes = config.segment_index_bytes
        return RollLimits(
            config.segment_bytes,
            config.max_segment_ms - jitter_ms,
            index_bytes // OFFSET_ENTRY_SIZE,
            index_bytes // TIME_ENTRY_SIZE - 1,
        )


def new_jitter_ms(config: LogConfig) -> int:
    """A random value for each segment when it is opened (LogConfig.randomSegmentJitter)."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return random.randrange(most) if most > 0 else 0


@dataclass(slots=True)
class SegmentFill:
    """The numbers that decide whether a segment accepts one more batch; its writer keeps it up to date.

    `first_timestamp`: the max timestamp of its first batch, -1 when there is none. `created_ms`: when the segment was
    created or opened, by our clock. `offset_entries`, `time_entries`: how many its indexes have.
    """

    base_offset: int
    size_bytes: int
    first_timestamp: int
    created_ms: int
    offset_entries: int
    time_entries: int

    def has_full_index(self, limits: RollLimits) -> bool:
        """Whether one of its indexes is full."""
        return self.offset_entries >= limits.offset_entries or self.time_entries >= limits.time_entries


def rows_that_fit(table: BatchTable, first: int, fill: SegmentFill, limits: RollLimits, now_ms: int) -> int:
    """How many batches from the row `first` on the segment accepts before it has to roll, each appended separately.

    Does not take into account the index entries that these batches add.
    """
    if fill.has_full_index(limits):
        return 0
    sizes = table.size[first:]
    # An exact fit does not roll.
    ends = fill.size_bytes + np.cumsum(sizes)
    refused = (ends > limits.segment_bytes) | (table.last_offset[first:] - fill.base_offset > MAX_RELATIVE_OFFSET)
    refused |= table.last_offset[first:] < fill.base_offset
    timestamps = table.max_timestamp[first:]
    began = fill.first_timestamp
    if fill.size_bytes == 0 and len(timestamps):
        # The segment is empty: its age counts from the first of these batches.
        began = int(timestamps[0])
    if began > NO_TIMESTAMP:
        waited = timestamps - began > limits.segment_ms
    else:
        waited = np.full(len(timestamps), now_ms - fill.created_ms > limits.segment_ms)
    if fill.size_bytes == 0 and len(waited):
        waited[0] = False
    refused |= waited
    at = int(refused.argmax()) if len(refused) else 0
    return at if len(refused) and refused[at] else len(refused)


def batch_fits(
    size: int, last_offset: int, max_timestamp: int, fill: SegmentFill, limits: RollLimits, now_ms: int
) -> bool:
    """Whether the segment accepts one batch of `size` bytes before it has to roll: `rows_that_fit` without arrays."""
    if fill.has_full_index(limits) or not 0 <= last_offset - fill.base_offset <= MAX_RELATIVE_OFFSET:
        return False
    if fill.size_bytes == 0:
        return size <= limits.segment_bytes
    # An exact fit does not roll.
    if fill.size_bytes + size > limits.segment_bytes:
        return False
    if fill.first_timestamp > NO_TIMESTAMP:
        return max_timestamp - fill.first_timestamp <= limits.segment_ms
    return now_ms - fill.created_ms <= limits.segment_ms
