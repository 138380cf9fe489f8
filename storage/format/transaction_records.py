"""Records of `__transaction_state`: what the transaction coordinators know of each transactional id.

A key or value is an int16 version and fields (`message_fields`); a null value deletes the id. Sources: the schemas
TransactionLogKey and TransactionLogValue of Kafka 4.3, TransactionState.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from storage.errors import CorruptData, UnsupportedFormat
from storage.format.message_fields import FieldReader
from storage.types import TopicPartition

_VERSION: Final = struct.Struct(">h")
_KEY_VERSION: Final = 0
_HIGHEST_VALUE: Final = 1
_FIRST_FLEXIBLE: Final = 1
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = range(3)  # tags
NO_ID: Final = -1


class TransactionState(IntEnum):
    """Kafka's TransactionState. In the PREPARE states the outcome is certain, and markers are being written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """As Kafka's tools print it: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionMetadata(NamedTuple):
    """The last state of a transactional id. Timestamps in epoch ms, `start_timestamp` -1: no transaction has begun.

    `partitions`: of the transaction, in the PREPARE states those whose marker is not written yet. Ids of -1: none.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    last_update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0


def parse_key(data: bytes) -> str | None:
    """The transactional id of a record; None for a kind that is not known, which a coordinator ignores. CorruptData."""
    what = "key of a transaction's record"
    if _version(data, what) != _KEY_VERSION:
        return None
    return FieldReader(data[_VERSION.size :], what, flexible=False).string()


def parse_value(data: bytes) -> TransactionMetadata:
    """A TransactionLogValue of any version. CorruptData; UnsupportedFormat for an undefined version or state."""
    what = "transaction's state"
    version = _version(data, what)
    if not 0 <= version <= _HIGHEST_VALUE:
        raise UnsupportedFormat(f"unknown version of a {what}", expected=f"0 to {_HIGHEST_VALUE}", found=version)
    flexible = version >= _FIRST_FLEXIBLE
    reader = FieldReader(data[_VERSION.size :], what, flexible=flexible)
    producer_id, epoch, timeout_ms, number = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    try:
        state = TransactionState(number)
    except ValueError:
        raise UnsupportedFormat(f"unknown {what}", expected="0 to 7", found=number) from None
    partitions: list[TopicPartition] = []
    for _ in range(reader.nullable_count(least_bytes=2)):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in range(reader.count(least_bytes=4))]
        if flexible:
            reader.tagged()
    updated, started = reader.int64(), reader.int64()
    tags = reader.tagged() if flexible else {}
    before, after = (
        reader.nested(tags[tag]).int64() if tag in tags else NO_ID for tag in (_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID)
    )
    client_version = reader.nested(tags[_CLIENT_VERSION]).int16() if _CLIENT_VERSION in tags else 0
    return TransactionMetadata(
        producer_id, epoch, timeout_ms, state, tuple(partitions), updated, started, before, after, client_version
    )


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise CorruptData(f"{what} is cut off", found=f"{len(data)} bytes")
    return int(_VERSION.unpack_from(data)[0])
