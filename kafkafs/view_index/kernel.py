# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the view index has to know of each batch, summed over its records in one pass.

Cython in pure-Python mode; the same file runs uncompiled, only slower.
"""

from __future__ import annotations

import cython


def is_compiled() -> bool:
    """True for the built kernel, False when this file runs as plain Python."""
    return bool(cython.compiled)


def batch_totals(
    batch: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    timestamps: cython.const[cython.longlong][::1],
    wanted: cython.const[cython.uchar][::1],
    size: cython.longlong[::1],
    records: cython.longlong[::1],
    least: cython.longlong[::1],
    greatest: cython.longlong[::1],
) -> None:
    """Add each record to the row of its batch in the last four columns: rendered bytes, count, extremes of timestamps.

    `batch`, `sizes`, `timestamps` are by record; `wanted` too (0: leave the record out), or empty for all. IndexError
    for a row outside of the columns, which then hold nothing of use.
    """
    count: cython.Py_ssize_t = len(batch)
    rows: cython.Py_ssize_t = len(size)
    masked: cython.bint = len(wanted) > 0
    bad: cython.bint = False
    index: cython.Py_ssize_t
    row: cython.longlong
    if not cython.compiled:
        batch, sizes = memoryview(batch), memoryview(sizes)
        timestamps, wanted = memoryview(timestamps), memoryview(wanted)
        size, records, least, greatest = memoryview(size), memoryview(records), memoryview(least), memoryview(greatest)
    if len(sizes) < count or len(timestamps) < count or (masked and len(wanted) < count):
        raise IndexError("fewer sizes, timestamps or marks than records")
    if len(records) < rows or len(least) < rows or len(greatest) < rows:
        raise IndexError("columns of different lengths")
    with cython.nogil:
        for index in range(count):
            row = batch[index]
            if row < 0 or row >= rows:
                bad = True
                break
            if masked and wanted[index] == 0:
                continue
            size[row] += sizes[index]
            records[row] += 1
            if timestamps[index] < least[row]:
                least[row] = timestamps[index]
            if timestamps[index] > greatest[row]:
                greatest[row] = timestamps[index]
    if bad:
        raise IndexError("a record of a batch outside of the table")
