# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kafka's hashes: murmur2 of keys (the partition of a keyed record), Java's String.hashCode (a group's partition); and
SipHash of the keys that compaction compares, only in memory, with 128 bits like Kafka's MD5.

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower.
Source: `Utils.murmur2`, `BuiltInPartitioner.partitionForKey`, `GroupCoordinator.partitionFor`; Aumasson and Bernstein,
"SipHash: a fast short-input PRF" (SipHash-1-3 with 128 bits of output, as the authors' reference code has it).
"""

import cython

_SEED = cython.declare(cython.uint, 0x9747B28C)
_M = cython.declare(cython.uint, 0x5BD1E995)

# SipHash: "somepseudorandomlygeneratedbytes", the second word with 0xEE for 128 bits of output.
_SIP_0 = cython.declare(cython.ulonglong, 0x736F6D6570736575)
_SIP_1 = cython.declare(cython.ulonglong, 0x646F72616E646F83)
_SIP_2 = cython.declare(cython.ulonglong, 0x6C7967656E657261)
_SIP_3 = cython.declare(cython.ulonglong, 0x7465646279746573)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _multiply(left: cython.uint, right: cython.uint) -> cython.uint:
    """The product modulo 2^32, as Java's int arithmetic wraps."""
    return left * right if cython.compiled else (left * right) & 0xFFFFFFFF


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _signed(value: cython.uint) -> cython.int:
    """These 32 bits as Java's int."""
    return cython.cast(cython.int, value) if cython.compiled else value - ((value & 0x80000000) << 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(
    buffer: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.int:
    h: cython.uint = _SEED ^ cython.cast(cython.uint, length)
    k: cython.uint
    position: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + (length & ~3)
    while position < end:
        k = buffer[position]
        k |= cython.cast(cython.uint, buffer[position + 1]) << 8
        k |= cython.cast(cython.uint, buffer[position + 2]) << 16
        k |= cython.cast(cython.uint, buffer[position + 3]) << 24
        k = _multiply(k, _M)
        k ^= k >> 24
        h = _multiply(h, _M) ^ _multiply(k, _M)
        position += 4
    if length & 3:
        if length & 3 == 3:
            h ^= cython.cast(cython.uint, buffer[position + 2]) << 16
        if length & 2:
            h ^= cython.cast(cython.uint, buffer[position + 1]) << 8
        h = _multiply(h ^ buffer[position], _M)
    h ^= h >> 13
    h = _multiply(h, _M)
    h ^= h >> 15
    return _signed(h)


def murmur2(key: cython.const[cython.uchar][::1]) -> cython.int:
    """Kafka's murmur2 of one key, which may be empty: a signed 32-bit number."""
    return _murmur2(key, 0, len(key))


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _outside(start: cython.longlong, length: cython.longlong, size: cython.longlong) -> cython.bint:
    """Whether `length` bytes at `start` are not all within a buffer of `size` bytes."""
    return start < 0 or length > size or start > size - length


def murmur2_columns(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    hashes: cython.int[::1],
) -> None:
    """Hash the keys at `starts` with `lengths` bytes (a RecordBlock's key columns) into int32 `hashes`; null gives 0.

    A null key has no hash: it is recognized by its negative length. Raises ValueError for a key outside the buffer.
    """
    size: cython.longlong = len(buffer)
    rows: cython.Py_ssize_t = len(starts)
    row: cython.Py_ssize_t
    bad: cython.bint = False
    if not cython.compiled:
        buffer, starts, lengths, hashes = (memoryview(array) for array in (buffer, starts, lengths, hashes))
    if len(lengths) < rows or len(hashes) < rows:
        raise ValueError("fewer lengths or hashes than keys")
    with cython.nogil:
        for row in range(rows):
            if lengths[row] < 0:
                hashes[row] = 0
                continue
            if _outside(starts[row], lengths[row], size):
                bad = True
                break
            hashes[row] = _murmur2(buffer, starts[row], lengths[row])
    if bad:
        raise ValueError("a key lies outside the buffer")


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _rotated(value: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (value << bits) | (value >> (64 - bits))
    return ((value << bits) | (value >> (64 - bits))) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _sum(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    """The sum modulo 2^64."""
    return left + right if cython.compiled else (left + right) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _round(
    v0: cython.ulonglong, v1: cython.ulonglong, v2: cython.ulonglong, v3: cython.ulonglong
) -> tuple[cython.ulonglong, cython.ulonglong, cython.ulonglong, cython.ulonglong]:
    v0 = _sum(v0, v1)
    v2 = _sum(v2, v3)
    v1 = _rotated(v1, 13) ^ v0
    v3 = _rotated(v3, 16) ^ v2
    v0 = _rotated(v0, 32)
    v2 = _sum(v2, v1)
    v0 = _sum(v0, v3)
    v1 = _rotated(v1, 17) ^ v2
    v3 = _rotated(v3, 21) ^ v0
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _word(buffer: cython.const[cython.uchar][::1], start: cython.longlong, length: cython.longlong) -> cython.ulonglong:
    """Up to eight bytes, little-endian."""
    word: cython.ulonglong = 0
    index: cython.longlong
    if length == 8:
        word = cython.cast(cython.ulonglong, buffer[start])
        word |= cython.cast(cython.ulonglong, buffer[start + 1]) << 8
        word |= cython.cast(cython.ulonglong, buffer[start + 2]) << 16
        word |= cython.cast(cython.ulonglong, buffer[start + 3]) << 24
        word |= cython.cast(cython.ulonglong, buffer[start + 4]) << 32
        word |= cython.cast(cython.ulonglong, buffer[start + 5]) << 40
        word |= cython.cast(cython.ulonglong, buffer[start + 6]) << 48
        word |= cython.cast(cython.ulonglong, buffer[start + 7]) << 56
        return word
    for index in range(length):
        word |= cython.cast(cython.ulonglong, buffer[start + index]) << (8 * index)
    return word


def siphash_columns(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    secret_0: cython.ulonglong,
    secret_1: cython.ulonglong,
    hashes: cython.ulonglong[:, ::1],
) -> None:
    """SipHash-1-3-128 of keys, as `murmur2_columns`, into the two uint64 of each row of `hashes`; null gives 0, 0.

    Where rows have room for one uint64 they get the first. Without the secret, two random uint64, nobody can make keys
    that collide. ValueError as `murmur2_columns`.
    """
    size: cython.longlong = len(buffer)
    rows: cython.Py_ssize_t = len(starts)
    row: cython.Py_ssize_t
    at: cython.longlong
    end: cython.longlong
    length: cython.longlong
    word: cython.ulonglong
    v0: cython.ulonglong
    v1: cython.ulonglong
    v2: cython.ulonglong
    v3: cython.ulonglong
    bad: cython.bint = False
    both: cython.bint
    if not cython.compiled:
        buffer, starts, lengths, hashes = (memoryview(array) for array in (buffer, starts, lengths, hashes))
    if len(lengths) < rows or hashes.shape[0] < rows or hashes.shape[1] < 1:
        raise ValueError("fewer lengths or hashes than keys")
    both = hashes.shape[1] > 1
    with cython.nogil:
        for row in range(rows):
            length = lengths[row]
            if length < 0:
                hashes[row, 0] = 0
                if both:
                    hashes[row, 1] = 0
                continue
            at = starts[row]
            if _outside(at, length, size):
                bad = True
                break
            v0 = secret_0 ^ _SIP_0
            v1 = secret_1 ^ _SIP_1
            v2 = secret_0 ^ _SIP_2
            v3 = secret_1 ^ _SIP_3
            end = at + (length & ~7)
            while at < end:
                word = _word(buffer, at, 8)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
                v0 ^= word
                at += 8
            if length >= 8 and length & 7:
                # The last eight bytes, without those that were in the word before: faster than byte by byte.
                word = _word(buffer, end - 8 + (length & 7), 8) >> (64 - 8 * (length & 7))
            else:
                word = _word(buffer, at, length & 7)
            word = word | (cython.cast(cython.ulonglong, length & 0xFF) << 56)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
            v0, v1, v2, v3 = _round(v0 ^ word, v1, v2 ^ 0xEE, v3)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            hashes[row, 0] = v0 ^ v1 ^ v2 ^ v3
            if not both:
                continue
            v0, v1, v2, v3 = _round(v0, v1 ^ 0xDD, v2, v3)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            hashes[row, 1] = v0 ^ v1 ^ v2 ^ v3
    if bad:
        raise ValueError("a key lies outside the buffer")


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, a signed 32-bit number."""
    units: bytes = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - ((value & 0x80000000) << 1)


def group_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group (default: 50 partitions): `Utils.abs`, so -2^31 is 0."""
    value = java_string_hash(group)
    return (0 if value == -(2**31) else abs(value)) % partitions
