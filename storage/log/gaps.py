"""Offsets between two segments that neither of them has: a segment file was lost, or compaction has removed the last
messages of a segment."""

from __future__ import annotations

from typing import NamedTuple

from storage.log.scanning import last_offset_before
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot


class Gap(NamedTuple):
    """Offsets from `first_offset` to `next_offset` (excluded), where `segment` begins."""

    first_offset: int
    next_offset: int
    segment: Segment


def segment_gaps(snapshot: LogSnapshot) -> list[Gap]:
    """The gaps between the segments of a log. Reads an index and the last batches of each. SegmentGone.

    Damage is no gap: what may be hidden by it is not missing.
    """
    gaps = []
    for segment, following in zip(snapshot.segments, snapshot.segments[1:], strict=False):
        last = last_offset_before(snapshot, segment, segment.size)
        first = segment.base_offset if last is None else last + 1
        if last is not None and first < following.base_offset:
            gaps.append(Gap(first, following.base_offset, following))
    return gaps
