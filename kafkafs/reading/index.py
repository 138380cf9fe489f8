"""The view index: the measured segments in each rendition; measured when first needed, then kept.

A segment that a truncation has cut is another Segment, and is measured again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from kafkafs.reading.extent import Extent, epoch_of
from kafkafs.reading.key_index import KeyIndex
from kafkafs.reading.measured_pages import MeasuredPages
from kafkafs.reading.pieces import Pieces
from kafkafs.reading.selection import RecordFilter
from kafkafs.reading.store import NO_MARKER, Marker, Store
from kafkafs.reading.workbench import Rendition
from kafkafs.reading.workers import OnBytes, Scans, Workers
from storage.errors import StorageError
from storage.log.reader import find_batch
from storage.log.segment import Segment
from storage.log.snapshot import DecidingMarker, LogSnapshot

# The marker that decided about a segment's transactions: a later mount uses what was measured if it is still there.


def marker_of(snapshot: LogSnapshot, decider: DecidingMarker) -> Marker | None:
    """The marker that a later mount must find to use what it decided; None if it cannot be read any longer."""
    try:
        found = find_batch(snapshot, decider.offset)
        batch = None if found is None else found.segment.batch_at(found.position, snapshot.end_position(found.segment))
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


KEPT_BYTES = 32 << 20  # of pieces in memory, in addition to those that open views hold
KEPT_STRETCHES = 1024
_LITTLE_BYTES = 8 << 20  # of a segment, measured because it is before what is needed


_WholeKey = tuple[Segment, str, int]  # segment, name of the rendition, epoch


class ViewIndex:
    """Extents: whole segments, which are kept, and the stretches that single ranges need. Thread-safe."""

    def __init__(
        self, workers: Workers, store: Store | None, kept_bytes: int = KEPT_BYTES, keys: KeyIndex | None = None
    ) -> None:
        """`keys`: gets the keys of the segments that are measured."""
        # constant after construction
        self.workers = workers
        self.keys = keys
        self.pages = MeasuredPages()
        self._store = store
        self._kept_bytes = kept_bytes
        # has its own locking
        self._scans = Scans()
        # guarded by the lock
        self._lock = threading.Lock()
        self._whole: OrderedDict[_WholeKey, Extent] = OrderedDict()
        self._stretches: LRUCache[tuple[_WholeKey, int, int | None, RecordFilter | None], Extent]
        self._stretches = LRUCache(KEPT_STRETCHES)
        self._saved: WeakKeyDictionary[Extent, Pieces] = WeakKeyDictionary()  # what `keep` has kept last

    def held(
        self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition, end: int, start: int = 0
    ) -> Extent | None:
        """A whole segment, measured at least up to the position `end`; None if much before the position `start` would
        have to be measured, or all of it."""
        extent = self._known(snapshot, segment, rendition)
        if extent is None or extent.pieces.file_end + _LITTLE_BYTES < start:
            return None
        self.extend(extent, snapshot, end)
        return extent

    def measured_end(
        self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition, start: int, wanted: RecordFilter | None
    ) -> int:
        """Up to which file position the batches from the position `start` on have been measured."""
        whole = self._known(snapshot, segment, rendition)
        with self._lock:
            stretch = self._stretches.get((_key(snapshot, segment, rendition), start, None, wanted))
        return max(start, *(0 if extent is None else extent.pieces.file_end for extent in (whole, stretch)))

    def _known(self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition) -> Extent | None:
        """A whole segment of which something has been measured, by this mount or an earlier one."""
        key = _key(snapshot, segment, rendition)
        with self._lock:
            extent = self._whole.get(key)
            if extent is not None:
                self._whole.move_to_end(key)
        if extent is None:
            extent = self._loaded(snapshot, segment, rendition)
            if extent is None:
                return None
            extent = self._hold(key, extent)
        return extent

    def _loaded(self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition) -> Extent | None:
        """A segment that an earlier mount has kept on disk."""
        name = rendition.lasting_name()
        found = None if self._store is None or name is None else self._store.load(segment, name)
        if found is None:
            return None
        pieces, marker = found
        decider = None if marker == NO_MARKER else decider_of(snapshot, marker)
        if marker != NO_MARKER and decider is None:
            return None
        extent = Extent(segment, rendition, None, 0, pieces, decider)
        extent.kept = True
        return extent

    def _save(self, extent: Extent) -> bool:
        """Keeps a whole segment for later mounts, unless its marker cannot be found again, or a later mount cannot know
        the rendition. False if its file has changed too recently to be sure that it no longer changes."""
        pieces, decider, snapshot = extent.pieces, extent.decider, extent.snapshot
        name = extent.rendition.lasting_name()
        if self._store is None or snapshot is None or name is None:
            return True
        marker = NO_MARKER if decider is None else marker_of(snapshot, decider)
        return marker is None or self._store.save(extent.segment, name, pieces, marker)

    def whole(self, snapshot: LogSnapshot, segment: Segment, rendition: Rendition, end: int) -> Extent:
        """A whole segment, measured at least up to the position `end`; what is not known yet is scanned."""
        extent = self.held(snapshot, segment, rendition, end)
        if extent is None:
            extent = self._hold(_key(snapshot, segment, rendition), Extent(segment, rendition, None, 0))
            self.extend(extent, snapshot, end)
        return extent

    def stretch(
        self,
        snapshot: LogSnapshot,
        segment: Segment,
        rendition: Rendition,
        start: int,
        end: int,
        wanted: RecordFilter | None,
        *,
        grows: bool,
    ) -> Extent:
        """The batches from the position `start` to `end`, without messages that are not `wanted`.

        With `grows`, the extent may be measured further than `end`.
        """
        key = (_key(snapshot, segment, rendition), start, None if grows else end, wanted)
        with self._lock:
            extent = self._stretches.setdefault(key, Extent(segment, rendition, wanted, start))
        self.extend(extent, snapshot, end)
        return extent

    def extend(self, extent: Extent, snapshot: LogSnapshot, end: int) -> None:
        """Measures more of an extent, up to the position `end`; a segment that is measured to its end is kept."""
        segment, whole, start = extent.segment, extent.is_whole, extent.pieces.file_end
        with self.scanning(segment.log.path, end - start) as on_bytes, self.pages.measuring(segment, start, end):
            extent.extend(snapshot, end, self.workers, on_bytes, self.keys if whole else None)
        if not whole or extent.kept or self._store is None:
            return
        if segment.sealed and extent.pieces.file_end == segment.size:
            extent.kept = self._save(extent)

    def forget(self, segment: Segment) -> None:
        """Drops what was measured of a segment, so that new layouts do not use it."""
        with self._lock:
            for whole in [key for key in self._whole if key[0] is segment]:
                del self._whole[whole]
            for stretch in [key for key in self._stretches if key[0][0] is segment]:
                del self._stretches[stretch]

    def start(self) -> None:
        """Allows scans (again)."""
        self._scans.stopping = False

    def stop(self) -> None:
        """Ends scans in progress, and keeps active segments on disk too."""
        self._scans.stopping = True
        self.keep()
        self.pages.drop_all()

    def keep(self) -> None:
        """Keeps on disk what was measured of active segments: their logs may not be written any longer."""
        with self._lock:
            measured = [(extent, extent.pieces) for extent in self._whole.values() if not extent.kept]
            changed = [(extent, pieces) for extent, pieces in measured if self._saved.get(extent) is not pieces]
        for extent, pieces in changed:
            if self._save(extent):
                with self._lock:
                    self._saved[extent] = pieces

    def status(self) -> dict[str, Any]:
        """For @status.json: what is held, and the scans in progress."""
        with self._lock:
            return {
                "segments": len(self._whole),
                "memory_bytes": sum(extent.pieces.memory_bytes for extent in self._whole.values()),
                "disk_bytes": 0 if self._store is None else self._store.used_bytes(),
                "scanned_bytes": self._scans.scanned_bytes,
                "scans": self._scans.status(),
            }

    def scanning(self, path: Path, total_bytes: int) -> AbstractContextManager[OnBytes]:
        """A scan of so many bytes of `path`, a file or a log, to be told of each step: it shows in @status.json, and
        ends with an OSError when the mount does."""
        return self._scans.scan(path, total_bytes)

    def _hold(self, key: _WholeKey, extent: Extent) -> Extent:
        """The extent to use for `key`: this one, or the one that another thread has stored meanwhile."""
        with self._lock:
            extent = self._whole.setdefault(key, extent)
            held = sum(other.pieces.memory_bytes for other in self._whole.values())
            while held > self._kept_bytes and len(self._whole) > 1:
                held -= self._whole.popitem(last=False)[1].pieces.memory_bytes
        return extent


def _key(snapshot: LogSnapshot, segment: Segment, rendition: Rendition) -> _WholeKey:
    return segment, rendition.name, epoch_of(snapshot, rendition)
