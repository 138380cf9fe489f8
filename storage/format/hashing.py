# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kafka's hashes: murmur2 of keys (which partition a keyed record goes to), Java's String.hashCode (group's partition).

Cython in pure-Python mode; the same file runs uncompiled with equal results, only slower.
Source: `Utils.murmur2`, `BuiltInPartitioner.partitionForKey`, `GroupCoordinator.partitionFor`.
"""

import cython

_SEED = cython.declare(cython.uint, 0x9747B28C)
_M = cython.declare(cython.uint, 0x5BD1E995)


def is_compiled() -> bool:
    """Whether this is the extension module and not the plain Python file."""
    return bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _multiply(left: cython.uint, right: cython.uint) -> cython.uint:
    """Modulo 2^32, as Java's int arithmetic wraps."""
    return left * right if cython.compiled else (left * right) & 0xFFFFFFFF


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _signed(value: cython.uint) -> cython.int:
    """The same 32 bits as Java's int."""
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
    """Kafka's murmur2 of one key: a signed 32-bit number. An empty key is a key."""
    return _murmur2(key, 0, len(key))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2_gathered(
    data: cython.const[cython.uchar][::1], ends: cython.const[cython.longlong][::1], hashes: cython.int[::1]
) -> cython.Py_ssize_t:
    size: cython.longlong = len(data)
    rows: cython.Py_ssize_t = len(ends)
    start: cython.longlong = 0
    row: cython.Py_ssize_t
    for row in range(rows):
        if ends[row] < start or ends[row] > size:
            return row
        hashes[row] = _murmur2(data, start, ends[row] - start)
        start = ends[row]
    return rows


def murmur2_gathered(
    data: cython.const[cython.uchar][::1], ends: cython.const[cython.longlong][::1], hashes: cython.int[::1]
) -> None:
    """Hash keys that lie back to back: key i is data[ends[i-1]:ends[i]] (`RecordBlock.gather`); into int32 `hashes`.

    Raises ValueError where `ends` falls, points outside `data`, or is longer than `hashes`.
    """
    rows: cython.Py_ssize_t = len(ends)
    done: cython.Py_ssize_t
    if not cython.compiled:
        data, ends, hashes = memoryview(data), memoryview(ends), memoryview(hashes)
    if len(hashes) < rows:
        raise ValueError("fewer hashes than keys")
    with cython.nogil:
        done = _murmur2_gathered(data, ends, hashes)
    if done < rows:
        raise ValueError("ends of keys outside the data, or not ascending")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2_columns(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    hashes: cython.int[::1],
) -> cython.Py_ssize_t:
    size: cython.longlong = len(buffer)
    rows: cython.Py_ssize_t = len(starts)
    row: cython.Py_ssize_t
    for row in range(rows):
        if lengths[row] < 0:
            hashes[row] = 0
            continue
        if starts[row] < 0 or lengths[row] > size or starts[row] > size - lengths[row]:
            return row
        hashes[row] = _murmur2(buffer, starts[row], lengths[row])
    return rows


def murmur2_columns(
    buffer: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    hashes: cython.int[::1],
) -> None:
    """Hash the keys at `starts` with `lengths` bytes (a `RecordBlock`'s key columns) into int32 `hashes`; null gives 0.

    A null key has no hash: tell it by its negative length. Raises ValueError where a key is not within the buffer.
    """
    rows: cython.Py_ssize_t = len(starts)
    done: cython.Py_ssize_t
    if not cython.compiled:
        buffer, starts, lengths, hashes = (memoryview(array) for array in (buffer, starts, lengths, hashes))
    if len(lengths) < rows or len(hashes) < rows:
        raise ValueError("fewer lengths or hashes than keys")
    with cython.nogil:
        done = _murmur2_columns(buffer, starts, lengths, hashes)
    if done < rows:
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
