# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hot loops of compaction's offset map, Cython in pure-Python mode: hashes of keys in, offsets of latest records out.

The map is one array of uint64, three per slot: the hash's two halves and the offset. A slot whose halves are both 0 is
free. The first slot tried is the hash's upper half scaled to the number of slots, then the next ones in turn.
Nothing here allocates or raises in a loop. Source of the rules: `SkimpyOffsetMap`, `Cleaner.shouldRetainRecord`.
"""

import cython

# What happens to a batch's records, as bits: all are dropped; all are kept; those with null values are kept, too.
DISCARD = 1
KEEP = 2
KEEP_DELETES = 4

_DISCARD = cython.declare(cython.int, 1)
_KEEP = cython.declare(cython.int, 2)
_KEEP_DELETES = cython.declare(cython.int, 4)

# Slots are read this many rows ahead of their use, so that several memory accesses overlap.
_AHEAD = cython.declare(cython.Py_ssize_t, 64)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _first_slot(hash_0: cython.ulonglong, slots: cython.ulonglong) -> cython.longlong:
    return cython.cast(cython.longlong, ((hash_0 >> 32) * slots) >> 32)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _find(
    table: cython.const[cython.ulonglong][::1],
    slots: cython.longlong,
    hash_0: cython.ulonglong,
    hash_1: cython.ulonglong,
) -> cython.longlong:
    """The position in `table` of the key's slot, or of the free one that it would get; -1 if there is neither."""
    at: cython.longlong = _first_slot(hash_0, cython.cast(cython.ulonglong, slots)) * 3
    end: cython.longlong = slots * 3
    left: cython.longlong = slots
    while (table[at] != hash_0 or table[at + 1] != hash_1) and (table[at] != 0 or table[at + 1] != 0):
        at += 3
        left -= 1
        if left == 0:
            return -1
        if at == end:
            at = 0
    return at


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _second_half(hash_0: cython.ulonglong, hash_1: cython.ulonglong) -> cython.ulonglong:
    """The hash's second half, never with a first half of 0 also 0, which marks a free slot."""
    return 1 if hash_0 == 0 and hash_1 == 0 else hash_1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _touch(
    table: cython.const[cython.ulonglong][::1],
    slots: cython.longlong,
    hashes: cython.const[cython.ulonglong][:, ::1],
    row: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> cython.ulonglong:
    seen: cython.ulonglong = 0
    while row < last:
        seen ^= table[_first_slot(hashes[row, 0], cython.cast(cython.ulonglong, slots)) * 3]
        row += 1
    return seen


def put(
    table: cython.ulonglong[::1],
    limit: cython.longlong,
    state: cython.longlong[::1],
    hashes: cython.const[cython.ulonglong][:, ::1],
    offsets: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    first_offset: cython.longlong,
) -> int:
    """Adds the offsets of the rows' keys, later ones overwriting earlier ones, until `limit` keys are in the map.

    Rows without a key (length below 0) and those below `first_offset` are skipped. Offsets are any numbers. `state`:
    the number of keys in the map, the last offset added, and a cell for the kernel. Returns the first row that found
    the map full, or their number. ValueError for columns that do not fit each other, or a limit that leaves no slot
    free.
    """
    rows: cython.Py_ssize_t = len(offsets)
    slots: cython.longlong = len(table) // 3
    size: cython.longlong
    latest: cython.longlong
    seen: cython.ulonglong = 0
    hash_0: cython.ulonglong
    hash_1: cython.ulonglong
    at: cython.longlong
    row: cython.Py_ssize_t = 0
    ahead: cython.Py_ssize_t = 0
    if not cython.compiled:
        table, state, hashes = memoryview(table), memoryview(state), memoryview(hashes)
        offsets, key_length = memoryview(offsets), memoryview(key_length)
    if len(key_length) < rows or hashes.shape[0] < rows or hashes.shape[1] < 2 or len(state) < 3:
        raise ValueError("fewer hashes or lengths than offsets, or no state")
    if limit < 0 or limit >= slots or slots > 0xFFFFFFFF or state[0] < 0 or state[0] > limit:
        raise ValueError("a map needs a free slot")
    size = state[0]
    latest = state[1]
    with cython.nogil:
        while row < rows:
            if row == ahead:
                ahead = row + _AHEAD if rows - row > _AHEAD else rows
                seen ^= _touch(table, slots, hashes, row, ahead)
            if key_length[row] < 0 or offsets[row] < first_offset:
                row += 1
                continue
            if size >= limit:
                break
            hash_0 = hashes[row, 0]
            hash_1 = _second_half(hash_0, hashes[row, 1])
            at = _find(table, slots, hash_0, hash_1)
            if at < 0:
                break
            if table[at] == 0 and table[at + 1] == 0:
                table[at] = hash_0
                table[at + 1] = hash_1
                size += 1
            latest = offsets[row]
            table[at + 2] = cython.cast(cython.ulonglong, latest) if cython.compiled else latest & 0xFFFFFFFFFFFFFFFF
            row += 1
    state[0] = size
    state[1] = latest
    state[2] = cython.cast(cython.longlong, seen & 1)  # otherwise the compiler would remove the reads
    return row


def mark(table: cython.const[cython.ulonglong][::1], first: cython.longlong, marks: cython.uchar[::1]) -> None:
    """Sets the bit of each offset in the map, `first` the lowest bit of the first byte. ValueError for one outside."""
    slots: cython.longlong = len(table) // 3
    marked: cython.longlong = cython.cast(cython.longlong, len(marks)) * 8
    slot: cython.longlong
    at: cython.longlong
    bad: cython.bint = False
    if not cython.compiled:
        table, marks = memoryview(table), memoryview(marks)
    if first < 0:
        raise ValueError("an offset below 0")
    with cython.nogil:
        for slot in range(slots):
            if table[3 * slot] != 0 or table[3 * slot + 1] != 0:
                at = cython.cast(cython.longlong, table[3 * slot + 2])
                if at < first or at - first >= marked:
                    bad = True
                    break
                at -= first
                marks[at >> 3] |= cython.cast(cython.uchar, 1 << (at & 7))
    if bad:
        raise ValueError("an offset outside of the marks")


def retain(
    table: cython.const[cython.ulonglong][::1],
    latest: cython.longlong,
    first: cython.longlong,
    marks: cython.const[cython.uchar][::1],
    hashes: cython.const[cython.ulonglong][:, ::1],
    offsets: cython.const[cython.longlong][::1],
    key_length: cython.const[cython.longlong][::1],
    value_length: cython.const[cython.longlong][::1],
    batch: cython.const[cython.longlong][::1],
    verdicts: cython.const[cython.uchar][::1],
    keep: cython.uchar[::1],
    kept: cython.longlong[::1],
    deletes: cython.longlong[::1],
    result: cython.longlong[::1],
) -> None:
    """Which records are kept, as 1 or 0 in `keep`: those above `latest`, below it the latest of each key; no null keys.

    From the offset `first` on the latest ones are those in `marks` (see `mark`; if empty, the map is searched);
    `hashes` may then be empty. `batch`: each record's row in `verdicts` (bits, see above), `kept` and `deletes`, to
    which are added: records that are kept, and those of them with null values. To `result` are added: records without a
    key; deletes that were the latest of their key and are dropped; a cell for the kernel. ValueError for columns that
    do not fit each other.
    """
    rows: cython.Py_ssize_t = len(offsets)
    slots: cython.longlong = len(table) // 3
    batches: cython.longlong = len(verdicts)
    hashed: cython.Py_ssize_t = hashes.shape[0]
    marked: cython.longlong = cython.cast(cython.longlong, len(marks)) * 8
    seen: cython.ulonglong = 0
    row: cython.Py_ssize_t
    ahead: cython.Py_ssize_t = 0
    of: cython.longlong
    verdict: cython.int
    stays: cython.bint
    at: cython.longlong
    bad: cython.bint = False
    if not cython.compiled:
        table, hashes, offsets, key_length = (memoryview(array) for array in (table, hashes, offsets, key_length))
        value_length, batch, verdicts, marks = (memoryview(a) for a in (value_length, batch, verdicts, marks))
        keep, kept, deletes, result = (memoryview(array) for array in (keep, kept, deletes, result))
    if (
        len(key_length) < rows
        or len(value_length) < rows
        or len(batch) < rows
        or hashes.shape[1] < 2
        or first < 0
        or len(keep) < rows
        or len(kept) < len(verdicts)
        or len(deletes) < len(verdicts)
        or len(result) < 3
        or slots < 1
        or slots > 0xFFFFFFFF
    ):
        raise ValueError("columns do not fit each other")
    with cython.nogil:
        for row in range(rows):
            if row == ahead and rows <= hashed:
                ahead = row + _AHEAD if rows - row > _AHEAD else rows
                seen ^= _touch(table, slots, hashes, row, ahead)
            of = batch[row]
            if of < 0 or of >= batches:
                bad = True
                break
            verdict = verdicts[of]
            if verdict & _DISCARD:
                stays = False
            elif verdict & _KEEP or offsets[row] > latest:
                stays = True
            elif key_length[row] < 0:
                stays = False
                result[0] += 1
            elif marked and offsets[row] >= first:
                at = offsets[row] - first
                if at >= marked:
                    bad = True
                    break
                stays = (marks[at >> 3] >> (at & 7)) & 1 != 0
            else:
                if row >= hashed:
                    bad = True
                    break
                at = _find(table, slots, hashes[row, 0], _second_half(hashes[row, 0], hashes[row, 1]))
                stays = at < 0 or (table[at] == 0 and table[at + 1] == 0)
                if not stays:
                    stays = offsets[row] >= cython.cast(cython.longlong, table[at + 2])
            if stays and value_length[row] < 0 and not verdict & (_KEEP | _KEEP_DELETES) and offsets[row] <= latest:
                stays = False
                result[1] += 1
            keep[row] = stays
            if stays:
                kept[of] += 1
                if value_length[row] < 0:
                    deletes[of] += 1
    result[2] = cython.cast(cython.longlong, seen & 1)  # otherwise the compiler would remove the reads
    if bad:
        raise ValueError("a record of no batch, without a hash or outside of the marks")
