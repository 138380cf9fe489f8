"""Messages and bytes over time: from index entries, and from batch headers where those are not enough.

An .index entry has a position and an offset, a .timeindex entry the greatest timestamp up to an offset. So between
two entries bytes, offsets and two times are known without reading the log. Where both times are in one bucket that is
enough; otherwise the few batches in between are read. What is exact:

- bytes, each batch at its greatest timestamp; a batch with a lower timestamp than an earlier one of its segment
counts   where that one does - messages as offsets: those that compaction removed, and transactions' markers, may
count

Some producers write microseconds or nanoseconds instead of milliseconds. A time after the year 9999 is not a date: a
batch with one counts as if it had no timestamp, and the others of its segment where they belong.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.format.batches import BatchTable
from storage.log import reader
from storage.log.scanning import scan_batches
from storage.log.segment import LOOKUP_BYTES, WINDOW_BYTES, Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    pass


_Int64s = npt.NDArray[np.int64]

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# Bucket widths that people use, milliseconds.
WIDTHS: Final = (
    *(n * unit for unit in (1, 10, 100) for n in (1, 2, 5)),
    *(n * unit for unit in (_SECOND, _MINUTE) for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 364, 3640)),
)
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999


class Histogram(NamedTuple):
    """`messages` and `size_bytes` (int64) of each bucket of `width_ms` from `start_ms` (epoch milliseconds) on;
    messages without a valid date are counted separately. Without any timestamp there is no bucket."""

    start_ms: int
    width_ms: int
    messages: _Int64s
    size_bytes: _Int64s
    undated_messages: int
    undated_bytes: int

    @property
    def starts_ms(self) -> _Int64s:
        """Where each bucket begins."""
        return self.start_ms + np.arange(len(self.messages), dtype=np.int64) * self.width_ms


class _Pieces(NamedTuple):
    """Spans of a segment, int64 columns: messages, bytes, positions, and the greatest timestamps before and at the end.

    `whole`: reading the log would not tell more.
    """

    messages: _Int64s
    size: _Int64s
    position: _Int64s
    before_ms: _Int64s
    end_ms: _Int64s
    whole: npt.NDArray[np.bool_]


def histogram(snapshots: Sequence[LogSnapshot], *, buckets: int = 60, width_ms: int | None = None) -> Histogram:
    """All messages of some logs over time, in at most `buckets` of one of the WIDTHS; or of `width_ms`.

    Damage is skipped. SegmentGone when files are removed meanwhile; ValueError when `width_ms` makes more than a
    million.
    """
    known = [
        (snapshot, segment, pieces)
        for snapshot in snapshots
        for segment in snapshot.segments
        if (pieces := _pieces(snapshot, segment)) is not None
    ]
    ends = np.concatenate([pieces.end_ms for _, _, pieces in known]) if known else np.empty(0, np.int64)
    dated = ends[ends > NO_TIMESTAMP]
    if not len(dated):
        undated = [int(sum(pieces[column].sum() for _, _, pieces in known)) for column in (0, 1)]
        nothing = np.zeros(0, np.int64)
        return Histogram(0, width_ms or _DAY, nothing, nothing, *undated)
    begins = np.concatenate([np.where(pieces.before_ms < 0, pieces.end_ms, pieces.before_ms) for _, _, pieces in known])
    first, last = int(begins[begins > NO_TIMESTAMP].min()), int(dated.max())
    width = width_ms or _width(first, last, buckets)
    start = first // width * width
    count = (last - start) // width + 1
    if count > 1_000_000:
        raise ValueError(f"{count} buckets of {width} ms")
    totals = np.zeros((2, count + 1), np.int64)  # the last is for messages without a timestamp
    for snapshot, segment, pieces in known:
        split = ~pieces.whole & (pieces.before_ms // width != pieces.end_ms // width)
        told = pieces.messages.copy()
        for row in np.flatnonzero(split).tolist():
            position, before = int(pieces.position[row]), int(pieces.before_ms[row])
            looked_at = _from_headers(snapshot, segment, position, position + int(pieces.size[row]), before)
            _add(totals, looked_at, looked_at.whole, start, width)
            _correct_neighbours(pieces, row, int(told[row]), looked_at)
        _add(totals, pieces, ~split, start, width)
    return Histogram(start, width, totals[0, :-1], totals[1, :-1], int(totals[0, -1]), int(totals[1, -1]))


def _correct_neighbours(pieces: _Pieces, row: int, told: int, looked_at: _Pieces) -> None:
    """Corrects the counts from indexes (`told`), which are a batch too late, see `_pieces`; here both ends are
    known."""
    if not len(looked_at.messages):
        return
    first = 0 if row == 0 or pieces.whole[row - 1] else int(looked_at.messages[0])
    behind = told + first - int(looked_at.messages.sum())
    if first:
        pieces.messages[row - 1] -= first
    if row + 1 < len(pieces.whole) and not pieces.whole[row + 1]:
        pieces.messages[row + 1] += behind


def _width(first: int, last: int, buckets: int) -> int:
    further = (WIDTHS[-1] << doubled for doubled in itertools.count(1))  # from the year 1 to 9999 in few buckets
    return next(width for width in itertools.chain(WIDTHS, further) if last // width - first // width < buckets)


def _add(totals: _Int64s, pieces: _Pieces, chosen: npt.NDArray[np.bool_], start: int, width: int) -> None:
    count = totals.shape[1] - 1
    ends = pieces.end_ms[chosen]
    slots = np.where(ends < 0, count, np.clip((ends - start) // width, 0, count - 1))
    for total, values in zip(totals, (pieces.messages, pieces.size), strict=True):
        np.add.at(total, slots, values[chosen])


def _pieces(snapshot: LogSnapshot, segment: Segment) -> _Pieces | None:
    """The spans of a segment: from its indexes, and from headers before their first entry and after their last.

    From headers alone where there is no usable index. None for a segment of which nothing may be read.
    """
    end = snapshot.end_position(segment)
    start = 0
    if snapshot.log_start_offset > segment.base_offset:
        place = reader.find_batch(snapshot, snapshot.log_start_offset)
        if place is None or place.segment.base_offset > segment.base_offset:
            return None
        start = place.position if place.segment is segment else 0
    if start >= end:
        return None
    index, times = segment.offset_index(end), segment.time_index(end)
    positions, offsets = index.positions, index.offsets
    chosen = (positions > start) & (positions < end)
    positions, offsets = positions[chosen], offsets[chosen]
    # After a time that is not a date the time index has no other: none is greater.
    usable = len(times) > 0 and times.last.timestamp <= _LAST_MS
    if index.problem is not None or times.problem is not None or not usable or len(positions) < 2:
        return _from_headers(snapshot, segment, start, end)
    first, last = segment.batch_at(int(positions[0]), end), segment.batch_at(int(positions[-1]), end)
    if first is None or last is None:
        return _from_headers(snapshot, segment, start, end)
    head = _from_headers(snapshot, segment, start, int(positions[0]))
    # The greatest timestamp up to each entry's batch.
    slots = times.offsets.searchsorted(offsets, side="right") - 1
    greatest = np.where(slots < 0, int(head.end_ms.max(initial=NO_TIMESTAMP)), times.timestamps[slots])
    tail = _from_headers(snapshot, segment, int(positions[-1]), end, int(greatest[-1]))
    spans, unread = (np.diff(offsets), np.diff(positions)), np.zeros(len(slots) - 1, np.bool_)
    middle = _Pieces(*spans, positions[:-1], greatest[:-1], greatest[1:], unread)
    # An entry's offset is the last of the batch that begins at its position, so between entries counts are a batch
    # late.
    middle.messages[0] += _count(first)
    middle.messages[-1] -= _count(last)
    return _Pieces(*(np.concatenate(columns) for columns in zip(head, middle, tail, strict=True)))


def _count(batch: BatchTable) -> int:
    base, last = int(batch.base_offset[0]), int(batch.last_offset[0])
    return 1 if base < 0 else last - base + 1


def _from_headers(
    snapshot: LogSnapshot, segment: Segment, start: int, end: int, greatest_ms: int = NO_TIMESTAMP
) -> _Pieces:
    """A span for each batch; `greatest_ms` is the greatest timestamp before. Compressed message sets of the old
    formats count the offsets since the batch before, or one."""
    columns: list[_Int64s] = []
    before = segment.base_offset - 1 if start == 0 else None
    for one in scan_batches(snapshot, segment, start, end, window=min(max(end - start, LOOKUP_BYTES), WINDOW_BYTES)):
        table = one.table
        if not table.rows:
            continue
        last = table.last_offset
        previous = np.concatenate(([last[0] - 1 if before is None else before], last[:-1]))
        count = last - np.where(table.base_offset < 0, previous + 1, table.base_offset) + 1
        beyond = table.max_timestamp > _LAST_MS
        stamps = np.where(beyond, NO_TIMESTAMP, table.max_timestamp)
        greatest = np.maximum.accumulate(np.maximum(stamps, greatest_ms))
        before, greatest_ms = int(last[-1]), int(greatest[-1])
        greatest = np.where(beyond, NO_TIMESTAMP, greatest)
        columns.append(np.stack((count, table.size, table.position, greatest, greatest)))
    found = np.concatenate(columns, axis=1) if columns else np.empty((5, 0), np.int64)
    return _Pieces(found[0], found[1], found[2], found[3], found[4], np.ones(found.shape[1], np.bool_))
