"""Any log directory in one expression, with the files a broker would have written. For tests only.

    built = build_log_dir(tmp_path, {
        "plain": [[b"one", b"two"]],                                        # one partition, two one-record batches
        "all": [Partition([Batch(many(500), codec=codec)]) for codec in Codec],
        "tx": [Partition([Batch(many(3), producer_id=7, transactional=True), abort(7), ROLL, Batch(many(2))])],
        "live": [Partition([Batch(many(10))], preallocated=True)],
    })
    built["tx", 0].read_committed

Offsets, timestamps and sequences continue automatically unless a Batch sets them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from storage.append import message_sets
from storage.format.block import Headers, Record
from storage.format.compression import Codec
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields, encode_batch
from tests.support.broker_rules import (
    Producers,
    SegmentFiles,
    StoredBatch,
    checkpoint,
    epoch_checkpoint,
    stored_batches,
    write,
)
from tests.support.control_batches import marker_batch

# The default timestamp of offset 0; each following offset is a second later.
START_MS = 1_700_000_000_000
STEP_MS = 1000
AUTOMATIC = -(2**62)  # a record's timestamp: by its offset

CLUSTER_ID = "a2Fma2Fmcy10ZXN0cy0wMQ"
DIRECTORY_ID = "a2Fma2Fmcy1kaXItMDAwMQ"

TEN_MIB = 10 * 1024 * 1024


class Roll(NamedTuple):
    """In a partition's list: the next batch begins a new segment."""


class Restart(NamedTuple):
    """In a partition's list: the broker is restarted here, in the middle of a segment."""


ROLL: Final = Roll()
RESTART: Final = Restart()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records to be written as one batch (v0 and v1 without codec: as single messages)."""

    records: Sequence[Record]
    codec: Codec = Codec.NONE
    magic: int = 2
    base_offset: int | None = None  # None: the next offset
    producer_id: int = -1
    producer_epoch: int = 0
    base_sequence: int | None = None  # None: the producer's next
    transactional: bool = False
    log_append_time_ms: int | None = None
    leader_epoch: int = 0
    fields: BatchFields | None = None  # all v2 fields at once, instead of the above


@dataclass(frozen=True, slots=True)
class Marker:
    kind: ControlType
    producer_id: int
    producer_epoch: int = 0
    coordinator_epoch: int = 0
    timestamp: int = AUTOMATIC
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """Batches as bytes, written unchanged; `records` are the records that they are expected to hold."""

    data: bytes
    records: Sequence[BuiltRecord] = ()


Item = Batch | Marker | Raw | Roll | Restart | bytes | Record


@dataclass(frozen=True, slots=True)
class Partition:
    """The content of one partition directory, and the configuration under which it was written."""

    items: Sequence[Item] = ()
    start_offset: int = 0  # base offset of the first segment
    segment_bytes: int = 2**30
    segment_ms: int = 2**62
    index_interval_bytes: int = 4096
    segment_index_bytes: int = TEN_MIB
    preallocated: bool = False  # the active segment's indexes have their zero tails, and no final time entry
    log_start_offset: int | None = None  # if above start_offset, it is written to log-start-offset-checkpoint
    recovery_point: int | None = None  # None: the log end offset
    high_watermark: int | None = None  # None: the log end offset
    cleaner_offset: int | None = None
    mtime: float | None = None  # of all files, epoch seconds
    tail: bytes = b""  # after the last whole batch
    extra: Mapping[str, bytes] = field(default_factory=dict)  # further files, or other contents, by name


PartitionSpec = Partition | Sequence[Item]


class BuiltRecord(NamedTuple):
    """A data record as a reader must see it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class BuiltBatch(NamedTuple):
    """The place of a batch: `segment` is a base offset, `position` a byte position in its .log."""

    segment: int
    position: int
    size: int
    stored: StoredBatch


@dataclass(slots=True)
class BuiltPartition:
    """A partition that was written, and what must be read from it."""

    path: Path
    start_offset: int
    log_start_offset: int
    log_end_offset: int
    segments: list[int] = field(default_factory=list)
    batches: list[BuiltBatch] = field(default_factory=list)
    all_records: list[BuiltRecord] = field(default_factory=list)  # data records, those below log_start_offset too
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer id, first offset, marker's offset
    last_stable_offset: int = 0
    _producer_of: dict[int, int] = field(default_factory=dict)  # transactional records' producers

    @property
    def records(self) -> list[BuiltRecord]:
        """What a read_uncommitted consumer sees."""
        return [record for record in self.all_records if record.offset >= self.log_start_offset]

    @property
    def read_committed(self) -> list[BuiltRecord]:
        """What a read_committed consumer sees."""
        return [
            record
            for record in self.records
            if record.offset < self.last_stable_offset and not self._is_aborted(record.offset)
        ]

    def _is_aborted(self, offset: int) -> bool:
        producer = self._producer_of.get(offset)
        return any(pid == producer and first <= offset <= last for pid, first, last in self.aborted)

    def log(self, segment: int = 0) -> Path:
        """The .log of a segment, by its place in the list."""
        return self.path / f"{self.segments[segment]:020d}.log"


@dataclass(slots=True)
class BuiltLogDir:
    """A log directory that was written; `built["topic", 0]` is a partition of it."""

    path: Path
    partitions: dict[tuple[str, int], BuiltPartition] = field(default_factory=dict)

    def __getitem__(self, key: tuple[str, int]) -> BuiltPartition:
        return self.partitions[key]


def many(count: int, size: int = 20, *, keys: int | None = None, headers: Headers = ()) -> list[Record]:
    """Records with different values of `size` bytes; keys cycle through `keys` of them (None: null keys)."""
    return [
        Record(
            None if keys is None else b"key-%05d" % (i % keys),
            (b"value-%07d " % i * (size // 14 + 1))[:size],
            headers,
            AUTOMATIC,
        )
        for i in range(count)
    ]


def commit(producer_id: int, producer_epoch: int = 0) -> Marker:
    return Marker(ControlType.COMMIT, producer_id, producer_epoch)


def abort(producer_id: int, producer_epoch: int = 0) -> Marker:
    return Marker(ControlType.ABORT, producer_id, producer_epoch)


def topic_id(topic: str) -> str:
    """A topic's id, always the same, in Kafka's 22 characters."""
    if topic == "__cluster_metadata":
        return "AAAAAAAAAAAAAAAAAAAAAQ"
    digest = bytearray(hashlib.md5(topic.encode(), usedforsecurity=False).digest())
    digest[0] &= 0x7F  # no leading "-", as Uuid.randomUuid
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def build_log_dir(
    path: Path,
    topics: Mapping[str, Sequence[PartitionSpec]],
    *,
    clean: bool = True,
    broker: bool = True,
    extra: Mapping[str, bytes] | None = None,
) -> BuiltLogDir:
    """Write a log directory into `path` (created if it is missing): per topic its partitions, 0, 1, 2 …

    `clean`: as after a clean stop of the broker; otherwise without .kafka_cleanshutdown, with preallocated active
    indexes and without final snapshots. `broker` False leaves out meta.properties. `extra` are further files by path;
    a path that ends in "/" is an empty directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    built = BuiltLogDir(path)
    offsets: dict[str, dict[tuple[str, int], int]] = {
        name: {} for name in ("recovery", "start", "replication", "cleaner")
    }
    for topic, specs in topics.items():
        for number, given in enumerate(specs):
            spec = given if isinstance(given, Partition) else Partition(given)
            if not clean:
                spec = replace(spec, preallocated=True)
            partition = build_partition(path / f"{topic}-{number}", spec, topic_id(topic), clean=clean)
            built.partitions[topic, number] = partition
            end = partition.log_end_offset
            recovery, watermark = spec.recovery_point, spec.high_watermark
            offsets["recovery"][topic, number] = end if recovery is None else recovery
            offsets["replication"][topic, number] = end if watermark is None else watermark
            if partition.log_start_offset > spec.start_offset:
                offsets["start"][topic, number] = partition.log_start_offset
            if spec.cleaner_offset is not None:
                offsets["cleaner"][topic, number] = spec.cleaner_offset
    write(path / "recovery-point-offset-checkpoint", checkpoint(offsets["recovery"]))
    write(path / "replication-offset-checkpoint", checkpoint(offsets["replication"]))
    write(path / "log-start-offset-checkpoint", checkpoint(offsets["start"]))
    write(path / "cleaner-offset-checkpoint", checkpoint(offsets["cleaner"]) if offsets["cleaner"] else b"")
    _write_broker_files(path, clean=clean, broker=broker)
    for name, content in (extra or {}).items():
        if name.endswith("/"):
            (path / name).mkdir(parents=True, exist_ok=True)
        else:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            write(path / name, content)
    return built


def build_partition(
    path: Path, spec: Partition, id_of_topic: str | None = None, *, clean: bool = True
) -> BuiltPartition:
    path.mkdir(parents=True)
    segment = _new_segment(spec, spec.start_offset)
    segments = [segment]
    producers = Producers()
    snapshots: dict[int, bytes] = {}
    epochs: list[tuple[int, int]] = []
    built = BuiltPartition(path, spec.start_offset, spec.start_offset, spec.start_offset)
    next_offset = spec.start_offset
    roll = False
    for item in spec.items:
        if isinstance(item, Roll):
            roll = True
            continue
        if isinstance(item, Restart):
            segment.close()
            segment.reopen()
            continue
        data, records = _encode(item, next_offset, producers)
        built.all_records += records
        for batch in stored_batches(data):
            base = max(next_offset, batch.base_offset)
            # An empty segment is not rolled to one of the same name.
            roll = roll and (segment.size > 0 or base > segment.base_offset)
            if roll or segment.must_roll(batch, spec.segment_bytes, spec.segment_ms):
                segment.close()
                segment = _new_segment(spec, base)
                segments.append(segment)
                snapshots[base] = producers.snapshot()
                roll = False
            built.batches.append(BuiltBatch(segment.base_offset, segment.size, len(batch.data), batch))
            segment.append(batch)
            if batch.leader_epoch > (epochs[-1][0] if epochs else -1):
                epochs.append((batch.leader_epoch, batch.base_offset))
            aborted = producers.append(batch)
            if aborted is not None:
                segment.transactions.append(aborted)
            next_offset = batch.last_offset + 1
            if batch.transactional and not batch.control:
                offsets = range(batch.base_offset, next_offset)
                built._producer_of.update(dict.fromkeys(offsets, batch.producer_id))
    if roll and (segment.size or next_offset > segment.base_offset):
        segment.close()
        segments.append(_new_segment(spec, next_offset))
        snapshots[next_offset] = producers.snapshot()
    built.segments = [s.base_offset for s in segments]
    built.log_end_offset = next_offset
    built.log_start_offset = max(spec.start_offset, spec.log_start_offset or 0)
    built.aborted = producers.aborted
    built.last_stable_offset = min(producers.open_transactions(), default=next_offset)
    if clean and next_offset > 0:
        snapshots[next_offset] = producers.snapshot()
    _write_partition(path, spec, segments, snapshots, epochs, id_of_topic)
    return built


def _new_segment(spec: Partition, base_offset: int) -> SegmentFiles:
    return SegmentFiles(base_offset, spec.index_interval_bytes, spec.segment_index_bytes)


def _encode(
    item: Batch | Marker | Raw | bytes | Record, next_offset: int, producers: Producers
) -> tuple[bytes, list[BuiltRecord]]:
    """The bytes of an item, and the data records that a reader must find in them."""
    if isinstance(item, bytes):
        item = Batch([Record(None, item, (), AUTOMATIC)])
    elif isinstance(item, Record):
        item = Batch([item])
    if isinstance(item, Raw):
        return item.data, list(item.records)
    if isinstance(item, Marker):
        data = marker_batch(
            item.kind,
            item.producer_id,
            base_offset=next_offset,
            timestamp=_timestamp(item.timestamp, next_offset),
            producer_epoch=item.producer_epoch,
            coordinator_epoch=item.coordinator_epoch,
            leader_epoch=item.leader_epoch,
        )
        return data, []
    base_offset = next_offset if item.base_offset is None else item.base_offset
    records = [r._replace(timestamp=_timestamp(r.timestamp, base_offset + i)) for i, r in enumerate(item.records)]
    append_time = item.log_append_time_ms
    if item.magic < 2:
        data = message_sets.encode(
            records, item.magic, base_offset=base_offset, codec=item.codec, log_append_time_ms=append_time
        )
    else:
        fields = item.fields or _fields(item, producers)
        append_time = fields.log_append_time_ms
        data = encode_batch(records, base_offset=base_offset, codec=item.codec, fields=fields)
    seen = [
        BuiltRecord(
            base_offset + i,
            -1 if item.magic == 0 else r.timestamp if append_time is None else append_time,
            r.key,
            r.value,
            tuple(r.headers),
        )
        for i, r in enumerate(records)
    ]
    return data, seen


def _fields(item: Batch, producers: Producers) -> BatchFields:
    sequence = item.base_sequence
    if sequence is None:
        producer = producers.by_id.get(item.producer_id)
        known = producer is not None and producer.epoch == item.producer_epoch
        sequence = (producer.last_sequence + 1) % 2**31 if producer is not None and known else 0
    idempotent = item.producer_id >= 0
    return BatchFields(
        leader_epoch=item.leader_epoch,
        producer_id=item.producer_id,
        producer_epoch=item.producer_epoch if idempotent else -1,
        base_sequence=sequence if idempotent else -1,
        transactional=item.transactional,
        log_append_time_ms=item.log_append_time_ms,
    )


def _timestamp(timestamp: int, offset: int) -> int:
    return START_MS + STEP_MS * offset if timestamp == AUTOMATIC else timestamp


def _write_partition(
    path: Path,
    spec: Partition,
    segments: list[SegmentFiles],
    snapshots: dict[int, bytes],
    epochs: list[tuple[int, int]],
    id_of_topic: str | None,
) -> None:
    files: dict[str, bytes] = {}
    active = segments[-1]
    if not spec.preallocated:
        active.close()
    for segment in segments:
        contents = segment.files(preallocated=spec.preallocated and segment is active)
        if segment is active:
            contents[".log"] += spec.tail
        files |= {f"{segment.base_offset:020d}{suffix}": content for suffix, content in contents.items()}
    files |= {f"{offset:020d}.snapshot": content for offset, content in snapshots.items()}
    files["leader-epoch-checkpoint"] = epoch_checkpoint(epochs)
    if id_of_topic is not None:
        files["partition.metadata"] = f"version: 0\ntopic_id: {id_of_topic}".encode()
    files |= spec.extra
    for name, content in files.items():
        write(path / name, content)
        if spec.mtime is not None:
            os.utime(path / name, (spec.mtime, spec.mtime))


def _write_broker_files(path: Path, *, clean: bool, broker: bool) -> None:
    if broker:
        meta = f"node.id=1\ndirectory.id={DIRECTORY_ID}\nversion=1\ncluster.id={CLUSTER_ID}\n"
        write(path / "meta.properties", f"#\n#Sat Nov 21 09:11:14 UTC 2026\n{meta}".encode())
    if clean:
        write(path / ".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":12}')


def metadata_records(topic: str, partitions: int, replicas: Sequence[int], *, leader_epoch: int = 0) -> list[bytes]:
    """The records of a KRaft metadata log that make a topic: to build as `__cluster_metadata`, partition 0.

    Source: TopicRecord.json and PartitionRecord.json (version 0), MetadataRecordSerde.
    """
    identity = base64.urlsafe_b64decode(topic_id(topic) + "==")
    ids = bytes([len(replicas) + 1]) + struct.pack(f">{len(replicas)}i", *replicas)
    none = b"\x01"
    records = [b"\x01\x02\x00" + bytes([len(topic) + 1]) + topic.encode() + identity + b"\x00"]
    for number in range(partitions):
        leader = struct.pack(">iii", replicas[0], leader_epoch, 0)
        body = struct.pack(">i", number) + identity + ids + ids + none + none + leader
        records.append(b"\x01\x03\x00" + body + b"\x00")
    return records


def topic_setting(topic: str, name: str, value: str) -> bytes:
    """The record of a KRaft metadata log that sets a topic's key (ConfigRecord.json)."""
    texts = (bytes([len(text) + 1]) + text.encode() for text in (topic, name, value))
    return b"\x01\x04\x00\x02" + b"".join(texts) + b"\x00"
