# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decode messages of formats v0 and v1, plain and inside compressed wrappers, into record columns.

Cython in pure-Python mode; runs uncompiled too. Every length is checked against what is left before it is used. Source:
kafka-facts 1.4 (LegacyRecord, AbstractLegacyRecordBatch.DeepRecordsIterator): as there, a cut-off message at the end of
a wrapper's content is ignored, and so are bytes after a message's value.
"""

from __future__ import annotations

import cython

# A byte buffer: a C pointer when compiled, a memoryview of bytes when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))

# Columns of a BatchTable; batches.py has the same numbers.
POSITION = cython.declare(cython.int, 0)
SIZE = cython.declare(cython.int, 1)
LAST_OFFSET = cython.declare(cython.int, 3)
MAGIC = cython.declare(cython.int, 5)
ATTRIBUTES = cython.declare(cython.int, 6)
MAX_TIMESTAMP = cython.declare(cython.int, 8)

CODEC_BITS = cython.declare(cython.longlong, 0x07)
LOG_APPEND_TIME_BIT = cython.declare(cython.longlong, 0x08)

OVERHEAD = cython.declare(cython.longlong, 12)  # offset and size, which the size does not count
V0_LEAST = cython.declare(cython.longlong, 14)
V1_LEAST = cython.declare(cython.longlong, 22)
MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)

# What is wrong: index into FAULTS, which has texts for the numbers (expected, found) that come along.
SIZE_FAULT = cython.declare(cython.int, 1)
KEY_FAULT = cython.declare(cython.int, 2)
VALUE_FAULT = cython.declare(cython.int, 3)
MAGIC_FAULT = cython.declare(cython.int, 4)
NESTED_FAULT = cython.declare(cython.int, 5)
EMPTY_FAULT = cython.declare(cython.int, 6)
WRAPPER_OFFSET_FAULT = cython.declare(cython.int, 7)
OFFSET_FAULT = cython.declare(cython.int, 8)
CAPACITY_FAULT = cython.declare(cython.int, 9)
BOUNDS_FAULT = cython.declare(cython.int, 10)

FAULTS = (
    ("", ""),
    ("message size is below the least", "{} or more"),
    ("key length does not fit the message", "at most {}"),
    ("value length does not fit the message", "at most {}"),
    ("message within a wrapper has an unknown format", "0 to {}"),
    ("message within a wrapper is compressed itself", "codec {}"),
    ("compressed wrapper holds no message", "{} or more"),
    ("wrapper offset is below its last message's relative offset", "0, or {} or more"),
    ("offset is negative or passes the 64-bit limit", "a sum with {} of 0 or more"),
    ("more messages than columns have room for", "at most {}"),
    ("message lies outside of the buffer", "an end within {}"),
)


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
def failed(
    fault: cython.longlong[::1], code: cython.longlong, expected: cython.longlong, found: cython.longlong
) -> cython.longlong:
    fault[0] = code
    fault[2] = expected
    fault[3] = found
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def decode_message(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    row: cython.Py_ssize_t,
    columns: cython.longlong[:, ::1],
    used: cython.Py_ssize_t,
    fault: cython.longlong[::1],
) -> cython.longlong:
    """One message whose size and magic the caller has checked, up to `end`; -1 with `fault` filled in, or 0."""
    length: cython.longlong
    columns[0, used] = load_i64(data, at)
    columns[8, used] = row
    if data[at + 16] == 0:
        columns[1, used] = -1
        at += 18
    else:
        columns[1, used] = load_i64(data, at + 18)
        at += 26
    # The least size has room for both lengths.
    length = load_i32(data, at)
    at += 4
    if length > end - at - 4:
        return failed(fault, KEY_FAULT, end - at - 4, length)
    columns[2, used] = at
    columns[3, used] = length if length >= 0 else -1
    if length > 0:
        at += length
    length = load_i32(data, at)
    at += 4
    if length > end - at:
        return failed(fault, VALUE_FAULT, end - at, length)
    columns[4, used] = at
    columns[5, used] = length if length >= 0 else -1
    columns[6, used] = at + length if length > 0 else at
    columns[7, used] = 0
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decode_wrapped(
    data: Bytes,
    at: cython.longlong,
    end: cython.longlong,
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    columns: cython.longlong[:, ::1],
    used: cython.Py_ssize_t,
    fault: cython.longlong[::1],
) -> cython.longlong:
    """The messages of a wrapper's content data[at:end]: the end of used columns, or -1 with `fault` filled in."""
    first: cython.Py_ssize_t = used
    index: cython.Py_ssize_t
    wrapper_offset: cython.longlong = table[LAST_OFFSET, row]
    relative: cython.bint = table[MAGIC, row] == 1
    append_time: cython.bint = relative and (table[ATTRIBUTES, row] & LOG_APPEND_TIME_BIT) != 0
    size: cython.longlong
    base: cython.longlong = 0
    offset: cython.longlong

    while end - at >= OVERHEAD:
        fault[1] = used - first
        size = load_i32(data, at + 8)
        if size < V0_LEAST:
            return failed(fault, SIZE_FAULT, V0_LEAST, size)
        if size > end - at - OVERHEAD:
            break
        if data[at + 16] > 1:
            return failed(fault, MAGIC_FAULT, 1, data[at + 16])
        if data[at + 16] == 1 and size < V1_LEAST:
            return failed(fault, SIZE_FAULT, V1_LEAST, size)
        if data[at + 17] & CODEC_BITS != 0:
            return failed(fault, NESTED_FAULT, 0, data[at + 17] & CODEC_BITS)
        if used >= columns.shape[1]:
            return failed(fault, CAPACITY_FAULT, columns.shape[1], used)
        if decode_message(data, at, at + OVERHEAD + size, row, columns, used, fault) < 0:
            return -1
        if append_time and data[at + 16] == 1:
            columns[1, used] = table[MAX_TIMESTAMP, row]
        used += 1
        at += OVERHEAD + size

    fault[1] = -1
    if used == first:
        return failed(fault, EMPTY_FAULT, 1, 0)
    if relative and wrapper_offset != 0:  # 0: some clients send it in place of the last offset, base 0 is meant
        offset = columns[0, used - 1]
        if offset < 0:
            return failed(fault, OFFSET_FAULT, 0, offset)
        if wrapper_offset < offset:
            return failed(fault, WRAPPER_OFFSET_FAULT, offset, wrapper_offset)
        base = wrapper_offset - offset
    for index in range(first, used):
        offset = columns[0, index]
        if offset < 0 or offset > MAX_INT64 - base:
            fault[1] = index - first
            return failed(fault, OFFSET_FAULT, base, offset)
        columns[0, index] = base + offset
    return used


def decode_messages(
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
) -> tuple[int, int]:
    """Decode v0 and v1 rows [first_row, last_row) into `columns` from `used` on: (next row, used).

    Arguments as for kernel.decode_records (`control` has no meaning here). What lies from `starts` to `ends` is the
    whole message of a row that is not compressed, the decompressed content of one that is, which needs `starts`. The
    second number of `fault` is the message within the wrapper.
    """
    row: cython.Py_ssize_t = first_row
    size: cython.longlong = len(buffer)
    skips: cython.Py_ssize_t = len(skip)
    placed: cython.bint = len(starts) > 0
    after: cython.longlong
    start: cython.longlong
    end: cython.longlong
    least: cython.longlong
    data: Bytes
    if cython.compiled:
        data = cython.address(buffer[0])
    else:
        data = memoryview(buffer)
        table, columns, fault = memoryview(table), memoryview(columns), memoryview(fault)
        starts, ends, skip = memoryview(starts), memoryview(ends), memoryview(skip)
    if first_row < 0 or last_row < first_row or last_row > table.shape[1] or table.shape[0] < 9 or origin < 0:
        raise ValueError("rows outside of the table")
    if placed and (last_row - first_row > len(starts) or last_row - first_row > len(ends)):
        raise ValueError("rows outside of the spans")
    if used < 0 or columns.shape[0] < 9 or len(fault) < 4:
        raise ValueError("columns or fault too small")
    fault[0] = 0
    with cython.nogil:
        while row < last_row:
            if row < skips and skip[row] != 0:
                row += 1
                continue
            fault[1] = -1
            if placed:
                start = starts[row - first_row]
                end = ends[row - first_row]
            else:
                start = table[POSITION, row]
                end = table[SIZE, row]
                if start < origin or start - origin > size or end < 0 or end > size - (start - origin):
                    failed(fault, BOUNDS_FAULT, size, end)
                    break
                if table[ATTRIBUTES, row] & CODEC_BITS != 0:
                    failed(fault, BOUNDS_FAULT, 0, 0)
                    break
                start -= origin
                end += start
            if start < 0 or end > size or start > end:
                failed(fault, BOUNDS_FAULT, size, end)
                break
            if table[ATTRIBUTES, row] & CODEC_BITS != 0:
                after = decode_wrapped(data, start, end, table, row, columns, used, fault)
                if after < 0:
                    break
                used = after
            else:
                least = OVERHEAD + (V1_LEAST if table[MAGIC, row] == 1 else V0_LEAST)
                if end - start < least or data[start + 16] != table[MAGIC, row]:
                    failed(fault, BOUNDS_FAULT, least, end - start)
                    break
                if used >= columns.shape[1]:
                    failed(fault, CAPACITY_FAULT, columns.shape[1], used)
                    break
                if decode_message(data, start, end, row, columns, used, fault) < 0:
                    break
                if columns[0, used] < 0:
                    failed(fault, OFFSET_FAULT, 0, columns[0, used])
                    break
                used += 1
            row += 1
    return row, used
