"""The segment that is being written: its .log and both indexes, appended together.

Source: LogSegment.append, LogSegment.onBecomeInactiveSegment, LogSegment.close. Nothing here locks: the PartitionLog
that owns the segment holds its lock.

A segment *at rest* has no descriptors (storage.append.open_logs). When it opens its files again, each must have the
inode, device, size and modification time that it had, because only we write it; otherwise it fails with ESTALE. An
inode number alone does not identify a file: a file made after another was removed often gets the same one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from storage.append.index_state import IndexEntries, IndexState
from storage.append.rolling_rules import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, RollLimits, SegmentFill
from storage.files import names, offset_index, time_index
from storage.files.disk_protocol import Disk, DiskFile
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.format.columns import Column
from storage.log.segment import LargeBatch, Segment, parts_of
from storage.types import NO_TIMESTAMP

_KINDS: Final = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
_OFFSET_ENTRY = struct.Struct(">ii")  # offset minus the base offset, position
_TIME_ENTRY = struct.Struct(">qi")  # timestamp, offset minus the base offset


class ActiveSegment:
    """A segment open for appending. Readers see `segment`.

    A failed append leaves files and state as they were before it, or sets `broken`: then their state is unknown.
    `at_rest`: it has no descriptors; `wake` it before it changes.
    """

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        files: tuple[DiskFile, DiskFile, DiskFile],
        state: IndexState,
        entries: tuple[int, int],
        *,
        first_timestamp: int,
        created_ms: int,
    ) -> None:
        self.segment = segment
        self.broken = False
        self.at_rest = False
        self._disk = disk
        self._log, self._offset_file, self._time_file = files  # closed while at rest
        self._paths = self._log.path, self._offset_file.path, self._time_file.path
        self._marks: list[tuple[int, ...]] = []  # of the files when they were closed
        self._state = state
        self._was_cut = False  # bytes after the end were cut off, perhaps not durably yet
        # What rolling depends on.
        self.fill = SegmentFill(segment.base_offset, segment.size, first_timestamp, created_ms, *entries)

    @staticmethod
    def create(
        disk: Disk,
        directory: Path,
        base_offset: int,
        *,
        interval_bytes: int,
        now_ms: int,
        preallocate: int = 0,
        ending: str = "",
    ) -> ActiveSegment:
        """A new, empty segment. `preallocate`: bytes of zeros that its .log begins with (Kafka's `preallocate`).
        `ending`: appended to the names of its files."""
        paths = [directory / (names.segment_file(base_offset, kind) + ending) for kind in _KINDS]
        with _opened(disk, paths, create=True) as files:
            for file in files:
                file.truncate(0)
            if preallocate:
                files[0].truncate(preallocate)
            segment = Segment(directory, base_offset, _log_file(files[0]), 0)
        index = IndexState(interval_bytes, base_offset)
        return ActiveSegment(disk, segment, files, index, (0, 0), first_timestamp=NO_TIMESTAMP, created_ms=now_ms)

    @staticmethod
    def reopen(disk: Disk, segment: Segment, end: int, *, interval_bytes: int, now_ms: int) -> ActiveSegment:
        """Continues a segment whose messages end at the position `end`; anything after it is cut off. It is at rest.

        Sound index entries stay. The bytes since the last entry count from 0, as in Kafka.
        """
        paths = [segment.directory / names.segment_file(segment.base_offset, kind) for kind in _KINDS]
        with _opened(disk, paths, create=True) as files:
            offsets = segment.offset_index(end)
            times = segment.time_index(end)
            for file, size in zip(
                files, (end, len(offsets) * OFFSET_ENTRY_SIZE, len(times) * TIME_ENTRY_SIZE), strict=True
            ):
                if file.size() != size:
                    file.truncate(size)
            segment.size = end
            first = segment.batch_at(0, end) if end else None
            active = ActiveSegment(
                disk,
                segment,
                files,
                IndexState(interval_bytes, segment.base_offset, times.last if len(times) else None),
                (len(offsets), len(times)),
                first_timestamp=NO_TIMESTAMP if first is None else int(first.max_timestamp[0]),
                created_ms=now_ms,
            )
            active.rest()
            return active

    def rest(self) -> None:
        """Closes the files until `wake`."""
        if not self.at_rest:
            self._marks = [_marks(file) for file in (self._log, self._offset_file, self._time_file)]
            self.at_rest = True
            self.close()

    def wake(self) -> None:
        """Opens the files again. OSError, ESTALE if one is not the file that was closed: then the segment stays at
        rest."""
        if not self.at_rest:
            return
        with _opened(self._disk, self._paths) as files:
            for file, marks in zip(files, self._marks, strict=True):
                if _marks(file) != marks:
                    raise OSError(errno.ESTALE, "no longer the file that was written to", str(file.path))
        self._log, self._offset_file, self._time_file = files
        self.at_rest = False

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def size(self) -> int:
        """Bytes of messages in the .log."""
        return self.segment.size

    def rows_until_full(self, table: BatchTable, first: int, last: int, limits: RollLimits) -> int:
        """The row after the batch, among the rows `first` to `last`, that fills an index; `last` if no batch does."""
        trial = self._state.copy()
        entries = trial.advance(table, first, last)
        offsets_left = limits.offset_entries - self.fill.offset_entries
        times_left = limits.time_entries - self.fill.time_entries
        stop = last
        if len(entries.offsets) >= offsets_left > 0:
            stop = min(stop, first + _row_of(table, first, last, int(entries.offsets[offsets_left - 1])) + 1)
        if len(entries.timestamps) >= times_left > 0:
            # Find the first row at which the running count of time entries reaches the limit.
            stop = min(stop, self._row_of_time_entry(table, first, last, times_left))
        return stop

    def _row_of_time_entry(self, table: BatchTable, first: int, last: int, entry_count: int) -> int:
        low, high = first, last
        while high - low > 1:
            middle = (low + high) // 2
            if len(self._state.copy().advance(table, first, middle).timestamps) >= entry_count:
                high = middle
            else:
                low = middle
        return high

    def append_batch(self, data: memoryview, last_offset: int, max_timestamp: int) -> None:
        """`append` of one batch with this last offset and max timestamp."""
        fill = self.fill
        base, before = fill.size_bytes, self._state.values()
        try:
            end = self._log.write_at(base, data)
            entries = self._state.advance_batch(end - base, last_offset, max_timestamp)
            if entries:
                entry = _OFFSET_ENTRY.pack(last_offset - fill.base_offset, base)
                self._offset_file.write_at(fill.offset_entries * OFFSET_ENTRY_SIZE, entry)
            if entries > 1:
                largest = self._state.largest
                entry = _TIME_ENTRY.pack(largest.timestamp, largest.offset - fill.base_offset)
                self._time_file.write_at(fill.time_entries * TIME_ENTRY_SIZE, entry)
        except BaseException:
            self._state.restore(before)
            self._undo(base)
            raise
        if entries:
            fill.offset_entries += 1
            fill.time_entries += entries - 1
        if base == 0:
            fill.first_timestamp = max_timestamp
        fill.size_bytes = self.segment.size = end

    def append(self, data: memoryview | LargeBatch, table: BatchTable, first: int, last: int) -> None:
        """Appends the batches of the rows `first` to `last`, which `data` holds back to back.

        The rows' positions are set to their positions in the file. An OSError leaves everything as before, or sets
        `broken`.
        """
        base = self.size
        table.data[Column.POSITION, first:last] += base - int(table.position[first])
        before = self._state.values()
        try:
            end = base
            for part in parts_of(data):
                end = self._log.write_at(end, part)
            entries = self._state.advance(table, first, last)
            self._write_entries(entries)
        except BaseException:
            self._state.restore(before)
            self._undo(base)
            raise
        self._grew(end, entries, int(table.max_timestamp[first]))

    def _grew(self, end: int, entries: IndexEntries, first_timestamp: int) -> None:
        fill = self.fill
        fill.offset_entries += len(entries.offsets)
        fill.time_entries += len(entries.timestamps)
        if fill.size_bytes == 0:
            fill.first_timestamp = first_timestamp
        fill.size_bytes = self.segment.size = end

    def _write_entries(self, entries: IndexEntries) -> None:
        if len(entries.offsets):
            data = offset_index.encode(entries.offsets, entries.positions, self.base_offset)
            self._offset_file.write_at(self.fill.offset_entries * OFFSET_ENTRY_SIZE, data)
        if len(entries.timestamps):
            data = time_index.encode(entries.timestamps, entries.time_offsets, self.base_offset)
            self._time_file.write_at(self.fill.time_entries * TIME_ENTRY_SIZE, data)

    def _undo(self, size: int) -> None:
        self.broken = True
        self._log.truncate(size)
        self._offset_file.truncate(self.fill.offset_entries * OFFSET_ENTRY_SIZE)
        self._time_file.truncate(self.fill.time_entries * TIME_ENTRY_SIZE)
        self._was_cut = True
        self.broken = False

    def finish(self) -> None:
        """Finish the segment for a roll or a clean close: write the final time index entry and cut the .log to its
        size."""
        final = self._state.final_time_entry()
        if final is not None:
            data = time_index.encode([final.timestamp], [final.offset], self.base_offset)
            self._time_file.write_at(self.fill.time_entries * TIME_ENTRY_SIZE, data)
            self.fill.time_entries += 1
            self._state.wrote_final_entry()
        if self._log.size() != self.size:
            self._log.truncate(self.size)
            self._was_cut = True

    def sync_cut(self) -> None:
        """Makes a cut (remains of a failed append, preallocated bytes) durable, before another segment or leader epoch
        follows. The recovery point may be at this segment's end already; then no recovery would look for bytes that a
        power loss brings back."""
        if not self._was_cut:
            return
        self.broken = True
        self._log.sync()
        self.broken = self._was_cut = False

    def paths(self) -> tuple[Path, Path, Path]:
        """The three files, for syncing; always the same object."""
        return self._paths

    def close(self) -> None:
        """Closes all descriptors and does nothing else, even if closing one of them fails."""
        with contextlib.ExitStack() as closing:
            for file in (self._time_file, self._offset_file, self._log):
                closing.callback(file.close)


@contextlib.contextmanager
def _opened(
    disk: Disk, paths: Sequence[Path], *, create: bool = False
) -> Iterator[tuple[DiskFile, DiskFile, DiskFile]]:
    """Opens the three files; they stay open after the block unless the block fails."""
    with contextlib.ExitStack() as failed:
        files: list[DiskFile] = []
        for path in paths:
            files.append(disk.open(path, create=create))
            failed.callback(files[-1].close)
        yield files[0], files[1], files[2]
        failed.pop_all()


def _marks(file: DiskFile) -> tuple[int, ...]:
    """Inode, device, size and times, which distinguish a file from others."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _log_file(file: DiskFile) -> LogFile:
    return LogFile(file.path, FileIdentity.of(file.path.lstat()))


def _row_of(table: BatchTable, first: int, last: int, offset: int) -> int:
    """The row, counted from `first`, whose batch ends with `offset`."""
    return int(table.last_offset[first:last].searchsorted(offset))
