"""Recording a mirror's manifest: digests of all batches that it copies, the topics, the groups' offsets.

A manifest never lists anything that is not on the disk, and is never incomplete:

1. batches are appended, digested and flushed    → a stopped mirror leaves the previous manifest, if there is one
2. the copy is closed, which syncs it            → as before; the copy is marked as cleanly shut down
3. the copy's other files are digested, and the
   manifest is replaced as a whole (`manifest`)  → it lists everything that was copied

So the manifest may be behind the copy, if a mirror was stopped before step 3, or did not write a manifest. The next
mirror reads unlisted batches back from the copy, checks them, and compares them with the source as far as that still
has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage.backup.source_cluster import check_cluster
from storage.coordinators.groups import ConsumerGroup, GroupOffsets, GroupReplay
from storage.errors import InvalidRecord, StorageError
from storage.files import names
from storage.files.listing import paths_in
from storage.files.manifest import (
    Manifest,
    ManifestFile,
    ManifestOffset,
    ManifestPartition,
    ManifestTopic,
    digest_file,
)
from storage.files.opening import exists
from storage.format.batches import BatchTable
from storage.format.range_digest import RANGE_BYTES, BatchRange, RangeDigest
from storage.log.batch_spans import spans_between
from storage.log.log_dir import LogDir
from storage.log.same_batches import same_batches
from storage.log.segment import LargeBatch, check_crcs, parts_of
from storage.log.snapshot import LogSnapshot
from storage.log.time_cut import cut_at
from storage.types import OffsetRange, TopicPartition

_OF_THE_DIRECTORY: Final = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
    names.CLEAN_SHUTDOWN,
    names.BOOTSTRAP_CHECKPOINT,
)


@dataclass(slots=True)
class PartitionRecorder:
    """Digests the batches of one partition in order. A range ends with a segment of the source, or at RANGE_BYTES."""

    log_start_offset: int
    ranges: list[BatchRange] = field(default_factory=list)
    _digest: RangeDigest = field(default_factory=RangeDigest)
    _segment: int = -1

    def add(self, segment: int, data: memoryview | LargeBatch, table: BatchTable) -> None:
        """Add batches of the segment with this base offset; `data` has their bytes, back to back."""
        if segment != self._segment or self._digest.size_bytes >= RANGE_BYTES:
            self.finish()
        self._segment = segment
        self._digest.add(parts_of(data), table)

    def finish(self) -> None:
        """End the range; later batches begin another."""
        if self._digest.batches:
            self.ranges.append(self._digest.result())
            self._digest = RangeDigest()


@dataclass(slots=True)
class ManifestRecorder:
    """Collects the content of a manifest while a mirror runs.

    `previous`: the manifest to extend, None for a new one. `found`: by partition, the first and last offset of messages
    that the copy had before this mirror and the manifest did not list.
    """

    previous: Manifest | None = None
    found: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    _partitions: dict[TopicPartition, PartitionRecorder] = field(default_factory=dict)
    _topics: dict[str, ManifestTopic] = field(default_factory=dict)
    _offsets_of: GroupOffsets | None = None  # kept with its state: a following mirror reads it at every pass
    _groups: Mapping[str, ConsumerGroup] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _cluster_id: str | None = None

    def see_cluster(self, source: LogDir) -> None:
        """Record the source's cluster. InvalidRecord if the previous manifest lists logs of another one; OSError."""
        known = None if self.previous is None else self.previous.cluster_id
        self._cluster_id = check_cluster(source, known) or known

    def see_topics(
        self, source: LogDir, snapshots: Mapping[TopicPartition, LogSnapshot], renamed: Mapping[str, str]
    ) -> None:
        """Record the topics of these logs in their present state in the source. OSError."""
        for topic in {tp.topic for tp in snapshots}:
            info = source.topic_info(topic)
            name = self._names[topic] = renamed.get(topic, topic)
            self._topics[name] = ManifestTopic(topic, info.topic_id, info.partition_count, dict(info.overrides))

    def known_topic_id(self, topic: str) -> str | None:
        """The id that the previous manifest has for a topic of the copy; None if it has none."""
        listed = None if self.previous is None else self.previous.topics.get(topic)
        return None if listed is None else listed.topic_id

    def see_groups(self, source: LogDir, until_ms: int | None) -> None:
        """Record the offsets that groups have committed in the source, now or at a moment. Unreadable ones are left
        out; `kafkafs groups` reports them."""
        if self._offsets_of is None:
            self._offsets_of = GroupOffsets(source)
        self._groups = self._offsets_of.groups() if until_ms is None else _groups_at(source, self._offsets_of, until_ms)

    def partition(
        self, tp: TopicPartition, source: LogSnapshot, copy: LogSnapshot, *, compacted: bool
    ) -> PartitionRecorder:
        """Return the recorder of a partition of the copy. The first call digests batches that the copy has and the
        manifest does not list. `compacted`: see same_batches.

        InvalidRecord if the copy ends before its manifest does, or differs from the source; CorruptBatch and the like.
        """
        known = self._partitions.get(tp)
        if known is not None:
            return known
        before = None if self.previous is None else self.previous.partitions.get(tp)
        recorder = PartitionRecorder(copy.log_start_offset)
        start = copy.segments[0].base_offset if copy.segments else 0
        if before is not None and before.ranges:
            recorder.ranges += before.ranges
            start = before.log_end_offset
            if copy.log_end_offset < start:
                raise InvalidRecord(
                    "the copy has lost messages that its manifest lists",
                    path=copy.segments[0].directory if copy.segments else None,
                    expected=f"a log end offset of at least {start}",
                    found=copy.log_end_offset,
                    advice="`kafkafs verify --manifest` shows more. Mirror into another directory",
                )
        unlisted = _digested(copy, start)
        for found in unlisted:
            _check_same(found, source, copy, compacted=compacted)
        recorder.ranges += unlisted
        if unlisted:
            self.found[tp] = OffsetRange(unlisted[0].first_offset, unlisted[-1].last_offset + 1)
        self._partitions[tp] = recorder
        return recorder

    def manifest(self, until_ms: int | None, now_ms: int, copy: Path) -> Manifest:
        """Return the manifest after this mirror, once the directory `copy` is closed: the previous one, extended.
        Partitions of its topics that are in another log directory of the broker are also in the copy, without messages.
        OSError."""
        partitions = dict({} if self.previous is None else self.previous.partitions)
        copied = LogDir.open_read_only(copy)
        for tp in copied.all_partitions():
            if tp.topic in self._topics and tp not in self._partitions and tp not in partitions:
                empty = copied.log(tp).snapshot()
                if empty.log_end_offset == empty.log_start_offset:
                    self._partitions[tp] = PartitionRecorder(empty.log_start_offset)
        for tp, recorder in self._partitions.items():
            recorder.finish()
            end = recorder.ranges[-1].last_offset + 1 if recorder.ranges else recorder.log_start_offset
            partitions[tp] = ManifestPartition(recorder.log_start_offset, end, tuple(recorder.ranges))
        files = {} if exists(copy / names.META_PROPERTIES) else dict(self._files(copy))
        return self.listing(until_ms, now_ms, partitions, files)

    def listing(
        self,
        until_ms: int | None,
        now_ms: int,
        partitions: Mapping[TopicPartition, ManifestPartition],
        files: Mapping[str, ManifestFile],
    ) -> Manifest:
        """Return the manifest after this mirror, with these partitions and files."""
        return Manifest(
            self._cluster_id,
            now_ms if self.previous is None else self.previous.created_ms,
            now_ms,
            until_ms,
            {**({} if self.previous is None else self.previous.topics), **self._topics},
            partitions,
            tuple(self._offsets()),
            files,
        )

    def _files(self, copy: Path) -> Iterator[tuple[str, ManifestFile]]:
        """The files of the copy, except its logs. Partitions that this mirror did not reach keep the previous
        manifest's files."""
        before = {} if self.previous is None else self.previous.files
        came_to = {tp.dir_name for tp in self._partitions}
        for name, file in before.items():
            directory = name.rpartition("/")[0]
            if directory and directory not in came_to:
                yield name, file
        listed = {directory: [path.name for path in paths_in(copy / directory)] for directory in came_to}
        for name in (*_OF_THE_DIRECTORY, *(f"{place}/{name}" for place in sorted(listed) for name in listed[place])):
            digested = None if name.endswith(".log") else digest_file(copy / name)
            if digested is not None:
                yield name, digested

    def _offsets(self) -> Iterator[ManifestOffset]:
        """The committed offsets of the copied topics. Other topics keep those of the previous manifest."""
        for committed in () if self.previous is None else self.previous.groups:
            if committed.topic not in self._topics:
                yield committed
        for name, group in sorted(self._groups.items()):
            for topic, offsets in sorted(group.offsets.items()):
                if topic in self._names:
                    for partition, position in sorted(offsets.items()):
                        place = self._names[topic], partition
                        yield ManifestOffset(name, *place, position.offset, position.leader_epoch, position.metadata)


def _groups_at(source: LogDir, offsets: GroupOffsets, until_ms: int) -> Mapping[str, ConsumerGroup]:
    """The groups in their state at a moment."""
    groups: dict[str, ConsumerGroup] = {}
    for partition in offsets.partitions():
        replay = GroupReplay(partition)
        try:
            snapshot = source.log(TopicPartition(names.CONSUMER_OFFSETS_TOPIC, partition)).snapshot()
            for _ in replay.read(cut_at(snapshot, until_ms).snapshot):
                pass
        except (StorageError, OSError):
            continue
        groups |= replay.groups({})
    return groups


def _digested(snapshot: LogSnapshot, start_offset: int) -> list[BatchRange]:
    """Ranges of all batches from an offset on. CorruptBatch and the like for damage."""
    recorder = PartitionRecorder(0)
    for span in spans_between(snapshot, start_offset):
        table = span.table.copy()
        check_crcs(span.data, table, span.origin, span.segment.log.path)
        recorder.add(span.segment.base_offset, span.data, table)
    recorder.finish()
    return recorder.ranges


def _check_same(batch_range: BatchRange, source: LogSnapshot, copy: LogSnapshot, *, compacted: bool) -> None:
    """Raise InvalidRecord unless the source has the same batches as the copy in this range. A range that begins before
    the source does is not compared."""
    if not source.segments or batch_range.first_offset < source.segments[0].base_offset:
        return
    ours, theirs = (
        BatchTable.concat(
            span.table.copy() for span in spans_between(log, batch_range.first_offset, batch_range.last_offset)
        )
        for log in (copy, source)
    )
    if not same_batches(ours, theirs, compacted=compacted):
        raise InvalidRecord(
            "the copy holds other messages than the source",
            path=copy.segments[0].directory,
            offset=batch_range.first_offset,
            expected=f"the source's batches from offset {batch_range.first_offset} to {batch_range.last_offset}",
            found="other batches",
            advice="Mirror into another directory, or remove the topic there first",
        )
