"""The key index: for each segment, in which of its blocks a key may be (`key_blocks`); made when first needed or while
a view is measured, extended as the log grows, kept on disk.

What it says is only a hint about where not to look. The end of a growing segment, less than a block, is in no filter
and is always read.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

from kafkafs.reading.key_blocks import BLOCK_BYTES, Found, KeyBlocks, KeyCollector, Secret, scan_keys
from kafkafs.reading.measured_pages import MeasuredPages
from kafkafs.reading.store import KeyStore
from kafkafs.reading.workers import Scans, Workers
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot

KEPT_BYTES = 64 << 20  # of filters in memory
_FIRST_BYTES = 8 << 20  # scanned to see whether a segment has too many keys to be listed


class _Entry:
    """What is known of a segment. `blocks` is replaced as a whole, under the entry's lock, by more of them."""

    __slots__ = ("blocks", "counted_bytes", "is_kept", "is_loaded", "lock")

    def __init__(self) -> None:
        # has its own locking
        self.lock = threading.Lock()
        # guarded by the lock for writing
        self.blocks = KeyBlocks.none()
        self.is_loaded = False  # whether the disk was asked
        self.is_kept = False  # whether these blocks are on disk
        # guarded by the index's lock
        self.counted_bytes = 0  # of `blocks` when they were last counted


class KeyIndex:
    """The blocks of segments: Segments are the same object only while their file grows, so what is known of one stays
    right. Thread-safe."""

    def __init__(self, workers: Workers, store: KeyStore | None, kept_bytes: int = KEPT_BYTES) -> None:
        # constant after construction
        self._workers = workers
        self._store = store
        self._kept_bytes = kept_bytes
        # has its own locking
        self._scans = Scans()
        self._pages = MeasuredPages(most_bytes=0)  # nobody reads all that has been searched
        # counted without a lock: numbers for people
        self._scan_seconds = 0.0
        self._lookups = 0
        # guarded by the lock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Segment, _Entry] = OrderedDict()
        self._held_bytes = 0  # the sum of their counted_bytes

    def find(self, snapshot: LogSnapshot, segment: Segment, key: bytes, start: int, end: int) -> Found:
        """Where messages with the key may be, from the position `start` to `end`; what is not known up to there is
        scanned. SegmentGone."""
        self._lookups += 1
        return self._extended(snapshot, segment, end).find(key, start, end)

    def find_known(self, segment: Segment, key: bytes, start: int, end: int) -> Found | None:
        """The same without a scan; None if nothing is known of the segment."""
        blocks = self._loaded(segment).blocks
        return blocks.find(key, start, end) if len(blocks) else None

    def names(self, snapshot: LogSnapshot, segment: Segment, end: int) -> tuple[frozenset[bytes], int] | None:
        """The keys in the batches of a segment up to a position, and this position: `end`, or near it if the segment
        still grows. None if they are more than MOST_NAMES, which is known soon. SegmentGone."""
        if self._extended(snapshot, segment, min(end, _FIRST_BYTES)).names is None:
            return None
        blocks = self._extended(snapshot, segment, end)
        return None if blocks.names is None else (blocks.names, blocks.file_end)

    def secret_for(self, snapshot: LogSnapshot, segment: Segment, start: int, end: int) -> Secret | None:
        """With which secret a pass over a segment's batches from `start` to `end` is to collect keys for `add`; None if
        they are known, or the pass does not continue what is."""
        entry = self._loaded(segment)
        blocks = entry.blocks
        wanted = blocks.file_end == start and self._lacks(blocks, snapshot, segment, end)
        return blocks.secret if wanted else None

    def add(self, snapshot: LogSnapshot, segment: Segment, parts: list[KeyCollector], end: int) -> None:
        """Adds what a pass has collected up to the position `end`."""
        entry = self._entry(segment)
        with entry.lock:
            self._add_locked(entry, snapshot, segment, parts, end)
        self._limit(segment, entry)

    def forget(self, segment: Segment) -> None:
        """Drops what is known of a segment."""
        with self._lock:
            entry = self._entries.pop(segment, None)
            if entry is not None:
                self._held_bytes -= entry.counted_bytes

    def start(self) -> None:
        """Allows scans (again)."""
        self._scans.stopping = False

    def stop(self) -> None:
        """Ends scans in progress, and keeps growing segments on disk too."""
        self._scans.stopping = True
        with self._lock:
            entries = list(self._entries.items())
        for segment, entry in entries:
            with entry.lock:
                self._keep_locked(entry, segment)

    def status(self) -> dict[str, Any]:
        """For @status.json: what is held, what it took to make it, and the scans in progress."""
        with self._lock:
            held = [entry.blocks for entry in self._entries.values()]
        return {
            "segments": len(held),
            "indexed_bytes": sum(blocks.file_end for blocks in held),
            "keys": sum(blocks.keys for blocks in held),
            "memory_bytes": sum(blocks.memory_bytes for blocks in held),
            "disk_bytes": 0 if self._store is None else self._store.used_bytes(),
            "lookups": self._lookups,
            "scanned_bytes": self._scans.scanned_bytes,
            "scan_seconds": round(self._scan_seconds, 3),
            "scans": self._scans.status(),
        }

    def _extended(self, snapshot: LogSnapshot, segment: Segment, end: int) -> KeyBlocks:
        """The blocks of a segment up to the position `end`, except for less than one if it still grows."""
        entry = self._loaded(segment)
        if self._lacks(entry.blocks, snapshot, segment, end):
            with entry.lock:
                blocks = entry.blocks
                if self._lacks(blocks, snapshot, segment, end):
                    begun = time.monotonic()
                    with (
                        self._scans.scan(segment.log.path, end - blocks.file_end) as advance,
                        self._pages.measuring(segment, blocks.file_end, end),
                    ):
                        parts = scan_keys(
                            snapshot, segment, blocks.file_end, end, blocks.secret, self._workers, advance
                        )
                    self._scan_seconds += time.monotonic() - begun
                    self._add_locked(entry, snapshot, segment, parts, end)
            self._limit(segment, entry)
        elif not entry.is_kept and _is_whole(entry.blocks.file_end, segment, snapshot):
            with entry.lock:
                self._keep_locked(entry, segment)
        return entry.blocks

    def _lacks(self, blocks: KeyBlocks, snapshot: LogSnapshot, segment: Segment, end: int) -> bool:
        """Whether there is a block, or the rest of a sealed segment, that is not known."""
        missing = end - blocks.file_end
        return missing >= BLOCK_BYTES or (missing > 0 and _is_whole(end, segment, snapshot))

    def _add_locked(
        self, entry: _Entry, snapshot: LogSnapshot, segment: Segment, parts: list[KeyCollector], end: int
    ) -> None:
        is_whole = _is_whole(end, segment, snapshot)
        for part in parts if is_whole else parts[:-1]:
            part.close()
        blocks = entry.blocks.extended(parts)
        if blocks is not entry.blocks:
            entry.blocks = blocks
            entry.is_kept = False
        if is_whole:
            self._keep_locked(entry, segment)

    def _keep_locked(self, entry: _Entry, segment: Segment) -> None:
        if not entry.is_kept and self._store is not None:
            entry.is_kept = self._store.save(segment, entry.blocks)

    def _loaded(self, segment: Segment) -> _Entry:
        """The entry of a segment, with what an earlier process has kept of it."""
        entry = self._entry(segment)
        if not entry.is_loaded:
            with entry.lock:
                if not entry.is_loaded:
                    found = None if self._store is None or len(entry.blocks) else self._store.load(segment)
                    if found is not None:
                        entry.blocks = found
                        entry.is_kept = found.file_end == segment.size
                    entry.is_loaded = True
            self._limit(segment, entry)
        return entry

    def _entry(self, segment: Segment) -> _Entry:
        with self._lock:
            entry = self._entries.get(segment)
            if entry is None:
                entry = self._entries[segment] = _Entry()
            self._entries.move_to_end(segment)
            return entry

    def _limit(self, segment: Segment, entry: _Entry) -> None:
        """Counts what an entry holds by now, and forgets the least recently used segments if all take too much
        memory."""
        with self._lock:
            if self._entries.get(segment) is not entry:
                return  # forgotten meanwhile
            held = entry.blocks.memory_bytes
            self._held_bytes += held - entry.counted_bytes
            entry.counted_bytes = held
            while self._held_bytes > self._kept_bytes and len(self._entries) > 1:
                _, oldest = self._entries.popitem(last=False)
                self._held_bytes -= oldest.counted_bytes


def _is_whole(position: int, segment: Segment, snapshot: LogSnapshot) -> bool:
    """Whether nothing can follow the position in its segment."""
    return segment.sealed and segment is not snapshot.active and position == segment.size
