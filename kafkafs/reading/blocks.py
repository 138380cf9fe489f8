"""The blocks of a segment: stretches of up to 512 KiB of its file, of whole batches. Values only, no I/O.

A table has a row for each block: where it is, which batch it begins with, the timestamps in it, and perhaps a filter of
its keys. The first pass over the batches cuts the blocks, and every rendition uses the same blocks. So all that passes
and renditions record of a segment is about the same stretches.

A Bloom filter answers "no" only if the key is not in its block, and "yes" for 1 % of the keys that are not. So readers
skip the blocks for which it answers "no", and read the others. Damage may hide any key, so a damaged block has no
filter; other blocks have none until a pass has collected their keys.

Two keys with the same hash only cost time: a filter that says "yes" for one key says "yes" for the other. Each segment
has its own random secret for hashes, so keys that collide in one segment do not collide in the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.reading import block_kernel
from storage.errors import SegmentGone
from storage.format.batches import MOST_BATCH_BYTES

Secret = tuple[int, int]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

BLOCK_BYTES = 512 << 10  # of the file
BLOCK_RECORDS = 4096  # with more, small records would make a filter too large to be of use
DECODED_BYTES = 1 << 20  # well compressed messages decode to far more bytes than the block has
MOST_NAMES: Final = 1000
MOST_KEY_BYTES: Final = 255  # bytes of a file's name, so a longer key is in no listing

# Columns. The kernel has the same numbers; a rendition's pieces have the first six too, and then their own.
POSITION, FILE_END, BASE_OFFSET, CRC, LEAST, GREATEST = range(6)
RECORDS, KEYS, FIRST, WORDS = range(6, 10)
COLUMNS: Final = 10
# What a pass finds in addition, of one rendition.
RENDERED: Final = 10
FOUND_COLUMNS: Final = block_kernel.BLOCK_FIELDS

NO_CRC: Final = -1  # of damage: of an unreadable batch, or where no batch begins
NO_LEAST: Final = 2**63 - 1  # least and greatest timestamp where there is no message
NO_GREATEST: Final = -(2**63 - 1)
NO_FILTER: Final = -1  # `words` of a block that may hold any key


class FoundBlocks(NamedTuple):
    """The result of a pass between two positions: a row for each block or part of one, in order, with its rendered
    size; the words of their filters, one after the other; the names of the keys, None if they are too many or nobody
    has asked."""

    rows: Int64s
    words: UInt64s
    names: frozenset[bytes] | None

    @staticmethod
    def joined(parts: Iterable[FoundBlocks]) -> FoundBlocks:
        """Join the results of consecutive parts of a pass."""
        joined = _NOTHING
        for part in parts:
            if joined is _NOTHING:
                joined = part
                continue
            part.rows[:, FIRST] += len(joined.words)
            joined = FoundBlocks(
                np.concatenate((joined.rows, part.rows)),
                np.concatenate((joined.words, part.words)),
                _together(joined.names, part.names),
            )
        return joined


_NOTHING: Final = FoundBlocks(np.empty((0, FOUND_COLUMNS), np.int64), np.empty(0, np.uint64), frozenset())
_NO_EDGES: Final[Int64s] = np.empty(0, np.int64)


def _together(names: frozenset[bytes] | None, more: frozenset[bytes] | None) -> frozenset[bytes] | None:
    """The names of both; None if they are too many."""
    together = None if names is None or more is None else names | more
    return None if together is None or len(together) > MOST_NAMES else together


class KeyStretches(NamedTuple):
    """Where a key may be, from one position of a segment to another: in `stretches` of whole batches (start, end), and
    anywhere from `behind` on, where no keys have been collected yet."""

    stretches: list[tuple[int, int]]
    behind: int


class BlockTable:
    """The blocks of a segment, or of a part of it, up to `file_end`, in order. Immutable.

    `columns`: int64, shape (COLUMNS, blocks). Of each block, `records`: how many records are wanted; `keys`: about how
    many different keys they have; `first`, `words`: where its filter begins in the array `words`, and how many words it
    has. A block of damage is alone, and has no CRC; its timestamps are those that its header names. `names`: the keys
    of the blocks that have a filter, without those of more than MOST_KEY_BYTES bytes; None if they are more than
    MOST_NAMES.
    """

    __slots__ = ("columns", "file_end", "names", "secret", "words")

    def __init__(self, columns: Int64s, words: UInt64s, names: frozenset[bytes] | None, secret: Secret) -> None:
        self.columns = columns
        self.words = words
        self.names = names
        self.secret = secret
        self.file_end = int(columns[FILE_END, -1]) if columns.shape[1] else 0

    @staticmethod
    def none() -> BlockTable:
        """Nothing known yet; with a new secret."""
        secret = (secrets.randbits(64), secrets.randbits(64))
        return BlockTable(np.empty((COLUMNS, 0), np.int64), np.empty(0, np.uint64), frozenset(), secret)

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @property
    def is_damaged(self) -> bool:
        return bool((self.columns[CRC] == NO_CRC).any())

    @property
    def keys(self) -> int:
        """The sum over the blocks: a key that is in two of them counts twice."""
        return int(self.columns[KEYS].sum())

    @property
    def memory_bytes(self) -> int:
        names = sum(map(len, self.names)) if self.names else 0
        return int(self.columns.nbytes) + int(self.words.nbytes) + names

    def until(self, rows: int) -> BlockTable:
        """The table of the first blocks. It keeps all names, because nobody knows which of them only the later blocks
        have."""
        columns = np.ascontiguousarray(self.columns[:, :rows])
        words = columns[FIRST] + np.maximum(columns[WORDS], 0)
        return BlockTable(columns, self.words[: int(words.max(initial=0))], self.names, self.secret)

    def compact(self) -> BlockTable:
        """This table with the filters in the order of their blocks, and no words but theirs."""
        columns = self.columns.copy()
        sizes = np.maximum(columns[WORDS], 0)
        columns[FIRST] = np.cumsum(sizes) - sizes
        of = np.arange(int(sizes.sum())) + np.repeat(self.columns[FIRST] - columns[FIRST], sizes)
        return BlockTable(columns, self.words[of], self.names, self.secret)

    def can_be(self, size: int) -> bool:
        """Whether this may be the compact table of an undamaged segment of so many bytes."""
        columns = self.columns
        position, file_end, crc, words = (columns[column] for column in (POSITION, FILE_END, CRC, WORDS))
        sizes = np.maximum(words, 0)
        return bool(
            (position == np.concatenate((np.zeros(1, np.int64), file_end))[:-1]).all()
            and ((file_end > position) & (file_end <= size)).all()
            and (file_end - position <= MOST_BATCH_BYTES + BLOCK_BYTES).all()
            and ((crc >= 0) & (columns[RECORDS] >= 0) & (columns[KEYS] >= 0)).all()
            and ((words >= NO_FILTER) & (words <= len(self.words))).all()
            and (columns[FIRST] == np.cumsum(sizes) - sizes).all()
            and int(sizes.sum()) == len(self.words)
        )

    def edges(self, start: int) -> Int64s:
        """The positions after `start` where a pass that begins at `start` must cut: where known blocks begin and
        end."""
        if not len(self):
            return _NO_EDGES
        edges = np.append(self.columns[POSITION], self.file_end)
        return edges[edges > start]

    def unfiltered(self, start: int, end: int) -> list[tuple[int, int]]:
        """The stretches between two positions whose keys are unknown: blocks without a filter, and everything after the
        last block. Batches begin at both positions. Damaged blocks are left out: nobody can collect their keys."""
        columns = self.columns
        rows = (columns[WORDS] < 0) & (columns[CRC] != NO_CRC) & (columns[FILE_END] > start) & (columns[POSITION] < end)
        places = columns[POSITION : FILE_END + 1, rows].T.tolist()
        if self.file_end < end:
            places.append([max(self.file_end, start), end])
        stretches: list[tuple[int, int]] = []
        for first, last in places:
            if stretches and stretches[-1][1] == first:
                stretches[-1] = stretches[-1][0], last
            else:
                stretches.append((first, last))
        return stretches

    def merged(self, found: FoundBlocks) -> tuple[BlockTable, Int64s]:
        """Return this table extended by the result of a pass, which began within these blocks or at their end; and for
        each row of the result its block in the new table. SegmentGone if the file has other batches than before."""
        rows, columns, names = found.rows, self.columns, _together(self.names, found.names)
        if not len(self):
            return BlockTable(rows[:, :COLUMNS].T.copy(), found.words, names, self.secret), np.arange(len(rows))
        known = int(rows[:, POSITION].searchsorted(self.file_end))
        places = columns[POSITION].searchsorted(rows[:known, POSITION], side="right") - 1
        self._check(rows[:known], places)
        first, joined = known, False
        if known < len(rows) and self._goes_on(rows[known]):
            first, joined = known + 1, True
        size = len(self) + len(rows) - first
        merged = np.empty((COLUMNS, size), np.int64)
        merged[:, : len(self)] = columns
        merged[:, len(self) :] = rows[first:, :COLUMNS].T
        merged[FIRST, len(self) :] += len(self.words)
        filters = (rows[:known, WORDS] >= 0) & (merged[WORDS, places] < 0)
        filters &= (rows[:known, POSITION : FILE_END + 1] == merged[POSITION : FILE_END + 1, places].T).all(axis=1)
        merged[KEYS : WORDS + 1, places[filters]] = rows[:known][filters, KEYS : WORDS + 1].T
        merged[FIRST, places[filters]] += len(self.words)
        if joined:
            last, added = len(self) - 1, rows[known]
            merged[FILE_END, last] = added[FILE_END]
            merged[LEAST, last] = min(merged[LEAST, last], added[LEAST])
            merged[GREATEST, last] = max(merged[GREATEST, last], added[GREATEST])
            merged[RECORDS, last] += added[RECORDS]
            merged[KEYS, last], merged[FIRST, last], merged[WORDS, last] = 0, 0, NO_FILTER
        of = np.concatenate((places, np.arange(len(self) - joined, size)))
        words = np.concatenate((self.words, found.words)) if len(found.words) else self.words
        return BlockTable(merged, words, names, self.secret), of

    def _check(self, rows: Int64s, places: Int64s) -> None:
        """Raise SegmentGone unless the rows have the same batches, and the same damage, as the known blocks."""
        columns = self.columns[:, places]
        begins = rows[:, POSITION] == columns[POSITION]
        other = begins & ((rows[:, BASE_OFFSET] != columns[BASE_OFFSET]) | (rows[:, CRC] != columns[CRC]))
        other |= (rows[:, CRC] == NO_CRC) != (columns[CRC] == NO_CRC)
        if other.any():
            position = int(rows[other.argmax(), POSITION])
            raise SegmentGone("the segment was rewritten since its batches were read", position=position)

    def _goes_on(self, row: Int64s) -> bool:
        """Whether the last block is small enough to take in `row`, the block after it."""
        last = self.columns[:, -1]
        return bool(
            row[FILE_END] - last[POSITION] <= BLOCK_BYTES
            and last[RECORDS] + row[RECORDS] <= BLOCK_RECORDS
            and NO_CRC not in (last[CRC], row[CRC])
        )

    def find(self, key: bytes, start: int, end: int) -> KeyStretches:
        """Where the key may be between the positions `start` and `end`, where batches begin. Blocks that are close to
        each other are one stretch: reading on takes less time than beginning again."""
        position, file_end = self.columns[POSITION], self.columns[FILE_END]
        marks = np.empty(len(self), np.uint8)
        block_kernel.probe(self.words, self.columns[FIRST], self.columns[WORDS], hash_of(key, self.secret), marks)
        rows = np.flatnonzero((marks != 0) & (file_end > start) & (position < end))
        stretches: list[tuple[int, int]] = []
        for row in rows.tolist():
            first, last = max(start, int(position[row])), min(end, int(file_end[row]))
            if stretches and first - stretches[-1][1] <= BLOCK_BYTES:
                stretches[-1] = stretches[-1][0], last
            else:
                stretches.append((first, last))
        return KeyStretches(stretches, min(max(start, self.file_end), end))


def hash_of(key: bytes, secret: Secret) -> int:
    """The hash of a key by which filters know it."""
    hashes = np.empty(1, np.uint64)
    block_kernel.hash_keys(key, np.zeros(1, np.int64), np.array([len(key)], np.int64), *secret, hashes)
    return int(hashes[0])
