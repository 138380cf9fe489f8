"""A log at one moment, for readers: its segments, and where it begins and ends.

A snapshot never changes. Readers take one and need no lock; when its files change, a log provides a new one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from storage.errors import OffsetOutOfRange
from storage.files.leader_epochs import LeaderEpochs
from storage.format.batches import BatchTable
from storage.log.segment import Segment
from storage.types import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from storage.files.dir_identity import DirIdentity


_ELSEWHERE: Final = "in tiered storage, not in this directory (--tier PATH reads"


class DecidingMarker(NamedTuple):
    """The last of the markers that decided about some transactions: its segment, and its offset."""

    segment: Segment
    offset: int


class TransactionOutcomes(Protocol):
    """A log's transactions; implemented in `isolation`. Thread-safe."""

    def last_stable_offset(self, snapshot: LogSnapshot, on_bytes: Callable[[int], None] = lambda _: None) -> int:
        """The offset (excluded) up to which a reader of committed messages may read. `on_bytes` is called with the
        number of file bytes of each step, if any are read."""

    def aborted_rows(
        self, snapshot: LogSnapshot, segment: Segment, table: BatchTable, rows: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.uint8], list[DecidingMarker]]:
        """Return 1 for each row of the transactional `rows` of a segment's batches that was aborted, by row of the
        table; and for each segment the last marker that decided about them, commits included."""


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A log at one moment.

    `segments`: by ascending base offset; the last is the active one. `log_start_offset` (included) to `log_end_offset`
    (excluded) is what may be read: records below it may still be in the files, and a batch may begin below it.
    `remote_offsets`: earlier offsets that the log has in tiered storage (Kafka's log start offset is the first of them,
    and `log_start_offset` its local log start offset); None if there are none, or the segments have them too.
    `active_end`: bytes of the last segment that are whole valid batches; `active_size`: bytes of its file, more if the
    tail is torn, garbage, preallocated or being written. `generation`: how many truncations were seen
    (storage.log.lineage); within one, an offset below `log_end_offset` keeps its meaning. `epochs`: from the log's
    leader-epoch-checkpoint. `last_batch_end`: if `log_end_offset` is within a batch (`storage.log.earlier`), the offset
    after this batch. `identity`: of the directory, as far as it is known, for a log that another process writes.
    """

    tp: TopicPartition
    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    active_end: int
    active_size: int
    generation: int
    transactions: TransactionOutcomes = field(repr=False, compare=False)
    identity: DirIdentity | None = field(default=None, repr=False, compare=False)
    remote_offsets: OffsetRange | None = None
    epochs: LeaderEpochs = field(default=LeaderEpochs(), repr=False, compare=False)
    last_batch_end: int = 0

    @property
    def active(self) -> Segment | None:
        """The last segment; None if the directory has none."""
        return self.segments[-1] if self.segments else None

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, the active one up to its valid end."""
        return sum(segment.size for segment in self.segments[:-1]) + self.active_end

    @property
    def whole_start_offset(self) -> int:
        """The first offset of the log, in tiered storage or in the directory."""
        return self.log_start_offset if self.remote_offsets is None else self.remote_offsets.start

    @property
    def remote(self) -> tuple[Segment, ...]:
        """The segments in tiered storage, which come before all others."""
        return self.segments[: bisect_left(self.segments, True, key=lambda segment: not segment.is_remote)]

    @property
    def local_log_start_offset(self) -> int:
        """The first offset in the directory (Kafka's local log start offset); for a backup in a store, its first."""
        remote = len(self.remote)
        is_tiered = 0 < remote < len(self.segments)
        return max(self.segments[remote].base_offset, self.log_start_offset) if is_tiered else self.log_start_offset

    @property
    def remote_note(self) -> str | None:
        """A note for people about messages that are not in the directory; None if there are none."""
        remote = self.remote_offsets
        if remote is None:
            return None
        return f"{self.tp}: messages {remote.start} to {remote.end - 1} are {_ELSEWHERE} them)"

    @property
    def why_not_earlier(self) -> str:
        """The reason why messages before `log_start_offset` cannot be read."""
        begins = f"the log begins at {self.log_start_offset}"
        remote = self.remote_offsets
        return begins if remote is None else f"{begins} here, {remote.start} to {remote.end - 1} are in tiered storage"

    def end_position(self, segment: Segment) -> int:
        """The byte position where a segment's messages end."""
        return self.active_end if self.segments and segment is self.segments[-1] else segment.size

    def segment_index(self, offset: int) -> int:
        """The index of the segment whose range holds `offset`, the last with a base offset up to it; -1 if none."""
        return bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange for an offset below the log start or above the log end, as a fetch does."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self.out_of_range(f"offset is out of the range of {self.tp}", offset)

    def out_of_range(self, what: str, offset: int) -> OffsetOutOfRange:
        """The error for an offset that may not be read: `what`, or that it is in tiered storage."""
        remote = self.remote_offsets
        if remote is not None and remote.start <= offset < remote.end:
            what = f"offset of {self.tp} is {_ELSEWHERE} it)"
        return OffsetOutOfRange(what, offset=offset, expected=f"{self.log_start_offset} to {self.log_end_offset}")


class ReadableLog(Protocol):
    """A partition's log for readers."""

    tp: TopicPartition
    path: Path

    def snapshot(self) -> LogSnapshot:
        """The log in its present state; the same object as before if nothing has changed. Thread-safe.

        UnknownTopicOrPartition if the partition's directory was removed.
        """
