# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loops of rendering: columns of a RecordBlock to bytes, and how many bytes that will be.

Cython in pure-Python mode; the same file runs uncompiled with equal results, some hundred times slower. Each start and
length is checked against the buffer before it is used, each write against the space left in `out`.

A format is a program: operations with a literal before each, run for every record (`program.py` builds them). The same
functions measure and write: `write` is a constant at each outer call, so the compiler makes two of each. A record is
measured before it is written only near the end of `out`, where its worst case (six bytes for each) may not fit.

A single long module, because compiled code of another module could not be inlined.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

# C pointers when compiled; memoryviews of bytes and int64 when not.
Long = cython.typedef(cython.longlong)
Bool = cython.typedef(cython.bint)
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Out = cython.typedef(cython.pointer(cython.uchar))
Longs = cython.typedef(cython.pointer(cython.const[cython.longlong]))
Text = cython.typedef(cython.pointer(cython.const[cython.char]))

# Returned instead of a position: a column or a header points outside the buffer; the worst case does not fit.
_OUTSIDE = cython.declare(cython.longlong, -1)
_TIGHT = cython.declare(cython.longlong, -2)
_NOT_UTF8 = cython.declare(cython.longlong, -3)
_UINT32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_NO_LIMIT = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
# More bytes than are written between two checks.
_SPARE = cython.declare(cython.longlong, 64)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _outside(start: Long, length: Long, size: Long) -> Bool:
    """Whether `length` bytes (below 0: null) at `start` are not all within a buffer of `size` bytes."""
    return length > 0 and (start < 0 or length > size or start > size - length)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put(out: Out, position: Long, text: Text, length: Long, write: Bool) -> Long:
    """A constant of `length` bytes."""
    if write:
        if cython.compiled:
            memcpy(out + position, text, length)
        else:
            out[position : position + length] = text
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy(out: Out, position: Long, text: Bytes, start: Long, length: Long, write: Bool) -> Long:
    if length <= 0:
        return position
    if write:
        if cython.compiled:
            memcpy(out + position, text + start, length)
        else:
            out[position : position + length] = text[start : start + length]
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _magnitude(value: Long) -> cython.ulonglong:
    if not cython.compiled:
        return abs(value)
    bits: cython.ulonglong = cython.cast(cython.ulonglong, value)
    return 0 - bits if value < 0 else bits


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number_size(value: Long) -> Long:
    """Decimal digits and the sign."""
    rest: cython.ulonglong = _magnitude(value)
    size: Long = 2 if value < 0 else 1
    while rest >= 10000:
        rest = rest // 10000
        size += 4
    if rest >= 1000:
        return size + 3
    if rest >= 100:
        return size + 2
    return size + 1 if rest >= 10 else size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(out: Out, position: Long, value: Long, write: Bool) -> Long:
    """In decimal."""
    end: Long = position + _number_size(value)
    if not write:
        return end
    rest: cython.ulonglong = _magnitude(value)
    at: Long = end
    pair: cython.uint
    while rest >= 100:
        pair = cython.cast(cython.uint, rest % 100)
        rest = rest // 100
        at -= 2
        out[at] = cython.cast(cython.uchar, 48 + pair // 10)
        out[at + 1] = cython.cast(cython.uchar, 48 + pair % 10)
    pair = cython.cast(cython.uint, rest)
    at -= 1
    out[at] = cython.cast(cython.uchar, 48 + pair % 10)
    if pair >= 10:
        out[at - 1] = cython.cast(cython.uchar, 48 + pair // 10)
    if value < 0:
        out[position] = 45
    return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _clean(text: Bytes, at: Long) -> Bool:
    """Whether 32 bytes need no escape in a JSON string. Compiled code only, where it is a few vector operations: the
    compiler would unroll a loop of 16 before it vectorizes."""
    # As signed bytes all those above 0x7f are below 0x20 too.
    chars: cython.pointer(cython.const[cython.schar]) = cython.cast(
        cython.pointer(cython.const[cython.schar]), text + at
    )
    dirty: cython.schar = 0
    i: cython.int
    for i in range(32):
        dirty |= (
            cython.cast(cython.schar, chars[i] < 32)
            | cython.cast(cython.schar, chars[i] == 34)
            | cython.cast(cython.schar, chars[i] == 92)
        )
    return dirty == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sequence_length(text: Bytes, at: Long, end: Long) -> cython.int:
    """Bytes of the UTF-8 sequence at `at`, whose first byte is above 0x7f; 0: not a valid one (Unicode 15, table
    3-7)."""
    lead: cython.uint = text[at]
    left: Long = end - at
    low: cython.uint = 0x80
    high: cython.uint = 0xBF
    if lead < 0xC2 or lead > 0xF4 or left < 2:
        return 0
    second: cython.uint = text[at + 1]
    if lead < 0xE0:
        return 2 if (second & 0xC0) == 0x80 else 0
    if lead == 0xE0:
        low = 0xA0  # overlong below
    elif lead == 0xED:
        high = 0x9F  # surrogates above
    elif lead == 0xF0:
        low = 0x90  # overlong below
    elif lead == 0xF4:
        high = 0x8F  # beyond U+10FFFF above
    if second < low or second > high or left < 3 or (text[at + 2] & 0xC0) != 0x80:
        return 0
    if lead < 0xF0:
        return 3
    return 4 if left > 3 and (text[at + 3] & 0xC0) == 0x80 else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escape(out: Out, position: Long, byte: cython.uint, write: Bool) -> Long:
    """A quote, a backslash or a control character as Python's json writes it."""
    letters: Text = b"uuuuuuuubtnufr"
    digits: Text = b"0123456789abcdef"
    letter: cython.uint = byte if byte > 31 else letters[byte] if byte < 14 else 117
    if write:
        out[position] = 92
        out[position + 1] = letter
    if letter != 117:
        return position + 2
    if write:
        _put(out, position + 2, b"00", 2, True)
        out[position + 4] = digits[byte >> 4]
        out[position + 5] = digits[byte & 15]
    return position + 6


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escaped(out: Out, position: Long, text: Bytes, start: Long, length: Long, write: Bool) -> Long:
    """A JSON string with its quotes; the position after it, or _NOT_UTF8. Without `write` it is only measured."""
    at: Long = start
    end: Long = start + length
    stop: Long
    byte: cython.uint
    size: cython.int
    i: cython.int
    position = _put(out, position, b'"', 1, write)
    while at < end:
        if cython.compiled:
            while end - at >= 32 and _clean(text, at):
                if write:
                    memcpy(out + position, text + at, 32)
                at += 32
                position += 32
            # The last bytes are checked together with some before them.
            if 0 < end - at < 32 and length >= 32 and _clean(text, end - 32):
                position = _copy(out, position, text, at, end - at, write)
                at = end
        stop = end if end - at < 32 else at + 32
        while at < stop:
            byte = text[at]
            if byte > 127:
                size = _sequence_length(text, at, end)
                if size == 0:
                    return _NOT_UTF8
                if write:
                    for i in range(size):
                        out[position + i] = text[at + i]
                position += size
                at += size
                continue
            if byte < 32 or byte == 34 or byte == 92:
                position = _escape(out, position, byte, write)
            else:
                if write:
                    out[position] = cython.cast(cython.uchar, byte)
                position += 1
            at += 1
    return _put(out, position, b'"', 1, write)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _base64(out: Out, position: Long, text: Bytes, start: Long, length: Long, write: Bool) -> Long:
    """`{"base64":"…"}` (RFC 4648, padded)."""
    if not write:
        return position + 13 + (length + 2) // 3 * 4
    at: Long = start
    end: Long = start + length
    bits: cython.uint
    digits: Text = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    position = _put(out, position, b'{"base64":"', 11, True)
    while at < end:
        bits = text[at] << 16
        if end - at > 1:
            bits |= text[at + 1] << 8
        if end - at > 2:
            bits |= text[at + 2]
        out[position] = digits[bits >> 18]
        out[position + 1] = digits[(bits >> 12) & 63]
        out[position + 2] = digits[(bits >> 6) & 63] if end - at > 1 else 61
        out[position + 3] = digits[bits & 63] if end - at > 2 else 61
        position += 4
        at += 3
    return _put(out, position, b'"}', 2, True)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _json(out: Out, position: Long, limit: Long, text: Bytes, start: Long, length: Long, write: Bool) -> Long:
    """Null, a string or a base64 object; _TIGHT where the worst case passes `limit`."""
    end: Long
    if length < 0:
        return _put(out, position, b"null", 4, write)
    if not write:
        end = _escaped(out, position, text, start, length, False)
        return _base64(out, position, text, start, length, False) if end == _NOT_UTF8 else end
    if limit != _NO_LIMIT:
        if (limit - position) // 6 < length:
            return _TIGHT
    elif _escaped(out, position, text, start, length, False) == _NOT_UTF8:
        # Only the final form is known to fit: a string that turns out not to be UTF-8 may be longer than its base64.
        return _base64(out, position, text, start, length, True)
    end = _escaped(out, position, text, start, length, True)
    return _base64(out, position, text, start, length, True) if end == _NOT_UTF8 else end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _varint(text: Bytes, at: Long, size: Long) -> Long:
    """The varint at `at` (ByteUtils.readVarint): value * 8 + its size in bytes; 0 if that passes `size` or is above
    five."""
    bits: cython.ulonglong = 0
    length: Long = 0
    byte: cython.ulonglong = 128
    while byte >= 128:
        if length == 5 or at + length >= size:
            return 0
        byte = text[at + length]
        bits |= (byte & 127) << (7 * length)
        length += 1
    bits &= _UINT32
    value: Long = cython.cast(Long, bits >> 1)
    return (-value - 1 if bits & 1 else value) * 8 + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _headers(
    out: Out, position: Long, limit: Long, text: Bytes, size: Long, at: Long, count: Long, json: Bool, write: Bool
) -> Long:
    """`["name","value"],…` or `name=value,…` of `count` headers at `at`; or _OUTSIDE or _TIGHT."""
    i: Long
    part: cython.int
    end: Long
    length: Long
    for i in range(count):
        if at < 0 or at > size:
            return _OUTSIDE
        if limit - position < _SPARE:
            return _TIGHT
        if i > 0:
            position = _put(out, position, b",", 1, write)
        for part in range(2):
            length = _varint(text, at, size)
            if length == 0:
                return _OUTSIDE
            end = at + (length & 7)
            length = length >> 3
            if _outside(end, length, size):
                return _OUTSIDE
            if json:
                position = _put(out, position, b"," if part else b"[", 1, write)
                position = _json(out, position, limit, text, end, length, write)
                if position < 0:
                    return position
                if part:
                    position = _put(out, position, b"]", 1, write)
            else:
                if limit - position - _SPARE < length:
                    return _TIGHT
                if part:
                    position = _put(out, position, b"=", 1, write)
                if part and length < 0:
                    position = _put(out, position, b"NULL", 4, write)  # as kcat's print_headers
                position = _copy(out, position, text, end, length, write)
            at = end + length if length > 0 else end
    return position


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _record(
    out: Out,
    position: Long,
    limit: Long,
    program: Longs,
    literals: Bytes,
    text: Bytes,
    size: Long,
    extra: Bytes,
    extra_size: Long,
    cells: Longs,
    stride: Long,
    timestamp_type: Long,
    write: Bool,
) -> Long:
    """Runs the program for one record; the position after it, or _OUTSIDE or _TIGHT.

    `cells` is the record's cell in the first column of the block; the cell of each next column is `stride` further.
    `program` is as in `program.Program`: its first number is the most bytes that all literals, numbers and names take,
    and every other field leaves these bytes free below `limit`.
    """
    i: Long
    code: Long
    start: Long
    length: Long
    literal: Long = 0
    if limit != _NO_LIMIT:
        limit -= program[0]
    if position > limit:
        return _TIGHT
    for i in range(program[1]):
        position = _copy(out, position, literals, literal, program[3 * i + 2] - literal, write)
        literal = program[3 * i + 2]
        code = program[3 * i + 3]
        start = cells[program[3 * i + 4] * stride]
        # The codes are program.Code's. The column after a start is the length (-1 for null) or the number of headers.
        if code == 1:  # NUMBER
            position = _number(out, position, start, write)
        elif code == 2:  # TIMESTAMP_TYPE
            if timestamp_type == 0:
                position = _put(out, position, b"CreateTime", 10, write)
            elif timestamp_type == 1:
                position = _put(out, position, b"LogAppendTime", 13, write)
            else:
                position = _put(out, position, b"NoTimestampType", 15, write)
        elif code == 11:  # NUMBER_OR_NULL
            position = _put(out, position, b"null", 4, write) if start < 0 else _number(out, position, start, write)
        elif code != 0:
            length = cells[(program[3 * i + 4] + 1) * stride]
            if code == 9 or code == 10:  # EXTRA, EXTRA_OR_JSON
                if _outside(start, length, extra_size):
                    return _OUTSIDE
                if limit - position < length:
                    return _TIGHT
                position = _copy(out, position, extra, start, length, write)
                if code == 9 or length >= 0:
                    continue
                start = cells[(program[3 * i + 4] + 2) * stride]
                length = cells[(program[3 * i + 4] + 3) * stride]
                code = 6
            if code == 3:  # HEADERS
                position = _headers(out, position, limit, text, size, start, length, False, write)
            elif code == 4:  # JSON_HEADERS
                position = _headers(out, position, limit, text, size, start, length, True, write)
            elif _outside(start, length, size):
                return _OUTSIDE
            elif code == 5:  # TEXT
                if limit - position < length:
                    return _TIGHT
                position = _copy(out, position, text, start, length, write)
            elif code == 6:  # JSON
                position = _json(out, position, limit, text, start, length, write)
            elif code == 7:  # LENGTH
                position = _number(out, position, length, write)
            elif code == 8:  # BINARY_LENGTH
                for start in range(4):
                    if write:
                        out[position + start] = (length >> (24 - 8 * start)) & 255
                position += 4
            if position < 0:
                return position
    return position


def run(
    program: cython.const[cython.longlong][::1],
    literals: cython.const[cython.uchar][::1],
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, :],
    timestamp_types: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: Long,
    sizes: cython.longlong[::1],
    extra: cython.const[cython.uchar][::1],
) -> tuple[int, int, bool]:
    """Renders whole records from `row` to `rows` into `out` from `position` on, until one does not fit.

    `columns` are a RecordBlock's; `timestamp_types` has one element per batch. `sizes` (one element per record,
    otherwise empty) gets the size in bytes of each record; then an empty `out` means that nothing is written, and all
    records are measured. `literals` must not be empty. `extra`: the buffer that columns after the block's own point
    into.
    Returns (first row not done, position after the last record done, whether that row points outside its buffer).
    IndexError for fewer sizes than records.
    """
    batches: Long = timestamp_types.shape[0] if cython.compiled else len(timestamp_types)
    size: Long = buffer.shape[0] if cython.compiled else len(buffer)
    limit: Long = out.shape[0] if cython.compiled else len(out)
    extra_size: Long = extra.shape[0] if cython.compiled else len(extra)
    is_sized: Bool = (sizes.shape[0] if cython.compiled else len(sizes)) > 0
    measuring: Bool = is_sized and limit == 0
    end: Long = position
    batch: Long
    kind: Long
    if is_sized and (sizes.shape[0] if cython.compiled else len(sizes)) < rows:
        raise IndexError("fewer sizes than records")
    if row >= rows:
        return row, position, False
    if cython.compiled:
        # The address of a missing element must not be taken.
        text: Bytes = cython.address(buffer[0]) if size > 0 else cython.NULL
        texts: Bytes = cython.address(extra[0]) if extra_size > 0 else cython.NULL
        target: Out = cython.address(out[0]) if limit > 0 else cython.NULL
        steps: Longs = cython.address(program[0])
        fixed: Bytes = cython.address(literals[0])
        cells: Longs = cython.address(columns[0, 0])
        stride: Long = columns.strides[0] // 8
    else:
        text, texts, target, steps, fixed, stride = buffer, extra, out, program, literals, 1
        lists = memoryview(columns).tolist()
    with cython.nogil:
        while row < rows:
            batch = columns[8, row]
            if batch < 0 or batch >= batches:
                end = _OUTSIDE
                break
            kind = timestamp_types[batch]
            cells = cython.address(columns[0, row]) if cython.compiled else [column[row] for column in lists]
            if not measuring:
                end = _record(
                    target, position, limit, steps, fixed, text, size, texts, extra_size, cells, stride, kind, True
                )
                if end >= 0:
                    if is_sized:
                        sizes[row] = end - position
                    position = end
                    row += 1
                    continue
                if end == _OUTSIDE:
                    break
            end = _record(target, 0, _NO_LIMIT, steps, fixed, text, size, texts, extra_size, cells, stride, kind, False)
            if end < 0:
                break
            if not measuring and end > limit - position:
                break
            if is_sized:
                sizes[row] = end
            if not measuring:
                position = _record(
                    target, position, _NO_LIMIT, steps, fixed, text, size, texts, extra_size, cells, stride, kind, True
                )
            row += 1
    return row, position, end == _OUTSIDE
