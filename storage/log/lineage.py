"""Whether a log is still the one that was read: how a reader that goes on detects a truncation.

A truncation takes messages from the end of a follower's log, and a new leader's take their offsets. Neither bytes nor
files tell these apart: messages may look alike, and compaction replaces files too. Kafka's identity of a message is
(leader epoch, offset): a leader writes an offset once, and two logs with the same epoch at an offset hold the same
messages up to there (OffsetsForLeaderEpoch, LeaderEpochFileCache.endOffsetFor). leader-epoch-checkpoint says which
epoch wrote an offset. A log was truncated if that says so; without a checkpoint, if the log became shorter, or one of
its files holds something else than it did.

A log counts the truncations that were seen (`LogSnapshot.generation`). A reader of another generation's snapshot opens
the log again, or asks `kept_end` where to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.files.leader_epochs import LeaderEpochs
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot


def was_truncated(before: LogSnapshot, now: LogSnapshot) -> bool:
    """Whether messages were cut off between two looks at a log, though others may have their offsets by now."""
    if now.log_end_offset < before.log_end_offset:
        return True
    if before.epochs.entries and now.epochs.entries:
        return first_difference(before.epochs, now.epochs, before.log_end_offset) is not None
    if now.segments is before.segments:
        return False
    # A segment stays the same object while its file only grows.
    listed = set(now.segments)
    return any(segment not in listed and not _was_removed(segment, before, now) for segment in before.segments)


def first_difference(before: LeaderEpochs, now: LeaderEpochs, end: int) -> int | None:
    """The first offset below `end` that different leaders wrote; None if there is none, as far as both know."""
    if not before.entries or not now.entries:
        return None
    starts = {entry.start_offset for epochs in (before, now) for entry in epochs.entries}
    known = max(before.entries[0].start_offset, now.entries[0].start_offset)
    differences = (start for start in starts if known <= start < end and before.epoch_at(start) != now.epoch_at(start))
    return min(differences, default=None)


def kept_end(before: LogSnapshot, now: LogSnapshot, end: int) -> int | None:
    """The offset up to which a log still holds what was read of it up to `end`; None where leader epochs do not tell.

    `before`, `now`: what was read, and a later snapshot of the same log.
    """
    if now.generation == before.generation:
        return end
    if before.epochs.epoch_at(end - 1) is None or now.epochs.epoch_at(end - 1) is None:
        return None
    difference = first_difference(before.epochs, now.epochs, end)
    return min(now.log_end_offset, end if difference is None else difference)


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
