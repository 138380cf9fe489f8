"""Decoder: turns a range of a BatchTable and its bytes into a RecordBlock. The only way from bytes to records.

First the CRCs of all rows are checked, then batches are decompressed, then records decoded, each in compiled calls over
the range; only the codec libraries may need a call for each batch.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import CorruptBatch, StorageError
from storage.format import checksum, checksum_kernel, compression, decode_kernel, inflate_kernel
from storage.format.batches import BATCH_HEADER_SIZE, CODEC_MASK, LOG_OVERHEAD, MOST_BATCH_BYTES, BatchTable
from storage.format.block import BatchDamage, RecordBlock
from storage.format.columns import Column, RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from storage.format.codec_library import CodecLibrary

    Int64s = NDArray[np.int64]

# The most bytes that one batch may decompress to. Kafka's own reader has no limit; this allows batches of one MiB with
# a compression ratio of 256.
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
# Decompressed bytes after which a block ends, so that it stays in the processor's cache.
BLOCK_BYTES = 1024 * 1024

# A batch that takes more is unusual: its memory is not kept for the next call, and only two decoders of the process
# have such memory at a time. A decoder that waits continues after some seconds, because its own thread may be using
# another decoder's block.
LARGE_BYTES = 32 * 1024 * 1024
LARGE_RECORDS = 1 << 19
LARGE_AT_A_TIME = 2
_large = threading.BoundedSemaphore(LARGE_AT_A_TIME)
PATIENCE_SECONDS = 2

_TOO_LARGE = "record batch is larger than kafkafs reads"
NO_RECORDS = 1 - 2**63  # instead of a timestamp
# The most records of a batch, and the most headers of all of them (decode_kernel has the numbers too). Kafka has no
# limits; librdkafka puts at most 1,000,000 messages into a batch, and Kafka's own producer fewer by default.
MOST_RECORDS = MOST_HEADERS = 1 << 21
LEAST_RECORD = 7  # bytes of a v2 record without key, value and headers
LEAST_MESSAGE = 26  # bytes of a v0 message without key and value

NOTHING_SKIPPED = np.empty(0, np.uint8)
NO_SPANS = np.empty(0, np.int64)
INT32 = struct.Struct(">i")


class _Payloads(NamedTuple):
    """Where the uncompressed records of rows lie in `buffer`, indexed by row - first row."""

    buffer: memoryview
    starts: Int64s
    ends: Int64s
    next_row: int
    damage: BatchDamage | None


class _Plan(NamedTuple):
    """The result of decode_kernel.survey for some rows."""

    records: int
    compressed: int
    legacy: int


class RecordAudit(NamedTuple):
    """The result of checking the records of rows, up to `next_row` (it and `damage` as in a RecordBlock); int64 columns
    by row.

    `greatest`: the greatest timestamp, NO_RECORDS without records. `misplaced`: the first record whose offset is not
    above the one before it or not within its batch, counted within the batch, -1 for none; `misplaced_offset`: its
    offset.
    """

    next_row: int
    damage: BatchDamage | None
    greatest: Int64s
    misplaced: Int64s
    misplaced_offset: Int64s


def verify_crcs(buffer: Buffer, table: BatchTable, first_row: int, last_row: int, origin: int) -> BatchDamage | None:
    """Check the stored CRCs of rows [first_row, last_row). Returns the first that differs, or None.

    `origin` is the file position of buffer[0]. ValueError: a row lies outside of `buffer`. But of a batch above
    MOST_BATCH_BYTES only the header may be there: then its CRC was checked when it was read.
    """
    data = memoryview(buffer).cast("B")
    if first_row < last_row and len(data) < int(table.size[first_row]) > MOST_BATCH_BYTES:
        return None
    columns = np.ascontiguousarray(table.data)
    large = np.empty((max(last_row - first_row, 0), 5), np.int64)
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
    for index, start, end, stored, magic in large[:count].tolist():
        crc = checksum.crc32c(data[start:end]) if magic == 2 else checksum.crc32(data[start:end])
        if crc != stored:
            row, found = index, crc
            break
    if row >= last_row:
        return None
    stored = int(columns[Column.CRC, row])
    return _damage(table, row, "batch checksum differs", expected=f"{stored:#010x}", found=f"{found:#010x}")


class Decoder:
    """Decodes ranges of batches. Reuses its arrays and arena: use one per thread; blocks are valid until the next call.

    `max_decompressed_bytes`: the most bytes that one batch may decompress to. `block_bytes`: where a block of
    compressed batches ends (the last batch may exceed it). `verify_inner_crc`: whether to check messages within old
    formats' wrappers; by default as `verify_crc`.
    """

    def __init__(
        self,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        verify_crc: bool = True,
        block_bytes: int = BLOCK_BYTES,
        verify_inner_crc: bool | None = None,
    ) -> None:
        # constant after construction
        self.max_decompressed_bytes = max_decompressed_bytes
        self.verify_crc = verify_crc
        self.verify_inner_crc = verify_crc if verify_inner_crc is None else verify_inner_crc
        self.block_bytes = block_bytes
        # recycled by every call
        self._arena = memoryview(bytearray())
        self._columns = np.empty((len(RecordColumn), 0), np.int64)
        self._fault = np.zeros(4, np.int64)
        self._library: CodecLibrary | None = None  # created for the first compressed batch
        self._is_counted = False  # in _large

    def __del__(self) -> None:
        self._free_large()

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
        """Decode rows [first_row, last_row) of `table`, whose bytes are in `buffer`. Bad bytes are reported in
        `damage`.

        `origin` is the file position of buffer[0]. Rows with 1 in `skip` (one entry per table row) are left out, and so
        are control batches unless `control`; their CRCs are checked nevertheless. Without compressed batches the block
        refers to `buffer` itself. ValueError: a row lies outside of `buffer`.
        """
        skip = NOTHING_SKIPPED if skip is None else np.ascontiguousarray(skip, np.uint8)
        headers = np.ascontiguousarray(table.data)
        payloads, plan = self._uncompressed(buffer, table, headers, first_row, last_row, origin, skip, control)
        last, damage = payloads.next_row, payloads.damage
        columns = self._room(plan.records)
        row, used = decode_kernel.decode(
            payloads.buffer,
            headers,
            first_row,
            last,
            origin,
            payloads.starts,
            payloads.ends,
            skip,
            control,
            columns,
            0,
            self._fault,
        )
        if self._fault[0]:
            damage = _damage_of_fault(table, row, self._fault)
            if not used:  # a large batch is alone in the arena
                payloads = payloads._replace(buffer=memoryview(b""))
                self._free_large()
        return RecordBlock(payloads.buffer, table, columns[:, :used], row, damage)

    def audit(
        self, buffer: Buffer, table: BatchTable, first_row: int = 0, last_row: int | None = None, *, origin: int
    ) -> RecordAudit:
        """Check the records of rows [first_row, last_row) without keeping them; arguments as for `decode`."""
        headers = np.ascontiguousarray(table.data)
        payloads, plan = self._uncompressed(
            buffer, table, headers, first_row, last_row, origin, NOTHING_SKIPPED, control=True
        )
        last, damage = payloads.next_row, payloads.damage
        audited = np.empty((3, last - first_row), np.int64)
        row, _ = decode_kernel.decode(
            payloads.buffer,
            headers,
            first_row,
            last,
            origin,
            payloads.starts,
            payloads.ends,
            NOTHING_SKIPPED,
            True,
            audited,
            0,
            self._fault,
            self._room(plan.records),
        )
        del payloads
        self._free_large()
        if self._fault[0]:
            damage = _damage_of_fault(table, row, self._fault)
        return RecordAudit(row, damage, *audited[:, : row - first_row])

    def _room(self, records: int) -> Int64s:
        """Columns for at least this many records."""
        if records > self._columns.shape[1]:
            self._count_large(records > LARGE_RECORDS)
            # An odd count of cache lines a column, so that columns do not fall into the same cache sets.
            capacity = max(records, min(2 * self._columns.shape[1], LARGE_RECORDS), 4096)
            self._columns = np.empty((len(RecordColumn), capacity | 8), np.int64)
        return self._columns

    def _uncompressed(
        self,
        buffer: Buffer,
        table: BatchTable,
        headers: Int64s,
        first_row: int,
        last_row: int | None,
        origin: int,
        skip: NDArray[np.uint8],
        control: bool,
    ) -> tuple[_Payloads, _Plan]:
        """Check CRCs and decompress: where the records of the rows that can be decoded now are, and how many at
        most."""
        self._free_large()
        data = memoryview(buffer).cast("B").toreadonly()
        last = table.rows if last_row is None else last_row
        if not 0 <= first_row <= last <= table.rows:
            raise ValueError(f"rows {first_row} to {last} of a table of {table.rows}")
        last, plan, damage = self._plan(data, table, headers, first_row, last, origin, skip, control)
        if not plan.compressed:
            return _Payloads(data, NO_SPANS, NO_SPANS, last, damage), plan
        part = table.slice(first_row, last)
        chosen = np.ones(part.rows, np.bool_) if control else ~part.is_control
        chosen[: max(len(skip) - first_row, 0)] &= skip[first_row:last] == 0
        payloads = self._inflate(data, table, first_row, origin, np.flatnonzero(chosen), last)
        if payloads.next_row == last:
            payloads = payloads._replace(damage=damage)
        records = _record_bound(table.slice(first_row, payloads.next_row), payloads.starts, payloads.ends)
        return payloads, plan._replace(records=records)

    def _plan(
        self,
        data: memoryview,
        table: BatchTable,
        headers: Int64s,
        first_row: int,
        last: int,
        origin: int,
        skip: NDArray[np.uint8],
        control: bool,
    ) -> tuple[int, _Plan, BatchDamage | None]:
        """(end of the rows to decode now, their survey, what is wrong at their end).

        They end at the first wrong CRC and, if batches are compressed, after a quarter of the arena's size: the arena
        will mostly be full by then, and the CRCs of the rest would be checked now and again in the next call.
        """
        end = last
        if first_row < last and headers[Column.SIZE, first_row] > MOST_BATCH_BYTES:
            expected, found = f"at most {MOST_BATCH_BYTES} bytes", int(headers[Column.SIZE, first_row])
            return first_row, _Plan(0, 0, 0), _damage(table, first_row, _TOO_LARGE, expected=expected, found=found)
        if first_row < last and headers[Column.ATTRIBUTES, first_row] & CODEC_MASK:
            end = _rows_within(table, first_row, last, self.block_bytes // 4)
        surveyed = end
        plan = _Plan(*decode_kernel.survey(headers, first_row, end, origin, len(data), skip, control))
        if plan.compressed and end == last:
            end = _rows_within(table, first_row, last, self.block_bytes // 4)
        damage = verify_crcs(data, table, first_row, end, origin) if self.verify_crc else None
        if damage is not None:
            end = damage.row
        if end < surveyed:
            plan = _Plan(*decode_kernel.survey(headers, first_row, end, origin, len(data), skip, control))
        return end, plan, damage

    def _inflate(
        self, data: memoryview, table: BatchTable, first_row: int, origin: int, chosen: NDArray[np.intp], last: int
    ) -> _Payloads:
        """Decompress into the arena, or copy if not compressed; stops where the arena is full or a batch is bad.

        `chosen`: the rows to decode, counted from `first_row`. Batches that the kernel leaves are decompressed here,
        one at a time.
        """
        if not self._arena:
            self._grow_arena(0)
        if self._library is None:
            from storage.format.codec_library import CodecLibrary

            self._library = CodecLibrary()
        rows = chosen.astype(np.int64)
        headers = np.ascontiguousarray(table.data)
        starts, ends = np.zeros(last - first_row, np.int64), np.zeros(last - first_row, np.int64)
        next_row, damage, used, index = last, None, 0, 0
        while True:
            index, used = inflate_kernel.inflate(
                data,
                headers,
                first_row,
                origin,
                rows,
                index,
                self._arena,
                used,
                self.block_bytes,
                self.max_decompressed_bytes,
                starts,
                ends,
                self._library.addresses,
            )
            if index == len(rows):
                break
            row = int(rows[index])
            try:
                size = self._inflate_row(data, table, first_row + row, origin, used)
            except StorageError as error:
                next_row = first_row + row
                damage = _damage_of(table, next_row, error)
                break
            if size is None:
                next_row = first_row + row
                break
            starts[row] = used
            used += size
            ends[row] = used
            index += 1
        return _Payloads(self._arena[:used].toreadonly(), starts, ends, next_row, damage)

    def _inflate_row(self, data: memoryview, table: BatchTable, row: int, origin: int, used: int) -> int | None:
        """`_into_arena` for one batch of any format and codec."""
        codec, magic = int(table.attributes[row]) & CODEC_MASK, int(table.magic[row])
        start = int(table.position[row]) - origin
        end = start + int(table.size[row])
        if magic == 2:
            start += BATCH_HEADER_SIZE
        elif codec:
            start, end = _wrapped(data, start, end, magic)
        if start == end and table.count[row] == 0:
            return 0  # a batch emptied by compaction
        size = self._into_arena(codec, data[start:end], magic, used)
        if size is not None and codec and magic < 2 and self.verify_inner_crc:
            self._check_inner(used, used + size)
        return size

    def _into_arena(self, codec: int, payload: memoryview, magic: int, used: int) -> int | None:
        """The size of the records in arena[used:]; None if there is no room after what is already there."""
        if used >= self.block_bytes:
            return None
        if codec == compression.Codec.NONE:
            size = len(payload)
            if size > len(self._arena) - used:
                if used:
                    return None
                self._grow_arena(size)
            self._arena[used : used + size] = payload
            return size
        while True:
            room = min(len(self._arena) - used, self.max_decompressed_bytes)
            try:
                return compression.decompress_into(codec, payload, self._arena[used : used + room], magic)
            except compression.OutputFull as full:
                if room >= self.max_decompressed_bytes or full.needed > self.max_decompressed_bytes:
                    raise compression.too_large(self.max_decompressed_bytes) from None
                if used:
                    return None
                self._grow_arena(min(max(2 * room, full.needed), self.max_decompressed_bytes))

    def _grow_arena(self, size: int) -> None:
        # Only called when this block needs nothing in the arena. Not a bytearray, which would be zeroed.
        self._arena = memoryview(b"")
        self._count_large(size > LARGE_BYTES)
        self._arena = np.empty(max(size, 2 * self.block_bytes), np.uint8).data

    def _count_large(self, is_large: bool) -> None:
        if is_large and not self._is_counted:
            self._is_counted = _large.acquire(timeout=PATIENCE_SECONDS)

    def _free_large(self) -> None:
        if len(self._arena) > LARGE_BYTES:
            self._arena = memoryview(b"")
        if self._columns.shape[1] > LARGE_RECORDS + 8:
            self._columns = np.empty((len(RecordColumn), 0), np.int64)
        if self._is_counted:
            self._is_counted = False
            _large.release()

    def _check_inner(self, start: int, end: int) -> None:
        index, stored, found = checksum_kernel.check_messages(self._arena, start, end, checksum.CRC32_TABLES)
        if index >= 0:
            what = f"checksum of a message within a wrapper differs (record {index} of the batch)"
            raise CorruptBatch(what, expected=stored, found=found)


def _rows_within(table: BatchTable, first_row: int, last_row: int, size: int) -> int:
    """The end of the rows that begin within `size` bytes of the first one; at least one row."""
    positions = table.position[first_row:last_row]
    return first_row + max(1, int(np.searchsorted(positions, positions[0] + size)))


def _record_bound(part: BatchTable, starts: Int64s, ends: Int64s) -> int:
    """The most records that can lie between `starts` and `ends`, whatever the headers claim."""
    room = (ends - starts)[: part.rows]
    v2 = np.minimum(np.maximum(part.count, 0), room // LEAST_RECORD)
    legacy = np.where(part.count == 1, 1, room // LEAST_MESSAGE)
    return int(np.minimum(np.where(part.magic == 2, v2, legacy), MOST_RECORDS).sum())


def _wrapped(data: memoryview, start: int, end: int, magic: int) -> tuple[int, int]:
    """The position of the compressed value in the wrapper message data[start:end]. CorruptBatch."""
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


def _damage_of_fault(table: BatchTable, row: int, fault: Int64s) -> BatchDamage:
    code, record, expected, found = fault.tolist()
    what, expectation = decode_kernel.FAULTS[code]
    if record >= 0:
        what += f" (record {record} of the batch)"
    return _damage(table, row, what, expected=expectation.format(expected), found=found)


def _damage(table: BatchTable, row: int, what: str, *, expected: object, found: object) -> BatchDamage:
    return _damage_of(table, row, CorruptBatch(what, expected=expected, found=found))


def _damage_of(table: BatchTable, row: int, error: StorageError) -> BatchDamage:
    base, last = int(table.base_offset[row]), int(table.last_offset[row])
    error.position = int(table.position[row])
    error.offset = base if base >= 0 else last
    return BatchDamage(row, error.position, int(table.end[row]), error)
