"""Writes the checkpoints of KRaft records from which a broker without a metadata log starts.

A checkpoint is a control batch with a SnapshotHeader, batches of records, a control batch with a SnapshotFooter. The
records of `bootstrap.checkpoint` are appended to the metadata log when the broker first starts; the checkpoint at
offset 0 of `__cluster_metadata-0` names the voters of the quorum. Records are encoded as `metadata_records` reads them.
Sources: Kafka's BootstrapDirectory, BatchFileWriter, RecordsSnapshotWriter, MetadataRecordSerde, and the schemas
`common/metadata/*.json`, SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord of Kafka 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage.files.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    ResourceType,
    TopicRecord,
    VerbatimRecord,
)
from storage.files.metadata_replay import ClusterMetadata
from storage.files.partition_metadata import id_bytes
from storage.format.block import Record
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields, encode_batch

_FRAME_VERSION = 1
_RECORDS_A_BATCH = 1000  # a batch of the metadata log may have 8 MiB
_KEY = struct.Struct(">hh")  # of a control record: version, type
_NO_TAGS = b"\x00"
_NO_VERSION_RANGE = struct.pack(">hh", 0, 1) + _NO_TAGS  # kraft.version 0 to 1


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A partition with one replica, on the log directory `directory_id` of the node. `leader`: -1 while the controller
    has not elected one. Epochs of the leader that it elects are above `leader_epoch`."""

    topic_id: str
    partition: int
    node_id: int
    directory_id: str
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Voter:
    """The one voter of a quorum: where its controller listens."""

    node_id: int
    directory_id: str
    listener: str
    host: str
    port: int


NewRecord = FeatureLevelRecord | TopicRecord | ConfigRecord | NewPartition | ProducerIdsRecord | VerbatimRecord


def cluster_records(cluster: ClusterMetadata) -> list[NewRecord]:
    """The records of a cluster's metadata, apart from topics: features, with metadata.version first as a broker
    requires, configurations, producer ids, and the records that stay as they are."""
    levels = sorted(cluster.features.items(), key=lambda feature: (feature[0] != "metadata.version", feature[0]))
    records: list[NewRecord] = [FeatureLevelRecord(name, level) for name, level in levels]
    broker_configs = {(int(ResourceType.BROKER), str(node)): values for node, values in cluster.brokers.items()}
    configs = {(int(ResourceType.BROKER), ""): cluster.broker_defaults, **broker_configs, **cluster.other_configs}
    for (kind, resource), values in configs.items():
        records += [ConfigRecord(kind, resource, key, value) for key, value in values.items()]
    if cluster.next_producer_id > 0:
        records.append(ProducerIdsRecord(cluster.next_producer_id))
    return [*records, *cluster.verbatim]


def bootstrap(records: Sequence[NewRecord], now_ms: int) -> bytes:
    """The bytes of a `bootstrap.checkpoint`."""
    values = [Record(None, encode(record), (), now_ms) for record in records]
    parts = [values[first : first + _RECORDS_A_BATCH] for first in range(0, len(values), _RECORDS_A_BATCH)]
    return _checkpoint(parts, (), now_ms)


def voters(voter: Voter, now_ms: int) -> bytes:
    """The bytes of the checkpoint at offset 0, epoch 0 of `__cluster_metadata-0`: a dynamic quorum of one voter."""
    endpoint = _string(voter.listener) + _string(voter.host) + struct.pack(">H", voter.port) + _NO_TAGS
    body = struct.pack(">i", voter.node_id) + id_bytes(voter.directory_id) + _array([endpoint]) + _NO_VERSION_RANGE
    control = (
        Record(_key(ControlType.KRAFT_VERSION), struct.pack(">hh", 0, 1) + _NO_TAGS, (), now_ms),
        Record(_key(ControlType.KRAFT_VOTERS), struct.pack(">h", 0) + _array([body + _NO_TAGS]) + _NO_TAGS, (), now_ms),
    )
    return _checkpoint((), control, now_ms)


def _checkpoint(batches: Iterable[Sequence[Record]], control: Sequence[Record], now_ms: int) -> bytes:
    header = Record(_key(ControlType.SNAPSHOT_HEADER), struct.pack(">hq", 0, 0) + _NO_TAGS, (), now_ms)
    footer = Record(_key(ControlType.SNAPSHOT_FOOTER), struct.pack(">h", 0) + _NO_TAGS, (), now_ms)
    out = bytearray()
    offset = 0
    for records, is_control in (([header, *control], True), *((batch, False) for batch in batches), ([footer], True)):
        out += encode_batch(records, base_offset=offset, fields=BatchFields(leader_epoch=0, control=is_control))
        offset += len(records)
    return bytes(out)


def _key(kind: ControlType) -> bytes:
    return _KEY.pack(0, kind)


def encode(record: NewRecord) -> bytes:
    """The value of a record."""
    match record:
        case FeatureLevelRecord(name, level):
            return _frame(12, 0, _string(name) + struct.pack(">h", level))
        case TopicRecord(name, topic_id):
            return _frame(2, 0, _string(name) + id_bytes(topic_id))
        case ConfigRecord(kind, resource, name, value):
            text = b"\x00" if value is None else _string(value)
            return _frame(4, 0, struct.pack(">b", kind) + _string(resource) + _string(name) + text)
        case ProducerIdsRecord(next_producer_id):
            return _frame(15, 0, struct.pack(">iqq", -1, -1, next_producer_id))
        case VerbatimRecord():
            return record.value
        case NewPartition():
            node = _int32s([record.node_id])
            state = struct.pack(">iii", record.leader, record.leader_epoch, 0)
            replicas = node + node + _int32s([]) + _int32s([])
            head = struct.pack(">i", record.partition) + id_bytes(record.topic_id)
            return _frame(3, 1, head + replicas + state + _array([id_bytes(record.directory_id)]))


def _frame(api_key: int, version: int, message: bytes) -> bytes:
    return _uvarint(_FRAME_VERSION) + _uvarint(api_key) + _uvarint(version) + message + _NO_TAGS


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def _array(elements: Sequence[bytes]) -> bytes:
    return _uvarint(len(elements) + 1) + b"".join(elements)


def _int32s(numbers: Sequence[int]) -> bytes:
    return _array([struct.pack(">i", number) for number in numbers])
