"""Records of KRaft's metadata log, as far as they tell of topics, partitions and configurations. Read only.

A record's value is a frame: unsigned varints frame version (1), api key, version; then the message in Kafka's flexible
encoding: lengths as unsigned varint n + 1 (0 is null), tagged fields at the end. Sources: MetadataRecordSerde,
ByteBufferAccessor, and the schemas `common/metadata/*.json` of Kafka 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from storage.errors import CorruptCheckpoint, UnsupportedFormat
from storage.files.partition_metadata import id_text

_FRAME_VERSION = 1
_INT32 = struct.Struct(">i")
_INT8 = struct.Struct(">b")
_ID_BYTES = 16

NO_LEADER_CHANGE = -2

_T = TypeVar("_T")


class ResourceType(IntEnum):
    """What a ConfigRecord configures (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was made."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition was made, or (in a snapshot) is. Node ids; leader -1: none."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """A partition changed. None, and a leader of -2, mean: as before."""

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
    """A key was set, or deleted when `value` is None. `resource_type` may be one that ResourceType has not."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """What follows counts only once the transaction ends (KIP-868)."""


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    """What came since the transaction's begin counts."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    """What came since the transaction's begin is void."""


MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)


class _Reader:
    """Reads primitives one after the other; every length is checked before it is used."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def remaining(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        if count > self.remaining():
            raise CorruptCheckpoint(
                "metadata record is cut off", position=self._position, expected=f"{count} bytes", found=self.remaining()
            )
        start = self._position
        self._position = start + count
        return self._data[start : self._position]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise CorruptCheckpoint("metadata record holds an overlong varint", position=self._position)

    def int8(self) -> int:
        return int(_INT8.unpack(self.take(1))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def topic_id(self) -> str:
        return id_text(self.take(_ID_BYTES))

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1
        if length < 0:
            return None
        start = self._position
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptCheckpoint("metadata record holds text that is not UTF-8", position=start) from None

    def string(self) -> str:
        return self._not_null(self.nullable_string())

    def nullable_int32s(self) -> tuple[int, ...] | None:
        count = self.uvarint() - 1
        if count < 0:
            return None
        data = self.take(count * _INT32.size)
        return struct.unpack(f">{count}i", data)

    def int32s(self) -> tuple[int, ...]:
        return self._not_null(self.nullable_int32s())

    def skip_ids(self) -> None:
        self.take((self._not_null(self.uvarint() or None) - 1) * _ID_BYTES)

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields, undecoded, by tag."""
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

    def _not_null(self, value: _T | None) -> _T:
        if value is None:
            raise CorruptCheckpoint("metadata record lacks a field that must not be null", position=self._position)
        return value


def _topic(reader: _Reader, version: int) -> TopicRecord:
    return TopicRecord(reader.string(), reader.topic_id())


def _partition(reader: _Reader, version: int) -> PartitionRecord:
    partition = reader.int32()
    topic_id = reader.topic_id()
    replicas = reader.int32s()
    isr = reader.int32s()
    reader.int32s()  # removing replicas
    reader.int32s()  # adding replicas
    leader = reader.int32()
    leader_epoch = reader.int32()
    reader.int32()  # partition epoch
    if version >= 1:
        reader.skip_ids()  # directories
    return PartitionRecord(topic_id, partition, replicas, isr, leader, leader_epoch)


def _partition_change(reader: _Reader, version: int) -> PartitionChangeRecord:
    partition = reader.int32()
    topic_id = reader.topic_id()
    tags = reader.tagged()
    return PartitionChangeRecord(
        topic_id,
        partition,
        replicas=_Reader(tags[2]).nullable_int32s() if 2 in tags else None,
        isr=_Reader(tags[0]).nullable_int32s() if 0 in tags else None,
        leader=_Reader(tags[1]).int32() if 1 in tags else NO_LEADER_CHANGE,
    )


def _config(reader: _Reader, version: int) -> ConfigRecord:
    return ConfigRecord(reader.int8(), reader.string(), reader.string(), reader.nullable_string())


@dataclass(frozen=True, slots=True)
class _Schema:
    """How to read an api key's message; `tags_read`: the reader has taken the tagged fields itself."""

    name: str
    highest_version: int
    read: Callable[[_Reader, int], MetadataRecord]
    tags_read: bool = False


_SCHEMAS = {
    2: _Schema("TopicRecord", 0, _topic),
    3: _Schema("PartitionRecord", 2, _partition),
    4: _Schema("ConfigRecord", 0, _config),
    5: _Schema("PartitionChangeRecord", 2, _partition_change, tags_read=True),
    9: _Schema("RemoveTopicRecord", 0, lambda reader, version: RemoveTopicRecord(reader.topic_id())),
    23: _Schema("BeginTransactionRecord", 0, lambda reader, version: BeginTransactionRecord()),
    24: _Schema("EndTransactionRecord", 0, lambda reader, version: EndTransactionRecord()),
    25: _Schema("AbortTransactionRecord", 0, lambda reader, version: AbortTransactionRecord()),
}


def decode(data: bytes) -> MetadataRecord | None:
    """The record in a value's bytes; None when it is of a kind that has nothing to say here.

    CorruptCheckpoint when it does not parse, UnsupportedFormat when it is of a version that nobody has defined.
    """
    reader = _Reader(data)
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
    return record
