"""What a truncation leaves of an open view: a follower's log may lose its last messages, and get others there."""

from __future__ import annotations

from typing import NamedTuple

from kafkafs.view_index.pieces import BASE_OFFSET, CRC, FILE_END, NO_CRC, POSITION, Pieces
from kafkafs.views.layout import Layout, Run
from kafkafs.views.spans import Cursor
from storage.errors import StorageError
from storage.format.batches import UNKNOWN
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot


class _Kept(NamedTuple):
    """What is left of a run, and where the log goes on behind it."""

    run: Run | None
    cursor: Cursor


def shrunk(layout: Layout, before: LogSnapshot, snapshot: LogSnapshot) -> Layout:
    """The layout without what was truncated: runs end where the log as it is now last agrees with them.

    Runs whose segments retention or compaction removed stay: their places keep their bytes. `before`: the snapshot that
    the layout was made for.
    """
    runs = list(layout.runs)
    cursor = layout.cursor
    while runs:
        run = runs[-1]
        if any(run.segment is segment for segment in snapshot.segments):
            break
        twin = next((one for one in snapshot.segments if one.base_offset == run.segment.base_offset), None)
        if _was_removed(run.segment, before, snapshot) if twin is None else _was_compacted(run.segment, twin):
            break
        runs.pop()
        if twin is None:
            cursor = Cursor(min(cursor.next_offset, run.segment.base_offset))
            continue
        kept = _common_part(run, twin, snapshot)
        cursor = kept.cursor
        if kept.run is not None:
            runs.append(kept.run)
            break
    if cursor.next_offset > snapshot.log_end_offset:
        cursor = Cursor(snapshot.log_end_offset)
    if tuple(runs) == layout.runs and cursor == layout.cursor:
        return layout
    if runs:
        runs[-1] = runs[-1]._replace(file_end=-1)
    return Layout.of(cursor, runs, layout.greatest, complete=False)


def _was_removed(segment: Segment, before: LogSnapshot, snapshot: LogSnapshot) -> bool:
    """Whether retention or compaction took a segment away, and not a truncation."""
    if segment.base_offset >= snapshot.log_end_offset:
        return False
    slot = snapshot.segment_index(segment.base_offset)
    # Its offsets lie in another file now: in a new one (compacted), or in one that ended before it and was cut and
    # written on.
    return slot < 0 or all(snapshot.segments[slot].log.identity != one.log.identity for one in before.segments)


def _was_compacted(segment: Segment, twin: Segment) -> bool:
    """Whether compaction put another file in a segment's place. A truncation cuts the file that is there."""
    return segment.sealed and segment.log.identity != twin.log.identity


def _common_part(run: Run, twin: Segment, snapshot: LogSnapshot) -> _Kept:
    """Of a run of a segment that was truncated (and perhaps written on): what is still there, in whole pieces."""
    end = snapshot.end_position(twin)
    if run.extent is None:
        size = max(0, min(run.end - run.start, end - run.source_start))
        # Offsets are those of the batch that begins there, or will.
        cursor = Cursor(snapshot.log_end_offset, twin, run.source_start + size)
        return _Kept(run._replace(end=run.start + size, segment=twin) if size else None, cursor)
    pieces = run.extent.pieces
    first = pieces.row_at(run.source_start)
    last = _agreeing(pieces, first, twin, end)
    if last == len(pieces):
        position, next_offset = pieces.file_end, snapshot.log_end_offset
    else:
        position, next_offset = int(pieces.columns[POSITION, last]), int(pieces.columns[BASE_OFFSET, last])
        if next_offset == UNKNOWN:  # compressed, of an old format; the position tells where to go on
            next_offset = run.segment.base_offset
    if run.extent.wanted is not None:
        next_offset = max(next_offset, run.extent.wanted.first)
    size = pieces.rendered_start(last) - run.source_start
    if last <= first or size <= 0:
        return _Kept(None, Cursor(next_offset))
    return _Kept(run._replace(end=run.start + size), Cursor(next_offset, twin, position))


def _agreeing(pieces: Pieces, first: int, twin: Segment, end: int) -> int:
    """The first piece from `first` on that is not in `twin` as it was measured: by its end, and its first batch."""
    low, high = first, int(pieces.columns[FILE_END].searchsorted(end, side="right"))
    # If a piece's first batch is still there, so is all before it: a truncation leaves what lies before it alone.
    while low < high:
        middle = (low + high) // 2
        if _begins_with(pieces, middle, twin, end):
            low = middle + 1
        else:
            high = middle
    # The last piece that begins alike may end otherwise, and the pieces of one huge batch stand together.
    if low > first:
        low -= 1
        low = int(pieces.columns[POSITION].searchsorted(int(pieces.columns[POSITION, low])))
    return max(low, first)


def _begins_with(pieces: Pieces, row: int, twin: Segment, end: int) -> bool:
    if int(pieces.columns[CRC, row]) == NO_CRC:
        return False
    try:
        batch = twin.batch_at(int(pieces.columns[POSITION, row]), end)
    except StorageError:
        return False
    return (
        batch is not None
        and int(batch.base_offset[0]) == int(pieces.columns[BASE_OFFSET, row])
        and int(batch.crc[0]) == int(pieces.columns[CRC, row])
    )
