# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loop of Protobuf: columns of messages to proto3 JSON, exactly as the protobuf library writes it.

The kernel writes ordinary messages and leaves everything else, also errors, to the library: a field or a member of a
oneof that occurs twice, a wire type other than the field's, invalid UTF-8, extensions, Any, FieldMask, maps of more
than 256 entries. So the two never differ, and no rule about odd data is written twice.

The kernel reads a message once, into a list of the fields that occur in it: three numbers for each, the field's place
in the program and the two numbers of its value. It sorts the list by the fields' numbers, so that items of a list and
entries of a map lie side by side, and writes it. `proto_program.py` makes the numbers that describe types. Every length
is compared with the rest of the data before it is used, and nesting is limited. Cython in pure-Python mode, but it
works only compiled, because the library is faster than an uncompiled kernel.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.kafkafs.decoding.avro_kernel import (
        _HIGHS,
        LITTLE_ENDIAN,
        _base64,
        _date,
        _digit_count,
        _digits,
        _escaped,
        _escaped_size,
        _float,
        _number,
        sevens,
        trailing_zeros,
    )
    from cython.cimports.libc.string import memcmp, memcpy
else:
    # proto_kernel.pxd declares the same numbers, because variables would be loaded at each use.
    # Returned instead of a position: the output is too small; the library must decode it.
    _FULL = -1
    _LIBRARY = -2
    _SPARE = 64
    _MOST_WITHIN_EACH_OTHER = 60
    _MOST_ENTRIES = 256
    _MOST_MOVED = 16  # times the message: how many places fields may be moved in total, to sort them
    # Numbers of a type before its fields, and of a field (proto_program.py).
    _TYPE = 3
    _FIELD = 8
    _TAG = 0
    _CODE = 1  # FieldDescriptorProto.Type
    _FLAGS = 2
    _NAME = 3
    _NAME_LENGTH = 4
    _BELOW = 5
    _DEFAULT = 6
    _ONEOF = 7
    _REPEATED = 1
    _MAP = 4
    # Kinds of types, numbered like proto_program.Kind.
    _MESSAGE = 0
    _TIMESTAMP = 1
    _DURATION = 2
    _WRAPPER = 3
    _STRUCT = 4
    _VALUE = 5
    _LIST = 6
    _UNCOVERED = 7

Long = cython.typedef(cython.longlong)
ULong = cython.typedef(cython.ulonglong)
Bool = cython.typedef(cython.bint)
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Out = cython.typedef(cython.pointer(cython.uchar))
Longs = cython.typedef(cython.pointer(cython.const[cython.longlong]))
Cells = cython.typedef(cython.pointer(cython.longlong))
Text = cython.typedef(cython.pointer(cython.const[cython.char]))
Powers = cython.typedef(cython.pointer(cython.const[cython.ulonglong]))

_YEAR_1 = cython.declare(cython.longlong, -62135596800)  # in seconds
_YEAR_10000 = cython.declare(cython.longlong, 253402300800)
_LONGEST = cython.declare(cython.longlong, 315576000000)  # of a Duration, in seconds

# Arguments of all functions: the program; the buffer and its size; the output, which has spare bytes after `limit`; and
# memory for lists of fields, of `top` numbers.
Work = cython.struct(
    numbers=Longs, literals=Bytes, powers=Powers, text=Bytes, size=Long, out=Out, limit=Long, cells=Cells, top=Long
)
Given = cython.typedef(cython.pointer(Work))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(out: Out, position: Long, text: Text, length: Long) -> Long:
    """Write a constant of `length` bytes."""
    memcpy(out + position, text, length)
    return position + length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(text: Bytes, at: Long, end: Long, cells: Cells) -> Long:
    """Put the varint that begins at `at` into cells[0]; return the position after it."""
    word: ULong = 0
    ends: ULong
    if at < end and text[at] < 128:
        cells[0] = text[at]
        return at + 1
    if LITTLE_ENDIAN and end - at >= 8:
        # The varint ends with the first byte whose highest bit is 0.
        memcpy(cython.address(word), text + at, 8)
        ends = ~word & _HIGHS
        if ends:
            cells[0] = cython.cast(Long, sevens(word & (ends ^ (ends - 1))))
            return at + (trailing_zeros(ends) >> 3) + 1
    bits: ULong = 0
    byte: ULong
    shift: cython.int = 0
    while shift < 70:
        if at >= end:
            return _LIBRARY
        byte = text[at]
        at += 1
        if shift == 63 and byte > 1:
            return _LIBRARY
        bits |= (byte & 127) << shift
        if byte < 128:
            cells[0] = cython.cast(Long, bits)
            return at
        shift += 7
    return _LIBRARY


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _tag(text: Bytes, at: Long, end: Long, cells: Cells) -> Long:
    """Put a field's number and wire type into cells[0]; return the position after them."""
    begin: Long = at
    at = _varint(text, at, end, cells)
    if at < 0 or at - begin > 5 or cells[0] < 8 or cells[0] >> 32:
        return _LIBRARY
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _group_end(text: Bytes, at: Long, end: Long, number: Long, cells: Cells, depth: Long) -> Long:
    """The position of the tag that ends the group whose content begins at `at`."""
    begin: Long
    tag: Long
    if depth > _MOST_WITHIN_EACH_OTHER:
        return _LIBRARY
    while at < end:
        begin = at
        at = _tag(text, at, end, cells)
        if at < 0:
            return _LIBRARY
        tag = cells[0]
        if tag & 7 == 4:
            return begin if tag >> 3 == number else _LIBRARY
        at = _read(text, at, end, tag, cells, depth + 1)
        if at < 0:
            return _LIBRARY
    return _LIBRARY


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read(text: Bytes, at: Long, end: Long, tag: Long, cells: Cells, depth: Long) -> Long:
    """Put the value that begins at `at` into cells[0] (its bits, or where it begins) and its length into cells[1];
    return the position after it."""
    wire: Long = tag & 7
    word: ULong = 0
    half: cython.uint = 0
    begin: Long
    if wire == 0:
        return _varint(text, at, end, cells)
    if wire == 1:
        if end - at < 8:
            return _LIBRARY
        memcpy(cython.address(word), text + at, 8)
        cells[0] = cython.cast(Long, word)
        return at + 8
    if wire == 5:
        if end - at < 4:
            return _LIBRARY
        memcpy(cython.address(half), text + at, 4)
        cells[0] = half
        return at + 4
    if wire == 2:
        begin = at
        at = _varint(text, at, end, cells)
        if at < 0 or at - begin > 5 or cells[0] < 0 or cells[0] > end - at:
            return _LIBRARY
        cells[1] = cells[0]
        cells[0] = at
        return at + cells[1]
    if wire == 3:
        begin = at
        at = _group_end(text, at, end, tag >> 3, cells, depth)
        if at < 0:
            return _LIBRARY
        half = cython.cast(cython.uint, at - begin)
        at = _varint(text, at, end, cells)
        cells[0] = begin
        cells[1] = half
        return at
    return _LIBRARY


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find(numbers: Longs, kind: Long, number: Long) -> Long:
    """The place of the field with this number; -1 if the type has none."""
    low: Long = 0
    high: Long = numbers[kind + 1]
    middle: Long
    fields: Long = kind + _TYPE
    while low < high:
        middle = (low + high) >> 1
        if numbers[fields + _FIELD * middle] >> 3 < number:
            low = middle + 1
        else:
            high = middle
    fields += _FIELD * low
    return fields if low < numbers[kind + 1] and numbers[fields] >> 3 == number else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan(w: Given, kind: Long, at: Long, end: Long, base: Long) -> Long:
    """List the fields that occur in the message of this type in text[at:end], from cell `base` on, sorted; return the
    cell after the list. A value is its bits and -1, or where it begins and its length."""
    numbers: Longs = w.numbers
    text: Bytes = w.text
    cells: Cells = w.cells
    room: Long = w.top - 5  # after the list there is room for a value
    first: Long = kind + _TYPE
    stop: Long = first + _FIELD * numbers[kind + 1]
    field: Long = first
    place: Long = base
    members: Long = 0
    left: Long = _MOST_MOVED * (end - at) + 4096
    tag: Long
    i: Long
    while at < end:
        if place > room:
            return _LIBRARY
        tag = text[at]
        if 8 <= tag < 128:
            at += 1
        else:
            at = _tag(text, at, end, cells + place)
            if at < 0:
                return _LIBRARY
            tag = cells[place]
        cells[place + 2] = -1
        if tag & 7 == 2 and at < end and text[at] < end - at and text[at] < 128:
            cells[place + 1] = at + 1
            cells[place + 2] = text[at]
            at += 1 + text[at]
        else:
            at = _read(text, at, end, tag, cells + (place + 1), 0)
            if at < 0:
                return _LIBRARY
        # Most likely the previous field again, or one of the next fields.
        i = 4
        while i > 0 and field < stop and numbers[field] < tag:
            field += _FIELD
            i -= 1
        if field >= stop or numbers[field] != tag:
            i = _find(numbers, kind, tag >> 3)
            if i < 0:
                if numbers[kind + 2] or tag & 7 == 3:
                    return _LIBRARY  # an extension, or in a map's entry
                continue
            field = i
            if numbers[field] != tag and not (
                numbers[field + _FLAGS] & _REPEATED and tag & 7 == 2 and numbers[field + _CODE] != 10
            ):
                return _LIBRARY
        if numbers[field + _ONEOF] & members:
            return _LIBRARY
        members |= numbers[field + _ONEOF]
        cells[place] = field
        if place > base and field <= cells[place - 3]:
            left = _put_back(cells, base, place, left, numbers[field + _FLAGS] & _REPEATED)
            if left < 0:
                return _LIBRARY
        place += 3
    return place


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_back(cells: Cells, base: Long, place: Long, left: Long, repeated: Long) -> Long:
    """Move the entry at `place` after all entries that are not greater; return how many more places may be moved, or
    _LIBRARY."""
    field: Long = cells[place]
    a: Long = cells[place + 1]
    b: Long = cells[place + 2]
    while place > base and cells[place - 3] > field:
        if left == 0:
            return _LIBRARY
        left -= 1
        cells[place] = cells[place - 3]
        cells[place + 1] = cells[place - 2]
        cells[place + 2] = cells[place - 1]
        place -= 3
    if place > base and cells[place - 3] == field and not repeated:
        return _LIBRARY
    cells[place] = field
    cells[place + 1] = a
    cells[place + 2] = b
    return left


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _half_bits(code: Long, bits: Long) -> Long:
    """The value of a 32-bit type: the lower bits of a longer number, with their sign."""
    half: cython.uint = cython.cast(cython.uint, bits)
    if code == 17:
        half = (half >> 1) ^ (0 - (half & 1))
    if code == 7 or code == 13 or code == 2:
        return half
    return cython.cast(cython.int, half)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_zero(code: Long, a: Long, b: Long) -> Bool:
    """Whether this value means that a field without presence is not set."""
    if code == 9 or code == 12:
        return b == 0
    if code == 5 or code == 13 or code == 14 or code == 17:
        return cython.cast(cython.uint, a) == 0
    return a == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enum(w: Given, position: Long, kind: Long, bits: Long) -> Long:
    """Write an enum's name, or the number if an open type does not have it."""
    numbers: Longs = w.numbers
    value: Long = _half_bits(14, bits)
    low: Long = 0
    high: Long = numbers[kind]
    middle: Long
    entry: Long
    if high < 0:  # NullValue
        return _put(w.out, position, b"null", 4)
    while low < high:
        middle = (low + high) >> 1
        if numbers[kind + 2 + 3 * middle] < value:
            low = middle + 1
        else:
            high = middle
    entry = kind + 2 + 3 * low
    if low < numbers[kind] and numbers[entry] == value:
        if w.limit - position < numbers[entry + 2]:
            return _FULL
        memcpy(w.out + position, w.literals + numbers[entry + 1], numbers[entry + 2])
        return position + numbers[entry + 2]
    return _LIBRARY if numbers[kind + 1] else _number(w.out, position, value)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _float32(out: Out, position: Long, bits: ULong, powers: Powers) -> Long:
    """Write a float. The library tries 6 digits first, which is not the shortest text of the smallest floats, and
    perhaps not of a power of 2."""
    exponent: ULong = bits >> 23 & 255
    fraction: ULong = bits & 0x7FFFFF
    if (exponent == 0 and fraction != 0) or (fraction == 0 and 0 < exponent < 255 and not 121 <= exponent <= 143):
        return _LIBRARY
    return _float(out, position, bits, 23, 255, powers)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scalar(w: Given, position: Long, field: Long, a: Long) -> Long:
    """Write a number, boolean or enum; there is room for 64 bytes."""
    out: Out = w.out
    code: Long = w.numbers[field + _CODE]
    bits: ULong = cython.cast(cython.ulonglong, a)
    if code == 5 or code == 7 or code == 13 or code == 15 or code == 17:
        return _number(out, position, _half_bits(code, a))
    if code == 8:
        return _put(out, position, b"true", 4) if a else _put(out, position, b"false", 5)
    if code == 1:
        return _float(out, position, bits, 52, 2047, w.powers)
    if code == 2:
        return _float32(out, position, bits, w.powers)
    if code == 14:
        return _enum(w, position, w.numbers[field + _BELOW], a)
    out[position] = 34
    if code == 4 or code == 6:
        position = _digits(out, position + 1, bits, _digit_count(bits))
    elif code == 18:
        position = _number(out, position + 1, cython.cast(Long, (bits >> 1) ^ (0 - (bits & 1))))
    else:
        position = _number(out, position + 1, a)
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _one(w: Given, position: Long, field: Long, a: Long, b: Long, base: Long, depth: Long) -> Long:
    """Write one value of a field."""
    code: Long = w.numbers[field + _CODE]
    left: Long = w.limit - position
    if left < _SPARE:
        return _FULL
    if code == 9:
        if left < 6 * b + 16 and left < _escaped_size(w.text, a, b) + 16:
            return _FULL
        position = _escaped(w.out, position, w.text, a, b, w.size)
        return position if position >= 0 else _LIBRARY
    if code == 11 or code == 10:
        return _message(w, position, w.numbers[field + _BELOW], a, a + b, base, depth + 1)
    if code == 12:
        if (left - 16) // 4 < (b + 2) // 3:
            return _FULL
        return _base64(w.out, position, w.text, a, b)
    return _scalar(w, position, field, a)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _repeated(w: Given, position: Long, place: Long, after: Long, base: Long, depth: Long) -> Long:
    """Write a list; nothing if only packed lists without items occur."""
    cells: Cells = w.cells
    field: Long = cells[place]
    wire: Long = w.numbers[field + _TAG] & 7
    begin: Long = position
    a: Long
    b: Long
    end: Long
    item: Long
    is_packed: Bool
    while place < after:
        a = item = cells[place + 1]
        b = cells[place + 2]
        is_packed = b >= 0 and wire != 2 and wire != 3
        end = a + b if is_packed else a
        place += 3
        while not is_packed or item < end:
            if is_packed:
                item = _read(w.text, item, end, wire, cells + base, 0)
                if item < 0:
                    return _LIBRARY
                a = cells[base]
            if w.limit - position < _SPARE:
                return _FULL
            w.out[position] = 44
            position = _one(w, position + 1, field, a, b, base, depth)
            if position < 0:
                return position
            if not is_packed:
                break
    if position == begin:
        return position
    if w.limit - position < 2:
        return _FULL
    w.out[begin] = 91  # in place of the first comma
    w.out[position] = 93
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _text_order(a: ULong, b: ULong) -> Long:
    """A number below, at or above 0 if the decimal text of `a` comes before, at or after that of `b`; 2 if unknown."""
    shorter: Long = _digit_count(a)
    longer: Long = _digit_count(b)
    sign: Long = 1
    _i: Long
    if shorter > longer:
        a, b, shorter, longer, sign = b, a, longer, shorter, -1
    if shorter < longer and longer > 19:
        return 2
    for _i in range(longer - shorter):
        a = a * 10
    if a == b:
        return 0 if shorter == longer else -sign
    return -sign if a < b else sign


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _key_order(text: Bytes, code: Long, a: Long, b: Long, other_a: Long, other_b: Long) -> Long:
    """The order of two keys of a map as texts: -1, 0 or 1; 2 if it is unknown."""
    order: Long
    if code == 9:
        order = memcmp(text + a, text + other_a, b if b < other_b else other_b)
        if order == 0:
            order = b - other_b
        return -1 if order < 0 else 1 if order > 0 else 0
    if code == 8:
        a, other_a = a != 0, other_a != 0
    elif code == 5 or code == 7 or code == 13 or code == 15 or code == 17:
        a, other_a = _half_bits(code, a), _half_bits(code, other_a)
    elif code == 4 or code == 6:
        return _text_order(cython.cast(cython.ulonglong, a), cython.cast(cython.ulonglong, other_a))
    elif code == 18:
        a = (cython.cast(cython.ulonglong, a) >> 1) ^ (0 - (cython.cast(cython.ulonglong, a) & 1))
        other_a = (cython.cast(cython.ulonglong, other_a) >> 1) ^ (0 - (cython.cast(cython.ulonglong, other_a) & 1))
    if a < 0 or other_a < 0:
        if a >= 0 or other_a >= 0:
            return -1 if a < 0 else 1
        return _text_order(0 - cython.cast(cython.ulonglong, a), 0 - cython.cast(cython.ulonglong, other_a))
    return _text_order(cython.cast(cython.ulonglong, a), cython.cast(cython.ulonglong, other_a))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _map(w: Given, position: Long, place: Long, after: Long, base: Long, depth: Long) -> Long:
    """Write an object in the order of its keys. Entries are sorted from cell `base` on, as the four numbers of key and
    value."""
    out: Out = w.out
    cells: Cells = w.cells
    kind: Long = w.numbers[cells[place] + _BELOW]
    key: Long = kind + _TYPE
    value: Long = key + _FIELD
    code: Long = w.numbers[key + _CODE]
    count: Long = (after - place) // 3
    inner: Long = base + 4 * count
    begin: Long = position
    next_entry: Long = base
    a: Long
    b: Long
    c: Long
    d: Long
    i: Long
    order: Long
    if count > _MOST_ENTRIES or inner > w.top - 2:
        return _LIBRARY
    while place < after:
        after_entry: Long = _scan(w, kind, cells[place + 1], cells[place + 1] + cells[place + 2], inner)
        if after_entry < 0:
            return _LIBRARY
        place += 3
        a = b = d = 0
        c = w.numbers[value + _DEFAULT]
        i = inner
        while i < after_entry:
            if cells[i] == key:
                a = cells[i + 1]
                b = cells[i + 2]
            else:
                c = cells[i + 1]
                d = cells[i + 2]
            i += 3
        i = next_entry
        while i > base:
            order = _key_order(w.text, code, a, b, cells[i - 4], cells[i - 3])
            if order == 0 or order == 2:
                return _LIBRARY
            if order > 0:
                break
            cells[i] = cells[i - 4]
            cells[i + 1] = cells[i - 3]
            cells[i + 2] = cells[i - 2]
            cells[i + 3] = cells[i - 1]
            i -= 4
        cells[i] = a
        cells[i + 1] = b
        cells[i + 2] = c
        cells[i + 3] = d
        next_entry += 4
    i = base
    while i < next_entry:
        if w.limit - position < _SPARE:
            return _FULL
        out[position] = 44
        position += 1
        if (
            code == 9 or code == 3 or code == 4 or code == 6 or code == 16 or code == 18
        ):  # whose values are strings anyway
            position = _one(w, position, key, cells[i], cells[i + 1], inner, depth)
            if position < 0:
                return position
        else:
            out[position] = 34
            position = _scalar(w, position + 1, key, cells[i])
            out[position] = 34
            position += 1
        if w.limit - position < 2:
            return _FULL
        out[position] = 58
        position = _one(w, position + 1, value, cells[i + 2], cells[i + 3], inner, depth)
        if position < 0:
            return position
        i += 4
    if w.limit - position < 2:
        return _FULL
    out[begin] = 123  # in place of the first comma
    out[position] = 125
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fraction(out: Out, position: Long, nanos: Long) -> Long:
    """Write a fraction of a second: nothing, or 3, 6 or 9 decimals."""
    if nanos == 0:
        return position
    out[position] = 46
    if nanos % 1000000 == 0:
        return _digits(out, position + 1, nanos // 1000000, 3)
    if nanos % 1000 == 0:
        return _digits(out, position + 1, nanos // 1000, 6)
    return _digits(out, position + 1, nanos, 9)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seconds(out: Out, position: Long, kind: Long, seconds: Long, nanos: Long) -> Long:
    """Write a Timestamp or a Duration."""
    days: Long
    out[position] = 34
    position += 1
    if kind == _DURATION:
        if seconds < -_LONGEST or seconds > _LONGEST or nanos < -999999999 or nanos > 999999999:
            return _LIBRARY
        if (seconds < 0 and nanos > 0) or (seconds > 0 and nanos < 0):
            return _LIBRARY
        if seconds < 0 or nanos < 0:
            out[position] = 45
            position += 1
            seconds = -seconds
            nanos = -nanos
        position = _fraction(out, _number(out, position, seconds), nanos)
        return _put(out, position, b's"', 2)
    if seconds < _YEAR_1 or seconds >= _YEAR_10000 or nanos < 0 or nanos > 999999999:
        return _LIBRARY
    days = (seconds - _YEAR_1) // 86400 - 719162
    seconds -= days * 86400
    position = _date(out, position, days)
    out[position] = 84
    position = _digits(out, position + 1, seconds // 3600, 2)
    out[position] = 58
    position = _digits(out, position + 1, seconds // 60 % 60, 2)
    out[position] = 58
    position = _fraction(out, _digits(out, position + 1, seconds % 60, 2), nanos)
    return _put(out, position, b'Z"', 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _well_known(w: Given, position: Long, kind: Long, base: Long, after: Long, depth: Long) -> Long:
    """Write a type that has a form of its own; its fields are listed from cell `base` to `after`."""
    what: Long = w.numbers[kind]
    cells: Cells = w.cells
    field: Long = kind + _TYPE
    seconds: Long = 0
    nanos: Long = 0
    if what == _TIMESTAMP or what == _DURATION:
        while base < after:
            if cells[base] == field:
                seconds = cells[base + 1]
            else:
                nanos = _half_bits(5, cells[base + 1])
            base += 3
        return _seconds(w.out, position, what, seconds, nanos)
    if base == after:
        if what == _WRAPPER:
            return _one(w, position, field, 0, 0, after, depth)
        if what == _VALUE:
            return _put(w.out, position, b"null", 4)
        return _put(w.out, position, b"{}" if what == _STRUCT else b"[]", 2)
    if what == _STRUCT:
        return _map(w, position, base, after, after, depth)
    if what == _LIST:
        return _repeated(w, position, base, after, after, depth)
    field = cells[base]
    if what == _VALUE and w.numbers[field + _CODE] == 1 and cells[base + 1] >> 52 & 2047 == 2047:
        return _LIBRARY
    return _one(w, position, field, cells[base + 1], cells[base + 2], after, depth)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _message(w: Given, position: Long, kind: Long, at: Long, end: Long, base: Long, depth: Long) -> Long:
    """Write the JSON of the message of this type in text[at:end]; return the position after it."""
    numbers: Longs = w.numbers
    cells: Cells = w.cells
    out: Out = w.out
    limit: Long = w.limit
    begin: Long = position
    place: Long = base
    stop: Long
    after: Long
    field: Long
    flags: Long
    before: Long
    named: Long
    length: Long
    if numbers[kind] == _UNCOVERED or depth > _MOST_WITHIN_EACH_OTHER:
        return _LIBRARY
    stop = _scan(w, kind, at, end, base)
    if stop < 0:
        return _LIBRARY
    if limit - position < _SPARE:
        return _FULL
    if numbers[kind] != _MESSAGE:
        return _well_known(w, position, kind, base, stop, depth)
    while place < stop:
        field = cells[place]
        flags = numbers[field + _FLAGS]
        after = place + 3
        if flags == 0 and _is_zero(numbers[field + _CODE], cells[place + 1], cells[place + 2]):
            place = after
            continue
        length = numbers[field + _NAME_LENGTH]
        if limit - position < length + _SPARE:
            return _FULL
        before = position
        # A comma, the name and a colon. Most names are short: the literals have as many bytes after the last one.
        if length <= 16:
            memcpy(out + position, w.literals + numbers[field + _NAME], 16)
        else:
            memcpy(out + position, w.literals + numbers[field + _NAME], length)
        named = position + length
        if flags & _REPEATED:
            while after < stop and cells[after] == field:
                after += 3
            if flags & _MAP:
                position = _map(w, named, place, after, stop, depth)
            else:
                position = _repeated(w, named, place, after, stop, depth)
                if position == named:
                    position = before
        else:
            position = _one(w, named, field, cells[place + 1], cells[place + 2], stop, depth)
        if position < 0:
            return position
        place = after
    if limit - position < 2:
        return _FULL
    if position == begin:
        position += 1
    out[begin] = 123  # in place of the first comma
    out[position] = 125
    return position + 1


def run(
    numbers: cython.const[cython.longlong][::1],
    literals: cython.const[cython.uchar][::1],
    roots: cython.const[cython.longlong][::1],
    powers: cython.const[cython.ulonglong][::1],
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, ::1],
    rows: cython.const[cython.longlong][::1],
    most_bytes: Long,
    out: cython.uchar[::1],
    position: Long,
    texts: cython.longlong[:, ::1],
    slots: cython.longlong[::1],
) -> tuple[int, int]:
    """Decode the data of `rows` into `out` from `position` on, until a text does not fit.

    `columns`: start and length of each row's data in `buffer`: message indexes and message. `roots`: for each message
    type that may occur, where its indexes are in `literals`, how many bytes they have, and its place in `numbers`.
    `texts`: where a row's text is in `out`, and how long; untouched if the library must decode the row, as it must if
    the data has more than `most_bytes`. `slots`: the caller's memory. `powers`: avro_program.POWERS. Returns (how many
    of `rows` are done, position after the last text). `out` may have changed beyond that position.
    """
    size: Long = buffer.shape[0]
    limit: Long = out.shape[0] - _SPARE
    count: Long = rows.shape[0]
    done: Long = 0
    row: Long
    start: Long
    length: Long
    i: Long
    before: Long
    kind: Long
    end: Long
    if (
        columns.shape[0] < 2
        or texts.shape[0] < 2
        or columns.shape[1] != texts.shape[1]
        or position < 0
        or slots.shape[0] < 16
    ):
        raise ValueError("columns, slots or position out of range")
    if count == 0 or limit <= 0 or size == 0:
        return 0, position
    work = cython.declare(Work)
    work.numbers = cython.address(numbers[0])
    work.literals = cython.address(literals[0])
    work.powers = cython.address(powers[0])
    work.text = cython.address(buffer[0])
    work.size = size
    work.out = cython.address(out[0])
    work.limit = limit
    work.cells = cython.address(slots[0])
    work.top = slots.shape[0]
    with cython.nogil:
        while done < count:
            row = rows[done]
            if row < 0 or row >= columns.shape[1]:
                break
            start = columns[0, row]
            length = columns[1, row]
            kind = -1
            before = 0
            if 0 < length <= most_bytes and start >= 0 and length <= size and start <= size - length:
                for i in range(roots.shape[0] // 3):
                    before = roots[3 * i + 1]
                    if before <= length and memcmp(work.text + start, work.literals + roots[3 * i], before) == 0:
                        kind = roots[3 * i + 2]
                        break
            if kind >= 0:
                end = _message(cython.address(work), position, kind, start + before, start + length, 0, 0)
                if end == _FULL:
                    break
                if end >= 0:
                    texts[0, row] = position
                    texts[1, row] = end - position
                    position = end
            done += 1
    return done, position
