# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loops of writing: v2 batches out of columns, out of lines, and out of batches of which some records stay.

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower. Every start and length is
checked against its buffer before it is used; nothing allocates or raises inside a loop, callers turn the status into an
error. Source: storage/FORMAT.md, "Record batch" (`DefaultRecordBatch.writeHeader` and `writeEmptyHeader`,
`DefaultRecord.writeTo`, `ByteUtils`, `MemoryRecords.filterTo`).
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcpy
    from cython.cimports.storage.format import columns as column
else:
    from typing import Any

    from storage.format import columns as column

    # Declared in encoder_kernel.pxd.
    hardware_crc32c: Any = None
    hardware_crc32c_works: Any = bool

# Why `encode_records` and `rewrite` stopped. C constants for the loops, and the same numbers for Python below them.
_DONE = cython.declare(cython.int, 0)
_FULL = cython.declare(cython.int, 1)
_BAD_COLUMN = cython.declare(cython.int, 2)
_TOO_LARGE = cython.declare(cython.int, 3)
DONE = _DONE  # every row asked for
FULL = _FULL  # the next record or batch does not fit into `out`
BAD_COLUMN = _BAD_COLUMN  # a start or length points outside its buffer, or a number does not fit its field
TOO_LARGE = _TOO_LARGE  # one record's body is above 2^31 - 1 bytes

# Numbers in `result` of `encode_records`: the first row not encoded, the position after the last byte written, the
# greatest timestamp of the rows encoded (-1 if there are none).
ENCODE_RESULTS = 3
# Numbers in `result` of `rewrite`: the next row, the next record, the position in `out`, the number of `spans`.
REWRITE_RESULTS = 4

# What `rewrite` does with a batch.
_DROP = cython.declare(cython.int, 0)
_COPY = cython.declare(cython.int, 1)
_REWRITE = cython.declare(cython.int, 2)
_EMPTY = cython.declare(cython.int, 3)
_OUTSIDE = cython.declare(cython.int, 4)
DROP = _DROP
COPY = _COPY  # byte for byte
REWRITE = _REWRITE  # the records that stay
EMPTY = _EMPTY  # the header alone
OUTSIDE = _OUTSIDE  # left to the caller

# Most bytes that a v2 record takes in addition to key, value and headers: five varints, a varlong, the attributes.
RECORD_OVERHEAD = 36

# Rows of the columns of a RecordBlock and of RecordColumns.
_COLUMNS = cython.declare(cython.int, 9)

_APPEND_TIME_BIT = cython.declare(cython.longlong, 0x08)
_KEPT_BITS = cython.declare(cython.longlong, 0x38)  # timestamp type, transactional, control
_HORIZON_BIT = cython.declare(cython.longlong, 0x40)

# Of a v2 batch: its header's size, positions in it, the bytes that its length does not count.
_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_CRC_POSITION = cython.declare(cython.Py_ssize_t, 17)
_CRC_START = cython.declare(cython.Py_ssize_t, 21)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)

# Instead of a position in `out`: no room, or impossible numbers.
_NO_ROOM = cython.declare(cython.Py_ssize_t, -1)
_BAD = cython.declare(cython.Py_ssize_t, -2)

# Of CRC32C_TABLES: how many entries are for slicing, and how many after them hardware_crc32c uses.
_SLICING_ENTRIES = cython.declare(cython.Py_ssize_t, 4096)
_CARRYING_ENTRIES = cython.declare(cython.Py_ssize_t, 2048)

# For so few bytes the GIL is kept: waiting to get it back would take longer.
_FEW_BYTES = cython.declare(cython.Py_ssize_t, 4096)

# What `encode_lines` returns.
_Lines = cython.typedef((cython.longlong, cython.Py_ssize_t, cython.Py_ssize_t))

# Whether `encode_lines` fills in the CRC; if not, its caller has to.
_SEALS = cython.declare(cython.bint, hardware_crc32c_works())
SEALS = bool(_SEALS)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _bits(value: cython.longlong) -> cython.ulonglong:
    """The 64 bits of a signed value."""
    return cython.cast(cython.ulonglong, value) if cython.compiled else value & (2**64 - 1)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _zigzag(value: cython.ulonglong) -> cython.ulonglong:
    """The zigzag form of a signed 64-bit value, given as its unsigned bits so that nothing overflows."""
    return (value << 1) ^ (0 - (value >> 63)) if cython.compiled else ((value << 1) ^ -(value >> 63)) & (2**64 - 1)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _difference(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    """left - right modulo 2^64, as Java's long arithmetic wraps."""
    return left - right if cython.compiled else (left - right) & (2**64 - 1)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.ulonglong) -> cython.longlong:
    size: cython.longlong = 1
    while value > 0x7F:
        value = value >> 7
        size += 1
    return size


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    while value > 0x7F:
        out[position] = cython.cast(cython.uchar, (value & 0x7F) | 0x80)
        value = value >> 7
        position += 1
    out[position] = cython.cast(cython.uchar, value)
    return position + 1


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_byte(out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.uchar) -> cython.Py_ssize_t:
    out[position] = value
    return position + 1


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_number(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Writes `value` in `size` bytes, the most significant first; returns the position after them."""
    end: cython.Py_ssize_t = position + size
    while size > 0:
        size -= 1
        out[position + size] = cython.cast(cython.uchar, value & 0xFF)
        value = value >> 8
    return end


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _copy(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(out[position]), cython.address(buffer[start]), length)
        else:
            out[position : position + length] = buffer[start : start + length]
    return position + length


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _outside(start: cython.longlong, length: cython.longlong, size: cython.longlong) -> cython.bint:
    """Whether `length` bytes (-1: null, no bytes) at `start` are not all within a buffer of `size` bytes."""
    if length < 0:
        return length != -1
    return start < 0 or length > size or start > size - length


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_header(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_offset: cython.longlong,
    leader_epoch: cython.longlong,
    attributes: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    producer_id: cython.longlong,
    producer_epoch: cython.longlong,
    base_sequence: cython.longlong,
    count: cython.longlong,
) -> cython.Py_ssize_t:
    """The header of the batch out[start:end], with a checksum of 0; the position after the header."""
    start = _put_number(out, start, base_offset, 8)
    start = _put_number(out, start, end - start - 4, 4)
    start = _put_number(out, start, leader_epoch, 4)
    start = _put_byte(out, start, 2)  # magic
    start = _put_number(out, start, 0, 4)
    start = _put_number(out, start, attributes, 2)
    start = _put_number(out, start, last_offset_delta, 4)
    start = _put_number(out, start, base_timestamp, 8)
    start = _put_number(out, start, max_timestamp, 8)
    start = _put_number(out, start, producer_id, 8)
    start = _put_number(out, start, producer_epoch, 2)
    start = _put_number(out, start, base_sequence, 4)
    return _put_number(out, start, count, 4)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_head(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    body: cython.longlong,
    time_bits: cython.ulonglong,
    delta_bits: cython.ulonglong,
    key_bits: cython.ulonglong,
) -> cython.Py_ssize_t:
    """A record up to its key's length; `body`: bytes of all fields after the first."""
    position = _put_varint(out, position, _zigzag(_bits(body)))
    out[position] = 0  # attributes
    position = _put_varint(out, position + 1, time_bits)
    position = _put_varint(out, position, delta_bits)
    return _put_varint(out, position, key_bits)


def encode_records(
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, ::1],
    consecutive: cython.bint,
    first: cython.longlong,
    last: cython.longlong,
    base_timestamp: cython.longlong,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    result: cython.longlong[::1],
) -> cython.int:
    """Write rows [first, last) of RecordColumns as v2 records into `out` from `position`, as many as fit whole.

    `consecutive`: offset deltas are 0, 1, 2 … from `first` instead of those in the columns. Returns a status and fills
    `result`. Raises ValueError where columns, `out` or `result` are too short.
    """
    size: cython.longlong = len(buffer)
    limit: cython.longlong = len(out)
    base: cython.ulonglong = _bits(base_timestamp)
    max_timestamp: cython.longlong = -1
    status: cython.int = _DONE
    row: cython.longlong = first
    key_at: cython.longlong
    key_size: cython.longlong
    value_at: cython.longlong
    value_size: cython.longlong
    headers_at: cython.longlong
    headers_size: cython.longlong
    headers_rows: cython.longlong
    delta: cython.longlong
    time: cython.longlong
    body: cython.longlong
    time_bits: cython.ulonglong
    delta_bits: cython.ulonglong
    key_bits: cython.ulonglong
    value_bits: cython.ulonglong
    count_bits: cython.ulonglong
    if not cython.compiled:
        buffer, columns, out, result = (memoryview(array) for array in (buffer, columns, out, result))
    if first < 0 or last < first or position < 0 or position > len(out) or len(result) < ENCODE_RESULTS:
        raise ValueError("rows, position or result column out of range")
    if columns.shape[0] < _COLUMNS or columns.shape[1] < last:
        raise ValueError("a column is shorter than the rows asked for")
    with cython.nogil:
        while row < last:
            key_at = columns[column.KEY_START, row]
            key_size = columns[column.KEY_LENGTH, row]
            value_at = columns[column.VALUE_START, row]
            value_size = columns[column.VALUE_LENGTH, row]
            headers_at = columns[column.HEADERS_START, row]
            headers_size = columns[column.HEADERS_LENGTH, row]
            headers_rows = columns[column.HEADERS_COUNT, row]
            delta = row - first if consecutive else columns[column.OFFSET, row]
            if (
                _outside(key_at, key_size, size)
                or _outside(value_at, value_size, size)
                or headers_size < 0
                or _outside(headers_at, headers_size, size)
                or headers_rows < 0
                or headers_rows > _INT32_MAX
                or delta < -_INT32_MAX - 1
                or delta > _INT32_MAX
            ):
                status = _BAD_COLUMN
                break
            time = columns[column.TIMESTAMP, row]
            time_bits = _zigzag(_difference(_bits(time), base))
            delta_bits = _zigzag(_bits(delta))
            key_bits = _zigzag(_bits(key_size))
            value_bits = _zigzag(_bits(value_size))
            count_bits = _zigzag(_bits(headers_rows))
            body = 1 + _varint_size(time_bits) + _varint_size(delta_bits)
            body += _varint_size(key_bits) + (key_size if key_size > 0 else 0)
            body += _varint_size(value_bits) + (value_size if value_size > 0 else 0)
            body += _varint_size(count_bits) + headers_size
            if body > _INT32_MAX:
                status = _TOO_LARGE
                break
            if body + _varint_size(_zigzag(_bits(body))) > limit - position:
                status = _FULL
                break
            position = _put_head(out, position, body, time_bits, delta_bits, key_bits)
            position = _copy(out, position, buffer, key_at, key_size if key_size > 0 else 0)
            position = _put_varint(out, position, value_bits)
            position = _copy(out, position, buffer, value_at, value_size if value_size > 0 else 0)
            position = _put_varint(out, position, count_bits)
            position = _copy(out, position, buffer, headers_at, headers_size)
            if row == first or time > max_timestamp:
                max_timestamp = time
            row += 1
    result[0] = row
    result[1] = position
    result[2] = max_timestamp
    return status


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _find(
    buffer: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t, byte: cython.int
) -> cython.Py_ssize_t:
    """Position of the next `byte` in [position, end), or -1."""
    place: cython.Py_ssize_t = -1
    if position < end:
        if cython.compiled:
            base: cython.p_const_uchar = cython.address(buffer[0])
            at: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(base + position, byte, end - position))
            if at:
                place = at - base
        else:
            place = buffer.find(byte, position, end)  # bytes when not compiled
    return place


def split_lines(
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    separator: cython.int,
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Lines of buffer[start:end] that end with a `separator` byte (10: newline), without it, into `starts` and
    `lengths`.

    Returns the number of lines, at most the columns' length. What follows the last separator is not a line yet: the
    next call begins at `starts[-1] + lengths[-1] + 1`.
    """
    rows: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = len(starts)
    separator_at: cython.Py_ssize_t
    if start < 0 or end < start or end > len(buffer) or len(lengths) < len(starts):
        raise ValueError("span outside the buffer, or columns of unequal length")
    if not cython.compiled:
        buffer, starts, lengths = bytes(buffer), memoryview(starts), memoryview(lengths)
    with cython.nogil:
        while rows < capacity:
            separator_at = _find(buffer, start, end, separator)
            if separator_at < 0:
                break
            starts[rows] = start
            lengths[rows] = separator_at - start
            rows += 1
            start = separator_at + 1
    return rows


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _encode_lines(
    begun: cython.const[cython.uchar][::1],
    data: cython.const[cython.uchar][::1],
    separator: cython.int,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> _Lines:
    """The records of the lines from `position` on; see `encode_lines` for what it returns."""
    size: cython.Py_ssize_t = len(data)
    limit: cython.longlong = len(out)
    before: cython.longlong = len(begun)
    row: cython.longlong = 0
    at: cython.Py_ssize_t = 0
    separator_at: cython.Py_ssize_t
    value_size: cython.longlong
    body: cython.longlong
    while True:
        separator_at = _find(data, at, size, separator)
        if separator_at < 0:
            break
        value_size = before + (separator_at - at)
        # One byte each: attributes, timestamp delta, null key, no headers. No number is negative: zigzag doubles it.
        body = 4 + _varint_size(row << 1) + _varint_size(value_size << 1) + value_size
        if body > _INT32_MAX or row >= _INT32_MAX or body + _varint_size(body << 1) > limit - position:
            return 0, 0, 0
        position = _put_varint(out, position, body << 1)
        position = _put_byte(out, position, 0)
        position = _put_byte(out, position, 0)
        position = _put_varint(out, position, row << 1)
        position = _put_byte(out, position, 1)  # null key
        position = _put_varint(out, position, value_size << 1)
        position = _copy(out, position, begun, 0, before)
        position = _copy(out, position, data, at, separator_at - at)
        position = _put_byte(out, position, 0)
        before = 0
        at = separator_at + 1
        row += 1
    return row, position, at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _encode_batch(
    begun: cython.const[cython.uchar][::1],
    data: cython.const[cython.uchar][::1],
    separator: cython.int,
    timestamp: cython.longlong,
    attributes: cython.longlong,
    out: cython.uchar[::1],
    tables: cython.const[cython.uint][::1],
) -> _Lines:
    crc: cython.longlong
    done: _Lines = _encode_lines(begun, data, separator, out, _HEADER_SIZE)
    if done[0] > 0:
        _put_header(out, 0, done[1], 0, -1, attributes, done[0] - 1, timestamp, timestamp, -1, -1, -1, done[0])
        if _SEALS:
            crc = hardware_crc32c(
                cython.address(out[_CRC_START]), done[1] - _CRC_START, cython.address(tables[_SLICING_ENTRIES])
            )
            _put_number(out, _CRC_POSITION, crc, 4)
    return done


def encode_lines(
    begun: cython.const[cython.uchar][::1],
    data: cython.const[cython.uchar][::1],
    separator: cython.int,
    timestamp: cython.longlong,
    attributes: cython.int,
    out: cython.uchar[::1],
    tables: cython.const[cython.uint][::1],
) -> tuple[int, int, int]:
    """A batch at the start of `out` of all lines of `data` that end with a `separator` byte.

    `begun` is prepended to the first line. The records have no key and no headers, and all the same timestamp. Base
    offset and leader epoch remain to be filled in, and the CRC unless SEALS. `tables`: CRC32C_TABLES. Returns the
    number of lines, the position after the batch in `out`, and the position after the lines in `data`. 0 lines: none
    ends, or not all of them fit.
    """
    done: _Lines
    if len(tables) < _SLICING_ENTRIES + _CARRYING_ENTRIES:
        raise ValueError("tables are missing")
    if len(out) < _HEADER_SIZE:
        return 0, 0, 0
    if not cython.compiled:
        begun, data, out = bytes(begun), bytes(data), memoryview(out)
    if len(data) < _FEW_BYTES:
        return _encode_batch(begun, data, separator, timestamp, attributes, out, tables)
    with cython.nogil:
        done = _encode_batch(begun, data, separator, timestamp, attributes, out, tables)
    return done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_record(
    source: cython.const[cython.uchar][::1],
    key_start: cython.longlong,
    key_length: cython.longlong,
    end: cython.longlong,
    timestamp_delta: cython.ulonglong,
    offset_delta: cython.longlong,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write one record; key, value and headers are copied in one piece. The position after it, _NO_ROOM or _BAD."""
    delta: cython.ulonglong = _zigzag(_bits(offset_delta))
    key: cython.ulonglong = _zigzag(_bits(key_length))
    length: cython.longlong
    body: cython.longlong
    if key_start < 0 or end < key_start or end > len(source):
        return _BAD
    length = end - key_start
    if key_length < -1 or key_length > length:
        return _BAD
    if offset_delta < -_INT32_MAX - 1 or offset_delta > _INT32_MAX:
        return _BAD
    body = 1 + _varint_size(timestamp_delta) + _varint_size(delta) + _varint_size(key) + length
    if body > _INT32_MAX:
        return _BAD
    if body + _varint_size(_zigzag(_bits(body))) > len(out) - position:
        return _NO_ROOM
    position = _put_head(out, position, body, timestamp_delta, delta, key)
    return _copy(out, position, source, key_start, length)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_row_header(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    attributes: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    count: cython.longlong,
) -> cython.Py_ssize_t:
    """The header of out[start:end] with offsets, leader epoch and producer of the batch in `row`."""
    return _put_header(
        out,
        start,
        end,
        table[column.BASE_OFFSET, row],
        table[column.LEADER_EPOCH, row],
        attributes,
        table[column.LAST_OFFSET, row] - table[column.BASE_OFFSET, row],
        base_timestamp,
        max_timestamp,
        table[column.PRODUCER_ID, row],
        table[column.PRODUCER_EPOCH, row],
        table[column.BASE_SEQUENCE, row],
        count,
    )


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _copy_batch(
    window: cython.const[cython.uchar][::1],
    start: cython.longlong,
    size: cython.longlong,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A batch byte for byte: the position after it, _NO_ROOM or _BAD."""
    if size < 0 or size > len(window) or start > len(window) - size:
        return _BAD
    if size > len(out) - position:
        return _NO_ROOM
    return _copy(out, position, window, start, size)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _rewrite_batch(
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    horizon: cython.longlong,
    source: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, :],
    ends: cython.const[cython.longlong][::1],
    keep: cython.const[cython.uchar][::1],
    record: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A new batch of the row's records that stay: the position after it, _NO_ROOM or _BAD.

    `record` is the row's first one. `horizon` (-1: none) takes the place of the base timestamp.
    """
    records: cython.Py_ssize_t = columns.shape[1]
    at: cython.Py_ssize_t = position + _HEADER_SIZE
    base: cython.longlong = horizon
    greatest: cython.longlong = -1
    count: cython.longlong = 0
    timestamp: cython.longlong
    attributes: cython.longlong = table[column.ATTRIBUTES, row] & _KEPT_BITS
    if at > len(out):
        return _NO_ROOM
    while record < records and columns[column.BATCH, record] <= row:
        if columns[column.BATCH, record] == row and keep[record]:
            if columns[column.OFFSET, record] < 0:
                return _BAD
            timestamp = columns[column.TIMESTAMP, record]
            if count == 0 and base < 0:
                base = timestamp
            if timestamp > greatest:
                greatest = timestamp
            at = _put_record(
                source,
                columns[column.KEY_START, record],
                columns[column.KEY_LENGTH, record],
                ends[record],
                _zigzag(_difference(_bits(timestamp), _bits(base))),
                columns[column.OFFSET, record] - table[column.BASE_OFFSET, row],
                out,
                at,
            )
            if at < 0:
                return at
            count += 1
        record += 1
    if at - position > _INT32_MAX:
        return _BAD
    if attributes & _APPEND_TIME_BIT:
        greatest = table[column.MAX_TIMESTAMP, row]
    if horizon >= 0:
        attributes |= _HORIZON_BIT
    _put_row_header(out, position, at, table, row, attributes, base, greatest, count)
    return at


def rewrite(
    window: cython.const[cython.uchar][::1],
    origin: cython.longlong,
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    horizons: cython.const[cython.longlong][::1],
    source: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, :],
    ends: cython.const[cython.longlong][::1],
    keep: cython.const[cython.uchar][::1],
    record: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    spans: cython.longlong[::1],
    result: cython.longlong[::1],
) -> int:
    """Write what `actions` leave of the rows [first_row, last_row) of `table` (BatchTable.data) into `out`.

    `window`: the batches' bytes, with window[0] at the file position `origin`. `source` and `columns`: those of a
    RecordBlock of uncompressed v2 batches, ascending by batch, used from the record number `record` on; `ends`: where
    each record ends in `source`. `horizons`: each batch's delete horizon in epoch ms, -1 none. `spans`: start and end
    in `out` of each new batch, whose checksum is left to the caller. Stops at a row with the action OUTSIDE, and where
    `out` is full; fills `result`. ValueError for columns that do not fit each other.
    """
    records: cython.Py_ssize_t
    row: cython.Py_ssize_t = first_row
    status: cython.int = _DONE
    written: cython.longlong = 0
    action: cython.int
    end: cython.Py_ssize_t
    if not cython.compiled:
        window, table, actions, horizons = (memoryview(array) for array in (window, table, actions, horizons))
        source, columns, ends, keep = (memoryview(array) for array in (source, columns, ends, keep))
        out, spans, result = (memoryview(array) for array in (out, spans, result))
    records = columns.shape[1]
    if (
        first_row < 0
        or last_row < first_row
        or origin < 0
        or table.shape[0] < 14
        or table.shape[1] < last_row
        or len(actions) < last_row
        or len(horizons) < last_row
        or len(spans) < 2 * (last_row - first_row)
        or len(result) < REWRITE_RESULTS
        or columns.shape[0] < _COLUMNS
        or len(ends) < records
        or len(keep) < records
        or record < 0
        or position < 0
        or position > len(out)
    ):
        raise ValueError("columns do not fit each other")
    with cython.nogil:
        while row < last_row:
            action = actions[row]
            if action == _OUTSIDE:
                break
            end = position
            if action in (_COPY, _REWRITE, _EMPTY):
                if (
                    table[column.POSITION, row] < origin
                    or table[column.BASE_OFFSET, row] < 0
                    or table[column.LAST_OFFSET, row] < 0
                ):
                    end = _BAD
                elif action == _COPY:
                    end = _copy_batch(
                        window, table[column.POSITION, row] - origin, table[column.SIZE, row], out, position
                    )
                elif action == _REWRITE:
                    end = _rewrite_batch(table, row, horizons[row], source, columns, ends, keep, record, out, position)
                elif len(out) - position < _HEADER_SIZE:
                    end = _NO_ROOM
                else:
                    end = position + _HEADER_SIZE
                    _put_row_header(
                        out,
                        position,
                        end,
                        table,
                        row,
                        table[column.ATTRIBUTES, row] & _KEPT_BITS,
                        -1,
                        table[column.MAX_TIMESTAMP, row],
                        0,
                    )
            if end < 0:
                status = _FULL if end == _NO_ROOM else _BAD_COLUMN
                break
            if action in (_REWRITE, _EMPTY):
                spans[2 * written] = position
                spans[2 * written + 1] = end
                written += 1
            position = end
            while record < records and columns[column.BATCH, record] <= row:
                record += 1
            row += 1
    result[0] = row
    result[1] = record
    result[2] = position
    result[3] = written
    return status
