"""What a mirror writes to its manifest: digests of all batches that it copies, the topics, the groups' offsets.

A manifest never lists what is not on the disk, and is never partly there:

1. batches are appended and digested, and flushed → a stopped mirror leaves the manifest that was there before, if any
2. the copy is closed, which syncs it             → as before; the copy is marked as cleanly shut down
3. the copy's other files are digested, and the
   manifest is replaced as a whole (`manifest`)   → it lists all that was copied

So it may be behind the copy, if a mirror was stopped before step 3, or had no manifest to write. The next one reads
what is not listed back from the copy, checks it, and compares it with the source as far as that still has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage.coordinators.groups import ConsumerGroup, GroupOffsets, GroupReplay
from storage.errors import (
    CorruptCheckpoint,
    InvalidRecord,
    StorageError,
)
from storage.files import meta_properties, names
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
from storage.format.decoder import verify_crcs
from storage.format.range_digest import RANGE_BYTES, BatchRange, RangeDigest
from storage.log.batch_spans import spans_between
from storage.log.log_dir import LogDir
from storage.log.same_batches import same_batches
from storage.log.segment import LargeBatch, parts_of
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
        """Adds batches of the segment with this base offset; `data` has their bytes, back to back."""
        if segment != self._segment or self._digest.size_bytes >= RANGE_BYTES:
            self.finish()
        self._segment = segment
        self._digest.add(parts_of(data), table)

    def finish(self) -> None:
        """Ends the range: what is added later is another one."""
        if self._digest.batches:
            self.ranges.append(self._digest.result())
            self._digest = RangeDigest()


@dataclass(slots=True)
class ManifestRecorder:
    """Collects the content of a manifest while a mirror runs.

    `previous`: the manifest that is added to, None for a new one. `found`: by partition, what the copy had before this
    mirror and the manifest did not list: from the first offset to the last.
    """

    previous: Manifest | None = None
    found: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    _partitions: dict[TopicPartition, PartitionRecorder] = field(default_factory=dict)
    _topics: dict[str, ManifestTopic] = field(default_factory=dict)
    _offsets_of: GroupOffsets | None = None  # keeps what it has read: a mirror that follows looks all the time
    _groups: Mapping[str, ConsumerGroup] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _cluster_id: str | None = None

    def see_topics(
        self, source: LogDir, snapshots: Mapping[TopicPartition, LogSnapshot], renamed: Mapping[str, str]
    ) -> None:
        """Notes the topics of these logs as they are in the source now. OSError."""
        with suppress(CorruptCheckpoint):  # the messages are worth a backup all the same
            meta = meta_properties.read(source.path / names.META_PROPERTIES)
            self._cluster_id = None if meta is None else meta.cluster_id
        for topic in {tp.topic for tp in snapshots}:
            info = source.topic_info(topic)
            name = self._names[topic] = renamed.get(topic, topic)
            self._topics[name] = ManifestTopic(topic, info.topic_id, info.partition_count, dict(info.overrides))

    def known_topic_id(self, topic: str) -> str | None:
        """The id that the previous manifest has of a topic of the copy; None where it has none."""
        listed = None if self.previous is None else self.previous.topics.get(topic)
        return None if listed is None else listed.topic_id

    def see_groups(self, source: LogDir, until_ms: int | None) -> None:
        """Notes what groups have committed in the source now, or had committed at a moment. What cannot be read is left
        out; `kafkafs groups` reports it."""
        if self._offsets_of is None:
            self._offsets_of = GroupOffsets(source)
        self._groups = self._offsets_of.groups() if until_ms is None else _groups_at(source, self._offsets_of, until_ms)

    def partition(
        self, tp: TopicPartition, source: LogSnapshot, copy: LogSnapshot, *, compacted: bool
    ) -> PartitionRecorder:
        """The recorder of a partition of the copy. When it is first asked for, what the copy has and the manifest does
        not is digested. `compacted`: see same_batches.

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
        """The manifest after this mirror, once the directory `copy` is closed: what was there before, and what was
        added. The partitions of its topics that another log directory of the broker has are in the copy too, without
        messages. OSError."""
        partitions = dict({} if self.previous is None else self.previous.partitions)
        there = LogDir.open_read_only(copy)
        for tp in there.all_partitions():
            if tp.topic in self._topics and tp not in self._partitions and tp not in partitions:
                empty = there.log(tp).snapshot()
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
        """The manifest after this mirror, with these partitions and files."""
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
        """The files of the copy, but for its logs. Those of partitions that this mirror did not come to stay as the
        previous manifest has them."""
        before = {} if self.previous is None else self.previous.files
        came_to = {tp.dir_name for tp in self._partitions}
        for name, file in before.items():
            directory = name.rpartition("/")[0]
            if directory and directory not in came_to:
                yield name, file
        listed = {directory: [path.name for path in paths_in(copy / directory)] for directory in came_to}
        for name in (*_OF_THE_DIRECTORY, *(f"{place}/{name}" for place in sorted(listed) for name in listed[place])):
            found = None if name.endswith(".log") else digest_file(copy / name)
            if found is not None:
                yield name, found

    def _offsets(self) -> Iterator[ManifestOffset]:
        """The committed offsets of the topics that were copied. Those of other topics stay as the previous manifest has
        them."""
        for committed in () if self.previous is None else self.previous.groups:
            if committed.topic not in self._topics:
                yield committed
        for name, group in sorted(self._groups.items()):
            for topic, offsets in sorted(group.offsets.items()):
                if topic in self._names:
                    for partition, found in sorted(offsets.items()):
                        place = self._names[topic], partition
                        yield ManifestOffset(name, *place, found.offset, found.leader_epoch, found.metadata)


def _groups_at(source: LogDir, offsets: GroupOffsets, until_ms: int) -> Mapping[str, ConsumerGroup]:
    """The groups as they were at a moment."""
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
    """Ranges of all batches from an offset on. CorruptBatch and the like where they are damaged."""
    recorder = PartitionRecorder(0)
    for span in spans_between(snapshot, start_offset):
        table = span.table.copy()
        if not isinstance(span.data, LargeBatch):  # of which the CRC was checked when it was found
            damage = verify_crcs(span.data, table, 0, table.rows, span.origin)
            if damage is not None:
                damage.error.path = span.segment.log.path
                raise damage.error
        recorder.add(span.segment.base_offset, span.data, table)
    recorder.finish()
    return recorder.ranges


def _check_same(found: BatchRange, source: LogSnapshot, copy: LogSnapshot, *, compacted: bool) -> None:
    """InvalidRecord unless the source has the same batches where the copy has this range. One that begins before the
    source does is not compared."""
    if not source.segments or found.first_offset < source.segments[0].base_offset:
        return
    ours, theirs = (
        BatchTable.concat(span.table.copy() for span in spans_between(log, found.first_offset, found.last_offset))
        for log in (copy, source)
    )
    if not same_batches(ours, theirs, compacted=compacted):
        raise InvalidRecord(
            "the copy holds other messages than the source",
            path=copy.segments[0].directory,
            offset=found.first_offset,
            expected=f"the source's batches from offset {found.first_offset} to {found.last_offset}",
            found="other batches",
            advice="Mirror into another directory, or remove the topic there first",
        )
