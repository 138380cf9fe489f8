# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Cuts batches into blocks, and tells which records have a key and which blocks may hold one: Bloom filters of keys.

The hash of a key has 64 bits and is never 0; 0 stands for no key. A hash decides nothing: a filter only says where to
look, and names are compared byte by byte. So the hash is a fast one: a multiplication for each eight bytes, with a
secret factor. A filter is an array of 64-bit words; a hash sets 5 of its bits, at places that the hash's two halves
give (Kirsch and Mitzenmacher, "Less hashing, same performance": double hashing costs no precision worth mentioning). If
a filter has 10 bits for each key, 0.95 % of other keys pass; setting 7 bits, the best number, would let 0.82 % pass and
take almost half as long again. The 5 is a literal in loops, so that the compiler unrolls them.

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower.
"""

from __future__ import annotations

import sys

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.storage.format import columns as column
else:
    from storage.format import columns as column

# Declared, since as literals they are Python objects to Cython.
_LOW = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_ALL = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MOST_BITS = cython.declare(cython.ulonglong, 0x80000000)  # so that a place times the bits fits 64 bits
# Odd numbers with about as many ones as zeros, those of MurmurHash3's and SplitMix64's last steps.
_FACTOR_1 = cython.declare(cython.ulonglong, 0xFF51AFD7ED558CCD)
_FACTOR_2 = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)

# Cells of a collector's `state`. The block that is being made is the row after the complete blocks.
IS_OPEN = 0  # whether a block is being made
DECODED = 1  # bytes of its keys and values
PENDING = 2  # hashes of its keys, some more than once
BLOCKS = 3  # complete ones, of the whole part
WORDS = 4  # of the complete blocks' filters
KNOWN = 5  # how many of the known edges have been passed
HAS_KEYS = 6  # whether blocks get filters
IS_SPARSE = 7  # whether batches without wanted records are left out where a block begins or ends
STATE_CELLS = 8

_IS_OPEN = cython.declare(cython.int, 0)
_DECODED = cython.declare(cython.int, 1)
_PENDING = cython.declare(cython.int, 2)
_BLOCKS = cython.declare(cython.int, 3)
_WORDS = cython.declare(cython.int, 4)
_KNOWN = cython.declare(cython.int, 5)
_HAS_KEYS = cython.declare(cython.int, 6)
_IS_SPARSE = cython.declare(cython.int, 7)
_STATE_CELLS = cython.declare(cython.int, 8)

# Fields of a block; kafkafs.reading.blocks has the same numbers. The last field belongs to a rendition, not to the
# block.
_BLOCK_POSITION = cython.declare(cython.int, 0)
_BLOCK_FILE_END = cython.declare(cython.int, 1)
_BLOCK_BASE_OFFSET = cython.declare(cython.int, 2)
_BLOCK_CRC = cython.declare(cython.int, 3)
_BLOCK_LEAST = cython.declare(cython.int, 4)  # timestamps
_BLOCK_GREATEST = cython.declare(cython.int, 5)
_BLOCK_RECORDS = cython.declare(cython.int, 6)
_BLOCK_KEYS = cython.declare(cython.int, 7)
_BLOCK_FIRST = cython.declare(cython.int, 8)
_BLOCK_WORDS = cython.declare(cython.int, 9)
_BLOCK_SIZE = cython.declare(cython.int, 10)  # rendered bytes
BLOCK_FIELDS = 11
_BLOCK_FIELDS = cython.declare(cython.int, 11)

NO_LEAST = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
NO_GREATEST = cython.declare(cython.longlong, -0x7FFFFFFFFFFFFFFF)

BITS_PER_KEY = 10
_BITS_PER_KEY = cython.declare(cython.ulonglong, 10)


def rows_with_key(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    key: cython.const[cython.uchar][::1],
    rows: cython.longlong[::1],
) -> int:
    """Put the rows whose key (at `starts`, `lengths` bytes; negative: null) is `key` into `rows`; returns how many.

    IndexError when there is less room than keys; ValueError for a key outside the buffer.
    """
    count: cython.Py_ssize_t = len(starts)
    size: cython.longlong = len(buffer)
    key_length: cython.longlong = len(key)
    matches: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    start: cython.longlong
    index: cython.longlong
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths, key, rows = (memoryview(each) for each in (buffer, starts, lengths, key, rows))
    if len(lengths) < count or len(rows) < count:
        raise IndexError("fewer lengths or rows than keys")
    with cython.nogil:
        for row in range(count):
            if lengths[row] != key_length:
                continue
            start = starts[row]
            if start < 0 or key_length > size or start > size - key_length:
                bad = True
                break
            index = 0
            # From the end: keys that begin alike are more common than keys that end alike.
            while index < key_length and buffer[start + key_length - 1 - index] == key[key_length - 1 - index]:
                index += 1
            if index == key_length:
                rows[matches] = row
                matches += 1
    if bad:
        raise ValueError("a key lies outside the buffer")
    return matches


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _product(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    """Modulo 2^64."""
    return left * right if cython.compiled else (left * right) & _ALL


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _word(buffer: cython.const[cython.uchar][::1], start: cython.longlong) -> cython.ulonglong:
    """Eight bytes, in the order of the machine."""
    word: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(word), cython.address(buffer[start]), 8)
    else:
        word = int.from_bytes(buffer[start : start + 8], sys.byteorder)
    return word


def hash_keys(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    secret_0: cython.ulonglong,
    secret_1: cython.ulonglong,
    hashes: cython.ulonglong[::1],
) -> None:
    """Put the hash of each key (at `starts`, `lengths` bytes; negative: null, which gives 0) into `hashes`.

    IndexError when there is less room than keys; ValueError for a key outside the buffer.
    """
    size: cython.longlong = len(buffer)
    rows: cython.Py_ssize_t = len(starts)
    factor: cython.ulonglong = secret_1 | 1
    row: cython.Py_ssize_t
    at: cython.longlong
    last: cython.longlong
    length: cython.longlong
    index: cython.longlong
    word: cython.ulonglong
    value: cython.ulonglong
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths, hashes = (memoryview(each) for each in (buffer, starts, lengths, hashes))
    if len(lengths) < rows or len(hashes) < rows:
        raise IndexError("fewer lengths or hashes than keys")
    with cython.nogil:
        for row in range(rows):
            length = lengths[row]
            if length < 0:
                hashes[row] = 0
                continue
            at = starts[row]
            if at < 0 or length > size or at > size - length:
                bad = True
                break
            # The length tells keys of less than eight bytes from those that end with zero bytes.
            value = secret_0 ^ _product(cython.cast(cython.ulonglong, length), _FACTOR_2)
            if length >= 8:
                last = at + length - 8
                while at < last:
                    value = _product(value ^ _word(buffer, at), factor)
                    value ^= value >> 32
                    at += 8
                # The last eight bytes, some of them perhaps for the second time: faster than byte by byte.
                word = _word(buffer, last)
            else:
                word = 0
                for index in range(length):
                    word |= cython.cast(cython.ulonglong, buffer[at + index]) << (8 * index)
            value = _product(value ^ word, factor)
            value = _product(value ^ (value >> 32), _FACTOR_1)
            value = _product(value ^ (value >> 29), _FACTOR_2)
            value ^= value >> 32
            hashes[row] = value if value != 0 else 1
    if bad:
        raise ValueError("a key lies outside the buffer")


def add_names(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    hashes: cython.const[cython.ulonglong][::1],
    longest: cython.longlong,
    names: cython.uchar[::1],
    ends: cython.longlong[::1],
    table: cython.longlong[::1],
    count: cython.Py_ssize_t,
) -> int:
    """Add the keys of at most `longest` bytes to a set that has `count` keys; return how many the set has then, or -1
    if `ends` has no room for so many.

    `names`: the keys, one after the other; `ends`: where each ends; `table`: a power of two of slots, more than there
    may be keys, each free (0) or a key's number from 1 on. IndexError for arrays that do not fit each other;
    ValueError for a key outside the buffer.
    """
    size: cython.longlong = len(buffer)
    rows: cython.Py_ssize_t = len(starts)
    room: cython.Py_ssize_t = len(ends)
    slots: cython.ulonglong = len(table)
    row: cython.Py_ssize_t
    at: cython.longlong
    length: cython.longlong
    known: cython.longlong
    first: cython.longlong
    used: cython.longlong
    index: cython.longlong
    slot: cython.ulonglong
    left: cython.ulonglong = slots
    full: cython.bint = False
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths, hashes = (memoryview(each) for each in (buffer, starts, lengths, hashes))
        names, ends, table = (memoryview(each) for each in (names, ends, table))
    if len(lengths) < rows or len(hashes) < rows:
        raise IndexError("fewer lengths or hashes than keys")
    if count < 0 or count > room or longest < 0 or longest > 65536 or len(names) < longest * room:
        raise IndexError("no room for that many names")
    if slots & (slots - 1) or slots <= cython.cast(cython.ulonglong, room):
        raise IndexError("the table is too small, or not a power of two")
    used = 0 if count == 0 else ends[count - 1]
    if used < 0 or used > longest * count:
        raise IndexError("names that end elsewhere")
    with cython.nogil:
        for row in range(rows):
            length = lengths[row]
            if length < 0 or length > longest:
                continue
            at = starts[row]
            if at < 0 or length > size or at > size - length:
                bad = True
                break
            slot = hashes[row] & (slots - 1)
            left = slots
            while True:
                known = table[slot]
                if known <= 0 or known > count:
                    break
                first = 0 if known == 1 else ends[known - 2]
                if first >= 0 and first <= used - length and ends[known - 1] == first + length:
                    index = 0
                    while index < length and names[first + index] == buffer[at + index]:
                        index += 1
                    if index == length:
                        break
                left -= 1
                if left == 0:
                    break
                slot = (slot + 1) & (slots - 1)
            if left == 0:
                break
            if known > 0 and known <= count:
                continue
            if count >= room:
                full = True
                break
            for index in range(length):
                names[used + index] = buffer[at + index]
            used += length
            ends[count] = used
            count += 1
            table[slot] = count
    if bad:
        raise ValueError("a key lies outside the buffer")
    if left == 0:
        raise IndexError("a table without a free slot")
    return -1 if full else count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    hashes: cython.const[cython.ulonglong][::1], count: cython.Py_ssize_t, words: cython.ulonglong[::1]
) -> cython.void:
    """Clear the filter `words` and set the bits of the first `count` hashes in it."""
    size: cython.Py_ssize_t = len(words)
    bits: cython.ulonglong = cython.cast(cython.ulonglong, size) * 64
    index: cython.Py_ssize_t
    _probe: cython.int
    value: cython.ulonglong
    low: cython.uint
    step: cython.uint
    place: cython.ulonglong
    for index in range(size):
        words[index] = 0
    for index in range(count):
        value = hashes[index]
        low = cython.cast(cython.uint, value & _LOW)
        step = cython.cast(cython.uint, value >> 32) | 1
        for _probe in range(5):
            place = (cython.cast(cython.ulonglong, low) * bits) >> 32
            words[place >> 6] |= cython.cast(cython.ulonglong, 1) << (place & 63)
            low = low + step if cython.compiled else (low + step) & _LOW


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _different(
    hashes: cython.const[cython.ulonglong][::1], count: cython.Py_ssize_t, sketch: cython.ulonglong[::1]
) -> cython.longlong:
    """Estimate how many of the first `count` hashes are different: to about a hundredth if they are many; of a few, two
    may set the same bit and count as one.

    Each hash sets one of at least eight times as many bits; the number of hashes follows from the number of bits that
    are set (Whang et al., "A linear-time probabilistic counting algorithm"). `sketch`: at least as many words as the
    least power of two that holds eight bits for each hash.
    """
    bits: cython.longlong = 64
    shift: cython.int = 58
    index: cython.Py_ssize_t
    place: cython.ulonglong
    bit: cython.ulonglong
    unset_bits: cython.longlong = 0
    share: cython.double
    result: cython.longlong
    while bits < 8 * count:
        bits *= 2
        shift -= 1
    for index in range(bits >> 6):
        sketch[index] = 0
    for index in range(count):
        place = hashes[index] >> shift
        bit = cython.cast(cython.ulonglong, 1) << (place & 63)
        place >>= 6
        unset_bits += (sketch[place] & bit) == 0
        sketch[place] |= bit
    share = cython.cast(cython.double, unset_bits) / cython.cast(cython.double, bits)
    # -bits * ln(1 - share), as a series: the share is below an eighth.
    share = share * (1.0 + share * (1.0 / 2 + share * (1.0 / 3 + share * (1.0 / 4 + share / 5))))
    result = cython.cast(cython.longlong, share * bits + 0.5) if cython.compiled else int(share * bits + 0.5)
    return result if result < count else count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _close(
    state: cython.longlong[::1],
    pending: cython.const[cython.ulonglong][::1],
    sketch: cython.ulonglong[::1],
    blocks: cython.longlong[:, ::1],
    words: cython.ulonglong[::1],
) -> cython.bint:
    """Complete the block that is being made; False without room for its filter."""
    block: cython.longlong = state[_BLOCKS]
    first: cython.longlong = state[_WORDS]
    count: cython.longlong = state[_PENDING]
    keys: cython.longlong = 0
    size: cython.longlong = -1
    if block < 0 or block >= blocks.shape[0] or first < 0 or count < 0 or count > len(pending):
        return False
    # Twice eight bits a hash: the next power of two.
    if count > len(sketch) * 4 or len(sketch) == 0:
        return False
    if state[_HAS_KEYS]:
        keys = _different(pending, count, sketch)
        size = (keys * cython.cast(cython.longlong, _BITS_PER_KEY) + 63) // 64
        if size > len(words) or first > len(words) - size or cython.cast(cython.ulonglong, size) * 64 > _MOST_BITS:
            return False
        _fill(pending, count, words[first : first + size])
    blocks[block, _BLOCK_KEYS] = keys
    blocks[block, _BLOCK_FIRST] = first
    blocks[block, _BLOCK_WORDS] = size
    state[_BLOCKS] = block + 1
    if size > 0:
        state[_WORDS] = first + size
    state[_PENDING] = 0
    state[_IS_OPEN] = 0
    return True


def close(
    state: cython.longlong[::1],
    pending: cython.const[cython.ulonglong][::1],
    sketch: cython.ulonglong[::1],
    blocks: cython.longlong[:, ::1],
    words: cython.ulonglong[::1],
) -> None:
    """Complete the block that is being made, if there is one: its filter goes into `words`, after the words that
    `state` counts. `pending`, `sketch`: see `collect`. IndexError without room."""
    done: cython.bint = True
    if not cython.compiled:
        state, pending, sketch = memoryview(state), memoryview(pending), memoryview(sketch)
        blocks, words = memoryview(blocks), memoryview(words)
    if len(state) < _STATE_CELLS or blocks.shape[1] < _BLOCK_FIELDS:
        raise IndexError("cells or fields are missing")
    with cython.nogil:
        if state[_IS_OPEN]:
            done = _close(state, pending, sketch, blocks, words)
    if not done:
        raise IndexError("no room for the block")


def collect(
    table: cython.const[cython.longlong][:, :],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    batch: cython.const[cython.longlong][::1],
    timestamps: cython.const[cython.longlong][::1],
    key_lengths: cython.const[cython.longlong][::1],
    value_lengths: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    mask: cython.const[cython.uchar][::1],
    hidden: cython.const[cython.uchar][::1],
    hashes: cython.const[cython.ulonglong][::1],
    known: cython.const[cython.longlong][::1],
    most_bytes: cython.longlong,
    most_records: cython.longlong,
    most_decoded: cython.longlong,
    state: cython.longlong[::1],
    pending: cython.ulonglong[::1],
    sketch: cython.ulonglong[::1],
    blocks: cython.longlong[:, ::1],
    words: cython.ulonglong[::1],
) -> None:
    """Add the batches in rows [first, last) of a BatchTable to a collector's blocks.

    A block ends at each of the `known` edges (ascending file positions). After the last edge a block has at most the
    given numbers of file bytes, records and decoded bytes, unless it is a single batch.

    By record: `batch`, its row, ascending; its timestamp; its lengths, or empty where nothing is compressed; `sizes`,
    rendered, or empty; `mask`, 0 to leave the record out, or empty; `hashes` of its key, 0 for none, or empty. By row
    of the table: `hidden`, 1 for a batch that renders to nothing, or empty. `state`, `pending` (hashes), `blocks` and
    `words` are the collector's; `sketch` is for the kernel: at least a word for every four hashes. IndexError when
    there is too little room, or for a record of a batch that is not in the rows: the state is then of no more use.
    """
    count: cython.Py_ssize_t = len(batch)
    edges: cython.Py_ssize_t = len(known)
    room: cython.longlong = len(pending)
    is_weighed: cython.bint = len(value_lengths) > 0
    is_sized: cython.bint = len(sizes) > 0
    is_masked: cython.bint = len(mask) > 0
    is_hashed: cython.bint = len(hashes) > 0
    row: cython.Py_ssize_t
    record: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    block: cython.longlong
    held: cython.longlong
    added: cython.longlong
    position: cython.longlong
    decoded: cython.longlong
    size: cython.longlong
    records: cython.longlong
    least: cython.longlong
    greatest: cython.longlong
    before: cython.ulonglong
    value: cython.ulonglong
    is_edge: cython.bint
    done: cython.bint = True
    if not cython.compiled:
        table, batch, timestamps, sizes = (memoryview(each) for each in (table, batch, timestamps, sizes))
        key_lengths, value_lengths = memoryview(key_lengths), memoryview(value_lengths)
        mask, hidden, hashes, known = (memoryview(each) for each in (mask, hidden, hashes, known))
        state, pending, sketch = (memoryview(each) for each in (state, pending, sketch))
        blocks, words = memoryview(blocks), memoryview(words)
    if len(state) < _STATE_CELLS or blocks.shape[1] < _BLOCK_FIELDS:
        raise IndexError("cells or fields are missing")
    if len(timestamps) < count or (is_weighed and (len(key_lengths) < count or len(value_lengths) < count)):
        raise IndexError("fewer timestamps or lengths than records")
    if (is_sized and len(sizes) < count) or (is_masked and len(mask) < count) or (is_hashed and len(hashes) < count):
        raise IndexError("fewer sizes, marks or hashes than records")
    if first < 0 or last > table.shape[1] or table.shape[0] <= column.CRC:
        raise IndexError("rows outside of the table")
    if len(hidden) > 0 and len(hidden) < last:
        raise IndexError("fewer marks than batches")
    held, block = state[_PENDING], state[_BLOCKS]
    if held < 0 or held > room or (is_hashed and room - held < count):
        raise IndexError("no room for the hashes")
    # A block for each batch, and the one that is being made.
    if block < 0 or (first < last and blocks.shape[0] - block < last - first + 1):
        raise IndexError("no room for the blocks")
    if state[_KNOWN] < 0:
        raise IndexError("no such edge")
    with cython.nogil:
        for row in range(first, last):
            position = table[column.POSITION, row]
            held = state[_PENDING]
            added = held
            before = 0
            decoded, size, records, least, greatest = 0, 0, 0, NO_LEAST, NO_GREATEST
            while record < count and batch[record] == row:
                if is_hashed:
                    value = hashes[record]
                    # The same key many times in turn is common, and needs no bits but the first one's.
                    if value != before and value != 0:
                        pending[added] = value
                        added += 1
                        before = value
                if is_weighed:
                    decoded += max(0, key_lengths[record]) + max(0, value_lengths[record])
                if not is_masked or mask[record] != 0:
                    if is_sized:
                        size += sizes[record]
                    records += 1
                    if timestamps[record] < least:
                        least = timestamps[record]
                    if timestamps[record] > greatest:
                        greatest = timestamps[record]
                record += 1
            if records == 0 and state[_IS_SPARSE]:
                continue
            is_edge = False
            while state[_KNOWN] < edges and known[state[_KNOWN]] <= position:
                state[_KNOWN] += 1
                is_edge = True
            block = state[_BLOCKS]
            if state[_IS_OPEN] and (
                is_edge
                or (
                    state[_KNOWN] >= edges
                    and (
                        position + table[column.SIZE, row] - blocks[block, _BLOCK_POSITION] > most_bytes
                        or blocks[block, _BLOCK_RECORDS] + records > most_records
                        or state[_DECODED] + decoded > most_decoded
                    )
                )
            ):
                done = _close(state, pending, sketch, blocks, words)
                if not done:
                    break
                for index in range(added - held):
                    pending[index] = pending[held + index]
                added -= held
                block = state[_BLOCKS]
            if not state[_IS_OPEN]:
                state[_IS_OPEN] = 1
                state[_DECODED] = 0
                blocks[block, _BLOCK_POSITION] = position
                blocks[block, _BLOCK_BASE_OFFSET] = table[column.BASE_OFFSET, row]
                blocks[block, _BLOCK_CRC] = table[column.CRC, row]
                blocks[block, _BLOCK_LEAST] = NO_LEAST
                blocks[block, _BLOCK_GREATEST] = NO_GREATEST
                blocks[block, _BLOCK_RECORDS] = 0
                blocks[block, _BLOCK_SIZE] = 0
            state[_PENDING] = added
            state[_DECODED] += decoded
            if len(hidden) == 0 or hidden[row] == 0:
                blocks[block, _BLOCK_SIZE] += size
            blocks[block, _BLOCK_RECORDS] += records
            if least < blocks[block, _BLOCK_LEAST]:
                blocks[block, _BLOCK_LEAST] = least
            if greatest > blocks[block, _BLOCK_GREATEST]:
                blocks[block, _BLOCK_GREATEST] = greatest
            blocks[block, _BLOCK_FILE_END] = position + table[column.SIZE, row]
    if not done:
        raise IndexError("no room for the block")
    if record < count:
        raise IndexError("a record of a batch outside of the rows")


def probe(
    words: cython.const[cython.ulonglong][::1],
    firsts: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    hash_: cython.ulonglong,
    marks: cython.uchar[::1],
) -> None:
    """For each filter, `sizes` words from `firsts` on: whether the key of this hash may be in it, 1 or 0 in `marks`.

    No words: there is no key, so 0. A negative size, or words that are not all there: 1. IndexError for fewer sizes or
    marks than filters.
    """
    count: cython.Py_ssize_t = len(firsts)
    room: cython.longlong = len(words)
    row: cython.Py_ssize_t
    _probe: cython.int
    place: cython.ulonglong
    bits: cython.ulonglong
    low: cython.ulonglong
    step: cython.ulonglong
    if not cython.compiled:
        words, firsts = memoryview(words), memoryview(firsts)
        sizes, marks = memoryview(sizes), memoryview(marks)
    if len(sizes) < count or len(marks) < count:
        raise IndexError("fewer sizes or marks than filters")
    step = (hash_ >> 32) | 1
    with cython.nogil:
        for row in range(count):
            if sizes[row] == 0:
                marks[row] = 0
                continue
            marks[row] = 1
            if sizes[row] < 0 or firsts[row] < 0 or sizes[row] > room or firsts[row] > room - sizes[row]:
                continue
            bits = cython.cast(cython.ulonglong, sizes[row]) * 64
            if bits > _MOST_BITS:
                continue
            low = hash_ & _LOW
            for _probe in range(5):
                place = (low * bits) >> 32
                low = (low + step) & _LOW
                if not (words[firsts[row] + cython.cast(cython.longlong, place >> 6)] >> (place & 63)) & 1:
                    marks[row] = 0
                    break
