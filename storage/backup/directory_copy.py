"""A log directory as the destination of a mirror: batches are appended at the ends of its own logs.

A missing topic is created with as many partitions and the source topic's own configuration, without retention. The
directory's own configuration decides where segments end and how they are indexed. Sources: Kafka's
ReplicaFetcherThread, appendAsFollower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from storage.append.partition_log import PartitionLog
from storage.backup.manifest_recorder import ManifestRecorder, PartitionRecorder
from storage.backup.mirror import Chosen, Mirrored, check_cut, check_topic_id, first_batch
from storage.backup.source_cluster import check_cluster, cluster_id_of, encode
from storage.config import NEW_TOPIC_OVERRIDES
from storage.directory.owned_dir import OwnedDir
from storage.errors import CorruptBatch, InvalidRecord, StorageError, UnknownTopicOrPartition
from storage.files import metadata_checkpoint, names
from storage.files.cluster_metadata import read_bootstrap
from storage.files.disk import replace_file
from storage.files.metadata_checkpoint import cluster_records
from storage.files.metadata_replay import ClusterMetadata
from storage.format.batches import BatchTable
from storage.format.columns import Column
from storage.format.decoder import verify_crcs
from storage.log.batch_choice import batch_ending_at, check_one_log
from storage.log.log_dir import LogDir
from storage.log.reader import last_batch
from storage.log.same_batches import same_batches
from storage.log.scanning import Window, scan_sound_batches
from storage.log.segment import WINDOW_BYTES, LargeBatch, Segment, bytes_of
from storage.log.snapshot import LogSnapshot, TransactionOutcomes
from storage.log.tiering import TIERED_KEYS
from storage.types import TopicPartition

FLUSH_BYTES: Final = 32 << 20
# Neither retention nor tiering is copied: the copy keeps everything.
_NOT_COPIED: Final = frozenset({"retention.ms", "retention.bytes", "retention.free.bytes"})


class _Flushes:
    """Flushes a log in another thread during the copying, so that the disk is not idle until the end.

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
        """Count appended bytes. Begin a flush if they are many by now, and the last flush has ended."""
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
class DirectoryCopy:
    """A `Destination`. `force`: also copy partitions that have several replicas. `begin` raises errors of the
    directory, and of topics that cannot be created (NotPermitted in a broker's directory)."""

    owned: OwnedDir
    force: bool = False
    _source: LogDir | None = None
    # By partition, the log and its generation whose copy it is known to be: between two passes a topic may be created
    # again, or lose messages and get others.
    _copied_of: dict[TopicPartition, tuple[TransactionOutcomes, int]] = field(default_factory=dict)
    _fresh: set[TopicPartition] = field(default_factory=set)  # without messages at first, and not copied completely yet
    _cluster: ClusterMetadata | None = None  # as last copied

    def begin(
        self, source: LogDir, snapshots: Mapping[TopicPartition, LogSnapshot], renamed: Mapping[str, str]
    ) -> None:
        if self._source is None and not self.owned.log_dir.is_broker:
            self._keep_cluster_id(source)
        self._source = source
        make_topics(source, self.owned, snapshots, renamed)
        self._copy_cluster(source)

    def end_offset(self, tp: TopicPartition) -> int:
        try:
            return self.owned.log(tp).log_end_offset
        except StorageError:
            return 0

    def copy(self, chosen: Chosen, result: Mirrored, recorder: ManifestRecorder | None) -> Iterator[int]:
        tp, snapshot = chosen.tp, chosen.snapshot
        log = self._log(tp)
        source = (snapshot.transactions, snapshot.generation)
        if self._copied_of.get(tp) != source:
            check_one_log(snapshot, compacted=chosen.compacted)
            self._check_topic(chosen, log, recorder)
            if _begin(log, snapshot, compacted=chosen.compacted):
                self._fresh.add(tp)
            self._copied_of[tp] = source
            if not result.size_bytes:
                result.first_offset = log.log_end_offset
        check_cut(chosen, 0 if log.is_empty else log.log_end_offset, log.path)
        recording = None
        if recorder is not None:
            recording = recorder.partition(tp, snapshot, log.snapshot(), compacted=chosen.compacted)
        try:
            with _Flushes(log) as flushes:
                for size in copy_batches(snapshot, log, recording):
                    yield size
                    flushes.wrote(size)
        finally:
            result.log_end_offset = log.log_end_offset
        if tp in self._fresh:
            # Only at first: later the copy keeps messages that the source loses.
            log.increment_log_start_offset(min(snapshot.log_start_offset, log.log_end_offset))
            self._fresh.remove(tp)
        if recording is not None:
            recording.log_start_offset = log.log_start_offset

    def _log(self, tp: TopicPartition) -> PartitionLog:
        is_broker = self.owned.log_dir.is_broker
        if tp.topic in names.INTERNAL_TOPICS and not is_broker:
            return self.owned.log(tp)  # a copy of the brokers' topic: no group is coordinated here
        try:
            return self.owned.appendable(tp, force=self.force)
        except UnknownTopicOrPartition as error:
            if is_broker:
                error.advice = "Create the topic on the broker that owns the directory, stop it, then mirror"
            raise

    def _check_topic(self, chosen: Chosen, log: PartitionLog, recorder: ManifestRecorder | None) -> None:
        assert self._source is not None
        known = None if recorder is None else recorder.known_topic_id(chosen.tp.topic)
        if known is None and chosen.tp.topic == chosen.source_tp.topic and not self.owned.log_dir.is_broker:
            known = self.owned.log_dir.topic_info(chosen.tp.topic).topic_id
        if not log.is_empty:
            check_topic_id(known, self._source.topic_info(chosen.source_tp.topic).topic_id, log.path)

    def _keep_cluster_id(self, source: LogDir) -> None:
        known = cluster_id_of(self.owned.log_dir)
        cluster_id = check_cluster(source, known)
        if known is None and cluster_id is not None:
            replace_file(self.owned.disk, self.owned.path / names.MIRROR_PROPERTIES, encode(cluster_id), mode=0o600)

    def _copy_cluster(self, source: LogDir) -> None:
        """Write the source's metadata of its cluster, except topics, to `bootstrap.checkpoint`, which `revive` reads.
        Not into a broker's directory, whose file is the broker's own. OSError."""
        cluster = source.cluster_metadata() or read_bootstrap(source.path)
        if cluster is None or cluster is self._cluster or self.owned.log_dir.is_broker:
            return
        records = cluster_records(cluster)
        if records:
            content = metadata_checkpoint.bootstrap(records, source.clock.now_ms())
            replace_file(self.owned.disk, self.owned.path / names.BOOTSTRAP_CHECKPOINT, content, mode=0o600)
        self._cluster = cluster


def make_topics(
    source: LogDir,
    target: OwnedDir,
    snapshots: Mapping[TopicPartition, LogSnapshot],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create the topics of these logs of `source`, and their partitions, that `target` lacks.

    They get the source's own configuration, without retention, and its id, by which groups know the topic; partitions
    begin at the first offset of the source's files. `renamed`: names of new topics in `target`, by topic of `source`.
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
    """Make a log without messages begin where the source begins (True), or check that a log is a copy of the source.
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


def copy_batches(snapshot: LogSnapshot, log: PartitionLog, recorder: PartitionRecorder | None = None) -> Iterator[int]:
    """Append the batches after the log's end, a window of them at a time; yield the bytes of each.

    `recorder` gets the appended batches in another thread, and has all of them when this ends or is closed.
    CorruptBatch and the like at damage in the source: everything before it was copied.
    """
    place = first_batch(snapshot, log.log_end_offset)
    if place is None:
        return
    position = place.position
    spares = deque([memoryview(b"")] * 2)  # one is digested while the other is filled
    digesting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, "mirror-digest") as pool:  # starts its thread for the first window
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
