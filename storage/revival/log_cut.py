"""Where a partition is cut: after the last whole batch that a time, or an offset, still includes.

Batches are never divided: the last batch that is kept may hold later messages, and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.log.scanning import scan_sound_batches
from storage.log.snapshot import LogSnapshot
from storage.log.time_cut import cut_at


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log ends before `end_offset`. `straddles`: the last batch also holds messages beyond the time or offset."""

    end_offset: int
    straddles: bool = False


def cut_at_offset(snapshot: LogSnapshot, offset: int) -> LogCut:
    """Cut after the batch that holds the message before `offset`. StorageError at damage."""
    if offset >= snapshot.log_end_offset:
        return LogCut(snapshot.log_end_offset)
    if offset <= snapshot.log_start_offset:
        return LogCut(snapshot.log_start_offset)
    segment = snapshot.segments[max(snapshot.segment_index(offset - 1), 0)]
    end = snapshot.end_position(segment)
    last = segment.base_offset - 1
    for window in scan_sound_batches(snapshot, segment, segment.floor(offset - 1, end)):
        table = window.table
        # A compressed message set has only its last offset; its first offset is above the last offset of the previous
        # set.
        first = np.where(table.base_offset >= 0, table.base_offset, np.append(last, table.last_offset[:-1]) + 1)
        kept = int(np.searchsorted(first, offset))
        if kept:
            last = int(table.last_offset[kept - 1])
        if kept < table.rows:
            break
    return LogCut(max(last + 1, snapshot.log_start_offset), straddles=last >= offset)


def cut_at_time(snapshot: LogSnapshot, until_ms: int) -> LogCut:
    """Cut after the last batch with a message at or before `until_ms` (log.time_cut). StorageError at damage."""
    cut = cut_at(snapshot, until_ms)
    return LogCut(max(cut.snapshot.log_end_offset, snapshot.log_start_offset), cut.mixed is not None)
