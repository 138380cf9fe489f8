"""Filters batches for compaction: drops records, and keeps headers, codecs and offsets.

For each window the batches are judged by their headers, their records are decoded once and looked up in the offset map,
and the rest is written by one compiled call. Only compressed batches that lose some of their records, and old formats,
are encoded one by one. Source: Cleaner.cleanInto (checkBatchRetention, shouldRetainRecord), MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.compaction.cleaned_transactions import CleanedTransactions
from storage.errors import CorruptBatch
from storage.files.producer_state import ProducerEntry
from storage.format import encoder_kernel
from storage.format.batches import NO_PRODUCER_ID, TIMESTAMP_TYPE_MASK, BatchTable
from storage.format.block import RecordBlock, RecordColumns
from storage.format.compression import Codec
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from storage.format.encoder_kernel import COPY, DROP, EMPTY, OUTSIDE, REWRITE
from storage.format.record_batch import BatchFields, empty_batch, encode_batch, set_crc
from storage.latest.offset_map import OffsetMap
from storage.latest.offset_map_kernel import DISCARD, KEEP, KEEP_DELETES
from storage.log.scanning import Window

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Called with whole batches, back to back. The memory is reused after it returns.
Sink = Callable[[memoryview], None]

_OUT_BYTES: Final = 2 << 20
_FLUSH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one pass. `end_offset` (excluded): where the round of cleaning ends; `producers`: those that are
    still known, whose last batches must be kept."""

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    producers: Sequence[ProducerEntry]


@dataclass(slots=True)
class FilterCounts:
    """Counts of what a pass has read and kept. `keys_gone`: deleted keys without any record left; `null_keys`: records
    without a key, which a compacted topic does not accept, and which are removed."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    keys_gone: int = 0
    null_keys: int = 0

    @property
    def records_gone(self) -> int:
        """The number of removed records."""
        return self.records_read - self.records_kept

    @property
    def bytes_gone(self) -> int:
        """The bytes that the log has shrunk by."""
        return self.bytes_read - self.bytes_kept


class BatchFilter:
    """Filters the batches of a log in order. Not thread-safe."""

    def __init__(self, rules: Rules, latest: OffsetMap, transactions: CleanedTransactions) -> None:
        self.counts = FilterCounts()
        self._rules = rules
        self._latest = latest
        self._transactions = transactions
        self._decoder = Decoder()
        self._out = bytearray(_OUT_BYTES)
        self._position = 0
        self._result = np.zeros(encoder_kernel.REWRITE_RESULTS, np.int64)
        producers = sorted(rules.producers, key=lambda entry: entry.producer_id)
        self._producer_ids = np.array([entry.producer_id for entry in producers], np.int64)
        self._last_offsets = np.array([entry.last_offset for entry in producers], np.int64)
        self._epochs = np.array([entry.epoch for entry in producers], np.int64)

    def filter(self, window: Window, sink: Sink, *, retain_legacy_deletes: bool) -> None:
        """Passes the rest of a window's batches to `sink`, some of it later (`flush`).

        `retain_legacy_deletes`: whether to keep tombstones in formats without delete horizons. CorruptData errors for
        damage; CorruptIndex.
        """
        table = window.table
        discardable = self._transactions.discardable(table, read_markers(window, self._decoder))
        control, has_horizon = table.is_control, table.has_delete_horizon
        passed = has_horizon & (table.base_timestamp <= self._rules.now_ms)
        discard = discardable & (~control | passed)
        needed = self._is_last_of_producer(table, control) | (table.last_offset + 1 == self._rules.end_offset)
        verdicts = np.zeros(table.rows, np.uint8)
        verdicts[discard] = DISCARD
        verdicts[control & ~discard] = KEEP
        verdicts[np.where(table.magic == 2, ~passed, retain_legacy_deletes)] |= KEEP_DELETES
        self.counts.bytes_read += int(table.size.sum())
        # Batches that are removed whatever they contain are not decoded.
        skip = (discard & ~needed).astype(np.uint8)
        self.counts.records_read += int(table.count[skip != 0].sum())
        row = 0
        while row < table.rows:
            block = self._decoder.decode(window.buffer, table, row, origin=window.origin, skip=skip, control=True)
            block.check()
            self._filter_block(window, block, row, verdicts, needed, discardable & control, sink)
            row = block.next_row

    def flush(self, sink: Sink) -> None:
        """Passes the remaining output to `sink`, at the end of a segment's sources."""
        if self._position:
            self.counts.bytes_kept += self._position
            sink(memoryview(self._out)[: self._position])
            self._position = 0

    def _is_last_of_producer(self, table: BatchTable, control: Bools) -> Bools:
        """Batches that hold the last sequence, or the epoch, of a producer that is still known."""
        result = np.zeros(table.rows, np.bool_)
        rows = np.flatnonzero(table.producer_id != NO_PRODUCER_ID) if len(self._producer_ids) else ()
        if len(rows):
            producers = table.producer_id[rows]
            slots = np.minimum(np.searchsorted(self._producer_ids, producers), len(self._producer_ids) - 1)
            last = self._last_offsets[slots]
            without_data = control[rows] & (table.producer_epoch[rows] == self._epochs[slots])
            result[rows] = (self._producer_ids[slots] == producers) & np.where(
                last >= 0, table.last_offset[rows] == last, without_data
            )
        return result

    def _filter_block(
        self,
        window: Window,
        block: RecordBlock,
        first_row: int,
        verdicts: npt.NDArray[np.uint8],
        needed: Bools,
        empty_transaction: Bools,
        sink: Sink,
    ) -> None:
        table, rules = block.table, self._rules
        kept, deletes = np.zeros(table.rows, np.int64), np.zeros(table.rows, np.int64)
        counts = np.zeros(3, np.int64)
        keep = self._latest.retain(block, verdicts, kept, deletes, counts)
        rows = slice(first_row, block.next_row)
        total = np.bincount(block.batch, minlength=table.rows)
        self.counts.records_read += len(block)
        self.counts.records_kept += int(kept[rows].sum())
        self.counts.null_keys += int(counts[0])
        self.counts.keys_gone += int(counts[1])

        modern, has_horizon = table.magic == 2, table.has_delete_horizon
        # A batch of an old format becomes a v2 batch, which gets a horizon too.
        new_horizon = ~has_horizon & ((deletes > 0) | empty_transaction) & (kept > 0)
        horizons = np.where(has_horizon, table.base_timestamp, -1)
        horizons[new_horizon] = rules.now_ms + rules.delete_retention_ms
        actions = np.full(table.rows, DROP, np.uint8)
        actions[needed] = np.where(modern, EMPTY, OUTSIDE)[needed]
        actions[kept > 0] = np.where(modern & (table.codec == Codec.NONE), REWRITE, OUTSIDE)[kept > 0]
        actions[(kept > 0) & (kept == total) & modern & ~new_horizon] = COPY
        self._write(window, block, first_row, actions, horizons, keep, sink)

    def _write(
        self,
        window: Window,
        block: RecordBlock,
        row: int,
        actions: npt.NDArray[np.uint8],
        horizons: Int64s,
        keep: npt.NDArray[np.uint8],
        sink: Sink,
    ) -> None:
        headers = np.ascontiguousarray(block.table.data[:, : block.table.rows])
        ends = block.headers_start + block.measure_headers() if (actions == REWRITE).any() else block.key_start
        spans = np.empty(2 * block.table.rows, np.int64)
        record = 0
        while row < block.next_row:
            status = encoder_kernel.rewrite(
                window.buffer,
                window.origin,
                headers,
                row,
                block.next_row,
                actions,
                horizons,
                block.buffer,
                block.columns,
                ends,
                keep,
                record,
                self._out,
                self._position,
                spans,
                self._result,
            )
            row, record, self._position, written = self._result.tolist()
            for start, end in spans[: 2 * written].reshape(-1, 2).tolist():
                set_crc(self._out, start, end)
            if status == encoder_kernel.BAD_COLUMN:
                raise CorruptBatch("a batch cannot be rewritten", offset=int(block.table.last_offset[row]))
            if status == encoder_kernel.FULL:
                self._make_room(sink)
            elif row < block.next_row:
                self._add(_encoded(block, row, int(horizons[row]), keep), sink)
                row += 1
        if self._position >= _FLUSH_BYTES:
            self.flush(sink)

    def _make_room(self, sink: Sink) -> None:
        if not self._position:
            self._out = bytearray(2 * len(self._out))
        self.flush(sink)

    def _add(self, batch: bytes, sink: Sink) -> None:
        while len(batch) > len(self._out) - self._position:
            self._make_room(sink)
        self._out[self._position : self._position + len(batch)] = batch
        self._position += len(batch)


def read_markers(window: Window, decoder: Decoder) -> dict[int, ControlType]:
    """The types of the control records in a window, by row. CorruptBatch for one that does not parse."""
    rows = np.flatnonzero(window.table.is_control)
    if not len(rows):
        return {}
    part = BatchTable(np.ascontiguousarray(window.table.data[:, rows]), len(rows))
    block = decoder.decode(window.buffer, part, origin=window.origin, control=True)
    block.check()
    return {int(rows[record.row]): record.type for record in control_records(block)}


def _encoded(block: RecordBlock, row: int, horizon: int, keep: npt.NDArray[np.uint8]) -> bytes:
    """A batch encoded again, with its codec, in format v2 (the only one that Kafka's own cleaner writes)."""
    table = block.table
    first, last = np.searchsorted(block.batch, (row, row + 1)).tolist()
    records = first + np.flatnonzero(keep[first:last])
    append_time = bool(table.attributes[row] & TIMESTAMP_TYPE_MASK) and int(table.magic[row]) > 0
    modern = int(table.magic[row]) == 2
    last_offset = int(table.last_offset[row])
    base_offset = int(table.base_offset[row])
    if not modern:
        base_offset = int(block.offset[records[0]]) if len(records) else last_offset
    fields = BatchFields(
        leader_epoch=int(table.leader_epoch[row]) if modern else -1,
        producer_id=int(table.producer_id[row]),
        producer_epoch=int(table.producer_epoch[row]),
        base_sequence=int(table.base_sequence[row]),
        transactional=bool(table.is_transactional[row]),
        control=bool(table.is_control[row]),
        log_append_time_ms=int(table.max_timestamp[row]) if append_time else None,
        delete_horizon_ms=horizon if horizon >= 0 else None,
        last_offset_delta=last_offset - base_offset if modern else None,
    )
    if not len(records):
        # The last batch of the round, of an old format: Kafka gives up on such a partition.
        return empty_batch(
            base_offset=base_offset, last_offset=last_offset, max_timestamp=int(table.max_timestamp[row]), fields=fields
        )
    columns = RecordColumns.from_block(block.select(records), block.offset[records] - base_offset)
    return encode_batch(columns, base_offset=base_offset, codec=Codec(int(table.codec[row])), fields=fields)
