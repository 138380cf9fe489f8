"""Choosing messages of a log, and their offsets in a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.reading import block_kernel
from kafkafs.reading.range_names import LastDuration, LastMessages, OffsetsCount, OffsetSpec, TimeBetween, TimeSpec
from kafkafs.reading.times import first_timestamp
from storage.format.batches import times_of
from storage.log.counting import count_messages, nth_message, visible_end
from storage.log.greatest_timestamp import may_reach, position_for_timestamp
from storage.types import MAX_OFFSET, NO_TIMESTAMP, Isolation, TimeRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.batches import BatchTable
    from storage.format.block import RecordBlock
    from storage.latest.offset_map import Int64s
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot


# A range as offsets and timestamps of a log in its present state.
#
# Shared by the views and by the commands that read without a mount. A range that ends above the log end has the
# messages that exist so far, and grows; a range that begins above the log end or below the log start is Kafka's
# OffsetOutOfRange (kafkafs/CONTRACT.md, "Ranges").


def time_mask(timestamps: NDArray[np.int64], times: TimeRange) -> NDArray[np.bool_]:
    """Which of these timestamps are in `times`. -1 means no timestamp and is in no range."""
    mask: NDArray[np.bool_] = timestamps != NO_TIMESTAMP
    if times.start_ms is not None:
        mask &= timestamps >= times.start_ms
    if times.end_ms is not None:
        mask &= timestamps < times.end_ms
    return mask


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a log: offsets from `start_offset` (included) to `end_offset` (excluded; None: all, growing),
    of these at most the first `limit`, and of these the ones with timestamps in `time_range` (None: all).

    `complete`: nothing that is appended later can belong to it. An incomplete A+N has `end_offset` None and `limit` N:
    resolve it again with a later snapshot.
    """

    start_offset: int
    end_offset: int | None
    time_range: TimeRange | None = None
    limit: int | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A choice of messages: those in both ranges (None: all) that have the key and all the headers.

    `latest_bytes`: of all messages that exist now choose the last of every key, with this much memory for the keys;
    without ranges. `clamp`: cut a range that begins below the log start, instead of an error.
    """

    offsets: OffsetSpec | None = None
    times: TimeSpec | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    latest_bytes: int | None = None
    clamp: bool = False

    @staticmethod
    def of(spec: OffsetSpec | TimeSpec | None, isolation: Isolation, *, clamp: bool = False) -> Question:
        """The question for a range of offsets or of times."""
        if isinstance(spec, TimeBetween | LastDuration):
            return Question(times=spec, isolation=isolation, clamp=clamp)
        return Question(offsets=spec, isolation=isolation, clamp=clamp)

    @property
    def is_fixed(self) -> bool:
        """Whether the range is fixed when it is resolved, so that nothing appended later belongs to it."""
        fixed = isinstance(self.offsets, LastMessages) or isinstance(self.times, LastDuration)
        return fixed or self.latest_bytes is not None

    def of_new(self) -> Question:
        """The question for a partition that is added later: all its messages are newer than the last messages."""
        return replace(self, offsets=None) if isinstance(self.offsets, LastMessages) else self

    def begins_behind(self, snapshot: LogSnapshot) -> bool:
        """Whether the range of offsets begins above the log end: out of range, unless the reader waits for it."""
        spec = self.offsets
        return spec is not None and not isinstance(spec, LastMessages) and spec.first > snapshot.log_end_offset

    def resolve(self, snapshot: LogSnapshot, now_ms: int, *, follow: bool = False, find_nth: bool = True) -> Selection:
        """Resolve the ranges to offsets of a log in the state of `snapshot`.

        `follow`: messages that are appended later belong to last-N and `last-15m` too. `find_nth` False leaves the end
        of an A+N to the reader (`limit`), which counts anyway. Raises OffsetOutOfRange; another StorageError if damage
        hides the place that is searched. Takes a few reads, for last-N and A+N also the headers of their span.
        """
        if self.latest_bytes is not None:
            return Selection(snapshot.log_start_offset, visible_end(snapshot, self.isolation), complete=True)
        by_offset = _selected(snapshot, self.offsets, self.isolation, now_ms, clamp=self.clamp, find_nth=find_nth)
        if follow and isinstance(self.offsets, LastMessages):
            by_offset = replace(by_offset, end_offset=None, complete=False)
        if self.times is None:
            return by_offset
        by_time = _selected(snapshot, self.times, self.isolation, now_ms)
        times = by_time.time_range
        if follow and isinstance(self.times, LastDuration) and times is not None:
            by_time = replace(by_time, end_offset=None, complete=False, time_range=TimeRange(times.start_ms, None))
        if self.offsets is None:
            return by_time
        ends = [end for end in (by_offset.end_offset, by_time.end_offset) if end is not None]
        # The first N of an A+N are those at A, whatever their timestamps: then reading begins at A.
        start = by_offset.start_offset if by_offset.limit else max(by_offset.start_offset, by_time.start_offset)
        return Selection(start, min(ends, default=None), by_time.time_range, by_offset.limit)


def _selected(
    snapshot: LogSnapshot,
    spec: OffsetSpec | TimeSpec | None,
    isolation: Isolation,
    now_ms: int,
    *,
    clamp: bool = False,
    find_nth: bool = True,
) -> Selection:
    """The messages that `spec` (None: everything) selects from a log in the state of `snapshot`.

    For `clamp`, `find_nth` and errors see Question.
    """
    if spec is None:
        return Selection(snapshot.log_start_offset, None)
    if isinstance(spec, TimeBetween):
        return Selection(start_of_time(snapshot, spec.start_ms), None, TimeRange(spec.start_ms, spec.end_ms))
    if isinstance(spec, LastDuration):
        # Up to now, inclusive.
        times = TimeRange(now_ms - spec.duration_ms, now_ms + 1)
        end = visible_end(snapshot, isolation)
        return Selection(min(start_of_time(snapshot, times.start_ms), end), end, times, complete=True)
    if isinstance(spec, LastMessages):
        end = visible_end(snapshot, isolation)
        return Selection(_start_of_last(snapshot, spec.most, end, isolation), end, complete=True)
    start = _checked_start(snapshot, spec.first, spec.last, clamp)
    if isinstance(spec, OffsetsCount):
        nth = nth_message(snapshot, start, spec.most, isolation) if find_nth else None
        if nth is None:
            return Selection(start, None, limit=spec.most)
        return Selection(start, nth + 1, limit=spec.most, complete=True)
    if spec.last is None:
        return Selection(start, None)
    return Selection(start, spec.last + 1, complete=spec.last < visible_end(snapshot, isolation))


def _checked_start(snapshot: LogSnapshot, first: int, last: int | None, clamp: bool) -> int:
    """The offset where reading begins. OffsetOutOfRange above the log end, and below the log start if not clamped."""
    if first >= snapshot.log_start_offset or not clamp:
        snapshot.check_offset(first)
        return first
    if last is not None and last < snapshot.log_start_offset:
        raise snapshot.out_of_range(f"range is wholly below the log start of {snapshot.tp}", last)
    return snapshot.log_start_offset


def _start_of_last(snapshot: LogSnapshot, count: int, end: int, isolation: Isolation) -> int:
    """The offset from which there are `count` messages up to `end` (excluded); the log start if there are fewer.

    A step back over n offsets finds at most n messages: in a log without gaps the first step finds them all. With gaps
    the steps grow, and the last step is counted forward again.
    """
    start, missing, step = end, count, count
    while missing > 0 and start > snapshot.log_start_offset:
        before = max(start - step, snapshot.log_start_offset)
        messages = count_messages(snapshot, before, start, isolation)
        if messages > missing:
            nth = nth_message(snapshot, before, messages - missing + 1, isolation)
            assert nth is not None  # more messages were just counted
            return nth
        start, missing = before, missing - messages
        step *= 2
    return start


def start_of_time(snapshot: LogSnapshot, start_ms: int | None) -> int:
    """An offset below which no message has a timestamp >= `start_ms`; the log end if there is no such message.

    Damage that may hide such a message is not skipped: reading must end with its error.
    """
    if start_ms is None:
        return snapshot.log_start_offset
    for segment in snapshot.segments:
        if may_reach(snapshot, segment, start_ms):
            return max(snapshot.log_start_offset, _start_in_segment(snapshot, segment, start_ms))
    return snapshot.log_end_offset


def end_of_time(snapshot: LogSnapshot, end_ms: int, late_bytes: int) -> int:
    """The likely end of the messages with timestamps < `end_ms`: an offset after which such a message is late.

    The first batches of segments and the time indexes show the first later message; the result is `late_bytes` of files
    after it.
    """
    segments = snapshot.segments
    for slot in reversed(range(len(segments))):
        segment = segments[slot]
        if not NO_TIMESTAMP < first_timestamp(snapshot, segment) < end_ms:
            continue
        behind = segments[slot + 1].base_offset if slot + 1 < len(segments) else snapshot.log_end_offset
        position = position_for_timestamp(snapshot, segment, end_ms) + late_bytes
        end = snapshot.end_position(segment)
        batch = segment.batch_at(segment.floor_position(position, end), end) if position < end else None
        if batch is None or times_of(batch, 0)[0] < end_ms:  # one message was far too early there
            return behind
        return max(segment.base_offset, int(batch.base_offset[0]))
    return snapshot.log_start_offset


def _start_in_segment(snapshot: LogSnapshot, segment: Segment, start_ms: int) -> int:
    position = position_for_timestamp(snapshot, segment, start_ms)
    batch = segment.batch_at(position, snapshot.end_position(segment)) if position > 0 else None
    # The header of a compressed message in an old format does not have its first offset (-1).
    return segment.base_offset if batch is None else max(segment.base_offset, int(batch.base_offset[0]))


# Which records of a block have a key or a header: by columns, with Python objects only for possible matches.


def key_rows(block: RecordBlock, key: bytes) -> NDArray[np.intp]:
    """The rows whose key is `key`, ascending."""
    rows = np.empty(len(block), np.int64)
    return rows[: block_kernel.rows_with_key(block.buffer, block.key_start, block.key_length, key, rows)]


def header_rows(
    block: RecordBlock, name: bytes, value: bytes, among: NDArray[np.bool_] | None = None
) -> NDArray[np.intp]:
    """The rows that have a header of this name and value, ascending; of those in the mask `among` (None: of all)."""
    needle = value or name
    rows = np.flatnonzero(block.headers_count > 0 if among is None else among & (block.headers_count > 0))
    if needle:
        rows = _that_may_hold(block, rows, needle)
    return np.array([row for row in rows.tolist() if (name, value) in block.headers(row)], np.intp)


def _that_may_hold(block: RecordBlock, rows: NDArray[np.intp], needle: bytes) -> NDArray[np.intp]:
    """The rows among `rows` (which have headers) with the needle between the start of their headers and that of the
    next row's."""
    starts = block.headers_start[rows]
    search = re.compile(re.escape(needle)).search
    slots = []
    match = search(block.buffer, int(starts[0])) if len(rows) else None
    while match is not None:
        slot = int(starts.searchsorted(match.start(), side="right")) - 1
        slots.append(slot)
        # One match in a record is enough.
        match = search(block.buffer, int(starts[slot + 1])) if slot + 1 < len(starts) else None
    return rows[np.array(slots, np.intp)]


class RecordFilter(NamedTuple):
    """A filter of messages: offsets from `first` to `end` (excluded; None: all), times, a key, headers.

    Messages without a timestamp are in no time range, and messages without a key match no key. Equal filters pass the
    same messages.
    """

    first: int = 0
    end: int | None = None
    times: TimeRange | None = None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def skips(self, _table: BatchTable) -> NDArray[np.uint8] | None:
        """1 for each batch whose header shows that no message passes, so that it need not be decoded; None for none:
        usually only batches with such messages are read."""
        return None

    def mask(self, block: RecordBlock) -> NDArray[np.bool_] | None:
        """For each record, whether it passes; None if all pass."""
        if len(block) == 0:
            return None
        mask: NDArray[np.bool_] | None = None
        if int(block.offset.min()) < self.first:
            mask = block.offset >= self.first
        if self.end is not None and int(block.offset.max()) >= self.end:
            below = block.offset < self.end
            mask = below if mask is None else mask & below
        if self.times is not None:
            within = time_mask(block.timestamp, self.times)
            mask = within if mask is None else mask & within
        if self.key is not None:
            keyed = _mask_of(key_rows(block, self.key), block)
            mask = keyed if mask is None else mask & keyed
        for name, value in self.headers:
            mask = _mask_of(header_rows(block, name, value, mask), block)
        return None if mask is None or mask.all() else mask

    def apply(self, block: RecordBlock) -> RecordBlock:
        """The records of a block that pass."""
        mask = self.mask(block)
        return block if mask is None else block.select(mask)

    def may_hold(self, table: BatchTable, row: int) -> bool:
        """Whether the damaged batch in `row` may hold a message that passes, according to the offsets in its header."""
        base_offset, last_offset = int(table.base_offset[row]), int(table.last_offset[row])
        return last_offset >= self.first and (self.end is None or base_offset < self.end)


def _mask_of(rows: NDArray[np.intp], block: RecordBlock) -> NDArray[np.bool_]:
    mask = np.zeros(len(block), np.bool_)
    mask[rows] = True
    return mask


# Choosing messages by a list of offsets: the last message of every key, after a scan has found their offsets.

DEFAULT_LATEST_BYTES: Final = 512 << 20  # for the keys of one scan


class ChosenOffsets:
    """The messages at some offsets, ascending. A filter like RecordFilter; equal only to itself."""

    def __init__(self, offsets: Int64s) -> None:
        self.offsets = offsets

    def skips(self, table: BatchTable) -> NDArray[np.uint8] | None:
        """1 for each batch that holds none of the offsets; a batch whose base offset is unknown (-1) is skipped only if
        that is certain."""
        first = self.offsets.searchsorted(table.base_offset)
        behind = self.offsets.searchsorted(table.last_offset, side="right")
        return np.equal(first, behind).view(np.uint8)

    def mask(self, block: RecordBlock) -> NDArray[np.bool_] | None:
        """For each record, whether it passes; None if all pass."""
        from storage.latest.latest_records import rows_among

        mask = rows_among(block.offset, self.offsets)
        return None if mask.all() else mask

    def apply(self, block: RecordBlock) -> RecordBlock:
        """The records of a block that pass."""
        mask = self.mask(block)
        return block if mask is None else block.select(mask)

    def count(self, start_offset: int, end_offset: int) -> int:
        """How many of them lie from one offset (included) to another (excluded)."""
        first, behind = self.offsets.searchsorted((start_offset, end_offset)).tolist()
        return int(behind - first)

    def spans(self, snapshot: LogSnapshot, start_offset: int) -> Iterator[tuple[int, int]]:
        """The offsets from (included) and to (excluded) which the messages at and after `start_offset` lie, as a pair
        for each segment that holds any."""
        for slot, segment in enumerate(snapshot.segments):
            behind = snapshot.segments[slot + 1].base_offset if slot + 1 < len(snapshot.segments) else MAX_OFFSET
            first, last = self.offsets.searchsorted((max(segment.base_offset, start_offset), behind)).tolist()
            if first < last:
                yield int(self.offsets[first]), int(self.offsets[last - 1]) + 1

    def may_hold(self, _table: BatchTable, _row: int) -> bool:
        """True: nothing in the header of a damaged batch is certain."""
        return True


MessageFilter = RecordFilter | ChosenOffsets
