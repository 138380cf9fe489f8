"""How a broker (Kafka 4.3) turns a sequence of batches into a partition's files: for `tests.support.builders`.

The rules: storage/DESIGN.md, "Index files"; storage/DESIGN.md, "Rolling"; storage/DESIGN.md, "Producers". Written with
struct alone, without code of `storage`, which it judges.
Nothing here checks what a broker would refuse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

NO_TIMESTAMP = -1
MARKER_ABORT, MARKER_COMMIT = 0, 1


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of a log; an uncompressed v0 or v1 message is one. -1: none, or unknown (a wrapper's base, count)."""

    data: bytes
    base_offset: int
    last_offset: int
    magic: int
    attributes: int
    max_timestamp: int
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = -1

    @property
    def transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x20)

    @property
    def marker(self) -> tuple[int, int] | None:
        """(0 abort or 1 commit, coordinator epoch) of a transaction marker."""
        if not self.control or self.count == 0:
            return None
        at = _after_varint(self.data, 61) + 1  # length, attributes
        at = _after_varint(self.data, at)  # timestamp delta
        at = _after_varint(self.data, at)  # offset delta
        key = _after_varint(self.data, at)  # key length 4: version, type
        kind = struct.unpack_from(">h", self.data, key + 2)[0]
        value = _after_varint(self.data, key + 4)  # value length 6: version, coordinator epoch
        if kind not in (MARKER_ABORT, MARKER_COMMIT):
            return None
        return kind, struct.unpack_from(">i", self.data, value + 2)[0]


def _after_varint(data: bytes, at: int) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1


def stored_batches(data: bytes) -> Iterator[StoredBatch]:
    """The batches of a log's bytes, which must be whole."""
    position = 0
    while position < len(data):
        offset, length = struct.unpack_from(">qi", data, position)
        batch = data[position : position + 12 + length]
        magic = batch[16]
        if magic == 2:
            epoch, _, _, attributes, delta, _, max_timestamp, pid, producer_epoch, sequence, count = struct.unpack_from(
                ">ibIhiqqqhii", batch, 12
            )
            yield StoredBatch(
                batch, offset, offset + delta, 2, attributes, max_timestamp, epoch, pid, producer_epoch, sequence, count
            )
        else:
            timestamp = struct.unpack_from(">q", batch, 18)[0] if magic else NO_TIMESTAMP
            plain = not batch[17] & 7
            base, count = (offset, 1) if plain else (-1, -1)
            yield StoredBatch(batch, base, offset, magic, batch[17], timestamp, count=count)
        position += len(batch)


@dataclass(slots=True)
class SegmentFiles:
    """One segment as it grows: LogSegment.append, TimeIndex.maybeAppend."""

    base_offset: int
    index_interval_bytes: int = 4096
    index_max_bytes: int = 10 * 1024 * 1024
    log: list[bytes] = field(default_factory=list)
    size: int = 0
    first_timestamp: int | None = None
    index: list[tuple[int, int]] = field(default_factory=list)
    time_index: list[tuple[int, int]] = field(default_factory=list)
    transactions: list[tuple[int, int, int, int]] = field(default_factory=list)
    _since_entry: int = 0
    _max_timestamp: int = NO_TIMESTAMP
    _max_timestamp_offset: int = 0

    def append(self, batch: StoredBatch) -> None:
        if self.first_timestamp is None:
            self.first_timestamp = batch.max_timestamp
        if batch.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = batch.max_timestamp, batch.last_offset
        if self._since_entry > self.index_interval_bytes:
            self.index.append((batch.last_offset, self.size))
            self._offer_time()
            self._since_entry = 0
        self._since_entry += len(batch.data)
        self.log.append(batch.data)
        self.size += len(batch.data)

    def reopen(self) -> None:
        """Resets the counters as a restart of the broker does; the files of the segment continue."""
        self._since_entry = 0

    def close(self) -> None:
        """At roll and at clean close: one final time index entry."""
        self._offer_time()

    def _offer_time(self) -> None:
        last = self.time_index[-1][0] if self.time_index else NO_TIMESTAMP
        if self._max_timestamp > last:
            self.time_index.append((self._max_timestamp, self._max_timestamp_offset))

    def must_roll(self, batch: StoredBatch, segment_bytes: int, segment_ms: int) -> bool:
        """LogSegment.shouldRoll, without jitter and wall clock."""
        if not 0 <= batch.last_offset - self.base_offset < 2**31:
            return True
        if self.size == 0:
            return False
        assert self.first_timestamp is not None
        return (
            self.size > segment_bytes - len(batch.data)
            or batch.max_timestamp - self.first_timestamp > segment_ms
            or len(self.index) >= self.index_max_bytes // 8
            or len(self.time_index) >= self.index_max_bytes // 12 - 1
        )

    def files(self, *, preallocated: bool = False) -> dict[str, bytes]:
        """Contents by suffix. `preallocated`: indexes with their zero tails, as of a segment that is open."""
        base = self.base_offset
        index = b"".join(struct.pack(">ii", offset - base, position) for offset, position in self.index)
        times = b"".join(struct.pack(">qi", timestamp, offset - base) for timestamp, offset in self.time_index)
        if preallocated:
            index = index.ljust(self.index_max_bytes // 8 * 8, b"\0")
            times = times.ljust(self.index_max_bytes // 12 * 12, b"\0")
        files = {".log": b"".join(self.log), ".index": index, ".timeindex": times}
        if self.transactions:
            files[".txnindex"] = b"".join(struct.pack(">hqqqq", 0, *entry) for entry in self.transactions)
        return files


@dataclass(slots=True)
class Producer:
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1


@dataclass(slots=True)
class Producers:
    """ProducerStateManager, without expiry."""

    by_id: dict[int, Producer] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer id, first offset, marker's offset

    def append(self, batch: StoredBatch) -> tuple[int, int, int, int] | None:
        """Account for `batch`; an aborted transaction's index entry (producer, first, last, last stable offset)."""
        if batch.producer_id < 0:
            return None
        if batch.control:
            return self._end(batch)
        producer = self._of(batch)
        producer.last_offset = batch.last_offset
        producer.offset_delta = batch.last_offset - batch.base_offset
        producer.timestamp = batch.max_timestamp
        if batch.base_sequence >= 0:
            producer.last_sequence = (batch.base_sequence + producer.offset_delta) % 2**31
        if batch.transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = batch.base_offset
        return None

    def _end(self, batch: StoredBatch) -> tuple[int, int, int, int] | None:
        marker = batch.marker
        if marker is None:
            return None
        producer = self._of(batch)
        kind, producer.coordinator_epoch = marker
        producer.timestamp = batch.max_timestamp
        first, producer.transaction_first_offset = producer.transaction_first_offset, -1
        if first < 0 or kind != MARKER_ABORT:
            return None
        offset = batch.base_offset
        self.aborted.append((batch.producer_id, first, offset))
        return batch.producer_id, first, offset, min(self.open_transactions(), default=offset + 1)

    def _of(self, batch: StoredBatch) -> Producer:
        producer = self.by_id.setdefault(batch.producer_id, Producer(batch.producer_epoch))
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.last_sequence, producer.last_offset, producer.offset_delta = -1, -1, 0
        return producer

    def open_transactions(self) -> list[int]:
        """First offsets of the transactions that no marker has ended."""
        return [p.transaction_first_offset for p in self.by_id.values() if p.transaction_first_offset >= 0]

    def snapshot(self) -> bytes:
        entries = b"".join(
            struct.pack(
                ">qhiqiqiq",
                producer_id,
                p.epoch,
                p.last_sequence,
                p.last_offset,
                p.offset_delta,
                p.timestamp,
                p.coordinator_epoch,
                p.transaction_first_offset,
            )
            for producer_id, p in self.by_id.items()
        )
        body = struct.pack(">i", len(self.by_id)) + entries
        return struct.pack(">hI", 1, crc32c.crc32c(body)) + body


def checkpoint(offsets: Mapping[tuple[str, int], int]) -> bytes:
    return _counted([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def epoch_checkpoint(epochs: Sequence[tuple[int, int]]) -> bytes:
    """leader-epoch-checkpoint's content, of (epoch, start offset)."""
    return _counted([f"{epoch} {start}" for epoch, start in epochs])


def _counted(lines: list[str]) -> bytes:
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def write(path: Path, content: bytes) -> None:
    """Write a file; long zero tails become holes, so that preallocated indexes take no space."""
    with path.open("wb") as file:
        file.write(content.rstrip(b"\0") if len(content) > 65536 else content)
        file.truncate(len(content))
