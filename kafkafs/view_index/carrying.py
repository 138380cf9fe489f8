"""Which part of a measured segment is still right: after a truncation of its own file, or of the markers that decided
about its transactions; and in a later mount, where those markers must still exist."""

from __future__ import annotations

from kafkafs.view_index.extent import Extent
from kafkafs.view_index.pieces import BASE_OFFSET, CRC, FILE_END, NO_CRC, POSITION, Pieces
from kafkafs.view_index.store import Marker
from storage.errors import StorageError
from storage.log.reader import find_batch
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot


def carried(before: Extent, snapshot: LogSnapshot, segment: Segment, end: int) -> Pieces | None:
    """The pieces of a whole segment that are also right for `segment`, which has its place now; None if there are none.

    `end`: the file position up to which they may reach. If transactions were decided in a segment that is no longer in
    the log, none are right.
    """
    pieces = before.pieces  # read before the marker, which another thread may replace by a later one
    if before.decider is not None and before.decider.segment not in snapshot.segments:
        return None
    if before.segment is segment:
        pieces = pieces.until(end)
    elif before.segment.log.identity == segment.log.identity:
        pieces = _agreeing(pieces, segment, end)
    else:
        return None
    return pieces if len(pieces) else None


def marker_of(snapshot: LogSnapshot, decider: DecidingMarker) -> Marker | None:
    """The marker that a later mount must find to use what it decided; None if it cannot be read any longer."""
    try:
        found = find_batch(snapshot, decider.offset)
        batch = None if found is None else found.segment.batch_at(found.position, snapshot.end_position(found.segment))
    except (StorageError, OSError):
        return None
    if batch is None or int(batch.base_offset[0]) != decider.offset:
        return None
    return Marker(decider.offset, int(batch.crc[0]))


def decider_of(snapshot: LogSnapshot, marker: Marker) -> DecidingMarker | None:
    """The marker in the log as it is now; None if it is gone: truncated, or dropped by compaction."""
    slot = snapshot.segment_index(marker.offset)
    if slot < 0:
        return None
    decider = DecidingMarker(snapshot.segments[slot], marker.offset)
    return decider if marker_of(snapshot, decider) == marker else None


def _agreeing(pieces: Pieces, segment: Segment, end: int) -> Pieces:
    """The pieces that are unchanged in the file of `segment`, which was truncated and perhaps extended."""
    low, high = 0, int(pieces.columns[FILE_END].searchsorted(end, side="right"))
    # If a piece's first batch is still there, so is everything before it: a truncation does not change what precedes
    # it.
    while low < high:
        middle = (low + high) // 2
        if _begins_with(pieces, middle, segment, end):
            low = middle + 1
        else:
            high = middle
    # The last piece that begins alike may end differently, and the pieces of one huge batch belong together.
    return pieces.until(int(pieces.columns[POSITION, low - 1])) if low else Pieces.none(pieces.start)


def _begins_with(pieces: Pieces, row: int, segment: Segment, end: int) -> bool:
    if int(pieces.columns[CRC, row]) == NO_CRC:
        return False
    try:
        batch = segment.batch_at(int(pieces.columns[POSITION, row]), end)
    except StorageError:
        return False
    return (
        batch is not None
        and int(batch.base_offset[0]) == int(pieces.columns[BASE_OFFSET, row])
        and int(batch.crc[0]) == int(pieces.columns[CRC, row])
    )
