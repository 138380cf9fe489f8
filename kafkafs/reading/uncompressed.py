"""Whether bytes of segments are more than a limit once they are uncompressed, as the first batches of a few segments
show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kafkafs.reading.workbench import workbench
from storage.log.scanning import scan_batches
from storage.log.segment import LOOKUP_BYTES, Segment
from storage.log.snapshot import LogSnapshot

_RATIOS: Final = 8  # at most, for bytes that are as many as the limit
_MOST_RATIO: Final = 1000  # zstd compresses a log of similar messages to a hundredth


def are_more(sizes: Iterable[tuple[Segment, int]], limit: int, ratio_of: Callable[[Segment], float]) -> bool:
    """Whether so many bytes of these segments' files are more than `limit` bytes uncompressed.

    `ratio_of`: see `uncompressed_ratio`. It is called for the first segment, and again after each eighth of the limit;
    not at all if the bytes of the files are already more than the limit, or too few for any ratio.
    """
    parts: list[tuple[Segment, int]] = []
    in_files = 0
    for segment, size in sizes:
        in_files += size
        if in_files > limit:
            return True
        if size:
            parts.append((segment, size))
    if in_files * _MOST_RATIO <= limit:
        return False
    ratio, uncompressed, since = 1.0, 0.0, limit
    for segment, size in parts:
        if since * _RATIOS >= limit:
            ratio, since = ratio_of(segment), 0
        uncompressed += size * ratio
        since += size
        if uncompressed > limit:
            return True
    return False


def uncompressed_ratio(snapshot: LogSnapshot, segment: Segment) -> float:
    """The size of a segment's first batches uncompressed, divided by their size in the file; 1 if they are not
    compressed, or damaged. SegmentGone."""
    for window in scan_batches(snapshot, segment, 0, LOOKUP_BYTES, window=LOOKUP_BYTES):
        if not window.table.codec.any():
            break
        with workbench() as bench:
            block = bench.checked.decode(window.buffer, window.table, origin=window.origin)
            bench.note(block)
            decoded = window.table.slice(0, block.next_row)
            if block.damage is None and decoded.codec.any():
                return max(1.0, len(block.buffer) / int(decoded.size.sum()))
        break
    return 1.0
