"""Offsets between two segments that neither of them has: a segment file was lost, or compaction has removed the last
messages of a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import CorruptCheckpoint
from storage.files import checkpoints, names
from storage.log.scanning import last_offset_before
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

if TYPE_CHECKING:
    from storage.log.log_dir import LogDir
    from storage.types import TopicPartition


def is_cleaned(log_dir: LogDir, tp: TopicPartition) -> bool:
    """Whether compaction may have caused the gaps of a partition: it is configured, or the configuration is unknown and
    a cleaner has left its checkpoint."""
    from storage.config import Origin

    config = log_dir.topic_info(tp.topic).config
    if config.compact or config.origin("cleanup.policy") is not Origin.DEFAULT:
        return config.compact
    try:
        return tp in checkpoints.read(log_dir.path / names.CLEANER_CHECKPOINT)
    except CorruptCheckpoint:
        return True  # nobody knows


class SegmentGap(NamedTuple):
    """Offsets from `first_offset` to `next_offset` (excluded), where `segment` begins."""

    first_offset: int
    next_offset: int
    segment: Segment


def segment_gaps(snapshot: LogSnapshot, on_bytes: Callable[[int], None] = lambda _: None) -> list[SegmentGap]:
    """The gaps between the segments of a log. Reads an index and the last batches of each; a segment without an index
    is read. `on_bytes` is called with the size of each. SegmentGone.

    Damage is no gap: what may be hidden by it is not missing.
    """
    gaps = []
    for segment, following in zip(snapshot.segments, snapshot.segments[1:], strict=False):
        last = last_offset_before(snapshot, segment, segment.size)
        on_bytes(segment.size)
        first = segment.base_offset if last is None else last + 1
        if last is not None and first < following.base_offset:
            gaps.append(SegmentGap(first, following.base_offset, following))
    return gaps
