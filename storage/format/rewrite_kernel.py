# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hot loop of rewriting batches, Cython in pure-Python mode: batches of which some records stay, as new batches.

Batches that stay whole are copied; of uncompressed ones the records that stay are written anew, their keys, values and
headers in one piece each. Checksums are left to the caller. Every start and length is checked before it is used, and
nothing here allocates or raises in a loop. Source: `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

# What is to be done with a batch.
DROP = 0
COPY = 1  # byte for byte
REWRITE = 2  # the records that stay
EMPTY = 3  # the header alone
OUTSIDE = 4  # by the caller

_COPY = cython.declare(cython.int, 1)
_REWRITE = cython.declare(cython.int, 2)
_EMPTY = cython.declare(cython.int, 3)
_OUTSIDE = cython.declare(cython.int, 4)

# Why `rewrite` stopped.
DONE = 0
FULL = 1  # the next batch does not fit into `out`
BAD_COLUMN = 2  # a start or length points outside of its buffer, or a number does not fit its field
_DONE = cython.declare(cython.int, 0)
_FULL = cython.declare(cython.int, 1)
_BAD_COLUMN = cython.declare(cython.int, 2)

# What `rewrite` puts into its `result`: the next row, the next record, the position in `out`, the number of `spans`.
RESULTS = 4

_HEADER = cython.declare(cython.longlong, 61)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)

# Rows of BatchTable.data.
_POSITION = cython.declare(cython.int, 0)
_SIZE = cython.declare(cython.int, 1)
_BASE_OFFSET = cython.declare(cython.int, 2)
_LAST_OFFSET = cython.declare(cython.int, 3)
_ATTRIBUTES = cython.declare(cython.int, 6)
_MAX_TIMESTAMP = cython.declare(cython.int, 8)
_PRODUCER_ID = cython.declare(cython.int, 9)
_PRODUCER_EPOCH = cython.declare(cython.int, 10)
_BASE_SEQUENCE = cython.declare(cython.int, 11)
_LEADER_EPOCH = cython.declare(cython.int, 12)

_APPEND_TIME_BIT = cython.declare(cython.longlong, 0x08)
_KEPT_BITS = cython.declare(cython.longlong, 0x38)  # timestamp type, transactional, control
_HORIZON_BIT = cython.declare(cython.longlong, 0x40)


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


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
def _zigzag(value: cython.ulonglong) -> cython.ulonglong:
    return (value << 1) ^ (0 - (value >> 63)) if cython.compiled else ((value << 1) ^ -(value >> 63)) & (2**64 - 1)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _difference(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
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
def _put_varint(out: cython.uchar[::1], position: cython.longlong, value: cython.ulonglong) -> cython.longlong:
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
def _put_number(
    out: cython.uchar[::1], position: cython.longlong, value: cython.longlong, size: cython.int
) -> cython.longlong:
    """The lower `size` bytes of a number, the highest first."""
    bits: cython.ulonglong = _bits(value)
    index: cython.int
    for index in range(size):
        out[position + size - 1 - index] = cython.cast(cython.uchar, bits & 0xFF)
        bits = bits >> 8
    return position + size


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _copy(
    out: cython.uchar[::1],
    position: cython.longlong,
    buffer: cython.const[cython.uchar][::1],
    start: cython.longlong,
    length: cython.longlong,
) -> cython.longlong:
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(out[position]), cython.address(buffer[start]), length)
        else:
            out[position : position + length] = buffer[start : start + length]
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_header(
    out: cython.uchar[::1],
    start: cython.longlong,
    end: cython.longlong,
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    attributes: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    count: cython.longlong,
) -> cython.longlong:
    """Writes a header whose checksum is 0: the position behind it."""
    _put_number(out, start, table[_BASE_OFFSET, row], 8)
    _put_number(out, start + 8, end - start - 12, 4)
    _put_number(out, start + 12, table[_LEADER_EPOCH, row], 4)
    out[start + 16] = 2
    _put_number(out, start + 17, 0, 4)  # the checksum, by the caller
    _put_number(out, start + 21, attributes, 2)
    _put_number(out, start + 23, table[_LAST_OFFSET, row] - table[_BASE_OFFSET, row], 4)
    _put_number(out, start + 27, base_timestamp, 8)
    _put_number(out, start + 35, max_timestamp, 8)
    _put_number(out, start + 43, table[_PRODUCER_ID, row], 8)
    _put_number(out, start + 51, table[_PRODUCER_EPOCH, row], 2)
    _put_number(out, start + 53, table[_BASE_SEQUENCE, row], 4)
    return _put_number(out, start + 57, count, 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_record(
    source: cython.const[cython.uchar][::1],
    key_start: cython.longlong,
    key_length: cython.longlong,
    end: cython.longlong,
    timestamp_delta: cython.ulonglong,
    offset_delta: cython.longlong,
    out: cython.uchar[::1],
    position: cython.longlong,
) -> cython.longlong:
    """Writes one record: the position behind it, -1 where it does not fit, -2 for numbers that cannot be."""
    delta: cython.ulonglong = _zigzag(_bits(offset_delta))
    key: cython.ulonglong = _zigzag(_bits(key_length))
    length: cython.longlong
    body: cython.longlong
    if key_start < 0 or end < key_start or end > len(source):
        return -2
    length = end - key_start
    if key_length < -1 or key_length > length:
        return -2
    if offset_delta < -_INT32_MAX - 1 or offset_delta > _INT32_MAX:
        return -2
    body = 1 + _varint_size(timestamp_delta) + _varint_size(delta) + _varint_size(key) + length
    if body > _INT32_MAX:
        return -2
    if body + _varint_size(_zigzag(_bits(body))) > len(out) - position:
        return -1
    position = _put_varint(out, position, _zigzag(_bits(body)))
    out[position] = 0
    position = _put_varint(out, position + 1, timestamp_delta)
    position = _put_varint(out, position, delta)
    position = _put_varint(out, position, key)
    return _copy(out, position, source, key_start, length)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rewrite(
    window: cython.const[cython.uchar][::1],
    origin: cython.longlong,
    table: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    horizons: cython.const[cython.longlong][::1],
    source: cython.const[cython.uchar][::1],
    offset: cython.const[cython.longlong][::1],
    timestamp: cython.const[cython.longlong][::1],
    key_start: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    batch: cython.const[cython.longlong][::1],
    keep: cython.const[cython.uchar][::1],
    record: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: cython.longlong,
    spans: cython.longlong[::1],
    result: cython.longlong[::1],
) -> cython.int:
    records: cython.Py_ssize_t = len(offset)
    limit: cython.longlong = len(out)
    status: cython.int = _DONE
    written: cython.longlong = 0
    action: cython.int
    start: cython.longlong
    size: cython.longlong
    begin: cython.Py_ssize_t
    at: cython.longlong
    base: cython.longlong
    greatest: cython.longlong
    count: cython.longlong
    attributes: cython.longlong
    while row < last_row:
        action = actions[row]
        if action == _OUTSIDE:
            break
        begin = record
        if action in (_COPY, _REWRITE, _EMPTY) and (
            table[_POSITION, row] < origin or table[_BASE_OFFSET, row] < 0 or table[_LAST_OFFSET, row] < 0
        ):
            status = _BAD_COLUMN
            break
        attributes = table[_ATTRIBUTES, row] & _KEPT_BITS
        if action == _COPY:
            start = table[_POSITION, row] - origin
            size = table[_SIZE, row]
            if size < 0 or size > len(window) or start > len(window) - size:
                status = _BAD_COLUMN
                break
            if size > limit - position:
                status = _FULL
                break
            position = _copy(out, position, window, start, size)
        elif action == _EMPTY:
            if limit - position < _HEADER:
                status = _FULL
                break
            _put_header(out, position, position + _HEADER, table, row, attributes, -1, table[_MAX_TIMESTAMP, row], 0)
            spans[2 * written] = position
            position += _HEADER
            spans[2 * written + 1] = position
            written += 1
        elif action == _REWRITE:
            at = position + _HEADER
            base = horizons[row]
            greatest = -1
            count = 0
            if at > limit:
                status = _FULL
                break
            while record < records and batch[record] <= row:
                if batch[record] == row and keep[record]:
                    if offset[record] < 0:
                        at = -2
                        break
                    if count == 0 and base < 0:
                        base = timestamp[record]
                    if timestamp[record] > greatest:
                        greatest = timestamp[record]
                    at = _put_record(
                        source,
                        key_start[record],
                        key_length[record],
                        ends[record],
                        _zigzag(_difference(_bits(timestamp[record]), _bits(base))),
                        offset[record] - table[_BASE_OFFSET, row],
                        out,
                        at,
                    )
                    if at < 0:
                        break
                    count += 1
                record += 1
            if at < 0 or at - position > _INT32_MAX:
                status = _FULL if at == -1 else _BAD_COLUMN
                record = begin
                break
            if attributes & _APPEND_TIME_BIT:
                greatest = table[_MAX_TIMESTAMP, row]
            if horizons[row] >= 0:
                attributes |= _HORIZON_BIT
            _put_header(out, position, at, table, row, attributes, base, greatest, count)
            spans[2 * written] = position
            spans[2 * written + 1] = at
            written += 1
            position = at
        while record < records and batch[record] <= row:
            record += 1
        row += 1
    result[0] = row
    result[1] = record
    result[2] = position
    result[3] = written
    return status


def rewrite(
    window: cython.const[cython.uchar][::1],
    origin: cython.longlong,
    table: cython.const[cython.longlong][:, ::1],
    first_row: cython.Py_ssize_t,
    last_row: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    horizons: cython.const[cython.longlong][::1],
    source: cython.const[cython.uchar][::1],
    offset: cython.const[cython.longlong][::1],
    timestamp: cython.const[cython.longlong][::1],
    key_start: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    batch: cython.const[cython.longlong][::1],
    keep: cython.const[cython.uchar][::1],
    record: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: cython.longlong,
    spans: cython.longlong[::1],
    result: cython.longlong[::1],
) -> int:
    """Does with the rows [first_row, last_row) of `table` (BatchTable.data) what `actions` say; into `out`.

    `window`: the batches' bytes, the first of them at the file position `origin`. `source`: the uncompressed v2
    records of the block's columns, each with its key's start and the record's end, ascending by `batch`, from the
    record number `record` on. `horizons`: a batch's delete horizon in epoch ms, -1 none. `spans`: where in `out`
    batches begin and end that need their checksum, in pairs. Stops at a row for the caller, and where `out` is full;
    fills `result`. ValueError for columns that do not fit each other.
    """
    status: cython.int
    records: cython.Py_ssize_t = len(offset)
    if not cython.compiled:
        window, table, actions, horizons = (memoryview(array) for array in (window, table, actions, horizons))
        source, offset, timestamp, key_start = (memoryview(a) for a in (source, offset, timestamp, key_start))
        key_length, ends, batch, keep = (memoryview(array) for array in (key_length, ends, batch, keep))
        out, spans, result = (memoryview(array) for array in (out, spans, result))
    if (
        first_row < 0
        or last_row < first_row
        or origin < 0
        or table.shape[0] < 14
        or table.shape[1] < last_row
        or len(actions) < last_row
        or len(horizons) < last_row
        or len(spans) < 2 * (last_row - first_row)
        or len(result) < RESULTS
        or len(timestamp) < records
        or len(key_start) < records
        or len(key_length) < records
        or len(ends) < records
        or len(batch) < records
        or len(keep) < records
        or record < 0
        or position < 0
        or position > len(out)
    ):
        raise ValueError("columns do not fit each other")
    with cython.nogil:
        status = _rewrite(
            window, origin, table, first_row, last_row, actions, horizons, source, offset, timestamp, key_start,
            key_length, ends, batch, keep, record, out, position, spans, result,
        )  # fmt: skip
    return status
