"""Which messages of a log are still the ones that were read: the rule for all who go on reading where they stopped.

A truncation takes messages from the end of a follower's log, and a new leader's take their offsets. Neither bytes nor
files tell these apart: messages may look alike, and compaction replaces files too. Kafka's identity of a message is
(leader epoch, offset): a leader writes an offset once, and two logs with the same epoch at an offset hold the same
messages up to there (OffsetsForLeaderEpoch, LeaderEpochFileCache.endOffsetFor). Which epoch wrote an offset is in
leader-epoch-checkpoint, and in the header of each batch. So a truncation is found, in this order:

1. The log was cut at the first offset for which the epochs known at two looks differ.
2. Without a checkpoint: where the batches of the rewritten file leave the epoch of the last batch that was known.
3. Where epochs do not differ, by what is seen of the files: if the log became shorter, it was cut where it ends now; if
   a file holds something else than it did, where that begins.

A log counts the cuts that it has seen (`LogSnapshot.cuts`). Who goes on reading compares with the count of its last
look (`agreed_end`), however long ago that was and whatever happened to the files since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.log.scanning import scan_batches

if TYPE_CHECKING:
    from storage.files.leader_epochs import LeaderEpochs
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot


def agreed_end(before: LogSnapshot, now: LogSnapshot) -> int:
    """The offset (excluded) up to which two snapshots of one log object, in this order, hold the same messages, except
    for what retention and compaction removed."""
    return min((now.log_end_offset, *now.cuts[before.generation :]))


def first_difference(before: LeaderEpochs, now: LeaderEpochs, end: int) -> int | None:
    """The first offset below `end` that different leaders wrote; None if there is none, as far as both know."""
    if before == now or not before.entries or not now.entries:
        return None
    starts = {entry.start_offset for epochs in (before, now) for entry in epochs.entries}
    known = max(before.entries[0].start_offset, now.entries[0].start_offset)
    for offset in sorted(start for start in starts if known <= start < end):
        if before.epoch_at(offset) != now.epoch_at(offset):
            return offset
    return None


def cut_since(before: LogSnapshot, now: LogSnapshot, last_epoch: int) -> int | None:
    """Where the log was cut between two looks at it by `ReadOnlyLog`; None if it was not.

    `last_epoch`: that of the last batch of `before`, -1 if it is unknown. What cannot be told from a truncation, but
    removed the file that was the last one, counts as a cut at the end. StorageError, OSError.
    """
    cut = first_difference(before.epochs, now.epochs, before.log_end_offset)
    if cut is None and now.segments is not before.segments:
        changed = _first_changed(before, now)
        if changed is not None:
            cut = _cut_in(changed, before, now, last_epoch)
        elif before.active is not None and before.active not in now.segments:
            cut = before.log_end_offset
    if now.log_end_offset < before.log_end_offset:
        return now.log_end_offset if cut is None else min(cut, now.log_end_offset)
    return cut


def _cut_in(changed: Segment, before: LogSnapshot, now: LogSnapshot, last_epoch: int) -> int:
    """Where the file of a segment was cut, if the checkpoints do not tell."""
    there = next((segment for segment in now.segments if segment.log.identity == changed.log.identity), None)
    if there is None or there.base_offset != changed.base_offset:
        return changed.base_offset
    if last_epoch >= 0 and not now.epochs.entries:
        found = _end_of_epoch(last_epoch, now, there)
        if found is not None:
            return found
    ends_before = there.size < before.end_position(changed) and now.log_end_offset < before.log_end_offset
    return now.log_end_offset if ends_before and there is now.active else changed.base_offset


def _end_of_epoch(epoch: int, snapshot: LogSnapshot, segment: Segment) -> int | None:
    """Where a later leader's batches follow those of `epoch` in a segment, its start if they follow others; None if it
    has none of a later leader."""
    before = -1
    for window in scan_batches(snapshot, segment, 0, snapshot.end_position(segment)):
        epochs = window.table.leader_epoch[: window.table.rows]
        for row in (epochs > epoch).nonzero()[0][:1].tolist():
            before = int(epochs[row - 1]) if row else before
            return int(window.table.base_offset[row]) if before == epoch else segment.base_offset
        before = int(epochs[-1]) if len(epochs) else before
    return None


def _first_changed(before: LogSnapshot, now: LogSnapshot) -> Segment | None:
    """The first segment whose file a truncation has changed or removed; None if there is none. A segment stays the same
    object while its file only grows."""
    listed = set(now.segments)
    for segment in before.segments:
        if segment not in listed and not _was_removed(segment, before, now):
            return segment
    return None


def _was_removed(segment: Segment, before: LogSnapshot, now: LogSnapshot) -> bool:
    """Whether retention or compaction, and not a truncation, removed a segment, judged by its file."""
    if segment.base_offset >= now.log_end_offset:
        return False
    slot = now.segment_index(segment.base_offset)
    if slot < 0:
        return True
    there = now.segments[slot]
    if there.base_offset == segment.base_offset:
        # Compaction replaces the file, but never that of the last segment. A truncation cuts the file.
        return there is not now.active and segment.log.identity != there.log.identity
    # Its offsets are in another file now: in a new one (compacted), or in one that ended before it, and was cut and
    # extended.
    return all(there.log.identity != one.log.identity for one in before.segments)
