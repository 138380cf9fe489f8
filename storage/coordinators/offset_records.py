"""Records of `__consumer_offsets`: which kinds there are, and committed offsets as they are written here. `messages`
reads them all.

Sources: the schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey of Kafka 4.3, OffsetAndMetadata,
GroupCoordinatorRecordHelpers. See storage/DESIGN.md, "Consumer groups".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from storage.errors import InvalidRecord

NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

OFFSET_KINDS: Final = (0, 1)
METADATA_KIND: Final = 2  # of a classic group
_VERSION: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_WRITTEN_KEY: Final = 1
# Brokers from 2.1 on read version 3; version 4, which 4.3 writes, only those from 3.5 on.
_WRITTEN_VALUE: Final = 3
_MAX_STRING_BYTES: Final = 2**15 - 1


class GroupType(StrEnum):
    """Kafka's Group.GroupType: the protocol of a group's members."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071


def group_type(kind: int) -> GroupType:
    """The type of the group that a record of this type belongs to."""
    if kind <= METADATA_KIND:
        return GroupType.CLASSIC
    return GroupType.SHARE if 10 <= kind <= 15 else GroupType.STREAMS if kind >= 17 else GroupType.CONSUMER


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The next offset that a group will read. `leader_epoch` -1: unknown. Timestamps are in epoch ms;
    `expire_timestamp` -1: the broker's retention applies."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CommittedOffset:
        """The offset in an OffsetCommitValue of any version, as `messages` reads it."""
        return cls(
            data["offset"],
            data.get("leaderEpoch", NO_LEADER_EPOCH),
            data["metadata"],
            data["commitTimestamp"],
            data.get("expireTimestamp", NO_EXPIRY),
        )


def encode_offset_key(key: OffsetKey) -> bytes:
    """An OffsetCommitKey as brokers write it, version 1. InvalidRecord for texts that do not fit."""
    return _VERSION.pack(_WRITTEN_KEY) + _string(key.group) + _string(key.topic) + struct.pack(">i", key.partition)


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
