"""Records of `__transaction_state`: what the transaction coordinator knows of each transactional id.

Key: int16 version 0, the id as a string. Value: int16 version, then the fields of `TransactionLogValue`; a null value
forgets the id. Version 1 is flexible. Sources: Kafka's TransactionLog, TransactionLogKey.json, TransactionLogValue.json
(4.3), TransactionState.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from storage.errors import CorruptData, UnsupportedFormat
from storage.format.message_fields import FieldReader
from storage.types import TopicPartition

_VERSION: Final = struct.Struct(">h")
_HIGHEST_VALUE: Final = 1
_PREVIOUS_PRODUCER_ID: Final = 0  # tags
_NEXT_PRODUCER_ID: Final = 1


class TransactionState(IntEnum):
    """Kafka's TransactionState, by its id."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_open(self) -> bool:
        """Whether markers are still to be written."""
        return self in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        )


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transactional id's producer and state. `partitions`: those that its transaction has written to.
    `other_producer_ids`: the ones before and after this one, where the record has them."""

    producer_id: int
    producer_epoch: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    other_producer_ids: tuple[int, ...] = ()

    @property
    def greatest_producer_id(self) -> int:
        return max(self.producer_id, *self.other_producer_ids, -1)


def parse_key(data: bytes) -> str | None:
    """The transactional id; None for a key of another version, which brokers skip. CorruptData."""
    reader = FieldReader(data[_VERSION.size :], "key of a transaction's record", flexible=False)
    return reader.string() if _version(data) == 0 else None


def parse_value(data: bytes) -> TransactionMetadata:
    """A TransactionLogValue. CorruptData; UnsupportedFormat for an undefined version or state."""
    version = _version(data)
    if not 0 <= version <= _HIGHEST_VALUE:
        what = "unknown version of a transaction's record"
        raise UnsupportedFormat(what, expected=f"0 to {_HIGHEST_VALUE}", found=version)
    reader = FieldReader(data[_VERSION.size :], "transaction's record", flexible=version > 0)
    producer_id, epoch = reader.int64(), reader.int16()
    reader.int32()  # timeout
    status = reader.int8()
    partitions = frozenset(_partitions(reader, flexible=version > 0))
    reader.int64()  # last update
    reader.int64()  # start
    tags = reader.tagged() if version > 0 else {}
    others = [tags[tag] for tag in (_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID) if tag in tags]
    try:
        state = TransactionState(status)
    except ValueError:
        raise UnsupportedFormat("unknown state of a transaction", expected="0 to 7", found=status) from None
    return TransactionMetadata(
        producer_id, epoch, state, partitions, tuple(reader.nested(other).int64() for other in others)
    )


def _partitions(reader: FieldReader, *, flexible: bool) -> list[TopicPartition]:
    count = reader.uvarint() - 1 if flexible else reader.int32()
    found = []
    for _ in range(count):  # a null array has the count -1
        topic = reader.string()
        numbers = [reader.int32() for _ in range(reader.count(least_bytes=4))]
        if flexible:
            reader.tagged()
        found += [TopicPartition(topic, number) for number in numbers]
    return found


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise CorruptData("transaction's record is cut off", found=f"{len(data)} bytes")
    return int(_VERSION.unpack_from(data)[0])
