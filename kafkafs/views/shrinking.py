"""What remains of an open view after a truncation: a follower's log may lose its last messages and get others instead.

A view consists of covers, one for each segment: "from this offset on, the content was made from this segment". A cover
is kept or dropped as a whole, even one without bytes (other messages, which do show, may be there now). The view is
made again from the first cover that reaches beyond the offset up to which the log is unchanged. Messages still in the
log render to the same bytes, so positions before the truncation stay, and no place has to be found in a file that was
overwritten. Segments that retention or compaction removed are different: their places keep their bytes.
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
    """The content from `first_offset` up to the next cover, or the cursor, was made from `segment`."""

    first_offset: int
    segment: Segment


def agreed_end(before: LogSnapshot, snapshot: LogSnapshot, isolation: Isolation) -> int:
    """The offset (excluded) up to which nothing has changed since the snapshot `before` for a reader.

    For a reader of committed messages this is not where the log was cut: a marker that was cut decided about messages
    before it, and without it the last stable offset is before them.
    """
    agreed = visible_end(snapshot, isolation)
    cut = _first_cut(before, snapshot)
    if cut is None:
        return agreed
    if isolation is Isolation.READ_COMMITTED:
        cut = stable_offset_before(snapshot, cut)
    return min(agreed, cut)


def kept_covers(covers: Sequence[Cover], next_offset: int, agreed: int) -> int:
    """How many covers end at or before the offset `agreed`; the last one ends at the cursor, at `next_offset`."""
    for index in range(len(covers)):
        end = covers[index + 1].first_offset if index + 1 < len(covers) else next_offset
        if end > agreed:
            return index
    return len(covers)


def _first_cut(before: LogSnapshot, snapshot: LogSnapshot) -> int | None:
    """The base offset of the first segment that a truncation changed; None if something else happened.

    A segment stays the same object while its file only grows.
    """
    listed = set(snapshot.segments)
    for segment in before.segments:
        if segment not in listed and not _was_removed(segment, before, snapshot):
            return segment.base_offset
    return None


def _was_removed(segment: Segment, before: LogSnapshot, snapshot: LogSnapshot) -> bool:
    """Whether retention or compaction, and not a truncation, removed a segment."""
    if segment.base_offset >= snapshot.log_end_offset:
        return False
    slot = snapshot.segment_index(segment.base_offset)
    if slot < 0:
        return True
    there = snapshot.segments[slot]
    if there.base_offset == segment.base_offset:
        # Compaction replaces the file, but never that of the last segment. A truncation cuts the file.
        return there is not snapshot.active and segment.log.identity != there.log.identity
    # Its offsets are in another file now: in a new one (compacted), or in one that ended before it, and was cut and
    # extended.
    return all(there.log.identity != one.log.identity for one in before.segments)
