"""The index: for each segment its blocks, with their times, keys and, for each rendition, their sizes. It is made when
first needed, extended as the log grows, and kept on disk.

Its keys and times are only hints about where not to look. A segment that a truncation has cut is another Segment, and
is read again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from kafkafs.reading import blocks, uncompressed
from kafkafs.reading.block_cache import BlockCache
from kafkafs.reading.blocks import FILE_END, NO_FILTER, WORDS, BlockTable, KeyStretches
from kafkafs.reading.extent import BlockKey, Extent, SegmentBlocks, epoch_of
from kafkafs.reading.measured_pages import MeasuredPages
from kafkafs.reading.pieces import Pieces
from kafkafs.reading.rendered_stream import RenderedPass
from kafkafs.reading.selection import RecordFilter
from kafkafs.reading.store import NO_MARKER, Kept, KeptSizes, Marker, Store
from kafkafs.reading.workbench import Rendition
from kafkafs.reading.workers import OnBytes, Scans, Workers
from storage.errors import SegmentGone, StorageError
from storage.log.reader import find_batch
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot

KEPT_BYTES = 96 << 20  # of blocks, filters and sizes in memory, in addition to those that open views hold
KEPT_STRETCHES = 1024
_LITTLE_BYTES = 8 << 20  # of a segment, measured because it is before what is needed
_RENDERED_BYTES = 8 << 20  # at most, of what is measured for a reader who comes next
_FIRST_BYTES = 8 << 20  # scanned to see whether a segment has too many keys to be listed


# The marker that decided about a segment's transactions: a later mount uses what was measured if it is still there.


def marker_of(snapshot: LogSnapshot, decider: DecidingMarker) -> Marker | None:
    """The marker that a later mount must find to use what it decided; None if it cannot be read any longer."""
    try:
        place = find_batch(snapshot, decider.offset)
        batch = None if place is None else place.segment.batch_at(place.position, snapshot.end_position(place.segment))
    except (StorageError, OSError):
        return None
    if batch is None or int(batch.base_offset[0]) != decider.offset:
        return None
    return Marker(decider.offset, int(batch.crc[0]))


def decider_of(snapshot: LogSnapshot, marker: Marker) -> DecidingMarker | None:
    """The marker in the log as it is now; None if it is gone: truncated, or dropped by compaction."""
    slot = snapshot.segment_index(marker.offset)
    if slot < 0:
        return None
    decider = DecidingMarker(snapshot.segments[slot], marker.offset)
    return decider if marker_of(snapshot, decider) == marker else None


_ExtentKey = tuple[str, int]  # name of the rendition, epoch


class _Entry:
    """The knowledge of a segment."""

    __slots__ = ("blocks", "counted_bytes", "extents", "is_loaded", "kept", "ratio", "saved")

    def __init__(self) -> None:
        # has its own locking: its lock is that of the entry
        self.blocks = SegmentBlocks()
        # written without a lock: always the same
        self.ratio: float | None = None  # uncompressed_ratio, once somebody has asked for it
        # guarded by that lock for writing
        self.is_loaded = False  # whether the disk was asked
        self.kept: dict[str, KeptSizes] = {}  # of renditions that were on disk, by lasting names
        self.saved: tuple[object, ...] = ()  # what is on disk
        # guarded by the index's lock
        self.extents: dict[_ExtentKey, Extent] = {}
        self.counted_bytes = 0  # when they were last counted

    @property
    def memory_bytes(self) -> int:
        return self.blocks.table.memory_bytes + sum(extent.pieces.memory_bytes for extent in self.extents.values())


class BlockIndex:
    """The blocks of segments, and the measured stretches that single ranges need. A Segment is the same object only
    while its file grows, so its blocks stay right. Thread-safe."""

    def __init__(
        self,
        workers: Workers,
        store: Store | None,
        kept_bytes: int = KEPT_BYTES,
        *,
        has_keys: bool = True,
        cache: BlockCache | None = None,
    ) -> None:
        """`has_keys`: whether keys are collected, so that they can be looked up. `cache`: gets what is rendered while
        it is measured."""
        # constant after construction
        self.workers = workers
        self.has_keys = has_keys
        self.pages = MeasuredPages()
        self._searched_pages = MeasuredPages(most_bytes=0)  # nobody reads all that has been searched
        self._cache = cache
        self._store = store
        self._kept_bytes = kept_bytes
        # have their own locking
        self._measuring = Scans()
        self._collecting = Scans()
        # counted without a lock: numbers for people
        self._collecting_seconds = 0.0
        self._lookups = 0
        # guarded by the lock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Segment, _Entry] = OrderedDict()
        self._held_bytes = 0  # the sum of their counted_bytes
        self._stretches: LRUCache[tuple[Segment, _ExtentKey, int, int | None, RecordFilter | None], Extent]
        self._stretches = LRUCache(KEPT_STRETCHES)

    # What a rendition shows

    def held(
        self,
        snapshot: LogSnapshot,
        segment: Segment,
        rendition: Rendition,
        end: int,
        start: int = 0,
        *,
        render: bool = False,
    ) -> Extent | None:
        """A whole segment, measured at least up to the position `end`; None if nothing of it has been measured yet, or
        too little before the position `start`. `render`: see `extend`."""
        extent = self._known(snapshot, segment, rendition)
        if extent is None or extent.pieces.file_end + _LITTLE_BYTES < start:
            return None
        self.extend(extent, snapshot, end, render=render)
        return extent

    def measured_end(
        self,
        snapshot: LogSnapshot,
        segment: Segment,
        rendition: Rendition,
        start: int,
        record_filter: RecordFilter | None,
    ) -> int:
        """Up to which file position the batches from the position `start` on have been measured."""
        whole = self._known(snapshot, segment, rendition)
        with self._lock:
            stretch = self._stretches.get((segment, _key(snapshot, rendition), start, None, record_filter))
        return max(start, *(0 if extent is None else extent.pieces.file_end for extent in (whole, stretch)))

    def are_more(self, snapshot: LogSnapshot, sizes: Iterable[tuple[Segment, int]], limit: int) -> bool:
        """Whether so many bytes of these segments' files are more than `limit` bytes uncompressed."""

        def ratio_of(segment: Segment) -> float:
            entry = self._loaded(segment)
            if entry.ratio is None:
                entry.ratio = uncompressed.uncompressed_ratio(snapshot, segment)
            return entry.ratio

        return uncompressed.are_more(sizes, limit, ratio_of)

    def whole(
        self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition, end: int, *, render: bool = False
    ) -> Extent:
        """A whole segment, measured at least up to the position `end`; what is not known yet is scanned. `render`: see
        `extend`."""
        extent = self.held(snapshot, segment, rendition, end, render=render)
        if extent is None:
            entry = self._loaded(segment)
            extent = Extent(segment, rendition, None, 0, entry.blocks)
            with self._lock:
                extent = entry.extents.setdefault(_key(snapshot, rendition), extent)
            self.extend(extent, snapshot, end, render=render)
        return extent

    def stretch(
        self,
        snapshot: LogSnapshot,
        segment: Segment,
        rendition: Rendition,
        start: int,
        end: int,
        record_filter: RecordFilter | None,
        *,
        grows: bool,
        render: bool = False,
    ) -> Extent:
        """The batches from the position `start` to `end`, without messages that do not pass `record_filter`.

        With `grows`, the extent may be measured further than `end`. `render`: see `extend`.
        """
        key = (segment, _key(snapshot, rendition), start, None if grows else end, record_filter)
        with self._lock:
            extent = self._stretches.setdefault(key, Extent(segment, rendition, record_filter, start))
        self.extend(extent, snapshot, end, render=render)
        return extent

    def extend(self, extent: Extent, snapshot: LogSnapshot, end: int, *, render: bool = False) -> None:
        """Measures more of an extent, up to the position `end`; a segment that is measured to its end is kept.

        `render`: a reader comes next, so what is measured first is rendered too, and goes into the block cache.
        """
        segment, start = extent.segment, extent.pieces.file_end
        with (
            self._rendered(extent, end if render else start) as rendered,
            self.scanning(segment.log.path, end - start) as on_bytes,
            self.pages.measuring(segment, start, end),
        ):
            try:
                keys = self.has_keys and extent.is_whole
                extent.extend(snapshot, end, self.workers, on_bytes, keys=keys, rendered=rendered)
            except SegmentGone:
                self.forget(segment)  # what is known may be of other batches
                raise
        if extent.is_whole:
            self._finish(segment, is_complete=segment.sealed and extent.pieces.file_end == segment.size)

    @contextmanager
    def _rendered(self, extent: Extent, end: int) -> Iterator[RenderedPass | None]:
        """For a `with` that measures an extent up to the position `end`: what takes the rendered bytes, of which whole
        pieces go into the block cache at the end. None if there is nothing to measure."""
        cache = self._cache
        if cache is None or end <= extent.pieces.file_end:
            yield None
            return
        rendered = RenderedPass(cache.take(min(_RENDERED_BYTES, cache.max_bytes // 4)))
        blocks: list[tuple[BlockKey, int, int]] = []
        try:
            yield rendered
            for stream in rendered.streams:
                for piece in extent.pieces.within(stream.start, stream.start + stream.size):
                    self.pages.read(extent.segment.log, piece.position, piece.file_end)
                    blocks.append((extent.key(piece), stream.first + piece.start - stream.start, piece.size))
        finally:
            cache.put(rendered.buffer, blocks)

    def _known(self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition) -> Extent | None:
        """A whole segment of which something has been measured, by this mount or an earlier one."""
        entry, key = self._loaded(segment), _key(snapshot, rendition)
        with self._lock:
            extent = entry.extents.get(key)
        if extent is None:
            extent = self._measured_before(entry, snapshot, segment, rendition)
            if extent is not None:
                with self._lock:
                    extent = entry.extents.setdefault(key, extent)
        return extent

    def _measured_before(
        self, entry: _Entry, snapshot: LogSnapshot, segment: Segment, rendition: Rendition
    ) -> Extent | None:
        """The extent that an earlier mount has measured; None if there is none."""
        name = rendition.lasting_name()
        kept = None if name is None else entry.kept.get(name)
        if kept is None:
            return None
        decider = None if kept.marker == NO_MARKER else decider_of(snapshot, kept.marker)
        if kept.marker != NO_MARKER and decider is None:
            return None
        pieces = Pieces(entry.blocks.table, kept.sizes, 0)
        return Extent(segment, rendition, None, 0, entry.blocks, pieces, decider)

    # Where keys and times may be

    def find(self, snapshot: LogSnapshot, segment: Segment, key: bytes, start: int, end: int) -> KeyStretches:
        """Where messages with the key may be, from the position `start` to `end`; what is not known up to there is
        scanned, if there are keys. SegmentGone."""
        if not self.has_keys:
            return KeyStretches([], start)
        self._lookups += 1
        return self.table(snapshot, segment, end, keys=True).find(key, start, end)

    def names(self, snapshot: LogSnapshot, segment: Segment, end: int) -> tuple[frozenset[bytes], int] | None:
        """The keys in the batches of a segment up to a position, and this position: `end`, or near it if the segment
        still grows. None if they are more than MOST_NAMES, which is known soon. SegmentGone."""
        if self.table(snapshot, segment, min(end, _FIRST_BYTES), keys=True).names is None:
            return None
        table = self.table(snapshot, segment, end, keys=True)
        if table.names is None:
            return None
        unfiltered = table.unfiltered(0, table.file_end)
        return table.names, unfiltered[0][0] if unfiltered else table.file_end

    def whole_blocks(self, segment: Segment, end: int) -> int:
        """Where the block ends that holds the file position before `end`; `end` if nobody knows the blocks there."""
        ends = self.known(segment).columns[FILE_END]
        row = int(ends.searchsorted(end))
        return int(ends[row]) if row < len(ends) else end

    def known(self, segment: Segment) -> BlockTable:
        """The blocks of a segment that this process or an earlier one knows."""
        return self._loaded(segment).blocks.table

    def table(self, snapshot: LogSnapshot, segment: Segment, end: int, *, keys: bool) -> BlockTable:
        """The blocks of a segment up to the position `end`, with filters if `keys`; while the segment grows, less than
        one block may be missing. SegmentGone."""
        entry = self._loaded(segment)
        held, is_whole = entry.blocks, _is_whole(end, segment, snapshot)
        if self._missing(held.table, end, keys=keys, is_whole=is_whole):
            with held.lock:
                for first, last in self._missing(held.table, end, keys=keys, is_whole=is_whole):
                    begun = time.monotonic()
                    with (
                        self._collecting.scan(segment.log.path, last - first) as on_bytes,
                        self._searched_pages.measuring(segment, first, last),
                    ):
                        try:
                            held.collect_locked(snapshot, segment, first, last, self.workers, on_bytes, keys=keys)
                        except SegmentGone:
                            self.forget(segment)
                            raise
                    self._collecting_seconds += time.monotonic() - begun
        table = held.table
        self._finish(segment, is_complete=_is_whole(table.file_end, segment, snapshot))
        return table

    @staticmethod
    def _missing(table: BlockTable, end: int, *, keys: bool, is_whole: bool) -> list[tuple[int, int]]:
        """The stretches to scan: each is at least as large as a block, or is the rest of a sealed segment."""
        stretches = table.unfiltered(0, end) if keys else [(table.file_end, end)]
        least = 1 if is_whole else blocks.BLOCK_BYTES
        return [(first, last) for first, last in stretches if last - first >= least]

    # What is held and kept

    def forget(self, segment: Segment) -> None:
        """Drops the knowledge of a segment, so that new layouts do not use it; does not load it from disk again."""
        with self._lock:
            entry = self._entries.pop(segment, None)
            if entry is not None:
                self._held_bytes -= entry.counted_bytes
                self._entries[segment] = fresh = _Entry()
                fresh.is_loaded = True
            for stretch in [key for key in self._stretches if key[0] is segment]:
                del self._stretches[stretch]

    def start(self) -> None:
        """Allows scans (again)."""
        self._measuring.stopping = self._collecting.stopping = False

    def stop(self) -> None:
        """Ends scans in progress, and keeps active segments on disk too."""
        self._measuring.stopping = self._collecting.stopping = True
        self.keep()
        self.pages.drop_all()

    def keep(self) -> None:
        """Keeps the knowledge of active segments on disk too, because their logs may never grow again."""
        with self._lock:
            entries = list(self._entries.items())
        for segment, entry in entries:
            self._save(segment, entry)

    def status(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """For @status.json, of views and of keys: what is held, what it took to make it, and the scans in progress."""
        with self._lock:
            extents = [extent for entry in self._entries.values() for extent in entry.extents.values()]
            tables = [entry.blocks.table for entry in self._entries.values()]
        disk_bytes = 0 if self._store is None else self._store.used_bytes()
        views = {
            "segments": len(extents),
            "memory_bytes": sum(extent.pieces.memory_bytes for extent in extents),
            "disk_bytes": disk_bytes,
            "scanned_bytes": self._measuring.scanned_bytes,
            "scans": self._measuring.status(),
        }
        if not self.has_keys:
            return views, None
        with_keys = [table for table in tables if (table.columns[WORDS] != NO_FILTER).any()]
        return views, {
            "segments": len(tables),  # also those that are too small for a block yet
            "indexed_bytes": sum(table.file_end for table in with_keys),
            "keys": sum(table.keys for table in with_keys),
            "memory_bytes": sum(table.memory_bytes for table in with_keys),
            "disk_bytes": disk_bytes,
            "lookups": self._lookups,
            "scanned_bytes": self._collecting.scanned_bytes,
            "scan_seconds": round(self._collecting_seconds, 3),
            "scans": self._collecting.status(),
        }

    def scanning(self, path: Path, total_bytes: int) -> AbstractContextManager[OnBytes]:
        """A scan of so many bytes of `path`, a file or a log; call it after each step. It shows in @status.json, and
        ends with an OSError when the mount does."""
        return self._measuring.scan(path, total_bytes)

    def _loaded(self, segment: Segment) -> _Entry:
        """The entry of a segment, with what an earlier process has kept of it."""
        with self._lock:
            entry = self._entries.get(segment)
            if entry is None:
                entry = self._entries[segment] = _Entry()
            self._entries.move_to_end(segment)
        if not entry.is_loaded:
            with entry.blocks.lock:
                if not entry.is_loaded:
                    kept = None if self._store is None else self._store.load(segment)
                    if kept is not None:
                        entry.blocks.table = kept.table
                        entry.kept = dict(kept.renditions)
                        entry.saved = (kept.table,)
                    entry.is_loaded = True
            self._count(segment, entry)
        return entry

    def _finish(self, segment: Segment, *, is_complete: bool) -> None:
        """After a scan: counts what is held, and keeps it on disk if nothing can follow."""
        with self._lock:
            entry = self._entries.get(segment)
        if entry is not None:
            self._count(segment, entry)
            if is_complete:
                self._save(segment, entry)

    def _save(self, segment: Segment, entry: _Entry) -> None:
        """Keeps the knowledge of a segment on disk for later mounts, if it has changed. Leaves out renditions that
        later mounts cannot recognise, and renditions whose marker cannot be found again."""
        if self._store is None:
            return
        with self._lock:
            extents = list(entry.extents.values())
        with entry.blocks.lock:
            table = entry.blocks.table
            measured = [(extent, extent.snapshot, extent.pieces) for extent in extents]
            state = (table, *(pieces for _, snapshot, pieces in measured if snapshot is not None))
            if len(state) == len(entry.saved) and all(map(_is, state, entry.saved)):
                return
            # A block that has grown since then is no longer known to its end.
            renditions = {name: kept.until(table) for name, kept in entry.kept.items()}
            for extent, snapshot, pieces in measured:
                name = extent.rendition.lasting_name()
                if snapshot is None or name is None:
                    continue
                marker = NO_MARKER if extent.decider is None else marker_of(snapshot, extent.decider)
                renditions.pop(name, None)
                if marker is not None:
                    renditions[name] = KeptSizes(pieces.sizes, marker).until(table)
            if self._store.save(segment, Kept(table, renditions)):
                entry.saved = state

    def _count(self, segment: Segment, entry: _Entry) -> None:
        """Counts what an entry holds by now, and forgets the least recently used segments if all take too much
        memory."""
        with self._lock:
            if self._entries.get(segment) is not entry:
                return  # forgotten meanwhile
            held = entry.memory_bytes
            self._held_bytes += held - entry.counted_bytes
            entry.counted_bytes = held
            while self._held_bytes > self._kept_bytes and len(self._entries) > 1:
                _, oldest = self._entries.popitem(last=False)
                self._held_bytes -= oldest.counted_bytes


def _is(first: object, second: object) -> bool:
    return first is second


def _key(snapshot: LogSnapshot, rendition: Rendition) -> _ExtentKey:
    return rendition.name, epoch_of(snapshot, rendition)


def _is_whole(position: int, segment: Segment, snapshot: LogSnapshot) -> bool:
    """Whether nothing can follow the position in its segment."""
    return segment.sealed and segment is not snapshot.active and position == segment.size
