# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loops of reading: batch headers into a table, records of every format into columns.

Cython in pure-Python mode; the same file runs uncompiled, some hundred times slower. No length read from the data is
trusted: each is checked against what is left before it is used, by subtraction, so that no sum can overflow. All
integers of the log are big-endian, except varints. Source: storage/FORMAT.md, "Record batch" and "Message sets"
(DefaultRecordBatch, DefaultRecord, ByteUtils, LegacyRecord, AbstractLegacyRecordBatch.DeepRecordsIterator,
FileLogInputStream).
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.storage.format import columns as column
else:
    from typing import Any

    from storage.format import columns as column

    # decode_kernel.pxd declares these, the constants with the same numbers: if they were variables, each use would load
    # them, and decoding would be a fifth slower.
    prefetch: Any = None

    # Why a header scan stopped; the numbers of batches.ScanStop.
    STOP_END = 0
    STOP_FULL = 1
    STOP_CORRUPT = 2
    STOP_UNSUPPORTED = 3

    CODEC_BITS = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    CONTROL_BIT = 0x20

    OVERHEAD = 12  # offset and length, which the length does not count
    BYTES_UP_TO_MAGIC = 17
    V0_SIZE = 26  # the smallest message of format v0, with the 12
    V1_SIZE = 34
    V2_SIZE = 61  # a batch header of format v2
    LEAST_RECORD = 7  # no key, no value, no header: one byte for each field
    LEAST_BODY = 6
    # The most records of a batch, and the most headers of all of them. A header without name and value takes two bytes
    # and compresses to almost nothing, but takes 32 in memory; a record takes 7, and 72 in memory.
    MOST_RECORDS = 1 << 21
    MOST_HEADERS = 1 << 21
    # Lengths and small fields of records are far apart, which the processor's own prefetching does not cover.
    # Prefetched this many bytes ahead, records are read from memory at 50 M/s instead of 35 (100-byte values).
    AHEAD = 4096
    PLAIN_AHEAD = 2048  # in `audit_plainly`, which it makes a sixth faster
    SHORT = 1 << 13  # more than two bytes of a varint can hold

    # What is wrong with a batch: an index into FAULTS, which has the texts for the numbers (expected, found).
    COUNT_FAULT = 1
    LENGTH_FAULT = 2
    VARINT_FAULT = 3
    OFFSET_FAULT = 4
    KEY_FAULT = 5
    VALUE_FAULT = 6
    HEADER_COUNT_FAULT = 7
    HEADER_KEY_FAULT = 8
    HEADER_VALUE_FAULT = 9
    BODY_FAULT = 10
    LEFTOVER_FAULT = 11
    BASE_OFFSET_FAULT = 12
    LAST_OFFSET_FAULT = 13
    RECORDS_FAULT = 14
    CAPACITY_FAULT = 15
    MESSAGE_SIZE_FAULT = 16
    MESSAGE_KEY_FAULT = 17
    MESSAGE_VALUE_FAULT = 18
    MESSAGE_MAGIC_FAULT = 19
    NESTED_FAULT = 20
    EMPTY_FAULT = 21
    WRAPPER_OFFSET_FAULT = 22
    MESSAGE_OFFSET_FAULT = 23
    MESSAGE_CAPACITY_FAULT = 24
    MOST_RECORDS_FAULT = 25
    MOST_HEADERS_FAULT = 26
    BOUNDS_FAULT = 27

# A byte buffer: a C pointer when compiled, a memoryview of bytes when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
# A table of 64-bit integers, row after row: number `column` of row `kind` is at kind * width + column. A C pointer when
# compiled (a memoryview as an argument is a structure of 200 bytes, copied for each batch), a flat memoryview when not.
Numbers = cython.typedef(cython.pointer(cython.longlong))
ConstNumbers = cython.typedef(cython.pointer(cython.const[cython.longlong]))

MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
NO_TIMESTAMP = cython.declare(cython.longlong, -0x7FFFFFFFFFFFFFFF)

# (what is wrong, what was expected, with a place for the number)
FAULTS = (
    ("", ""),
    ("record count does not fit the batch's size", "0 to {}"),
    ("record length does not fit the batch", "6 to {}"),
    ("a variable-length integer does not end in time", "at most {} bytes"),
    ("offset delta passes the 64-bit limit", "a sum with {} of 0 or more"),
    ("key length does not fit the record", "at most {}"),
    ("value length does not fit the record", "at most {}"),
    ("header count does not fit the record", "0 to {}"),
    ("header key length does not fit the record", "0 to {}"),
    ("header value length does not fit the record", "at most {}"),
    ("record fields do not fill the record", "{} bytes"),
    ("bytes are left after the batch's last record", "{}"),
    ("base offset is negative", "{} or more"),
    ("last offset is no offset from the base offset on", "{} or more"),
    ("fewer records than the batch declares", "{}"),
    ("more records than columns have room for", "at most {}"),
    ("message size is below the least", "{} or more"),
    ("key length does not fit the message", "at most {}"),
    ("value length does not fit the message", "at most {}"),
    ("message within a wrapper has an unknown format", "0 to {}"),
    ("message within a wrapper is compressed itself", "codec {}"),
    ("compressed wrapper holds no message", "{} or more"),
    ("wrapper offset is below its last message's relative offset", "0, or {} or more"),
    ("offset is negative or passes the 64-bit limit", "a sum with {} of 0 or more"),
    ("more messages than columns have room for", "at most {}"),
    ("more records than are read of one batch", "at most {}"),
    ("more headers than are read of one batch", "at most {}"),
    ("batch lies outside of the buffer", "an end within {}"),
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_u32(data: Bytes, at: cython.longlong) -> cython.longlong:
    return (
        cython.cast(cython.ulonglong, data[at]) << 24
        | cython.cast(cython.ulonglong, data[at + 1]) << 16
        | cython.cast(cython.ulonglong, data[at + 2]) << 8
        | cython.cast(cython.ulonglong, data[at + 3])
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_i32(data: Bytes, at: cython.longlong) -> cython.longlong:
    if cython.compiled:
        return cython.cast(cython.int, load_u32(data, at))
    else:
        return (load_u32(data, at) ^ 0x80000000) - 0x80000000


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_i16(data: Bytes, at: cython.longlong) -> cython.longlong:
    return ((cython.cast(cython.longlong, data[at]) << 8 | data[at + 1]) ^ 0x8000) - 0x8000


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_i64(data: Bytes, at: cython.longlong) -> cython.longlong:
    if cython.compiled:
        return cython.cast(
            cython.longlong, cython.cast(cython.ulonglong, load_u32(data, at)) << 32 | load_u32(data, at + 4)
        )
    else:
        return (load_i32(data, at) << 32) + load_u32(data, at + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def wrapping_add(left: cython.longlong, right: cython.longlong) -> cython.longlong:
    """The sum modulo 2**64, as Java adds timestamps."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, left) + cython.cast(cython.ulonglong, right))
    else:
        return ((left + right + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def unzigzag(raw: cython.ulonglong) -> cython.longlong:
    return cython.cast(cython.longlong, (raw >> 1) ^ -(raw & 1))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def long_varint(
    data: Bytes, at: cython.longlong, end: cython.longlong, bits: cython.int
) -> tuple[cython.longlong, cython.longlong]:
    """(value, position after it) of a zigzag integer of `bits` bits; position -1 if it does not end or overflows."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while at < end:
        byte = data[at]
        at += 1
        if bits - shift < 7 and (byte & 0x7F) >> (bits - shift) != 0:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return unzigzag(raw), at
        shift += 7
        if shift >= bits:
            return 0, -1
    return 0, -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint(
    data: Bytes, at: cython.longlong, end: cython.longlong, bits: cython.int
) -> tuple[cython.longlong, cython.longlong]:
    """`long_varint` with the one- and two-byte forms inlined."""
    first: cython.ulonglong
    second: cython.ulonglong
    if at < end:
        first = data[at]
        if first < 0x80:
            return unzigzag(first), at + 1
        if end - at > 1:
            second = data[at + 1]
            if second < 0x80:
                return unzigzag((first & 0x7F) | second << 7), at + 2
    return long_varint(data, at, end, bits)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def failed(fault: Numbers, code: cython.longlong, expected: cython.longlong, found: cython.longlong) -> cython.longlong:
    fault[0] = code
    fault[2] = expected
    fault[3] = found
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_wanted(
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    skip: Bytes,
    skips: cython.Py_ssize_t,
    control: cython.bint,
) -> cython.bint:
    if row < skips and skip[row] != 0:
        return False
    return control or table[column.MAGIC * rows + row] < 2 or (table[column.ATTRIBUTES * rows + row] & CONTROL_BIT) == 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def scan_v2(data: Bytes, at: cython.longlong, table: cython.longlong[:, ::1], row: cython.Py_ssize_t) -> cython.void:
    base: cython.longlong = load_i64(data, at)
    delta: cython.longlong = load_i32(data, at + 23)
    table[column.BASE_OFFSET, row] = base
    # -1 for an impossible offset: decoding refuses such a batch.
    if base < 0 or delta < 0 or base > MAX_INT64 - delta:
        table[column.LAST_OFFSET, row] = -1
    else:
        table[column.LAST_OFFSET, row] = base + delta
    table[column.LEADER_EPOCH, row] = load_i32(data, at + 12)
    table[column.MAGIC, row] = 2
    table[column.CRC, row] = load_u32(data, at + 17)
    table[column.ATTRIBUTES, row] = cython.cast(cython.longlong, data[at + 21]) << 8 | data[at + 22]
    table[column.BASE_TIMESTAMP, row] = load_i64(data, at + 27)
    table[column.MAX_TIMESTAMP, row] = load_i64(data, at + 35)
    table[column.PRODUCER_ID, row] = load_i64(data, at + 43)
    table[column.PRODUCER_EPOCH, row] = load_i16(data, at + 51)
    table[column.BASE_SEQUENCE, row] = load_i32(data, at + 53)
    table[column.COUNT, row] = load_i32(data, at + 57)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def scan_legacy(
    data: Bytes, at: cython.longlong, table: cython.longlong[:, ::1], row: cython.Py_ssize_t
) -> cython.void:
    compressed: cython.bint = (data[at + 17] & CODEC_BITS) != 0
    offset: cython.longlong = load_i64(data, at)
    timestamp: cython.longlong = load_i64(data, at + 18) if data[at + 16] == 1 else -1
    table[column.BASE_OFFSET, row] = -1 if compressed else offset
    table[column.LAST_OFFSET, row] = offset
    table[column.LEADER_EPOCH, row] = -1
    table[column.MAGIC, row] = data[at + 16]
    table[column.CRC, row] = load_u32(data, at + 12)
    table[column.ATTRIBUTES, row] = data[at + 17]
    table[column.BASE_TIMESTAMP, row] = timestamp
    table[column.MAX_TIMESTAMP, row] = timestamp
    table[column.PRODUCER_ID, row] = -1
    table[column.PRODUCER_EPOCH, row] = -1
    table[column.BASE_SEQUENCE, row] = -1
    table[column.COUNT, row] = -1 if compressed else 1


def scan(
    buffer: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    origin: cython.longlong,
    table: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> tuple[int, int, int]:
    """Append the headers of the whole batches in buffer[start:end] to `table` from `row` on: (row, next start, stop).

    `origin` is the file position of buffer[0]. `end` must not pass the buffer.
    """
    at: cython.longlong = start
    length: cython.longlong
    size: cython.longlong
    magic: cython.int
    least: cython.longlong
    stop: cython.int = STOP_END
    capacity: cython.Py_ssize_t = table.shape[1]
    data: Bytes
    if cython.compiled:
        data = cython.address(buffer[0])
    else:
        data = memoryview(buffer)
        table = memoryview(table)
    if start < 0 or end < 0 or end > len(buffer) or origin < 0 or origin > MAX_INT64 - len(buffer):
        raise ValueError("span outside of the buffer")
    if row < 0 or table.shape[0] < 14:
        raise ValueError("row outside of the table")
    with cython.nogil:
        # A header up to the magic is not a batch yet (FileLogInputStream.nextBatch).
        while end - at > BYTES_UP_TO_MAGIC:
            length = load_i32(data, at + 8)
            if length < V0_SIZE - OVERHEAD:
                stop = STOP_CORRUPT
                break
            magic = data[at + 16]
            if magic > 2:
                stop = STOP_UNSUPPORTED
                break
            size = length + OVERHEAD
            least = V2_SIZE if magic == 2 else (V1_SIZE if magic == 1 else V0_SIZE)
            if size < least:
                stop = STOP_CORRUPT
                break
            if size > end - at:
                break
            if row >= capacity:
                stop = STOP_FULL
                break
            table[column.POSITION, row] = origin + at
            table[column.SIZE, row] = size
            if magic == 2:
                scan_v2(data, at, table, row)
            else:
                scan_legacy(data, at, table, row)
            row += 1
            at += size
    return row, at, stop


def survey(
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    origin: cython.longlong,
    size: cython.longlong,
    skip: cython.const[cython.uchar][::1],
    control: cython.bint,
) -> tuple[int, int, int]:
    """The size of decoding rows [first_row, last_row): (most records, compressed rows, rows below v2).

    The first two count only wanted rows: those without 1 in `skip` (which may be shorter than the table), and no
    control batches unless `control`. Records of compressed rows are not counted. ValueError: a row lies outside of the
    `size` bytes of file position `origin` and up.
    """
    row: cython.Py_ssize_t
    skips: cython.Py_ssize_t = len(skip)
    records: cython.longlong = 0
    compressed: cython.Py_ssize_t = 0
    legacy: cython.Py_ssize_t = 0
    at: cython.longlong
    length: cython.longlong
    count: cython.longlong
    cells: ConstNumbers
    skipped: Bytes
    width: cython.Py_ssize_t = table.shape[1]
    if first_row < 0 or last_row > width or table.shape[0] < 9 or origin < 0:
        raise ValueError("rows outside of the table")
    if cython.compiled:
        cells, skipped = cython.address(table[0, 0]), cython.address(skip[0])
    else:
        cells, skipped = memoryview(table.reshape(-1)), memoryview(skip)
    with cython.nogil:
        for row in range(first_row, last_row):
            at = cells[column.POSITION * width + row]
            length = cells[column.SIZE * width + row]
            count = V2_SIZE if cells[column.MAGIC * width + row] == 2 else V0_SIZE
            if at < origin or at - origin > size or length < count or length > size - (at - origin):
                records = -1
                break
            if cells[column.MAGIC * width + row] != 2:
                legacy += 1
            if not is_wanted(cells, width, row, skipped, skips, control):
                continue
            if cells[column.ATTRIBUTES * width + row] & CODEC_BITS != 0:
                compressed += 1
            elif cells[column.MAGIC * width + row] == 2:
                count = cells[column.COUNT * width + row]
                if count > length:
                    count = length
                if count > 0 and count * LEAST_RECORD > length - V2_SIZE:
                    count = (length - V2_SIZE) // LEAST_RECORD
                if count > MOST_RECORDS:
                    count = MOST_RECORDS
                if count > 0:
                    records += count
            else:
                records += 1
    if records < 0:
        raise ValueError("a batch lies outside of the buffer")
    return records, compressed, legacy


def search(
    buffer: cython.const[cython.uchar][::1],
    start: cython.longlong,
    left: cython.longlong,
    lowest: cython.longlong,
    highest: cython.longlong,
) -> int:
    """The first position from `start` on where bytes of `buffer` look like a batch's header; -1 if there is none.

    Magic, length and codec are checked, and that the offset is within `lowest` to `highest`, both included. `left`: the
    bytes of the file from buffer[0] on, which the batch must not exceed. The whole header must be in `buffer`.
    """
    at: cython.longlong = start
    size: cython.longlong = len(buffer)
    header_at: cython.longlong = -1
    magic: cython.int
    least: cython.longlong
    length: cython.longlong
    offset: cython.longlong
    data: Bytes
    if start < 0 or left < 0:
        raise ValueError("start or end outside of the buffer")
    data = cython.address(buffer[0]) if cython.compiled else memoryview(buffer)
    with cython.nogil:
        while size - at >= V0_SIZE:
            magic = data[at + 16]
            least = V2_SIZE if magic == 2 else (V1_SIZE if magic == 1 else V0_SIZE)
            if magic <= 2 and size - at >= least:
                length = load_i32(data, at + 8)
                offset = load_i64(data, at)
                if least <= length + OVERHEAD <= left - at and lowest <= offset <= highest:
                    if magic < 2:
                        if data[at + 17] & CODEC_BITS < 4:
                            header_at = at
                            break
                    elif data[at + 22] & CODEC_BITS <= 4 and load_i32(data, at + 23) >= 0:
                        header_at = at
                        break
            at += 1
    return header_at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_headers(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    fault: Numbers,
    spans: Numbers,
    width: cython.Py_ssize_t,
    slot: cython.Py_ssize_t,
    keep: cython.bint,
) -> cython.longlong:
    """The position after `count` headers, or -1 with `fault` filled in. `keep`: name start and length, value start and
    length (-1: null) of each go into columns `slot` and following of `spans`.

    Not inlined: the loop over records, few of which have headers, is a tenth faster without this code in it.
    """
    length: cython.longlong
    after: cython.longlong
    while count > 0:
        length, after = varint(data, at, end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, end - at)
        if length < 0 or length > end - after:
            return failed(fault, HEADER_KEY_FAULT, end - after, length)
        if keep:
            spans[slot] = after
            spans[width + slot] = length
        at = after + length
        length, after = varint(data, at, end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, end - at)
        if length > end - after:
            return failed(fault, HEADER_VALUE_FAULT, end - after, length)
        if keep:
            spans[2 * width + slot] = after
            spans[3 * width + slot] = length if length >= 0 else -1
            slot += 1
        at = after + length if length > 0 else after
        count -= 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def short_number(data: Bytes, at: cython.longlong) -> tuple[cython.longlong, cython.longlong]:
    """Twice a number of 0 or more in one or two bytes, or odd for any other number; and the position after it."""
    first: cython.longlong = data[at]
    if first < 0x80:
        return first, at + 1
    return first & 0x7F | cython.cast(cython.longlong, data[at + 1]) << 7 | data[at + 1] >> 7, at + 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def audit_plainly(
    data: Bytes, at: cython.longlong, end: cython.longlong, last: cython.longlong, count: cython.longlong
) -> cython.longlong:
    """The greatest timestamp delta of `count` records that fill data[at:end], whose offset deltas ascend from 0 to at
    most `last`; -1 where they do not, or where records have longer numbers or headers, which this does not read."""
    greatest: cython.longlong = 0
    previous: cython.longlong = -2
    value: cython.longlong
    body_end: cython.longlong
    while count > 0:
        # The length; at least ten bytes: attributes, two numbers and a key length, a value length, no headers.
        if end - at < 12:
            return -1
        value, at = short_number(data, at)
        if value & 1 != 0 or value < 20 or value >> 1 > end - at:
            return -1
        body_end = at + (value >> 1)
        if cython.compiled:
            prefetch(data + at + PLAIN_AHEAD)
        value, at = short_number(data, at + 1)
        if value & 1 != 0:
            return -1
        if value > greatest:
            greatest = value
        value, at = short_number(data, at)
        if value & 1 != 0 or value <= previous or value >> 1 > last:
            return -1
        previous = value
        value = data[at]
        at += 1
        if value != 1:  # 1: null
            if value & 1 != 0 or value >= 0x80 or value >> 1 > body_end - at - 3:
                return -1
            at += value >> 1
        value, at = short_number(data, at)
        if value & 1 != 0 or (value >> 1) + 1 != body_end - at or data[body_end - 1] != 0:
            return -1
        at = body_end
        count -= 1
    return greatest >> 1 if at == end else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decode_batch(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    fault: Numbers,
) -> cython.longlong:
    """Decode the records data[at:end] of the v2 batch in `row`: the end of used columns, or -1 with `fault` filled in.

    Called from two places, and so not inlined: the loop over records is then a sixth faster.
    """
    base_offset: cython.longlong = table[column.BASE_OFFSET * rows + row]
    base_timestamp: cython.longlong = table[column.BASE_TIMESTAMP * rows + row]
    max_timestamp: cython.longlong = table[column.MAX_TIMESTAMP * rows + row]
    append_time: cython.bint = (table[column.ATTRIBUTES * rows + row] & LOG_APPEND_TIME_BIT) != 0
    count: cython.longlong = table[column.COUNT * rows + row]
    headers: cython.longlong = 0
    record: cython.longlong
    slot: cython.Py_ssize_t
    length: cython.longlong
    body: cython.longlong
    body_end: cython.longlong
    value: cython.longlong
    after: cython.longlong

    fault[1] = -1
    if base_offset < 0:
        return failed(fault, BASE_OFFSET_FAULT, 0, base_offset)
    if table[column.LAST_OFFSET * rows + row] < base_offset:
        return failed(fault, LAST_OFFSET_FAULT, base_offset, table[column.LAST_OFFSET * rows + row])
    # Dividing first would cost as much as decoding a record; the first comparison keeps the product in range.
    if count < 0 or count > end - at or count * LEAST_RECORD > end - at:
        return failed(fault, COUNT_FAULT, (end - at) // LEAST_RECORD, count)
    if count > MOST_RECORDS:
        return failed(fault, MOST_RECORDS_FAULT, MOST_RECORDS, count)
    if count > width - used:
        return failed(fault, CAPACITY_FAULT, width - used, count)
    for record in range(count):
        fault[1] = record
        if at == end:
            fault[1] = -1
            return failed(fault, RECORDS_FAULT, count, record)
        length, body = varint(data, at, end, 32)
        if body < 0:
            return failed(fault, VARINT_FAULT, 5, end - at)
        if length < LEAST_BODY or length > end - body:
            return failed(fault, LENGTH_FAULT, end - body, length)
        body_end = body + length
        if cython.compiled:
            prefetch(data + body + AHEAD)

        value, after = varint(data, body + 1, body_end, 64)  # the attributes byte has no meaning so far
        if after < 0:
            return failed(fault, VARINT_FAULT, 10, length - 1)
        # From column to column by addition: for one record, nine addresses worked out beforehand are too many.
        slot = used + width
        columns[slot] = max_timestamp if append_time else wrapping_add(base_timestamp, value)

        at = after
        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > MAX_INT64 - base_offset or value < -base_offset:
            return failed(fault, OFFSET_FAULT, base_offset, value)
        columns[used] = base_offset + value

        at = after
        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > body_end - after:
            return failed(fault, KEY_FAULT, body_end - after, value)
        slot += width
        columns[slot] = after
        slot += width
        columns[slot] = value if value >= 0 else -1
        at = after + value if value > 0 else after

        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > body_end - after:
            return failed(fault, VALUE_FAULT, body_end - after, value)
        slot += width
        columns[slot] = after
        slot += width
        columns[slot] = value if value >= 0 else -1
        at = after + value if value > 0 else after

        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value < 0 or value > body_end - after:
            return failed(fault, HEADER_COUNT_FAULT, body_end - after, value)
        slot += width
        columns[slot] = after
        slot += width
        columns[slot] = value
        slot += width
        columns[slot] = row
        used += 1
        at = after
        if value > 0:
            headers += value
            if headers > MOST_HEADERS:
                return failed(fault, MOST_HEADERS_FAULT, MOST_HEADERS, headers)
            at = walk_headers(data, at, body_end, value, fault, columns, width, 0, False)
            if at < 0:
                return -1
        if at != body_end:
            return failed(fault, BODY_FAULT, length, at - body)
    if at != end:
        fault[1] = -1
        return failed(fault, LEFTOVER_FAULT, 0, end - at)
    return used


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def decode_message(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    fault: Numbers,
) -> cython.longlong:
    """Decode one message, which ends at `end` and whose size and magic the caller has checked: 0, or -1 with `fault`
    filled in."""
    length: cython.longlong
    columns[used] = load_i64(data, at)
    columns[8 * width + used] = row
    if data[at + 16] == 0:
        columns[width + used] = -1
        at += 18
    else:
        columns[width + used] = load_i64(data, at + 18)
        at += 26
    # The least size has room for both lengths.
    length = load_i32(data, at)
    at += 4
    if length > end - at - 4:
        return failed(fault, MESSAGE_KEY_FAULT, end - at - 4, length)
    columns[2 * width + used] = at
    columns[3 * width + used] = length if length >= 0 else -1
    if length > 0:
        at += length
    length = load_i32(data, at)
    at += 4
    if length > end - at:
        return failed(fault, MESSAGE_VALUE_FAULT, end - at, length)
    columns[4 * width + used] = at
    columns[5 * width + used] = length if length >= 0 else -1
    columns[6 * width + used] = at + length if length > 0 else at
    columns[7 * width + used] = 0
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decode_wrapped(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    fault: Numbers,
) -> cython.longlong:
    """Decode the messages of a wrapper's content data[at:end]: the end of used columns, or -1 with `fault` filled in.

    As in Kafka, a cut-off message at the end of the content is ignored, and so are bytes after a message's value.
    """
    first: cython.Py_ssize_t = used
    index: cython.Py_ssize_t
    wrapper_offset: cython.longlong = table[column.LAST_OFFSET * rows + row]
    relative: cython.bint = table[column.MAGIC * rows + row] == 1
    append_time: cython.bint = relative and (table[column.ATTRIBUTES * rows + row] & LOG_APPEND_TIME_BIT) != 0
    size: cython.longlong
    base: cython.longlong = 0
    offset: cython.longlong

    while end - at >= OVERHEAD:
        fault[1] = used - first
        size = load_i32(data, at + 8)
        if size < V0_SIZE - OVERHEAD:
            return failed(fault, MESSAGE_SIZE_FAULT, V0_SIZE - OVERHEAD, size)
        if size > end - at - OVERHEAD:
            break
        if data[at + 16] > 1:
            return failed(fault, MESSAGE_MAGIC_FAULT, 1, data[at + 16])
        if data[at + 16] == 1 and size < V1_SIZE - OVERHEAD:
            return failed(fault, MESSAGE_SIZE_FAULT, V1_SIZE - OVERHEAD, size)
        if data[at + 17] & CODEC_BITS != 0:
            return failed(fault, NESTED_FAULT, 0, data[at + 17] & CODEC_BITS)
        if used - first >= MOST_RECORDS:
            return failed(fault, MOST_RECORDS_FAULT, MOST_RECORDS, used - first + 1)
        if used >= width:
            return failed(fault, MESSAGE_CAPACITY_FAULT, width, used)
        if decode_message(data, at, at + OVERHEAD + size, row, columns, width, used, fault) < 0:
            return -1
        if append_time and data[at + 16] == 1:
            columns[width + used] = table[column.MAX_TIMESTAMP * rows + row]
        used += 1
        at += OVERHEAD + size

    fault[1] = -1
    if used == first:
        return failed(fault, EMPTY_FAULT, 1, 0)
    if relative and wrapper_offset != 0:  # 0: some clients send it instead of the last offset and mean base 0
        offset = columns[used - 1]
        if offset < 0:
            return failed(fault, MESSAGE_OFFSET_FAULT, 0, offset)
        if wrapper_offset < offset:
            return failed(fault, WRAPPER_OFFSET_FAULT, offset, wrapper_offset)
        base = wrapper_offset - offset
    for index in range(first, used):
        offset = columns[index]
        if offset < 0 or offset > MAX_INT64 - base:
            fault[1] = index - first
            return failed(fault, MESSAGE_OFFSET_FAULT, base, offset)
        columns[index] = base + offset
    return used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decode_legacy(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    fault: Numbers,
) -> cython.longlong:
    """Decode the v0 or v1 message in `row`, or all within it: the end of used columns, or -1 with `fault` filled in."""
    least: cython.longlong = V1_SIZE if table[column.MAGIC * rows + row] == 1 else V0_SIZE
    if table[column.ATTRIBUTES * rows + row] & CODEC_BITS != 0:
        return decode_wrapped(data, at, end, table, rows, row, columns, width, used, fault)
    if end - at < least or data[at + 16] != table[column.MAGIC * rows + row]:
        return failed(fault, BOUNDS_FAULT, least, end - at)
    if used >= width:
        return failed(fault, MESSAGE_CAPACITY_FAULT, width, used)
    if decode_message(data, at, end, row, columns, width, used, fault) < 0:
        return -1
    if columns[used] < 0:
        return failed(fault, MESSAGE_OFFSET_FAULT, 0, columns[used])
    return used + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def audit_batch(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
) -> cython.bint:
    """Whether `audit_plainly` could check the v2 batch in `row`; column `used` then has the values that `decode`
    describes."""
    base_offset: cython.longlong = table[column.BASE_OFFSET * rows + row]
    last: cython.longlong = table[column.LAST_OFFSET * rows + row] - base_offset
    base_timestamp: cython.longlong = table[column.BASE_TIMESTAMP * rows + row]
    count: cython.longlong = table[column.COUNT * rows + row]
    greatest: cython.longlong
    # No sum of timestamps may wrap, or the greatest delta would not be the greatest timestamp.
    if base_offset < 0 or last < 0 or base_timestamp < 0 or base_timestamp >= MAX_INT64 - SHORT:
        return False
    if count <= 0 or count > MOST_RECORDS:
        return False
    greatest = audit_plainly(data, at, end, last, count)
    if greatest < 0:
        return False
    if table[column.ATTRIBUTES * rows + row] & LOG_APPEND_TIME_BIT != 0:
        columns[used] = table[column.MAX_TIMESTAMP * rows + row]
    else:
        columns[used] = base_timestamp + greatest
    columns[width + used] = columns[2 * width + used] = -1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def audit_row(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: ConstNumbers,
    rows: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    columns: Numbers,
    width: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    fault: Numbers,
    room: Numbers,
    room_width: cython.Py_ssize_t,
) -> cython.longlong:
    """Check the records of `row`, which are decoded into `room`; column `used` gets the values that `decode` describes.
    Returns the end of used columns, or -1 with `fault` filled in."""
    index: cython.Py_ssize_t
    records: cython.longlong
    previous: cython.longlong = table[column.BASE_OFFSET * rows + row] - 1
    last_offset: cython.longlong = table[column.LAST_OFFSET * rows + row]
    if used >= width:
        return failed(fault, CAPACITY_FAULT, width, used)
    if table[column.MAGIC * rows + row] < 2:
        records = decode_legacy(data, at, end, table, rows, row, room, room_width, 0, fault)
    elif audit_batch(data, at, end, table, rows, row, columns, width, used):
        return used + 1
    else:
        records = decode_batch(data, at, end, table, rows, row, room, room_width, 0, fault)
    if records < 0:
        return -1
    columns[used] = NO_TIMESTAMP
    columns[width + used] = columns[2 * width + used] = -1
    for index in range(records):
        if room[room_width + index] > columns[used]:
            columns[used] = room[room_width + index]
        if columns[width + used] < 0 and (room[index] <= previous or room[index] > last_offset):
            columns[width + used] = index
            columns[2 * width + used] = room[index]
        previous = room[index]
    return used + 1


def decode(
    buffer: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    origin: cython.longlong,
    starts: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    skip: cython.const[cython.uchar][::1],
    control: cython.bint,
    columns: cython.longlong[:, ::1],
    used: cython.Py_ssize_t,
    fault: cython.longlong[::1],
    room: cython.longlong[:, ::1] = None,
) -> tuple[int, int]:
    """Decode rows [first_row, last_row) into `columns` from `used` on: (next row, used).

    The uncompressed records of a row are buffer[starts[row - first_row] : ends[row - first_row]], or the whole message
    of a v0 or v1 row that is not compressed. Without `starts`, which compressed rows need, they are read at their place
    in the batch, with buffer[0] at file position `origin`. `skip` and `control` are those of `survey`. Stops at a bad
    batch, of which nothing is kept: `fault` is then (index into FAULTS, record within the batch or -1, expected,
    found), otherwise fault[0] is 0.

    With `room`, for the records of any one row, the records are checked and not kept. `columns` then gets one column a
    row: its greatest timestamp (1 - 2**63 without records), its first record whose offset is not above the one
    before it or not within its batch (-1: none), and that record's offset.
    """
    row: cython.Py_ssize_t = first_row
    size: cython.longlong = len(buffer)
    skips: cython.Py_ssize_t = len(skip)
    placed: cython.bint = len(starts) > 0
    keep: cython.bint = room is None
    after: cython.longlong
    start: cython.longlong
    end: cython.longlong
    head: cython.longlong
    data: Bytes
    skipped: Bytes
    cells: ConstNumbers
    rows: cython.Py_ssize_t = table.shape[1]
    numbers: Numbers
    width: cython.Py_ssize_t = columns.shape[1]
    reason: Numbers
    messages: Numbers
    room_width: cython.Py_ssize_t = 0 if keep else room.shape[1]
    if first_row < 0 or last_row < first_row or last_row > rows or table.shape[0] < 9 or origin < 0:
        raise ValueError("rows outside of the table")
    if placed and (last_row - first_row > len(starts) or last_row - first_row > len(ends)):
        raise ValueError("rows outside of the spans")
    if used < 0 or columns.shape[0] < (9 if keep else 3) or len(fault) < 4 or (not keep and room.shape[0] < 9):
        raise ValueError("columns or fault too small")
    if cython.compiled:
        data, skipped, cells = cython.address(buffer[0]), cython.address(skip[0]), cython.address(table[0, 0])
        numbers, reason = cython.address(columns[0, 0]), cython.address(fault[0])
        messages = numbers if keep else cython.address(room[0, 0])
    else:
        data, skipped, cells = memoryview(buffer), memoryview(skip), memoryview(table.reshape(-1))
        numbers, reason = memoryview(columns.reshape(-1)), memoryview(fault)
        messages = numbers if keep else memoryview(room.reshape(-1))
        starts, ends = memoryview(starts), memoryview(ends)
    reason[0] = 0
    with cython.nogil:
        while row < last_row:
            if is_wanted(cells, rows, row, skipped, skips, control):
                reason[1] = -1
                head = V2_SIZE if cells[column.MAGIC * rows + row] == 2 else 0
                if placed:
                    start = starts[row - first_row]
                    end = ends[row - first_row]
                else:
                    start = cells[column.POSITION * rows + row]
                    end = cells[column.SIZE * rows + row]
                    if start < origin or start - origin > size or end < head or end > size - (start - origin):
                        failed(reason, BOUNDS_FAULT, size, end)
                        break
                    start -= origin
                    end += start
                    start += head
                if start < 0 or end > size or start > end:
                    failed(reason, BOUNDS_FAULT, size, end)
                    break
                if head == 0 and not placed and cells[column.ATTRIBUTES * rows + row] & CODEC_BITS != 0:
                    after = failed(reason, BOUNDS_FAULT, 0, 0)
                elif not keep:
                    after = audit_row(
                        data, start, end, cells, rows, row, numbers, width, used, reason, messages, room_width
                    )
                elif head > 0:
                    after = decode_batch(data, start, end, cells, rows, row, numbers, width, used, reason)
                else:
                    after = decode_legacy(data, start, end, cells, rows, row, numbers, width, used, reason)
                if after < 0:
                    break
                used = after
            row += 1
    return row, used


def find_headers(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    counts: cython.const[cython.longlong][::1],
    lengths: cython.longlong[::1],
    fault: cython.longlong[::1],
    spans: cython.longlong[:, ::1],
) -> cython.longlong:
    """Bytes that each row's `counts` encoded headers take from `starts` on, into `lengths`: the number of rows done.

    Fewer than all: the next row's headers do not parse, and `fault` is filled in as by `decode`. `spans` gets one
    column a header, row after row: start and length of its name, start and length of its value, -1 null; with no
    columns the headers are only measured.
    """
    rows: cython.Py_ssize_t = len(starts)
    size: cython.longlong = len(buffer)
    keep: cython.bint
    slot: cython.longlong = 0
    row: cython.Py_ssize_t = 0
    after: cython.longlong
    data: Bytes
    reason: Numbers
    numbers: Numbers
    width: cython.Py_ssize_t = spans.shape[1]
    keep = width > 0
    if len(counts) < rows or len(lengths) < rows or len(fault) < 4 or spans.shape[0] < 4:
        raise ValueError("a column is shorter than the rows asked for")
    if cython.compiled:
        data, reason, numbers = cython.address(buffer[0]), cython.address(fault[0]), cython.address(spans[0, 0])
    else:
        data, reason, numbers = memoryview(buffer), memoryview(fault), memoryview(spans.reshape(-1))
        starts, counts, lengths = memoryview(starts), memoryview(counts), memoryview(lengths)
    with cython.nogil:
        while row < rows:
            lengths[row] = 0
            if counts[row] > 0:
                if starts[row] < 0 or starts[row] > size:
                    failed(reason, BOUNDS_FAULT, size, starts[row])
                    break
                if keep and counts[row] > width - slot:
                    failed(reason, CAPACITY_FAULT, width - slot, counts[row])
                    break
                after = walk_headers(data, starts[row], size, counts[row], reason, numbers, width, slot, keep)
                if after < 0:
                    break
                slot += counts[row]
                lengths[row] = after - starts[row]
            row += 1
    return row


def gather(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    separator: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
    ends: cython.longlong[::1],
) -> int:
    """Copy the byte strings (start, length; below 0 is null: nothing) and a separator after each into `out`.

    `ends` gets where each ends in `out`, before its separator. Returns the bytes used; ValueError if one lies outside
    of `buffer` or `out` is too small.
    """
    count: cython.Py_ssize_t = len(starts)
    index: cython.Py_ssize_t
    size: cython.longlong = len(buffer)
    room: cython.longlong = len(out)
    gap: cython.longlong = len(separator)
    at: cython.longlong = 0
    start: cython.longlong
    length: cython.longlong
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths = memoryview(buffer), memoryview(starts), memoryview(lengths)
        separator, out, ends = memoryview(separator), memoryview(out), memoryview(ends)
    if len(lengths) != count or len(ends) < count:
        raise ValueError("columns of different lengths")
    with cython.nogil:
        for index in range(count):
            length = lengths[index]
            if length > 0:
                start = starts[index]
                if start < 0 or start > size or length > size - start or length > room - at:
                    bad = True
                    break
                if cython.compiled:
                    memcpy(cython.address(out[at]), cython.address(buffer[start]), length)
                else:
                    out[at : at + length] = buffer[start : start + length]
                at += length
            ends[index] = at
            if gap > 0:
                if gap > room - at:
                    bad = True
                    break
                if gap == 1:
                    out[at] = separator[0]
                elif cython.compiled:
                    memcpy(cython.address(out[at]), cython.address(separator[0]), gap)
                else:
                    out[at : at + gap] = separator
                at += gap
    if bad:
        raise ValueError("a byte string lies outside of the buffer, or the output is too small")
    return at
