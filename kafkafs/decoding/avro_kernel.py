# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot loop of decoding: columns of Avro data to JSON texts, and JSON texts to one line.

Cython in pure-Python mode; the same file runs uncompiled with equal results, some hundred times slower. A schema is a
program (`avro_program.py` builds it), which the loop runs over each datum; a stack of its own takes the place of calls,
so that no datum can exhaust the thread's. No length or count in the data is trusted: each is compared with the rest of
the data before it is used. Every instruction checks that its longest output fits before it writes.

Some functions repeat those of `kafkafs/formats/render_kernel.py`: code compiled in another module cannot be inlined.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memmove
else:
    from typing import Any

    # avro_kernel.pxd declares these constants; a variable would be loaded at each use.
    high_product: Any = None
    trailing_zeros: Any = None
    sevens: Any = None
    LITTLE_ENDIAN: Any = None
    PAIRS: Any = None
    _TEN_TO_8 = 100000000
    _ONES = 0x0101010101010101
    _HIGHS = 0x8080808080808080
    # More bytes than an instruction writes without comparing its length with the space. The output has as many bytes
    # after its limit, so that eight bytes can be written where fewer count.
    _SPARE = 64
    _FRAME = 4  # numbers of a frame of the stack


# C pointers when compiled; memoryviews when not.
Long = cython.typedef(cython.longlong)
ULong = cython.typedef(cython.ulonglong)
Bool = cython.typedef(cython.bint)
Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Out = cython.typedef(cython.pointer(cython.uchar))
Longs = cython.typedef(cython.pointer(cython.const[cython.longlong]))
Cells = cython.typedef(cython.pointer(cython.longlong))
Powers = cython.typedef(cython.pointer(cython.const[cython.ulonglong]))
Text = cython.typedef(cython.pointer(cython.const[cython.char]))

# Returned instead of a position; the numbers of avro_program.DatumFault. FULL is no fault: the output is too small.
_FULL = cython.declare(cython.longlong, -1)
_SHORT = cython.declare(cython.longlong, -2)
_BAD_VARINT = cython.declare(cython.longlong, -3)
_BAD_LENGTH = cython.declare(cython.longlong, -4)
_NOT_UTF8 = cython.declare(cython.longlong, -5)
_BAD_BRANCH = cython.declare(cython.longlong, -6)
_BAD_SYMBOL = cython.declare(cython.longlong, -7)
_BAD_BOOLEAN = cython.declare(cython.longlong, -8)
_NOT_INT = cython.declare(cython.longlong, -9)
_TOO_DEEP = cython.declare(cython.longlong, -10)
_EMPTY_ITEMS = cython.declare(cython.longlong, -11)
_TOO_LONG = cython.declare(cython.longlong, -12)
_LEFT_OVER = cython.declare(cython.longlong, -13)
_LARGE_DECIMAL = cython.declare(cython.longlong, -14)
_NOT_JSON = cython.declare(cython.longlong, -15)
_OUTSIDE = cython.declare(cython.longlong, -16)
_NOT_RESOLVED = cython.declare(cython.longlong, -17)
_NO_SYMBOL = cython.declare(cython.longlong, -18)

_MAX_EMPTY_ITEMS = cython.declare(cython.longlong, 65536)
_MAX_DECIMAL = cython.declare(cython.longlong, 8192)
# The text of a datum of n bytes has at most this many bytes plus 16 n, and never more than the second constant.
_MAX_TEXT = cython.declare(cython.longlong, 1 << 20)
_MOST_TEXT = cython.declare(cython.longlong, 1 << 27)

_UINT32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put(out: Out, position: Long, text: Text, length: Long) -> Long:
    """Write a constant of `length` bytes."""
    if cython.compiled:
        memcpy(out + position, text, length)
    else:
        out[position : position + length] = text
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy(out: Out, position: Long, text: Bytes, start: Long, length: Long) -> Long:
    if length <= 0:
        return position
    if cython.compiled:
        memcpy(out + position, text + start, length)
    else:
        out[position : position + length] = text[start : start + length]
    return position + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _digits(out: Out, position: Long, rest: ULong, count: Long) -> Long:
    """Write the last `count` decimal digits, with leading zeros."""
    at: Long = position + count
    four: cython.uint
    while at - position >= 4:
        four = cython.cast(cython.uint, rest % 10000)
        rest = rest // 10000
        at -= 4
        if cython.compiled:
            memcpy(out + at, PAIRS + 2 * (four // 100), 2)
            memcpy(out + (at + 2), PAIRS + 2 * (four % 100), 2)
        else:
            out[at : at + 4] = b"%04d" % four
    while at > position:
        at -= 1
        out[at] = cython.cast(cython.uchar, 48 + rest % 10)
        rest = rest // 10
    return position + count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _digit_count(rest: ULong) -> Long:
    size: Long = 0
    if rest >= _TEN_TO_8:
        size = 8
        rest = rest // _TEN_TO_8
        if rest >= _TEN_TO_8:
            size = 16
            rest = rest // _TEN_TO_8
    if rest >= 10000:
        size += 4
        rest = rest // 10000
    if rest >= 100:
        return size + (4 if rest >= 1000 else 3)
    return size + (2 if rest >= 10 else 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(out: Out, position: Long, value: Long) -> Long:
    """Write a number in decimal."""
    rest: ULong
    if cython.compiled:
        rest = cython.cast(cython.ulonglong, value)
        if value < 0:
            rest = 0 - rest
    else:
        rest = abs(value)
    if value < 0:
        out[position] = 45
        position += 1
    if rest < 10:
        out[position] = cython.cast(cython.uchar, 48 + rest)
        return position + 1
    return _digits(out, position, rest, _digit_count(rest))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _round_to_odd(powers: Powers, power: Long, value: ULong) -> ULong:
    """floor(value * 10**k / 2**n), with the last bit set where something was cut off; the factor is a pair of
    `powers`."""
    high: ULong = powers[power]
    low: ULong = powers[power + 1]
    if not cython.compiled:
        product = (high << 64 | low) * value
        return product >> 128 | ((product >> 64 & 0xFFFFFFFFFFFFFFFF) > 1)
    carried: ULong = high_product(low, value)
    middle: ULong = high * value
    upper: ULong = high_product(high, value)
    middle += carried
    if middle < carried:
        upper += 1
    return upper | (middle > 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _float_text(out: Out, position: Long, digits: ULong, k: Long) -> Long:
    """Write digits * 10**k as Python's repr writes a float."""
    if digits % 10 == 0:
        if digits % 100000000 == 0:
            digits = digits // 100000000
            k += 8
        if digits % 10000 == 0:
            digits = digits // 10000
            k += 4
        if digits % 100 == 0:
            digits = digits // 100
            k += 2
        while digits % 10 == 0:
            digits = digits // 10
            k += 1
    count: Long = _digit_count(digits)
    point: Long = count + k  # digits before the decimal point
    i: Long
    if 0 < point <= 16:
        if point >= count:
            position = _digits(out, position, digits, count)
            for i in range(point - count):
                out[position + i] = 48
            position += point - count
            return _put(out, position, b".0", 2)
        _digits(out, position + 1, digits, count)
        for i in range(point):
            out[position + i] = out[position + i + 1]
        out[position + point] = 46
        return position + count + 1
    if -4 < point <= 0:
        position = _put(out, position, b"0.", 2)
        for i in range(-point):
            out[position + i] = 48
        position -= point
        return _digits(out, position, digits, count)
    _digits(out, position + 1, digits, count)
    out[position] = out[position + 1]
    if count > 1:
        out[position + 1] = 46
        position += count
    position = _put(out, position + 1, b"e", 1)
    point -= 1
    out[position] = 45 if point < 0 else 43
    point = -point if point < 0 else point
    return _digits(out, position + 1, point, 3 if point > 99 else 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _shortest(out: Out, position: Long, c: ULong, q: Long, closer: Bool, powers: Powers) -> Long:
    """Write c * 2**q, c > 0, in the fewest decimal digits that read back as the same float; if several texts are as
    short, the nearest (Raffaello Giulietti: The Schubfach way to render doubles). `closer`: the next smaller float is
    half as far as the next larger. `powers`: avro_program.POWERS."""
    digits: ULong
    k: Long = 0
    h: Long
    power: Long
    lower: ULong
    upper: ULong
    exact: ULong
    up: Bool
    down: Bool
    if -53 < q <= 0 and (c >> (-q)) << (-q) == c:
        digits = c >> (-q)
    else:
        # The formulas need shifts of negative numbers to round down, and they do.
        k = (q * 1262611 - (524031 if closer else 0)) >> 22
        h = q + ((-k * 1741647) >> 19) + 1
        power = 2 * (292 - k)
        lower = _round_to_odd(powers, power, ((4 * c - 2 + closer) << h))
        exact = _round_to_odd(powers, power, (4 * c) << h)
        upper = _round_to_odd(powers, power, (4 * c + 2) << h)
        # The boundaries themselves read back as this float only if it is even.
        lower += c & 1
        upper -= c & 1
        digits = exact // 4
        if digits >= 10:
            up = lower <= 40 * (digits // 10)
            down = 40 * (digits // 10) + 40 <= upper
            if up != down:
                digits = digits // 10 + down
                k += 1
                power = -1
        if power >= 0:
            up = lower <= 4 * digits
            down = 4 * digits + 4 <= upper
            if up != down:
                digits += down
            elif exact + (digits & 1) > 4 * digits + 2:  # beyond the middle, or in the middle and odd
                digits += 1
    return _float_text(out, position, digits, k)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _float(out: Out, position: Long, bits: ULong, fraction_bits: Long, top: Long, powers: Powers) -> Long:
    """Write an IEEE float of `fraction_bits` (52 or 23) whose largest exponent is `top` (2047 or 255)."""
    fraction: ULong = bits & ((cython.cast(cython.ulonglong, 1) << fraction_bits) - 1)
    exponent: Long = (bits >> fraction_bits) & top
    negative: Bool = (bits >> (63 if fraction_bits == 52 else 31)) & 1
    bias: Long = (top >> 1) + fraction_bits
    if cython.compiled:
        number: cython.double = 0
        thousandths: Long
    if exponent == top:
        if fraction != 0:
            return _put(out, position, b'"NaN"', 5)
        if negative:
            return _put(out, position, b'"-Infinity"', 11)
        return _put(out, position, b'"Infinity"', 10)
    if negative:
        out[position] = 45
        position += 1
    if exponent == 0:
        if fraction == 0:
            return _put(out, position, b"0.0", 3)
        return _shortest(out, position, fraction, 1 - bias, False, powers)
    if cython.compiled and fraction_bits == 52 and -10 <= exponent - 1023 < 39:
        # If a decimal of at most 15 digits reads back as this float, it is the shortest text. Many have three decimals.
        bits &= _MAX_INT64
        memcpy(cython.address(number), cython.address(bits), 8)
        thousandths = cython.cast(Long, number * 1000.0 + 0.5)
        if cython.cast(cython.double, thousandths) / 1000.0 == number:
            return _float_text(out, position, thousandths, -3)
    fraction |= cython.cast(cython.ulonglong, 1) << fraction_bits
    closer: Bool = fraction & (fraction - 1) == 0 and exponent > 1
    return _shortest(out, position, fraction, exponent - bias, closer, powers)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sequence_length(text: Bytes, at: Long, end: Long) -> cython.int:
    """The bytes of the UTF-8 sequence at `at`, whose first byte is above 0x7f; 0 if the sequence is invalid (Unicode
    15, table 3-7)."""
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
def _escape(out: Out, position: Long, byte: cython.uint) -> Long:
    """Write a quote, a backslash or a control character as Python's json writes it."""
    letters: Text = b"uuuuuuuubtnufr"
    digits: Text = b"0123456789abcdef"
    letter: cython.uint = byte if byte > 31 else letters[byte] if byte < 14 else 117
    out[position] = 92
    out[position + 1] = letter
    if letter != 117:
        return position + 2
    _put(out, position + 2, b"00", 2)
    out[position + 4] = digits[byte >> 4]
    out[position + 5] = digits[byte & 15]
    return position + 6


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _dirty(word: ULong) -> ULong:
    """Return other than 0 if one of eight bytes needs an escape in a JSON string or is not ASCII; the lowest bit that
    is set belongs to the first such byte."""
    quotes: ULong = word ^ (_ONES * 34)
    slashes: ULong = word ^ (_ONES * 92)
    dirty: ULong = word | ((word - _ONES * 32) & ~word)
    dirty |= ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
    return dirty & _HIGHS


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escaped(out: Out, position: Long, text: Bytes, start: Long, length: Long, size: Long) -> Long:
    """Write a JSON string with its quotes; return the position after it, or _NOT_UTF8. Up to 7 bytes more are
    overwritten. `size`: of the whole buffer."""
    at: Long = start
    end: Long = start + length
    stop: Long
    byte: cython.uint
    count: cython.int
    i: cython.int
    if cython.compiled:
        word: ULong = 0
    out[position] = 34
    position += 1
    while at < end:
        if cython.compiled:
            while end - at >= 8:
                memcpy(cython.address(word), text + at, 8)
                if _dirty(word) != 0:
                    break
                memcpy(out + position, cython.address(word), 8)
                at += 8
                position += 8
            if LITTLE_ENDIAN and 0 < end - at < 8 and size - at >= 8:
                # Spaces in place of the bytes after the string.
                memcpy(cython.address(word), text + at, 8)
                word &= (cython.cast(cython.ulonglong, 1) << (8 * (end - at))) - 1
                word |= (_ONES * 32) << (8 * (end - at))
                if _dirty(word) == 0:
                    memcpy(out + position, cython.address(word), 8)
                    position += end - at
                    break
        stop = end if end - at < 8 else at + 8
        while at < stop:
            byte = text[at]
            if byte > 127:
                count = _sequence_length(text, at, end)
                if count == 0:
                    return _NOT_UTF8
                for i in range(count):
                    out[position + i] = text[at + i]
                position += count
                at += count
                continue
            if byte < 32 or byte == 34 or byte == 92:
                position = _escape(out, position, byte)
            else:
                out[position] = cython.cast(cython.uchar, byte)
                position += 1
            at += 1
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escaped_size(text: Bytes, start: Long, length: Long) -> Long:
    """The number of bytes that `_escaped` writes for ASCII and valid UTF-8; for other bytes an upper bound."""
    at: Long
    size: Long = length + 2
    for at in range(start, start + length):
        if text[at] < 32:
            size += 5
        elif text[at] == 34 or text[at] == 92:
            size += 1
    return size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _base64(out: Out, position: Long, text: Bytes, start: Long, length: Long) -> Long:
    """Write bytes as a JSON string in RFC 4648's base64, padded."""
    at: Long = start
    end: Long = start + length
    bits: cython.uint
    digits: Text = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    out[position] = 34
    position += 1
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
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _decimal(out: Out, position: Long, text: Bytes, start: Long, length: Long, scale: Long, scratch: Cells) -> Long:
    """Write two's complement, big-endian, as a JSON string with exactly `scale` decimals. Empty data is 0.

    `scratch` has room for `length` / 4 + 1 numbers, the output for 2.5 `length` + `scale` + 64 bytes.
    """
    negative: Bool = length > 0 and text[start] > 127
    flip: ULong = 255 if negative else 0
    limbs: Long = (length + 3) // 4
    i: Long
    first: Long = 0
    rest: ULong
    at: Long = start
    take: Long = length - 4 * (limbs - 1)
    # The magnitude in digits to the base 2**32, most significant first.
    for i in range(limbs):
        rest = 0
        while take > 0:
            rest = rest << 8 | (text[at] ^ flip)
            at += 1
            take -= 1
        scratch[i] = rest
        take = 4
    if negative:
        i = limbs - 1
        scratch[i] += 1
        while scratch[i] > _UINT32 and i > 0:
            scratch[i] = 0
            i -= 1
            scratch[i] += 1
    # Write the decimal digits from the last to the first, backwards from an end that leaves room for all.
    end: Long = position + 3 + length * 5 // 2 + scale + 24
    digit: Long = end
    while first < limbs and scratch[first] == 0:
        first += 1
    while first < limbs:
        rest = 0
        for i in range(first, limbs):
            rest = rest << 32 | cython.cast(cython.ulonglong, scratch[i])
            scratch[i] = rest // 1000000000
            rest = rest % 1000000000
        while first < limbs and scratch[first] == 0:
            first += 1
        digit -= 9
        _digits(out, digit, rest, 9)
    while digit < end and out[digit] == 48:
        digit += 1
    while end - digit <= scale:
        digit -= 1
        out[digit] = 48
    out[position] = 34
    position += 1
    if negative:
        out[position] = 45
        position += 1
    i = end - digit - scale
    if cython.compiled:
        memmove(out + position, out + digit, i)
        if scale > 0:
            out[position + i] = 46
            memmove(out + (position + i + 1), out + (digit + i), scale)
    else:
        out[position : position + i] = bytes(out[digit : digit + i])
        if scale > 0:
            fraction = bytes(out[digit + i : end])
            out[position + i] = 46
            out[position + i + 1 : position + i + 1 + scale] = fraction
    position += i + (scale + 1 if scale > 0 else 0)
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _date(out: Out, position: Long, days: Long) -> Long:
    """Write `2025-10-09`, for days from 0001-01-01 to 9999-12-31 (Howard Hinnant: chrono-compatible low-level date
    algorithms)."""
    shifted: Long = days + 719468  # since 0000-03-01, never below 0 here
    era: Long = shifted // 146097
    day: Long = shifted - era * 146097
    year: Long = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month: Long = (5 * day + 2) // 153
    position = _digits(out, position, year + era * 400 + (1 if month > 9 else 0), 4)
    out[position] = 45
    position = _digits(out, position + 1, month - 9 if month > 9 else month + 3, 2)
    out[position] = 45
    return _digits(out, position + 1, day - (153 * month + 2) // 5 + 1, 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _time(out: Out, position: Long, value: Long, unit: Long, decimals: Long) -> Long:
    """Write `23:59:59.999` for a number of units after midnight; a second has `unit` units."""
    seconds: Long = value // unit
    position = _digits(out, position, seconds // 3600, 2)
    out[position] = 58
    position = _digits(out, position + 1, seconds // 60 % 60, 2)
    out[position] = 58
    position = _digits(out, position + 1, seconds % 60, 2)
    out[position] = 46
    return _digits(out, position + 1, value - seconds * unit, decimals)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _timestamp(out: Out, position: Long, value: Long, unit: Long, decimals: Long, zulu: Bool) -> Long:
    """Write ISO 8601 for the years 1 to 9999, for others the number."""
    length: Long = unit * 86400
    days: Long = value // length
    rest: Long = value - days * length
    if rest < 0:  # compiled, a division rounds to zero
        rest += length
        days -= 1
    if days < -719162 or days > 2932896:
        return _number(out, position, value)
    out[position] = 34
    position = _date(out, position + 1, days)
    out[position] = 84
    position = _time(out, position + 1, rest, unit, decimals)
    if zulu:
        out[position] = 90
        position += 1
    out[position] = 34
    return position + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _json_string_end(text: Bytes, at: Long, end: Long) -> Long:
    """The position after the JSON string that begins at `at`, or _NOT_JSON or _NOT_UTF8 (RFC 8259)."""
    byte: cython.uint
    size: Long
    i: Long
    if cython.compiled:
        word: ULong = 0
    at += 1
    while at < end:
        if cython.compiled and LITTLE_ENDIAN:
            while end - at >= 8:
                memcpy(cython.address(word), text + at, 8)
                word = _dirty(word)
                if word != 0:
                    at += trailing_zeros(word) >> 3
                    break
                at += 8
            if at >= end:
                break
        byte = text[at]
        if byte == 34:
            return at + 1
        if byte < 32:
            return _NOT_JSON
        if byte > 127:
            size = _sequence_length(text, at, end)
            if size == 0:
                return _NOT_UTF8
            at += size
        elif byte == 92:
            if end - at < 2:
                return _NOT_JSON
            byte = text[at + 1]
            at += 2
            if byte == 117:
                if end - at < 4:
                    return _NOT_JSON
                for i in range(4):
                    byte = text[at + i] | 32
                    if not (48 <= text[at + i] <= 57 or 97 <= byte <= 102):
                        return _NOT_JSON
                at += 4
            elif not (
                byte == 34
                or byte == 92
                or byte == 47
                or byte == 98
                or byte == 102
                or byte == 110
                or byte == 114
                or byte == 116
            ):
                return _NOT_JSON
        else:
            at += 1
    return _NOT_JSON


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _json_number_end(text: Bytes, at: Long, end: Long) -> Long:
    """The position after the JSON number that begins at `at`, or _NOT_JSON."""
    begin: Long
    if text[at] == 45:
        at += 1
    if at >= end:
        return _NOT_JSON
    if text[at] == 48:
        at += 1
    else:
        begin = at
        while at < end and 48 <= text[at] <= 57:
            at += 1
        if at == begin:
            return _NOT_JSON
    if at < end and text[at] == 46:
        at += 1
        begin = at
        while at < end and 48 <= text[at] <= 57:
            at += 1
        if at == begin:
            return _NOT_JSON
    if at < end and text[at] | 32 == 101:
        at += 1
        if at < end and (text[at] == 43 or text[at] == 45):
            at += 1
        begin = at
        while at < end and 48 <= text[at] <= 57:
            at += 1
        if at == begin:
            return _NOT_JSON
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _json_text(out: Out, position: Long, text: Bytes, at: Long, end: Long, stack: Cells, deepest: Long) -> Long:
    """Write JSON without the line ends between its tokens; return the position after it, or a fault, whose position is
    then in stack[0].

    The output is at most as long as the text; `stack` has room for `deepest` + 1 numbers.
    """
    depth: Long = 0
    # The next token: 0 a value, 1 a value or ], 2 a name or }, 3 a name, 4 a colon, 5 a comma or the end of an array,
    # object or text.
    expected: cython.int = 0
    byte: cython.uint
    next_at: Long
    start: Long = at  # of the part that is not copied yet
    while at < end:
        byte = text[at]
        next_at = at + 1
        if byte == 10 or byte == 13:
            position = _copy(out, position, text, start, at - start)
            at += 1
            start = at
            continue
        if byte == 32 or byte == 9:
            at += 1
            continue
        if expected == 4:
            if byte != 58:
                next_at = _NOT_JSON
            expected = 0
        elif expected == 5:
            if depth == 0:
                next_at = _NOT_JSON
            elif byte == 44:
                expected = 3 if stack[depth] == 123 else 0
            elif (byte == 125 and stack[depth] == 123) or (byte == 93 and stack[depth] == 91):
                depth -= 1
            else:
                next_at = _NOT_JSON
        elif (byte == 125 and expected == 2) or (byte == 93 and expected == 1):
            depth -= 1
            expected = 5
        elif byte == 34:
            next_at = _json_string_end(text, at, end)
            expected = 4 if expected >= 2 else 5
        elif expected >= 2:
            next_at = _NOT_JSON
        elif byte == 123 or byte == 91:
            if depth >= deepest:
                next_at = _TOO_DEEP
            else:
                depth += 1
                stack[depth] = byte
                expected = 2 if byte == 123 else 1
        elif byte == 45 or 48 <= byte <= 57:
            next_at = _json_number_end(text, at, end)
            expected = 5
        elif end - at >= 4 and (
            (byte == 116 and text[at + 1] == 114 and text[at + 2] == 117 and text[at + 3] == 101)
            or (byte == 110 and text[at + 1] == 117 and text[at + 2] == 108 and text[at + 3] == 108)
        ):
            next_at = at + 4
            expected = 5
        elif (
            end - at >= 5
            and byte == 102
            and text[at + 1] == 97
            and text[at + 2] == 108
            and text[at + 3] == 115
            and text[at + 4] == 101
        ):
            next_at = at + 5
            expected = 5
        else:
            next_at = _NOT_JSON
        if next_at < 0:
            stack[0] = at
            return next_at
        at = next_at
    if depth > 0 or expected != 5:
        stack[0] = end
        return _NOT_JSON
    return _copy(out, position, text, start, end - start)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _datum(
    out: Out,
    position: Long,
    limit: Long,
    steps: Longs,
    pc: Long,
    literals: Bytes,
    powers: Powers,
    text: Bytes,
    at: Long,
    end: Long,
    size: Long,
    stack: Cells,
    deepest: Long,
    scratch: Cells,
) -> Long:
    """Run the program at `pc` over text[at:end]. Return the position after the output, or a fault: then stack[0] is the
    position in the data, stack[1] the instruction. `size`: of the whole buffer. The codes are avro_program.Opcode's."""
    first: Long = position
    most: Long = _MAX_TEXT + 16 * (end - at)
    is_capped: Bool = False
    top: Long = 0  # of the stack; frames: pc to return to, items left, where the item began, whether there was an item
    code: cython.int
    start: Long
    length: Long
    value: Long = 0
    before: Long = at
    bits: ULong = 0
    byte: ULong
    word: ULong = 0
    shift: Long
    empty_items: Long = 0
    fault: Long
    i: Long
    if most > _MOST_TEXT:
        most = _MOST_TEXT
    if limit - first > _MOST_TEXT:
        limit = first + _MOST_TEXT
        is_capped = True
    limit -= _SPARE
    while True:
        code = cython.cast(cython.int, steps[pc])
        start = steps[pc + 1]
        length = steps[pc + 2]
        before = at
        if limit - position < length:
            fault = _FULL
            break
        if cython.compiled:
            # Copying 16 bytes is faster than copying so many; the output and the literals have as many to spare.
            memcpy(out + position, literals + start, 16)
            if length > 16:
                memcpy(out + (position + 16), literals + (start + 16), length - 16)
            position += length
        else:
            position = _copy(out, position, literals, start, length)
        if code >= 16:
            # All codes from 16 on begin with a zigzag varint.
            bits = 0
            shift = 0
            byte = 128
            if at < end and text[at] < 128:
                bits = text[at]
                byte = 0
                at += 1
            elif cython.compiled and LITTLE_ENDIAN and end - at >= 8:
                # Read a varint of up to eight bytes at once.
                memcpy(cython.address(word), text + at, 8)
                byte = ~word & _HIGHS
                if byte != 0:
                    at += (trailing_zeros(byte) >> 3) + 1
                    bits = sevens(word & (byte ^ (byte - 1)))
                    byte = 0
                else:
                    byte = 128
            while byte >= 128:
                if at >= end or shift == 70:
                    break
                byte = text[at]
                at += 1
                if shift == 63 and byte > 1:
                    byte = 255
                    shift = 70
                    break
                bits |= (byte & 127) << shift
                shift += 7
            if byte >= 128:
                fault = _BAD_VARINT if shift == 70 else _SHORT
                break
            if cython.compiled:
                value = cython.cast(Long, bits >> 1) ^ -cython.cast(Long, bits & 1)
            else:
                value = (bits >> 1) ^ -(bits & 1)
            # The most frequent codes first; the others are a table of jumps.
            if code == 18:  # STRING
                if value < 0 or value > end - at:
                    fault = _BAD_LENGTH
                    break
                if limit - position < 6 * value and limit - position < _escaped_size(text, at, value):
                    fault = _FULL
                    break
                position = _escaped(out, position, text, at, value, size)
                if position < 0:
                    fault = _NOT_UTF8
                    break
                at += value
                pc = steps[pc + 5]
                continue
            if code == 17:  # LONG
                position = _number(out, position, value)
                pc = steps[pc + 5]
                continue
        fault = 0
        if code == 16 or code == 24:  # INT, DATE
            if value < -2147483648 or value > 2147483647:
                fault = _NOT_INT
                break
            if code == 16 or value < -719162 or value > 2932896:
                position = _number(out, position, value)
            else:
                out[position] = 34
                position = _date(out, position + 1, value)
                out[position] = 34
                position += 1
        elif code == 21:  # UNION
            if value < 0 or value >= steps[pc + 4]:
                fault = _BAD_BRANCH
                break
            pc = steps[steps[pc + 3] + value]
            continue
        elif code == 4 or code == 3:  # DOUBLE, FLOAT
            length = 4 if code & 1 else 8
            if end - at < length:
                fault = _SHORT
                break
            bits = 0
            if cython.compiled and LITTLE_ENDIAN and length == 8:
                memcpy(cython.address(bits), text + at, 8)
            else:
                for i in range(length):
                    byte = text[at + i]
                    bits |= byte << (8 * i)
            at += length
            if code == 4:
                position = _float(out, position, bits, 52, 2047, powers)
            else:
                position = _float(out, position, bits, 23, 255, powers)
        elif code == 2:  # BOOLEAN
            if at >= end:
                fault = _SHORT
                break
            if text[at] > 1:
                fault = _BAD_BOOLEAN
                break
            if text[at] == 1:
                position = _put(out, position, b"true", 4)
            else:
                position = _put(out, position, b"false", 5)
            at += 1
        elif code == 26 or code == 25:  # TIMESTAMP, TIME
            if code == 26:
                position = _timestamp(out, position, value, steps[pc + 3], steps[pc + 4] >> 1, steps[pc + 4] & 1)
            elif steps[pc + 3] == 1000 and (value < -2147483648 or value > 2147483647):
                fault = _NOT_INT
                break
            elif value < 0 or value >= 86400 * steps[pc + 3]:
                position = _number(out, position, value)
            else:
                out[position] = 34
                position = _time(out, position + 1, value, steps[pc + 3], steps[pc + 4])
                out[position] = 34
                position += 1
        elif code == 20:  # ENUM
            if value < 0 or value >= steps[pc + 4]:
                fault = _BAD_SYMBOL
                break
            i = steps[pc + 3] + 2 * value
            if steps[i + 1] < 0:
                fault = _NO_SYMBOL
                break
            if limit - position < steps[i + 1]:
                fault = _FULL
                break
            position = _copy(out, position, literals, steps[i], steps[i + 1])
        elif code == 22:  # BLOCK
            if value < 0:
                # A negative count comes with the block's size in bytes, which the decoder does not need.
                if value < -_MAX_INT64:
                    fault = _BAD_LENGTH
                    break
                value = -value
                shift = 0
                while at < end and text[at] > 127 and shift < 9:
                    at += 1
                    shift += 1
                if at >= end or text[at] > 127:
                    fault = _SHORT if at >= end else _BAD_VARINT
                    break
                at += 1
            i = (top - 1) * _FRAME + 4
            if value == 0:
                top -= 1
                pc = steps[pc + 3]
                continue
            stack[i + 1] = value
            stack[i + 2] = at
            if stack[i + 3]:
                out[position] = 44
                position += 1
            stack[i + 3] = 1
        elif code == 10:  # NEXT
            i = (top - 1) * _FRAME + 4
            if at == stack[i + 2]:
                empty_items += 1
                if empty_items > _MAX_EMPTY_ITEMS:
                    fault = _EMPTY_ITEMS
                    break
            if position - first > most:
                fault = _TOO_LONG
                break
            stack[i + 1] -= 1
            if stack[i + 1] == 0:
                pc = steps[pc + 4]
                continue
            stack[i + 2] = at
            out[position] = 44
            position += 1
            pc = steps[pc + 3]
            continue
        elif code == 9 or code == 7:  # PUSH, CALL
            if top >= deepest:
                fault = _TOO_DEEP
                break
            # Only these and NEXT can make a text longer than the program. END checks the rest.
            if position - first > most:
                fault = _TOO_LONG
                break
            i = top * _FRAME + 4
            top += 1
            stack[i] = steps[pc + 5]
            stack[i + 3] = 0
            if code == 7:
                pc = steps[pc + 3]
                continue
        elif code == 8:  # RETURN
            top -= 1
            pc = stack[top * _FRAME + 4]
            continue
        elif code == 19 or code == 23 or code == 5 or code == 6 or code == 11:
            # BYTES, DECIMAL, FIXED, DECIMAL_FIXED, REST
            if code == 11:
                value = end - at
            elif code < 16:
                value = steps[pc + 3]
                if value > end - at:
                    fault = _SHORT
                    break
            elif value < 0 or value > end - at:
                fault = _BAD_LENGTH
                break
            if code == 23 or code == 6:
                if value > _MAX_DECIMAL:
                    fault = _LARGE_DECIMAL
                    break
                if limit - position < value * 5 // 2 + steps[pc + 4]:
                    fault = _FULL
                    break
                position = _decimal(out, position, text, at, value, steps[pc + 4], scratch)
            else:
                if (limit - position) // 4 * 3 < value:
                    fault = _FULL
                    break
                position = _base64(out, position, text, at, value)
            at += value
        elif code == 12:  # JSON
            if limit + _SPARE - position < end - at:
                fault = _FULL
                break
            position = _json_text(out, position, text, at, end, stack, deepest)
            if position < 0:
                fault = position
                before = stack[0]
                break
            at = end
        elif code == 1:  # END
            if at != end:
                fault = _LEFT_OVER
                break
            if position - first > most:
                fault = _TOO_LONG
                break
            return position
        elif code == 13:  # FAIL
            fault = _NOT_RESOLVED
            break
        pc = steps[pc + 5]
    if fault == _FULL and is_capped:
        fault = _TOO_LONG
    stack[0] = before
    stack[1] = pc
    return fault


def find_ids(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    ids: cython.longlong[::1],
) -> int:
    """Put each row's schema id into `ids`, -1 if the bytes are not in the wire format (a zero byte and the id in four
    bytes, big-endian). Return the number of rows, or the first row that points outside the buffer."""
    size: Long = buffer.shape[0] if cython.compiled else len(buffer)
    rows: Long = ids.shape[0] if cython.compiled else len(ids)
    row: Long
    start: Long
    length: Long
    if not cython.compiled:
        buffer, starts, lengths, ids = memoryview(buffer), memoryview(starts), memoryview(lengths), memoryview(ids)
    if (starts.shape[0] if cython.compiled else len(starts)) < rows:
        return 0
    if (lengths.shape[0] if cython.compiled else len(lengths)) < rows:
        return 0
    for row in range(rows):
        start = starts[row]
        length = lengths[row]
        if length > 0 and (start < 0 or length > size or start > size - length):
            return row
        if length < 5 or buffer[start] != 0:
            ids[row] = -1
        else:
            ids[row] = (
                cython.cast(Long, buffer[start + 1]) << 24
                | cython.cast(Long, buffer[start + 2]) << 16
                | cython.cast(Long, buffer[start + 3]) << 8
                | cython.cast(Long, buffer[start + 4])
            )
    return rows


def run(
    steps: cython.const[cython.longlong][::1],
    literals: cython.const[cython.uchar][::1],
    powers: cython.const[cython.ulonglong][::1],
    buffer: cython.const[cython.uchar][::1],
    columns: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: Long,
    results: cython.longlong[:, ::1],
    stack: cython.longlong[::1],
    scratch: cython.longlong[::1],
) -> tuple[int, int]:
    """Decode data from `row` to `rows` into `out` from `position` on, until a text does not fit.

    `columns`: start and length of each datum in `buffer`, and its program's first instruction in `steps`, -1 for a row
    to leave out. `results`, five numbers for each row: where the text is in `out`, and its length, -1 if there is no
    text; then the fault (avro_program.DatumFault; 0: none), its position in the buffer, and the instruction. `stack`
    and `scratch`: the caller's memory; the stack's length limits the depth. Returns (first row not done, position after
    the last text). `out` may have changed beyond that position.
    """
    size: Long = buffer.shape[0] if cython.compiled else len(buffer)
    limit: Long = (out.shape[0] if cython.compiled else len(out)) - _SPARE
    deepest: Long = (stack.shape[0] if cython.compiled else len(stack)) // _FRAME - 1
    decimals: Long = (scratch.shape[0] if cython.compiled else len(scratch)) * 4 - 4
    start: Long
    length: Long
    end: Long
    if cython.compiled:
        if columns.shape[0] < 3 or columns.shape[1] < rows or results.shape[0] < 5 or results.shape[1] < rows:
            raise ValueError("a column is shorter than the rows")
    if decimals < _MAX_DECIMAL or deepest < 1 or row < 0 or position < 0:
        raise ValueError("scratch, stack or position out of range")
    if row >= rows or limit <= 0:
        return row, position
    if cython.compiled:
        text: Bytes = cython.address(buffer[0]) if size > 0 else cython.NULL
        target: Out = cython.address(out[0])
        program: Longs = cython.address(steps[0])
        fixed: Bytes = cython.address(literals[0])
        tens: Powers = cython.address(powers[0])
        frames: Cells = cython.address(stack[0])
        limbs: Cells = cython.address(scratch[0])
    else:
        text, target, program, fixed = memoryview(buffer), memoryview(out), memoryview(steps), memoryview(literals)
        tens, frames, limbs = memoryview(powers), memoryview(stack), memoryview(scratch)
        columns, results = memoryview(columns), memoryview(results)
    with cython.nogil:
        while row < rows:
            results[1, row] = -1
            results[2, row] = 0
            if columns[2, row] >= 0:
                start = columns[0, row]
                length = columns[1, row]
                if length < 0 or (length > 0 and (start < 0 or length > size or start > size - length)):
                    results[2, row] = _OUTSIDE
                    row += 1
                    continue
                end = _datum(
                    target, position, limit, program, columns[2, row], fixed, tens, text, start, start + length, size,
                    frames, deepest, limbs,
                )  # fmt: skip
                if end == _FULL:
                    break
                if end < 0:
                    results[2, row] = end
                    results[3, row] = frames[0]
                    results[4, row] = frames[1]
                else:
                    results[0, row] = position
                    results[1, row] = end - position
                    position = end
            row += 1
    return row, position


def shortest(
    bits: cython.const[cython.ulonglong][::1],
    double: cython.bint,
    powers: cython.const[cython.ulonglong][::1],
    out: cython.uchar[::1],
    ends: cython.longlong[::1],
) -> int:
    """Write the floats with these bits (float64 if `double`, else float32) as JSON, and where each text ends; return
    how many fitted. For tests of every kind of float."""
    count: Long = bits.shape[0] if cython.compiled else len(bits)
    limit: Long = out.shape[0] if cython.compiled else len(out)
    i: Long
    position: Long = 0
    if (ends.shape[0] if cython.compiled else len(ends)) < count or limit < _SPARE:
        return 0
    if cython.compiled:
        target: Out = cython.address(out[0])
        tens: Powers = cython.address(powers[0])
    else:
        target, tens, bits, ends = memoryview(out), memoryview(powers), memoryview(bits), memoryview(ends)
    for i in range(count):
        if limit - position < _SPARE:
            return i
        if double:
            position = _float(target, position, bits[i], 52, 2047, tens)
        else:
            position = _float(target, position, bits[i], 23, 255, tens)
        ends[i] = position
    return count
