"""A log in its state at an earlier time: up to its first message with a later timestamp, and how complete it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import CorruptCheckpoint
from storage.files import checkpoints, names
from storage.format.batches import UNKNOWN
from storage.log.greatest_timestamp import may_reach
from storage.log.isolation import Transactions
from storage.log.offset_lookup import first_at
from storage.log.reader import find_batch
from storage.log.scanning import scan_sound_batches
from storage.log.segment_gaps import is_cleaned

if TYPE_CHECKING:
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot, ReadableLog


def end_at(snapshot: LogSnapshot, time_ms: int) -> int:
    """The offset where the log ended at a time: of the first message with a later timestamp. Unlike Kafka's
    ListOffsets, this also searches after segments that compaction has emptied. StorageError if damage hides the
    message."""
    for segment in snapshot.segments:
        if may_reach(snapshot, segment, time_ms + 1):
            later = first_at(snapshot, segment, time_ms + 1)
            if later is not None:
                return min(later.offset, snapshot.log_end_offset)
    return snapshot.log_end_offset


def snapshot_at(snapshot: LogSnapshot, time_ms: int) -> LogSnapshot:
    """The part of a log that it had at a time. Transactions that were open at that time are open in the result."""
    end = end_at(snapshot, time_ms)
    if end >= snapshot.log_end_offset:
        return snapshot
    count = max(snapshot.segment_index(max(end - 1, snapshot.log_start_offset)), 0) + 1
    segments = snapshot.segments[:count]
    position, last_batch_end = snapshot.end_position(segments[-1]), 0
    following = find_batch(snapshot, end)
    if following is not None and following.segment is segments[-1]:
        position = following.position
        batch = segments[-1].batch_at(position, snapshot.end_position(segments[-1]))
        if batch is not None and int(batch.base_offset[0]) < end:
            position, last_batch_end = int(batch.end[0]), int(batch.last_offset[0]) + 1
    return replace(
        snapshot, segments=segments, log_end_offset=end, active_end=position, active_size=position,
        transactions=Transactions(segments[-1].directory), last_batch_end=last_batch_end,
    )  # fmt: skip


class EarlierLog:
    """A `ReadableLog` that shows the state of another log at an earlier time."""

    def __init__(self, log: ReadableLog, time_ms: int) -> None:
        self.tp = log.tp
        self.path = log.path
        self._log = log
        self._time_ms = time_ms
        self._last: tuple[LogSnapshot, LogSnapshot] | None = None

    def snapshot(self) -> LogSnapshot:
        whole, last = self._log.snapshot(), self._last
        if last is None or last[0] is not whole:
            last = self._last = whole, snapshot_at(whole, self._time_ms)
        return last[1]


class Completeness(NamedTuple):
    """How much of its state at a time a log has lost.

    `from_ms`: compaction has since removed messages that counted at that time; from this time on it has removed none.
    None: it has removed none at all. `start_offset`: earlier messages were removed, for example by retention, and may
    have counted.
    """

    from_ms: int | None
    start_offset: int

    def problem(self, tp: object, moment: str | None) -> str | None:
        """The warning for a person; `moment` is `from_ms` as text. None if the state is complete."""
        if self.from_ms is not None:
            return (
                f"{tp}: compaction has removed messages that counted at this time; the state is complete from {moment}"
            )
        if self.start_offset > 0:
            return f"{tp}: messages before offset {self.start_offset} were removed; what only they had is missing"
        return None


def completeness(log_dir: LogDir, snapshot: LogSnapshot, time_ms: int) -> Completeness:
    """How complete the state of a log at a time is, where the last message of each key counts. Reads headers only.

    The cleaner removes a message if a later message with its key is below the offset that the cleaner has reached. So
    gaps before the end at that time matter only if the cleaner came farther than this end. The cleaner never removes a
    message from the active segment.
    """
    start = snapshot.whole_start_offset
    if not snapshot.segments or not is_cleaned(log_dir, snapshot.tp):
        return Completeness(None, start)
    cleaned_end = snapshot.segments[-1].base_offset
    try:
        reached = checkpoints.read(log_dir.path / names.CLEANER_CHECKPOINT).get(snapshot.tp, cleaned_end)
    except CorruptCheckpoint:
        reached = cleaned_end
    if start <= reached < cleaned_end:
        cleaned_end = reached
    end = end_at(snapshot, time_ms)
    if cleaned_end <= end:
        return Completeness(None, start)
    has_gap, latest_ms, next_offset = False, -1, start
    for segment in snapshot.segments:
        if segment.base_offset >= cleaned_end:
            break
        for window in scan_sound_batches(snapshot, segment, 0):
            table = window.table
            rows = int(table.last_offset.searchsorted(cleaned_end))
            last, counts = table.last_offset, table.count
            first = np.concatenate(([next_offset], last[:-1] + 1))
            # Old formats may not have the count; then nobody knows which messages were removed.
            lacks = (last + 1 - first != counts) | (counts == UNKNOWN)
            has_gap |= bool((lacks & (first < end) & (last >= start)).any())
            latest_ms = max(latest_ms, int(table.max_timestamp[:rows].max(initial=-1)))
            next_offset = max(next_offset, int(last[-1]) + 1)
    return Completeness(latest_ms if has_gap else None, start)
