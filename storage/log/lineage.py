"""Whether a log is still the one that was read: how a resumed read detects a truncation.

A truncation takes messages from the end of a follower's log, and a new leader's messages get their offsets. Neither
bytes nor files show the difference: messages may look alike, and compaction replaces files too. Kafka's identity of a
message is (leader epoch, offset): a leader writes an offset once, and two logs with the same epoch at an offset hold
the same messages up to there (OffsetsForLeaderEpoch, LeaderEpochFileCache.endOffsetFor). leader-epoch-checkpoint says
which epoch wrote an offset. A log was truncated if the checkpoint says so; without a checkpoint, if the log became
shorter, or the content of one of its files changed.

A log counts the truncations that it has seen (`LogSnapshot.generation`). A reader with a snapshot of another generation
opens the log again, or asks `kept_end` where to continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.files.leader_epochs import LeaderEpochs
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot


def was_truncated(before: LogSnapshot, now: LogSnapshot) -> bool:
    """Whether messages were cut off between two looks at a log, even if other messages have their offsets by now."""
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
    """The first offset below `end` that different leaders wrote; None if there is none, as far as both logs know."""
    if not before.entries or not now.entries:
        return None
    starts = {entry.start_offset for epochs in (before, now) for entry in epochs.entries}
    known = max(before.entries[0].start_offset, now.entries[0].start_offset)
    differences = (start for start in starts if known <= start < end and before.epoch_at(start) != now.epoch_at(start))
    return min(differences, default=None)


def kept_end(before: LogSnapshot, now: LogSnapshot, end: int) -> int | None:
    """The offset up to which a log still holds the messages that were read up to `end`; None if leader epochs do not
    say.

    `before`: the snapshot that was read; `now`: a later snapshot of the same log.
    """
    if now.generation == before.generation:
        return end
    if before.epochs.epoch_at(end - 1) is None or now.epochs.epoch_at(end - 1) is None:
        return None
    difference = first_difference(before.epochs, now.epochs, end)
    return min(now.log_end_offset, end if difference is None else difference)


def _was_removed(segment: Segment, before: LogSnapshot, now: LogSnapshot) -> bool:
    """Whether retention or compaction removed a segment, rather than a truncation, judging by its file."""
    if segment.base_offset >= now.log_end_offset:
        return False
    slot = now.segment_index(segment.base_offset)
    if slot < 0:
        return True
    successor = now.segments[slot]
    if successor.base_offset == segment.base_offset:
        # Compaction replaces the file of any segment but the last. A truncation cuts the file.
        return successor is not now.active and segment.log.identity != successor.log.identity
    # Another file has its offsets now: a new one (compacted), or an earlier one, which was cut and extended.
    return all(successor.log.identity != earlier.log.identity for earlier in before.segments)
