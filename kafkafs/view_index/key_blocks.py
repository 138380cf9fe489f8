"""The keys of a segment, as Bloom filters over its blocks: stretches of about 512 KiB of the file, of whole batches.

A filter answers "no" only if the key is not in its block, and "yes" for 0.8 % of the keys that are not. So what it
leaves out may be skipped, and what is left is read. A block with damage may hold any key, and has no filter.

Hashes are SipHash with a random secret for each segment: two keys of a segment have different hashes (64 bits), also if
somebody has chosen them for having the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.selection import key_kernel
from kafkafs.view_index.pieces import NO_CRC
from storage.format import hashing
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock

Secret = tuple[int, int]
UInt64s = npt.NDArray[np.uint64]

BLOCK_BYTES = 512 << 10  # of the file
_BLOCK_RECORDS = 4096  # of records that are compressed well there are far more in a block's bytes
_BITS_PER_KEY = 10
MOST_NAMES = 1000
LONGEST_NAME = 255  # bytes of a file's name, so a longer key is in no listing
UNKNOWN = -1  # `words` of a block that may hold any key


class KeyBlock(NamedTuple):
    """A block: whole batches from `position` to `file_end`, in bytes of the file. `keys`: how many distinct ones."""

    position: int
    file_end: int
    base_offset: int  # of the batch at `position`: checked before the filter is used, together with its CRC
    crc: int
    keys: int
    first: int  # word of the filter, counted in all filters' words
    words: int  # of 64 bits; 0 without any key; UNKNOWN without a filter


POSITION, FILE_END, BASE_OFFSET, CRC, KEYS, FIRST, WORDS = range(len(KeyBlock._fields))
COLUMNS = len(KeyBlock._fields)


class Found(NamedTuple):
    """Where a key may be, from one position of a segment to another: `stretches` of whole batches (start, end), and
    from `behind` on everything, because there is no filter yet."""

    stretches: list[tuple[int, int]]
    behind: int


class KeyBlocks:
    """The blocks of a segment from its beginning to `file_end`, in order and without gaps. Immutable.

    `columns`: int64, shape (COLUMNS, blocks), see KeyBlock. `words`: all filters. `names`: the keys, without those of
    more than LONGEST_NAME bytes; None if they are more than MOST_NAMES.
    """

    __slots__ = ("columns", "file_end", "names", "secret", "words")

    def __init__(
        self, columns: npt.NDArray[np.int64], words: UInt64s, names: frozenset[bytes] | None, secret: Secret
    ) -> None:
        self.columns = columns
        self.words = words
        self.names = names
        self.secret = secret
        self.file_end = int(columns[FILE_END, -1]) if columns.shape[1] else 0

    @staticmethod
    def none() -> KeyBlocks:
        """Nothing known yet; with a new secret."""
        columns, words = np.empty((COLUMNS, 0), np.int64), np.empty(0, np.uint64)
        return KeyBlocks(columns, words, frozenset(), (secrets.randbits(64), secrets.randbits(64)))

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @property
    def is_damaged(self) -> bool:
        """Whether there is a block without a filter."""
        return bool((self.columns[WORDS] == UNKNOWN).any())

    @property
    def keys(self) -> int:
        """The sum over the blocks: a key that is in two of them counts twice."""
        return int(self.columns[KEYS].sum())

    @property
    def memory_bytes(self) -> int:
        names = sum(map(len, self.names)) if self.names else 0
        return int(self.columns.nbytes) + int(self.words.nbytes) + names

    def block(self, row: int) -> KeyBlock:
        return KeyBlock._make(self.columns[:, row].tolist())

    def until(self, rows: int) -> KeyBlocks:
        """The first blocks. Which names only the others had is unknown, so that all stay."""
        columns = np.ascontiguousarray(self.columns[:, :rows])
        words = int(np.maximum(columns[WORDS], 0).sum())
        return KeyBlocks(columns, self.words[:words], self.names, self.secret)

    def extended(self, parts: Iterable[KeyCollector]) -> KeyBlocks:
        """These blocks, and those that were collected behind them, up to the first gap."""
        blocks: list[KeyBlock] = []
        words, names, end, size = [self.words], self.names, self.file_end, len(self.words)
        for part in parts:
            if not part.blocks:
                continue
            if part.blocks[0].position != end:
                break
            blocks += [block._replace(first=block.first + size) for block in part.blocks]
            words += part.filters
            size += sum(map(len, part.filters))
            end = part.blocks[-1].file_end
            if names is not None:
                names = None if part.names is None else names.union(part.names.values())
                names = None if names is None or len(names) > MOST_NAMES else names
        if not blocks:
            return self
        columns = np.concatenate((self.columns, np.array(blocks, np.int64).T), axis=1)
        return KeyBlocks(np.ascontiguousarray(columns), np.concatenate(words), names, self.secret)

    def may_hold(self, key: bytes) -> npt.NDArray[np.bool_]:
        """For each block, whether it may hold a message with the key."""
        marks = np.empty(len(self), np.uint8)
        columns = np.ascontiguousarray(self.columns)
        key_kernel.probe(self.words, columns[FIRST], columns[WORDS], _hash_of(key, self.secret), marks)
        return marks.view(np.bool_)

    def find(self, key: bytes, start: int, end: int) -> Found:
        """Where the key may be between the positions `start` and `end`, where batches begin. Blocks that are close to
        each other are one stretch: reading on takes less time than beginning again."""
        position, file_end = self.columns[POSITION], self.columns[FILE_END]
        rows = np.flatnonzero(self.may_hold(key) & (file_end > start) & (position < end))
        stretches: list[tuple[int, int]] = []
        for row in rows.tolist():
            first, last = max(start, int(position[row])), min(end, int(file_end[row]))
            if stretches and first - stretches[-1][1] <= BLOCK_BYTES:
                stretches[-1] = stretches[-1][0], last
            else:
                stretches.append((first, last))
        return Found(stretches, min(max(start, self.file_end), end))


class KeyCollector:
    """Makes the blocks of a part of a segment from its batches, which must be given in order. Used by one thread.

    `blocks`: those that are complete, with `first` counted in the words of this part; `filters`: of the blocks that
    have some; `names`: by hash, as in KeyBlocks.
    """

    def __init__(self, secret: Secret) -> None:
        self.blocks: list[KeyBlock] = []
        self.filters: list[UInt64s] = []
        self.names: dict[int, bytes] | None = {}
        self._secret = secret
        self._words = 0
        # of the block that is being made
        self._head: tuple[int, int, int] | None = None  # position, base offset and CRC of its first batch
        self._file_end = 0
        self._records = 0
        self._is_unknown = False
        self._set = _HashSet(_BLOCK_RECORDS)
        # of the whole part
        self._hashes = np.empty((0, 1), np.uint64)
        self._known = _HashSet(2 * (MOST_NAMES + 1))

    def add(self, table: BatchTable, first: int, last: int, block: RecordBlock) -> None:
        """Adds the batches in rows [first, last) of a table, decoded in `block` without any left out."""
        count = len(block)
        if count > len(self._hashes):
            self._hashes = np.empty((2 * count, 1), np.uint64)
        hashes = self._hashes[:count]
        lengths = np.ascontiguousarray(block.key_length)
        hashing.siphash_columns(block.buffer, np.ascontiguousarray(block.key_start), lengths, *self._secret, hashes)
        batch, ends = block.batch, table.end
        row = record = 0
        row = first
        while row < last:
            if self._head is None:
                self._begin(int(table.position[row]), int(table.base_offset[row]), int(table.crc[row]))
            assert self._head is not None
            limit = self._head[0] + BLOCK_BYTES
            stop = min(max(int(ends.searchsorted(limit, side="right")), row + 1), last)
            until = count if stop == last else int(batch.searchsorted(stop))
            room = max(_BLOCK_RECORDS - self._records, 0)
            if until - record > room:
                stop = max(row + 1, min(stop, int(batch[record + room])))
                until = count if stop == last else int(batch.searchsorted(stop))
            before = self._set.count
            self._set.add(hashes, lengths, record, until)
            if self.names is not None and self._set.count > before:
                self._name(block, before)
            self._records += until - record
            self._file_end = int(ends[stop - 1])
            if self._file_end >= limit or self._records >= _BLOCK_RECORDS:
                self.close()
            row, record = stop, until

    def add_damage(self, position: int, end: int) -> None:
        """Adds bytes that cannot be read: a damaged batch, or where none begins."""
        if self._head is None:
            self._begin(position, -1, NO_CRC)
        assert self._head is not None
        self._is_unknown = True
        self._file_end = end
        if end - self._head[0] >= BLOCK_BYTES:
            self.close()

    def close(self) -> None:
        """Completes the block that is being made, if there is one."""
        if self._head is None:
            return
        position, base_offset, crc = self._head
        count, size = self._set.count, UNKNOWN
        if not self._is_unknown:
            size = -(-count * _BITS_PER_KEY // 64)
            words = np.zeros(size, np.uint64)
            key_kernel.fill(self._set.found, count, words)
            self.filters.append(words)
        self.blocks.append(KeyBlock(position, self._file_end, base_offset, crc, count, self._words, size))
        self._words += max(size, 0)
        self._head = None
        self._set.clear()

    def _begin(self, position: int, base_offset: int, crc: int) -> None:
        self._head = position, base_offset, crc
        self._file_end = position
        self._records = 0
        self._is_unknown = False

    def _name(self, block: RecordBlock, before: int) -> None:
        """Keeps the keys that the block being made has in addition to the first `before` ones."""
        assert self.names is not None
        new = self._set.found[before : self._set.count]
        if len(new) > MOST_NAMES:
            self.names = None
            return
        known = self._known.count
        self._known.add(new, np.zeros(len(new), np.int64), 0, len(new))
        for hash_, index in self._known.found[known : self._known.count].tolist():
            row = int(new[index, 1])
            if int(block.key_length[row]) <= LONGEST_NAME:
                key = block.key(row)
                assert key is not None
                self.names[hash_] = key
        if self._known.count > MOST_NAMES:
            self.names = None


class _HashSet:
    """Different hashes, in the order in which they came: `found` has `count` rows of a hash and its row."""

    def __init__(self, room: int) -> None:
        self.count = 0
        self.found = np.empty((room, 2), np.uint64)
        self._table = np.zeros(_power_of_two(2 * room), np.uint64)

    def add(self, hashes: UInt64s, lengths: npt.NDArray[np.int64], first: int, last: int) -> None:
        """See `key_kernel.distinct`."""
        needed = self.count + last - first
        if needed > len(self.found):
            held = self.found[: self.count].copy()
            self.found = np.empty((2 * needed, 2), np.uint64)
            self._table = np.zeros(_power_of_two(4 * needed), np.uint64)
            key_kernel.distinct(held, np.zeros(len(held), np.int64), 0, len(held), self._table, self.found, 0)
            self.found[: self.count] = held
        self.count = key_kernel.distinct(hashes, lengths, first, last, self._table, self.found, self.count)

    def clear(self) -> None:
        if self.count:
            self._table[:] = 0
            self.count = 0


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _hash_of(key: bytes, secret: Secret) -> int:
    hashes = np.empty((1, 1), np.uint64)
    hashing.siphash_columns(key, np.zeros(1, np.int64), np.array([len(key)], np.int64), *secret, hashes)
    return int(hashes[0, 0])
