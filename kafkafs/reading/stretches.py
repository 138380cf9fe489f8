"""Parts of a log that may have messages with a key or of a time, by the index: reading without a mount skips the rest.

Kafka's time index shows up to where no message is as late as a given time. It does not show how early the messages
after that may be: a record may have any timestamp. So a range of times that ends would have to be read to the log's
end. Instead, segments with later messages are scanned for the times of their blocks, which takes as long as reading
them; the result is kept in the user's cache directory, and shared with mounts. A backup in an object store needs no
scan: its manifest has the times of each object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkafs.reading.blocks import BASE_OFFSET, GREATEST, LEAST, NO_GREATEST, NO_LEAST
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.layout import Cursor, Span, spans_from
from kafkafs.reading.store import LEAST_BYTES, Store, default_directory
from kafkafs.reading.workers import Workers
from storage.errors import StorageError
from storage.log.counting import visible_end
from storage.log.greatest_timestamp import may_reach
from storage.log.reader import read_blocks
from storage.types import OffsetRange, TimeRange

if TYPE_CHECKING:
    from kafkafs.reading.blocks import Int64s
    from storage.format.block import RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot
    from storage.types import Isolation

INDEX_BYTES: Final = 1 << 30  # on disk


def index() -> BlockIndex:
    """The process's index, with the entries that mounts and earlier commands have kept."""
    try:
        return _index(default_directory())
    except RuntimeError:  # there is no home directory
        return _index(None)


@lru_cache(maxsize=1)
def _index(directory: Path | None) -> BlockIndex:
    return BlockIndex(Workers(0), None if directory is None else Store(directory, INDEX_BYTES))


def read_with_key(
    snapshot: LogSnapshot,
    start_offset: int,
    end_offset: int | None,
    key: bytes,
    *,
    isolation: Isolation,
    decoder: Decoder,
) -> Iterator[RecordBlock]:
    """`storage.log.reader.read_range`, without records that the index shows to lack the key; records with other keys
    may be among them."""
    snapshot.check_offset(start_offset)
    spans, _ = spans_from(snapshot, Cursor(start_offset), end_offset, visible_end(snapshot, isolation))
    for span in spans:
        for start, end in _with_key(snapshot, span, key):
            for block in read_blocks(
                snapshot, span.segment, start, end, isolation=isolation, decoder=decoder, at_copy=True
            ):
                yield block if span.record_filter is None else span.record_filter.apply(block)


def _with_key(snapshot: LogSnapshot, span: Span, key: bytes) -> list[tuple[int, int]]:
    """The stretches (start, end) of a span in which the key may be."""
    segment = span.segment
    if segment.size < LEAST_BYTES:
        return [(span.start, span.end)]
    table = index().known(segment)
    missing = sum(last - first for first, last in table.unfiltered(span.start, span.end))
    if missing and 2 * missing > snapshot.end_position(segment):
        # Scanning a segment is worth while if most of it would have to be read anyway.
        table = index().table(snapshot, segment, span.end, keys=True)
        index().keep()
    places = table.find(key, span.start, span.end)
    return [*places.stretches, (places.behind, span.end)] if places.behind < span.end else places.stretches


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
            part = OffsetRange(max(first, start), min(last, end))
            if part.start < part.end:
                yield part
        start = max(start, end)


def _within(snapshot: LogSnapshot, segment: Segment, times: TimeRange, start: int) -> list[tuple[int, int]]:
    """The parts of one segment; all of it if nothing is known, or damage may hide messages."""
    whole, size = [(0, 2**63 - 1)], snapshot.end_position(segment)
    known = np.array(segment.known_times, np.int64).reshape(-1, 3).T
    if times.end_ms is None or (size < LEAST_BYTES and not known.size):
        return whole
    with suppress(StorageError, OSError):  # reading reports it
        table = index().known(segment)
        # For a growing segment the result may soon be useless: scan only if most of it would have to be read anyway.
        is_worth_it = not known.size and (segment.sealed or 2 * segment.floor(start, size) < size)
        if table.file_end < size and is_worth_it and may_reach(snapshot, segment, times.end_ms):
            table = index().table(snapshot, segment, size, keys=False)
            index().keep()
        if len(table) and not table.is_damaged and (table.file_end == size or not known.size):
            known = table.columns[[BASE_OFFSET, LEAST, GREATEST]]
            if table.file_end < size:
                known[1, -1], known[2, -1] = NO_GREATEST, NO_LEAST  # after the last block any time is possible
        # Compressed messages of old formats have no offset in the header.
        if known.size and (known[0] >= 0).all() and (np.diff(known[0]) > 0).all():
            return _offsets_within(known, times.start_ms, times.end_ms)
    return whole


def _offsets_within(known: Int64s, start_ms: int | None, end_ms: int) -> list[tuple[int, int]]:
    """The offsets of the stretches that may have messages between two times; `known` has the first offset, least and
    greatest timestamp of each. The last stretch has all that follows."""
    bases, least, greatest = known
    mask = least < end_ms
    if start_ms is not None:
        mask &= greatest >= start_ms
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0])))).tolist()
    ends = np.append(bases[1:], 2**63 - 1)
    return [(int(bases[a]), int(ends[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]
