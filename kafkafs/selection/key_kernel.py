# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which records have a key, and which stretches of a log may hold one: Bloom filters over hashes of keys.

A hash is a key's 64 bits of SipHash, or 1 where these are 0: in a table of hashes 0 is a free slot. A filter is a
number of 64-bit words; a hash sets 7 bits of it, the best number at 10 bits a key, at places that its two halves give
(Kirsch and Mitzenmacher, "Less hashing, same performance": double hashing costs no precision worth mentioning). 0.8 %
of other keys pass such a filter. The 7 is a literal in loops, so that the compiler unrolls them.

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower.
"""

from __future__ import annotations

import cython

_LOW = cython.declare(cython.ulonglong, 0xFFFFFFFF)  # declared, since as a literal it is a Python object to Cython
_MOST_BITS = cython.declare(cython.ulonglong, 0x80000000)  # so that a place times the bits fits 64 bits


def is_compiled() -> bool:
    """True for the built kernel, False when this file runs as plain Python."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _place(hash_: cython.ulonglong, probe: cython.int, bits: cython.ulonglong) -> cython.ulonglong:
    """The bit, below `bits`, that a hash's probe sets."""
    low: cython.ulonglong = hash_ & _LOW
    step: cython.ulonglong = (hash_ >> 32) | 1
    return (((low + step * cython.cast(cython.ulonglong, probe)) & _LOW) * bits) >> 32


def rows_with_key(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    key: cython.const[cython.uchar][::1],
    rows: cython.longlong[::1],
) -> int:
    """Put the rows whose key (at `starts`, `lengths` bytes; negative: null) is `key` into `rows`; returns how many.

    IndexError when there is less room than keys; ValueError for a key outside the buffer.
    """
    count: cython.Py_ssize_t = len(starts)
    size: cython.longlong = len(buffer)
    wanted: cython.longlong = len(key)
    found: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    start: cython.longlong
    index: cython.longlong
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths, key, rows = (memoryview(each) for each in (buffer, starts, lengths, key, rows))
    if len(lengths) < count or len(rows) < count:
        raise IndexError("fewer lengths or rows than keys")
    with cython.nogil:
        for row in range(count):
            if lengths[row] != wanted:
                continue
            start = starts[row]
            if start < 0 or wanted > size or start > size - wanted:
                bad = True
                break
            index = 0
            # From the end: keys that begin alike are more common than keys that end alike.
            while index < wanted and buffer[start + wanted - 1 - index] == key[wanted - 1 - index]:
                index += 1
            if index == wanted:
                rows[found] = row
                found += 1
    if bad:
        raise ValueError("a key lies outside the buffer")
    return found


def distinct(
    hashes: cython.const[cython.ulonglong][:, ::1],
    lengths: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    table: cython.ulonglong[::1],
    found: cython.ulonglong[:, ::1],
    count: cython.Py_ssize_t,
) -> int:
    """Add the hashes (first column) of rows [first, last) to a set; rows of negative length (null keys) are left out.

    `table` has a power of two of slots, and holds the `count` hashes that are in the set. A new hash is put there, and
    with its row behind the others into `found`. Returns how many are in the set then. IndexError when the table would
    be more than half full or there are fewer columns or rows.
    """
    slots: cython.ulonglong = len(table)
    row: cython.Py_ssize_t
    slot: cython.ulonglong
    value: cython.ulonglong
    if not cython.compiled:
        hashes, lengths = memoryview(hashes), memoryview(lengths)
        table, found = memoryview(table), memoryview(found)
    if first < 0 or last < first or count < 0 or hashes.shape[0] < last or hashes.shape[1] < 1 or len(lengths) < last:
        raise IndexError("rows outside of the columns")
    if found.shape[1] < 2 or found.shape[0] < last - first or count > found.shape[0] - (last - first):
        raise IndexError("no room for that many hashes")
    if slots == 0 or slots & (slots - 1) or cython.cast(cython.ulonglong, count + (last - first)) > slots // 2:
        raise IndexError("the table is too small, or not a power of two")
    with cython.nogil:
        for row in range(first, last):
            if lengths[row] < 0:
                continue
            value = hashes[row, 0]
            if value == 0:
                value = 1
            slot = value & (slots - 1)
            while table[slot] != 0 and table[slot] != value:
                slot = (slot + 1) & (slots - 1)
            if table[slot] == 0:
                table[slot] = value
                found[count, 0] = value
                found[count, 1] = row
                count += 1
    return count


def fill(found: cython.const[cython.ulonglong][:, ::1], count: cython.Py_ssize_t, words: cython.ulonglong[::1]) -> None:
    """Set the bits of the first `count` hashes in the filter `words`. IndexError without room, or with too much."""
    bits: cython.ulonglong = cython.cast(cython.ulonglong, len(words)) * 64
    index: cython.Py_ssize_t
    probe: cython.int
    place: cython.ulonglong
    if not cython.compiled:
        found, words = memoryview(found), memoryview(words)
    if count < 0 or found.shape[0] < count or found.shape[1] < 1:
        raise IndexError("fewer hashes than that")
    if bits > _MOST_BITS or (bits == 0 and count > 0):
        raise IndexError("a filter without words, or of more than 2^31 bits")
    with cython.nogil:
        for index in range(count):
            for probe in range(7):
                place = _place(found[index, 0], probe, bits)
                words[place >> 6] |= cython.cast(cython.ulonglong, 1) << (place & 63)


def probe(
    words: cython.const[cython.ulonglong][::1],
    firsts: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    hash_: cython.ulonglong,
    marks: cython.uchar[::1],
) -> None:
    """For each filter, `sizes` words from `firsts` on: whether the key of this hash may be in it, 1 or 0 in `marks`.

    No words: there is no key, so 0. A negative size, or words that are not all there: 1. IndexError for fewer sizes or
    marks than filters.
    """
    count: cython.Py_ssize_t = len(firsts)
    room: cython.longlong = len(words)
    row: cython.Py_ssize_t
    number: cython.int
    place: cython.ulonglong
    bits: cython.ulonglong
    if not cython.compiled:
        words, firsts = memoryview(words), memoryview(firsts)
        sizes, marks = memoryview(sizes), memoryview(marks)
    if len(sizes) < count or len(marks) < count:
        raise IndexError("fewer sizes or marks than filters")
    if hash_ == 0:
        hash_ = 1
    with cython.nogil:
        for row in range(count):
            if sizes[row] == 0:
                marks[row] = 0
                continue
            marks[row] = 1
            if sizes[row] < 0 or firsts[row] < 0 or sizes[row] > room or firsts[row] > room - sizes[row]:
                continue
            bits = cython.cast(cython.ulonglong, sizes[row]) * 64
            if bits > _MOST_BITS:
                continue
            for number in range(7):
                place = _place(hash_, number, bits)
                if not (words[firsts[row] + cython.cast(cython.longlong, place >> 6)] >> (place & 63)) & 1:
                    marks[row] = 0
                    break
