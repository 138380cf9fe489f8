"""Values that a PartitionLog exchanges with its callers: what recovery passes to it, what an append returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.append.producer_table import ProducerTable
from storage.files.disk_protocol import Buffer
from storage.files.leader_epochs import LeaderEpochs
from storage.log.segment import Segment
from storage.types import OffsetRange

# Returns the bytes of an append with this base offset and leader epoch.
BytesAt = Callable[[int, int], Buffer]


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log as recovery left it on disk: sound segments (at least one), the last of which is the active one.

    All bytes of the last segment are messages. `next_offset`: the log end offset. `producers` are as of that offset.
    `remote_offsets`: see LogSnapshot.
    """

    segments: Sequence[Segment]
    next_offset: int
    log_start_offset: int
    recovery_point: int
    producers: ProducerTable
    epochs: LeaderEpochs
    producer_expiration_ms: int = 86_400_000
    remote_offsets: OffsetRange | None = None
