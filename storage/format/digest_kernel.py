# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records in the canonical form of which digests are made: the same bytes whatever batches, codec and format they were
stored in. See storage/FORMAT.md, "Digests of records".

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower. Columns are not trusted: each
start and length is checked against the buffer before it is used.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.storage.format import columns as column
else:
    from storage.format import columns as column

# A byte buffer to read and one to write: C pointers when compiled, memoryviews when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Room = cython.typedef(cython.pointer(cython.uchar))

FIXED = cython.declare(cython.longlong, 28)  # offset, timestamp, three lengths or counts
HEADER_FIXED = cython.declare(cython.longlong, 8)  # two lengths
MAX_LENGTH = cython.declare(cython.longlong, 0x7FFFFFFF)
MAX_NEEDED = cython.declare(cython.longlong, 1 << 60)  # far from where a sum could overflow


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _store_32(out: Room, at: cython.longlong, value: cython.longlong) -> cython.void:
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _store_64(out: Room, at: cython.longlong, value: cython.longlong) -> cython.void:
    _store_32(out, at, value >> 32)
    _store_32(out, at + 4, value)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _outside(start: cython.longlong, length: cython.longlong, size: cython.longlong) -> cython.bint:
    """Whether `length` bytes at `start` are not all within a buffer of `size` bytes; False for null and empty."""
    return length > 0 and (start < 0 or length > MAX_LENGTH or length > size or start > size - length)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put(
    data: Bytes, start: cython.longlong, length: cython.longlong, out: Room, at: cython.longlong
) -> cython.longlong:
    """Writes a length, -1 for null, and the bytes; returns the position after them."""
    if length < 0:
        length = -1
    _store_32(out, at, length)
    at += 4
    if length > 0:
        if cython.compiled:
            memcpy(out + at, data + start, length)
        else:
            out[at : at + length] = data[start : start + length]
        at += length
    return at


def canonical(
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, ::1],
    spans: cython.const[cython.longlong][:, ::1],
    slot: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> tuple[int, int, int, int]:
    """Write the rows [first, last) into `out` as long as they fit: (the first row not written, the headers' next slot,
    bytes written, bytes that the next row needs or 0).

    `spans` has one column a header (RecordBlock.headers_spans), of which that at `slot` is the first of row `first`.
    ValueError for a row, key, value or header outside of its columns or of `buffer`.
    """
    size: cython.longlong = len(buffer)
    room: cython.longlong = len(out)
    headers: cython.Py_ssize_t = spans.shape[1]
    row: cython.Py_ssize_t = first
    header: cython.Py_ssize_t
    count: cython.longlong
    needed: cython.longlong = 0
    at: cython.longlong = 0
    bad: cython.bint = False
    data: Bytes
    room_at: Room
    if first < 0 or last > columns.shape[1] or columns.shape[0] < 8 or spans.shape[0] < 4 or slot < 0 or slot > headers:
        raise ValueError("rows outside of the columns")
    if cython.compiled:
        data, room_at = cython.address(buffer[0]), cython.address(out[0])
    else:
        data, columns, spans, room_at = memoryview(buffer), memoryview(columns), memoryview(spans), memoryview(out)
    with cython.nogil:
        while row < last:
            count = columns[column.HEADERS_COUNT, row]
            if count < 0:
                count = 0
            if (
                _outside(columns[column.KEY_START, row], columns[column.KEY_LENGTH, row], size)
                or _outside(columns[column.VALUE_START, row], columns[column.VALUE_LENGTH, row], size)
                or count > headers - slot
            ):
                bad = True
                break
            needed = FIXED
            if columns[column.KEY_LENGTH, row] > 0:
                needed += columns[column.KEY_LENGTH, row]
            if columns[column.VALUE_LENGTH, row] > 0:
                needed += columns[column.VALUE_LENGTH, row]
            for header in range(slot, slot + count):
                if (
                    _outside(spans[0, header], spans[1, header], size)
                    or _outside(spans[2, header], spans[3, header], size)
                    or needed > MAX_NEEDED
                ):
                    bad = True
                    break
                needed += HEADER_FIXED
                if spans[1, header] > 0:
                    needed += spans[1, header]
                if spans[3, header] > 0:
                    needed += spans[3, header]
            if bad or needed > room - at:
                break
            _store_64(room_at, at, columns[column.OFFSET, row])
            _store_64(room_at, at + 8, columns[column.TIMESTAMP, row])
            at = _put(data, columns[column.KEY_START, row], columns[column.KEY_LENGTH, row], room_at, at + 16)
            at = _put(data, columns[column.VALUE_START, row], columns[column.VALUE_LENGTH, row], room_at, at)
            _store_32(room_at, at, count)
            at += 4
            for header in range(slot, slot + count):
                at = _put(data, spans[0, header], spans[1, header], room_at, at)
                at = _put(data, spans[2, header], spans[3, header], room_at, at)
            slot += count
            needed = 0
            row += 1
    if bad:
        raise ValueError("a field lies outside of the buffer, or a header outside of its columns")
    return row, slot, at, needed
