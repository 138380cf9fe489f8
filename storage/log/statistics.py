"""Statistics of logs' messages: numbers, sizes, codecs, headers, producers, the largest; in one pass over columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from storage.format.decoder import Decoder
from storage.format.hashing import murmur2_columns
from storage.log.histogram import HistogramCounter
from storage.log.scanning import scan_batches
from storage.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from storage.errors import StorageError
    from storage.format.batches import BatchTable
    from storage.format.block import RecordBlock
    from storage.log.segment import Segment
    from storage.log.snapshot import LogSnapshot

    Int64s = NDArray[np.int64]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MOST_LARGEST: Final = 10
MOST_HEADERS: Final = 256  # names that are counted separately
MOST_VALUES: Final = 1000  # values of a header that are counted separately
_MOST_PRODUCERS: Final = 65_536
_MOST_DAMAGES: Final = 100

# Sizes below _EXACT bytes have a slot each, larger ones _PER_DOUBLING for each doubling: quantiles err by 0.1 %.
_EXACT: Final = 4096
_PER_DOUBLING: Final = 512

# Distinct keys: the K least hashes (k minimum values; Bar-Yossef et al. 2002). Up to K keys the number is exact, except
# for different keys with equal hashes (32 bits); beyond that its standard error is 1 / sqrt(K - 2), 0.8 %.
_K: Final = 16_384
_HASHES: Final = 2**32
_MOST_PENDING: Final = 64  # blocks


class Sizes:
    """The distribution of some sizes in bytes."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.min = 0
        self.max = 0
        self._slots = np.zeros(1, np.int64)

    def add(self, sizes: Int64s) -> None:
        """Add sizes, none of them negative."""
        if not len(sizes):
            return
        least, most = int(sizes.min()), int(sizes.max())
        self.min = min(self.min, least) if self.count else least
        self.max = max(self.max, most)
        self.count += len(sizes)
        if least == most:
            self.bytes += least * len(sizes)
            self._add_slots(np.array([len(sizes)], np.int64), int(_slots(sizes[:1])[0]))
            return
        self.bytes += int(sizes.sum())
        small = sizes if most < _EXACT else sizes[sizes < _EXACT]
        self._add_slots(np.bincount(small), 0)
        if most >= _EXACT:
            self._add_slots(np.bincount(_slots(sizes[sizes >= _EXACT]) - _EXACT), _EXACT)

    def quantile(self, share: float) -> int:
        """The size that `share` (0 to 1) of the sizes do not exceed; 0 if there are none."""
        rank = max(math.ceil(share * self.count), 1)
        slot = int(np.searchsorted(np.cumsum(self._slots), rank))
        size = slot if slot < _EXACT else round(_EXACT * 2 ** ((slot - _EXACT + 0.5) / _PER_DOUBLING))
        return min(max(size, self.min), self.max)

    def _add_slots(self, counts: Int64s, first: int) -> None:
        missing = first + len(counts) - len(self._slots)
        if missing > 0:
            self._slots = np.concatenate([self._slots, np.zeros(missing, np.int64)])
        self._slots[first : first + len(counts)] += counts


def _slots(sizes: Int64s) -> Int64s:
    large = np.log2(np.maximum(sizes, _EXACT) / _EXACT) * _PER_DOUBLING
    return np.where(sizes < _EXACT, sizes, _EXACT + large.astype(np.int64))


@dataclass(slots=True)
class CodecCounts:
    """Counts of the batches of one codec. `decoded_bytes`: of keys, values and headers."""

    batches: int = 0
    messages: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0


@dataclass(slots=True)
class HeaderCounts:
    """Headers of one name. `bytes`: of names and values; `values`: hashes of at most MOST_VALUES + 1 different values;
    `example`: the first value."""

    example: bytes | None
    count: int = 0
    bytes: int = 0
    values: set[int] = field(default_factory=set)


class LargeMessage(NamedTuple):
    """A message and its bytes; the order is that of `bytes`, then the earliest."""

    bytes: int
    earlier: int  # grows towards the first message that was counted
    tp: TopicPartition
    offset: int
    timestamp_ms: int
    key_bytes: int
    value_bytes: int
    headers_bytes: int


class Damage(NamedTuple):
    """A place that cannot be read."""

    tp: TopicPartition
    size_bytes: int
    error: StorageError


class Statistics:
    """The counts of all logs that `add` has read. Memory is bounded. `distinct`: count different keys too. `width_ms`:
    see HistogramCounter.

    Messages of aborted transactions count, control records do not; bytes in the log are those of all batches.
    """

    def __init__(self, *, distinct: bool = False, width_ms: int | None = None) -> None:
        self.messages = 0
        self.tombstones = 0
        self.null_keys = 0
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.keys, self.values, self.headers = Sizes(), Sizes(), Sizes()
        self.codecs: dict[int, CodecCounts] = {}
        self.topics: dict[str, CodecCounts] = {}
        self.producers: dict[int, int] = {}
        self.other_producers = 0  # messages of producers that are not listed, because they have too few
        self.headers_by_name: dict[bytes, HeaderCounts] = {}
        self.largest: list[LargeMessage] = []
        self.damages: list[Damage] = []
        self.over_time = HistogramCounter(width_ms)
        self._hashes = np.empty(0, np.uint32) if distinct else None
        self._pending: list[NDArray[np.uint32]] = []  # hashes that are not merged yet
        self._waiting = 0  # the number of pending hashes
        self._decoder = Decoder()

    def add(self, snapshot: LogSnapshot, on_bytes: Callable[[int], None] | None = None) -> Iterator[RecordBlock]:
        """Count a log: yield the blocks of its messages, each after it was counted and valid until the next. Damage is
        noted and skipped. `on_bytes` is called with the number of file bytes of each step."""
        for segment in snapshot.segments:
            yield from self._add_segment(snapshot, segment, on_bytes)

    def distinct_keys(self) -> int | None:
        """An estimate of the number of different keys; None if they were not counted."""
        if self._hashes is None:
            return None
        hashes = self._merge_hashes(self._hashes)
        seen: float = len(hashes)
        if len(hashes) == _K:
            seen = (_K - 1) / ((int(hashes[-1]) + 1) / _HASHES)
        # Corrects for different keys with equal hashes (balls thrown into _HASHES urns).
        return round(-_HASHES * math.log1p(-min(seen, _HASHES - 1) / _HASHES))

    def _merge_hashes(self, hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
        self._hashes = np.unique(np.concatenate([hashes, *self._pending]))[:_K]
        self._pending.clear()
        self._waiting = 0
        return self._hashes

    def _add_segment(
        self, snapshot: LogSnapshot, segment: Segment, on_bytes: Callable[[int], None] | None
    ) -> Iterator[RecordBlock]:
        tp = snapshot.tp
        for window in scan_batches(snapshot, segment, 0):
            if window.damage is not None:
                self._note(tp, window.damage.end - window.damage.position, window.damage.error, segment)
                continue
            first = int(np.searchsorted(window.table.last_offset, snapshot.log_start_offset))
            table = window.table.slice(first, window.table.rows) if first else window.table
            if table.rows:
                self._add_batches(tp.topic, table)
            row = first
            while row < window.table.rows:
                block = self._decoder.decode(window.buffer, window.table, row, window.table.rows, origin=window.origin)
                row = block.next_row
                damage = block.damage
                if damage is not None:
                    row = damage.row + 1
                    self._note(tp, damage.end - damage.position, damage.error, segment)
                if len(block) and int(block.offset[0]) < snapshot.log_start_offset:
                    block = block.select(block.offset >= snapshot.log_start_offset)
                if len(block):
                    self._add_block(tp, block)
                    yield block
            if on_bytes is not None:
                on_bytes(int(window.table.size.sum()))

    def _note(self, tp: TopicPartition, size_bytes: int, error: StorageError, segment: Segment) -> None:
        error.path = segment.log.path
        if len(self.damages) < _MOST_DAMAGES:
            self.damages.append(Damage(tp, size_bytes, error))

    def _add_batches(self, topic: str, table: BatchTable) -> None:
        """Count batches by their headers."""
        codec, size = table.codec, table.size
        self.over_time.add_bytes(np.ascontiguousarray(table.max_timestamp), size)
        for number in _distinct(codec):
            chosen = codec == number
            for counts in (self.codecs.setdefault(number, CodecCounts()), self.topics.setdefault(topic, CodecCounts())):
                counts.batches += int(np.count_nonzero(chosen))
                counts.stored_bytes += int(size[chosen].sum())

    def _add_block(self, tp: TopicPartition, block: RecordBlock) -> None:
        count = len(block)
        keys, values = block.key_length, block.value_length
        null_keys, tombstones = int(np.count_nonzero(keys < 0)), int(np.count_nonzero(values < 0))
        self.messages += count
        self.null_keys += null_keys
        self.tombstones += tombstones
        self.keys.add(keys[keys >= 0] if null_keys else keys)
        self.values.add(values[values >= 0] if tombstones else values)
        sizes = (np.maximum(keys, 0) if null_keys else keys) + (np.maximum(values, 0) if tombstones else values)
        headers = self._add_headers(block)
        if headers is not None:
            sizes += headers
        self._add_times(block.timestamp)
        self._add_by_batch(tp.topic, block, sizes)
        self._add_largest(tp, block, sizes, headers)
        if self._hashes is not None:
            hashes = _hashed(block.buffer, block.key_start, keys).astype(np.uint32)
            hashes = hashes[keys >= 0] if null_keys else hashes
            self._pending.append(hashes[hashes < self._hashes[-1]] if len(self._hashes) == _K else hashes)
            self._waiting += len(self._pending[-1])
            if self._waiting > 2 * _K or len(self._pending) == _MOST_PENDING:
                self._merge_hashes(self._hashes)

    def _add_times(self, times: Int64s) -> None:
        self.over_time.add_messages(times)
        first, last = int(times.min()), int(times.max())
        if first == NO_TIMESTAMP and last > first:
            first = int(times[times > NO_TIMESTAMP].min())
        if last > NO_TIMESTAMP:
            self.first_ms = first if self.first_ms is None else min(self.first_ms, first)
            self.last_ms = last if self.last_ms is None else max(self.last_ms, last)

    def _add_by_batch(self, topic: str, block: RecordBlock, sizes: Int64s) -> None:
        """Count the messages by codec and producer."""
        first, last = int(block.batch[0]), int(block.batch[-1]) + 1
        table, total = block.table, int(sizes.sum())
        self.topics[topic].messages += len(block)
        self.topics[topic].decoded_bytes += total
        codec, producer = table.codec[first:last], table.producer_id[first:last]
        codecs, producers = _distinct(codec), _distinct(producer)
        if len(codecs) == 1:
            self.codecs[codecs[0]].messages += len(block)
            self.codecs[codecs[0]].decoded_bytes += total
        else:
            of_record = codec[block.batch - first]
            for number in codecs:
                chosen = of_record == number
                self.codecs[number].messages += int(np.count_nonzero(chosen))
                self.codecs[number].decoded_bytes += int(sizes[chosen].sum())
        if len(producers) == 1:
            self.producers[producers[0]] = self.producers.get(producers[0], 0) + len(block)
        else:
            ids, slots = np.unique(producer, return_inverse=True)
            counts = np.bincount(slots[block.batch - first], minlength=len(ids))
            for number, count in zip(ids.tolist(), counts.tolist(), strict=True):
                self.producers[number] = self.producers.get(number, 0) + count
        if len(self.producers) > _MOST_PRODUCERS:
            kept = sorted(self.producers.items(), key=lambda item: item[1], reverse=True)
            self.producers = dict(kept[: _MOST_PRODUCERS // 2])
            self.other_producers += sum(count for _, count in kept[_MOST_PRODUCERS // 2 :])

    def _add_largest(self, tp: TopicPartition, block: RecordBlock, sizes: Int64s, headers: Int64s | None) -> None:
        least = self.largest[0].bytes if len(self.largest) == MOST_LARGEST else -1
        if int(sizes.max()) <= least:
            return
        rows = np.flatnonzero(sizes > least)
        # A stable sort, so that of equal sizes the first ones stay.
        for row in rows[np.argsort(-sizes[rows], kind="stable")[:MOST_LARGEST]].tolist():
            message = LargeMessage(
                int(sizes[row]),
                -(self.messages - len(block) + row),
                tp,
                int(block.offset[row]),
                int(block.timestamp[row]),
                int(block.key_length[row]),
                int(block.value_length[row]),
                0 if headers is None else int(headers[row]),
            )
            if len(self.largest) < MOST_LARGEST:
                heappush(self.largest, message)
            else:
                heappushpop(self.largest, message)

    def _add_headers(self, block: RecordBlock) -> Int64s | None:
        """Count the headers; return the bytes of their names and values in each message, None if there are none."""
        counts = np.maximum(block.headers_count, 0)
        if not counts.any():
            return None
        name_start, name_length, value_start, value_length = block.headers_spans()
        sizes = name_length + np.maximum(value_length, 0)
        of_message = np.add.reduceat(np.append(sizes, 0), np.minimum(np.cumsum(counts) - counts, len(sizes)))
        of_message[counts == 0] = 0
        self.headers.add(of_message[counts > 0])
        names = _hashed(block.buffer, name_start, name_length)
        _, firsts, slots = np.unique(names, return_index=True, return_inverse=True)
        headers_bytes, numbers = np.bincount(slots, sizes), np.bincount(slots)
        values = _hashed(block.buffer, value_start, value_length)
        for slot, first in enumerate(firsts.tolist()):
            name = _text(block.buffer, int(name_start[first]), int(name_length[first]))
            if name not in self.headers_by_name and len(self.headers_by_name) >= MOST_HEADERS:
                continue
            value = _text(block.buffer, int(value_start[first]), int(value_length[first]))
            header = self.headers_by_name.setdefault(name or b"", HeaderCounts(value))
            header.count += int(numbers[slot])
            header.bytes += int(headers_bytes[slot])
            if len(header.values) <= MOST_VALUES:
                distinct = np.unique(values[slots == slot])[: MOST_VALUES + 1]
                header.values.update(distinct.tolist()[: MOST_VALUES + 1])
        return of_message


def _distinct(column: Int64s) -> list[int]:
    """The different numbers of a column that mostly has one."""
    first = int(column[0])
    return [first] if bool((column == first).all()) else np.unique(column).tolist()


def _hashed(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Int64s:
    """A hash of each text with its length in the upper half; -1 of null."""
    hashes = np.empty(len(starts), np.int32)
    murmur2_columns(buffer, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), hashes)
    return np.where(lengths < 0, -1, (lengths << 32) | hashes.view(np.uint32))


def _text(buffer: memoryview, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(buffer[start : start + length])
