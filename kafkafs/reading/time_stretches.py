"""Where in a log messages of a time may be, by the view index: the least and greatest timestamp of each half MiB.

Kafka's own time index says only up to where no message is as late as a time. How early later messages may be, nobody
has written down: a record's timestamp may be any. So a range of times that ends would have to be read to the log's
end. Segments with later messages are measured instead, which takes as long as reading them; what is measured is kept in
the user's cache directory, and shared with mounts. Those of a backup in an object store are not: its manifest has the
times of each object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkafs.formats.txt import Txt
from kafkafs.reading.index import ViewIndex
from kafkafs.reading.pieces import BASE_OFFSET, GREATEST, LEAST
from kafkafs.reading.store import LEAST_BYTES, Store, default_directory
from kafkafs.reading.workbench import Rendition
from kafkafs.reading.workers import Workers
from storage.errors import StorageError
from storage.log.greatest_timestamp import may_reach
from storage.types import Isolation, OffsetRange, TimeRange

if TYPE_CHECKING:
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot

_KEPT_BYTES: Final = 256 << 20  # on disk
# All messages, those of aborted transactions too: reading leaves these out.
_RENDITION: Final = Rendition(Txt(), Isolation.READ_UNCOMMITTED)


def time_stretches(snapshot: LogSnapshot, offsets: OffsetRange, times: TimeRange) -> Iterator[OffsetRange]:
    """The parts of these offsets, ascending, outside of which no message of the log has such a timestamp."""
    segments = snapshot.segments
    start = offsets.start
    for slot in range(max(snapshot.segment_index(start), 0), len(segments)):
        segment = segments[slot]
        behind = segments[slot + 1].base_offset if slot + 1 < len(segments) else offsets.end
        end = min(behind, offsets.end)
        if start >= offsets.end:
            return
        for first, last in _within(snapshot, segment, times, start):
            found = OffsetRange(max(first, start), min(last, end))
            if found.start < found.end:
                yield found
        start = max(start, end)


def _within(snapshot: LogSnapshot, segment: Segment, times: TimeRange, start: int) -> list[tuple[int, int]]:
    """Of one segment; all of it where nothing is known, or damage may hide anything."""
    whole, size = [(0, 2**63 - 1)], snapshot.end_position(segment)
    known = np.array(segment.known_times, np.int64).reshape(-1, 3).T
    if times.end_ms is None or (size < LEAST_BYTES and not known.size):
        return whole
    with suppress(StorageError, OSError):  # reading tells it
        index = _index()
        extent = index.held(snapshot, segment, _RENDITION, size, size)
        # Of one that grows what is measured may soon be of no use: only if most of it would have to be read anyway.
        is_worth_it = not known.size and (segment.sealed or 2 * segment.floor(start, size) < size)
        if extent is None and is_worth_it and may_reach(snapshot, segment, times.end_ms):
            extent = index.whole(snapshot, segment, _RENDITION, size)
            index.keep()
        if extent is not None and len(extent.pieces) and not extent.pieces.is_damaged:
            known = extent.pieces.columns[[BASE_OFFSET, LEAST, GREATEST]]
        if known.size:
            bases, least, greatest = known
            wanted = least < times.end_ms
            if times.start_ms is not None:
                wanted &= greatest >= times.start_ms
            # Parts of a batch have one offset; compressed messages of old formats have none in the header.
            if (bases >= 0).all() and (np.diff(bases) > 0).all():
                edges = np.flatnonzero(np.diff(np.concatenate(([0], wanted.view(np.int8), [0])))).tolist()
                ends = np.append(bases[1:], 2**63 - 1)
                return [(int(bases[a]), int(ends[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return whole


@cache
def _index() -> ViewIndex:
    """The process's index, with what mounts and earlier scans have kept of it."""
    store: Store | None
    try:
        store = Store(default_directory(), _KEPT_BYTES)
    except RuntimeError:  # there is no home directory
        store = None
    return ViewIndex(Workers(0), store)
