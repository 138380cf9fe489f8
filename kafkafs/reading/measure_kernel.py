"""What the view index needs from batches: sums over their records, and where to split them into pieces.

Cython in pure-Python mode; the same file runs uncompiled, only slower.
"""

from __future__ import annotations

import cython

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True


# Rows of `totals`; by batch.
SIZE = cython.declare(cython.int, 0)  # rendered bytes
RECORDS = cython.declare(cython.int, 1)
LEAST = cython.declare(cython.int, 2)  # timestamps
GREATEST = cython.declare(cython.int, 3)

# Rows of a BatchTable that are copied; storage.format.batches.Column has the same numbers.
TABLE_POSITION = cython.declare(cython.int, 0)
TABLE_SIZE = cython.declare(cython.int, 1)
TABLE_BASE_OFFSET = cython.declare(cython.int, 2)
TABLE_CRC = cython.declare(cython.int, 13)

# Fields of a piece; kafkafs.reading.pieces.Piece has the same order.
PIECE_END = cython.declare(cython.int, 0)
PIECE_SIZE = cython.declare(cython.int, 1)
PIECE_POSITION = cython.declare(cython.int, 2)
PIECE_FILE_END = cython.declare(cython.int, 3)
PIECE_SKIP = cython.declare(cython.int, 4)
PIECE_BASE_OFFSET = cython.declare(cython.int, 5)
PIECE_CRC = cython.declare(cython.int, 6)
PIECE_LEAST = cython.declare(cython.int, 7)
PIECE_GREATEST = cython.declare(cython.int, 8)
PIECE_RECORDS = cython.declare(cython.int, 9)
PIECE_FIELDS = cython.declare(cython.int, 10)

NO_LEAST = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
NO_GREATEST = cython.declare(cython.longlong, -0x7FFFFFFFFFFFFFFF)


def clear_totals(totals: cython.longlong[:, ::1], rows: cython.Py_ssize_t) -> None:
    """Set the totals of `rows` batches to those of no records."""
    row: cython.Py_ssize_t
    if not cython.compiled:
        totals = memoryview(totals)
    if totals.shape[0] < 4 or totals.shape[1] < rows:
        raise IndexError("no room for that many batches")
    with cython.nogil:
        for row in range(rows):
            totals[SIZE, row] = 0
            totals[RECORDS, row] = 0
            totals[LEAST, row] = NO_LEAST
            totals[GREATEST, row] = NO_GREATEST


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add(
    totals: cython.longlong[:, ::1],
    row: cython.longlong,
    size: cython.longlong,
    records: cython.longlong,
    least: cython.longlong,
    greatest: cython.longlong,
    largest: cython.longlong,
) -> cython.longlong:
    """Add to the totals of one batch; returns the larger of `largest` and its rendered bytes."""
    totals[SIZE, row] += size
    totals[RECORDS, row] += records
    if least < totals[LEAST, row]:
        totals[LEAST, row] = least
    if greatest > totals[GREATEST, row]:
        totals[GREATEST, row] = greatest
    return totals[SIZE, row] if totals[SIZE, row] > largest else largest


def add_records(
    batch: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    timestamps: cython.const[cython.longlong][::1],
    wanted: cython.const[cython.uchar][::1],
    totals: cython.longlong[:, ::1],
    rows: cython.Py_ssize_t,
) -> int:
    """Add records to the totals of their batches; returns the rendered bytes of the largest of these batches.

    `batch`, `sizes`, `timestamps` are by record; so is `wanted` (0: leave the record out), or it is empty. IndexError
    for a record of a batch outside of `rows`: the totals are then invalid.
    """
    count: cython.Py_ssize_t = len(batch)
    masked: cython.bint = len(wanted) > 0
    bad: cython.bint = False
    largest: cython.longlong = 0
    index: cython.Py_ssize_t
    row: cython.longlong = -1
    size: cython.longlong = 0
    records: cython.longlong = 0
    least: cython.longlong = NO_LEAST
    greatest: cython.longlong = NO_GREATEST
    timestamp: cython.longlong
    if not cython.compiled:
        batch, sizes = memoryview(batch), memoryview(sizes)
        timestamps, wanted, totals = memoryview(timestamps), memoryview(wanted), memoryview(totals)
    if len(sizes) < count or len(timestamps) < count or (masked and len(wanted) < count):
        raise IndexError("fewer sizes, timestamps or marks than records")
    if totals.shape[0] < 4 or totals.shape[1] < rows:
        raise IndexError("no room for that many batches")
    with cython.nogil:
        # Records of one batch are adjacent: they are summed here, and added to its totals at the batch's end.
        for index in range(count):
            if index == 0 or batch[index] != row:
                if row >= 0:
                    largest = _add(totals, row, size, records, least, greatest, largest)
                row = batch[index]
                if row < 0 or row >= rows:
                    bad = True
                    break
                size, records, least, greatest = 0, 0, NO_LEAST, NO_GREATEST
            if masked and wanted[index] == 0:
                continue
            size += sizes[index]
            records += 1
            timestamp = timestamps[index]
            if timestamp < least:
                least = timestamp
            if timestamp > greatest:
                greatest = timestamp
        if not bad and row >= 0:
            largest = _add(totals, row, size, records, least, greatest, largest)
    if bad:
        raise IndexError("a record of a batch outside of the table")
    return largest


def cut(
    table: cython.const[cython.longlong][:, :],
    totals: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    piece_bytes: cython.longlong,
    pieces: cython.longlong[:, ::1],
) -> int:
    """Cut the batches in rows [first, last) into pieces of about equal size, none much above `piece_bytes` rendered.

    Each becomes a row of `pieces`; PIECE_END and PIECE_SKIP are not changed. Returns the number of pieces; batches that
    render to nothing are left out. IndexError when there are more pieces than rows.
    """
    room: cython.Py_ssize_t = pieces.shape[0]
    count: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    total: cython.longlong = 0
    done: cython.longlong = 0
    parts: cython.longlong
    part: cython.longlong = 1
    is_open: cython.bint = False
    full: cython.bint = False
    if not cython.compiled:
        table, totals, pieces = memoryview(table), memoryview(totals), memoryview(pieces)
    if first < 0 or last > table.shape[1] or last > totals.shape[1] or table.shape[0] <= TABLE_CRC or piece_bytes <= 0:
        raise IndexError("rows outside of the table")
    if totals.shape[0] < 4 or pieces.shape[1] < PIECE_FIELDS:
        raise IndexError("columns are missing")
    with cython.nogil:
        for row in range(first, last):
            total += totals[SIZE, row]
        parts = (total + piece_bytes - 1) // piece_bytes
        for row in range(first, last):
            if totals[SIZE, row] == 0:
                continue
            if not is_open:
                if count >= room:
                    full = True
                    break
                is_open = True
                pieces[count, PIECE_SIZE] = 0
                pieces[count, PIECE_POSITION] = table[TABLE_POSITION, row]
                pieces[count, PIECE_BASE_OFFSET] = table[TABLE_BASE_OFFSET, row]
                pieces[count, PIECE_CRC] = table[TABLE_CRC, row]
                pieces[count, PIECE_LEAST] = NO_LEAST
                pieces[count, PIECE_GREATEST] = NO_GREATEST
                pieces[count, PIECE_RECORDS] = 0
            pieces[count, PIECE_SIZE] += totals[SIZE, row]
            pieces[count, PIECE_RECORDS] += totals[RECORDS, row]
            pieces[count, PIECE_FILE_END] = table[TABLE_POSITION, row] + table[TABLE_SIZE, row]
            if totals[LEAST, row] < pieces[count, PIECE_LEAST]:
                pieces[count, PIECE_LEAST] = totals[LEAST, row]
            if totals[GREATEST, row] > pieces[count, PIECE_GREATEST]:
                pieces[count, PIECE_GREATEST] = totals[GREATEST, row]
            done += totals[SIZE, row]
            if done * parts >= part * total:
                # The piece ends with this batch; the next one begins with the next batch.
                is_open = False
                count += 1
                part = done * parts // total + 1
        if is_open:
            count += 1
    if full:
        raise IndexError("more pieces than lines")
    return count
