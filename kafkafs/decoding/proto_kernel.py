# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loop of Protobuf: columns of messages to proto3 JSON, as the protobuf library writes it.

It writes what is ordinary and leaves everything else to the library, errors too: a field or a member of a oneof that
occurs twice, another wire type than the field's, text that is not UTF-8, extensions, Any, FieldMask, maps of more than
256 entries. So the two never differ, and no rule about odd data stands twice.

A message is read twice: once to find its fields, whose order in the data is any, into slots (three numbers a field:
two of the value, and how often it occurs); then they are written in the order of their numbers. Types are numbers that
`proto_program.py` makes. Every length is compared with what is left before it is used, and messages within each other
are counted. Cython in pure-Python mode, but this file does nothing uncompiled: the library is faster then.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.kafkafs.decoding.avro_kernel import (
        _base64,
        _date,
        _digit_count,
        _digits,
        _escaped,
        _escaped_size,
        _float,
        _number,
    )
    from cython.cimports.libc.string import memcmp, memcpy

Long = cython.typedef(cython.longlong)
ULong = cython.typedef(cython.ulonglong)
Bool = cython.typedef(cython.bint)
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Out = cython.typedef(cython.pointer(cython.uchar))
Longs = cython.typedef(cython.pointer(cython.const[cython.longlong]))
Cells = cython.typedef(cython.pointer(cython.longlong))
Text = cython.typedef(cython.pointer(cython.const[cython.char]))
Powers = cython.typedef(cython.pointer(cython.const[cython.ulonglong]))

# Returned instead of a position: the output is too small; the library must do it; a list without items.
_FULL = cython.declare(cython.longlong, -1)
_LIBRARY = cython.declare(cython.longlong, -2)
_EMPTY = cython.declare(cython.longlong, -3)

_SPARE = cython.declare(cython.longlong, 64)
_MOST_WITHIN_EACH_OTHER = cython.declare(cython.longlong, 60)
_MOST_ENTRIES = cython.declare(cython.longlong, 256)
_MOST_READ_AGAIN = cython.declare(cython.longlong, 16)  # times the message, of what lies between a list's items
_YEAR_1 = cython.declare(cython.longlong, -62135596800)  # in seconds
_YEAR_10000 = cython.declare(cython.longlong, 253402300800)
_LONGEST = cython.declare(cython.longlong, 315576000000)  # of a Duration, in seconds
_UINT32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_ALL_32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_HALF = cython.declare(cython.ulonglong, 0x80000000)

# Numbers of a type before its fields, and of a field (proto_program.py).
_TYPE = cython.declare(cython.longlong, 3)
_FIELD = cython.declare(cython.longlong, 8)
_NUMBER = cython.declare(cython.longlong, 0)
_CODE = cython.declare(cython.longlong, 1)  # FieldDescriptorProto.Type
_FLAGS = cython.declare(cython.longlong, 2)
_NAME = cython.declare(cython.longlong, 3)
_NAME_LENGTH = cython.declare(cython.longlong, 4)
_BELOW = cython.declare(cython.longlong, 5)
_DEFAULT = cython.declare(cython.longlong, 6)
_NEXT_MEMBER = cython.declare(cython.longlong, 7)
_REPEATED = cython.declare(cython.longlong, 1)
_PRESENCE = cython.declare(cython.longlong, 2)
_MAP = cython.declare(cython.longlong, 4)

# Kinds of types, as in proto_program.Kind.
_MESSAGE = cython.declare(cython.longlong, 0)
_TIMESTAMP = cython.declare(cython.longlong, 1)
_DURATION = cython.declare(cython.longlong, 2)
_WRAPPER = cython.declare(cython.longlong, 3)
_STRUCT = cython.declare(cython.longlong, 4)
_VALUE = cython.declare(cython.longlong, 5)
_LIST = cython.declare(cython.longlong, 6)
_UNCOVERED = cython.declare(cython.longlong, 7)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(out: Out, position: Long, text: Text, length: Long) -> Long:
    """A constant of `length` bytes."""
    memcpy(out + position, text, length)
    return position + length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _wire_type(code: Long) -> Long:
    """Of a value that is not packed."""
    if code == 1 or code == 6 or code == 16:
        return 1
    if code == 2 or code == 7 or code == 15:
        return 5
    if code == 9 or code == 11 or code == 12:
        return 2
    return 3 if code == 10 else 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(text: Bytes, at: Long, end: Long, cells: Cells) -> Long:
    """Puts the number that begins at `at` into cells[0]; the position after it."""
    if at < end and text[at] < 128:
        cells[0] = text[at]
        return at + 1
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
    """Puts a field's number and wire type into cells[0]; the position after it."""
    begin: Long = at
    at = _varint(text, at, end, cells)
    if at < 0 or at - begin > 5 or cells[0] < 8 or cells[0] > _UINT32:
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
        at = _value(text, at, end, tag, cells, depth + 1)
        if at < 0:
            return _LIBRARY
    return _LIBRARY


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _value(text: Bytes, at: Long, end: Long, tag: Long, cells: Cells, depth: Long) -> Long:
    """Puts the value that begins at `at` into cells[0]: its bits, or where it begins, and its length in cells[1]. The
    position after it."""
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
def _find(numbers: Longs, fields: Long, count: Long, number: Long, guess: Long) -> Long:
    """The field with this number, most likely that at `guess`; -1 if there is none."""
    low: Long = 0
    high: Long = count
    middle: Long
    if guess < count and numbers[fields + _FIELD * guess] == number:
        return guess
    while low < high:
        middle = (low + high) >> 1
        if numbers[fields + _FIELD * middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < count and numbers[fields + _FIELD * low] == number else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan(numbers: Longs, kind: Long, text: Bytes, at: Long, end: Long, slots: Cells, base: Long) -> Long:
    """Finds the fields of a message of this type in text[at:end]: the slots from `base` on have, of a single field, its
    value; of a repeated one, where the first begins and the last ends; 0, or how often it occurs."""
    count: Long = numbers[kind + 1]
    fields: Long = kind + _TYPE
    field: Long
    slot: Long
    guess: Long = 0
    i: Long
    begin: Long
    tag: Long
    other: Long
    code: Long
    flags: Long
    between: Long = 0
    most_between: Long = _MOST_READ_AGAIN * (end - at) + 4096
    for i in range(count):
        slots[base + 3 * i + 2] = 0
    while at < end:
        begin = at
        at = _tag(text, at, end, slots)
        if at < 0:
            return _LIBRARY
        tag = slots[0]
        at = _value(text, at, end, tag, slots, 0)
        if at < 0:
            return _LIBRARY
        i = _find(numbers, fields, count, tag >> 3, guess)
        if i < 0:
            if numbers[kind + 2] or tag & 7 == 3:
                return _LIBRARY  # an extension, or in a map's entry
            continue
        guess = i + 1
        field = fields + _FIELD * i
        code = numbers[field + _CODE]
        flags = numbers[field + _FLAGS]
        slot = base + 3 * i
        if tag & 7 != _wire_type(code) and not (flags & _REPEATED and tag & 7 == 2 and code != 10):
            return _LIBRARY
        if flags & _REPEATED:
            # What lies between is read again for each field: thousands of fields would read megabytes each.
            if slots[slot + 2] == 0:
                slots[slot] = begin
            else:
                between += begin - slots[slot + 1]
            if between > most_between:
                return _LIBRARY
            slots[slot + 1] = at
            slots[slot + 2] += 1
            continue
        if slots[slot + 2]:
            return _LIBRARY
        other = numbers[field + _NEXT_MEMBER]
        while other != i:
            if slots[base + 3 * other + 2]:
                return _LIBRARY
            other = numbers[fields + _FIELD * other + _NEXT_MEMBER]
        slots[slot] = slots[0]
        slots[slot + 1] = slots[1]
        slots[slot + 2] = 1
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unsigned(out: Out, position: Long, value: ULong) -> Long:
    return _digits(out, position, value, _digit_count(value))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _half_bits(code: Long, bits: Long) -> Long:
    """The value of a type of 32 bits: those that count of a longer number, with its sign."""
    half: ULong = cython.cast(cython.ulonglong, bits) & _ALL_32
    if code == 17:
        half = (half >> 1) ^ ((0 - (half & 1)) & _ALL_32)
    if code == 7 or code == 13 or code == 2:
        return half
    return cython.cast(Long, half ^ _HALF) - cython.cast(Long, _HALF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_zero(code: Long, a: Long, b: Long) -> Bool:
    """Whether a field without presence that has this value counts as not set."""
    if code == 9 or code == 12:
        return b == 0
    if code == 5 or code == 13 or code == 14 or code == 17:
        return cython.cast(cython.ulonglong, a) & _ALL_32 == 0
    return a == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enum(out: Out, position: Long, limit: Long, numbers: Longs, kind: Long, literals: Bytes, bits: Long) -> Long:
    """An enum's name; the number where the type is open and does not know it."""
    value: Long = _half_bits(14, bits)
    low: Long = 0
    high: Long = numbers[kind]
    middle: Long
    entry: Long
    if high < 0:  # NullValue
        return _put(out, position, b"null", 4)
    while low < high:
        middle = (low + high) >> 1
        if numbers[kind + 2 + 3 * middle] < value:
            low = middle + 1
        else:
            high = middle
    entry = kind + 2 + 3 * low
    if low < numbers[kind] and numbers[entry] == value:
        if limit - position < numbers[entry + 2]:
            return _FULL
        memcpy(out + position, literals + numbers[entry + 1], numbers[entry + 2])
        return position + numbers[entry + 2]
    return _LIBRARY if numbers[kind + 1] else _number(out, position, value)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _float32(out: Out, position: Long, bits: ULong, powers: Powers) -> Long:
    """The library tries 6 digits first, which is not the shortest text of the smallest floats, nor perhaps of a power
    of 2."""
    exponent: ULong = bits >> 23 & 255
    fraction: ULong = bits & 0x7FFFFF
    if (exponent == 0 and fraction != 0) or (fraction == 0 and 0 < exponent < 255 and not 121 <= exponent <= 143):
        return _LIBRARY
    return _float(out, position, bits, 23, 255, powers)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scalar(
    out: Out, position: Long, limit: Long, numbers: Longs, field: Long, literals: Bytes, powers: Powers, a: Long
) -> Long:
    """A number, boolean or enum; there is room for 64 bytes."""
    code: Long = numbers[field + _CODE]
    if code == 14:
        return _enum(out, position, limit, numbers, numbers[field + _BELOW], literals, a)
    if code == 5 or code == 7 or code == 13 or code == 15 or code == 17:
        return _number(out, position, _half_bits(code, a))
    if code == 8:
        return _put(out, position, b"true", 4) if a else _put(out, position, b"false", 5)
    if code == 1:
        return _float(out, position, cython.cast(cython.ulonglong, a), 52, 2047, powers)
    if code == 2:
        return _float32(out, position, cython.cast(cython.ulonglong, a), powers)
    out[position] = 34
    if code == 4 or code == 6:
        position = _unsigned(out, position + 1, cython.cast(cython.ulonglong, a))
    elif code == 18:
        bits: ULong = cython.cast(cython.ulonglong, a)
        position = _number(out, position + 1, cython.cast(Long, (bits >> 1) ^ (0 - (bits & 1))))
    else:
        position = _number(out, position + 1, a)
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _one(
    numbers: Longs, field: Long, literals: Bytes, powers: Powers, text: Bytes, size: Long,
    out: Out, position: Long, limit: Long, slots: Cells, base: Long, top: Long, depth: Long, a: Long, b: Long,
) -> Long:  # fmt: skip
    """One value of a field."""
    code: Long = numbers[field + _CODE]
    if limit - position < _SPARE:
        return _FULL
    if code == 11 or code == 10:
        return _message(
            numbers, numbers[field + _BELOW], literals, powers, text, a, a + b, size, out, position, limit, slots, base,
            top, depth + 1,
        )  # fmt: skip
    if code == 9:
        if limit - position < 6 * b + 16 and limit - position < _escaped_size(text, a, b) + 16:
            return _FULL
        position = _escaped(out, position, text, a, b, size)
        return position if position >= 0 else _LIBRARY
    if code == 12:
        if (limit - position - 16) // 4 < (b + 2) // 3:
            return _FULL
        return _base64(out, position, text, a, b)
    return _scalar(out, position, limit, numbers, field, literals, powers, a)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _repeated(
    numbers: Longs, field: Long, literals: Bytes, powers: Powers, text: Bytes, size: Long,
    out: Out, position: Long, limit: Long, slots: Cells, slot: Long, base: Long, top: Long, depth: Long,
) -> Long:  # fmt: skip
    """A list; _EMPTY where all that occurs is packed lists without items."""
    code: Long = numbers[field + _CODE]
    number: Long = numbers[field]
    wire: Long = _wire_type(code)
    at: Long = slots[slot]
    stop: Long = slots[slot + 1]
    begin: Long = position + 1
    tag: Long
    item: Long
    end: Long
    out[position] = 91
    position += 1
    while at < stop:
        at = _tag(text, at, stop, slots)
        if at < 0:
            return _LIBRARY
        tag = slots[0]
        at = _value(text, at, stop, tag, slots, 0)
        if at < 0:
            return _LIBRARY
        if tag >> 3 != number:
            continue
        if tag & 7 == wire:
            item = -1
            end = 0
        else:
            item = slots[0]
            end = item + slots[1]
        while item < end:
            if item >= 0:
                item = _value(text, item, end, wire, slots, 0)
                if item < 0:
                    return _LIBRARY
            else:
                item = end
            if limit - position < _SPARE:
                return _FULL
            if position > begin:
                out[position] = 44
                position += 1
            position = _one(
                numbers, field, literals, powers, text, size, out, position, limit, slots, base, top, depth, slots[0],
                slots[1],
            )  # fmt: skip
            if position < 0:
                return position
    if position == begin:
        return _EMPTY
    if limit - position < 2:
        return _FULL
    out[position] = 93
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _text_order(a: ULong, b: ULong) -> Long:
    """Below, at or above 0 as the decimal text of `a` comes before, at or after that of `b`; 2 where it is not told."""
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
    """The order of two keys of a map as texts: -1, 0 or 1; 2 where it is not told."""
    found: Long
    if code == 9:
        found = memcmp(text + a, text + other_a, b if b < other_b else other_b)
        if found == 0:
            found = b - other_b
        return -1 if found < 0 else 1 if found > 0 else 0
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
def _map(
    numbers: Longs, field: Long, literals: Bytes, powers: Powers, text: Bytes, size: Long,
    out: Out, position: Long, limit: Long, slots: Cells, slot: Long, base: Long, top: Long, depth: Long,
) -> Long:  # fmt: skip
    """An object in the order of its keys. Entries are sorted as five numbers each, from `base` on: those of the key, of
    the value, and whether there is a value."""
    kind: Long = numbers[field + _BELOW]
    key: Long = kind + _TYPE
    value: Long = key + _FIELD
    code: Long = numbers[key + _CODE]
    count: Long = slots[slot + 2]
    at: Long = slots[slot]
    stop: Long = slots[slot + 1]
    inner: Long = base + 5 * count
    tag: Long
    place: Long
    order: Long
    i: Long
    j: Long = 0
    found: Long = 0
    if count > _MOST_ENTRIES or top - inner < 12:
        return _LIBRARY
    while at < stop:
        at = _tag(text, at, stop, slots)
        if at < 0:
            return _LIBRARY
        tag = slots[0]
        at = _value(text, at, stop, tag, slots, 0)
        if at < 0:
            return _LIBRARY
        if tag >> 3 != numbers[field]:
            continue
        if tag & 7 != 2 or found == count:
            return _LIBRARY
        if _scan(numbers, kind, text, slots[0], slots[0] + slots[1], slots, inner) < 0:
            return _LIBRARY
        if slots[inner + 2] == 0:
            slots[inner] = slots[inner + 1] = 0
        i = found
        while i > 0:
            place = base + 5 * (i - 1)
            order = _key_order(text, code, slots[inner], slots[inner + 1], slots[place], slots[place + 1])
            if order == 0 or order == 2:
                return _LIBRARY
            if order > 0:
                break
            for j in range(5):
                slots[place + 5 + j] = slots[place + j]
            i -= 1
        place = base + 5 * i
        slots[place] = slots[inner]
        slots[place + 1] = slots[inner + 1]
        slots[place + 2] = slots[inner + 3]
        slots[place + 3] = slots[inner + 4]
        slots[place + 4] = slots[inner + 5]
        found += 1
    out[position] = 123
    position += 1
    for i in range(found):
        place = base + 5 * i
        if limit - position < _SPARE:
            return _FULL
        if i:
            out[position] = 44
            position += 1
        if code == 9 or code == 3 or code == 4 or code == 6 or code == 16 or code == 18:  # which are strings anyway
            position = _one(
                numbers, key, literals, powers, text, size, out, position, limit, slots, inner, top, depth,
                slots[place], slots[place + 1],
            )  # fmt: skip
            if position < 0:
                return position
        else:
            out[position] = 34
            position = _scalar(out, position + 1, limit, numbers, key, literals, powers, slots[place])
            out[position] = 34
            position += 1
        if limit - position < 2:
            return _FULL
        out[position] = 58
        position += 1
        if slots[place + 4] == 0:
            slots[place + 2] = numbers[value + _DEFAULT]
            slots[place + 3] = 0
        position = _one(
            numbers, value, literals, powers, text, size, out, position, limit, slots, inner, top, depth,
            slots[place + 2], slots[place + 3],
        )  # fmt: skip
        if position < 0:
            return position
    if limit - position < 2:
        return _FULL
    out[position] = 125
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fraction(out: Out, position: Long, nanos: Long) -> Long:
    """Of a second: nothing, or 3, 6 or 9 decimals."""
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
    """A Timestamp or a Duration."""
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
def _well_known(
    numbers: Longs, kind: Long, literals: Bytes, powers: Powers, text: Bytes, size: Long,
    out: Out, position: Long, limit: Long, slots: Cells, base: Long, top: Long, depth: Long,
) -> Long:  # fmt: skip
    """What has a form of its own, whose fields are in the slots from `base` on."""
    what: Long = numbers[kind]
    count: Long = numbers[kind + 1]
    inner: Long = base + 3 * count
    i: Long
    slot: Long
    field: Long
    bits: Long
    if what == _TIMESTAMP or what == _DURATION:
        return _seconds(
            out,
            position,
            what,
            slots[base] if slots[base + 2] else 0,
            _half_bits(5, slots[base + 3]) if slots[base + 5] else 0,
        )
    for i in range(count):
        slot = base + 3 * i
        field = kind + _TYPE + _FIELD * i
        if slots[slot + 2] == 0:
            if what != _WRAPPER:
                continue
            slots[slot] = slots[slot + 1] = 0
        if what == _STRUCT:
            return _map(
                numbers, field, literals, powers, text, size, out, position, limit, slots, slot, inner, top, depth
            )
        if what == _LIST:
            return _repeated(
                numbers, field, literals, powers, text, size, out, position, limit, slots, slot, inner, top, depth
            )
        if what == _VALUE and numbers[field + _CODE] == 1:
            bits = slots[slot] >> 52 & 2047
            if bits == 2047:
                return _LIBRARY
        return _one(
            numbers, field, literals, powers, text, size, out, position, limit, slots, inner, top, depth, slots[slot],
            slots[slot + 1],
        )  # fmt: skip
    if what == _VALUE:
        return _put(out, position, b"null", 4)
    return _put(out, position, b"{}" if what == _STRUCT else b"[]", 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _message(
    numbers: Longs, kind: Long, literals: Bytes, powers: Powers, text: Bytes, at: Long, end: Long, size: Long,
    out: Out, position: Long, limit: Long, slots: Cells, base: Long, top: Long, depth: Long,
) -> Long:  # fmt: skip
    """The JSON of the message of this type in text[at:end]; the position after it."""
    count: Long = numbers[kind + 1]
    inner: Long = base + 3 * count
    i: Long
    slot: Long
    field: Long
    flags: Long
    begin: Long
    before: Long
    length: Long
    if numbers[kind] == _UNCOVERED or depth > _MOST_WITHIN_EACH_OTHER or inner > top:
        return _LIBRARY
    if _scan(numbers, kind, text, at, end, slots, base) < 0:
        return _LIBRARY
    if limit - position < _SPARE:
        return _FULL
    if numbers[kind] != _MESSAGE:
        return _well_known(numbers, kind, literals, powers, text, size, out, position, limit, slots, base, top, depth)
    out[position] = 123
    position += 1
    begin = position
    for i in range(count):
        slot = base + 3 * i
        if slots[slot + 2] == 0:
            continue
        field = kind + _TYPE + _FIELD * i
        flags = numbers[field + _FLAGS]
        if not flags and _is_zero(numbers[field + _CODE], slots[slot], slots[slot + 1]):
            continue
        before = position
        length = numbers[field + _NAME_LENGTH]
        if limit - position < length + _SPARE:
            return _FULL
        # The name begins with a comma.
        if position == begin:
            length -= 1
        memcpy(out + position, literals + (numbers[field + _NAME] + numbers[field + _NAME_LENGTH] - length), length)
        position += length
        if flags & _MAP:
            position = _map(
                numbers, field, literals, powers, text, size, out, position, limit, slots, slot, inner, top, depth
            )
        elif flags & _REPEATED:
            position = _repeated(
                numbers, field, literals, powers, text, size, out, position, limit, slots, slot, inner, top, depth
            )
            if position == _EMPTY:
                position = before
        else:
            position = _one(
                numbers, field, literals, powers, text, size, out, position, limit, slots, inner, top, depth,
                slots[slot], slots[slot + 1],
            )  # fmt: skip
        if position < 0:
            return position
    if limit - position < 2:
        return _FULL
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
    """Decodes the data of `rows` into `out` from `position` on, until one does not fit.

    `columns`: start and length of each row's data in `buffer`: message indexes and message. `roots`: of each message
    type that may be there, where its indexes are in `literals`, how many bytes they have, and its place in `numbers`.
    `texts`: where a row's text is in `out`, and how long; untouched where the library must do it. Data of more than
    `most_bytes` are the library's. `slots`: memory of the caller's. `powers`: avro_program.POWERS.
    Returns (how many of `rows` are done, position after the last text). What comes after that in `out` may have
    changed.
    """
    size: Long = buffer.shape[0]
    limit: Long = out.shape[0] - _SPARE
    top: Long = slots.shape[0]
    count: Long = rows.shape[0]
    done: Long = 0
    row: Long
    start: Long
    length: Long
    i: Long
    before: Long
    kind: Long
    end: Long
    if columns.shape[0] < 2 or texts.shape[0] < 2 or columns.shape[1] != texts.shape[1] or position < 0 or top < 16:
        raise ValueError("columns, slots or position out of range")
    if count == 0 or limit <= 0 or size == 0:
        return 0, position
    text: Bytes = cython.address(buffer[0])
    target: Out = cython.address(out[0])
    types: Longs = cython.address(numbers[0])
    fixed: Bytes = cython.address(literals[0])
    tens: Powers = cython.address(powers[0])
    cells: Cells = cython.address(slots[0])
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
                    if before <= length and memcmp(text + start, fixed + roots[3 * i], before) == 0:
                        kind = roots[3 * i + 2]
                        break
            if kind >= 0:
                end = _message(
                    types, kind, fixed, tens, text, start + before, start + length, size, target, position, limit,
                    cells, 2, top, 0,
                )  # fmt: skip
                if end == _FULL:
                    break
                if end >= 0:
                    texts[0, row] = position
                    texts[1, row] = end - position
                    position = end
            done += 1
    return done, position
