# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decompresses many batches in one call, without the GIL, through the codec libraries' C functions.

It stops at the first batch that is unusual in any way (another codec, an old format, an error, no room). Decoder then
decompresses that one by the general way, which knows every rule and raises every error. So only speed depends on this
kernel. Uncompiled it does nothing.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.storage.format import columns as column
else:
    from typing import Any

    from storage.format import columns as column

    # Declared in inflate_kernel.pxd.
    zstd_decompress_t: Any = None
    lz4_decompress_t: Any = None
    lz4_reset_t: Any = None

# A byte buffer: a C pointer when compiled, a memoryview of bytes when not.
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))

V2_SIZE = cython.declare(cython.longlong, 61)  # a batch header of format v2
CODEC_MASK = cython.declare(cython.longlong, 0x07)
LZ4 = cython.declare(cython.longlong, 3)
ZSTD = cython.declare(cython.longlong, 4)

# Entries of `library`; codec_library.py has the same order.
ZSTD_DECOMPRESS = cython.declare(cython.int, 0)
ZSTD_CONTEXT = cython.declare(cython.int, 1)
LZ4_DECOMPRESS = cython.declare(cython.int, 2)
LZ4_RESET = cython.declare(cython.int, 3)
LZ4_CONTEXT = cython.declare(cython.int, 4)
LZ4_OPTIONS = cython.declare(cython.int, 5)
LIBRARY_ENTRIES = cython.declare(cython.int, 6)

# The frame header that all Kafka clients write: version 1, independent blocks, no checksums, no content size. The
# library verifies the rest of it. For other frames Kafka has rules of its own (compression.py).
LZ4_HEADER_SIZE = cython.declare(cython.longlong, 7)
LZ4_FLAGS = cython.declare(cython.uchar, 0x60)
# The window size (128 MiB), in the frame's own notation, above which a stream reader refuses a frame.
ZSTD_MAGIC_SIZE = cython.declare(cython.longlong, 4)
ZSTD_SINGLE_SEGMENT = cython.declare(cython.uchar, 0x20)
ZSTD_GREATEST_WINDOW = cython.declare(cython.uchar, (27 - 10) << 3)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_plain_lz4(source: Bytes, size: cython.longlong) -> cython.bint:
    if size < LZ4_HEADER_SIZE:
        return False
    return (
        source[0] == 0x04 and source[1] == 0x22 and source[2] == 0x4D and source[3] == 0x18 and source[4] == LZ4_FLAGS
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_plain_zstd(source: Bytes, size: cython.longlong) -> cython.bint:
    if size < ZSTD_MAGIC_SIZE + 2:
        return False
    return (source[ZSTD_MAGIC_SIZE] & ZSTD_SINGLE_SEGMENT) != 0 or source[ZSTD_MAGIC_SIZE + 1] <= ZSTD_GREATEST_WINDOW


def inflate(
    buffer: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    origin: cython.longlong,
    chosen: cython.const[cython.longlong][::1],
    index: cython.Py_ssize_t,
    arena: cython.uchar[::1],
    used: cython.longlong,
    block_bytes: cython.longlong,
    max_bytes: cython.longlong,
    starts: cython.longlong[::1],
    ends: cython.longlong[::1],
    library: cython.const[cython.longlong][::1],
) -> tuple[int, int]:
    """Decompress the batches `chosen[index:]` (rows counted from `first_row`) into arena[used:]: (next index, used).

    `starts` and `ends`, by row from `first_row`, get each batch's place in the arena. Stops where the caller has to
    continue: at a batch that is not lz4 or zstd in format v2, or that does not fit into the rest of the arena or into
    `max_bytes`, or when `block_bytes` are used. `library`: addresses, 0 for missing functions (codec_library.py).
    ValueError: a row lies outside of `table`, or there is no room for it in `starts` and `ends`.
    """
    size: cython.longlong = len(buffer)
    count: cython.Py_ssize_t = len(chosen)
    row: cython.longlong
    at: cython.longlong
    length: cython.longlong
    codec: cython.longlong
    room: cython.longlong
    written: cython.size_t
    read: cython.size_t
    outside: cython.bint = False
    data: Bytes
    if not cython.compiled:
        return index, used
    if index < 0 or index > count or first_row < 0 or table.shape[0] <= column.ATTRIBUTES or origin < 0 or used < 0:
        raise ValueError("rows outside of the table")
    if len(library) < LIBRARY_ENTRIES:
        raise ValueError("addresses are missing")
    if index == count or size == 0 or len(arena) <= used:
        return index, used
    data = cython.address(buffer[0])
    zstd_decompress: zstd_decompress_t = cython.cast(
        zstd_decompress_t,
        cython.cast(cython.size_t, library[ZSTD_DECOMPRESS]),
    )
    lz4_decompress: lz4_decompress_t = cython.cast(
        lz4_decompress_t,
        cython.cast(cython.size_t, library[LZ4_DECOMPRESS]),
    )
    lz4_reset: lz4_reset_t = cython.cast(lz4_reset_t, cython.cast(cython.size_t, library[LZ4_RESET]))
    zstd_context: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, library[ZSTD_CONTEXT]))
    lz4_context: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, library[LZ4_CONTEXT]))
    lz4_options: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, library[LZ4_OPTIONS]))
    with cython.nogil:
        while index < count and used < block_bytes:
            row = chosen[index]
            if row < 0 or row >= table.shape[1] - first_row or row >= starts.shape[0] or row >= ends.shape[0]:
                outside = True
                break
            at = table[column.POSITION, first_row + row]
            length = table[column.SIZE, first_row + row]
            if at < origin or at - origin > size or length <= V2_SIZE or length > size - (at - origin):
                break
            if table[column.MAGIC, first_row + row] != 2:
                break
            at += V2_SIZE - origin
            length -= V2_SIZE
            room = arena.shape[0] - used
            if room > max_bytes:
                room = max_bytes
            if room <= 0:
                break
            codec = table[column.ATTRIBUTES, first_row + row] & CODEC_MASK
            if codec == ZSTD and zstd_context != cython.NULL and _is_plain_zstd(data + at, length):
                written = zstd_decompress(zstd_context, cython.address(arena[used]), room, data + at, length)
                if written > cython.cast(cython.size_t, room):  # an error code
                    break
            elif codec == LZ4 and lz4_context != cython.NULL and _is_plain_lz4(data + at, length):
                written = room
                read = length
                if (
                    lz4_decompress(
                        lz4_context,
                        cython.address(arena[used]),
                        cython.address(written),
                        data + at,
                        cython.address(read),
                        lz4_options,
                    )
                    != 0
                ):  # an error code, or the number of bytes that it still expects
                    lz4_reset(lz4_context)
                    break
            else:
                break
            starts[row] = used
            used += written
            ends[row] = used
            index += 1
    if outside:
        raise ValueError("rows outside of the table")
    return index, used
