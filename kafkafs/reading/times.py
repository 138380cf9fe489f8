"""First and newest timestamps and the days of segments, found without reading messages: from the first batch's header,
the time index, and, while a segment still grows, the headers after the index's last entry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from datetime import date
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from storage.errors import StorageError
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    DELETE_HORIZON_MASK,
    MAGIC_AT,
    MAX_MAGIC,
    TIMESTAMP_TYPE_MASK,
    BatchTable,
)
from storage.log.greatest_timestamp import greatest_timestamp
from storage.log.reader import batch_records, find_batch
from storage.log.scanning import scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.log.tiered_file import REQUESTS_AT_ONCE
from storage.types import NO_TIMESTAMP

_V1_TIMESTAMP: Final = struct.Struct(">18xq")
_V2_TIMES: Final = struct.Struct(
    ">21x"
    "h"  # attributes
    "4x"
    "q"  # base timestamp, or the delete horizon
    "q"  # max timestamp
)
_UNINDEXED_BYTES: Final = 4 << 20  # more than this is not read for a timestamp that is not in an index
DAY_MS: Final = 86_400_000
_LAST_DAY: Final = date.max.toordinal() - date(1970, 1, 1).toordinal()
_MOST_DAYS: Final = 3_660  # of one segment: producers choose timestamps, and some are off by centuries


class _Days(NamedTuple):
    """The days since 1970 of a segment's known timestamps from `start_offset` up to the position `end`, ascending."""

    start_offset: int
    end: int
    days: NDArray[np.int64]


_lock = threading.Lock()
# The keys are Segments: a file that was replaced, truncated or rewritten is another Segment.
_first: WeakKeyDictionary[Segment, int] = WeakKeyDictionary()  # of segments that hold a batch, which stays the first
_newest: WeakKeyDictionary[Segment, int] = WeakKeyDictionary()  # of sealed segments, to which nothing is appended
_days: WeakKeyDictionary[Segment, _Days] = WeakKeyDictionary()


def first_timestamp(snapshot: LogSnapshot, segment: Segment) -> int:
    """The timestamp of a segment's first batch (first message or append time); -1: it has none, or is damaged."""
    with _lock:
        known = _first.get(segment)
    if known is not None:
        return known
    end = snapshot.end_position(segment)
    try:
        head = segment.log.read(0, min(BATCH_HEADER_SIZE, end))
    except (StorageError, OSError):
        return NO_TIMESTAMP
    if segment.batch_size(head) is None:
        return NO_TIMESTAMP  # not remembered: damage may be repaired
    timestamp = _timestamp(head)
    if end > 0:
        with _lock:
            _first[segment] = timestamp
    return timestamp


def first_shown_timestamp(snapshot: LogSnapshot) -> int:
    """The timestamp of the first message from the log start on; -1 as in `first_timestamp`."""
    start = snapshot.log_start_offset
    segments = shown_segments(snapshot)
    if segments and segments[0].base_offset >= start:
        return first_timestamp(snapshot, segments[0])
    try:
        place = find_batch(snapshot, start) if segments else None
        if place is None:
            return NO_TIMESTAMP
        with batch_records(snapshot, place.segment, place.position) as block:
            shown = block.timestamp[block.offset >= start]
            return int(shown[0]) if len(shown) else NO_TIMESTAMP
    except (StorageError, OSError):
        return NO_TIMESTAMP


def shown_segments(snapshot: LogSnapshot) -> tuple[Segment, ...]:
    """The segments that hold messages from the log start on; the others are about to be removed."""
    if snapshot.log_start_offset >= snapshot.log_end_offset:
        return ()
    return snapshot.segments[max(snapshot.segment_index(snapshot.log_start_offset), 0) :]


def newest_timestamp(snapshot: LogSnapshot, segment: Segment) -> int:
    """The greatest known timestamp of a segment, -1 if there is none or it cannot be read.

    For a sealed segment this is the last entry of its time index, unverified: good enough for a listing or an mtime.
    """
    sealed = segment.sealed
    if sealed:
        with _lock:
            known = _newest.get(segment)
        if known is not None:
            return known
    end = snapshot.end_position(segment)
    try:
        if not sealed and end <= _UNINDEXED_BYTES:
            return greatest_timestamp(snapshot, segment).timestamp
        newest = segment.last_indexed_time(end).timestamp
        if end > _UNINDEXED_BYTES and newest == NO_TIMESTAMP:
            return first_timestamp(snapshot, segment)  # an index may be added later
        if not sealed or newest == NO_TIMESTAMP:
            newest = greatest_timestamp(snapshot, segment).timestamp
        if sealed and newest != NO_TIMESTAMP:
            with _lock:
                _newest[segment] = newest
        return newest
    except (StorageError, OSError):
        return NO_TIMESTAMP


def known_days(snapshot: LogSnapshot, segment: Segment) -> NDArray[np.int64]:
    """The UTC days, counted from 1970, of the segment's known timestamps from the log start on, and the days between
    them, at most 3,660 and the narrowest gaps first. None if the segment cannot be read.

    If the first, the newest and the indexed timestamps are plausible, no others are read. Otherwise the headers of the
    last 4 MiB are read too, because after a timestamp that is far too late the time index has no further entry.
    """
    start, end = max(snapshot.log_start_offset, segment.base_offset), snapshot.end_position(segment)
    with _lock:
        known = _days.get(segment)
    if known is None or known.start_offset != start:
        known = _Days(start, 0, np.empty(0, np.int64))
    if known.end < end:
        try:
            known = _Days(start, end, np.union1d(known.days, _days_behind(snapshot, segment, known, end)))
        except (StorageError, OSError):
            return _filled(known.days)
        with _lock:
            _days[segment] = known
    return _filled(known.days)


def _days_behind(snapshot: LogSnapshot, segment: Segment, known: _Days, end: int) -> NDArray[np.int64]:
    """The days of the time index, of the first and the newest message, and if these are not plausible of the headers of
    the last batches after `known.end`."""
    shown = segment.base_offset >= snapshot.log_start_offset
    first = first_timestamp(snapshot, segment) if shown else first_shown_timestamp(snapshot)
    index = segment.time_index(end)
    newest = newest_timestamp(snapshot, segment)
    days = _days_of(np.append(index.timestamps[index.offsets >= known.start_offset], (first, newest)))
    if not len(days) or (days[-1] <= _LAST_DAY and days[-1] - days[0] < _MOST_DAYS):
        return days
    position = known.end
    if end - position > _UNINDEXED_BYTES:
        if not len(index):
            return days  # an index may be added later
        position = max(position, segment.floor_position(end - _UNINDEXED_BYTES, end))
    for window in scan_batches(snapshot, segment, position, end):
        days = np.union1d(days, _days_of(_timestamps(window.table, known.start_offset)))
    return days


def _timestamps(table: BatchTable, start_offset: int) -> NDArray[np.int64]:
    """The timestamps in the headers of the batches that reach `start_offset`."""
    plain = table.attributes & (DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK) == 0
    plain &= (table.magic == MAX_MAGIC) & (table.base_offset >= start_offset)
    return np.concatenate((table.max_timestamp[table.last_offset >= start_offset], table.base_timestamp[plain]))


def _days_of(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(timestamps[timestamps > NO_TIMESTAMP] // DAY_MS)


def _filled(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Some days, and those between them, as many as there may be."""
    days = days[-_MOST_DAYS:]
    absent = np.diff(days) - 1
    narrowest = absent.argsort(kind="stable")
    filled = narrowest[absent[narrowest].cumsum() <= _MOST_DAYS - len(days)]
    return np.sort(np.concatenate((days, *(np.arange(days[slot] + 1, days[slot + 1]) for slot in filled))))


def log_mtime_ns(log: ReadableLog, snapshot: LogSnapshot) -> int:
    """The modification time of a partition: that of its last segment, or of its directory if it has none."""
    if not snapshot.segments:
        return log.path.stat().st_mtime_ns
    return mtime_ns(snapshot, snapshot.segments[-1:])


def mtime_ns(snapshot: LogSnapshot, segments: Iterable[Segment]) -> int:
    """The modification time to show for these segments: the newest message's, or the file's if messages have none."""
    chosen = tuple(segments)
    find = partial(newest_timestamp, snapshot)
    waiting = [segment for segment in chosen if segment.is_remote] if len(chosen) > 1 else []
    if waiting:
        with _lock:
            waiting = [segment for segment in waiting if segment not in _newest]
    if len(waiting) > 1:  # in parallel: each waits for the tier
        from concurrent.futures import ThreadPoolExecutor  # rarely needed, and takes a while

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            times = [*pool.map(find, waiting), *map(find, set(chosen).difference(waiting))]
    else:
        times = list(map(find, chosen))
    newest = max(times, default=NO_TIMESTAMP)
    return newest * 1_000_000 if newest != NO_TIMESTAMP else file_mtime_ns(chosen)


def file_mtime_ns(segments: Iterable[Segment]) -> int:
    """The newest modification time of these segments' files; 0 if there are none."""
    newest = 0
    for segment in segments:
        try:
            newest = max(newest, segment.log.stat().st_mtime_ns)
        except (StorageError, OSError):
            continue
    return newest


def _timestamp(head: memoryview) -> int:
    magic = head[MAGIC_AT]
    if magic == 1 and len(head) >= _V1_TIMESTAMP.size:
        return int(_V1_TIMESTAMP.unpack_from(head)[0])
    if magic != 2 or len(head) < _V2_TIMES.size:
        return NO_TIMESTAMP
    attributes, base, greatest = _V2_TIMES.unpack_from(head)
    return int(greatest if attributes & (DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK) else base)
