# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loop over Kafka's own messages: columns of records to JSON texts as Kafka's JSON converters write them.

Cython in pure-Python mode; the same file runs uncompiled with equal results, some hundred times slower. A message is a
list of steps (`messages.py` builds them), one a field. No length or count that is read is trusted: each is compared
with what is left before it is used. Only the definitions nest, never the data.
"""

from __future__ import annotations

import struct

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    # message_kernel.pxd declares the same numbers: as variables each use would load them.
    # Numbers of a step: its type, where its name is in the literals and how long, whether it is an array, if it may
    # be null, its tag (-1: none), its default, whether that is null, the first step of a struct, and the bytes that it
    # takes, or that its length does. A struct's first step has the number of its fields, whether a field is tagged, and
    # whether one that is not follows one that is.
    _WIDTH = 10
    _TYPE = 0
    _NAME = 1
    _NAME_LENGTH = 2
    _ARRAY = 3
    _NULLABLE = 4
    _TAG = 5
    _DEFAULT = 6
    _DEFAULT_IS_NULL = 7
    _STRUCT_STEP = 8
    _SIZE = 9
    _COUNT = 1
    _TAGGED = 2
    _MIXED = 3
    # The types, see messages.TYPES.
    _BOOL = 0
    _INT16 = 2
    _UINT16 = 3
    _INT32 = 4
    _UINT32 = 5
    _INT64 = 6
    _FLOAT64 = 7
    _STRING = 8
    _BYTES = 9
    _UUID = 10
    # Faults; the numbers of messages.Fault. FULL is not a fault: the output is too small.
    _FULL = -1
    _SHORT = -2
    _NULL = -3
    _VARINT = -4
    _UNKNOWN_TYPE = -5
    _UNKNOWN_VERSION = -6
    _FRAME = -7
    _LEFT_OVER = -8
    _OUTSIDE = -9
    _TOO_LONG = -10
    # Bytes of a key or value as JSON, see messages.MOST_JSON.
    _MOST_JSON = 1 << 25
    # Framings of a group of messages, see messages.Framing.
    _FRAMED = 1
    _PLAIN = 2
    _CONTROL = 3
    # More types and versions than there are.
    _TYPES = 64
    _VERSIONS = 16
    # The state of reading: cells of the caller's memory. After them, each depth of structs has the places of its tags.
    _AT = 0
    _POSITION = 1
    _STEP = 2
    _FOUND = 3
    _TAGS = 4
    _TAGS_A_STRUCT = 16
    _CELLS = 4 + 8 * 2 * 16
    # More bytes than are written without a look at the space that is left.
    _SPARE = 64
    # Numbers of an entry: the first step, whether it is flexible, where the text before its fields is, and how long.
    _ENTRY = 4

# C pointers when compiled; memoryviews when not.
Long = cython.typedef(cython.longlong)
ULong = cython.typedef(cython.ulonglong)
Bool = cython.typedef(cython.bint)
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Text = cython.typedef(cython.pointer(cython.const[cython.char]))
Out = cython.typedef(cython.pointer(cython.uchar))
Longs = cython.typedef(cython.pointer(cython.const[cython.longlong]))
Cells = cython.typedef(cython.pointer(cython.longlong))

_MAX_UINT32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _four(text: Bytes, at: Long) -> cython.uint:
    """Four bytes, of one type, so that the compiler sees that they are a word."""
    a: cython.uint = text[at]
    b: cython.uint = text[at + 1]
    c: cython.uint = text[at + 2]
    d: cython.uint = text[at + 3]
    return a << 24 | b << 16 | c << 8 | d


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _big_endian(text: Bytes, at: Long, count: Long) -> ULong:
    """The number in 1, 2, 4 or 8 bytes."""
    first: ULong = text[at]
    if count == 8:
        first = _four(text, at)
        return first << 32 | _four(text, at + 4)
    if count == 4:
        return _four(text, at)
    return first << 8 | text[at + 1] if count == 2 else first


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _signed(value: ULong, count: Long) -> Long:
    """The number whose `count` bytes these are, in two's complement."""
    shift: Long = 64 - 8 * count
    if cython.compiled:
        return cython.cast(cython.longlong, value << shift) >> shift
    return value - (1 << 8 * count) if value >> (8 * count - 1) else value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _uvarint(text: Bytes, end: Long, cells: Cells) -> Long:
    """An unsigned varint of 32 bits, or a fault."""
    value: Long = 0
    shift: Long = 0
    while shift < 35:
        if cells[_AT] >= end:
            return _SHORT
        value |= cython.cast(cython.longlong, text[cells[_AT]] & 0x7F) << shift
        cells[_AT] += 1
        if text[cells[_AT] - 1] < 0x80:
            return value if value <= _MAX_UINT32 else _VARINT
        shift += 7
    return _VARINT


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _literal(out: Out, position: Long, literals: Bytes, start: Long, length: Long) -> Long:
    """Copies a literal in pieces of 16 bytes, which is faster; the program has as many bytes after its literals."""
    i: Long
    if cython.compiled:
        for i in range(0, length, 16):
            memcpy(out + position + i, literals + start + i, 16)
    else:
        out[position : position + length] = literals[start : start + length]
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _word(out: Out, position: Long, a: cython.uint, b: cython.uint, c: cython.uint, d: cython.uint) -> Long:
    """Writes four characters."""
    out[position] = cython.cast(cython.uchar, a)
    out[position + 1] = cython.cast(cython.uchar, b)
    out[position + 2] = cython.cast(cython.uchar, c)
    out[position + 3] = cython.cast(cython.uchar, d)
    return position + 4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(out: Out, position: Long, value: Long) -> Long:
    """Writes a number in decimal."""
    rest: ULong
    larger: ULong
    pair: cython.uint
    at: Long
    if cython.compiled:
        rest = cython.cast(cython.ulonglong, value)
        if value < 0:
            rest = 0 - rest
    else:
        rest = abs(value)
    if value < 0:
        out[position] = 45
        position += 1
    size: Long = 1
    larger = rest
    while larger >= 10000:
        larger = larger // 10000
        size += 4
    if larger >= 1000:
        size += 3
    elif larger >= 100:
        size += 2
    elif larger >= 10:
        size += 1
    at = position + size
    while rest >= 100:
        pair = cython.cast(cython.uint, rest % 100)
        rest = rest // 100
        at -= 2
        out[at] = cython.cast(cython.uchar, 48 + pair // 10)
        out[at + 1] = cython.cast(cython.uchar, 48 + pair % 10)
    pair = cython.cast(cython.uint, rest)
    out[at - 1] = cython.cast(cython.uchar, 48 + pair % 10)
    if pair >= 10:
        out[at - 2] = cython.cast(cython.uchar, 48 + pair // 10)
    return position + size


@cython.cfunc
@cython.with_gil
@cython.exceptval(check=False)
def _double(out: Out, position: Long, bits: ULong) -> Long:
    """Writes a number as Python does; as a string if JSON has no number for it."""
    value = struct.unpack(">d", int(bits).to_bytes(8, "big"))[0]
    text = repr(value)
    if value != value:
        text = '"NaN"'
    elif value - value != 0:
        text = '"Infinity"' if value > 0 else '"-Infinity"'
    for character in text.encode():
        out[position] = character
        position += 1
    return position


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sequence(text: Bytes, at: Long, end: Long) -> Long:
    """How many bytes the UTF-8 sequence at `at` has, whose first byte is above 0x7f. If it is invalid: minus the number
    of bytes that Java's decoder replaces by one U+FFFD."""
    lead: cython.uint = text[at]
    left: Long = end - at
    if lead < 0xC2 or lead > 0xF4 or left < 2:
        return -1
    second: cython.uint = text[at + 1]
    if (second & 0xC0) != 0x80:
        return -1
    if lead < 0xE0:
        return 2
    if (lead == 0xE0 and second < 0xA0) or (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
        return -1
    if left < 3 or (text[at + 2] & 0xC0) != 0x80:
        return -2
    if lead < 0xF0:
        return -3 if lead == 0xED and second > 0x9F else 3  # a surrogate
    return 4 if left > 3 and (text[at + 3] & 0xC0) == 0x80 else -3


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _string(out: Out, position: Long, text: Bytes, at: Long, end: Long) -> Long:
    """A JSON string with its quotes, at most six times as long as the text."""
    digits: Text = b"0123456789abcdef"
    letters: Text = b"uuuuuuuubtnufruu"
    byte: cython.uint
    letter: cython.uint
    count: Long
    i: Long
    out[position] = 34
    position += 1
    while at < end:
        byte = text[at]
        if byte > 0x7F:
            count = _sequence(text, at, end)
            if count < 0:
                out[position] = 0xEF
                out[position + 1] = 0xBF
                out[position + 2] = 0xBD
                position += 3
                at -= count
                continue
            for i in range(count):
                out[position + i] = text[at + i]
            position += count
            at += count
            continue
        if byte > 31 and byte != 34 and byte != 92:
            out[position] = cython.cast(cython.uchar, byte)
            position += 1
        else:
            letter = byte if byte > 31 else letters[byte] if byte < 16 else 117
            out[position] = 92
            out[position + 1] = cython.cast(cython.uchar, letter)
            position += 2
            if letter == 117:
                position = _word(out, position, 48, 48, digits[byte >> 4], digits[byte & 15])
        at += 1
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _base64(out: Out, position: Long, text: Bytes, at: Long, end: Long, url: Bool) -> Long:
    """A JSON string of RFC 4648's base64, padded; with `url` in the other alphabet and without padding."""
    digits: Text = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    if url:
        digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    bits: cython.uint
    left: Long
    out[position] = 34
    position += 1
    while at < end:
        left = end - at
        bits = text[at] << 16
        if left > 1:
            bits |= text[at + 1] << 8
        if left > 2:
            bits |= text[at + 2]
        _word(
            out, position, digits[bits >> 18], digits[(bits >> 12) & 63],
            digits[(bits >> 6) & 63] if left > 1 else 61, digits[bits & 63] if left > 2 else 61,
        )  # fmt: skip
        position += 4 if left > 2 or not url else left + 1
        at += 3
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _length(text: Bytes, end: Long, cells: Cells, size: Long, flexible: Bool) -> Long:
    """Reads the length or count before a text, bytes or an array, -1 for null, into cells[_FOUND]: `size` bytes, or a
    varint of one more. Returns 0, or a fault."""
    outcome: Long
    if flexible:
        outcome = _uvarint(text, end, cells)
        if outcome < 0:
            return outcome
        cells[_FOUND] = outcome - 1
        return 0
    if end - cells[_AT] < size:
        return _SHORT
    cells[_FOUND] = _signed(_big_endian(text, cells[_AT], size), size)
    if cells[_FOUND] < 0:
        cells[_FOUND] = -1
    cells[_AT] += size
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _null(out: Out, cells: Cells, steps: Longs, step: Long, writing: Bool) -> Long:
    """Handles null: returns whether null is the field's default, or a fault if the field may not be null."""
    if not steps[step + _NULLABLE]:
        return _NULL
    if writing:
        cells[_POSITION] = _word(out, cells[_POSITION], 110, 117, 108, 108)
    return steps[step + _DEFAULT_IS_NULL]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field(
    steps: Longs, literals: Bytes, text: Bytes, end: Long, out: Out, limit: Long, cells: Cells,
    step: Long, flexible: Bool, depth: Long, writing: Bool,
) -> Long:  # fmt: skip
    """Reads a field; returns whether it has its default, or a fault."""
    count: Long
    outcome: Long
    if not steps[step + _ARRAY]:
        return _value(steps, literals, text, end, out, limit, cells, step, flexible, depth, writing)
    cells[_STEP] = step
    outcome = _length(text, end, cells, 4, flexible)
    if outcome < 0:
        return outcome
    count = cells[_FOUND]
    if count < 0:
        return _null(out, cells, steps, step, writing)
    if count > end - cells[_AT]:  # each takes a byte at least
        return _SHORT
    if writing:
        out[cells[_POSITION]] = 91
        cells[_POSITION] += 1
    i: Long
    for i in range(count):
        if writing and i:
            out[cells[_POSITION]] = 44
            cells[_POSITION] += 1
        outcome = _value(steps, literals, text, end, out, limit, cells, step, flexible, depth, writing)
        if outcome < 0:
            return outcome
    if writing:
        out[cells[_POSITION]] = 93
        cells[_POSITION] += 1
    return count == 0 and not steps[step + _DEFAULT_IS_NULL]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _value(
    steps: Longs, literals: Bytes, text: Bytes, end: Long, out: Out, limit: Long, cells: Cells,
    step: Long, flexible: Bool, depth: Long, writing: Bool,
) -> Long:  # fmt: skip
    """Reads a field that is not an array, or an array's element; returns the same as `_field`."""
    kind: Long = steps[step + _TYPE]
    at: Long
    size: Long
    number: Long
    outcome: Long
    is_null: Long
    bits: ULong
    cells[_STEP] = step
    if writing and cells[_POSITION] > limit:
        return _FULL
    if kind in (_STRING, _BYTES):
        outcome = _length(text, end, cells, steps[step + _SIZE], flexible)
        if outcome < 0:
            return outcome
        size = cells[_FOUND]
        if size < 0:
            return _NULL if steps[step + _ARRAY] else _null(out, cells, steps, step, writing)
        at = cells[_AT]
        if size > end - at:
            return _SHORT
        cells[_AT] = at + size
        if writing:
            if cells[_POSITION] > limit - 6 * size:
                return _FULL
            if kind == _STRING:
                cells[_POSITION] = _string(out, cells[_POSITION], text, at, at + size)
            else:
                cells[_POSITION] = _base64(out, cells[_POSITION], text, at, at + size, False)
        return size == 0 and not steps[step + _DEFAULT_IS_NULL]
    if kind > _UUID:
        if steps[step + _NULLABLE] and not steps[step + _ARRAY]:
            if cells[_AT] >= end:
                return _SHORT
            is_null = text[cells[_AT]]
            cells[_AT] += 1
            # Null is a negative int8; in a tagged field, a varint of 0.
            if (is_null == 0) if steps[step + _TAG] >= 0 else (is_null > 127):
                return _null(out, cells, steps, step, writing)
        outcome = _struct(
            steps, literals, text, end, out, limit, cells, steps[step + _STRUCT_STEP], flexible, depth + 1, writing
        )
        return outcome if outcome < 0 else outcome and not steps[step + _DEFAULT_IS_NULL]
    size = steps[step + _SIZE]
    at = cells[_AT]
    if size > end - at:
        return _SHORT
    cells[_AT] = at + size
    if kind == _UUID:
        if writing:
            cells[_POSITION] = _base64(out, cells[_POSITION], text, at, at + size, True)
        return _big_endian(text, at, 8) == 0 and _big_endian(text, at + 8, 8) == 0
    bits = _big_endian(text, at, size)
    if kind == _FLOAT64:
        if writing:
            cells[_POSITION] = _double(out, cells[_POSITION], bits)
        return bits == 0
    if kind == _BOOL:
        number = bits != 0
        if writing:
            if number:
                cells[_POSITION] = _word(out, cells[_POSITION], 116, 114, 117, 101)
            else:
                out[cells[_POSITION]] = 102
                cells[_POSITION] = _word(out, cells[_POSITION] + 1, 97, 108, 115, 101)
        return number == steps[step + _DEFAULT]
    number = bits if kind in (_UINT16, _UINT32) else _signed(bits, size)
    if writing:
        cells[_POSITION] = _number(out, cells[_POSITION], number)
    return number == steps[step + _DEFAULT]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _name(out: Out, limit: Long, cells: Cells, literals: Bytes, steps: Longs, step: Long, first: Long) -> Long:
    """The comma and the name before a field; 0, or a fault."""
    if cells[_POSITION] > limit - steps[step + _NAME_LENGTH]:
        return _FULL
    if cells[_POSITION] > first:
        out[cells[_POSITION]] = 44
        cells[_POSITION] += 1
    cells[_POSITION] = _literal(out, cells[_POSITION], literals, steps[step + _NAME], steps[step + _NAME_LENGTH])
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _struct(
    steps: Longs, literals: Bytes, text: Bytes, end: Long, out: Out, limit: Long, cells: Cells,
    head: Long, flexible: Bool, depth: Long, writing: Bool,
) -> Long:  # fmt: skip
    """Reads a struct, with its braces; returns whether all its fields have their defaults, or a fault.

    On the wire the tagged fields follow all others; in the text they are where the definition has them."""
    count: Long = steps[head + _COUNT]
    mixed: Bool = writing and steps[head + _MIXED]
    tags: Long = _TAGS + 2 * _TAGS_A_STRUCT * depth
    start: Long = cells[_AT]
    after: Long
    before: Long
    first: Long
    step: Long
    outcome: Long
    tag: Long
    size: Long
    i: Long
    is_default: Long = 1
    if writing:
        if cells[_POSITION] > limit:
            return _FULL
        out[cells[_POSITION]] = 123
        cells[_POSITION] += 1
    first = cells[_POSITION]
    for i in range(1, count + 1):
        step = head + i * _WIDTH
        if steps[step + _TAG] < 0:
            if writing and not mixed:
                outcome = _name(out, limit, cells, literals, steps, step, first)
                if outcome < 0:
                    return outcome
            outcome = _field(
                steps, literals, text, end, out, limit, cells, step, flexible, depth, writing and not mixed
            )
            if outcome < 0:
                return outcome
            is_default &= outcome
    if flexible:
        outcome = _tags(text, end, cells, tags if steps[head + _TAGGED] else 0)
        if outcome < 0:
            return outcome
    if not writing:
        return is_default
    after = cells[_AT]
    if mixed:
        is_default = 1
    if mixed or steps[head + _TAGGED]:
        for i in range(1, count + 1):
            step = head + i * _WIDTH
            tag = steps[step + _TAG]
            if cells[tags + 2 * tag] < 0 if tag >= 0 else not mixed:
                continue
            before = cells[_POSITION]
            outcome = _name(out, limit, cells, literals, steps, step, first)
            if outcome < 0:
                return outcome
            if tag < 0:
                cells[_AT] = start
                outcome = _field(steps, literals, text, end, out, limit, cells, step, flexible, depth, True)
                start = cells[_AT]
            else:
                cells[_AT] = cells[tags + 2 * tag]
                size = cells[tags + 2 * tag + 1]
                outcome = _field(steps, literals, text, size, out, limit, cells, step, flexible, depth, True)
                if outcome == 1:
                    cells[_POSITION] = before
            if outcome < 0:
                return outcome
            is_default &= outcome
    cells[_AT] = after
    if cells[_POSITION] > limit:
        return _FULL
    out[cells[_POSITION]] = 125
    cells[_POSITION] += 1
    return is_default


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tags(text: Bytes, end: Long, cells: Cells, tags: Long) -> Long:
    """The tagged fields at the end of a struct: where each begins and ends, from cells[tags] on (0: nowhere). Unknown
    tags are skipped, and of a tag given twice the last counts. 0, or a fault."""
    tag: Long
    size: Long
    number: Long
    i: Long
    if tags:
        for i in range(tags, tags + 2 * _TAGS_A_STRUCT):
            cells[i] = -1
    number = _uvarint(text, end, cells)
    while number > 0:
        tag = _uvarint(text, end, cells)
        size = tag if tag < 0 else _uvarint(text, end, cells)
        if size < 0:
            return size
        if size > end - cells[_AT]:
            return _SHORT
        if tags and tag < _TAGS_A_STRUCT:
            cells[tags + 2 * tag] = cells[_AT]
            cells[tags + 2 * tag + 1] = cells[_AT] + size
        cells[_AT] += size
        number -= 1
    return number


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _message(
    steps: Longs, literals: Bytes, entries: Longs, text: Bytes, end: Long, out: Out, limit: Long, cells: Cells,
    entry: Long,
) -> Long:  # fmt: skip
    """A whole message with the text around it; 0, or a fault."""
    outcome: Long
    head: Long = entries[entry * _ENTRY]
    length: Long = entries[entry * _ENTRY + 3]
    if cells[_POSITION] > limit - length:
        return _FULL
    cells[_POSITION] = _literal(out, cells[_POSITION], literals, entries[entry * _ENTRY + 2], length)
    outcome = _struct(steps, literals, text, end, out, limit, cells, head, entries[entry * _ENTRY + 1] != 0, 0, True)
    if outcome < 0:
        return outcome
    out[cells[_POSITION]] = 125
    cells[_POSITION] += 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _key(text: Bytes, end: Long, cells: Cells, framing: Long, keys: Longs) -> Long:
    """The type of a record by its key; or a fault."""
    kind: Long
    if framing == _PLAIN:
        return 0 if keys[0] >= 0 else _UNKNOWN_TYPE
    if framing == _CONTROL:
        cells[_AT] += 2  # the key's version
    if end - cells[_AT] < 2:
        return _SHORT
    kind = _signed(_big_endian(text, cells[_AT], 2), 2)
    cells[_FOUND] = kind
    cells[_AT] += 2
    return kind if 0 <= kind < _TYPES and keys[kind] >= 0 else _UNKNOWN_TYPE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _entry(text: Bytes, end: Long, cells: Cells, framing: Long, kind: Long, keys: Longs, values: Longs) -> Long:
    """The entry of a value; or a fault."""
    version: Long = 0
    if framing == _FRAMED:
        version = _uvarint(text, end, cells)
        cells[_FOUND] = version
        if version != 1:
            return version if version < 0 else _FRAME
        kind = _uvarint(text, end, cells)
        version = kind if kind < 0 else _uvarint(text, end, cells)
        if version < 0:
            return version
        cells[_FOUND] = kind
        if kind >= _TYPES or keys[kind] < 0:
            return _UNKNOWN_TYPE
    elif framing != _CONTROL or kind < 2:  # the version of other control records is a field of theirs
        if end - cells[_AT] < 2:
            return _SHORT
        version = 0 if framing == _CONTROL else _signed(_big_endian(text, cells[_AT], 2), 2)
        cells[_AT] += 2
    cells[_FOUND] = version
    if version < 0 or version >= _VERSIONS or values[kind * _VERSIONS + version] < 0:
        return _UNKNOWN_VERSION
    return values[kind * _VERSIONS + version]


def run(
    steps: cython.const[cython.longlong][::1],
    literals: cython.const[cython.uchar][::1],
    entries: cython.const[cython.longlong][::1],
    keys: cython.const[cython.longlong][::1],
    values: cython.const[cython.longlong][::1],
    framing: Long,
    exact: cython.bint,
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: Long,
    results: cython.longlong[:, ::1],
    cells: cython.longlong[::1],
) -> tuple[int, int]:
    """Reads the records from `row` on into `out` from `position` on, until one does not fit: (first row not done,
    position after the last text). What comes after that in `out` may have changed.

    `columns`: start and length of each key and each value in `buffer`; a length of -1 is null. `exact`: no bytes may
    follow a message. `keys`, `values`: the entry of each type, and of each type and version; -1: unknown. `results`, of
    eight columns: start and length of the text of the key, and of the value, -1 where there is none; then the fault
    (messages.Fault; 0: none), where in the key or value it is, twice the step (-1: none), plus 1 if it is the value's,
    and the number found. `cells`: memory of the caller's.
    """
    size: Long = buffer.shape[0] if cython.compiled else len(buffer)
    limit: Long = (out.shape[0] if cython.compiled else len(out)) - _SPARE
    last: Long
    rows: Long = columns.shape[1]
    start: Long
    length: Long
    side: Long
    end: Long
    kind: Long
    entry: Long
    before: Long
    fault: Long = 0
    if columns.shape[0] != 4 or results.shape[0] != 8 or results.shape[1] < rows or cells.shape[0] < _CELLS:
        raise ValueError("a column or the memory is too short")
    if keys.shape[0] != _TYPES or values.shape[0] != _TYPES * _VERSIONS or row < 0 or position < 0:
        raise ValueError("types, versions, row or position out of range")
    if row >= rows or position > limit:
        return row, position
    if cython.compiled:
        text: Bytes = cython.address(buffer[0]) if size > 0 else cython.NULL
        target: Out = cython.address(out[0])
        program: Longs = cython.address(steps[0])
        fixed: Bytes = cython.address(literals[0])
        places: Longs = cython.address(entries[0])
        types: Longs = cython.address(keys[0])
        versions: Longs = cython.address(values[0])
        state: Cells = cython.address(cells[0])
    else:
        text, target, program, fixed = memoryview(buffer), memoryview(out), memoryview(steps).tolist(), bytes(literals)
        places, types, versions, state = entries.tolist(), keys.tolist(), values.tolist(), cells.tolist()
    with cython.nogil:
        while row < rows:
            before = position
            results[1, row] = -1
            results[3, row] = -1
            fault = 0
            kind = 0
            for side in range(2):
                start = columns[2 * side, row]
                length = columns[2 * side + 1, row]
                if length < 0 and (side == 1 or framing in (_FRAMED, _PLAIN)) and framing != _CONTROL:
                    continue
                if length < 0:
                    start = 0
                    length = 0
                if length > 0 and (start < 0 or length > size or start > size - length):
                    fault = _OUTSIDE
                    break
                end = start + length
                state[_AT] = start
                state[_POSITION] = position
                state[_STEP] = -1
                last = limit if limit - position < _MOST_JSON else position + _MOST_JSON
                if side == 0:
                    if framing == _FRAMED:
                        continue
                    kind = _key(text, end, state, framing, types)
                    entry = kind if kind < 0 else types[kind]
                    if framing == _CONTROL and kind >= 0:
                        continue
                else:
                    entry = _entry(text, end, state, framing, kind, types, versions)
                fault = entry
                if entry >= 0:
                    fault = _message(program, fixed, places, text, end, target, last, state, entry)
                    if fault == _FULL and last < limit:
                        fault = _TOO_LONG
                    if fault == 0 and (exact or framing == _FRAMED) and state[_AT] < end:
                        fault = _LEFT_OVER
                if fault < 0:
                    results[5, row] = state[_AT] - start
                    results[6, row] = 2 * state[_STEP] + side
                    results[7, row] = state[_FOUND]
                    break
                results[2 * side, row] = position
                results[2 * side + 1, row] = state[_POSITION] - position
                position = state[_POSITION]
            if fault == _FULL:
                position = before
                break
            results[4, row] = fault
            row += 1
    return row, position
