"""What a truncation leaves of an open view: a follower's log may lose its last messages, and get others there.

A view is made of covers, one a segment: "from this offset on, what it shows was made of this segment". A cover stays or
goes whole, whether it gave bytes or not (other messages may stand there now, and show). From the first one on that
reaches over the offset up to which the log has not changed, the view is made anew. What is still in the log renders to
the same bytes, so positions before the truncation stay, and no place has to be found in a file that was written over.
Segments that retention or compaction took are another matter: their places keep their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.client.counting import visible_end
from storage.log.isolation import stable_offset_before
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation


class Cover(NamedTuple):
    """What a view shows from `first_offset` on, to where the next cover or the cursor is, was made of `segment`."""

    first_offset: int
    segment: Segment


def agreed_end(before: LogSnapshot, snapshot: LogSnapshot, isolation: Isolation) -> int:
    """Up to which offset (excluded) what a reader saw in the snapshot `before` is as it was.

    For a reader of committed messages that is not where the log was cut: a marker that was cut decided about messages
    before it, and without it the last stable offset lies before them.
    """
    agreed = visible_end(snapshot, isolation)
    cut = _first_cut(before, snapshot)
    if cut is None:
        return agreed
    if isolation is Isolation.READ_COMMITTED:
        cut = stable_offset_before(snapshot, cut)
    return min(agreed, cut)


def kept_covers(covers: Sequence[Cover], next_offset: int, agreed: int) -> int:
    """How many covers end by the offset `agreed`; the last one ends where the cursor is, at `next_offset`."""
    for index in range(len(covers)):
        end = covers[index + 1].first_offset if index + 1 < len(covers) else next_offset
        if end > agreed:
            return index
    return len(covers)


def _first_cut(before: LogSnapshot, snapshot: LogSnapshot) -> int | None:
    """The base offset of the first segment that a truncation has touched; None if it was something else that happened.

    A segment stays the same object while its file only grows.
    """
    listed = set(snapshot.segments)
    for segment in before.segments:
        if segment not in listed and not _was_removed(segment, before, snapshot):
            return segment.base_offset
    return None


def _was_removed(segment: Segment, before: LogSnapshot, snapshot: LogSnapshot) -> bool:
    """Whether retention or compaction took a segment away, and not a truncation."""
    if segment.base_offset >= snapshot.log_end_offset:
        return False
    slot = snapshot.segment_index(segment.base_offset)
    if slot < 0:
        return True
    there = snapshot.segments[slot]
    if there.base_offset == segment.base_offset:
        # Compaction puts another file in its place, but never in that of the last one. A truncation cuts the file.
        return there is not snapshot.active and segment.log.identity != there.log.identity
    # Its offsets lie in another file now: in a new one (compacted), or in one that ended before it and was cut and
    # written on.
    return all(there.log.identity != one.log.identity for one in before.segments)
