"""Topics, partitions and configurations of a KRaft broker's directory, as read from `__cluster_metadata-0`.

The latest snapshot (`<end offset>-<epoch>.checkpoint`) is read first, then the log from there on. The directory is only
read. A running broker appends to the log all the time, so each refresh reads only what is new. Records above the high
watermark, which a controller may still take back, are included. See storage/DESIGN.md, "Cluster metadata". Source:
Kafka's MetadataLoader.

Nothing here locks: a reader belongs to one thread at a time; what it returns is immutable.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import (
    CorruptBatch,
    CorruptCheckpoint,
    SegmentGone,
    StorageError,
    TooManyKeys,
)
from storage.files import names
from storage.files.listing import scan_quietly
from storage.files.log_file import FileIdentity, LogFile
from storage.files.metadata_records import decode_block
from storage.files.metadata_replay import ClusterMetadata, MetadataReplay, PartitionMetadata, TopicMetadata
from storage.files.names import FileKind, FileState
from storage.format.batches import BATCH_HEADER_SIZE, LENGTH, LOG_OVERHEAD, MOST_BATCH_BYTES, BatchTable, ScanStop, scan
from storage.format.block import RecordBlock
from storage.format.control_records import ControlType, control_type
from storage.format.decoder import Decoder
from storage.types import MAX_OFFSET

__all__ = ["ClusterMetadata", "ClusterMetadataReader", "PartitionMetadata", "TopicMetadata", "read_bootstrap"]

_WINDOW_BYTES = 1024 * 1024
_WINDOW_ROWS = 4096
_SNAPSHOT_HEADER = struct.Struct(">hq")  # version, time of the last record


@dataclass(frozen=True, slots=True)
class _Segment:
    base_offset: int
    file: LogFile
    size_bytes: int


class ClusterMetadataReader:
    """Follows the `__cluster_metadata-0` of one log directory."""

    def __init__(self, log_dir: Path, *, verify_crc: bool = True) -> None:
        self._directory = log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0"
        self._decoder = Decoder(verify_crc=verify_crc)
        self._table = BatchTable.empty(_WINDOW_ROWS)
        self._forget()
        self._shown: ClusterMetadata | None = None
        self._limit = MAX_OFFSET

    def _forget(self) -> None:
        self._replay = MetadataReplay()
        self._end_offset = 0
        # The segment read last, and the position where the next read in it begins.
        self._identity: FileIdentity | None = None
        self._base_offset = 0
        self._position = 0
        # The position and header of the last batch read. The inode number alone does not prove that the batch is still
        # there: a quorum's log may be truncated and appended to again, and a directory may be formatted again.
        self._last_batch: tuple[int, bytes] | None = None
        # Why the latest snapshot was not read. The log from its beginning has the same content, if it still exists.
        self._unread: StorageError | None = None
        # The error of an intact batch with invalid records: reading it again would not help.
        self._stuck: StorageError | None = None

    def refresh(self) -> ClusterMetadata | None:
        """The current metadata; None when the directory has none (a broker may keep it in another directory).

        Damage is reported in `problem`. OSError when the directory or the log cannot be read.
        """
        try:
            segments, snapshots = self._list()
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
            self._shown = None
            return None
        problem = self._stuck
        try:
            if not self._follows(segments):
                self._forget()
                problem, self._unread = None, self._start(segments, snapshots)
            is_whole = self._unread is None or (bool(segments) and segments[0].base_offset <= self._end_offset)
            if problem is None and is_whole:
                problem = self._read_log(segments)
            problem = problem or self._unread
        except SegmentGone as gone:
            # A running broker removes segments and snapshots; the next refresh starts over with the files there are
            # then.
            self._forget()
            return ClusterMetadata(problem=gone) if self._shown is None else self._shown
        before = self._shown
        if before is None or before.end_offset != self._end_offset or str(before.problem) != str(problem):
            self._shown = self._replay.show(self._end_offset, problem)
        return self._shown

    def state_before(self, end_offset: int) -> tuple[MetadataReplay, int, StorageError | None]:
        """The state that the records below an offset describe, from the newest snapshot that ends there or earlier; the
        state's end offset, and why that is below `end_offset`. This reader does not refresh any more.
        FileNotFoundError, OSError."""
        segments, snapshots = self._list()
        self._forget()
        # All records of a snapshot count: their offsets are those in its file, not the log's.
        problem = self._start(segments, [snapshot for snapshot in snapshots if snapshot[0].end_offset <= end_offset])
        self._limit = end_offset
        problem = self._read_log(segments) or problem
        return self._replay, min(self._end_offset, end_offset), problem

    def oldest_snapshot(self) -> tuple[int, int] | None:
        """The end offset of the oldest snapshot, and the time of its last record, -1 if it cannot be read. None: there
        is no snapshot. FileNotFoundError, OSError."""
        snapshots = self._list()[1]
        if not snapshots:
            return None
        name, file = snapshots[-1]
        self._table.clear()
        with suppress(StorageError, OSError, struct.error):
            data = file.read(0, _WINDOW_BYTES)
            scan(data, 0, self._table)
            block = self._decoder.decode(data, self._table, 0, min(self._table.rows, 1), origin=0, control=True)
            if len(block) and control_type(block.key(0)) is ControlType.SNAPSHOT_HEADER:
                return name.end_offset, int(_SNAPSHOT_HEADER.unpack_from(block.value(0) or b"")[1])
        return name.end_offset, -1

    def problem_of_newest_snapshot(self) -> StorageError | None:
        """Why the newest snapshot cannot be read as a whole, whatever older ones say; None also where there is none.
        This reader does not refresh any more. FileNotFoundError, OSError."""
        _, snapshots = self._list()
        self._forget()
        return self._read_snapshot(snapshots[0][1]) if snapshots else None

    def bootstrap(self, path: Path) -> ClusterMetadata:
        """The metadata that the records of a checkpoint file outside of `__cluster_metadata-0` describe. OSError."""
        self._forget()
        problem = self._read_snapshot(LogFile(path))
        return self._replay.show(0, problem)

    def _list(self) -> tuple[list[_Segment], list[tuple[names.MetadataSnapshotName, LogFile]]]:
        segments = []
        snapshots = []
        with scan_quietly(self._directory) as entries:
            for entry in entries:
                name = names.parse_segment_file(entry.name)
                snapshot = names.parse_metadata_snapshot(entry.name)
                try:
                    if name is not None and name.kind is FileKind.LOG and name.state is FileState.LIVE:
                        status = entry.stat(follow_symlinks=False)
                        file = LogFile(self._directory / entry.name, FileIdentity.of(status))
                        segments.append(_Segment(name.offset, file, status.st_size))
                    elif snapshot is not None:
                        snapshots.append((snapshot, LogFile(self._directory / entry.name)))
                except FileNotFoundError:
                    continue
        segments.sort(key=lambda segment: segment.base_offset)
        snapshots.sort(key=lambda pair: pair[0], reverse=True)
        return segments, snapshots

    def _follows(self, segments: list[_Segment]) -> bool:
        """Whether the segment read last, and the batches read from it, are still there."""
        for segment in segments:
            if segment.file.identity == self._identity and segment.size_bytes >= self._position:
                if self._last_batch is None:
                    return segment.base_offset == self._base_offset
                position, header = self._last_batch
                return bytes(segment.file.read(position, len(header))) == header
        return False

    def _start(
        self, segments: list[_Segment], snapshots: list[tuple[names.MetadataSnapshotName, LogFile]]
    ) -> StorageError | None:
        """Starts from the latest snapshot that can be read, or from an empty state when there is none. A log that has
        not begun will begin with what is in `bootstrap.checkpoint`."""
        problem = self._start_at_snapshot(snapshots)
        if problem is None and not self._end_offset and not any(segment.size_bytes for segment in segments):
            with suppress(FileNotFoundError):
                problem = self._read_snapshot(LogFile(self._directory.parent / names.BOOTSTRAP_CHECKPOINT))
        return problem

    def _start_at_snapshot(self, snapshots: list[tuple[names.MetadataSnapshotName, LogFile]]) -> StorageError | None:
        problem: StorageError | None = None
        for name, file in snapshots:
            self._replay = MetadataReplay()
            snapshot_problem = self._read_snapshot(file)
            if snapshot_problem is None:
                self._end_offset = name.end_offset
                return None
            problem, self._stuck = problem or snapshot_problem, None
            if isinstance(snapshot_problem, TooManyKeys):
                break
        self._replay = MetadataReplay()
        return problem

    def _read_snapshot(self, file: LogFile) -> StorageError | None:
        position = 0
        complete = False
        try:
            for end, problem in self._read_file(file, 0, 0):
                if problem is not None:
                    return problem
                position = end
                # The last batch holds the footer, a control record.
                complete = bool(self._table.is_control[self._table.rows - 1])
            if complete and position == file.stat().st_size:
                return None
        except OSError as error:
            # Brokers make snapshots readable for their own user alone. Or it is a directory, say.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.ELOOP):
                raise
            return CorruptCheckpoint("metadata snapshot cannot be read", path=file.path, found=error)
        return CorruptCheckpoint("metadata snapshot is cut off", path=file.path, position=position)

    def _read_log(self, segments: list[_Segment]) -> StorageError | None:
        """Continues where the last call stopped."""
        for index, segment in enumerate(segments):
            following = segments[index + 1].base_offset if index + 1 < len(segments) else MAX_OFFSET
            if segment.file.identity == self._identity:
                pass
            elif following <= self._end_offset or segment.base_offset < self._base_offset:
                continue
            elif segment.base_offset > self._end_offset:
                return CorruptCheckpoint(
                    "metadata log has a gap",
                    path=segment.file.path,
                    expected=f"offset {self._end_offset}",
                    found=f"a segment from {segment.base_offset} on",
                )
            else:
                self._identity, self._base_offset, self._position = segment.file.identity, segment.base_offset, 0
                self._last_batch = None
            for end, problem in self._read_file(segment.file, self._position, self._end_offset):
                self._position = end
                if self._table.rows:
                    last = int(self._table.position[self._table.rows - 1])
                    self._last_batch = last, bytes(segment.file.read(last, BATCH_HEADER_SIZE))
                    self._end_offset = max(self._end_offset, int(self._table.last_offset[self._table.rows - 1]) + 1)
                if self._stuck is not None and self._stuck.offset is not None:
                    self._end_offset = self._stuck.offset
                if problem is not None:
                    return problem
        return None

    def _read_file(self, file: LogFile, position: int, first_offset: int) -> Iterator[tuple[int, StorageError | None]]:
        """Replays the records from a byte position on, window by window, without those below `first_offset`.

        Yields the next position and the problem found there, if any; the table then holds the batches that were
        replayed. A batch that is cut off at the end is still being written; zeros are preallocated space.
        """
        window = _WINDOW_BYTES
        while True:
            data = file.read(position, window)
            self._table.clear()
            stop = scan(data, position, self._table).stop
            if not self._table.rows:
                if stop is ScanStop.END and len(data) == window:  # a batch larger than the window
                    needed = LOG_OVERHEAD + int.from_bytes(data[LENGTH], "big")
                    if needed <= MOST_BATCH_BYTES:
                        window = max(needed, 2 * window)
                        continue
                    expected = f"at most {MOST_BATCH_BYTES} bytes"
                    where: dict[str, Any] = {"path": file.path, "position": position}
                    yield position, CorruptBatch("metadata batch", **where, expected=expected, found=needed)
                    return
                if stop is not ScanStop.END and any(data):
                    yield position, CorruptBatch("metadata holds what is no batch", path=file.path, position=position)
                return
            window = _WINDOW_BYTES
            block = self._decoder.decode(data, self._table, origin=position)
            self._table.rows = block.next_row
            if block.next_row:
                position = int(self._table.end[block.next_row - 1])
            problem = self._take(block, first_offset, file)
            if problem is None and block.damage is not None:
                problem = block.damage.error
                problem.path = file.path
            yield position, problem
            if problem is not None:
                return

    def _take(self, block: RecordBlock, first_offset: int, file: LogFile) -> StorageError | None:
        offsets = block.offset
        row = 0
        try:
            for record in decode_block(block, self._replay.held):
                if first_offset <= offsets[row] < self._limit and record is not None:
                    if isinstance(record, StorageError):
                        raise record
                    self._replay.apply(record)
                row += 1
        except StorageError as error:
            error.path, error.offset = file.path, int(offsets[row])
            self._stuck = error
            return error
        return None


def read_bootstrap(log_dir: Path, *, verify_crc: bool = True) -> ClusterMetadata | None:
    """The metadata in `bootstrap.checkpoint`: what a cluster began with, at least its features; in a copy, everything
    except topics. `verify_crc`: a broker does not. None without the file; OSError when it cannot be read."""
    try:
        reader = ClusterMetadataReader(log_dir, verify_crc=verify_crc)
        return reader.bootstrap(log_dir / names.BOOTSTRAP_CHECKPOINT)
    except FileNotFoundError:
        return None
