"""The keys of a segment, as Bloom filters over its blocks: stretches of about 512 KiB of the file, of whole batches.

A filter answers "no" only if the key is not in its block, and "yes" for 1 % of the keys that are not. So what it
leaves out may be skipped, and what is left is read. A block with damage may hold any key, and has no filter.

Two keys with the same hash only cost time: a filter that says "yes" for one does for the other. Each segment has its
own random secret for hashes, so keys are taken for one another in one segment and not in the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kafkafs.reading import key_kernel
from kafkafs.reading.pieces import NO_CRC
from kafkafs.reading.workbench import Workbench
from kafkafs.reading.workers import OnBytes, Workers, in_parts, window_bytes
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

Secret = tuple[int, int]
UInt64s = npt.NDArray[np.uint64]

BLOCK_BYTES = 512 << 10  # of the file
_BLOCK_RECORDS = 4096  # of records that are compressed well there are far more in a block's bytes
MOST_NAMES = 1000
MOST_KEY_BYTES = 255  # bytes of a file's name, so a longer key is in no listing
UNKNOWN = -1  # `words` of a block that may hold any key


class KeyBlock(NamedTuple):
    """A block: whole batches from `position` to `file_end`, in bytes of the file. `keys`: about how many distinct
    ones."""

    position: int
    file_end: int
    base_offset: int  # of the batch at `position`: checked before the filter is used, together with its CRC
    crc: int
    keys: int
    first: int  # word of the filter, counted in all filters' words
    words: int  # of 64 bits; 0 without any key; UNKNOWN without a filter


KEY_POSITION, KEY_FILE_END, KEY_BASE_OFFSET, KEY_CRC, KEYS, FIRST, WORDS = range(len(KeyBlock._fields))
KEY_COLUMNS = len(KeyBlock._fields)


class Found(NamedTuple):
    """Where a key may be, from one position of a segment to another: `stretches` of whole batches (start, end), and
    from `behind` on everything, because there is no filter yet."""

    stretches: list[tuple[int, int]]
    behind: int


class KeyBlocks:
    """The blocks of a segment from its beginning to `file_end`, in order and without gaps. Immutable.

    `columns`: int64, shape (COLUMNS, blocks), see KeyBlock. `words`: all filters. `names`: the keys, without those of
    more than MOST_KEY_BYTES bytes; None if they are more than MOST_NAMES.
    """

    __slots__ = ("columns", "file_end", "names", "secret", "words")

    def __init__(
        self, columns: npt.NDArray[np.int64], words: UInt64s, names: frozenset[bytes] | None, secret: Secret
    ) -> None:
        self.columns = columns
        self.words = words
        self.names = names
        self.secret = secret
        self.file_end = int(columns[KEY_FILE_END, -1]) if columns.shape[1] else 0

    @staticmethod
    def none() -> KeyBlocks:
        """Nothing known yet; with a new secret."""
        columns, words = np.empty((KEY_COLUMNS, 0), np.int64), np.empty(0, np.uint64)
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
        blocks, words, names = [self.columns], [self.words], self.names
        end, size = self.file_end, len(self.words)
        for part in parts:
            added = part.blocks
            if not len(added):
                continue
            if int(added[0, KEY_POSITION]) != end:
                break
            columns = added.T.copy()
            columns[FIRST] += size
            blocks.append(columns)
            words.append(part.words)
            size += len(part.words)
            end = int(columns[KEY_FILE_END, -1])
            found = None if names is None else part.names
            names = None if names is None or found is None else names | found
            names = None if names is None or len(names) > MOST_NAMES else names
        if len(blocks) == 1:
            return self
        columns = np.ascontiguousarray(np.concatenate(blocks, axis=1))
        return KeyBlocks(columns, np.concatenate(words), names, self.secret)

    def may_hold(self, key: bytes) -> npt.NDArray[np.bool_]:
        """For each block, whether it may hold a message with the key."""
        marks = np.empty(len(self), np.uint8)
        columns = np.ascontiguousarray(self.columns)
        key_kernel.probe(self.words, columns[FIRST], columns[WORDS], _hash_of(key, self.secret), marks)
        return marks.view(np.bool_)

    def find(self, key: bytes, start: int, end: int) -> Found:
        """Where the key may be between the positions `start` and `end`, where batches begin. Blocks that are close to
        each other are one stretch: reading on takes less time than beginning again."""
        position, file_end = self.columns[KEY_POSITION], self.columns[KEY_FILE_END]
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
    """Makes the blocks of a part of a segment from its batches, which must be given in order. Used by one thread."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        # of the block that is being made, and how many are complete; see key_kernel.collect
        self._state = np.zeros(key_kernel.STATE_CELLS, np.int64)
        self._pending = np.empty(0, np.uint64)
        self._sketch = np.empty(1, np.uint64)
        # of the whole part
        self._blocks = np.empty((0, KEY_COLUMNS), np.int64)
        self._words = np.empty(0, np.uint64)
        self._names: _Names | None = _Names()

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """The complete blocks, a row each, with `first` counted in the words of this part."""
        return self._blocks[: int(self._state[key_kernel.BLOCKS])]

    @property
    def words(self) -> UInt64s:
        """The filters of the complete blocks."""
        return self._words[: int(self._state[key_kernel.WORDS])]

    @property
    def names(self) -> frozenset[bytes] | None:
        """The names of the keys so far; None when they are too many (KeyBlocks)."""
        return None if self._names is None else self._names.all()

    def add(self, table: BatchTable, first: int, last: int, block: RecordBlock, hashes: UInt64s) -> None:
        """Adds the batches in rows [first, last) of a table, decoded in `block` without any left out. `hashes`: as many
        as there are records, to be overwritten: new memory would take a fifth as long as everything else here."""
        key_kernel.hash_keys(block.buffer, block.key_start, block.key_length, *self._secret, hashes)
        if self._names is not None and not self._names.add(block, hashes):
            self._names = None
        self._make_room(len(block), last - first)
        key_kernel.collect(
            table.data,
            first,
            last,
            block.batch,
            hashes,
            BLOCK_BYTES,
            _BLOCK_RECORDS,
            self._state,
            self._pending,
            self._sketch,
            self._blocks,
            self._words,
        )

    def add_damage(self, position: int, end: int) -> None:
        """Adds bytes that cannot be read: a damaged batch, or where none begins."""
        state = self._state
        if not state[key_kernel.IS_OPEN]:
            state[key_kernel.IS_OPEN] = 1
            state[key_kernel.POSITION], state[key_kernel.BASE_OFFSET] = position, -1
            state[key_kernel.CRC] = NO_CRC
            state[key_kernel.RECORDS] = state[key_kernel.PENDING] = 0
        state[key_kernel.IS_UNKNOWN] = 1
        state[key_kernel.FILE_END] = end
        if end - int(state[key_kernel.POSITION]) >= BLOCK_BYTES:
            self.close()

    def close(self) -> None:
        """Completes the block that is being made, if there is one."""
        self._make_room(0, 1)
        key_kernel.close(self._state, self._pending, self._sketch, self._blocks, self._words)

    def _make_room(self, records: int, batches: int) -> None:
        """For so many more hashes, and as many blocks as there may be then: each ends with a batch."""
        pending = int(self._state[key_kernel.PENDING])
        hashes = pending + records
        if hashes > len(self._pending):
            larger = np.empty(max(2 * hashes, _BLOCK_RECORDS), np.uint64)
            larger[:pending] = self._pending[:pending]
            self._pending = larger
            self._sketch = np.empty(len(larger) // 4 + 1, np.uint64)
        words = hashes * key_kernel.BITS_PER_KEY // 64 + batches
        self._blocks = _with_room(self._blocks, self.blocks, batches)
        self._words = _with_room(self._words, self.words, words)


_Array = TypeVar("_Array", npt.NDArray[np.int64], UInt64s)


def _with_room(array: _Array, used: _Array, rows: int) -> _Array:
    """An array with room for `rows` behind those that are used: the array itself, or a copy."""
    if len(used) + rows <= len(array):
        return array
    # Each copy is memory that the system must provide anew; what is not used of it takes none.
    larger = np.empty((2 * len(used) + 32 * rows, *array.shape[1:]), array.dtype)
    larger[: len(used)] = used
    return larger


class _Names:
    """The different keys of up to MOST_KEY_BYTES bytes, at most MOST_NAMES."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = np.empty(MOST_NAMES * MOST_KEY_BYTES, np.uint8)  # mostly untouched, so it takes no memory
        self._ends = np.empty(MOST_NAMES, np.int64)
        self._table = np.zeros(4096, np.int64)

    def add(self, block: RecordBlock, hashes: UInt64s) -> bool:
        """Adds the keys of a block; False if they are too many then."""
        self._count = key_kernel.add_names(
            block.buffer,
            block.key_start,
            block.key_length,
            hashes,
            MOST_KEY_BYTES,
            self._bytes,
            self._ends,
            self._table,
            self._count,
        )
        return self._count >= 0

    def all(self) -> frozenset[bytes]:
        ends = self._ends[: self._count].tolist()
        names = self._bytes[: ends[-1] if ends else 0].tobytes()
        return frozenset(names[start:end] for start, end in zip([0, *ends], ends, strict=False))


def _hash_of(key: bytes, secret: Secret) -> int:
    hashes = np.empty(1, np.uint64)
    key_kernel.hash_keys(key, np.zeros(1, np.int64), np.array([len(key)], np.int64), *secret, hashes)
    return int(hashes[0])


# The keys of a segment, collected in one pass over its batches. CRCs are checked: damage may hide any key.


def scan_keys(
    snapshot: LogSnapshot,
    segment: Segment,
    start: int,
    end: int,
    secret: Secret,
    workers: Workers,
    on_bytes: OnBytes,
) -> list[KeyCollector]:
    """The keys of the batches that begin in [start, end), in parts in order. SegmentGone."""

    def do(bench: Workbench, keys: KeyCollector, first: int, stop: int) -> int:
        reached = first
        for window in scan_batches(snapshot, segment, first, stop, window=window_bytes(first, stop)):
            if window.damage is not None:
                behind = window.damage.end
                keys.add_damage(window.damage.position, behind)
            else:
                collect_keys(bench, keys, window)
                behind = int(window.table.end[-1])
            on_bytes(behind - reached)
            reached = behind
        return reached

    return in_parts(segment, start, end, workers, lambda: KeyCollector(secret), do)[0]


def collect_keys(bench: Workbench, keys: KeyCollector, window: Window) -> None:
    """Adds all batches of a window, those of aborted transactions too."""
    row = 0
    while row < window.table.rows:
        block = bench.checked.decode(window.buffer, window.table, row, origin=window.origin)
        bench.note(block)
        add_keys(bench, keys, window.table, row, block)
        row = block.next_row if block.damage is None else block.damage.row + 1


def add_keys(bench: Workbench, keys: KeyCollector, table: BatchTable, first: int, block: RecordBlock) -> None:
    """Adds the batches from the row `first` on that are decoded in `block`, and the damaged one after them."""
    last = block.next_row if block.damage is None else block.damage.row
    keys.add(table, first, last, block, bench.hashes(len(block)))
    if block.damage is not None:
        row = block.damage.row
        keys.add_damage(int(table.position[row]), int(table.end[row]))
