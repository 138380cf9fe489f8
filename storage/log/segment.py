"""A segment: a .log and its indexes, for reading.

The log is the truth and an index a hint: every index entry is checked against the log before it is used, so that a
missing, stale or garbage index costs time but never data.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from storage.errors import SegmentGone, StorageError, TierUnavailable
from storage.files import names, offset_index, time_index, transaction_index
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind, FileState
from storage.files.offset_index import OffsetIndex
from storage.files.opening import status_of
from storage.files.sparse_index import SparseIndex
from storage.files.time_index import TimeIndex
from storage.files.transaction_index import TransactionIndex
from storage.format.batches import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_MAGIC,
    MOST_BATCH_BYTES,
    BatchTable,
    header_of,
    scan,
)
from storage.format.checksum import crc32, crc32c
from storage.format.decoder import verify_crcs
from storage.log.tiered_file import TieredFile
from storage.types import MAX_OFFSET, TimestampOffset

# Recycled read buffers: the system would zero and page in a new megabyte for each window.

WINDOW_BYTES: Final = 1 << 20
LARGE_WINDOW_BYTES: Final = 4 << 20
# Enough for the batches between two index entries at Kafka's default interval; larger ones are read in steps of this.
LOOKUP_BYTES: Final = 64 << 10

# As many of each size as a few parallel readers use at once.
_free: Final[dict[int, deque[bytearray]]] = {WINDOW_BYTES: deque(maxlen=8), LARGE_WINDOW_BYTES: deque(maxlen=2)}


def take(size: int = WINDOW_BYTES) -> bytearray:
    """A buffer of at least `size` bytes with arbitrary content. Thread-safe, because a deque's ends are."""
    size = next((recycled for recycled in _free if size <= recycled), size)
    try:
        return _free[size].pop()
    except LookupError:  # none is free, or none of this size is kept
        return bytearray(size)


def give(buffer: bytearray) -> None:
    """Takes a buffer back. Its bytes may change from now on, also for views of it that still exist."""
    if len(buffer) in _free:
        _free[len(buffer)].append(buffer)


_CAPACITY_BYTES = 32 << 20
_ENTRY_OVERHEAD_BYTES = 1024  # objects around the columns, approximately

# A growing segment's index is loaded again after its log has grown by this fraction of itself, or this many bytes.
_STALE_BYTES = 256 << 10
_STALE_PART = 256

_MIN_LENGTH: Final = 14  # of a v0 message, the least that may follow the overhead
_HEAD: Final = struct.Struct(
    ">q"  # offset: a v2 batch's base offset, an older message's (last) offset
    "i"  # bytes that follow
    "4x"  # partition leader epoch (v2) or CRC (v0, v1)
    "b"  # magic
)

# Kafka's default limit for a batch is 1 MiB. A batch that claims more than this is checked before it is trusted.
BELIEVED_BYTES: Final = 16 << 20

# How many index entries to try, each lower than the last, before the scan begins at position 0.
_INDEX_TRIES: Final = 8

I = TypeVar("I", bound=SparseIndex)  # noqa: E741


@dataclass(frozen=True, slots=True)
class LargeBatch:
    """The bytes of a batch above MOST_BATCH_BYTES. `repaired`: with the magic of v2 in place of its own.

    A part is valid until the next part is taken. SegmentGone if the file is shorter; errors of LogFile.read.
    """

    log: LogFile
    position: int
    size: int
    repaired: bool = False

    def head(self) -> memoryview:
        """The batch's header."""
        return self.log.read(self.position, BATCH_HEADER_SIZE)

    def parts(self) -> Iterator[memoryview]:
        buffer, end = take(), self.position + self.size
        try:
            for position in range(self.position, end, len(buffer)):
                part_bytes = min(len(buffer), end - position)
                data = self.log.read(position, part_bytes, buffer)
                if len(data) < part_bytes:
                    what = "segment was truncated while it was read"
                    raise SegmentGone(what, path=self.log.path, position=position, expected=part_bytes, found=len(data))
                if self.repaired and position == self.position:
                    data[MAGIC_AT] = MAX_MAGIC
                yield data
        finally:
            give(buffer)


def has_right_crc(log: LogFile, position: int, size: int) -> bool:
    """Whether a batch of `size` bytes at `position`, whatever length its header claims, has a right CRC. It must be
    within the file; an undefined magic is read as v2, as in Kafka, whose magic is a signed byte."""
    head = log.read(position, BATCH_HEADER_SIZE)
    at, covered, checksum = (17, 21, crc32c) if 1 < head[MAGIC_AT] < 128 else (12, 16, crc32)
    crc, buffer = 0, take()
    try:
        for part in range(position + covered, position + size, len(buffer)):
            crc = checksum(log.read(part, min(len(buffer), position + size - part), buffer), crc)
    finally:
        give(buffer)
    return crc == int.from_bytes(head[at : at + 4], "big")


def bytes_of(
    log: LogFile, data: memoryview, table: BatchTable, first: int, last: int, origin: int
) -> memoryview | LargeBatch:
    """The bytes of the rows `first` to `last`, which lie back to back in a window. `data` begins at the file position
    `origin`; a large batch is alone in its window, and `data` has only its header."""
    start, end = int(table.position[first]), int(table.end[last - 1])
    if int(table.size[first]) > MOST_BATCH_BYTES:
        return LargeBatch(log, start, end - start)
    return data[start - origin : end - origin]


def parts_of(data: memoryview | LargeBatch) -> Iterable[memoryview]:
    """The bytes that `bytes_of` returned, in parts."""
    return data.parts() if isinstance(data, LargeBatch) else (data,)


def check_crcs(data: memoryview | LargeBatch, table: BatchTable, origin: int, path: Path | None = None) -> None:
    """Raise CorruptBatch for the first of a table's batches whose CRC is wrong. `data` begins at the file position
    `origin`; the CRC of a large batch was checked when it was found. `path`: the file that the error names."""
    if not isinstance(data, LargeBatch):
        damage = verify_crcs(data, table, 0, table.rows, origin)
        if damage is not None:
            damage.error.path = path
            raise damage.error


class IndexCache:
    """Loaded indexes, within a limit of memory, because those of a large log do not all fit. The least recently used
    are evicted first.

    Thread-safe; two threads may load an index twice at the same time, which is harmless.
    """

    def __init__(self) -> None:
        # Guarded by the lock. By segment and kind, with the log's end at which the index was loaded.
        self._lock = Lock()
        self._loaded: LRUCache[tuple[Segment, FileKind], tuple[SparseIndex, int]] = LRUCache(_CAPACITY_BYTES, _cost)

    def get(self, segment: Segment, kind: FileKind, end: int, load: Callable[[Path], I]) -> I:
        """The segment's index, loaded now unless it is cached and the log, which ends at `end`, has not outgrown it."""
        key = (segment, kind)
        with self._lock:
            held = self._loaded.get(key)
        if held is not None:
            index, loaded_end = held
            if segment.sealed or 0 <= end - loaded_end <= max(_STALE_BYTES, loaded_end // _STALE_PART):
                cached: Any = index
                return cached  # type: ignore[no-any-return]
        fresh = load(segment.path_of(kind))
        # Not for a missing index: it may appear later (a swap renames the log first), and looking again costs next to
        # nothing.
        if not fresh.missing:
            with self._lock:
                self._loaded[key] = fresh, end
        return fresh


def _cost(held: tuple[SparseIndex, int]) -> int:
    # An index that is larger than the limit replaces all others.
    return min(held[0].memory_bytes + _ENTRY_OVERHEAD_BYTES, _CAPACITY_BYTES)


_indexes = IndexCache()


class Segment:
    """A segment of a log. An object always means the same bytes: it is kept while its file only grows; if the file is
    replaced, truncated or rewritten, the next snapshot has another object.

    `base_offset`; `log`: the .log file. `size`: bytes of the .log as last seen, final once it is `sealed`, which is
    when a later segment exists. Only a snapshot knows which of the last segment's bytes are whole and valid
    (`LogSnapshot.end_position`).
    """

    __slots__ = ("__weakref__", "base_offset", "directory", "log", "sealed", "size")

    def __init__(self, directory: Path, base_offset: int, log: LogFile, size: int) -> None:
        self.directory: Final = directory
        self.base_offset: Final = base_offset
        self.log: Final = log
        # Written only by the owning log, under its lock, before a snapshot with the new value is published.
        self.size = size
        self.sealed = False

    @staticmethod
    def at(directory: Path, base_offset: int, state: FileState = FileState.LIVE) -> Segment:
        """The segment whose .log exists at present, with its present size. FileNotFoundError, OSError."""
        path = directory / names.segment_file(base_offset, FileKind.LOG, state)
        status = status_of(path)
        return Segment(directory, base_offset, LogFile(path, FileIdentity.of(status)), status.st_size)

    def __repr__(self) -> str:
        return f"Segment({self.directory.name}/{self.base_offset}, {self.size} bytes)"

    @property
    def state(self) -> FileState:
        """LIVE; SWAP while a replacement is unfinished; DELETED if the file awaits removal."""
        parsed = names.parse_segment_file(self.log.path.name)
        return FileState.LIVE if parsed is None else parsed.state

    def path_of(self, kind: FileKind) -> Path:
        """The path of the segment's file of this kind, which need not exist."""
        return self.directory / names.segment_file(self.base_offset, kind, self.state)

    def mtime_ms(self) -> int:
        """Modification time of the .log in epoch milliseconds, which Kafka uses if messages carry no timestamp."""
        return self.log.stat().st_mtime_ns // 1_000_000

    def changed_ns(self) -> int:
        """The .log's ctime, which changes with any change in place, even if the mtime was set back since. -1 if the
        file was removed or its status cannot be read: reading it will report that."""
        try:
            return self.log.stat().st_ctime_ns
        except (StorageError, OSError):
            return -1

    def read(self, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        """The bytes, from LogFile.read; SegmentGone if the file ends before `size` bytes."""
        data = self.log.read(position, size, into)
        if len(data) < size:
            raise self.truncated(position, size, len(data))
        return data

    def truncated(self, position: int, size: int, found: int) -> SegmentGone:
        """The error for a file that has only `found` of `size` bytes left at a position."""
        what, expected = "segment was truncated while it was read", f"{size} bytes"
        return SegmentGone(what, path=self.log.path, position=position, expected=expected, found=found)

    def offset_index(self, end: int | None = None) -> OffsetIndex:
        """The .index, unverified. `end`: the valid end of the .log, by default its size."""
        log_end = self.size if end is None else end
        return _indexes.get(
            self,
            FileKind.OFFSET_INDEX,
            log_end,
            lambda path: (
                offset_index.load(path, self.base_offset, log_end, growing=not self.sealed)
                if (data := self._remote_part(FileKind.OFFSET_INDEX)) is None
                else offset_index.parse(data, self.base_offset, log_end, path=path)
            ),
        )

    def time_index(self, end: int | None = None) -> TimeIndex:
        """The .timeindex, unverified. `end`: see `offset_index`."""
        log_end = self.size if end is None else end
        return _indexes.get(
            self,
            FileKind.TIME_INDEX,
            log_end,
            lambda path: (
                time_index.load(path, self.base_offset, growing=not self.sealed)
                if (data := self._remote_part(FileKind.TIME_INDEX)) is None
                else time_index.parse(data, self.base_offset, path=path)
            ),
        )

    def last_indexed_time(self, end: int | None = None) -> TimestampOffset:
        """The last entry of the .timeindex, unverified; (-1, base offset) if the index is empty. If the segment is
        sealed and its file is here, usually only the end of the index is read. `end`: see `offset_index`."""
        index = None
        if self.sealed and not self.is_remote:
            index = time_index.load_end(self.path_of(FileKind.TIME_INDEX), self.base_offset)
        return (self.time_index(end) if index is None else index).last

    def transaction_index(self) -> TransactionIndex:
        """The .txnindex, unverified."""
        path, data = self.path_of(FileKind.TRANSACTION_INDEX), self._remote_part(FileKind.TRANSACTION_INDEX)
        if data is None:
            return transaction_index.load(path, self.base_offset, growing=not self.sealed)
        return transaction_index.parse(data, self.base_offset, path=path)

    @property
    def is_remote(self) -> bool:
        """Whether the segment is in tiered storage."""
        return isinstance(self.log, TieredFile)

    @property
    def remote_kind(self) -> str:
        """The kind of the tier that has it, for people; empty if it is in the log directory."""
        return self.log.span.where if isinstance(self.log, TieredFile) else ""

    @property
    def known_greatest(self) -> TimestampOffset | None:
        """The segment's greatest timestamp (`greatest_timestamp`) if it is known without reading."""
        return self.log.span.greatest if isinstance(self.log, TieredFile) else None

    @property
    def known_times(self) -> tuple[tuple[int, int, int], ...]:
        """`RemoteSpan.times` of a remote segment; empty for others."""
        return self.log.span.times if isinstance(self.log, TieredFile) else ()

    @property
    def content_key(self) -> str | None:
        """A name for a remote segment's bytes that is known without a read, which takes long in a far tier; None for
        local segments, whose files can be examined."""
        return self.log.content_key if isinstance(self.log, TieredFile) else None

    def remote_producers(self) -> tuple[int, bytes] | None:
        """The offset at the end of a whole remote segment, and its producer snapshot of that offset; None if it has
        none."""
        data = self._remote_part(FileKind.PRODUCER_SNAPSHOT)
        return None if data is None or not isinstance(self.log, TieredFile) else (self.log.span.end_offset, data)

    def remote_places(self) -> list[str]:
        """The places of its objects in tiered storage, without their names; empty if it is local, or its objects are
        lost."""
        if not isinstance(self.log, TieredFile) or self.log.span.remote is None:
            return []
        return [self.log.span.remote.name.rpartition("/")[0]]

    def _remote_part(self, kind: FileKind) -> bytes | None:
        return self.log.part(kind) if isinstance(self.log, TieredFile) else None

    def floor(self, offset: int, end: int) -> int:
        """A position at or before the first batch whose last offset is >= `offset`; a batch begins there.

        The index entry's batch is read and its CRC checked; entries that fail are skipped. 0 if no entry is good.
        """
        return self._floor(self.offset_index(end), offset, end)

    def floor_near_end(self, offset: int, end: int) -> int:
        """`floor`, of an offset in one of the last batches of a segment: of a sealed one only the last index entries
        are read if possible."""
        index, position = None, 0
        if self.sealed and not self.is_remote:
            index = offset_index.load_end(self.path_of(FileKind.OFFSET_INDEX), self.base_offset, end)
        if index is not None:
            position = self._floor(index, offset, end)
        return position or self.floor(offset, end)

    def _floor(self, index: OffsetIndex, offset: int, end: int) -> int:
        entry = index.floor(offset)
        for attempt in range(_INDEX_TRIES):
            if entry.position <= 0:
                break
            before = index.floor(entry.offset - 1)
            if self._holds(entry.position, index.floor(before.offset - 1).position, offset, end):
                return entry.position
            # Perhaps one bad entry, but more likely a bad index: try the next lower entry, then halve the distance.
            entry = before if attempt == 0 else index.floor((self.base_offset + entry.offset) // 2)
        return 0

    def floor_position(self, position: int, end: int) -> int:
        """The last position before `position` that is in the index and where a batch begins; 0 if there is none."""
        positions = self.offset_index(end).positions
        slot = int(positions.searchsorted(position))
        for row in range(slot - 1, max(-1, slot - 1 - _INDEX_TRIES), -1):
            if self._holds(int(positions[row]), int(positions[row - 2]) if row > 1 else 0, MAX_OFFSET, end):
                return int(positions[row])
        return 0

    def repeats(self, table: BatchTable, row: int) -> bool:
        """Whether the batch in a row is in the segment before it, too: the copies have the same header, which includes
        the CRC. It is looked for in one step after an index entry."""
        position, last_offset = int(table.position[row]), int(table.last_offset[row])
        index = self.offset_index()
        entry = index.floor(last_offset)  # it may be this batch's own
        start = self._floor(index, last_offset if entry.position < position else entry.offset - 1, position)
        size = min(BATCH_HEADER_SIZE, int(table.size[row]))
        header = self.log.read(position, size)
        if len(header) < size:
            return False  # truncated since the batch was read
        data = self.log.read(start, min(LOOKUP_BYTES, position - start))
        if data and data[: len(header)] == header:  # it may be larger than a step
            return True
        table = _headers(data, start)
        places = table.position[table.last_offset == last_offset] - start
        return any(data[at : at + len(header)] == header for at in places.tolist())

    def resume_after(self, position: int, offset: int, end: int) -> int | None:
        """Where reading can continue after damage at `position`: the next position in the index at which a whole valid
        batch with offsets above `offset` begins; None if no index entry helps."""
        index = self.offset_index(end)
        entry = index.first_from_position(position + 1)
        while entry is not None:
            batch = self.batch_at(entry.position, end)
            if batch is not None and int(batch.last_offset[0]) > offset:
                return entry.position
            entry = index.first_from_position(entry.position + 1)
        return None

    def batch_at(self, position: int, end: int, *, any_offset: bool = False) -> BatchTable | None:
        """The header of the batch that begins at `position`, as a table of one row; None unless a whole batch with a
        right CRC and (unless `any_offset`) an offset of this segment begins there and ends by `end`."""
        try:
            head = self.log.read(position, min(BATCH_HEADER_SIZE, max(end - position, 0)))
            size = self.batch_size(head, any_offset=any_offset)
            if size is None or position + size > end:
                return None
            if size > BELIEVED_BYTES:
                return header_of(head, position, size) if self.has_right_crc(position, size) else None
            data = self.log.read(position, size)
        except TierUnavailable:
            return None
        table = BatchTable.empty(1)
        scan(data, position, table)
        if table.rows != 1 or int(table.size[0]) != size:
            return None
        return None if verify_crcs(data, table, 0, 1, position) is not None else table

    def batch_size(self, head: memoryview | bytes, *, any_offset: bool = False) -> int | None:
        """The whole size in bytes that a batch's first bytes claim; None if no batch of this segment begins so."""
        if len(head) < _HEAD.size:
            return None
        offset, length, magic = _HEAD.unpack_from(head)
        if length < _MIN_LENGTH or not 0 <= magic <= MAX_MAGIC:
            return None
        if not any_offset and offset < self.base_offset:
            return None
        return int(length) + LOG_OVERHEAD

    def is_believable(self, position: int, size: int) -> bool:
        """False if the header at `position` claims a batch so large that only a right CRC justifies allocating memory
        for it, and the CRC is wrong. The batch must be within the file."""
        return size <= BELIEVED_BYTES or self.has_right_crc(position, size)

    def has_right_crc(self, position: int, size: int) -> bool:
        """Whether a batch of `size` bytes at `position`, whatever length its header claims, has a right CRC. It must be
        within the file."""
        return has_right_crc(self.log, position, size)

    def _holds(self, position: int, before: int, offset: int, end: int) -> bool:
        """Whether lookups of `offset` may begin at the position of an index entry. `before`: that of the last entry but
        one before it, or 0."""
        batch = self.batch_at(position, end)
        if batch is None:
            return False
        # An entry's offset is its batch's last one, or that of the whole append which began there (before Kafka 3.9.1).
        # Offsets ascend, so if this batch begins at or below the offset, no earlier batch can hold it.
        # A compressed message set has only its last offset.
        base, last = int(batch.base_offset[0]), int(batch.last_offset[0])
        if (base if base >= 0 else last) > offset:
            return False
        # The index may have a batch that repeats an earlier one, if it does not have that one; of a batch that is there
        # three times it may have two.
        try:
            earlier = _headers(self.log.read(before, min(LOOKUP_BYTES, position - before)), before)
        except TierUnavailable:
            return True
        return not earlier.rows or int(earlier.last_offset.max()) < last


def _headers(data: memoryview, position: int) -> BatchTable:
    """The headers of the whole batches in `data`, whose first byte has this position."""
    table = BatchTable.empty(max(len(data) // BATCH_HEADER_SIZE, 1))
    scan(data, position, table)
    return table
