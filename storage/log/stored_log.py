"""A partition's log in a backup in an object store, from its manifest.

The log stays in its state at the end of the mirror: nothing is listed, and nothing is looked at again. To readers its
segments are files that never change.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from threading import Lock
from typing import Final

from storage.errors import CorruptCheckpoint
from storage.files import leader_epochs, names
from storage.files.leader_epochs import LeaderEpochs
from storage.files.manifest import Manifest, ManifestPartition, ManifestSegment, file_key, range_key
from storage.files.names import FileKind, segment_file
from storage.format.range_digest import BatchRange
from storage.log.isolation import Transactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.log.tiered_file import RemoteSpan, TieredFile
from storage.tier.blocks import RemoteBlockCache, open_object
from storage.tier.layouts import StoredObject
from storage.tier.object_places import Place
from storage.tier.remote_segments import BytesFile, Content, JoinedFile, RemoteFile, RemoteSegment, TopicIdPartition
from storage.types import TimestampOffset, TopicPartition

_WHERE: Final = "the backup"
_INDEXES: Final = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup in an object store: its place, and the manifest that was read there."""

    place: Place
    manifest: Manifest
    cache: RemoteBlockCache

    def file(self, path: str) -> RemoteFile | None:
        """A file in the manifest, other than a .log; None if the manifest lacks it."""
        listed = self.manifest.files.get(path)
        if listed is None:
            return None
        if listed.content is not None:
            return BytesFile(self.place.object_name(path), b64decode(listed.content))
        return self._opened(file_key(path, listed), listed.size_bytes, listed.sha256)

    def log_file(self, tp: TopicPartition, base_offset: int, ranges: tuple[BatchRange, ...]) -> RemoteFile:
        """The .log of a segment that consists of these ranges."""
        parts = [
            self._opened(range_key(tp, batch_range), batch_range.size_bytes, batch_range.sha256)
            for batch_range in ranges
        ]
        name = self.place.object_name(f"{tp.dir_name}/{segment_file(base_offset, FileKind.LOG)}")
        return parts[0] if len(parts) == 1 else JoinedFile(name, parts)

    def _opened(self, key: str, size: int, sha256: str) -> RemoteFile:
        return open_object(StoredObject(self.place, key, size, sha256), self.cache)


def ranges_of_segments(listed: ManifestPartition) -> list[tuple[BatchRange, ...]]:
    """The ranges of each segment. ValueError if their sizes do not add up to those of the segments."""
    left, by_segment = iter(listed.ranges), []
    for segment in listed.segments:
        own: list[BatchRange] = []
        missing = segment.size_bytes
        while missing > 0 and (more := next(left, None)) is not None:
            own.append(more)
            missing -= more.size_bytes
        if missing:
            raise ValueError(f"the ranges of segment {segment.base_offset} do not have {segment.size_bytes} bytes")
        by_segment.append(tuple(own))
    if any(islice(left, 1)):
        raise ValueError("ranges are in no segment")
    return by_segment


def _times(base_offset: int, ranges: tuple[BatchRange, ...]) -> tuple[tuple[int, int, int], ...]:
    """`RemoteSpan.times` of a segment; empty if a range has no times."""
    starts = (base_offset, *(batch_range.last_offset + 1 for batch_range in ranges))
    timed = [
        (start, batch_range.min_timestamp, batch_range.max_timestamp)
        for start, batch_range in zip(starts, ranges, strict=False)
    ]
    known = [(start, first, last) for start, first, last in timed if first is not None and last is not None]
    return tuple(known) if len(known) == len(ranges) else ()


class StoredLog:
    """A log in a backup. `path`: its directory among the small files of the backup. Thread-safe."""

    def __init__(self, tp: TopicPartition, path: Path, backup: Backup) -> None:
        # Constant after construction.
        self.tp = tp
        self.path = path
        self._backup: Final = backup
        # Guarded by the lock.
        self._lock = Lock()
        self._snapshot: LogSnapshot | None = None

    def snapshot(self) -> LogSnapshot:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._build()
            return self._snapshot

    def _build(self) -> LogSnapshot:
        listed = self._backup.manifest.partitions.get(self.tp, ManifestPartition(0, 0))
        bounds = (*(segment.base_offset for segment in listed.segments), listed.log_end_offset)
        segments = [
            self._segment(listed_segment, end, ranges)
            for listed_segment, (_, end), ranges in zip(
                listed.segments, pairwise(bounds), ranges_of_segments(listed), strict=True
            )
        ]
        size = segments[-1].size if segments else 0
        return LogSnapshot(
            self.tp, tuple(segments), listed.log_start_offset, listed.log_end_offset, size, size, 0,
            Transactions(self.path), epochs=self._epochs(),
        )  # fmt: skip

    def _segment(self, listed: ManifestSegment, end: int, ranges: tuple[BatchRange, ...]) -> Segment:
        base, size = listed.base_offset, listed.size_bytes
        greatest = TimestampOffset(listed.max_timestamp, listed.max_timestamp_offset)
        name = self._backup.place.object_name(f"{self.tp.dir_name}/{base:020d}")
        load = partial(self._content, base, end, ranges)
        of = TopicIdPartition(self.tp.topic, None, self.tp.partition)
        remote = RemoteSegment(of, None, base, name, load, is_complete=True, missing=(), stored_bytes=size)
        span = RemoteSpan(base, end, 0, size, remote, where=_WHERE, greatest=greatest, times=_times(base, ranges))
        segment = Segment(self.path, base, TieredFile(self.path / segment_file(base, FileKind.LOG), span), size)
        segment.sealed = True
        return segment

    def _content(self, base: int, end: int, ranges: tuple[BatchRange, ...]) -> Content:
        parts = {FileKind.LOG: self._backup.log_file(self.tp, base, ranges)}
        for kind in (*_INDEXES, FileKind.PRODUCER_SNAPSHOT):
            offset = end if kind is FileKind.PRODUCER_SNAPSHOT else base  # a snapshot is named for its end
            file = self._backup.file(f"{self.tp.dir_name}/{segment_file(offset, kind)}")
            if file is not None:
                parts[kind] = file
        return Content(parts, None)

    def _epochs(self) -> LeaderEpochs:
        try:
            return leader_epochs.read(self.path / names.LEADER_EPOCH_CHECKPOINT)
        except (CorruptCheckpoint, OSError):
            return LeaderEpochs()
