"""First and newest timestamps of segments, found without reading messages: from the first batch's header, the time
index, and, while a segment still grows, the headers after the index's last entry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from storage.errors import StorageError
from storage.format.batches import BATCH_HEADER_SIZE, DELETE_HORIZON_MASK, MAGIC_AT, TIMESTAMP_TYPE_MASK
from storage.log.offset_lookup import greatest_timestamp
from storage.log.reader import batch_records, find_batch
from storage.log.segment import Segment
from storage.log.snapshot import Log, LogSnapshot
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

_lock = threading.Lock()
# The keys are Segments: a file that was replaced, truncated or rewritten is another Segment.
_first: WeakKeyDictionary[Segment, int] = WeakKeyDictionary()  # of those that hold a batch: it stays the first
_newest: WeakKeyDictionary[Segment, int] = WeakKeyDictionary()  # of sealed ones: nothing is appended to them


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
    found = _timestamp(head)
    if end > 0:
        with _lock:
            _first[segment] = found
    return found


def first_shown_timestamp(snapshot: LogSnapshot) -> int:
    """The timestamp of the first message from the log start on; otherwise as `first_timestamp`."""
    start = snapshot.log_start_offset
    segments = shown_segments(snapshot)
    if segments and segments[0].base_offset >= start:
        return first_timestamp(snapshot, segments[0])
    try:
        found = find_batch(snapshot, start) if segments else None
        if found is None:
            return NO_TIMESTAMP
        with batch_records(snapshot, found.segment, found.position) as block:
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
    """The greatest known timestamp of a segment, -1 where there is none or it cannot be read.

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
        index = segment.time_index(end)
        if end > _UNINDEXED_BYTES and not len(index):
            return first_timestamp(snapshot, segment)  # An index may yet come.
        indexed = sealed and len(index) > 0
        newest = index.last.timestamp if indexed else greatest_timestamp(snapshot, segment).timestamp
        if sealed and newest != NO_TIMESTAMP:
            with _lock:
                _newest[segment] = newest
        return newest
    except (StorageError, OSError):
        return NO_TIMESTAMP


def log_mtime_ns(log: Log, snapshot: LogSnapshot) -> int:
    """The modification time of a partition: that of its last segment, or of its directory where there is none."""
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
    if len(waiting) > 1:  # side by side: each waits for the tier
        from concurrent.futures import ThreadPoolExecutor  # rarely needed, and takes a while

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            times = [*pool.map(find, waiting), *map(find, set(chosen).difference(waiting))]
    else:
        times = list(map(find, chosen))
    newest = max(times, default=NO_TIMESTAMP)
    return newest * 1_000_000 if newest != NO_TIMESTAMP else file_mtime_ns(chosen)


def file_mtime_ns(segments: Iterable[Segment]) -> int:
    """The newest modification time of these segments' files; 0 where there is none."""
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
