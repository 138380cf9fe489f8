"""From an offset to a batch, and from a span of batches to records."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.format.batches import BatchTable
from storage.format.block import BatchDamage, RecordBlock
from storage.format.columns import RecordColumn
from storage.format.decoder import Decoder
from storage.log.isolation import AbortedTransactions, last_stable_offset
from storage.log.scanning import Window, scan_batches, scan_sound_batches
from storage.log.segment import LOOKUP_BYTES, WINDOW_BYTES, Segment
from storage.log.snapshot import LogSnapshot
from storage.types import MAX_OFFSET, Isolation

_DECODERS_KEPT: Final = 8
_decoders: deque[Decoder] = deque(maxlen=_DECODERS_KEPT)


class BatchPosition(NamedTuple):
    """The beginning of a batch. `segment_index` counts in the snapshot's segments."""

    segment_index: int
    segment: Segment
    position: int


def find_batch(snapshot: LogSnapshot, offset: int) -> BatchPosition | None:
    """The first batch whose last offset is >= `offset`: the one that holds it, or the next one after a gap.

    None if there is no such batch. If damage hides the batch, the position of the damage, so that reading there fails
    instead of skipping it. An offset below the log start counts as the log start; for Kafka's OffsetOutOfRange see
    `LogSnapshot.check_offset`.
    """
    from_offset = max(offset, snapshot.log_start_offset)
    for index in range(max(snapshot.segment_index(from_offset), 0), len(snapshot.segments)):
        segment = snapshot.segments[index]
        end = snapshot.end_position(segment)
        if end == 0:
            continue
        start = segment.floor(from_offset, end)
        for window in scan_batches(snapshot, segment, start, end, window=LOOKUP_BYTES):
            if window.damage is not None:
                if not _resumes_at_or_below(snapshot, segment, window.damage.end, from_offset):
                    return BatchPosition(index, segment, window.damage.position)
                continue
            row = int(np.searchsorted(window.table.last_offset, from_offset))
            if row < window.table.rows:
                return BatchPosition(index, segment, int(window.table.position[row]))
    return None


def _resumes_at_or_below(snapshot: LogSnapshot, segment: Segment, position: int, offset: int) -> bool:
    """Whether the batch at `position` begins at or below `offset`, so that no batch before it can hold the offset."""
    batch = segment.batch_at(position, snapshot.end_position(segment))
    return batch is not None and 0 <= int(batch.base_offset[0]) <= offset


def last_batch(snapshot: LogSnapshot) -> BatchTable | None:
    """The header of the last readable batch of the last segment with messages; None if there is none."""
    for segment in reversed(snapshot.segments):
        end = snapshot.end_position(segment)
        if end:
            header = None
            for window in scan_batches(snapshot, segment, segment.floor(snapshot.log_end_offset, end), end):
                if window.table.rows:
                    header = window.table.slice(window.table.rows - 1, window.table.rows).copy()
            return header
    return None


def read_blocks(
    snapshot: LogSnapshot,
    segment: Segment,
    start_position: int,
    end_position: int | None = None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    decoder: Decoder | None = None,
    window: int = WINDOW_BYTES,
    control: bool = False,
    at_copy: bool = False,
) -> Generator[RecordBlock, None, None]:
    """The records of the batches that begin in [start_position, end_position) of a segment, as a consumer sees them.

    No control records (unless `control`), nothing below the log start offset; under read_committed nothing of aborted
    transactions and nothing from the last stable offset on. Positions as in `scan_batches`. A block is valid until the
    next block is requested. Damage is in `RecordBlock.damage` (its error has the file's path); the records before it
    are in the block, and the next block continues after it. A block is empty only if it has damage.
    """
    reader = _take_decoder() if decoder is None else decoder
    committed = AbortedTransactions(snapshot, segment) if isolation is Isolation.READ_COMMITTED else None
    stable = MAX_OFFSET if committed is None else last_stable_offset(snapshot)
    position: int | None = start_position
    try:
        while position is not None:
            spans = scan_batches(snapshot, segment, position, end_position, window=window, at_copy=at_copy)
            position = None
            for span in spans:
                if span.damage is not None:
                    yield _damaged(span)
                    continue
                table = span.table
                rows = int(np.searchsorted(table.last_offset, stable)) if stable != MAX_OFFSET else table.rows
                # A batch that extends beyond the last stable offset holds no records of an open transaction.
                straddles = rows < table.rows and 0 <= int(table.base_offset[rows]) < stable
                skip = None if committed is None else committed.skip_rows(table)
                for block in _decoded(reader, segment, span, rows + straddles, skip, control):
                    shown = _cut(block, snapshot.log_start_offset, stable)
                    if shown.damage is not None:
                        position = _behind_a_wrong_length(snapshot, segment, span, shown.damage)
                        if position is not None:
                            shown.damage = replace(shown.damage, end=position)
                    if len(shown) or shown.damage is not None:
                        yield shown
                    if position is not None:
                        break
                if rows < table.rows or position is not None:
                    break
            spans.close()
    finally:
        if decoder is None:
            _decoders.append(reader)


def _decoded(
    decoder: Decoder, segment: Segment, window: Window, rows: int, skip: NDArray[np.uint8] | None, control: bool
) -> Iterator[RecordBlock]:
    row = 0
    while row < rows:
        block = decoder.decode(window.buffer, window.table, row, rows, origin=window.origin, skip=skip, control=control)
        row = block.next_row
        if block.damage is not None:
            block.damage.error.path = segment.log.path
            row = block.damage.row + 1
        yield block


def _cut(block: RecordBlock, first_offset: int, end_offset: int) -> RecordBlock:
    """The block's records from `first_offset` (included) to `end_offset` (excluded)."""
    if len(block) and (int(block.offset[0]) < first_offset or int(block.offset[-1]) >= end_offset):
        return block.select((block.offset >= first_offset) & (block.offset < end_offset))
    return block


def _behind_a_wrong_length(snapshot: LogSnapshot, segment: Segment, window: Window, damage: BatchDamage) -> int | None:
    """The beginning of a batch inside a damaged batch, which shows that the latter's length is wrong; None if none
    is."""
    table, row = window.table, damage.row
    before = int(table.last_offset[row - 1]) if row else segment.base_offset - 1
    behind = segment.resume_after(damage.position, before, snapshot.end_position(segment))
    return behind if behind is not None and behind < int(table.end[row]) else None


def read_range(
    snapshot: LogSnapshot,
    start_offset: int,
    end_offset: int | None = None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    decoder: Decoder | None = None,
    window: int = WINDOW_BYTES,
    control: bool = False,
) -> Generator[RecordBlock, None, None]:
    """The records with offsets from `start_offset` (included) to `end_offset` (excluded, by default the log's end).

    Blocks as from `read_blocks`, in offset order over all segments. OffsetOutOfRange if `start_offset` is below the log
    start or above the log end; an `end_offset` above the log end is the log end. `control` as in `read_blocks`.
    """
    snapshot.check_offset(start_offset)
    end = snapshot.log_end_offset if end_offset is None else min(end_offset, snapshot.log_end_offset)
    if isolation is Isolation.READ_COMMITTED:
        end = min(end, last_stable_offset(snapshot))
    first = find_batch(snapshot, start_offset) if start_offset < end else None
    if first is None:
        return
    position = first.position
    for segment in snapshot.segments[first.segment_index :]:
        if segment.base_offset >= end:
            return
        for block in read_blocks(
            snapshot, segment, position, isolation=isolation, decoder=decoder, window=window, control=control
        ):
            begins, ends = _span(block)
            if begins >= end and (len(block) or end < snapshot.log_end_offset):
                return
            shown = _cut(block, start_offset, end)
            if len(shown) or shown.damage is not None:
                yield shown
            if ends >= end:
                return
        position = 0


@contextmanager
def batch_records(snapshot: LogSnapshot, segment: Segment, position: int) -> Iterator[RecordBlock]:
    """All records of the one batch at `position`, also control records and those below the log start.

    The block is valid within the `with`. CorruptBatch, or another StorageError, if the batch cannot be read.
    """
    decoder = _take_decoder()
    try:
        with closing(scan_sound_batches(snapshot, segment, position, window=LOOKUP_BYTES)) as windows:
            for window in windows:
                block = decoder.decode(window.buffer, window.table, 0, 1, origin=window.origin, control=True)
                block.check(segment.log.path)
                yield block
                return
        raise ValueError(f"no batch at position {position} of {segment}")
    finally:
        _decoders.append(decoder)


def _span(block: RecordBlock) -> tuple[int, int]:
    """First and last offset of a block; for a block with only damage, the damaged batch's, -1 if unknown."""
    if len(block):
        return int(block.offset[0]), int(block.offset[-1])
    known = block.damage.error.offset if block.damage is not None else None
    return (-1, -1) if known is None else (known, known)


def _damaged(window: Window) -> RecordBlock:
    """An empty block that reports the window's damage."""
    damage = window.damage
    assert damage is not None
    nothing = np.empty((len(RecordColumn), 0), np.int64)
    batch_damage = BatchDamage(0, damage.position, damage.end, damage.error)
    return RecordBlock(window.buffer.toreadonly(), BatchTable.empty(0), nothing, 0, batch_damage)


def _take_decoder() -> Decoder:
    try:
        return _decoders.pop()
    except IndexError:
        return Decoder()
