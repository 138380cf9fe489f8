# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hot loops of the table of latest records, Cython in pure-Python mode: hashes of keys in, latest offsets out.

The table is one array of uint32 with `words` of them, five or six, per slot: HEAD_SLOTS slots, then `slots` more. The
home of a key is the upper half of its hash's first half, scaled to the `slots`, behind the first HEAD_SLOTS. A key is
at its home or below it, there is no free slot between the two, and the keys ascend by that upper half. So a search ends
at the first slot that is free or has less, after some five slots where nine tenths of them are taken. And the table can
grow where it is, in one pass from its end: no key then has a lower slot than before.

    word 0  the lowest 25 bits of the hash's upper half; above them bits 32 to 38 of the entry
    word 1  the other half of the hash's first half
    word 2  the hash's second half, its upper half
    word 3  and its lower one
    word 4  the lowest 32 bits of the entry
    word 5  bits 39 to 63 of the entry, where there are six words

The entry is four times the offset, counted from a first one; plus 2 for a tombstone; plus 1, since a slot whose word 4
is 0 is free. The highest seven bits of the hash follow from the slot: no key is farther from its home than half of a
128th of the table, so that with two different values of them the homes would be too far from each other. This is why
all 128 bits of the hash are compared though only 121 are there.

Nothing here allocates or raises in a loop.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memmove

HEAD_SLOTS = 256  # for keys that find all slots between the table's begin and their home taken
LEAST_SLOTS = 1024

_HEAD = cython.declare(cython.longlong, 256)
_LEAST = cython.declare(cython.longlong, 1024)
_LOW_32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_LOW_25 = cython.declare(cython.ulonglong, 0x1FFFFFF)

# Slots are read this many rows ahead of their use, so that several memory accesses overlap.
_AHEAD = cython.declare(cython.Py_ssize_t, 64)


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _home(upper: cython.ulonglong, slots: cython.ulonglong) -> cython.longlong:
    return _HEAD + cython.cast(cython.longlong, (upper * slots) >> 32)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _reach(slots: cython.longlong) -> cython.longlong:
    """How far from its home a key may be put. When the table grows, rounding may make it one more."""
    return (slots >> 8) - 2


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _top(word: cython.uint, at: cython.longlong, slots: cython.ulonglong, least: cython.ulonglong) -> cython.ulonglong:
    """The highest seven bits of the hash whose first word is in the slot `at`; they are `least` or more."""
    low: cython.ulonglong = word & _LOW_25
    while least < 127 and _home(least << 25 | low, slots) < at:
        least += 1
    return least


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _order(word: cython.uint, upper: cython.ulonglong) -> cython.int:
    """Below 0, 0 or above 0 as a slot's hash has a lesser, the same or a greater upper half than this one. By 25 bits:
    near a key's slot the hashes differ by less than half of what these bits can count."""
    difference: cython.uint
    if cython.compiled:
        difference = (word << 7) - (cython.cast(cython.uint, upper) << 7)
        return cython.cast(cython.int, difference)
    difference = ((word << 7) - (upper << 7)) & 0xFFFFFFFF
    return difference - ((difference & 0x80000000) << 1)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _is_key(
    table: cython.const[cython.uint][::1], base: cython.longlong, hash_0: cython.ulonglong, hash_1: cython.ulonglong
) -> cython.bint:
    """Whether the slot with the word `base` has the key, if its hash has the same upper half."""
    return (
        table[base + 1] == (hash_0 & _LOW_32)
        and table[base + 2] == hash_1 >> 32
        and table[base + 3] == hash_1 & _LOW_32
    )


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _write(
    table: cython.uint[::1],
    base: cython.longlong,
    words: cython.int,
    hash_0: cython.ulonglong,
    hash_1: cython.ulonglong,
    entry: cython.ulonglong,
) -> cython.void:
    table[base] = cython.cast(cython.uint, ((hash_0 >> 32) & _LOW_25) | (((entry >> 32) & 127) << 25))
    table[base + 1] = cython.cast(cython.uint, hash_0 & _LOW_32)
    table[base + 2] = cython.cast(cython.uint, hash_1 >> 32)
    table[base + 3] = cython.cast(cython.uint, hash_1 & _LOW_32)
    table[base + 4] = cython.cast(cython.uint, entry & _LOW_32)
    if words == 6:
        table[base + 5] = cython.cast(cython.uint, entry >> 39)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _move(
    table: cython.uint[::1], target: cython.longlong, source: cython.longlong, count: cython.longlong
) -> cython.void:
    """Moves `count` words, which are all in the table, downwards or to where they do not overlap."""
    index: cython.longlong
    if cython.compiled:
        memmove(
            cython.address(table[target]),
            cython.address(table[source]),
            cython.cast(cython.size_t, count) * cython.sizeof(cython.uint),
        )
    else:
        for index in range(count):
            table[target + index] = table[source + index]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _make_room(
    table: cython.uint[::1], words: cython.longlong, slots: cython.longlong, at: cython.longlong, home: cython.longlong
) -> cython.bint:
    """Frees the slot `at` by moving those from it downwards to the next free one; False if there is none, or if a key
    would be too far from its home."""
    free: cython.longlong = at - 1
    slot: cython.longlong
    top: cython.ulonglong = 0
    while free >= 0 and table[free * words + 4] != 0:
        free -= 1
    if free < 0:
        return False
    if home - free > _reach(slots):
        # None has its home above the one of the new key, so this is seldom.
        if free > _HEAD:
            top = cython.cast(cython.ulonglong, ((free - _HEAD) << 7) // slots)
        for slot in range(free + 1, at + 1):
            top = _top(table[slot * words], slot, cython.cast(cython.ulonglong, slots), top)
            if _home(
                top << 25 | (table[slot * words] & _LOW_25), cython.cast(cython.ulonglong, slots)
            ) - slot >= _reach(slots):
                return False
            top = 0 if top < 1 else top - 1
    _move(table, free * words, (free + 1) * words, (at - free) * words)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _touch(
    table: cython.const[cython.uint][::1],
    words: cython.longlong,
    slots: cython.longlong,
    hashes: cython.const[cython.ulonglong][:, ::1],
    row: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> cython.uint:
    seen: cython.uint = 0
    while row < last:
        seen ^= table[_home(hashes[row, 0] >> 32, cython.cast(cython.ulonglong, slots)) * words]
        row += 1
    return seen


def put(
    table: cython.uint[::1],
    words: cython.longlong,
    slots: cython.longlong,
    most: cython.longlong,
    state: cython.longlong[::1],
    hashes: cython.const[cython.ulonglong][:, ::1],
    offsets: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    value_length: cython.const[cython.longlong][::1],
    origin: cython.longlong,
    row: cython.Py_ssize_t,
) -> int:
    """Adds the keys of the rows from `row` on, later ones replacing earlier ones, while they are at most `most`.

    Rows without a key (length below 0) are skipped; a value's length below 0 makes a tombstone. Offsets are stored as
    their distance from `origin`. `state`: the number of keys in the table, and a cell for the kernel. Returns the first
    row that found the table too full, or their number. ValueError for columns that do not fit each other or the table,
    and for an offset below the origin, or 2**37 above it if a slot has five words.
    """
    rows: cython.Py_ssize_t = len(offsets)
    size: cython.longlong
    greatest: cython.longlong = 0x1FFFFFFFFF
    reach: cython.longlong
    seen: cython.uint = 0
    hash_0: cython.ulonglong
    hash_1: cython.ulonglong
    entry: cython.ulonglong
    home: cython.longlong
    at: cython.longlong
    base: cython.longlong
    order: cython.int
    ahead: cython.Py_ssize_t = row
    bad: cython.bint = False
    if not cython.compiled:
        table, state, hashes = memoryview(table), memoryview(state), memoryview(hashes)
        offsets, key_length, value_length = (memoryview(each) for each in (offsets, key_length, value_length))
    if len(key_length) < rows or len(value_length) < rows or hashes.shape[0] < rows or hashes.shape[1] < 2:
        raise ValueError("fewer hashes or lengths than offsets")
    if len(state) < 2 or row < 0 or origin < 0:
        raise ValueError("no state, or a row or an origin below 0")
    if (words != 5 and words != 6) or slots < _LEAST or slots > 0xFFFFFF00 or len(table) // words - _HEAD < slots:
        raise ValueError("a table of another size")
    if words == 6:
        greatest = 0x1FFFFFFFFFFFFFFF
    reach = _reach(slots)
    size = state[0]
    with cython.nogil:
        while row < rows:
            if row == ahead:
                ahead = row + _AHEAD if rows - row > _AHEAD else rows
                seen ^= _touch(table, words, slots, hashes, row, ahead)
            if key_length[row] < 0:
                row += 1
                continue
            if offsets[row] < origin or offsets[row] - origin > greatest:
                bad = True
                break
            entry = cython.cast(cython.ulonglong, offsets[row] - origin) * 4 + 1
            if value_length[row] < 0:
                entry += 2
            hash_0 = hashes[row, 0]
            hash_1 = hashes[row, 1]
            home = _home(hash_0 >> 32, cython.cast(cython.ulonglong, slots))
            at = home
            base = at * words
            order = -1
            while table[base + 4] != 0:
                order = _order(table[base], hash_0 >> 32)
                if order < 0 or (order == 0 and _is_key(table, base, hash_0, hash_1)):
                    break
                order = -1
                at -= 1
                base -= words
                if at < 0 or home - at > reach + 1:
                    break
            if at < 0:
                break
            if order < 0:  # it is not in the table
                if size >= most or home - at > reach:
                    break
                if table[base + 4] != 0 and not _make_room(table, words, slots, at, home):
                    break
                size += 1
            _write(table, base, words, hash_0, hash_1, entry)
            row += 1
    state[0] = size
    state[1] = seen & 1  # otherwise the compiler would remove the reads
    if bad:
        raise ValueError("an offset that the table has no bits for")
    return row


def grow(table: cython.uint[::1], words: cython.longlong, slots: cython.longlong, larger: cython.longlong) -> None:
    """Moves the keys of a table with `slots` to where they belong in one with `larger`, in the same array, whose new
    end may have anything in it. ValueError for an array that is too small, or that such a table cannot have."""
    at: cython.longlong
    place: cython.longlong
    above: cython.longlong
    slot: cython.longlong
    upper: cython.ulonglong
    top: cython.ulonglong = 127
    bad: cython.bint = False
    if not cython.compiled:
        table = memoryview(table)
    if (words != 5 and words != 6) or slots < _LEAST or larger < slots or larger > 0xFFFFFF00:
        raise ValueError("a table of another size")
    if len(table) // words - _HEAD < larger:
        raise ValueError("an array that is too small")
    above = _HEAD + larger
    at = _HEAD + slots - 1
    with cython.nogil:
        while at >= 0:
            if table[at * words + 4] != 0:
                # The lowest seven bits whose hashes may have their home here or above.
                while top > 0 and _home(top << 25, cython.cast(cython.ulonglong, slots)) >= at:
                    top -= 1
                upper = _top(table[at * words], at, cython.cast(cython.ulonglong, slots), top) << 25
                upper |= table[at * words] & _LOW_25
                place = _home(upper, cython.cast(cython.ulonglong, larger))
                if place >= above:
                    place = above - 1
                if place < at:
                    bad = True
                    break
                # Whatever was between this key's new slot and the next key's has been moved up.
                for slot in range(place + 1, above):
                    table[slot * words + 4] = 0
                if place != at:
                    _move(table, place * words, at * words, words)
                above = place
            at -= 1
        for slot in range(above):
            table[slot * words + 4] = 0
    if bad:
        raise ValueError("a table that is not in order")
