"""Decoder: a range of a BatchTable and its bytes → a RecordBlock. The one way from bytes to records.

CRCs of all rows first, then decompression, then columns, each in compiled calls over the range.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import CorruptBatch, StorageError
from storage.format import checksum, checksum_kernel, compression, kernel, message_kernel
from storage.format.batches import BATCH_HEADER_SIZE, CODEC_MASK, LOG_OVERHEAD, BatchTable, Column
from storage.format.block import Damage, RecordBlock, RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Int64s = NDArray[np.int64]

# What one batch may decompress to. Kafka's own reader has no cap; batches of one MiB that shrank two hundred times fit.
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
# Decompressed bytes after which a block ends: it should stay in the processor's cache.
BLOCK_BYTES = 1024 * 1024

LEAST_RECORD = 7  # bytes of a v2 record without key, value and headers
LEAST_MESSAGE = 26  # bytes of a v0 message without key and value

INT32 = struct.Struct(">i")


class _Payloads(NamedTuple):
    """Where the uncompressed records of rows lie in `buffer`, indexed by row - first row."""

    buffer: memoryview
    starts: Int64s
    ends: Int64s
    next_row: int
    damage: Damage | None


def verify_crcs(buffer: Buffer, table: BatchTable, first_row: int, last_row: int, origin: int) -> Damage | None:
    """Check the stored CRCs of rows [first_row, last_row); the first that differs, or None.

    `origin` is the file position of buffer[0]. ValueError: a row lies outside of `buffer`.
    """
    data = memoryview(buffer).cast("B")
    columns = np.ascontiguousarray(table.data)
    large = np.empty(max(last_row - first_row, 0), np.int64)
    row, found, count = checksum_kernel.check_batches(
        data,
        columns,
        first_row,
        last_row,
        origin,
        checksum.CRC32C_TABLES,
        checksum.CRC32_TABLES,
        checksum.small_limit(),
        large,
    )
    for index in large[:count].tolist():
        start = int(columns[Column.POSITION, index]) - origin
        end = start + int(columns[Column.SIZE, index])
        stored = int(columns[Column.CRC, index])
        if columns[Column.MAGIC, index] == 2:
            computed = checksum.crc32c(data[start + 21 : end])
        else:
            computed = checksum.crc32(data[start + 16 : end])
        if computed != stored:
            row, found = index, computed
            break
    if row >= last_row:
        return None
    return _damage(table, row, "batch checksum differs", expected=int(columns[Column.CRC, row]), found=found)


class Decoder:
    """Decodes ranges of batches. Recycles its arrays and arena: one per thread, and blocks last until the next call.

    `max_decompressed_bytes` caps what one batch may decompress to, `block_bytes` is where a block of compressed batches
    ends (the last one may pass it).
    """

    def __init__(
        self,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        verify_crc: bool = True,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        # constant after construction
        self.max_decompressed_bytes = max_decompressed_bytes
        self.verify_crc = verify_crc
        self.block_bytes = block_bytes
        # recycled by every call
        self._arena = np.empty(0, np.uint8)
        self._columns = np.empty((len(RecordColumn), 0), np.int64)
        self._fault = np.zeros(4, np.int64)

    def decode(
        self,
        buffer: Buffer,
        table: BatchTable,
        first_row: int = 0,
        last_row: int | None = None,
        *,
        origin: int,
        skip: NDArray[np.uint8] | None = None,
        control: bool = False,
    ) -> RecordBlock:
        """Decode rows [first_row, last_row) of `table`, whose bytes lie in `buffer`; bad bytes give `damage`.

        `origin` is the file position of buffer[0]. Rows with 1 in `skip` (one entry a table row) are left out, and so
        are control batches unless `control`; their CRCs are checked all the same. Without compressed batches the block
        indexes `buffer` itself. ValueError: a row lies outside of `buffer`.
        """
        data = memoryview(buffer).cast("B").toreadonly()
        last = table.rows if last_row is None else last_row
        if not 0 <= first_row <= last <= table.rows:
            raise ValueError(f"rows {first_row} to {last} of a table of {table.rows}")
        damage = verify_crcs(data, table, first_row, last, origin) if self.verify_crc else None
        if damage is not None:
            last = damage.row

        part = table.slice(first_row, last)
        wanted = np.ones(last - first_row, np.uint8)
        if skip is not None:
            wanted &= skip[first_row:last] == 0
        if not control:
            wanted &= ~part.is_control
        starts = part.position - origin
        ends = starts + part.size
        if len(starts) and (starts.min() < 0 or ends.max() > len(data)):
            raise ValueError("a batch lies outside of the buffer")

        if (part.attributes & CODEC_MASK != 0).any():
            payloads = self._inflate(data, table, first_row, starts, ends, wanted)
        else:
            starts[part.magic == 2] += BATCH_HEADER_SIZE
            payloads = _Payloads(data, starts, ends, last, None)
        damage = payloads.damage or (damage if payloads.next_row == last else None)
        return self._decode_rows(table, first_row, payloads, wanted, damage)

    def _decode_rows(
        self, table: BatchTable, first_row: int, payloads: _Payloads, wanted: NDArray[np.uint8], damage: Damage | None
    ) -> RecordBlock:
        last = payloads.next_row
        part = table.slice(first_row, last)
        count = last - first_row
        self._reserve(_record_bound(part, payloads.starts[:count], payloads.ends[:count], wanted[:count]))
        columns = np.ascontiguousarray(table.data)
        is_v2 = part.magic == 2
        row, used, fault = first_row, 0, self._fault
        while row < last:
            at = row - first_row
            run = is_v2[at:]
            length = int(np.argmax(run != run[0])) or len(run)
            decode = kernel.decode_records if run[0] else message_kernel.decode_messages
            row, used = decode(
                payloads.buffer,
                columns,
                row,
                row + length,
                payloads.starts[at:],
                payloads.ends[at:],
                wanted[at:],
                self._columns,
                used,
                fault,
            )
            if fault[0]:
                faults = kernel.FAULTS if run[0] else message_kernel.FAULTS
                what = faults[fault[0]]
                if fault[1] >= 0:
                    what += f" (record {fault[1]} of the batch)"
                damage = _damage(table, row, what, expected=int(fault[2]), found=int(fault[3]))
                break
        return RecordBlock(payloads.buffer, table, self._columns[:, :used], row, damage)

    def _inflate(
        self,
        data: memoryview,
        table: BatchTable,
        first_row: int,
        starts: Int64s,
        ends: Int64s,
        wanted: NDArray[np.uint8],
    ) -> _Payloads:
        """Decompress into the arena, copy what is not compressed; ends where the arena is full or a batch is bad."""
        count = len(starts)
        attributes = table.attributes[first_row : first_row + count].tolist()
        magics = table.magic[first_row : first_row + count].tolist()
        declared = table.count[first_row : first_row + count].tolist()
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        used, next_row, damage = 0, first_row + count, None
        for index, (start, end) in enumerate(spans):
            if not wanted[index]:
                continue
            codec, magic = attributes[index] & CODEC_MASK, magics[index]
            try:
                if magic == 2:
                    start += BATCH_HEADER_SIZE
                elif codec:
                    start, end = _wrapped(data, start, end, magic)
                if codec and declared[index] == 0 and start == end:
                    codec = compression.Codec.NONE  # what compaction leaves of a batch
                size = self._into_arena(codec, data[start:end], magic, used)
                if size >= 0 and codec and magic < 2 and self.verify_crc:
                    self._check_inner(used, used + size)
            except StorageError as error:
                next_row = first_row + index
                damage = _damage_of(table, next_row, error)
                break
            if size < 0:
                next_row = first_row + index
                break
            starts[index], ends[index] = used, used + size
            used += size
        return _Payloads(self._arena.data.toreadonly()[:used], starts, ends, next_row, damage)

    def _into_arena(self, codec: int, payload: memoryview, magic: int, used: int) -> int:
        """Bytes that the records take at arena[used:], or -1: no room beside what is there already."""
        if used >= self.block_bytes:
            return -1
        if codec == compression.Codec.NONE:
            if len(payload) > len(self._arena) - used:
                if used:
                    return -1
                self._grow_arena(len(payload))
            self._arena[used : used + len(payload)] = payload
            return len(payload)
        if not len(self._arena):
            self._grow_arena(min(2 * self.block_bytes, self.max_decompressed_bytes))
        while True:
            room = min(len(self._arena) - used, self.max_decompressed_bytes)
            try:
                return compression.decompress_into(codec, payload, self._arena[used : used + room].data, magic)
            except compression.OutputFull:
                if used:
                    return -1
                if room >= self.max_decompressed_bytes:
                    raise compression.too_large(self.max_decompressed_bytes) from None
                self._grow_arena(min(2 * len(self._arena), self.max_decompressed_bytes))

    def _check_inner(self, start: int, end: int) -> None:
        index, stored, found = checksum_kernel.check_messages(self._arena, start, end, checksum.CRC32_TABLES)
        if index >= 0:
            raise CorruptBatch(
                f"checksum of a message within a wrapper differs (record {index} of the batch)",
                expected=stored,
                found=found,
            )

    def _grow_arena(self, size: int) -> None:
        # Only ever called with nothing in the arena that this block needs.
        self._arena = np.empty(max(size, 2 * self.block_bytes), np.uint8)

    def _reserve(self, records: int) -> None:
        capacity = self._columns.shape[1]
        if records > capacity:
            self._columns = np.empty((len(RecordColumn), max(records, 2 * capacity, 4096) | 8), np.int64)


def _record_bound(part: BatchTable, starts: Int64s, ends: Int64s, wanted: NDArray[np.uint8]) -> int:
    """No more records than this are in the payloads, whatever headers claim."""
    room = np.maximum(ends - starts, 0)
    v2 = np.minimum(np.maximum(part.count, 0), room // LEAST_RECORD)
    plain = part.count == 1
    bound = np.where(part.magic == 2, v2, np.where(plain, 1, room // LEAST_MESSAGE))
    return int((bound * wanted).sum())


def _wrapped(data: memoryview, start: int, end: int, magic: int) -> tuple[int, int]:
    """Where the compressed value of a wrapper message at data[start:end] lies; CorruptBatch."""
    at = start + LOG_OVERHEAD + (14 if magic == 1 else 6)
    for name in ("key", "value"):
        left = end - at - INT32.size
        length = INT32.unpack_from(data, at)[0] if left >= 0 else -1
        if length > left:
            raise CorruptBatch(f"{name} length does not fit the wrapper", expected=f"at most {left}", found=length)
        at += INT32.size
        if name == "value":
            if length < 0:
                raise CorruptBatch("compressed wrapper has no value", expected="messages", found="null")
            return at, at + length
        at += max(length, 0)
    raise AssertionError("unreachable")


def _damage(table: BatchTable, row: int, what: str, *, expected: object, found: object) -> Damage:
    return _damage_of(table, row, CorruptBatch(what, expected=expected, found=found))


def _damage_of(table: BatchTable, row: int, error: StorageError) -> Damage:
    position, base, last = (
        int(table.data[column, row]) for column in (Column.POSITION, Column.BASE_OFFSET, Column.LAST_OFFSET)
    )
    error.position = position
    error.offset = base if base >= 0 else last
    return Damage(row, position, error)
