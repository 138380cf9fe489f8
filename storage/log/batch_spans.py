"""The bytes of a log's batches between two offsets, whatever segments they are in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from storage.format.batches import BatchTable
from storage.log.reader import find_batch
from storage.log.scanning import scan_sound_batches
from storage.log.segment import LargeBatch, Segment, bytes_of
from storage.log.snapshot import LogSnapshot


class BatchSpan(NamedTuple):
    """Whole batches of a segment: `data` has their bytes, back to back, from the file position `origin` on (see
    `bytes_of`). Valid until the next span is taken."""

    segment: Segment
    origin: int
    data: memoryview | LargeBatch
    table: BatchTable


def spans_between(snapshot: LogSnapshot, first_offset: int, last_offset: int | None = None) -> Iterator[BatchSpan]:
    """Yield the batches from the one that holds or follows `first_offset` to the last one that ends at or before
    `last_offset` (None: the log's end), also those below the log start.

    Only headers are checked. Damage is raised: CorruptBatch and the like.
    """
    whole = replace(snapshot, log_start_offset=0)
    place = find_batch(whole, first_offset)
    if place is None:
        return
    position = place.position
    for segment in snapshot.segments[place.segment_index :]:
        with closing(scan_sound_batches(snapshot, segment, position)) as windows:
            for window in windows:
                table = window.table
                rows = table.rows if last_offset is None else int(table.last_offset.searchsorted(last_offset, "right"))
                if rows:
                    part = table.slice(0, rows)
                    data = bytes_of(segment.log, window.buffer, part, 0, rows, window.origin)
                    yield BatchSpan(segment, int(part.position[0]), data, part)
                if rows < table.rows:
                    return
        position = 0
