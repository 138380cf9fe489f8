"""One segment: a .log and the indexes beside it, read.

The log is the truth and an index a hint: whatever an index says is checked against the log before it is used, so a
missing, stale or garbage index costs time and never data.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from storage.errors import StorageError
from storage.files import names, offset_index, time_index
from storage.files.log_file import LogFile
from storage.files.names import FileKind, FileState
from storage.files.offset_index import OffsetIndex
from storage.files.sparse_index import SparseIndex
from storage.files.time_index import TimeIndex
from storage.format.batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, MAX_MAGIC, BatchTable, scan
from storage.format.checksum import crc32, crc32c
from storage.format.decoder import verify_crcs
from storage.log import buffers
from storage.types import OffsetPosition

_CAPACITY_BYTES = 32 << 20
_ENTRY_OVERHEAD_BYTES = 1024  # objects around the columns, roughly

# A growing segment's index is loaded anew when its log has grown by this part of itself since, or this many bytes.
_STALE_BYTES = 256 << 10
_STALE_PART = 256

_MIN_LENGTH: Final = 14  # of a v0 message, the least that may follow the overhead
_HEAD: Final = struct.Struct(
    ">q"  # offset: a v2 batch's base offset, an older message's (last) offset
    "i"  # bytes that follow
    "4x"  # partition leader epoch (v2) or CRC (v0, v1)
    "b"  # magic
)
_OFFSET_SPAN: Final = 2**31  # a segment's offsets lie within 32 bits above its base offset

# Kafka's default is 1 MiB for a batch. Beyond this a length is checked before it is believed.
BELIEVED_BYTES: Final = 16 << 20

# Trust in an index entry is tried this often, further down each time, before the scan begins at position 0.
_INDEX_TRIES: Final = 8

I = TypeVar("I", bound=SparseIndex)  # noqa: E741


class IndexCache:
    """Loaded indexes, within a bound of memory: a large log's do not all fit. Least recently used out first.

    Thread-safe; an index may be loaded twice by two threads at once, harmlessly.
    """

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        # Constant after construction.
        self._capacity_bytes = capacity_bytes
        # Guarded by the lock.
        self._lock = Lock()
        self._loaded: OrderedDict[tuple[Segment, FileKind], tuple[SparseIndex, int]] = OrderedDict()
        self._bytes = 0

    def get(self, segment: Segment, kind: FileKind, end: int, load: Callable[[Path], I]) -> I:
        """The segment's index, loaded now unless it is here and the log, which ends at `end`, has not outgrown it."""
        key = (segment, kind)
        with self._lock:
            held = self._loaded.get(key)
            if held is not None:
                self._loaded.move_to_end(key)
        if held is not None:
            index, loaded_end = held
            if segment.sealed or 0 <= end - loaded_end <= max(_STALE_BYTES, loaded_end // _STALE_PART):
                found: Any = index
                return found  # type: ignore[no-any-return]
        fresh = load(segment.path_of(kind))
        # A missing index may yet come (a swap renames the log first), and asking again costs next to nothing.
        if not fresh.missing:
            self._put(key, fresh, end)
        return fresh

    def _put(self, key: tuple[Segment, FileKind], index: SparseIndex, end: int) -> None:
        with self._lock:
            self._drop_locked(key)
            self._loaded[key] = (index, end)
            self._bytes += index.memory_bytes + _ENTRY_OVERHEAD_BYTES
            while self._bytes > self._capacity_bytes and len(self._loaded) > 1:
                self._drop_locked(next(iter(self._loaded)))

    def _drop_locked(self, key: tuple[Segment, FileKind]) -> None:
        held = self._loaded.pop(key, None)
        if held is not None:
            self._bytes -= held[0].memory_bytes + _ENTRY_OVERHEAD_BYTES


_indexes = IndexCache()


class Segment:
    """One segment of a log. The same object stands for the same bytes: it stays the same while its file only grows, and
    another takes its place in the next snapshot when the file is replaced, truncated or rewritten.

    `base_offset`; `log`: the .log file. `size`: bytes of the .log as last seen, final once `sealed`, that is once a
    later segment exists. What of the last segment's bytes is whole and valid only a snapshot knows
    (`LogSnapshot.end_position`).
    """

    __slots__ = ("__weakref__", "base_offset", "directory", "log", "sealed", "size")

    def __init__(self, directory: Path, base_offset: int, log: LogFile, size: int) -> None:
        self.directory: Final = directory
        self.base_offset: Final = base_offset
        self.log: Final = log
        # Written by the owning log alone, under its lock, before a snapshot with the new value is published.
        self.size = size
        self.sealed = False

    def __repr__(self) -> str:
        return f"Segment({self.directory.name}/{self.base_offset}, {self.size} bytes)"

    @property
    def state(self) -> FileState:
        """LIVE; SWAP while a replacement is unfinished; DELETED when the file awaits removal."""
        parsed = names.parse_segment_file(self.log.path.name)
        return FileState.LIVE if parsed is None else parsed.state

    def path_of(self, kind: FileKind) -> Path:
        """Where the segment's file of this kind is, or would be."""
        return self.directory / names.segment_file(self.base_offset, kind, self.state)

    def mtime_ms(self) -> int:
        """Modification time of the .log in epoch milliseconds, Kafka's stand-in where messages carry no timestamp."""
        return self.log.stat().st_mtime_ns // 1_000_000

    def changed_ns(self) -> int:
        """The .log's ctime: another one than before tells of any change in place, whatever mtime was given to it since.
        -1 where the file is gone or cannot be looked at: whoever reads it will tell."""
        try:
            return self.log.stat().st_ctime_ns
        except (StorageError, OSError):
            return -1

    def offset_index(self, end: int | None = None) -> OffsetIndex:
        """The .index as found, unverified. `end`: the valid end of the .log, by default its size."""
        log_end = self.size if end is None else end
        return _indexes.get(
            self,
            FileKind.OFFSET_INDEX,
            log_end,
            lambda path: offset_index.load(path, self.base_offset, log_end, growing=not self.sealed),
        )

    def time_index(self, end: int | None = None) -> TimeIndex:
        """The .timeindex as found, unverified. `end` as in `offset_index`."""
        log_end = self.size if end is None else end
        return _indexes.get(
            self,
            FileKind.TIME_INDEX,
            log_end,
            lambda path: time_index.load(path, self.base_offset, growing=not self.sealed),
        )

    def floor(self, offset: int, end: int) -> int:
        """A position at or before the first batch whose last offset is >= `offset`: where a batch truly begins.

        The index entry's batch is read and its CRC checked; entries that fail are passed over. 0 without a good one.
        """
        index = self.offset_index(end)
        entry = index.floor(offset)
        for attempt in range(_INDEX_TRIES):
            if entry.position <= 0:
                break
            if self._holds(entry, offset, end):
                return entry.position
            # Perhaps one bad entry, but more likely a bad index: one further down, then by halves.
            below = entry.offset - 1 if attempt == 0 else (self.base_offset + entry.offset) // 2
            entry = index.floor(below)
        return 0

    def floor_position(self, position: int, end: int) -> int:
        """The last position before `position` that the index names, and where a batch truly begins; 0 without one."""
        positions = self.offset_index(end).positions
        slot = int(positions.searchsorted(position))
        for entry in positions[max(0, slot - _INDEX_TRIES) : slot][::-1].tolist():
            if self.batch_at(entry, end) is not None:
                return int(entry)
        return 0

    def resume_after(self, position: int, offset: int, end: int) -> int | None:
        """Where reading can go on behind damage at `position`: the next position that the index names at which a whole
        valid batch with offsets above `offset` begins; None when no index entry helps."""
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
        head = self.log.read(position, min(BATCH_HEADER_SIZE, max(end - position, 0)))
        size = self.batch_size(head, any_offset=any_offset)
        if size is None or position + size > end or not self.is_believable(position, size):
            return None
        data = self.log.read(position, size)
        table = BatchTable.empty(1)
        scan(data, position, table)
        if table.rows != 1 or int(table.size[0]) != size:
            return None
        return None if verify_crcs(data, table, 0, 1, position) is not None else table

    def batch_size(self, head: memoryview | bytes, *, any_offset: bool = False) -> int | None:
        """The whole size in bytes that a batch's first bytes claim; None when no batch of this segment begins so."""
        if len(head) < _HEAD.size:
            return None
        offset, length, magic = _HEAD.unpack_from(head)
        if length < _MIN_LENGTH or not 0 <= magic <= MAX_MAGIC:
            return None
        if not any_offset and not 0 <= offset - self.base_offset < _OFFSET_SPAN:
            return None
        return int(length) + LOG_OVERHEAD

    def is_believable(self, position: int, size: int) -> bool:
        """False when the header at `position` claims a batch of so many bytes that memory should not be taken for it
        before its CRC was seen to hold, and that does not. The batch must lie within the file."""
        if size <= BELIEVED_BYTES:
            return True
        head = self.log.read(position, BATCH_HEADER_SIZE)
        is_v2 = head[16] == 2
        at, covered, checksum = (17, 21, crc32c) if is_v2 else (12, 16, crc32)
        stored = int.from_bytes(head[at : at + 4], "big")
        crc = 0
        buffer = buffers.take()
        try:
            for part in range(position + covered, position + size, len(buffer)):
                crc = checksum(self.log.read(part, min(len(buffer), position + size - part), buffer), crc)
        finally:
            buffers.give(buffer)
        return crc == stored

    def _holds(self, entry: OffsetPosition, offset: int, end: int) -> bool:
        batch = self.batch_at(entry.position, end)
        if batch is None:
            return False
        # An entry's offset is its batch's last one, or that of the whole append which began there (before Kafka 3.9.1).
        # Offsets ascend, so no batch before this one can hold the wanted offset if this one begins at or below it.
        # A compressed message set tells only its last offset.
        base = int(batch.base_offset[0])
        return (base if base >= 0 else int(batch.last_offset[0])) <= offset
