"""Replication of logs from one directory to another, batch by batch and byte for byte, as a follower does it.

The copy continues at its own log end. With a moment, each partition is cut there (storage.log.time_cut); with a
recorder, everything that was copied is digested for a manifest (storage.backup.manifest_recorder). Sources: Kafka's
ReplicaFetcherThread, appendAsFollower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from storage.append.partition_log import PartitionLog
from storage.backup.manifest_recorder import ManifestRecorder, PartitionRecorder
from storage.config import NEW_TOPIC_OVERRIDES
from storage.directory.owned_dir import OwnedDir
from storage.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTopic,
    SegmentGone,
    StorageError,
    UnknownTopicOrPartition,
)
from storage.files import metadata_checkpoint, names
from storage.files.cluster_metadata import read_bootstrap
from storage.files.disk import replace_file
from storage.files.metadata_checkpoint import cluster_records
from storage.files.metadata_replay import ClusterMetadata
from storage.format.batches import BatchTable, Column
from storage.format.decoder import verify_crcs
from storage.log import reader
from storage.log.batch_choice import batch_ending_at, check_one_log, check_tail
from storage.log.log_dir import LogDir
from storage.log.reader import last_batch
from storage.log.rereads import Rereads
from storage.log.same_batches import same_batches
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import WINDOW_BYTES, LargeBatch, Segment, bytes_of
from storage.log.segment_gaps import is_cleaned
from storage.log.snapshot import LogSnapshot, TransactionOutcomes
from storage.log.tiering import TIERED_KEYS
from storage.log.time_cut import MixedBatch, cut_at
from storage.progress import NoProgress, Progress, working
from storage.types import TopicPartition

FLUSH_BYTES: Final = 32 << 20
# Retention is not copied, nor tiering: the copy keeps what it was given.
_NOT_COPIED: Final = frozenset({"retention.ms", "retention.bytes", "retention.free.bytes"})


@dataclass(slots=True)
class Mirrored:
    """What was copied into one partition: batches' bytes, from `first_offset` to below `log_end_offset`.

    `tp`: its name in the copy. `mixed`: the last batch before the cut, if it also has messages from after the moment.
    `remote_note`: LogSnapshot.remote_note of the source.
    """

    tp: TopicPartition
    first_offset: int
    log_end_offset: int
    size_bytes: int = 0
    mixed: MixedBatch | None = None
    remote_note: str | None = None
    error: Exception | None = None


class _Chosen(NamedTuple):
    """A partition to be copied: its name in the source, and in the copy; its log, cut where a moment is given, or why
    that failed; and whether its topic is compacted."""

    source_tp: TopicPartition
    tp: TopicPartition
    snapshot: LogSnapshot
    compacted: bool
    mixed: MixedBatch | None = None
    error: Exception | None = None


class _Flushes:
    """Flushes a log in another thread while it is copied into, so that the disk is not idle until the end.

    Used as a context manager, which waits for the last flush. An error takes the log offline, so that the next append
    fails too.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._pool: ThreadPoolExecutor | None = None
        self._flush: Future[int] | None = None
        self._unflushed_bytes = 0

    def __enter__(self) -> _Flushes:
        return self

    def wrote(self, size_bytes: int) -> None:
        """Notes what was appended. Begins a flush if that is much by now, and the last one has ended."""
        self._unflushed_bytes += size_bytes
        if self._unflushed_bytes < FLUSH_BYTES or (self._flush is not None and not self._flush.done()):
            return
        self._wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "mirror-flush")
        self._flush = self._pool.submit(self._log.flush)
        self._unflushed_bytes = 0

    def _wait(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            flush.result()

    def __exit__(self, *_: object) -> None:
        try:
            self._wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()


@dataclass(slots=True)
class Mirror:
    """Copies the partitions that `wanted` chooses from `source` to `target`, in passes.

    A topic that the target does not have is created with as many partitions and the source topic's own configuration,
    without retention. Partitions begin at the source's first segment. A failing partition does not stop the others.
    `until_ms`: where each partition is cut, epoch milliseconds. `renamed`: other names in the copy, by topic of the
    source. `recorder`: digests what is copied. `results`: by partition of the copy.
    """

    source: LogDir
    target: OwnedDir
    wanted: Callable[[LogDir], Collection[TopicPartition]]
    progress: Progress = field(default_factory=NoProgress)
    force: bool = False
    until_ms: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    recorder: ManifestRecorder | None = None
    results: dict[TopicPartition, Mirrored] = field(default_factory=dict)
    # The log, and its generation, of which a partition is known to be a copy: between two passes a topic may be created
    # again, or lose messages and get others.
    _copied_of: dict[TopicPartition, tuple[TransactionOutcomes, int]] = field(default_factory=dict)
    _cluster: ClusterMetadata | None = None  # as it was copied last

    def run(self) -> int:
        """One pass over all partitions; returns the bytes copied. Errors of a partition are in `results`; those of the
        directories, and of topics that cannot be created (NotPermitted in a broker's directory), are raised."""
        self.source.refresh()
        wanted = [tp for tp in sorted(self.wanted(self.source)) if tp.topic != names.CLUSTER_METADATA_TOPIC]
        self._check_names({tp.topic for tp in wanted})
        if self.recorder is not None:
            self.recorder.see_groups(self.source, self.until_ms)  # before the logs, so that no group is ahead of them
        whole = {tp: self.source.log(tp).snapshot() for tp in wanted}
        make_topics(self.source, self.target, whole, self.renamed)
        self._copy_cluster()
        chosen = [self._chosen(tp, snapshot) for tp, snapshot in whole.items()]
        if self.recorder is not None:
            self.recorder.see_topics(self.source, whole, self.renamed)
        total = sum(_bytes_from(one.snapshot, self._known_end(one.tp)) for one in chosen)
        if not total:
            for one in chosen:
                self._copy(one)
            return 0
        with working(self.progress, "mirror", total):
            return sum(self._copy(one) for one in chosen)

    def _copy_cluster(self) -> None:
        """Writes what the source's metadata say of its cluster besides topics to `bootstrap.checkpoint`, from which
        `revive` takes it. Not into a broker's directory: it is the broker's own there. OSError."""
        cluster = self.source.cluster_metadata() or read_bootstrap(self.source.path)
        if cluster is None or cluster is self._cluster or self.target.log_dir.is_broker:
            return
        records = cluster_records(cluster)
        if records:
            content = metadata_checkpoint.bootstrap(records, self.source.clock.now_ms())
            replace_file(self.target.disk, self.target.path / names.BOOTSTRAP_CHECKPOINT, content, mode=0o600)
        self._cluster = cluster

    def _check_names(self, topics: Collection[str]) -> None:
        """InvalidTopic if two topics would have one name in the copy, or an internal topic another one."""
        for topic in sorted(topics):
            name = self.renamed.get(topic, topic)
            if name != topic and names.INTERNAL_TOPICS & {topic, name}:
                raise InvalidTopic("an internal topic keeps its name", expected=topic, found=name)
            same = [other for other in sorted(topics) if other != topic and self.renamed.get(other, other) == name]
            if same:
                raise InvalidTopic(f"two topics would have the name {name} in the copy", found=f"{topic}, {same[0]}")

    def _chosen(self, tp: TopicPartition, snapshot: LogSnapshot) -> _Chosen:
        renamed = TopicPartition(self.renamed.get(tp.topic, tp.topic), tp.partition)
        compacted = is_cleaned(self.source, tp)
        if self.until_ms is None:
            return _Chosen(tp, renamed, snapshot, compacted)
        try:
            cut = cut_at(snapshot, self.until_ms)
        except (StorageError, OSError) as error:
            return _Chosen(tp, renamed, snapshot, compacted, error=error)
        return _Chosen(tp, renamed, cut.snapshot, compacted, cut.mixed)

    def _check_topic(self, chosen: _Chosen, log: PartitionLog) -> None:
        """InvalidRecord if the copy has messages of another topic of that name, which was deleted since."""
        source_id = self.source.topic_info(chosen.source_tp.topic).topic_id
        listed = None if self.recorder is None or self.recorder.previous is None else self.recorder.previous.topics
        known = None if listed is None or chosen.tp.topic not in listed else listed[chosen.tp.topic].topic_id
        if known is None and chosen.tp.topic == chosen.source_tp.topic and not self.target.log_dir.is_broker:
            known = self.target.log_dir.topic_info(chosen.tp.topic).topic_id
        if not log.is_empty and None not in (source_id, known) and source_id != known:
            raise InvalidRecord(
                "the copy is of another topic of that name, which was deleted",
                path=log.path,
                expected=f"topic id {known}",
                found=source_id,
                advice="Mirror into another directory, or remove the topic there first",
            )

    def _known_end(self, tp: TopicPartition) -> int:
        try:
            return self.target.log(tp).log_end_offset
        except StorageError:
            return 0

    def _copy(self, chosen: _Chosen) -> int:
        """Copies one partition. Where compaction or retention of the source removes a segment meanwhile, it goes on
        with a newer snapshot."""
        copied, fresh, rereads = 0, False, Rereads()
        while True:
            more, fresh = self._copy_snapshot(chosen, fresh=fresh)
            copied += more
            result = self.results[chosen.tp]
            if not isinstance(result.error, SegmentGone) or rereads.are_exhausted(result.log_end_offset):
                return copied
            try:
                chosen = self._chosen(chosen.source_tp, self.source.log(chosen.source_tp).snapshot())
            except (StorageError, OSError) as error:
                result.error = error
                return copied

    def _copy_snapshot(self, chosen: _Chosen, *, fresh: bool) -> tuple[int, bool]:
        """The bytes copied, and whether the copy was without messages. `fresh`: as an earlier attempt found it. Errors
        are in `results`."""
        tp, snapshot = chosen.tp, chosen.snapshot
        result = self.results.get(tp)
        before = 0 if result is None else result.size_bytes
        try:
            if chosen.error is not None:
                raise chosen.error
            if tp.topic in names.INTERNAL_TOPICS and not self.target.log_dir.is_broker:
                log = self.target.log(tp)  # a copy of the brokers' topic: no group is coordinated here
            else:
                log = self.target.appendable(tp, force=self.force)
            source = (snapshot.transactions, snapshot.generation)
            if result is None:
                result = self.results[tp] = Mirrored(tp, log.log_end_offset, log.log_end_offset)
            result.mixed, result.remote_note = chosen.mixed, snapshot.remote_note
            if self._copied_of.get(tp) != source:
                check_one_log(snapshot, compacted=chosen.compacted)
                self._check_topic(chosen, log)
                fresh |= _begin(log, snapshot, compacted=chosen.compacted)
                self._copied_of[tp] = source
                if not result.size_bytes:
                    result.first_offset = log.log_end_offset
            if self.until_ms is not None:
                _check_cut(log, snapshot)
            recording = None
            if self.recorder is not None:
                recording = self.recorder.partition(tp, snapshot, log.snapshot(), compacted=chosen.compacted)
            try:
                with _Flushes(log) as flushes:
                    for size in copy_batches(snapshot, log, recording):
                        result.size_bytes += size
                        self.progress.advance(size)
                        flushes.wrote(size)
            finally:
                result.log_end_offset = log.log_end_offset
            if fresh:
                # Only at first: later the copy keeps what the source loses.
                log.increment_log_start_offset(min(snapshot.log_start_offset, log.log_end_offset))
            if recording is not None:
                recording.log_start_offset = log.log_start_offset
            if self.until_ms is None:
                check_tail(snapshot)
            result.error = None
        except (StorageError, OSError) as error:
            if isinstance(error, UnknownTopicOrPartition) and self.target.log_dir.is_broker:
                error.advice = "Create the topic on the broker that owns the directory, stop it, then mirror"
            if result is None:
                result = self.results[tp] = Mirrored(tp, 0, 0)
            result.error = error
        return result.size_bytes - before, fresh


def make_topics(
    source: LogDir,
    target: OwnedDir,
    snapshots: Mapping[TopicPartition, LogSnapshot],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Creates the topics of these logs of `source` where `target` lacks them, or lacks some of their partitions.

    With the source's own configuration, without retention, and its id, by which groups know it; partitions begin where
    the source's files begin. `renamed`: other names in `target`, by topic of `source`; those are new topics.
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
        name = renamed.get(topic, topic)
        if name not in target.log_dir.topics():
            overrides = {
                key: value
                for key, value in info.overrides.items()
                if key not in _NOT_COPIED and not key.startswith(TIERED_KEYS)
            }
            topic_id = info.topic_id if name == topic else None
            target.create_topic(
                name, count, {**NEW_TOPIC_OVERRIDES, **overrides}, start_offsets=starts, topic_id=topic_id
            )
        elif not target.log_dir.is_broker and count > len(target.log_dir.partitions(name)):
            target.add_partitions(name, count)


def _begin(log: PartitionLog, snapshot: LogSnapshot, *, compacted: bool) -> bool:
    """Makes a log without messages begin where the source begins (True), or checks that it is a copy of the source.
    `compacted`: see same_batches."""
    ours = log.snapshot()
    if not ours.size_bytes:
        if snapshot.segments and ours.log_end_offset < snapshot.segments[0].base_offset:
            log.restart_at(snapshot.segments[0].base_offset)
        return True
    if not snapshot.segments:
        return False
    last = last_batch(ours)
    if last is None:
        return False
    offset, epoch = int(last.last_offset[0]), int(last.leader_epoch[0])
    same = batch_ending_at(snapshot, offset)
    # Batches may end elsewhere after a truncation, but each offset of an epoch is written once: storage.log.lineage.
    leader = snapshot.epochs.epoch_at(offset)
    expected, found = None, None
    if same is not None and not same_batches(last, same, compacted=compacted):
        expected, found = f"checksum {int(same.crc[0]):#010x}", f"{int(last.crc[0]):#010x}"
    elif leader is not None and 0 <= epoch != leader:
        expected, found = f"leader epoch {leader}", f"{epoch}"
    if expected is not None:
        raise InvalidRecord(
            "the copy holds other messages than the source",
            path=log.path,
            offset=offset,
            expected=expected,
            found=found,
            advice="Mirror into another directory, or remove the topic there first",
        )
    return False


def _check_cut(log: PartitionLog, snapshot: LogSnapshot) -> None:
    """InvalidRecord if the copy has messages from after the cut: a copy is not shortened."""
    if log.log_end_offset > snapshot.log_end_offset and not log.is_empty:
        raise InvalidRecord(
            "the copy already holds messages from after the cut",
            path=log.path,
            expected=f"a log end offset of at most {snapshot.log_end_offset}",
            found=log.log_end_offset,
            advice="Mirror into another directory",
        )


def copy_batches(snapshot: LogSnapshot, log: PartitionLog, recorder: PartitionRecorder | None = None) -> Iterator[int]:
    """Appends the batches after the log's end, a window of them at a time; yields the bytes of each.

    `recorder` is given what was appended, by another thread, and has all of it when this ends or is closed.
    CorruptBatch and the like at damage in the source: everything before it was copied.
    """
    place = _first_batch(snapshot, log.log_end_offset)
    if place is None:
        return
    position = place.position
    spares = deque([memoryview(b"")] * 2)  # one is digested while the other one is filled
    digesting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, "mirror-digest") as pool:  # starts a thread when it gets something to do
        for segment in snapshot.segments[place.segment_index :]:
            for window in scan_sound_batches(snapshot, segment, position, window=WINDOW_BYTES):
                data, headers, damage = _append_up_to_damage(log, segment, window)
                if recorder is not None:
                    if len(digesting) == len(spares):
                        digesting.popleft().result()
                    kept = data
                    if not isinstance(data, LargeBatch):  # the next window is read into the same buffer
                        spares.rotate()
                        if len(data) > len(spares[0]):
                            spares[0] = memoryview(bytearray(len(data)))
                        kept = spares[0][: len(data)]
                        kept[:] = data
                    digesting.append(pool.submit(recorder.add, segment.base_offset, kept, headers))
                yield int(headers.size.sum())
                if damage is not None:
                    raise damage
            position = 0
        for future in digesting:
            future.result()


def _append_up_to_damage(
    log: PartitionLog, segment: Segment, window: Window
) -> tuple[memoryview | LargeBatch, BatchTable, StorageError | None]:
    """Append the batches of a window up to the first one with a wrong CRC; return the bytes and headers that were
    appended, and the error of that batch. Raises the error if nothing comes before it."""
    rows, error = window.table.rows, None
    while True:
        headers = window.table.slice(0, rows).copy()
        data = bytes_of(segment.log, window.buffer, headers, 0, rows, window.origin)
        headers.data[Column.POSITION] -= window.table.position[0]
        try:
            log.append_batches(data, headers)
        except CorruptBatch:
            damage = verify_crcs(window.buffer, window.table, 0, rows, window.origin)
            if damage is None:
                raise
            rows, error = damage.row, damage.error
            error.path = segment.log.path
            if not rows:
                raise error from None
        else:
            return data, headers, error


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
