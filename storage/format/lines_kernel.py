# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Lines out of bytes, and batches out of lines. Cython in pure-Python mode; runs uncompiled too, only slower.

What is written line by line is made into a batch in one compiled call: header, records, CRC. Every length is checked
against the buffer before it is used. Layouts: `DefaultRecordBatch.writeHeader`, `DefaultRecord.writeTo` (kafka-facts
1.1, 1.2); varints: `ByteUtils`, zigzag, base 128, little-endian.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcpy
else:
    from typing import Any

    # lines_kernel.pxd declares them.
    hardware_crc32c: Any = None
    hardware_crc32c_works: Any = bool

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_NULL = cython.declare(cython.uchar, 1)  # the varint of -1

# Of a v2 batch: its header's size, positions in it, the bytes that its length does not count.
_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_CRC_POSITION = cython.declare(cython.Py_ssize_t, 17)
_CRC_START = cython.declare(cython.Py_ssize_t, 21)
_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)

# Of CRC32C_TABLES: how many are for slicing, and those that hardware_crc32c takes, which stand behind them.
_SLICING_ENTRIES = cython.declare(cython.Py_ssize_t, 4096)
_CARRYING_ENTRIES = cython.declare(cython.Py_ssize_t, 2048)

# So few are done sooner than others have taken the GIL, which would then have to be waited for.
_FEW_BYTES = cython.declare(cython.Py_ssize_t, 4096)

# What `encode_lines` returns.
_Lines = cython.typedef((cython.longlong, cython.Py_ssize_t, cython.Py_ssize_t))

# Whether `encode_lines` puts in the CRC; if not, its caller has to.
_SEALS = cython.declare(cython.bint, hardware_crc32c_works())
SEALS = bool(_SEALS)


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _find(
    buffer: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t, byte: cython.int
) -> cython.Py_ssize_t:
    """Position of the next `byte` in [position, end), or -1."""
    found: cython.Py_ssize_t = -1
    if position < end:
        if cython.compiled:
            base: cython.p_const_uchar = cython.address(buffer[0])
            at: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(base + position, byte, end - position))
            if at:
                found = at - base
        else:
            found = buffer.find(byte, position, end)  # split_lines made it bytes
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _split(
    buffer: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    separator: cython.int,
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
) -> cython.Py_ssize_t:
    rows: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = len(starts)
    found: cython.Py_ssize_t
    while rows < capacity:
        found = _find(buffer, position, end, separator)
        if found < 0:
            break
        starts[rows] = position
        lengths[rows] = found - position
        rows += 1
        position = found + 1
    return rows


def split_lines(
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    separator: cython.int,
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Lines of buffer[start:end] that a `separator` byte (10: newline) ends, into `starts` and `lengths` without it.

    Returns the number of lines, at most the columns' length. What follows the last separator is no line yet: the
    next call goes on at `starts[-1] + lengths[-1] + 1`.
    """
    rows: cython.Py_ssize_t
    if start < 0 or end < start or end > len(buffer) or len(lengths) < len(starts):
        raise ValueError("span outside the buffer, or columns of unequal length")
    if not cython.compiled:
        buffer, starts, lengths = bytes(buffer), memoryview(starts), memoryview(lengths)  # bytes: for its find
    with cython.nogil:
        rows = _split(buffer, start, end, separator, starts, lengths)
    return rows


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.ulonglong) -> cython.longlong:
    """Bytes of the varint of a value that is not negative, nor above 2^62."""
    size: cython.longlong = 1
    value = value << 1
    while value > 0x7F:
        value = value >> 7
        size += 1
    return size


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    """Of the same values."""
    value = value << 1
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
    """`size` bytes, the most significant first."""
    end: cython.Py_ssize_t = position + size
    while size > 0:
        size -= 1
        out[position + size] = cython.cast(cython.uchar, value & 0xFF)
        value = value >> 8
    return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_header(
    out: cython.uchar[::1],
    end: cython.Py_ssize_t,
    records: cython.longlong,
    timestamp: cython.longlong,
    attributes: cython.longlong,
) -> cython.Py_ssize_t:
    """Of a batch that ends at `end`: without base offset, leader epoch and CRC, and without a producer."""
    position: cython.Py_ssize_t = _put_number(out, 0, 0, 8)
    position = _put_number(out, position, end - _OVERHEAD, 4)
    position = _put_number(out, position, -1, 4)
    position = _put_byte(out, position, 2)  # magic
    position = _put_number(out, position, 0, 4)
    position = _put_number(out, position, attributes, 2)
    position = _put_number(out, position, records - 1, 4)  # last offset delta
    position = _put_number(out, position, timestamp, 8)  # base timestamp
    position = _put_number(out, position, timestamp, 8)  # max timestamp
    position = _put_number(out, position, -1, 8)  # producer id
    position = _put_number(out, position, -1, 2)  # producer epoch
    position = _put_number(out, position, -1, 4)  # base sequence
    return _put_number(out, position, records, 4)


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
@cython.exceptval(check=False)
def _encode_lines(
    begun: cython.const[cython.uchar][::1],
    data: cython.const[cython.uchar][::1],
    separator: cython.int,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> _Lines:
    size: cython.Py_ssize_t = len(data)
    limit: cython.longlong = len(out)
    before: cython.longlong = len(begun)
    row: cython.longlong = 0
    at: cython.Py_ssize_t = 0
    found: cython.Py_ssize_t
    value_size: cython.longlong
    body: cython.longlong
    while True:
        found = _find(data, at, size, separator)
        if found < 0:
            break
        value_size = before + (found - at)
        # One byte each: attributes, timestamp delta, null key, no headers.
        body = 4 + _varint_size(row) + _varint_size(value_size) + value_size
        if body > _INT32_MAX or row >= _INT32_MAX or body + _varint_size(body) > limit - position:
            return 0, 0, 0
        position = _put_varint(out, position, body)
        position = _put_byte(out, position, 0)
        position = _put_byte(out, position, 0)
        position = _put_varint(out, position, row)
        position = _put_byte(out, position, _NULL)
        position = _put_varint(out, position, value_size)
        position = _copy(out, position, begun, 0, before)
        position = _copy(out, position, data, at, found - at)
        position = _put_byte(out, position, 0)
        before = 0
        at = found + 1
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
        _put_header(out, done[1], done[0], timestamp, attributes)
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
    """A batch at the start of `out` of all lines of `data` that a `separator` byte ends.

    `begun` stands before the first line. The records have no key and no headers, all the same timestamp. Base offset
    and leader epoch are yet to be put in, and the CRC unless SEALS. `tables`: CRC32C_TABLES. Returns how many lines
    they are, the position in `out` behind them, and that in `data`. No lines: none ends, or not all of them fit.
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
