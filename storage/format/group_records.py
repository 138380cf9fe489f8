"""Records of `__consumer_offsets`: the offsets that consumer groups have committed, and the groups' members.

A key or value is an int16 version and fields (`message_fields`); a null value deletes the entry of its key. Sources:
the schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey, GroupMetadataValue of Kafka 4.3, OffsetAndMetadata,
GroupCoordinatorRecordHelpers. See storage/DESIGN.md, "Consumer groups".
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from storage.errors import CorruptData, InvalidRecord, UnsupportedFormat
from storage.format.message_fields import FieldReader

NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

_VERSION: Final = struct.Struct(">h")
_FIRST_FLEXIBLE: Final = 4  # of both kinds of values
_HIGHEST_VALUE: Final = 4
# Up to the length of the metadata, by version of an OffsetCommitValue: version, offset, (leader epoch,) length.
_HEAD: Final = struct.Struct(">hqh")
_HEAD_V3: Final = struct.Struct(">hqih")
_V4_LENGTH: Final = 14  # where the metadata's length is: a varint of one byte, mostly
_ONE_BYTE: Final = 0x7F
_INT64: Final = struct.Struct(">q")
_OFFSET_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2
# A member is deleted after its assignments, and the group after everything that belongs to it: a coordinator that reads
# deletions in another order refuses to start (GroupMetadataManager.replay). By version: current assignment, target
# assignment of a member, of the group, member, topics or topology, regular expressions, the group. Share groups are not
# included: their state is elsewhere, and they commit nothing.
_COORDINATOR_KEYS: Final = (8, 7, 6, 5, 4, 16, 3, 22, 21, 20, 19, 23, 17)
_RANKS: Final = {version: rank for rank, version in enumerate(_COORDINATOR_KEYS)}
_STREAMS_KEYS: Final = range(17, 24)
_SHARE_KEYS: Final = range(10, 16)
_WRITTEN_KEY: Final = 1
# Brokers from 2.1 on read version 3; version 4, which 4.3 writes, only those from 3.5 on.
_WRITTEN_VALUE: Final = 3
_MAX_STRING_BYTES: Final = 2**15 - 1


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's members and generation (classic protocol)."""

    group: str


class CoordinatorKey(NamedTuple):
    """The key of other state of a group of the newer protocols (consumer groups of KIP-848, streams groups): its epoch,
    members, their assignments. `rank`: the order in which a coordinator accepts the deletions."""

    group: str
    rank: int


class CommittedOffset(NamedTuple):
    """The next offset that a group will read. `leader_epoch` -1: unknown. Timestamps are in epoch ms;
    `expire_timestamp` -1: the broker's retention applies."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str


class GroupMetadata(NamedTuple):
    """A group of the classic protocol as of its last rebalance. `protocol`, `leader`: None without members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[Member, ...]


def parse_key(data: bytes) -> OffsetKey | GroupKey | CoordinatorKey | None:
    """The key of a record; None for kinds that are not needed here (share groups). CorruptData."""
    version = _version(data, "key of a group's record")
    reader = FieldReader(data[_VERSION.size :], "key of a group's record", flexible=False)
    if version in _OFFSET_KEYS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY:
        return GroupKey(reader.string())
    rank = _RANKS.get(version)
    return None if rank is None else CoordinatorKey(reader.string(), rank)


def share_group_of(data: bytes) -> str | None:
    """The group of a record's key if it is a share group (KIP-932); None for other kinds. CorruptData."""
    what = "key of a group's record"
    if _version(data, what) not in _SHARE_KEYS:
        return None
    return FieldReader(data[_VERSION.size :], what, flexible=False).string()


def is_of_streams(data: bytes) -> bool:
    """Whether a record's key is one of a streams group (KIP-1071). CorruptData."""
    return _version(data, "key of a group's record") in _STREAMS_KEYS


def parse_commit(data: bytes) -> CommittedOffset:
    """An OffsetCommitValue of any version. CorruptData; UnsupportedFormat for an undefined version."""
    version = _value_version(data, "committed offset")
    # Read without FieldReader, which would take four times as long: there may be millions.
    epoch, expires = NO_LEADER_EPOCH, NO_EXPIRY
    try:
        if version >= 3:
            _, offset, epoch, length = _HEAD_V3.unpack_from(data)
            start = _HEAD_V3.size
            if version >= _FIRST_FLEXIBLE:
                length = data[_V4_LENGTH] - 1
                start = _V4_LENGTH + 1
                if length >= _ONE_BYTE:
                    return _parse_long_commit(data)
        else:
            _, offset, length = _HEAD.unpack_from(data)
            start = _HEAD.size
        end = start + length
        if length < 0:
            raise CorruptData("committed offset lacks its metadata")
        metadata = data[start:end].decode() if length else ""
        (committed,) = _INT64.unpack_from(data, end)
        if version == 1:
            (expires,) = _INT64.unpack_from(data, end + _INT64.size)
    except struct.error:
        raise CorruptData("committed offset is cut off", found=f"{len(data)} bytes") from None
    except UnicodeDecodeError:
        raise CorruptData("committed offset holds text that is not UTF-8") from None
    # In version 4 tagged fields may follow; tag 0 is the topic's id.
    return CommittedOffset(offset, epoch, metadata, committed, expires)


def _parse_long_commit(data: bytes) -> CommittedOffset:
    """Version 4 with metadata of more than 126 bytes."""
    reader = FieldReader(data[_VERSION.size :], "committed offset", flexible=True)
    return CommittedOffset(reader.int64(), reader.int32(), reader.string(), reader.int64())


def parse_group(data: bytes) -> GroupMetadata:
    """A GroupMetadataValue of any version. Errors as `parse_commit`."""
    version = _value_version(data, "group's metadata")
    reader = FieldReader(data[_VERSION.size :], "group's metadata", flexible=version >= _FIRST_FLEXIBLE)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    if version >= 2:
        reader.int64()  # when its state last changed
    count = reader.count(least_bytes=1)
    members = tuple(_member(reader, version) for _ in range(count))
    if version >= _FIRST_FLEXIBLE:
        reader.tagged()
    return GroupMetadata(protocol_type, generation, protocol, leader, members)


def _member(reader: FieldReader, version: int) -> Member:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    if version >= 1:
        reader.int32()  # rebalance timeout
    reader.int32()  # session timeout
    reader.nullable_bytes()  # subscription
    reader.nullable_bytes()  # assignment
    if version >= _FIRST_FLEXIBLE:
        reader.tagged()
    return Member(member_id, instance_id, client_id, client_host)


def encode_offset_key(key: OffsetKey) -> bytes:
    """An OffsetCommitKey as brokers write it, version 1. InvalidRecord for texts that do not fit."""
    return _VERSION.pack(_WRITTEN_KEY) + _string(key.group) + _string(key.topic) + struct.pack(">i", key.partition)


def encode_group_key(group: str) -> bytes:
    """A GroupMetadataKey. InvalidRecord as `encode_offset_key`."""
    return _VERSION.pack(_GROUP_KEY) + _string(group)


def encode_commit(committed: CommittedOffset) -> bytes:
    """An OffsetCommitValue, version 3 (without `expire_timestamp`). InvalidRecord as `encode_offset_key`."""
    head = struct.pack(">hqi", _WRITTEN_VALUE, committed.offset, committed.leader_epoch)
    return head + _string(committed.metadata) + _INT64.pack(committed.commit_timestamp)


def _string(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("a group's name or metadata is not valid Unicode text", found=ascii(text)) from None
    if len(data) > _MAX_STRING_BYTES:
        raise InvalidRecord("a group's name or metadata is too long", expected=f"at most {_MAX_STRING_BYTES} bytes")
    return struct.pack(">h", len(data)) + data


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise CorruptData(f"{what} is cut off", found=f"{len(data)} bytes")
    return int(_VERSION.unpack_from(data)[0])


def _value_version(data: bytes, what: str) -> int:
    version = _version(data, what)
    if not 0 <= version <= _HIGHEST_VALUE:
        raise UnsupportedFormat(f"unknown version of a {what}", expected=f"0 to {_HIGHEST_VALUE}", found=version)
    return version
