# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loops of reading: decode records of format v2 into columns.

Cython in pure-Python mode; the same file runs uncompiled, some hundred times slower. Nothing here trusts a length: each
is checked against what is left before it is used, by subtraction, so that no sum can overflow. Source: kafka-facts 1.1
and 1.2 (DefaultRecordBatch, DefaultRecord, ByteUtils).
"""

from __future__ import annotations

import cython

from storage.format.record_faults import FAULTS as FAULTS

if not cython.compiled:
    from typing import Any

    prefetch: Any = None  # kernel.pxd declares it

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

LOG_APPEND_TIME_BIT = cython.declare(cython.longlong, 0x08)
CONTROL_BIT = cython.declare(cython.longlong, 0x20)

V2_SIZE = cython.declare(cython.longlong, 61)  # a batch header of format v2
LEAST_RECORD = cython.declare(cython.longlong, 7)  # no key, no value, no header: one byte for each field
LEAST_BODY = cython.declare(cython.longlong, 6)
# Lengths and small fields of records lie far apart, which the processor's own prefetching does not follow. Asked for
# so far ahead, records come from memory at 50 M/s instead of 35 (100-byte values).
AHEAD = cython.declare(cython.longlong, 4096)
PLAIN_AHEAD = cython.declare(cython.longlong, 2048)  # of `audit_plainly`, which is faster by a sixth
SHORT = cython.declare(cython.longlong, 1 << 13)  # above what two bytes of a varint hold
MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
NO_TIMESTAMP = cython.declare(cython.longlong, -0x7FFFFFFFFFFFFFFF)

# What is wrong with a batch: index into FAULTS, which has texts for the numbers (expected, found) that come along.
COUNT_FAULT = cython.declare(cython.int, 1)
LENGTH_FAULT = cython.declare(cython.int, 2)
VARINT_FAULT = cython.declare(cython.int, 3)
OFFSET_FAULT = cython.declare(cython.int, 4)
KEY_FAULT = cython.declare(cython.int, 5)
VALUE_FAULT = cython.declare(cython.int, 6)
HEADER_COUNT_FAULT = cython.declare(cython.int, 7)
HEADER_KEY_FAULT = cython.declare(cython.int, 8)
HEADER_VALUE_FAULT = cython.declare(cython.int, 9)
BODY_FAULT = cython.declare(cython.int, 10)
LEFTOVER_FAULT = cython.declare(cython.int, 11)
BASE_OFFSET_FAULT = cython.declare(cython.int, 12)
LAST_OFFSET_FAULT = cython.declare(cython.int, 13)
RECORDS_FAULT = cython.declare(cython.int, 14)
CAPACITY_FAULT = cython.declare(cython.int, 15)
BOUNDS_FAULT = cython.declare(cython.int, 16)


def is_compiled() -> bool:
    """True for the built kernel, False when this file runs as plain Python."""
    return bool(cython.compiled)


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
    """(value, position after it) of a zigzag integer of `bits` bits; position -1: it does not end or overflows."""
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
def skip_headers(
    data: Bytes, at: cython.longlong, end: cython.longlong, count: cython.longlong, fault: cython.longlong[::1]
) -> cython.longlong:
    """The position after `count` headers, or -1 with `fault` filled in."""
    length: cython.longlong
    after: cython.longlong
    while count > 0:
        length, after = varint(data, at, end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, end - at)
        if length < 0 or length > end - after:
            return failed(fault, HEADER_KEY_FAULT, end - after, length)
        at = after + length
        length, after = varint(data, at, end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, end - at)
        if length > end - after:
            return failed(fault, HEADER_VALUE_FAULT, end - after, length)
        at = after + length if length > 0 else after
        count -= 1
    return at


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
def short_number(data: Bytes, at: cython.longlong) -> tuple[cython.longlong, cython.longlong]:
    """Twice a number of 0 or more in one or two bytes, odd for any other; and the position after it."""
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
    most `last`; -1 where that is not so, or where it takes more than short numbers and no headers to tell."""
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
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    columns: cython.longlong[:, ::1],
    used: cython.Py_ssize_t,
    fault: cython.longlong[::1],
    keep: cython.bint,
) -> cython.longlong:
    """Decode the records data[at:end] of the v2 batch in `row`: the end of used columns, or -1 and `fault`.

    Unless `keep`, the batch takes one column, of what `decode_records` says of it.
    """
    base_offset: cython.longlong = table[BASE_OFFSET, row]
    base_timestamp: cython.longlong = table[BASE_TIMESTAMP, row]
    max_timestamp: cython.longlong = table[MAX_TIMESTAMP, row]
    append_time: cython.bint = (table[ATTRIBUTES, row] & LOG_APPEND_TIME_BIT) != 0
    count: cython.longlong = table[COUNT, row]
    record: cython.longlong
    length: cython.longlong
    body: cython.longlong
    body_end: cython.longlong
    value: cython.longlong
    after: cython.longlong
    greatest: cython.longlong = NO_TIMESTAMP
    previous: cython.longlong
    misplaced: cython.longlong = -1
    misplaced_offset: cython.longlong = -1

    fault[1] = -1
    if base_offset < 0:
        return failed(fault, BASE_OFFSET_FAULT, 0, base_offset)
    previous = base_offset - 1
    if table[LAST_OFFSET, row] < base_offset:
        return failed(fault, LAST_OFFSET_FAULT, base_offset, table[LAST_OFFSET, row])
    if count < 0 or count > (end - at) // LEAST_RECORD:
        return failed(fault, COUNT_FAULT, (end - at) // LEAST_RECORD, count)
    if (count if keep else 1) > columns.shape[1] - used:
        return failed(fault, CAPACITY_FAULT, columns.shape[1] - used, count if keep else 1)
    # No sum of timestamps may wrap, or the greatest delta would not be the greatest timestamp.
    if not keep and count > 0 and 0 <= base_timestamp < MAX_INT64 - SHORT:
        value = audit_plainly(data, at, end, table[LAST_OFFSET, row] - base_offset, count)
        if value >= 0:
            columns[0, used] = max_timestamp if append_time else wrapping_add(base_timestamp, value)
            columns[1, used] = columns[2, used] = -1
            return used + 1
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

        value, after = varint(data, body + 1, body_end, 64)  # the attributes byte has no meaning yet
        if after < 0:
            return failed(fault, VARINT_FAULT, 10, length - 1)
        value = max_timestamp if append_time else wrapping_add(base_timestamp, value)
        if keep:
            columns[1, used] = value
        elif value > greatest:
            greatest = value

        at = after
        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > MAX_INT64 - base_offset or value < -base_offset:
            return failed(fault, OFFSET_FAULT, base_offset, value)
        value += base_offset
        if keep:
            columns[0, used] = value
        else:
            if (value <= previous or value > table[LAST_OFFSET, row]) and misplaced < 0:
                misplaced = record
                misplaced_offset = value
            previous = value

        at = after
        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > body_end - after:
            return failed(fault, KEY_FAULT, body_end - after, value)
        if keep:
            columns[2, used] = after
            columns[3, used] = value if value >= 0 else -1
        at = after + value if value > 0 else after

        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value > body_end - after:
            return failed(fault, VALUE_FAULT, body_end - after, value)
        if keep:
            columns[4, used] = after
            columns[5, used] = value if value >= 0 else -1
        at = after + value if value > 0 else after

        value, after = varint(data, at, body_end, 32)
        if after < 0:
            return failed(fault, VARINT_FAULT, 5, body_end - at)
        if value < 0 or value > body_end - after:
            return failed(fault, HEADER_COUNT_FAULT, body_end - after, value)
        if keep:
            columns[6, used] = after
            columns[7, used] = value
            columns[8, used] = row
            used += 1
        at = after
        if value > 0:
            at = skip_headers(data, at, body_end, value, fault)
            if at < 0:
                return -1
        if at != body_end:
            return failed(fault, BODY_FAULT, length, at - body)
    if at != end:
        fault[1] = -1
        return failed(fault, LEFTOVER_FAULT, 0, end - at)
    if not keep:
        columns[0, used] = greatest
        columns[1, used] = misplaced
        columns[2, used] = misplaced_offset
        used += 1
    return used


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


def decode_records(
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
    keep: cython.bint = True,
) -> tuple[int, int]:
    """Decode v2 batches of rows [first_row, last_row) into `columns` from `used` on: (next row, used).

    The uncompressed records of a row lie in buffer[starts[row - first_row] : ends[row - first_row]]; with no `starts`
    at their place in the batch, buffer[0] being at file position `origin`. `skip` and `control` as for `survey`. Stops
    at a bad batch, of which nothing is kept: `fault` is then (index into FAULTS, record within the batch or -1,
    expected, found), else fault[0] is 0.

    Not `keep`: the records are checked and not kept. `columns` gets one column a batch: its greatest timestamp
    (1 - 2**63 without records), its first record whose offset does not lie behind the one before it and within its
    batch (-1: none), and that record's offset.
    """
    row: cython.Py_ssize_t = first_row
    size: cython.longlong = len(buffer)
    skips: cython.Py_ssize_t = len(skip)
    placed: cython.bint = len(starts) > 0
    after: cython.longlong
    start: cython.longlong
    end: cython.longlong
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
    if used < 0 or columns.shape[0] < (9 if keep else 3) or len(fault) < 4:
        raise ValueError("columns or fault too small")
    fault[0] = 0
    with cython.nogil:
        while row < last_row:
            if is_wanted(table, row, skip, skips, control):
                fault[1] = -1
                if placed:
                    start = starts[row - first_row]
                    end = ends[row - first_row]
                else:
                    start = table[POSITION, row]
                    end = table[SIZE, row]
                    if start < origin or start - origin > size or end < V2_SIZE or end > size - (start - origin):
                        failed(fault, BOUNDS_FAULT, size, end)
                        break
                    start -= origin
                    end += start
                    start += V2_SIZE
                if start < 0 or end > size or start > end:
                    failed(fault, BOUNDS_FAULT, size, end)
                    break
                after = decode_batch(data, start, end, table, row, columns, used, fault, keep)
                if after < 0:
                    break
                used = after
            row += 1
    return row, used
