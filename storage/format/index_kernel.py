# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which batches get an entry in a segment's indexes: Kafka's sparse arithmetic over a range of batch headers.

Source: LogSegment.append and LogSegment.recover, Kafka 3.9.1 and later; storage/DESIGN.md, "Index files". Cython in
pure-Python mode; the same file runs uncompiled, only slower.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.storage.format import columns as column
else:
    from storage.format import columns as column

# Fields of `state`; storage.append.active_segment has the same numbers.
LARGEST_TIMESTAMP = cython.declare(cython.int, 0)
LARGEST_OFFSET = cython.declare(cython.int, 1)
BYTES_SINCE_ENTRY = cython.declare(cython.int, 2)
LAST_TIME_ENTRY = cython.declare(cython.int, 3)
STATE_FIELDS = cython.declare(cython.int, 4)

MAX_BATCH_BYTES = cython.declare(cython.longlong, 0x7FFFFFFF + 12)  # the greatest length, and what it does not count


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _step(
    size: cython.longlong,
    last_offset: cython.longlong,
    max_timestamp: cython.longlong,
    interval: cython.longlong,
    state: cython.longlong[::1],
) -> cython.int:
    """Update `state` for one batch: 0 no entry, 1 an offset entry, 2 also a time entry (the state's largest)."""
    entries: cython.int = 0
    if max_timestamp > state[LARGEST_TIMESTAMP]:
        state[LARGEST_TIMESTAMP] = max_timestamp
        state[LARGEST_OFFSET] = last_offset
    if state[BYTES_SINCE_ENTRY] > interval:
        entries = 1
        if state[LARGEST_TIMESTAMP] > state[LAST_TIME_ENTRY]:
            entries = 2
            state[LAST_TIME_ENTRY] = state[LARGEST_TIMESTAMP]
        state[BYTES_SINCE_ENTRY] = 0
    state[BYTES_SINCE_ENTRY] += size
    return entries


def index_batch(
    size: cython.longlong,
    last_offset: cython.longlong,
    max_timestamp: cython.longlong,
    interval: cython.longlong,
    state: cython.longlong[::1],
) -> int:
    """Update `state` for one batch, as `index_batches` does. 0: no entry; 1: an offset entry, for its last offset; 2:
    also a time entry, for the state's largest timestamp. IndexError for an impossible size."""
    if not cython.compiled:
        state = memoryview(state)
    if state.shape[0] < STATE_FIELDS:
        raise IndexError("too few fields")
    if size < 0 or size > MAX_BATCH_BYTES:
        raise IndexError("not a batch's size")
    return _step(size, last_offset, max_timestamp, interval, state)


def index_batches(
    table: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    interval: cython.longlong,
    state: cython.longlong[::1],
    offset_entries: cython.longlong[:, ::1],
    time_entries: cython.longlong[:, ::1],
) -> tuple[int, int]:
    """Update `state` for the rows `first` to `last` (excluded) of a BatchTable's data.

    Entries go into the columns of `offset_entries` (rows: offset, position) and `time_entries` (rows: timestamp,
    offset); the numbers of both are returned. Each needs room for `last - first` columns. IndexError otherwise.
    """
    offsets: cython.Py_ssize_t = 0
    times: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    entries: cython.int
    if not cython.compiled:
        table, state = memoryview(table), memoryview(state)
        offset_entries, time_entries = memoryview(offset_entries), memoryview(time_entries)
    if first < 0 or last < first or last > table.shape[1] or table.shape[0] <= column.MAX_TIMESTAMP:
        raise IndexError("rows outside of the table")
    if offset_entries.shape[0] < 2 or time_entries.shape[0] < 2 or state.shape[0] < STATE_FIELDS:
        raise IndexError("too few fields")
    if offset_entries.shape[1] < last - first or time_entries.shape[1] < last - first:
        raise IndexError("too little room for entries")
    with cython.nogil:
        for row in range(first, last):
            entries = _step(
                table[column.SIZE, row],
                table[column.LAST_OFFSET, row],
                table[column.MAX_TIMESTAMP, row],
                interval,
                state,
            )
            if entries > 0:
                offset_entries[0, offsets] = table[column.LAST_OFFSET, row]
                offset_entries[1, offsets] = table[column.POSITION, row]
                offsets += 1
            if entries > 1:
                time_entries[0, times] = state[LARGEST_TIMESTAMP]
                time_entries[1, times] = state[LARGEST_OFFSET]
                times += 1
    return offsets, times
