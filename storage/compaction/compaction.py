"""Compaction: of the records below the active segment only the latest of each key is kept.

One pass maps the keys of the dirty part of a log to their latest offsets, until the offset map is full, and copies all
segments up to there without the records that have a later one of the same key. Bytes and rules are Kafka's. The copies
replace the log's segments group by group (storage.append.swap), so after a crash each group is either old or new, and
the next pass begins at the same first dirty offset. See storage/DESIGN.md, "Compaction". Sources: Cleaner (doClean,
groupSegmentsBySize, buildOffsetMap), LogToClean, LogCleanerManager.cleanableOffsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.append.partition_log import PartitionLog
from storage.append.swap import CleanedSegment, remove_cleaned
from storage.compaction.batch_filter import BatchFilter, FilterCounts, Rules, Sink, read_markers
from storage.compaction.cleaned_transactions import CleanedTransactions, collect_aborted
from storage.config import BrokerConfig, LogConfig
from storage.errors import SegmentGone, StorageError
from storage.files.disk_protocol import Disk
from storage.files.names import FileKind
from storage.files.producer_state import ProducerEntry
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.latest.offset_map import OffsetMap
from storage.log.greatest_timestamp import retention_timestamp_ms
from storage.log.isolation import last_stable_offset
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

# Copies groups of segments through a BatchFilter.

# Called with the number of bytes just read or written. May wait, and may raise to end the pass.
Pace = Callable[[int], None]


def unpaced(_: int) -> None:
    """No limit."""


def windows(snapshot: LogSnapshot, segment: Segment, start: int, pace: Pace = unpaced) -> Iterator[Window]:
    """The batches of a segment from a byte position on. Damage is raised."""
    for window in scan_sound_batches(snapshot, segment, start):
        yield window
        pace(int(window.table.size.sum()))


@contextmanager
def naming(segment: Segment) -> Iterator[None]:
    """Makes the block's errors about damage name the segment's file."""
    try:
        yield
    except StorageError as error:
        error.path = error.path or segment.log.path
        raise


def between(window: Window, start: int, end: int) -> Window:
    """The batches of a window with last offsets from `start` (included) to `end` (excluded)."""
    first, last = window.table.last_offset.searchsorted((start, end)).tolist()
    if first == 0 and last == window.table.rows:
        return window
    return Window(window.buffer, window.origin, window.table.slice(first, last).copy())


def counting_blocks(window: Window, decoder: Decoder, transactions: CleanedTransactions) -> Iterator[RecordBlock]:
    """The records of a window among which the latest of each key is sought: without those of aborted transactions and
    control records. Damage is raised."""
    table = window.table
    discardable = transactions.discardable(table, read_markers(window, decoder))
    skip = (discardable & ~table.is_control).astype(np.uint8)
    row = 0
    while row < table.rows:
        block = decoder.decode(window.buffer, table, row, origin=window.origin, skip=skip)
        block.check()
        row = block.next_row
        yield block


class Rewriter:
    """Copies groups of segments in order. `legacy_horizon_ms`: tombstones in formats without a delete horizon are
    removed from segments that were last changed before this time."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        batches: BatchFilter,
        transactions: CleanedTransactions,
        legacy_horizon_ms: int,
        pace: Pace = unpaced,
    ) -> None:
        """`transactions`: the object that `batches` uses."""
        self._snapshot = snapshot
        self._batches = batches
        self._transactions = transactions
        self._legacy_horizon_ms = legacy_horizon_ms
        self._pace = pace

    def write(self, group: Sequence[Segment], cleaned: CleanedSegment) -> None:
        """Writes the rest of a group as a finished segment. StorageError for damage; OSError."""
        aborted = self.copy(group, lambda data: self._append(cleaned, data))
        cleaned.finish(aborted, group[-1].log.stat().st_mtime_ns)

    def copy(self, group: Sequence[Segment], sink: Sink) -> list[AbortedTxn]:
        """Passes the rest of a group to `sink`; returns the aborted transactions that end in it and are still
        needed."""
        for segment in group:
            retain_legacy = segment.mtime_ms() > self._legacy_horizon_ms
            with naming(segment):
                for window in windows(self._snapshot, segment, 0, self._pace):
                    self._batches.filter(window, sink, retain_legacy_deletes=retain_legacy)
        self._batches.flush(sink)
        return self._transactions.take_retained()

    def _append(self, cleaned: CleanedSegment, data: memoryview) -> None:
        table = BatchTable.empty(4096)
        start = 0
        while start < len(data):
            table.clear()
            outcome = scan(data, cleaned.size, table, start)
            cleaned.append(data[start : outcome.next_start], table)
            start = outcome.next_start
        self._pace(len(data))


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The part of a log that may be compacted: from `first_dirty` to `first_uncleanable` (excluded), a segment's base.

    `clean_bytes`: of the segments below `first_dirty`; `cleanable_bytes`: of those up to `first_uncleanable`.
    `checkpoint_holds`: the cleaner's checkpoint was within the log. `delay_ms`: by how much the oldest dirty message
    exceeds max.compaction.lag.ms.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    checkpoint_holds: bool
    delay_ms: int

    @property
    def ratio(self) -> float:
        """The cleanable share of the clean and cleanable bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether a cleaner would start a pass (LogCleanerManager.grabFilthiestCompactedLog)."""
        return (self.delay_ms > 0 and self.cleanable_bytes > 0) or self.ratio > config.min_cleanable_dirty_ratio


def dirty_range(
    snapshot: LogSnapshot,
    config: LogConfig,
    checkpoint: int | None,
    now_ms: int,
    *,
    high_watermark: int | None = None,
    kept_from: int | None = None,
) -> DirtyRange:
    """The part of a log that may be compacted now. `checkpoint`: the first offset that is not compacted yet, if known.
    `high_watermark`, `kept_from`: nothing at or above these is compacted."""
    segments = snapshot.segments
    first_dirty = snapshot.log_start_offset if checkpoint is None else checkpoint
    holds = snapshot.log_start_offset <= first_dirty <= snapshot.log_end_offset
    if not holds:
        first_dirty = snapshot.log_start_offset
    dirty = [segment for segment in segments[max(snapshot.segment_index(first_dirty), 0) :] if segment.sealed]
    bounds = (last_stable_offset(snapshot), segments[-1].base_offset, high_watermark, kept_from)
    limit = min(bound for bound in bounds if bound is not None)
    if config.min_compaction_lag_ms > 0:
        for segment in dirty:
            if retention_timestamp_ms(snapshot, segment) > now_ms - config.min_compaction_lag_ms:
                limit = min(limit, segment.base_offset)
                break
    limit = max(first_dirty, limit)
    uncleanable = segments[max(snapshot.segment_index(limit), 0)].base_offset
    start = segments[max(snapshot.segment_index(min(first_dirty, uncleanable)), 0)].base_offset
    until = now_ms - config.max_compaction_lag_ms
    began = [_first_timestamp(snapshot, segment) for segment in dirty] if until > 0 else []
    return DirtyRange(
        first_dirty,
        uncleanable,
        sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        sum(segment.size for segment in segments if start <= segment.base_offset < uncleanable),
        holds,
        max(until - min((timestamp for timestamp in began if timestamp > 0), default=until), 0),
    )


def _first_timestamp(snapshot: LogSnapshot, segment: Segment) -> int:
    """The greatest timestamp of a segment's first batch, -1 without a batch (LogSegment.getFirstBatchTimestamp)."""
    first = segment.batch_at(0, snapshot.end_position(segment)) if segment.size else None
    return -1 if first is None else int(first.max_timestamp[0])


def group_by_size(segments: Sequence[Segment], config: LogConfig, first_uncleanable: int) -> list[list[Segment]]:
    """Groups of consecutive segments to be merged, each within Kafka's limits of bytes, index bytes and offsets."""
    groups: list[list[Segment]] = []
    sizes = [0, 0, 0]
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    for slot, segment in enumerate(segments):
        own = (segment.size, _size(segment, FileKind.OFFSET_INDEX), _size(segment, FileKind.TIME_INDEX))
        last = (segments[slot + 1].base_offset if slot + 1 < len(segments) else first_uncleanable) - 1
        joins = (
            bool(groups)
            and all(size + more <= limit for size, more, limit in zip(sizes, own, limits, strict=True))
            and (segment.size == 0 or last - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        )
        if joins:
            groups[-1].append(segment)
            sizes = [size + more for size, more in zip(sizes, own, strict=True)]
        else:
            groups.append([segment])
            sizes = list(own)
    return groups


def _size(segment: Segment, kind: FileKind) -> int:
    with suppress(FileNotFoundError):
        return segment.path_of(kind).lstat().st_size
    return 0


@dataclass(frozen=True, slots=True)
class OffsetMapLimits:
    """Limits of the offset map: its bytes, and how full it may become."""

    map_bytes: int
    load_factor: float

    @staticmethod
    def of(config: BrokerConfig) -> OffsetMapLimits:
        """A cleaner thread's share of log.cleaner.dedupe.buffer.size; at most 2 GiB, as in Kafka."""
        share = config.cleaner_dedupe_buffer_size // max(config.cleaner_threads, 1)
        return OffsetMapLimits(min(share, 2**31 - 1), config.cleaner_io_buffer_load_factor)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a pass over a log: offsets from `first_dirty` to `end_offset` (excluded) were mapped, and all
    segments below `end_offset` copied. If that is below `first_uncleanable`, the map was full, and another pass is
    needed.

    `segments_before`, `segments_after`: the number of copied segments and of their copies. `files`: the files renamed
    to `.deleted`, to be unlinked later.
    """

    tp: TopicPartition
    first_dirty: int
    end_offset: int
    first_uncleanable: int
    segments_before: int
    segments_after: int
    counts: FilterCounts
    map_keys: int
    map_utilization: float
    map_bytes_read: int
    map_seconds: float
    seconds: float
    dry_run: bool = False
    files: tuple[Path, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether everything that may be compacted was."""
        return self.end_offset >= self.first_uncleanable


@dataclass(frozen=True, slots=True)
class PassInput:
    """The input of a pass: a snapshot of a log, its dirty part, its configuration and the producers that are still
    known."""

    snapshot: LogSnapshot
    dirty: DirtyRange
    config: LogConfig
    producers: Sequence[ProducerEntry]
    now_ms: int

    @property
    def rules(self) -> Rules:
        """The rules for batches and records."""
        retention_ms = self.config.delete_retention_ms
        return Rules(self.now_ms, retention_ms, self.dirty.first_uncleanable, self.producers)

    @property
    def legacy_horizon_ms(self) -> int:
        """The time at which delete horizons end: delete.retention.ms before the last change of the clean part."""
        clean = [segment for segment in self.snapshot.segments if segment.base_offset < self.dirty.first_dirty]
        return clean[-1].mtime_ms() - self.config.delete_retention_ms if clean else 0

    def groups(self, end_offset: int) -> list[list[Segment]]:
        """The segments that a pass copies when it knows the keys from `first_dirty` to `end_offset` (excluded)."""
        first = self.dirty.first_dirty
        chosen = [segment for segment in self.snapshot.segments if segment.base_offset < end_offset > first]
        return group_by_size(chosen, self.config, self.dirty.first_uncleanable)

    def aborted(self, groups: list[list[Segment]]) -> list[AbortedTxn]:
        """The aborted transactions with offsets in these groups. CorruptIndex."""
        if not groups:
            return []
        return collect_aborted(self.snapshot, groups[0][0].base_offset, self.dirty.first_uncleanable)


class Pass:
    """A pass of the cleaner. `run` once.

    `pace` is called for every window. Damage is neither copied nor skipped, but raised: CorruptBatch, CorruptIndex,
    UnsupportedFormat. SegmentGone when segments are removed meanwhile. Groups replaced before an error stay replaced.
    `replaced`: the `.deleted` files of the replaced segments, to be unlinked, however the pass ends.
    """

    def __init__(self, pass_input: PassInput, limits: OffsetMapLimits, *, pace: Pace = unpaced) -> None:
        self.replaced: list[Path] = []
        self._input = pass_input
        self._snapshot = pass_input.snapshot
        self._dirty = pass_input.dirty
        self._pace = pace
        most = max(self._dirty.first_uncleanable - self._dirty.first_dirty, 0)
        self._map = OffsetMap(limits.map_bytes, limits.load_factor, most_keys=most)
        self._map_bytes_read = 0

    def run(self, log: PartitionLog, disk: Disk) -> CompactionResult:
        """Runs the pass."""
        return self._run(lambda group, rewriter: self._clean(log, disk, group, rewriter))

    def rehearse(self) -> CompactionResult:
        """Runs the pass without writing anything."""
        return self._run(None)

    def _run(self, clean: Callable[[list[Segment], Rewriter], list[Path]] | None) -> CompactionResult:
        began = time.monotonic()
        dirty, snapshot = self._dirty, self._snapshot
        self._build_map()
        self._map.complete(dirty.first_dirty)
        mapped = time.monotonic()
        end_offset = max(self._map.latest_offset + 1, dirty.first_dirty)
        groups = self._input.groups(end_offset)
        transactions = CleanedTransactions(self._input.aborted(groups))
        batches = BatchFilter(self._input.rules, self._map, transactions)
        rewriter = Rewriter(snapshot, batches, transactions, self._input.legacy_horizon_ms, self._pace)
        for group in groups:
            if clean is None:
                rewriter.copy(group, lambda _: None)
            else:
                self.replaced += clean(group, rewriter)
        return CompactionResult(
            snapshot.tp,
            dirty.first_dirty,
            end_offset,
            dirty.first_uncleanable,
            sum(map(len, groups)),
            len(groups),
            batches.counts,
            len(self._map),
            self._map.utilization,
            self._map_bytes_read,
            mapped - began,
            time.monotonic() - began,
            dry_run=clean is None,
            files=tuple(self.replaced),
        )

    def _build_map(self) -> None:
        """Maps the keys of the dirty part to their latest offsets, until the map is full (Cleaner.buildOffsetMap)."""
        snapshot, first, limit = self._snapshot, self._dirty.first_dirty, self._dirty.first_uncleanable
        slot = max(snapshot.segment_index(first), 0)
        dirty = [segment for segment in snapshot.segments[slot:] if segment.base_offset < limit]
        transactions = CleanedTransactions(collect_aborted(snapshot, first, limit) if dirty else ())
        decoder = Decoder()
        for number, segment in enumerate(dirty):
            start = segment.floor(first, segment.size) if segment.base_offset < first else 0
            with naming(segment):
                for window in windows(snapshot, segment, start, self._pace):
                    # Batches before the first dirty offset may have markers of transactions that are not known here.
                    if not self._map_window(between(window, first, limit), decoder, transactions):
                        return
                    self._map_bytes_read += int(window.table.size.sum())
            # Offsets missing at the end of a segment count as mapped.
            next_base = dirty[number + 1].base_offset if number + 1 < len(dirty) else limit
            self._map.latest_offset = next_base - 1

    def _map_window(self, window: Window, decoder: Decoder, transactions: CleanedTransactions) -> bool:
        """False when the map is full."""
        table, first = window.table, self._dirty.first_dirty
        for block in counting_blocks(window, decoder, transactions):
            taken = self._map.put(block, first)
            full = taken < len(block)
            finished = int(block.batch[taken]) if full else block.next_row
            if finished and int(table.last_offset[finished - 1]) >= first:
                self._map.latest_offset = max(self._map.latest_offset, int(table.last_offset[finished - 1]))
            if full:
                return False
        return True

    def _clean(self, log: PartitionLog, disk: Disk, group: list[Segment], rewriter: Rewriter) -> list[Path]:
        """Copies a group into a new segment, which replaces it."""
        base_offset = group[0].base_offset
        interval_bytes = self._input.config.index_interval_bytes
        cleaned = CleanedSegment(disk, log.path, base_offset, interval_bytes=interval_bytes)
        finished = False
        try:
            rewriter.write(group, cleaned)
            finished = True
            return log.replace_segments(group)
        except BaseException as error:
            cleaned.close()
            # A failure while files are renamed may leave a part done: the next opening finishes or undoes it.
            if not finished or isinstance(error, SegmentGone):
                with suppress(OSError):
                    remove_cleaned(disk, log.path, base_offset)
            raise
