# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The loops over batch headers: scan them out of a log's bytes, survey what decoding them takes.

Cython in pure-Python mode; the same file runs uncompiled, some hundred times slower. Every length is checked against
what is left before it is used. All integers of the log are big-endian (kafka-facts 1.1 and 1.4: DefaultRecordBatch,
LegacyRecord, FileLogInputStream).
"""

from __future__ import annotations

import cython

# A byte buffer: a C pointer when compiled, a memoryview of bytes when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))

# Columns of a BatchTable; batches.py has the same numbers.
POSITION = cython.declare(cython.int, 0)
SIZE = cython.declare(cython.int, 1)
BASE_OFFSET = cython.declare(cython.int, 2)
LAST_OFFSET = cython.declare(cython.int, 3)
COUNT = cython.declare(cython.int, 4)
MAGIC = cython.declare(cython.int, 5)
ATTRIBUTES = cython.declare(cython.int, 6)
BASE_TIMESTAMP = cython.declare(cython.int, 7)
MAX_TIMESTAMP = cython.declare(cython.int, 8)
PRODUCER_ID = cython.declare(cython.int, 9)
PRODUCER_EPOCH = cython.declare(cython.int, 10)
BASE_SEQUENCE = cython.declare(cython.int, 11)
LEADER_EPOCH = cython.declare(cython.int, 12)
CRC = cython.declare(cython.int, 13)

# Why a header scan stopped; batches.ScanStop has the same numbers.
STOP_END = cython.declare(cython.int, 0)
STOP_FULL = cython.declare(cython.int, 1)
STOP_CORRUPT = cython.declare(cython.int, 2)
STOP_UNSUPPORTED = cython.declare(cython.int, 3)

CODEC_BITS = cython.declare(cython.longlong, 0x07)
LOG_APPEND_TIME_BIT = cython.declare(cython.longlong, 0x08)
CONTROL_BIT = cython.declare(cython.longlong, 0x20)

OVERHEAD = cython.declare(cython.longlong, 12)  # offset and length, which the length does not count
BYTES_UP_TO_MAGIC = cython.declare(cython.longlong, 17)
V0_SIZE = cython.declare(cython.longlong, 26)  # the smallest message of format v0, with the 12
V1_SIZE = cython.declare(cython.longlong, 34)
V2_SIZE = cython.declare(cython.longlong, 61)  # a batch header of format v2
LEAST_RECORD = cython.declare(cython.longlong, 7)  # no key, no value, no header: one byte for each field
LEAST_BODY = cython.declare(cython.longlong, 6)
MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)


def is_compiled() -> bool:
    """True for the built kernel, False when this file runs as plain Python."""
    return bool(cython.compiled)


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
def scan_v2(data: Bytes, at: cython.longlong, table: cython.longlong[:, ::1], row: cython.Py_ssize_t) -> cython.void:
    base: cython.longlong = load_i64(data, at)
    delta: cython.longlong = load_i32(data, at + 23)
    table[BASE_OFFSET, row] = base
    # -1 where no offset can be: decoding refuses such a batch.
    if base < 0 or delta < 0 or base > MAX_INT64 - delta:
        table[LAST_OFFSET, row] = -1
    else:
        table[LAST_OFFSET, row] = base + delta
    table[LEADER_EPOCH, row] = load_i32(data, at + 12)
    table[MAGIC, row] = 2
    table[CRC, row] = load_u32(data, at + 17)
    table[ATTRIBUTES, row] = cython.cast(cython.longlong, data[at + 21]) << 8 | data[at + 22]
    table[BASE_TIMESTAMP, row] = load_i64(data, at + 27)
    table[MAX_TIMESTAMP, row] = load_i64(data, at + 35)
    table[PRODUCER_ID, row] = load_i64(data, at + 43)
    table[PRODUCER_EPOCH, row] = load_i16(data, at + 51)
    table[BASE_SEQUENCE, row] = load_i32(data, at + 53)
    table[COUNT, row] = load_i32(data, at + 57)


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
    table[BASE_OFFSET, row] = -1 if compressed else offset
    table[LAST_OFFSET, row] = offset
    table[LEADER_EPOCH, row] = -1
    table[MAGIC, row] = data[at + 16]
    table[CRC, row] = load_u32(data, at + 12)
    table[ATTRIBUTES, row] = data[at + 17]
    table[BASE_TIMESTAMP, row] = timestamp
    table[MAX_TIMESTAMP, row] = timestamp
    table[PRODUCER_ID, row] = -1
    table[PRODUCER_EPOCH, row] = -1
    table[BASE_SEQUENCE, row] = -1
    table[COUNT, row] = -1 if compressed else 1


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
            table[POSITION, row] = origin + at
            table[SIZE, row] = size
            if magic == 2:
                scan_v2(data, at, table, row)
            else:
                scan_legacy(data, at, table, row)
            row += 1
            at += size
    return row, at, stop


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_wanted(
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    skip: cython.const[cython.uchar][::1],
    skips: cython.Py_ssize_t,
    control: cython.bint,
) -> cython.bint:
    if row < skips and skip[row] != 0:
        return False
    return control or table[MAGIC, row] < 2 or (table[ATTRIBUTES, row] & CONTROL_BIT) == 0


def survey(
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    origin: cython.longlong,
    size: cython.longlong,
    skip: cython.const[cython.uchar][::1],
    control: cython.bint,
) -> tuple[int, int, int]:
    """What decoding rows [first_row, last_row) takes: (records at most, compressed rows, rows below v2).

    The first two are of the rows wanted: not 1 in `skip` (which may be shorter than the table), and no control batch
    unless `control`. Records of compressed rows are not counted. ValueError: a row lies outside of the `size` bytes of
    file position `origin` and up.
    """
    row: cython.Py_ssize_t
    skips: cython.Py_ssize_t = len(skip)
    records: cython.longlong = 0
    compressed: cython.Py_ssize_t = 0
    legacy: cython.Py_ssize_t = 0
    at: cython.longlong
    length: cython.longlong
    count: cython.longlong
    if not cython.compiled:
        table, skip = memoryview(table), memoryview(skip)
    if first_row < 0 or last_row > table.shape[1] or table.shape[0] < 9 or origin < 0:
        raise ValueError("rows outside of the table")
    with cython.nogil:
        for row in range(first_row, last_row):
            at = table[POSITION, row]
            length = table[SIZE, row]
            count = V2_SIZE if table[MAGIC, row] == 2 else V0_SIZE
            if at < origin or at - origin > size or length < count or length > size - (at - origin):
                records = -1
                break
            if table[MAGIC, row] != 2:
                legacy += 1
            if not is_wanted(table, row, skip, skips, control):
                continue
            if table[ATTRIBUTES, row] & CODEC_BITS != 0:
                compressed += 1
            elif table[MAGIC, row] == 2:
                count = table[COUNT, row]
                if count > (length - V2_SIZE) // LEAST_RECORD:
                    count = (length - V2_SIZE) // LEAST_RECORD
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
    """The first place from `start` on where bytes of `buffer` look like a batch's header; -1 where there is none.

    Looked at are magic, length, codec, and that the offset lies within `lowest` to `highest`, both included. `left`:
    bytes of the file from buffer[0] on, which the batch must not pass. The whole header must lie in `buffer`.
    """
    at: cython.longlong = start
    size: cython.longlong = len(buffer)
    found: cython.longlong = -1
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
                            found = at
                            break
                    elif data[at + 22] & CODEC_BITS <= 4 and load_i32(data, at + 23) >= 0:
                        found = at
                        break
            at += 1
    return found
