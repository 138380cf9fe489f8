# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hot loops of encoding, Cython in pure-Python mode: v2 records out of columns.

The same file runs uncompiled with equal results, only slower. Nothing here allocates or raises inside a loop; the
callers in `record_batch` turn the status into an error. Every start and length is checked against the buffer before
it is used. A column of one element stands for the same value in every row.

Record layout: `DefaultRecord.writeTo` (kafka-facts 1.2); varints: `ByteUtils`, zigzag, base 128, little-endian.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

# C constants for the loops, and the same numbers for Python below them.
_DONE = cython.declare(cython.int, 0)
_FULL = cython.declare(cython.int, 1)
_BAD_COLUMN = cython.declare(cython.int, 2)
_TOO_LARGE = cython.declare(cython.int, 3)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)

# Status of `encode_records`.
DONE = _DONE  # every row asked for
FULL = _FULL  # the next record does not fit into `out`
BAD_COLUMN = _BAD_COLUMN  # a start or length points outside the buffer, or a count or delta is no int32
TOO_LARGE = _TOO_LARGE  # one record's body is above 2^31 - 1 bytes

# What `encode_records` puts into its `result`: the first row not encoded, the position after the last byte written,
# the greatest timestamp of the rows encoded (-1 if there are none).
RESULTS = 3

# Most bytes that a v2 record takes beside key, value and headers: five varints, a varlong, the attributes.
RECORD_OVERHEAD = 36


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _zigzag(value: cython.ulonglong) -> cython.ulonglong:
    """Of a signed 64-bit value given as its unsigned bits: nothing overflows."""
    return (value << 1) ^ (0 - (value >> 63)) if cython.compiled else ((value << 1) ^ -(value >> 63)) & (2**64 - 1)


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
def _put_head(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    body: cython.longlong,
    time_bits: cython.ulonglong,
    delta_bits: cython.ulonglong,
    key_bits: cython.ulonglong,
) -> cython.Py_ssize_t:
    """A record up to its key's length; `body`: bytes of all behind its first field."""
    position = _put_varint(out, position, _zigzag(_bits(body)))
    out[position] = 0  # attributes
    position = _put_varint(out, position + 1, time_bits)
    position = _put_varint(out, position, delta_bits)
    return _put_varint(out, position, key_bits)


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
@cython.exceptval(check=False)
def _encode(
    buffer: cython.const[cython.uchar][::1],
    key_start: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    value_start: cython.const[cython.longlong][::1],
    value_length: cython.const[cython.longlong][::1],
    timestamp: cython.const[cython.longlong][::1],
    headers_start: cython.const[cython.longlong][::1],
    headers_length: cython.const[cython.longlong][::1],
    headers_count: cython.const[cython.longlong][::1],
    offset_delta: cython.const[cython.longlong][::1],
    first: cython.longlong,
    last: cython.longlong,
    base_timestamp: cython.longlong,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    result: cython.longlong[::1],
) -> cython.int:
    size: cython.longlong = len(buffer)
    limit: cython.longlong = len(out)
    key_start_step: cython.longlong = 0 if len(key_start) == 1 else 1
    key_length_step: cython.longlong = 0 if len(key_length) == 1 else 1
    value_start_step: cython.longlong = 0 if len(value_start) == 1 else 1
    value_length_step: cython.longlong = 0 if len(value_length) == 1 else 1
    timestamp_step: cython.longlong = 0 if len(timestamp) == 1 else 1
    headers_start_step: cython.longlong = 0 if len(headers_start) == 1 else 1
    headers_length_step: cython.longlong = 0 if len(headers_length) == 1 else 1
    headers_count_step: cython.longlong = 0 if len(headers_count) == 1 else 1
    consecutive: cython.bint = len(offset_delta) == 0
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
    while row < last:
        key_at = key_start[row * key_start_step]
        key_size = key_length[row * key_length_step]
        value_at = value_start[row * value_start_step]
        value_size = value_length[row * value_length_step]
        headers_at = headers_start[row * headers_start_step]
        headers_size = headers_length[row * headers_length_step]
        headers_rows = headers_count[row * headers_count_step]
        delta = row - first if consecutive else offset_delta[row]
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
        time = timestamp[row * timestamp_step]
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


def encode_records(
    buffer: cython.const[cython.uchar][::1],
    key_start: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    value_start: cython.const[cython.longlong][::1],
    value_length: cython.const[cython.longlong][::1],
    timestamp: cython.const[cython.longlong][::1],
    headers_start: cython.const[cython.longlong][::1],
    headers_length: cython.const[cython.longlong][::1],
    headers_count: cython.const[cython.longlong][::1],
    offset_delta: cython.const[cython.longlong][::1],
    first: cython.longlong,
    last: cython.longlong,
    base_timestamp: cython.longlong,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    result: cython.longlong[::1],
) -> cython.int:
    """Write rows [first, last) as v2 records into `out` from `position`, as many as fit whole.

    Columns are int64, of one element or of at least `last`; an empty `offset_delta` means 0, 1, 2 … from `first`.
    Returns a status and fills `result`. Raises ValueError where columns, `out` or `result` are too short.
    """
    status: cython.int
    if not cython.compiled:
        buffer, out, result = memoryview(buffer), memoryview(out), memoryview(result)
        key_start, key_length = memoryview(key_start), memoryview(key_length)
        value_start, value_length = memoryview(value_start), memoryview(value_length)
        timestamp, offset_delta = memoryview(timestamp), memoryview(offset_delta)
        headers_start, headers_length = memoryview(headers_start), memoryview(headers_length)
        headers_count = memoryview(headers_count)
    if first < 0 or last < first or position < 0 or position > len(out) or len(result) < RESULTS:
        raise ValueError("rows, position or result column out of range")
    if (
        (len(key_start) != 1 and len(key_start) < last)
        or (len(key_length) != 1 and len(key_length) < last)
        or (len(value_start) != 1 and len(value_start) < last)
        or (len(value_length) != 1 and len(value_length) < last)
        or (len(timestamp) != 1 and len(timestamp) < last)
        or (len(headers_start) != 1 and len(headers_start) < last)
        or (len(headers_length) != 1 and len(headers_length) < last)
        or (len(headers_count) != 1 and len(headers_count) < last)
        or (len(offset_delta) != 0 and len(offset_delta) < last)
    ):
        raise ValueError("a column is shorter than the rows asked for")
    with cython.nogil:
        status = _encode(
            buffer,
            key_start,
            key_length,
            value_start,
            value_length,
            timestamp,
            headers_start,
            headers_length,
            headers_count,
            offset_delta,
            first,
            last,
            base_timestamp,
            out,
            position,
            result,
        )
    return status
