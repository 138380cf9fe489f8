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
from storage.log import lineage
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
    if snapshot.generation == before.generation:
        return agreed
    cut = lineage.agreed_end(before, snapshot)
    if isolation is Isolation.READ_COMMITTED:
        cut = stable_offset_before(snapshot, cut)
    return min(agreed, cut)


class Kept(NamedTuple):
    """`covers`: how many are kept. `placed_end`: up to this offset (excluded) what is made again has the bytes that it
    had; above it they were cut off, or compaction has removed some of them since."""

    covers: int
    placed_end: int


def kept_covers(covers: Sequence[Cover], next_offset: int, agreed: int, snapshot: LogSnapshot) -> Kept:
    """What is kept of covers, of which the last ends at the cursor, at `next_offset`: those that end at or before the
    offset `agreed`, and whose file was not cut: one that was can only be read as another segment."""
    listed = set(snapshot.segments)
    files = {_file(segment) for segment in listed}
    kept = len(covers)
    for index in range(len(covers)):
        segment = covers[index].segment
        end = covers[index + 1].first_offset if index + 1 < len(covers) else next_offset
        if end > agreed or (segment not in listed and _file(segment) in files):
            kept = index
            break
    gone = (cover.first_offset for cover in covers[kept:] if _file(cover.segment) not in files)
    return Kept(kept, min(agreed, next(gone, agreed)))


def _file(segment: Segment) -> tuple[int, object]:
    """A file under its offset: what replaces another file may get the inode of a third."""
    return segment.base_offset, segment.log.identity
