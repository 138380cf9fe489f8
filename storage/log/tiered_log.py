"""A log whose older segments are in a tier, and whose newer segments are in its directory, as one log.

Remote segments are ordinary Segments of the snapshot, before the local ones, so readers need not know of them. When
local retention removes a segment, the next snapshot has a remote Segment for its offsets: readers see this like
compaction, as another file for the same offsets. Offsets that no segment in the tier has are a Segment whose bytes
cannot be read: readers show the messages before and after it, and fail there.

    local segments, where the log begins and ends           from the local log, at each look
    remote segments, and which of them count                when the first local segment, the log start or the leader
                                                            epochs have changed, a read has failed or something is
                                                            missing
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final

from storage.errors import CorruptCheckpoint, StorageError
from storage.files import leader_epochs, names
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import FileIdentity
from storage.files.names import FileKind, segment_file
from storage.files.opening import exists
from storage.log.isolation import Transactions
from storage.log.remote_lineage import Candidate, Slice, behind_deleted, counted_slices, cover, lineage_of
from storage.log.remote_metadata import KnownSegment, RemoteState, ascending_epochs
from storage.log.scanning import last_offset_before, scan_batches
from storage.log.segment import LOOKUP_BYTES, Segment
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.log.tiered_file import REQUESTS_AT_ONCE, RemoteSpan, TieredFile
from storage.tier.remote_segments import RemoteSegment
from storage.types import MAX_OFFSET, TopicPartition

_AGAIN_S: Final = 5.0  # after something was missing


@dataclass(frozen=True, slots=True)
class RemotePart:
    """Where a log's remote segments are looked up, each time they are needed.

    `segments`: those in the tier (TierUnavailable), listed anew if it is called with True; `known`: those in the
    broker's metadata, None without metadata. `start`: where the log begins, None if that is unknown.
    """

    segments: Callable[[bool], Sequence[RemoteSegment]]
    known: Callable[[], Mapping[str, KnownSegment] | None]
    start: Callable[[], int | None]


class TieredLog:
    """A `ReadableLog` that adds remote segments to a local log. Thread-safe."""

    def __init__(self, local: ReadableLog, remote: RemotePart, monotonic: Callable[[], float] = time.monotonic) -> None:
        # Constant after construction.
        self.local = local
        self.tp: TopicPartition = local.tp
        self.path: Path = local.path
        self._remote = remote
        self._monotonic = monotonic
        # Locks itself.
        self._transactions = Transactions(local.path)
        # Replaced as a whole, under the lock, and read without it: the local snapshot, and the snapshot made from it.
        self._held: tuple[LogSnapshot, LogSnapshot] | None = None
        self._look_at: float | None = None  # when to look at the tier again
        # Guarded by the lock.
        self._lock = Lock()
        self._front: tuple[Segment, ...] = ()  # the remote segments
        # The offsets of `_front`, with the generation and lineage for which it was looked up.
        self._found: tuple[int, int, int, LeaderEpochs] | None = None
        # By name, the ends of segments whose layout lacks them. The lock's owner waits for the threads that set items.
        self._ends: dict[str, int] = {}

    def snapshot(self) -> LogSnapshot:
        local, held = self.local.snapshot(), self._held
        if held is not None and held[0] is local and not self._is_due():
            return held[1]
        with self._lock:
            local, held = self.local.snapshot(), self._held
            if held is None or held[0] is not local or self._is_due():
                snapshot = self._build_locked(local, None if held is None else held[1])
                self._held = local, snapshot
                return snapshot
            return held[1]

    def _is_due(self) -> bool:
        return self._look_at is not None and self._monotonic() >= self._look_at

    def _look_later(self) -> None:
        if self._look_at is None:
            self._look_at = self._monotonic() + _AGAIN_S

    def _build_locked(self, local: LogSnapshot, before: LogSnapshot | None) -> LogSnapshot:
        """The snapshot for a local snapshot; `before`, the last one, if they are equal."""
        start, first = self._range(local)
        if start >= first:
            self._front, self._found = (), None
        elif self._found != (start, first, local.generation, local.epochs) or self._is_due():
            self._look_at = None
            self._front = self._find_locked(start, first, local.epochs)
            self._found = start, first, local.generation, local.epochs
        front = self._front
        if front:
            start = max(start, front[0].base_offset)
        segments = (*front, *local.segments)
        if before is not None and before.segments == segments:
            segments = before.segments
        snapshot = replace(
            local, segments=segments, log_start_offset=min(start, first) if front else local.log_start_offset,
            remote_offsets=None, transactions=self._transactions,
        )  # fmt: skip
        return before if before == snapshot and before.epochs == snapshot.epochs else snapshot

    def _range(self, local: LogSnapshot) -> tuple[int, int]:
        """The offsets that only the tier can have: the first, and the first local offset after them."""
        if not local.segments:
            return local.log_start_offset, local.log_start_offset
        first = local.segments[0].base_offset
        if local.remote_offsets is not None:
            return local.remote_offsets.start, first
        if self._remote.start() is None and not local.epochs.entries:
            try:
                bases = [remote.base_offset for remote in self._remote.segments(False) if remote.is_complete]
            except StorageError:
                bases = []
            return min((*bases, first)), first
        return first, first

    def _find_locked(self, start: int, first: int, epochs: LeaderEpochs) -> tuple[Segment, ...]:
        """The segments for the offsets from `start` to `first` (excluded)."""
        try:
            candidates, reason = self._candidates_locked(), "no segment in the tier has them"
            if not epochs.entries and any(candidate.epochs for candidate in candidates) and self._has_epochs_file():
                # A broker is rebuilding this replica: a guess might show messages that a leader has lost.
                candidates, reason = [], f"{names.LEADER_EPOCH_CHECKPOINT} does not tell yet which are the log's"
        except StorageError as error:
            candidates, reason = [], str(error)
        counted = counted_slices(candidates, epochs if epochs.entries else lineage_of(candidates))
        known = {(segment.base_offset, segment.log.identity): segment for segment in self._front}
        front: list[Segment] = []
        for part in behind_deleted(cover(counted, start, first), candidates):
            front.append(self._segment(part, whole_start=not front, reason=reason, known=known))
        if any(is_missing(segment) for segment in front):
            self._look_later()
        return tuple(front)

    def _has_epochs_file(self) -> bool:
        """Whether the checkpoint of leader epochs exists and is not lost for good."""
        path = self.path / names.LEADER_EPOCH_CHECKPOINT
        try:
            leader_epochs.read(path)
            return exists(path)
        except (CorruptCheckpoint, OSError):
            return False

    def _segment(
        self, cut: Slice, *, whole_start: bool, reason: str, known: Mapping[tuple[int, FileIdentity], Segment]
    ) -> Segment:
        """The segment for a slice; `whole_start`: it may begin before the slice, as the log does. If one of the `known`
        segments has the same bytes, that object is returned."""
        span = self._span(cut, whole_start=whole_start, reason=reason)
        path = self.path / segment_file(span.base_offset, FileKind.LOG)
        file = TieredFile(path, span, self._look_later)
        same = known.get((span.base_offset, file.identity))
        if same is not None:
            return same
        segment = Segment(self.path, span.base_offset, file, span.end - span.start)
        segment.sealed = True
        return segment

    def _span(self, cut: Slice, *, whole_start: bool, reason: str = "") -> RemoteSpan:
        candidate = cut.candidate
        if candidate is None or candidate.remote is None:
            lost = (
                reason
                if candidate is None
                else f"the tier has no segment {candidate.segment_id}, whose upload was finished"
            )
            size = candidate.size_bytes if candidate is not None and cut.end == candidate.end_offset else 0
            return RemoteSpan(cut.start, cut.end, 0, max(size, 1), None, is_whole=False, reason=lost)
        base = candidate.base_offset if whole_start else cut.start
        if base == candidate.base_offset and cut.end == candidate.end_offset:
            return RemoteSpan(base, cut.end, 0, candidate.size_bytes, candidate.remote)
        try:
            start = 0 if base == candidate.base_offset else self._position(candidate, base)
            end = candidate.size_bytes if cut.end == candidate.end_offset else self._position(candidate, cut.end)
        except StorageError as error:
            return RemoteSpan(cut.start, cut.end, 0, 1, None, is_whole=False, reason=str(error))
        return RemoteSpan(base, cut.end, start, max(end, start), candidate.remote, is_whole=False)

    def _position(self, candidate: Candidate, offset: int) -> int:
        """The position of the first batch whose last offset is at or beyond `offset`. TierUnavailable."""
        snapshot, segment = self._alone(candidate)
        for window in scan_batches(snapshot, segment, segment.floor(offset, segment.size), window=LOOKUP_BYTES):
            if window.damage is not None:
                raise window.damage.error
            row = int(window.table.last_offset[: window.table.rows].searchsorted(offset))
            if row < window.table.rows:
                return int(window.table.position[row])
        return segment.size

    def _alone(self, candidate: Candidate) -> tuple[LogSnapshot, Segment]:
        """A log that consists of one remote segment."""
        span = RemoteSpan(candidate.base_offset, candidate.end_offset, 0, candidate.size_bytes, candidate.remote)
        file = TieredFile(self.path / segment_file(candidate.base_offset, FileKind.LOG), span)
        segment = Segment(self.path, candidate.base_offset, file, candidate.size_bytes)
        segment.sealed = True
        return LogSnapshot(
            self.tp,
            (segment,),
            candidate.base_offset,
            candidate.end_offset,
            candidate.size_bytes,
            candidate.size_bytes,
            0,
            self._transactions,
        ), segment

    def _candidates_locked(self) -> list[Candidate]:
        listed = self._remote.segments(False)
        known = self._remote.known()  # after the listing, so that the metadata can only know more
        if known is None:
            # In parallel: each waits for the tier, at least for a manifest.
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                return [segment for segment in pool.map(self._unknown, listed, count()) if segment is not None]
        by_id = {remote.segment_id: remote for remote in listed}
        finished = {segment.segment_id for segment in known.values() if segment.state is RemoteState.FINISHED}
        if not finished <= by_id.keys():
            by_id = {remote.segment_id: remote for remote in self._remote.segments(True)}
        return [
            Candidate(
                segment.segment_id, segment.base_offset, segment.end_offset, segment.size_bytes, segment.epochs,
                segment.order, by_id.get(segment.segment_id), deleted=segment.state is not RemoteState.FINISHED,
            )
            for segment in known.values()
            if segment.state is not RemoteState.STARTED
        ]  # fmt: skip

    def _unknown(self, remote: RemoteSegment, order: int) -> Candidate | None:
        """A segment that the metadata do not know, if its objects are complete; its unreadable parts make a gap."""
        try:
            size, last, own = remote.log_size, remote.end_offset, remote.segment_epochs
            epochs = (
                None
                if own is None
                else ascending_epochs((candidate.epoch, candidate.start_offset) for candidate in own.entries)
            )
            if not remote.is_complete or size is None or (own is not None and epochs is None):
                return None
            end = self._ends.get(remote.name) if last is None else last + 1
            candidate = Candidate(
                remote.segment_id or remote.name, remote.base_offset, MAX_OFFSET if end is None else end, size,
                epochs or (), order, remote,
            )  # fmt: skip
            if end is None:
                snapshot, segment = self._alone(candidate)
                last_offset = last_offset_before(snapshot, segment, size)
                if last_offset is None:
                    return None
                self._ends[remote.name] = end = last_offset + 1
            return replace(candidate, end_offset=end) if end > candidate.base_offset else None
        except StorageError:
            self._look_later()
            return None


def is_missing(segment: Segment) -> bool:
    """Whether messages of a tiered log's segment are neither in the directory nor in the tier."""
    return isinstance(segment.log, TieredFile) and segment.log.span.remote is None
