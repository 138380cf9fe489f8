"""Where a log is cut when messages at its end are removed, and how the indexes are cut to match.

Source: LocalLog.truncateTo, LogSegment.truncateTo. Nothing here locks: the PartitionLog holds its lock.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage.append.rolling_rules import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from storage.files import offset_index, time_index, transaction_index
from storage.files.disk import opened
from storage.files.disk_protocol import Disk
from storage.files.names import FileKind
from storage.files.opening import exists
from storage.log import tail
from storage.log.reader import find_batch
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot


def kept_segments(snapshot: LogSnapshot, offset: int) -> int:
    """How many segments remain when the messages from `offset` on are removed; the last of them becomes the active
    one."""
    return max(1, snapshot.segment_index(offset) + 1)


def cut_position(snapshot: LogSnapshot, slot: int, offset: int) -> int:
    """Where in the segment number `slot` the batch begins that holds `offset` or follows it; its end if none does.
    `offset` may be below the log start: what is between them is cut off too, though nobody can read it."""
    segment = snapshot.segments[slot]
    end = snapshot.end_position(segment)
    found = find_batch(replace(snapshot, log_start_offset=min(snapshot.log_start_offset, offset)), offset)
    return end if found is None or found.segment_index != slot else min(found.position, end)


def end_offset(segment: Segment) -> int:
    """The log end offset when this is the last segment and all of it is sound: what the next opening finds."""
    return max(segment.base_offset, tail.measure(segment, segment.size).next_offset)


def cut_segment(disk: Disk, segment: Segment, position: int, offset: int) -> Segment:
    """Cuts the .log at a batch's start and the indexes to entries below `offset`; returns the resulting segment.

    Indexes first: a crash in between leaves fewer entries than there might be, which is not damage. All is synced, each
    index before the log is cut. If a power loss brought messages back, they could overlap a segment that was begun
    after the truncation; and no recovery looks at entries that came back, since the recovery point is where the segment
    now ends. An entry of an aborted transaction would then hide messages that are appended later.
    """
    # Both are loaded anew: what Segment keeps of a sealed segment's index is that of the whole segment.
    offsets = offset_index.load(segment.path_of(FileKind.OFFSET_INDEX), segment.base_offset, position, growing=True)
    times = time_index.load(segment.path_of(FileKind.TIME_INDEX), segment.base_offset, offset, growing=True)
    _cut(disk, segment.path_of(FileKind.OFFSET_INDEX), len(offsets) * OFFSET_ENTRY_SIZE)
    _cut(disk, segment.path_of(FileKind.TIME_INDEX), len(times) * TIME_ENTRY_SIZE)
    aborted = segment.path_of(FileKind.TRANSACTION_INDEX)
    if exists(aborted):
        entries = transaction_index.load(aborted, segment.base_offset).entries()
        kept = transaction_index.encode([entry for entry in entries if entry.last_offset < offset])
        _cut(disk, aborted, len(kept))
    with opened(disk, segment.log.path) as file:
        file.truncate(position)
        file.sync()
    return Segment(segment.directory, segment.base_offset, segment.log, position)


def _cut(disk: Disk, index: Path, size: int) -> None:
    with opened(disk, index, create=True) as file:
        if file.size() > size:
            file.truncate(size)
        file.sync()  # also what an earlier process has cut: that may not be on disk yet
