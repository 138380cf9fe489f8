"""Cutting a log at a moment: after the last batch that has a message with a timestamp at or before the moment.

Whole batches are kept, and all batches before that one: timestamps need not ascend. A message without a timestamp
(format v0) counts as earlier than any moment. Control records count by their timestamps like messages, so that a
transaction that was committed at that moment is committed in the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from storage.log.reader import batch_records, read_blocks
from storage.log.scanning import scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot


class MixedBatch(NamedTuple):
    """The last batch before the cut, if it also has messages from after the moment: `later` of them."""

    base_offset: int
    last_offset: int
    later: int


class TimeCut(NamedTuple):
    """A log up to a moment. `snapshot`: as if nothing had been appended after the cut; `mixed`: see MixedBatch."""

    snapshot: LogSnapshot
    mixed: MixedBatch | None = None


class _Last(NamedTuple):
    """The last batch of a segment that is kept: where it begins and ends, and its last offset."""

    position: int
    end: int
    last_offset: int


def cut_at(snapshot: LogSnapshot, until_ms: int) -> TimeCut:
    """Cut a log at the moment `until_ms` (epoch milliseconds, included).

    Reads the headers of the segments from the last one back to the cut, and decodes the batches after the cut.
    StorageError for damage there: it may hide a message.
    """
    # Records below the log start count: whole segments are kept.
    segments = snapshot.segments
    whole = replace(snapshot, log_start_offset=segments[0].base_offset) if segments else snapshot
    for index in reversed(range(len(segments))):
        last = _last_until(whole, segments[index], until_ms)
        if last is not None:
            mixed = _mixed(whole, segments[index], last, until_ms)
            return TimeCut(_shortened(snapshot, index, last.end, last.last_offset + 1), mixed)
    return TimeCut(_shortened(snapshot, 0, 0, segments[0].base_offset) if segments else snapshot)


def _shortened(snapshot: LogSnapshot, index: int, end: int, end_offset: int) -> LogSnapshot:
    return replace(
        snapshot,
        segments=snapshot.segments[: index + 1],
        log_start_offset=min(snapshot.log_start_offset, end_offset),
        log_end_offset=end_offset,
        active_end=end,
        active_size=end,
    )


def _last_until(snapshot: LogSnapshot, segment: Segment, until_ms: int) -> _Last | None:
    """The segment's last batch with a message at or before the moment."""
    last: _Last | None = None
    for window in scan_sound_batches(snapshot, segment, 0):
        table = window.table
        rows = np.flatnonzero(table.max_timestamp <= until_ms)
        if len(rows):
            row = int(rows[-1])
            last = _Last(int(table.position[row]), int(table.end[row]), int(table.last_offset[row]))
    # The later batches end after the moment, but may still have an earlier message.
    for block in read_blocks(snapshot, segment, 0 if last is None else last.end, control=True):
        block.check()
        rows = np.flatnonzero(block.timestamp <= until_ms)
        if len(rows):
            row, table = int(block.batch[rows[-1]]), block.table
            last = _Last(int(table.position[row]), int(table.end[row]), int(table.last_offset[row]))
    return last


def _mixed(snapshot: LogSnapshot, segment: Segment, last: _Last, until_ms: int) -> MixedBatch | None:
    with batch_records(snapshot, segment, last.position) as block:
        later = int((block.timestamp > until_ms).sum())
        if not later:
            return None
        first = int(block.table.base_offset[0])
        return MixedBatch(first if first >= 0 else int(block.offset[0]), last.last_offset, later)
