"""Where a partition is cut: behind the last whole batch that a time, or an offset, still includes.

Batches are never divided: the last one that is kept may hold messages that are later, and that is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.format.batches import DELETE_HORIZON_MASK, TIMESTAMP_TYPE_MASK, BatchTable
from storage.format.decoder import Decoder
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log ends before `end_offset`. `straddles`: the last batch also holds messages beyond the time or offset."""

    end_offset: int
    straddles: bool = False


def cut_at_offset(snapshot: LogSnapshot, offset: int) -> LogCut:
    """Behind the batch that holds the message before `offset`. StorageError at damage."""
    if offset >= snapshot.log_end_offset:
        return LogCut(snapshot.log_end_offset)
    if offset <= snapshot.log_start_offset:
        return LogCut(snapshot.log_start_offset)
    segment = snapshot.segments[max(snapshot.segment_index(offset - 1), 0)]
    end = snapshot.end_position(segment)
    last = segment.base_offset - 1
    for window in scan_sound_batches(snapshot, segment, segment.floor(offset - 1, end), window=_WINDOW):
        table = window.table
        # A compressed message set has only its last offset; its first one is above the last of the set before.
        first = np.where(table.base_offset >= 0, table.base_offset, np.append(last, table.last_offset[:-1]) + 1)
        kept = int(np.searchsorted(first, offset))
        if kept:
            last = int(table.last_offset[kept - 1])
        if kept < table.rows:
            break
    return LogCut(max(last + 1, snapshot.log_start_offset), straddles=last >= offset)


def cut_at_time(snapshot: LogSnapshot, until_ms: int) -> LogCut:
    """Behind the last batch that holds a message with a timestamp at or before `until_ms` (epoch milliseconds).

    Messages without a timestamp count as earlier. StorageError at damage.
    """
    decoder = Decoder(verify_crc=False)
    for segment in reversed(snapshot.segments):
        found = _last_batch_until(snapshot, segment, until_ms, decoder)
        if found is not None:
            last_offset, max_timestamp = found
            end = max(last_offset + 1, snapshot.log_start_offset)
            return LogCut(end, straddles=max_timestamp > until_ms)
    return LogCut(snapshot.log_start_offset)


def _last_batch_until(
    snapshot: LogSnapshot, segment: Segment, until_ms: int, decoder: Decoder
) -> tuple[int, int] | None:
    """Last offset and greatest timestamp of the last such batch in a segment."""
    found = None
    for window in scan_sound_batches(snapshot, segment, 0, window=_WINDOW):
        rows = np.flatnonzero(_begins_until(window.table, until_ms))
        row = int(rows[-1]) if len(rows) else -1
        row = max(row, _decoded_until(window, row, until_ms, decoder))
        if row >= 0:
            found = int(window.table.last_offset[row]), int(window.table.max_timestamp[row])
    return found


def _begins_until(table: BatchTable, until_ms: int) -> npt.NDArray[np.bool_]:
    """The batches whose headers show a message at or before the time: all of them, or the first one."""
    is_first_time = (table.magic >= 2) & (table.attributes & (DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK) == 0)
    shown: npt.NDArray[np.bool_] = (table.max_timestamp <= until_ms) & ((table.magic >= 2) | (table.count >= 1))
    begins: npt.NDArray[np.bool_] = shown | is_first_time & (table.base_timestamp <= until_ms)
    return begins


def _decoded_until(window: Window, row: int, until_ms: int, decoder: Decoder) -> int:
    """The last batch behind `row` with such a message among its later ones, which only decoding shows; -1 if none."""
    table = window.table
    several = (table.count != 1) & ((table.attributes & TIMESTAMP_TYPE_MASK == 0) | (table.magic < 2))
    undecided = np.flatnonzero(several & (np.arange(table.rows) > row))
    for candidate in reversed(undecided.tolist()):
        block = decoder.decode(window.buffer, table, candidate, candidate + 1, origin=window.origin, control=True)
        block.check()
        if len(block) and int(block.timestamp.min()) <= until_ms:
            return int(candidate)
    return -1
