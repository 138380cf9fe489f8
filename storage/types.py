"""Values shared by all packages. `offset` always means a record offset, `position` always a byte position."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from types import ModuleType
from typing import NamedTuple

MAX_OFFSET = 2**63 - 1
NO_TIMESTAMP = -1


class TimestampType(IntEnum):
    """Kafka's TimestampType: attribute bit 3 of a batch; NO_TIMESTAMP_TYPE is format v0."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Isolation(Enum):
    """A consumer's isolation.level."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """Kafka's TopicPartition. Ordered by topic, then partition."""

    topic: str
    partition: int

    @property
    def dir_name(self) -> str:
        """The partition's directory within a log directory."""
        return f"{self.topic}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` (included) to `end` (excluded)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps from `start_ms` (included) to `end_ms` (excluded), epoch milliseconds; None is open."""

    start_ms: int | None
    end_ms: int | None


class OffsetPosition(NamedTuple):
    """An entry of an .index: a batch's last offset and the position where the batch begins."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp (epoch milliseconds) and the offset it belongs to: an entry of a .timeindex, a ListOffsets answer."""

    timestamp: int
    offset: int


def is_compiled(kernel: ModuleType) -> bool:
    """Whether a module with hot loops is the extension module that Cython has made, and not the plain Python file."""
    return not str(kernel.__file__).endswith(".py")
