"""Records of KRaft's metadata log: as they are read by definition, and those with which a new cluster begins.

`metadata_checkpoint` writes these. ACLs, SCRAM credentials, quotas and delegation tokens are carried over as they
are. Sources: MetadataRecordSerde, and the schemas `common/metadata/*.json` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from storage.errors import (
    CorruptCheckpoint,
    StorageError,
    UnsupportedFormat,
)
from storage.files.names import CLUSTER_METADATA_TOPIC
from storage.format.block import RecordBlock
from storage.format.messages import Held, UnknownRecordType, messages

# Types whose later versions are passed over: they say nothing about topics, nor about anything that a new cluster takes
# over. Brokers, controllers, NoOp, ZkMigrationState, ClearElr.
_PASSED_OVER = {bytes([number]) for number in (0, 1, 7, 8, 17, 20, 21, 27, 28, 29)}


class ResourceType(IntEnum):
    """The kind of resource that a ConfigRecord configures (Kafka's ConfigResource.Type)."""

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
    """The content of a VerbatimRecord, in words."""

    ACL = "ACLs"
    SCRAM = "SCRAM credentials"
    QUOTA = "quotas"
    TOKEN = "delegation tokens"


@dataclass(frozen=True, slots=True)
class VerbatimRecord:
    """A record whose bytes stay as they are. `name`: whom it concerns, for a person; never a secret."""

    kind: VerbatimKind
    name: str
    value: bytes


class MetadataRecord(NamedTuple):
    """A record of the log: its type, for example TOPIC_RECORD, its fields, and its bytes."""

    kind: str
    data: dict[str, Any]
    raw: bytes


def decode_block(block: RecordBlock, held: Held | None = None) -> Iterator[MetadataRecord | StorageError | None]:
    """The record in each row; None for a type that is not defined here; CorruptCheckpoint when it does not parse,
    UnsupportedFormat for an undefined version. `held`: as of `Messages.objects`. TooManyKeys."""
    for row, (_, value, error) in enumerate(messages(CLUSTER_METADATA_TOPIC).objects(block, held=held)):
        if value is not None:
            yield MetadataRecord(value["type"], value["data"], block.value(row) or b"")
        else:
            yield _unread(error, block.value(row))


def _unread(error: StorageError | None, raw: bytes | None) -> StorageError | None:
    if isinstance(error, UnknownRecordType):
        return None
    if isinstance(error, UnsupportedFormat) and raw is not None and raw[1:2] in _PASSED_OVER:
        return None
    what = "metadata record is null" if error is None else f"metadata {error.what}"
    return (UnsupportedFormat if isinstance(error, UnsupportedFormat) else CorruptCheckpoint)(what)


BROKER, CONTROLLER, FEATURE, PRODUCER_IDS = "broker", "controller", "feature", "producer ids"
