"""Replication of logs from one directory to another, batch by batch and byte for byte, as a follower does it.

The copy continues at its own log end. Sources: Kafka's ReplicaFetcherThread, appendAsFollower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from storage.append.partition_log import PartitionLog
from storage.config import NEW_TOPIC_OVERRIDES
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidRecord, StorageError, UnknownTopicOrPartition
from storage.files import names
from storage.log import reader
from storage.log.log_dir import LogDir
from storage.log.scanning import scan_batches, scan_sound_batches
from storage.log.snapshot import LogSnapshot, TransactionOutcomes
from storage.progress import NoProgress, Progress
from storage.types import TopicPartition

_WINDOW: Final = 1 << 20
# Retention is not copied: the copy keeps what it was given.
_NOT_COPIED: Final = frozenset({"retention.ms", "retention.bytes", "retention.free.bytes"})


@dataclass(slots=True)
class Mirrored:
    """What was copied into one partition: batches' bytes, from `first_offset` to below `log_end_offset`."""

    tp: TopicPartition
    first_offset: int
    log_end_offset: int
    size_bytes: int = 0
    error: Exception | None = None


@dataclass(slots=True)
class Mirror:
    """Copies the partitions that `wanted` chooses from `source` to `target`, in passes.

    A topic that the target does not have is created with as many partitions and the source topic's own configuration,
    without retention. Partitions begin at the source's first segment. A failing partition does not stop the others.
    """

    source: LogDir
    target: OwnedDir
    wanted: Callable[[LogDir], Collection[TopicPartition]]
    progress: Progress = field(default_factory=NoProgress)
    force: bool = False
    results: dict[TopicPartition, Mirrored] = field(default_factory=dict)
    # The log, and its generation, of which a partition is known to be a copy: between two passes a topic may be created
    # again, or lose messages and get others.
    _copied_of: dict[TopicPartition, tuple[TransactionOutcomes, int]] = field(default_factory=dict)

    def run(self) -> int:
        """One pass over all partitions; returns the bytes copied. Errors of a partition are in `results`; those of the
        directories, and of topics that cannot be created (NotPermitted in a broker's directory), are raised."""
        self.source.refresh()
        chosen = [tp for tp in sorted(self.wanted(self.source)) if tp.topic != names.CLUSTER_METADATA_TOPIC]
        snapshots = {tp: self.source.log(tp).snapshot() for tp in chosen}
        make_topics(self.source, self.target, snapshots)
        total = sum(_bytes_from(snapshot, self._known_end(tp)) for tp, snapshot in snapshots.items())
        if not total:
            for tp, snapshot in snapshots.items():
                self._copy(tp, snapshot)
            return 0
        self.progress.begin("mirror", total)
        try:
            return sum(self._copy(tp, snapshot) for tp, snapshot in snapshots.items())
        finally:
            self.progress.end()

    def _known_end(self, tp: TopicPartition) -> int:
        try:
            return self.target.log(tp).log_end_offset
        except StorageError:
            return 0

    def _copy(self, tp: TopicPartition, snapshot: LogSnapshot) -> int:
        result = self.results.get(tp)
        fresh = False
        try:
            if tp.topic in names.INTERNAL_TOPICS and not self.target.log_dir.is_broker:
                log = self.target.log(tp)  # a copy of the brokers' topic: no group is coordinated here
            else:
                log = self.target.appendable(tp, force=self.force)
            source = (snapshot.transactions, snapshot.generation)
            if result is None:
                result = self.results[tp] = Mirrored(tp, log.log_end_offset, log.log_end_offset)
            if self._copied_of.get(tp) != source:
                fresh = _begin(log, snapshot)
                self._copied_of[tp] = source
                if not result.size_bytes:
                    result.first_offset = log.log_end_offset
            before = result.size_bytes
            try:
                for size in copy_batches(snapshot, log):
                    result.size_bytes += size
                    self.progress.advance(size)
            finally:
                result.log_end_offset = log.log_end_offset
            if fresh:
                # Only at first: later the copy keeps what the source loses.
                log.increment_log_start_offset(min(snapshot.log_start_offset, log.log_end_offset))
            result.error = None
            return result.size_bytes - before
        except (StorageError, OSError) as error:
            if isinstance(error, UnknownTopicOrPartition) and self.target.log_dir.is_broker:
                error.advice = "Create the topic on the broker that owns the directory, stop it, then mirror"
            if result is None:
                result = self.results[tp] = Mirrored(tp, 0, 0)
            result.error = error
            return 0


def make_topics(source: LogDir, target: OwnedDir, snapshots: Mapping[TopicPartition, LogSnapshot]) -> None:
    """Creates the topics of these logs of `source` where `target` lacks them, or lacks some of their partitions.

    With the source's own configuration, without retention; partitions begin where the source's files begin.
    NotPermitted in a broker's directory.
    """
    target.log_dir.refresh()
    for topic in dict.fromkeys(tp.topic for tp in snapshots):
        info = source.topic_info(topic)
        starts = {
            tp.partition: snapshot.segments[0].base_offset
            for tp, snapshot in snapshots.items()
            if tp.topic == topic and snapshot.segments
        }
        count = info.partition_count or source.partitions(topic)[-1] + 1
        if topic not in target.log_dir.topics():
            overrides = {key: value for key, value in info.overrides.items() if key not in _NOT_COPIED}
            target.create_topic(topic, count, {**NEW_TOPIC_OVERRIDES, **overrides}, start_offsets=starts)
        elif not target.log_dir.is_broker and count > len(target.log_dir.partitions(topic)):
            target.add_partitions(topic, count)


def _begin(log: PartitionLog, snapshot: LogSnapshot) -> bool:
    """Makes a log without messages begin where the source begins (True), or checks that it is a copy of the source."""
    ours = log.snapshot()
    if not ours.size_bytes:
        if snapshot.segments and ours.log_end_offset < snapshot.segments[0].base_offset:
            log.restart_at(snapshot.segments[0].base_offset)
        return True
    if not snapshot.segments:
        return False
    last = _last_batch(ours)
    same = None if last is None else _batch_ending_at(snapshot, last[0])
    if last is not None and same is not None and same != last[1]:
        raise InvalidRecord(
            "the copy holds other messages than the source",
            path=log.path,
            offset=last[0],
            expected=f"checksum {same:#010x}",
            found=f"{last[1]:#010x}",
            advice="Mirror into another directory, or remove the topic there first",
        )
    return False


def _last_batch(snapshot: LogSnapshot) -> tuple[int, int] | None:
    """Last offset and checksum of a log's last batch."""
    for segment in reversed(snapshot.segments):
        end = snapshot.end_position(segment)
        if end:
            found = None
            start = segment.floor(snapshot.log_end_offset, end)
            for window in scan_batches(snapshot, segment, start, end):
                if window.table.rows:
                    found = int(window.table.last_offset[-1]), int(window.table.crc[-1])
            return found
    return None


def _batch_ending_at(snapshot: LogSnapshot, offset: int) -> int | None:
    """The checksum of the batch whose last offset is `offset`; None where there is none (after compaction, say)."""
    place = reader.find_batch(snapshot, offset)
    if place is None:
        return None
    batch = place.segment.batch_at(place.position, snapshot.end_position(place.segment))
    return int(batch.crc[0]) if batch is not None and int(batch.last_offset[0]) == offset else None


def copy_batches(snapshot: LogSnapshot, log: PartitionLog) -> Iterator[int]:
    """Appends the batches after the log's end, a window of them at a time; yields the bytes of each.

    CorruptBatch and the like at damage in the source: everything before it was copied.
    """
    place = _first_batch(snapshot, log.log_end_offset)
    if place is None:
        return
    position = place.position
    for segment in snapshot.segments[place.segment_index :]:
        for window in scan_sound_batches(snapshot, segment, position, window=_WINDOW):
            first = int(window.table.position[0]) - window.origin
            last = int(window.table.end[-1]) - window.origin
            log.append_batches(window.buffer[first:last])
            yield last - first
        position = 0


def _first_batch(snapshot: LogSnapshot, offset: int) -> reader.BatchPosition | None:
    """The first batch from `offset` on, even below the log start offset: whole segments are copied."""
    if not snapshot.segments:
        return None
    if offset <= snapshot.segments[0].base_offset:
        return reader.BatchPosition(0, snapshot.segments[0], 0)
    return reader.find_batch(replace(snapshot, log_start_offset=snapshot.segments[0].base_offset), offset)


def _bytes_from(snapshot: LogSnapshot, offset: int) -> int:
    """Bytes of the batches from an offset on, for a progress bar."""
    place = _first_batch(snapshot, offset)
    if place is None:
        return 0
    later = snapshot.segments[place.segment_index :]
    return sum(snapshot.end_position(segment) for segment in later) - place.position
