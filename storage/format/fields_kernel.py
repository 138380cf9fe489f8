# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Fields of decoded records: copied together, and how many bytes encoded headers take. Cython in pure-Python mode; the
same file runs uncompiled, only slower.

Every length is checked against the buffer before it is used. Layout: `DefaultRecord.writeTo` (kafka-facts 1.2).
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_field(
    buffer: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, null_allowed: cython.bint
) -> cython.Py_ssize_t:
    """Position after a varint length and that many bytes; -1 where either is not whole or not a length."""
    size: cython.Py_ssize_t = len(buffer)
    value: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while True:
        if position >= size:
            return -1
        byte = buffer[position]
        position += 1
        if shift == 28 and byte > 0x0F:
            return -1  # a fifth byte has four bits left, and nothing follows it
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if value & 1:  # negative: only -1, zigzag 1, means null
        return position if null_allowed and value == 1 else -1
    value = value >> 1
    if value > cython.cast(cython.ulonglong, size - position):
        return -1
    return position + cython.cast(cython.Py_ssize_t, value)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure_headers(
    buffer: cython.const[cython.uchar][::1],
    headers_start: cython.const[cython.longlong][::1],
    headers_count: cython.const[cython.longlong][::1],
    headers_length: cython.longlong[::1],
    rows: cython.longlong,
) -> cython.longlong:
    size: cython.longlong = len(buffer)
    row: cython.longlong
    count: cython.longlong
    start: cython.Py_ssize_t
    position: cython.Py_ssize_t
    for row in range(rows):
        count = headers_count[row]
        if count <= 0:
            headers_length[row] = 0
            continue
        if headers_start[row] < 0 or headers_start[row] > size:
            return row
        start = cython.cast(cython.Py_ssize_t, headers_start[row])
        position = start
        while count > 0:
            position = _skip_field(buffer, position, False)
            if position >= 0:
                position = _skip_field(buffer, position, True)
            if position < 0:
                return row
            count -= 1
        headers_length[row] = position - start
    return rows


def measure_headers(
    buffer: cython.const[cython.uchar][::1],
    headers_start: cython.const[cython.longlong][::1],
    headers_count: cython.const[cython.longlong][::1],
    headers_length: cython.longlong[::1],
) -> cython.longlong:
    """Bytes that each row's `headers_count` encoded headers take from `headers_start`, into `headers_length`.

    Returns the number of rows done: fewer than all means that the next row's headers are not whole.
    """
    rows: cython.longlong = len(headers_start)
    if len(headers_count) < rows or len(headers_length) < rows:
        raise ValueError("a column is shorter than the rows asked for")
    with cython.nogil:
        rows = _measure_headers(buffer, headers_start, headers_count, headers_length, rows)
    return rows


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
