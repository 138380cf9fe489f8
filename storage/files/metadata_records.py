"""Records of KRaft's metadata log that concern topics, partitions, configurations, features and producer ids, and those
that a new cluster takes over as they are: ACLs, SCRAM credentials, quotas and delegation tokens.

Read here; `metadata_checkpoint` writes those that a new cluster begins with.

A record's value is a frame: unsigned varints frame version (1), api key, version; then the message in Kafka's flexible
encoding: lengths as unsigned varint n + 1 (0 is null), tagged fields at the end. Sources: MetadataRecordSerde,
ByteBufferAccessor, and the schemas `common/metadata/*.json` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from storage.errors import CorruptCheckpoint, UnsupportedFormat
from storage.files.partition_metadata import id_text
from storage.format.message_fields import UUID_BYTES, FieldReader

_FRAME_VERSION = 1

NO_LEADER_CHANGE = -2


class ResourceType(IntEnum):
    """What a ConfigRecord configures (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition was created or, in a snapshot, exists. Node ids; leader -1: none."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """A partition changed. None, and a leader of -2, mean unchanged."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...] | None
    isr: tuple[int, ...] | None
    leader: int


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and configuration."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A key was set, or deleted when `value` is None. `resource_type` may be missing from ResourceType."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """A feature, for example metadata.version, has this level from now on; 0: it is off."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` have been given out."""

    next_producer_id: int


class VerbatimKind(StrEnum):
    """What a VerbatimRecord holds, in words."""

    ACL = "ACLs"
    SCRAM = "SCRAM credentials"
    QUOTA = "quotas"
    TOKEN = "delegation tokens"


@dataclass(frozen=True, slots=True)
class VerbatimRecord:
    """A record whose bytes stay as they are. A later one with the same `kind` and `key` replaces it, or removes it when
    its `value` is None. `name`: whom it concerns, for a person; never a secret."""

    kind: VerbatimKind
    key: Hashable
    name: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """Records that follow count only once the transaction ends (KIP-868)."""


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    """The records since the transaction's begin count."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    """The records since the transaction's begin do not count."""


MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | VerbatimRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)


def _partition(reader: FieldReader, version: int) -> PartitionRecord:
    partition = reader.int32()
    topic_id = id_text(reader.uuid())
    replicas = reader.int32s()
    isr = reader.int32s()
    reader.int32s()  # removing replicas
    reader.int32s()  # adding replicas
    leader = reader.int32()
    leader_epoch = reader.int32()
    reader.int32()  # partition epoch
    if version >= 1:
        reader.take(reader.count(least_bytes=UUID_BYTES) * UUID_BYTES)  # directories
    return PartitionRecord(topic_id, partition, replicas, isr, leader, leader_epoch)


def _partition_change(reader: FieldReader, version: int) -> PartitionChangeRecord:
    partition = reader.int32()
    topic_id = id_text(reader.uuid())
    tags = reader.tagged()
    return PartitionChangeRecord(
        topic_id,
        partition,
        replicas=reader.nested(tags[2]).nullable_int32s() if 2 in tags else None,
        isr=reader.nested(tags[0]).nullable_int32s() if 0 in tags else None,
        leader=reader.nested(tags[1]).int32() if 1 in tags else NO_LEADER_CHANGE,
    )


def _config(reader: FieldReader, version: int) -> ConfigRecord:
    return ConfigRecord(reader.int8(), reader.string(), reader.string(), reader.nullable_string())


def _producer_ids(reader: FieldReader, version: int) -> ProducerIdsRecord:
    reader.int32()  # broker
    reader.int64()  # its epoch
    return ProducerIdsRecord(reader.int64())


def _acl(reader: FieldReader, version: int) -> VerbatimRecord:
    key = reader.uuid()
    reader.int8()  # resource type
    reader.string()  # resource
    reader.int8()  # pattern type
    principal = reader.string()
    reader.string()  # host
    reader.int8()  # operation
    reader.int8()  # permission
    return VerbatimRecord(VerbatimKind.ACL, key, principal, b"")


def _removed_acl(reader: FieldReader, version: int) -> VerbatimRecord:
    return VerbatimRecord(VerbatimKind.ACL, reader.uuid(), "", None)


def _scram(reader: FieldReader, version: int) -> VerbatimRecord:
    name, mechanism = reader.string(), reader.int8()
    for _secret in ("salt", "stored key", "server key"):
        reader.nullable_bytes()
    reader.int32()  # iterations
    return VerbatimRecord(VerbatimKind.SCRAM, (name, mechanism), name, b"")


def _removed_scram(reader: FieldReader, version: int) -> VerbatimRecord:
    name, mechanism = reader.string(), reader.int8()
    return VerbatimRecord(VerbatimKind.SCRAM, (name, mechanism), name, None)


def _quota(reader: FieldReader, version: int) -> VerbatimRecord:
    entity = []
    for _ in range(reader.count(least_bytes=3)):
        entity.append((reader.string(), reader.nullable_string()))
        reader.tagged()
    limit = reader.string()
    reader.int64()  # the value, a double
    removed = reader.int8()
    name = ", ".join(f"{kind} {'<default>' if one is None else one}" for kind, one in entity)
    key = (tuple(sorted(entity, key=str)), limit)
    return VerbatimRecord(VerbatimKind.QUOTA, key, name, None if removed else b"")


def _token(reader: FieldReader, version: int) -> VerbatimRecord:
    owner = reader.string()
    reader.string()  # requester
    for _ in range(reader.count(least_bytes=1)):
        reader.string()  # a renewer
    for _time in ("issued", "at most until", "expires"):
        reader.int64()
    return VerbatimRecord(VerbatimKind.TOKEN, reader.string(), owner, b"")


def _removed_token(reader: FieldReader, version: int) -> VerbatimRecord:
    return VerbatimRecord(VerbatimKind.TOKEN, reader.string(), "", None)


@dataclass(frozen=True, slots=True)
class _Schema:
    """How to read the message of an api key. `tags_read`: `read` reads the tagged fields itself."""

    name: str
    highest_version: int
    read: Callable[[FieldReader, int], MetadataRecord]
    tags_read: bool = False


_SCHEMAS = {
    2: _Schema("TopicRecord", 0, lambda reader, version: TopicRecord(reader.string(), id_text(reader.uuid()))),
    3: _Schema("PartitionRecord", 2, _partition),
    4: _Schema("ConfigRecord", 0, _config),
    5: _Schema("PartitionChangeRecord", 2, _partition_change, tags_read=True),
    9: _Schema("RemoveTopicRecord", 0, lambda reader, version: RemoveTopicRecord(id_text(reader.uuid()))),
    10: _Schema("DelegationTokenRecord", 0, _token),
    11: _Schema("UserScramCredentialRecord", 0, _scram),
    12: _Schema("FeatureLevelRecord", 0, lambda reader, version: FeatureLevelRecord(reader.string(), reader.int16())),
    14: _Schema("ClientQuotaRecord", 0, _quota),
    15: _Schema("ProducerIdsRecord", 0, _producer_ids),
    18: _Schema("AccessControlEntryRecord", 0, _acl),
    19: _Schema("RemoveAccessControlEntryRecord", 0, _removed_acl),
    22: _Schema("RemoveUserScramCredentialRecord", 0, _removed_scram),
    23: _Schema("BeginTransactionRecord", 0, lambda reader, version: BeginTransactionRecord()),
    24: _Schema("EndTransactionRecord", 0, lambda reader, version: EndTransactionRecord()),
    25: _Schema("AbortTransactionRecord", 0, lambda reader, version: AbortTransactionRecord()),
    26: _Schema("RemoveDelegationTokenRecord", 0, _removed_token),
}


def decode(data: bytes) -> MetadataRecord | None:
    """The record in a value's bytes; None for a kind that is not needed here.

    CorruptCheckpoint when it does not parse, UnsupportedFormat for an undefined version.
    """
    reader = FieldReader(data, "metadata record", CorruptCheckpoint, flexible=True)
    frame = reader.uvarint()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormat("unknown frame of a metadata record", expected=_FRAME_VERSION, found=frame)
    schema = _SCHEMAS.get(reader.uvarint())
    version = reader.uvarint()
    if schema is None:
        return None
    if version > schema.highest_version:
        raise UnsupportedFormat(
            f"unknown version of {schema.name}", expected=f"0 to {schema.highest_version}", found=version
        )
    record = schema.read(reader, version)
    if not schema.tags_read:
        reader.tagged()
    if reader.remaining():
        raise CorruptCheckpoint(f"{schema.name} is followed by {reader.remaining()} stray bytes")
    if isinstance(record, VerbatimRecord) and record.value is not None:
        return replace(record, value=data)
    return record
