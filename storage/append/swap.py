"""Replaces segments by the one that the cleaner made from them, so that a crash leaves either the old or the new.

1. the new segment is written under `.cleaned` names and synced, then the directory
                                                                 → recovery removes it: the sources remain
2. its files are renamed to `.swap`; the directory is synced     → as 1 while a `.cleaned` is left; then recovery
                                                                   finishes: 3 to 5
3. the sources are renamed to `.deleted`, the lowest first; sync → recovery finishes
   (also before each that has no message left in the new segment)
4. the new segment gets its names, the .log first; sync after it and after the others
                                                                 → recovery renames the remaining `.swap` files
5. producer snapshots at bases that no longer exist are removed  → recovery removes them
6. the caller unlinks the `.deleted` files some time later       → recovery removes them

Recovery removes the live files whose offsets are within the messages of the `.swap` file. If the last sources have no
message left, they may survive a crash between 2 and 3. Their messages have later ones of the same key, so the next pass
removes them. Kafka's own replacement has the same steps, with fewer syncs between them. Source:
LocalLog.replaceSegments, LogSegment.changeFileSuffixes, Cleaner.cleanSegments.

Nothing here locks: the PartitionLog that owns the directory holds its lock where noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage.append.active_segment import ActiveSegment
from storage.append.partition_files import set_aside
from storage.append.rolling_rules import RollLimits, rows_that_fit
from storage.files import names, transaction_index
from storage.files.disk import opened, sync_file
from storage.files.disk_protocol import Disk
from storage.files.names import FileKind, FileState
from storage.files.opening import exists
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import BatchTable
from storage.log import tail
from storage.log.segment import LargeBatch, Segment
from storage.log.segments import slot_of

# In the order in which the files get their final names.
_KINDS: Final = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
_CLEANED: Final = FileState.CLEANED.value


class CleanedSegment:
    """A segment being built: step 1. Anything that an earlier attempt left there is overwritten."""

    def __init__(self, disk: Disk, directory: Path, base_offset: int, *, interval_bytes: int) -> None:
        self.base_offset: Final = base_offset
        self._disk = disk
        self._directory = directory
        remove_cleaned(disk, directory, base_offset)
        try:
            self._files = ActiveSegment.create(
                disk, directory, base_offset, interval_bytes=interval_bytes, now_ms=0, ending=_CLEANED
            )
        except OSError:  # some files may exist, and the caller has no object yet with which to remove them
            with suppress(OSError):
                remove_cleaned(disk, directory, base_offset)
            raise

    @property
    def size(self) -> int:
        """Bytes of messages so far."""
        return self._files.size

    def rows_until_full(self, table: BatchTable, first: int, limits: RollLimits, now_ms: int) -> int:
        """The row after the last one, counted from `first`, that the segment accepts; at least one row."""
        count = max(1, rows_that_fit(table, first, self._files.fill, limits, now_ms))
        return self._files.rows_until_full(table, first, first + count, limits)

    def append(self, data: memoryview | LargeBatch, table: BatchTable) -> None:
        """Appends the batches that `data` holds back to back, with their headers in `table`; index entries as
        Kafka's."""
        self._files.append(data, table, 0, table.rows)

    def finish(self, aborted: Sequence[AbortedTxn], mtime_ns: int) -> None:
        """Writes the final time entry and the .txnindex (if it has entries), syncs all, and sets the files'
        modification time to that of the last source, by which Kafka judges old formats' tombstones."""
        self._files.finish()
        paths = list(self._files.paths())
        self._files.close()
        if aborted:
            path = _path(self._directory, self.base_offset, FileKind.TRANSACTION_INDEX, FileState.CLEANED)
            with opened(self._disk, path, create=True) as file:
                file.write_at(0, transaction_index.encode(list(aborted)))
            paths.append(path)
        for path in paths:
            sync_file(self._disk, path)
        # Their names too: without a `.cleaned` .log the index files that are `.swap` already would count as complete.
        self._disk.sync_dir(self._directory)
        for path in paths[:3]:
            self._disk.set_mtime(path, mtime_ns)

    def close(self) -> None:
        """Closes the descriptors; the files stay."""
        self._files.close()


def remove_cleaned(disk: Disk, directory: Path, base_offset: int) -> None:
    """Removes a segment that was being built."""
    for kind in _KINDS:
        path = _path(directory, base_offset, kind, FileState.CLEANED)
        if exists(path):
            disk.unlink(path)


def make_ready(disk: Disk, directory: Path, base_offset: int) -> None:
    """Step 2. Needs no lock, as long as nothing else removes the sources."""
    for kind in reversed(_KINDS):
        source = _path(directory, base_offset, kind, FileState.CLEANED)
        if exists(source):
            disk.rename(source, _path(directory, base_offset, kind, FileState.SWAP))
    disk.sync_dir(directory)


def replace(
    disk: Disk, directory: Path, sources: Sequence[Segment], sealed: tuple[Segment, ...]
) -> tuple[tuple[Segment, ...], list[Path]]:
    """Steps 3 to 5. Returns the log's sealed segments, and the sources' files, renamed to `.deleted`.

    SegmentGone when one of the sources is not among the `sealed`: then nothing has changed.
    """
    slot = slot_of(sources, sealed)
    base_offset = sources[0].base_offset
    removed = []
    ready = Segment.at(directory, base_offset, FileState.SWAP)
    covered = tail.measure(ready, ready.size).next_offset
    for source in sources:
        if source.base_offset >= covered:
            # Recovery does not remove this one. It must not disappear before the earlier sources: a deleted
            # key would be back. Renames that are not synced may reach the disk in any order.
            disk.sync_dir(directory)
        removed += set_aside(disk, directory, source.base_offset, _KINDS)
    if removed:
        disk.sync_dir(directory)
    for kind in _KINDS:
        path = _path(directory, base_offset, kind, FileState.SWAP)
        if exists(path):
            disk.rename(path, _path(directory, base_offset, kind))
        if kind is FileKind.LOG:
            disk.sync_dir(directory)  # next to a `.log.swap`, recovery would remove the other files as a source's
    disk.sync_dir(directory)
    for source in sources:
        if source.base_offset != base_offset:
            removed += set_aside(disk, directory, source.base_offset, (FileKind.PRODUCER_SNAPSHOT,))
    segment = Segment.at(directory, base_offset)
    segment.sealed = True
    return (*sealed[:slot], segment, *sealed[slot + len(sources) :]), removed


def _path(directory: Path, base_offset: int, kind: FileKind, state: FileState = FileState.LIVE) -> Path:
    return directory / names.segment_file(base_offset, kind, state)
