# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""CRCs of many batches in one compiled call, by the processor's instruction if it has one, otherwise by tables.

Cython in pure-Python mode; runs uncompiled too. Slicing-by-16, both polynomials by their tables (checksum.py makes
those): about 0.3 ns a byte, where a call to the crc32c package costs some 260 ns. CRC-32C by the instruction
(checksum_kernel.pxd): about 0.05 ns a byte.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.storage.format import columns as column
else:
    from typing import Any

    from storage.format import columns as column

    # checksum_kernel.pxd declares them.
    hardware_crc32c: Any = None
    hardware_crc32c_works: Any = bool

# A byte buffer and a CRC table set [16][256]: C pointers when compiled, memoryviews when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Tables = cython.typedef(cython.pointer(cython.const[cython.uint]))

TABLE_ENTRIES = cython.declare(cython.Py_ssize_t, 4096)
CARRYING_ENTRIES = cython.declare(cython.Py_ssize_t, 2048)  # after them, for CRC-32C only: see hardware_crc32c


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_u32le(data: Bytes, at: cython.longlong) -> cython.uint:
    return (
        cython.cast(cython.uint, data[at])
        | cython.cast(cython.uint, data[at + 1]) << 8
        | cython.cast(cython.uint, data[at + 2]) << 16
        | cython.cast(cython.uint, data[at + 3]) << 24
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_u32be(data: Bytes, at: cython.longlong) -> cython.longlong:
    return (
        cython.cast(cython.ulonglong, data[at]) << 24
        | cython.cast(cython.ulonglong, data[at + 1]) << 16
        | cython.cast(cython.ulonglong, data[at + 2]) << 8
        | cython.cast(cython.ulonglong, data[at + 3])
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def crc_of(
    data: Bytes, at: cython.longlong, end: cython.longlong, tables: Tables, value: cython.uint
) -> cython.longlong:
    """The reflected CRC of data[at:end], continuing from `value`; `tables` flat, table k at 256 * k."""
    crc: cython.uint
    first: cython.uint
    second: cython.uint
    third: cython.uint
    fourth: cython.uint
    crc = ~value if cython.compiled else value ^ 0xFFFFFFFF
    while end - at >= 16:
        first = crc ^ load_u32le(data, at)
        second = load_u32le(data, at + 4)
        third = load_u32le(data, at + 8)
        fourth = load_u32le(data, at + 12)
        crc = (
            tables[0xF00 | first & 0xFF]
            ^ tables[0xE00 | first >> 8 & 0xFF]
            ^ tables[0xD00 | first >> 16 & 0xFF]
            ^ tables[0xC00 | first >> 24]
            ^ tables[0xB00 | second & 0xFF]
            ^ tables[0xA00 | second >> 8 & 0xFF]
            ^ tables[0x900 | second >> 16 & 0xFF]
            ^ tables[0x800 | second >> 24]
            ^ tables[0x700 | third & 0xFF]
            ^ tables[0x600 | third >> 8 & 0xFF]
            ^ tables[0x500 | third >> 16 & 0xFF]
            ^ tables[0x400 | third >> 24]
            ^ tables[0x300 | fourth & 0xFF]
            ^ tables[0x200 | fourth >> 8 & 0xFF]
            ^ tables[0x100 | fourth >> 16 & 0xFF]
            ^ tables[fourth >> 24]
        )
        at += 16
    # The rest in at most five steps, which matters for batches of some hundred bytes.
    if end - at >= 8:
        first = crc ^ load_u32le(data, at)
        second = load_u32le(data, at + 4)
        crc = (
            tables[0x700 | first & 0xFF]
            ^ tables[0x600 | first >> 8 & 0xFF]
            ^ tables[0x500 | first >> 16 & 0xFF]
            ^ tables[0x400 | first >> 24]
            ^ tables[0x300 | second & 0xFF]
            ^ tables[0x200 | second >> 8 & 0xFF]
            ^ tables[0x100 | second >> 16 & 0xFF]
            ^ tables[second >> 24]
        )
        at += 8
    if end - at >= 4:
        first = crc ^ load_u32le(data, at)
        crc = (
            tables[0x300 | first & 0xFF]
            ^ tables[0x200 | first >> 8 & 0xFF]
            ^ tables[0x100 | first >> 16 & 0xFF]
            ^ tables[first >> 24]
        )
        at += 4
    while at < end:
        crc = tables[(crc ^ data[at]) & 0xFF] ^ crc >> 8
        at += 1
    return ~crc if cython.compiled else crc ^ 0xFFFFFFFF


def check_batches(
    buffer: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    origin: cython.longlong,
    castagnoli: cython.const[cython.uint][::1],
    ieee: cython.const[cython.uint][::1],
    limit: cython.longlong,
    large: cython.longlong[:, ::1],
) -> tuple[int, int, int]:
    """Compare stored CRCs of rows [first_row, last_row): (row of the first mismatch or last_row, its CRC, large rows).

    v2: CRC-32C from the attributes on. v0, v1: CRC-32 from the magic on. Batches of more than `limit` checksummed bytes
    before the mismatch are left to the caller, except v2 batches if the processor computes CRC-32C: each becomes a row
    (row in `table`, start and end of the bytes in `buffer`, stored CRC, magic) of `large`. `origin` is the file
    position of buffer[0]; ValueError if a row of `table` lies outside of the buffer.
    """
    size: cython.longlong = len(buffer)
    row: cython.Py_ssize_t
    computed: cython.longlong = -1
    count: cython.Py_ssize_t = 0
    at: cython.longlong
    length: cython.longlong
    skipped: cython.longlong
    outside: cython.bint = False
    by_hardware: cython.bint = len(castagnoli) >= TABLE_ENTRIES + CARRYING_ENTRIES and hardware_crc32c_works()
    data: Bytes
    crc32c_tables: Tables
    crc32_tables: Tables
    if first_row < 0 or last_row > table.shape[1] or table.shape[0] < 14 or origin < 0:
        raise ValueError("rows outside of the table")
    if large.shape[0] < last_row - first_row or large.shape[1] < 5:
        raise ValueError("no room for all rows")
    if len(castagnoli) < TABLE_ENTRIES or len(ieee) < TABLE_ENTRIES:
        raise ValueError("sixteen tables of 256 entries are needed")
    if cython.compiled:
        data = cython.address(buffer[0])
        crc32c_tables = cython.address(castagnoli[0])
        crc32_tables = cython.address(ieee[0])
    else:
        table, large = memoryview(table), memoryview(large)
        data, crc32c_tables, crc32_tables = memoryview(buffer), memoryview(castagnoli), memoryview(ieee)
    row = first_row
    with cython.nogil:
        while row < last_row:
            at = table[column.POSITION, row]
            length = table[column.SIZE, row]
            skipped = 21 if table[column.MAGIC, row] == 2 else 16
            if at < origin or at - origin > size or length < skipped or length > size - (at - origin):
                outside = True
                break
            at -= origin
            if by_hardware and skipped == 21:
                computed = hardware_crc32c(data + at + skipped, length - skipped, crc32c_tables + TABLE_ENTRIES)
                if computed != table[column.CRC, row]:
                    break
            elif length - skipped > limit:
                large[count, 0] = row
                large[count, 1] = at + skipped
                large[count, 2] = at + length
                large[count, 3] = table[column.CRC, row]
                large[count, 4] = table[column.MAGIC, row]
                count += 1
            else:
                computed = crc_of(data, at + skipped, at + length, crc32c_tables if skipped == 21 else crc32_tables, 0)
                if computed != table[column.CRC, row]:
                    break
            row += 1
    if outside:
        raise ValueError("batch lies outside of the buffer")
    return row, computed, count


def check_messages(
    buffer: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    ieee: cython.const[cython.uint][::1],
) -> tuple[int, int, int]:
    """Check the CRCs of the v0 or v1 messages in buffer[start:end], a wrapper's content: (index, stored, computed).

    The index is that of the first mismatch, or -1. Stops without an error at an impossible size, which decoding
    reports.
    """
    at: cython.longlong = start
    size: cython.longlong
    index: cython.Py_ssize_t = 0
    stored: cython.longlong = 0
    computed: cython.longlong = 0
    data: Bytes
    tables: Tables
    if start < 0 or end < 0 or end > len(buffer) or len(ieee) < TABLE_ENTRIES:
        raise ValueError("span outside of the buffer")
    if cython.compiled:
        data = cython.address(buffer[0])
        tables = cython.address(ieee[0])
    else:
        data, tables = memoryview(buffer), memoryview(ieee)
    with cython.nogil:
        while end - at >= 26:
            # Read as unsigned: a negative size is greater than what is left.
            size = load_u32be(data, at + 8)
            if size < 14 or size > end - at - 12:
                break
            stored = load_u32be(data, at + 12)
            computed = crc_of(data, at + 16, at + 12 + size, tables, 0)
            if stored != computed:
                break
            stored = computed = 0
            at += 12 + size
            index += 1
    if stored == computed:
        index = -1
    return index, stored, computed
