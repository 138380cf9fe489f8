"""An object store as the destination of a mirror: the source's segments as objects, and a manifest that names them.

A reader reads the manifest, and then only objects that it names. No object is ever replaced: its key has the SHA-256 of
its bytes. So a reader sees a whole backup at any time, and a mirror that stops after a step leaves:

1. the new ranges, indexes and snapshots are uploaded → the previous backup, and objects that nothing names; the next
                                                        mirror finds the large ones and does not upload them again
2. the manifest is replaced                           → this backup, and objects that only the previous one named
3. the previous manifest's `superseded` objects, and
   with `delete` all that no manifest names, are
   removed                                            → this backup; the next mirror with `delete` removes the rest

A range is 16 MiB of a segment, or the rest at its end. Each run in which the log has grown replaces the last range of
the last segment; the next run removes the object that it had, so that readers of the previous backup can read it until
then.
"""

from __future__ import annotations

import gc
import hashlib
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Condition
from typing import Final, NamedTuple

from storage.backup.manifest_recorder import ManifestRecorder
from storage.backup.mirror import Chosen, Mirrored, check_cut, check_topic_id
from storage.errors import CorruptBatch, InvalidRecord, LogLocked
from storage.files import leader_epochs, metadata_checkpoint, names, offset_index, time_index
from storage.files import manifest as manifests
from storage.files.cluster_metadata import read_bootstrap
from storage.files.manifest import (
    Manifest,
    ManifestFile,
    ManifestPartition,
    ManifestSegment,
    ManifestTopic,
    file_key,
    is_object_key,
    range_key,
)
from storage.files.metadata_checkpoint import cluster_records
from storage.files.names import FileKind, segment_file
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.format.decoder import Decoder
from storage.format.range_digest import BatchRange, RangeDigest
from storage.log.batch_choice import check_one_log
from storage.log.batch_spans import spans_between
from storage.log.greatest_timestamp import greater
from storage.log.log_dir import LogDir
from storage.log.places import STORED_MANIFEST
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import Segment, bytes_of, check_crcs, parts_of
from storage.log.segments import live_offsets
from storage.log.snapshot import LogSnapshot
from storage.log.stored_dir import read_manifest
from storage.log.stored_log import ranges_of_segments
from storage.log.tiering import TIERED_KEYS
from storage.tier.object_places import Place
from storage.types import NO_TIMESTAMP, TimestampOffset, TopicPartition

_RANGE_BYTES: Final = 16 << 20
_AT_ONCE: Final = 8
_AT_ONCE_BYTES: Final = 48 << 20  # in memory
_IN_MANIFEST_BYTES: Final = 4 << 10
_LOOKED_FOR_BYTES: Final = 4 << 20  # of an object that a stopped mirror may have uploaded
_DECODED_BYTES: Final = 32 << 20  # of a batch; the times of larger batches are not determined
_ANY_TIME: Final = (-(2**63), 2**63 - 1)
_INDEXES: Final = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


class _Uploads:
    """Uploads in parallel, within a limit of memory. Used by one thread."""

    def __init__(self, place: Place, present: set[str]) -> None:
        """`present`: the keys of objects that exist."""
        self._place = place
        self._present = present
        self._pool = ThreadPoolExecutor(_AT_ONCE, "mirror-upload")
        self._room = Condition()
        self._bytes = 0  # guarded by the condition's lock
        self._begun: list[Future[None]] = []

    def put(self, key: str, data: bytes) -> None:
        """Begin an upload, unless the object exists. Raises the error of an earlier upload."""
        if key in self._present:
            return
        self._present.add(key)
        with self._room:
            self._room.wait_for(lambda: not self._bytes or self._bytes + len(data) <= _AT_ONCE_BYTES)
            self._bytes += len(data)
        done = [upload for upload in self._begun if upload.done()]
        self._begun = [upload for upload in self._begun if not upload.done()]
        for upload in done:
            upload.result()
        self._begun.append(self._pool.submit(self._put, key, data))

    def wait(self) -> None:
        """Wait for all uploads. Raises the first error."""
        begun, self._begun = self._begun, []
        for upload in begun:
            upload.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _put(self, key: str, data: bytes) -> None:
        try:
            if len(data) < _LOOKED_FOR_BYTES or self._place.size_of(key) != len(data):
                self._place.write(key, data)
                if len(data) >= _LOOKED_FOR_BYTES:
                    gc.collect()  # the clients of stores leave requests, with these bytes, in reference cycles
        finally:
            with self._room:
                self._bytes -= len(data)
                self._room.notify()


class _Listed(NamedTuple):
    """A segment in a manifest. `files`: its indexes, and the producer snapshots at its end, by path."""

    segment: ManifestSegment
    ranges: tuple[BatchRange, ...]
    files: Mapping[str, ManifestFile]

    def keys(self, tp: TopicPartition) -> set[str]:
        """The keys of its objects."""
        return {range_key(tp, batch_range) for batch_range in self.ranges} | _file_keys(self.files)


@dataclass(slots=True)
class _Copied:
    """A partition for the manifest. `replaced`: keys of objects of a segment that has grown since."""

    log_start_offset: int
    segments: list[_Listed] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    epochs: ManifestFile | None = None

    @property
    def ranges(self) -> tuple[BatchRange, ...]:
        return tuple(chain.from_iterable(listed.ranges for listed in self.segments))

    @property
    def log_end_offset(self) -> int:
        """The offset after the last message, or where an empty last segment begins."""
        ends = [listed.ranges[-1].last_offset + 1 for listed in self.segments[-2:] if listed.ranges]
        return max(self.log_start_offset, *ends, *(listed.segment.base_offset for listed in self.segments[-1:]), 0)

    def listing(self) -> ManifestPartition:
        segments = tuple(listed.segment for listed in self.segments)
        return ManifestPartition(self.log_start_offset, self.log_end_offset, self.ranges, segments)

    def files(self, tp: TopicPartition) -> Iterator[tuple[str, ManifestFile]]:
        """The files in the partition's directory, by path."""
        for listed in self.segments:
            yield from listed.files.items()
        if self.epochs is not None:
            yield f"{tp.dir_name}/{names.LEADER_EPOCH_CHECKPOINT}", self.epochs


class StoreCopy:
    """A `Destination`. Used as a context manager; `finish` makes the copied partitions the backup. `delete`: segments
    that the source no longer has leave the backup, and objects that the backup does not need leave the store.

    An upload that fails ends the mirror (TierUnavailable). A partition that fails stays as in the previous backup.
    """

    def __init__(self, place: Place, recorder: ManifestRecorder, *, delete: bool = False) -> None:
        self._place: Final = place
        self._recorder: Final = recorder
        self._delete: Final = delete
        self._previous: Final = recorder.previous or Manifest(None, 0, 0, None)
        self._previous_files: Final[dict[str, dict[str, ManifestFile]]] = defaultdict(dict)
        for path, file in self._previous.files.items():
            directory, _, name = path.rpartition("/")
            self._previous_files[directory][name] = file
        self._uploads: Final = _Uploads(place, _keys(self._previous))
        self._copied: Final[dict[TopicPartition, _Copied]] = {}
        self._files: Final[dict[str, ManifestFile]] = {}  # of the log directory itself
        self._source: LogDir | None = None

    def __enter__(self) -> StoreCopy:
        return self

    def __exit__(self, *_: object) -> None:
        self._uploads.close()

    def begin(
        self, source: LogDir, snapshots: Mapping[TopicPartition, LogSnapshot], renamed: Mapping[str, str]
    ) -> None:
        self._source = source
        cluster = source.cluster_metadata() or read_bootstrap(source.path)
        records = [] if cluster is None else cluster_records(cluster)
        if records:  # without a time, so that its bytes change only with its content
            self._files[names.BOOTSTRAP_CHECKPOINT] = _in_manifest(metadata_checkpoint.bootstrap(records, 0))

    def end_offset(self, tp: TopicPartition) -> int:
        listed = self._previous.partitions.get(tp)
        return 0 if listed is None else listed.log_end_offset

    def copy(self, chosen: Chosen, result: Mirrored, recorder: ManifestRecorder | None) -> Iterator[int]:
        tp, snapshot = chosen.tp, chosen.snapshot
        before = self._previous.partitions.get(tp, ManifestPartition(snapshot.log_start_offset, 0))
        is_same = self._check(chosen, before)
        listed = {
            segment.base_offset: _Listed(segment, ranges, files)
            for segment, ranges, files in zip(
                before.segments, ranges_of_segments(before), self._files_of(tp, before), strict=True
            )
        }
        growing = before.segments[-1].base_offset if before.segments else -1
        copied = _Copied(snapshot.log_start_offset if self._delete else before.log_start_offset)
        if not self._delete:
            # The backup keeps segments that the source has lost at its beginning.
            first = snapshot.segments[0].base_offset if snapshot.segments else before.log_end_offset
            copied.segments += [listed_segment for base, listed_segment in listed.items() if base < first]
        try:
            for segment in snapshot.segments:
                end, mark = snapshot.end_position(segment), _mark(segment)
                known = listed.get(segment.base_offset)
                if known is not None and (known.segment.mark, known.segment.size_bytes) == (mark, end):
                    copied.segments.append(known)
                    continue
                ranges: tuple[BatchRange, ...] = ()
                greatest = TimestampOffset(NO_TIMESTAMP, segment.base_offset)
                if known is not None and segment.base_offset == growing:
                    copied.replaced |= known.keys(tp)
                    if is_same and known.segment.mark.partition(" ")[0] == mark.partition(" ")[0]:
                        whole = (item for item in known.ranges[:-1] if item.size_bytes >= _RANGE_BYTES)
                        ranges = tuple(whole)
                        greatest = TimestampOffset(known.segment.max_timestamp, known.segment.max_timestamp_offset)
                for more, so_far in self._upload(tp, snapshot, segment, ranges, greatest):
                    ranges, greatest = (*ranges, more), so_far
                    yield more.size_bytes
                files = self._sidecars(chosen, segment, end)
                listing = ManifestSegment(segment.base_offset, end, mark, greatest.timestamp, greatest.offset)
                copied.segments.append(_Listed(listing, ranges, files))
        finally:
            if copied.log_end_offset >= before.log_end_offset:
                epochs = snapshot.epochs.truncate_from_end(copied.log_end_offset).entries
                copied.epochs = _in_manifest(leader_epochs.encode(epochs))
                self._copied[tp] = copied
                result.log_end_offset = copied.log_end_offset

    def finish(self, until_ms: int | None, now_ms: int) -> Manifest:
        """Wait for the uploads, write the manifest, and remove superseded objects. LogLocked if another mirror has
        written to the store since; TierUnavailable."""
        self._uploads.wait()
        partitions = {**self._previous.partitions, **{tp: copy.listing() for tp, copy in self._copied.items()}}
        gone = self._gone() if self._delete else set()
        partitions = {tp: listed for tp, listed in partitions.items() if tp not in gone}
        directories = {tp.dir_name for tp in (*self._copied, *gone)}
        files = {
            path: file for path, file in self._previous.files.items() if path.rpartition("/")[0] not in directories
        }
        files |= self._files
        for tp, copy in self._copied.items():
            files |= dict(copy.files(tp))
        written = self._recorder.listing(until_ms, now_ms, partitions, files)
        copied = {tp.topic for tp in self._copied}
        failed = {name: topic for name, topic in self._previous.topics.items() if name not in copied}
        left = {tp.topic for tp in partitions}
        topics = {name: _without_tiers(topic) for name, topic in {**written.topics, **failed}.items() if name in left}
        written = replace(written, topics=topics)
        keys = _keys(written)
        replaced = {key for copy in self._copied.values() for key in copy.replaced}
        written = replace(written, superseded=tuple(sorted(replaced - keys)))
        data, name = manifests.encode(written), self._place.object_name(STORED_MANIFEST)
        if len(data) > MOST_ENTRIES_BYTES:
            expected, advice = f"at most {MOST_ENTRIES_BYTES} bytes", "Mirror some of the topics into another place"
            raise InvalidRecord("would be too large", path=name, expected=expected, found=len(data), advice=advice)
        self._check_alone(self._recorder.previous)
        self._place.write(STORED_MANIFEST, data)
        stale = set(self._previous.superseded) - keys
        if self._delete:
            ours = {key for key in self._place.keys() if is_object_key(key)}  # noqa: SIM118 - it is not a mapping
            stale = ours - keys - set(written.superseded)
        if stale:
            self._check_alone(written)
            self._place.remove(sorted(stale))
        return written

    def _check_alone(self, last: Manifest | None) -> None:
        """LogLocked if the store has another manifest than the last one that this mirror has read or written."""
        if read_manifest(self._place) != last:
            what, advice = "another mirror has written a backup there meanwhile", "Run one mirror at a time"
            raise LogLocked(what, path=self._place.object_name(STORED_MANIFEST), advice=advice)

    def _gone(self) -> set[TopicPartition]:
        """The partitions of the backup that the source no longer has."""
        assert self._source is not None
        stored = set(self._source.all_partitions())
        sources = {name: topic.source_topic for name, topic in self._previous.topics.items()}
        return {tp for tp in self._previous.partitions if TopicPartition(sources[tp.topic], tp.partition) not in stored}

    def _check(self, chosen: Chosen, before: ManifestPartition) -> bool:
        """Whether the source still has the last range of the backup unchanged. InvalidRecord if the backup belongs to
        another log."""
        assert self._source is not None
        check_one_log(chosen.snapshot, compacted=chosen.compacted)
        if not before.ranges:
            return False
        path = self._place.object_name(chosen.tp.dir_name)
        topic_id = self._source.topic_info(chosen.source_tp.topic).topic_id
        check_topic_id(self._recorder.known_topic_id(chosen.tp.topic), topic_id, path)
        check_cut(chosen, before.log_end_offset, path)
        snapshot, last = chosen.snapshot, before.ranges[-1]
        if snapshot.log_end_offset < before.log_end_offset:
            raise InvalidRecord(
                "the source has lost messages that the backup has at its end",
                path=path,
                expected=f"a log end offset of at least {before.log_end_offset}",
                found=snapshot.log_end_offset,
                advice="The backup stays as it is. Mirror into another place",
            )
        active, listed = snapshot.active, before.segments[-1]
        if active is not None and (listed.base_offset, listed.mark) == (active.base_offset, _mark(active)):
            return True
        digest = RangeDigest()
        for span in spans_between(snapshot, last.first_offset, last.last_offset):
            digest.add(parts_of(span.data), span.table)
        if digest.batches and digest.result() == last:
            return True
        if not chosen.compacted and snapshot.segments and snapshot.segments[0].base_offset <= last.first_offset:
            raise InvalidRecord(
                "the backup holds other messages than the source",
                path=path,
                offset=last.first_offset,
                expected=f"the source's batches from offset {last.first_offset} to {last.last_offset}",
                found="other batches",
                advice="Mirror into another place",
            )
        return False

    def _upload(
        self,
        tp: TopicPartition,
        snapshot: LogSnapshot,
        segment: Segment,
        before: Sequence[BatchRange],
        greatest: TimestampOffset,
    ) -> Iterator[tuple[BatchRange, TimestampOffset]]:
        """Upload the batches of a segment after those of `before`; yield the ranges, and the greatest timestamp so far,
        which was `greatest`. CorruptBatch and the like."""
        digest, data, position = RangeDigest(), bytearray(), sum(batch_range.size_bytes for batch_range in before)
        times: list[int] = []
        decoder, reached = Decoder(_DECODED_BYTES, verify_crc=False), position
        with closing(scan_sound_batches(snapshot, segment, position)) as windows:
            for window in windows:
                table = window.table
                if not table.rows:
                    continue
                _check_continues(segment, reached, int(table.position[0]))
                reached = int(table.end[-1])
                part = bytes_of(segment.log, window.buffer, table, 0, table.rows, window.origin)
                check_crcs(part, table, int(table.position[0]), segment.log.path)
                for piece in parts_of(part):
                    data += piece
                digest.add((memoryview(data)[digest.size_bytes :],), table)
                greatest = greater(table, greatest)
                times += _times_in(window, decoder)
                if digest.size_bytes >= _RANGE_BYTES:
                    yield self._put_range(tp, digest, data, times), greatest
                    digest, data, times = RangeDigest(), bytearray(), []
        _check_continues(segment, reached, snapshot.end_position(segment))
        if digest.batches:
            yield self._put_range(tp, digest, data, times), greatest

    def _put_range(self, tp: TopicPartition, digest: RangeDigest, data: bytearray, times: list[int]) -> BatchRange:
        first, last = min(times, default=None), max(times, default=None)
        listed = replace(digest.result(), min_timestamp=first, max_timestamp=last)
        self._uploads.put(range_key(tp, listed), bytes(data))
        return listed

    def _sidecars(self, chosen: Chosen, segment: Segment, end: int) -> dict[str, ManifestFile]:
        """Upload a segment's indexes, and the producer snapshots at its end; return them by path."""
        by_name: dict[str, bytes | None] = {}
        snapshot, base = chosen.snapshot, segment.base_offset
        is_whole = segment is not snapshot.active
        for kind in _INDEXES:
            name = segment_file(base, kind)
            if is_whole and not segment.is_remote:
                by_name[name] = read_whole(segment.path_of(kind), MOST_ENTRIES_BYTES)
            elif kind is FileKind.OFFSET_INDEX:
                index = segment.offset_index(end)
                inside = index.positions < end
                by_name[name] = offset_index.encode(index.offsets[inside], index.positions[inside], base)
            elif kind is FileKind.TIME_INDEX:
                times = segment.time_index(end)
                inside = times.offsets < snapshot.log_end_offset
                by_name[name] = time_index.encode(times.timestamps[inside], times.offsets[inside], base)
        if not segment.is_remote:
            after = snapshot.log_end_offset
            if is_whole:
                after = snapshot.segments[snapshot.segments.index(segment) + 1].base_offset
            for offset in live_offsets(segment.directory, FileKind.PRODUCER_SNAPSHOT):
                if base < offset <= after:
                    name = segment_file(offset, FileKind.PRODUCER_SNAPSHOT)
                    by_name[name] = read_whole(segment.directory / name, MOST_ENTRIES_BYTES)
        listed: dict[str, ManifestFile] = {}
        for name, data in by_name.items():
            if data:
                path = f"{chosen.tp.dir_name}/{name}"
                listed[path] = _in_manifest(data)
                if len(data) > _IN_MANIFEST_BYTES:
                    listed[path] = replace(listed[path], content=None)
                    self._uploads.put(file_key(path, listed[path]), data)
        return listed

    def _files_of(self, tp: TopicPartition, before: ManifestPartition) -> list[dict[str, ManifestFile]]:
        """The files of each segment in the previous manifest."""
        bases = [segment.base_offset for segment in before.segments]
        by_segment: list[dict[str, ManifestFile]] = [{} for _ in bases]
        for name, file in self._previous_files.get(tp.dir_name, {}).items():
            parsed = names.parse_segment_file(name)
            if parsed is not None and bases:
                # A snapshot is named for the end of its offsets.
                find = bisect_left if parsed.kind is FileKind.PRODUCER_SNAPSHOT else bisect_right
                by_segment[max(find(bases, parsed.offset) - 1, 0)][f"{tp.dir_name}/{name}"] = file
        return by_segment


def _check_continues(segment: Segment, reached: int, position: int) -> None:
    """CorruptBatch if a scan has passed over a batch that is there twice: ranges have a segment's own bytes."""
    if reached != position:
        advice = "`kafkafs mirror` into a directory, and `kafkafs salvage`, copy such a batch once"
        raise CorruptBatch("batch is in the segment twice", path=segment.log.path, position=reached, advice=advice)


def _mark(segment: Segment) -> str:
    """Identifies a state of a segment's file: inode, size, times."""
    status = segment.log.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _times_in(window: Window, decoder: Decoder) -> list[int]:
    """Timestamps that bound those of all messages."""
    times, row = [], 0
    while row < window.table.rows:
        block = decoder.decode(window.buffer, window.table, row, origin=window.origin)
        if block.damage is not None:
            return [*_ANY_TIME]
        times += [int(block.timestamp.min()), int(block.timestamp.max())] if len(block) else []
        row = block.next_row
    return times


def _without_tiers(topic: ManifestTopic) -> ManifestTopic:
    """The topic without the configuration of remote segments: the backup has their messages as its own."""
    configs = {key: value for key, value in topic.configs.items() if not key.startswith(TIERED_KEYS)}
    return replace(topic, configs=configs)


def _in_manifest(data: bytes) -> ManifestFile:
    return ManifestFile(len(data), hashlib.sha256(data).hexdigest(), b64encode(data).decode())


def _file_keys(files: Mapping[str, ManifestFile]) -> set[str]:
    return {file_key(path, file) for path, file in files.items() if file.content is None}


def _keys(manifest: Manifest) -> set[str]:
    """The keys of all objects that a manifest names."""
    ranges = {range_key(tp, batch_range) for tp, listed in manifest.partitions.items() for batch_range in listed.ranges}
    return ranges | _file_keys(manifest.files)
