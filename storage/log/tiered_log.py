"""A log of which older segments are in a tier, and newer ones in its directory, as one.

Remote segments are ordinary Segments of the snapshot, in front of the local ones, so readers need not know of them.
Where local retention removes a segment, the next snapshot has a remote Segment for its offsets: readers see this as
they see compaction, another file for the same offsets. Offsets that no segment in the tier has are a Segment whose
bytes cannot be read: readers show the messages before and after it, and fail there.

    which segments are here, where the log begins and ends      the log that is wrapped, at each look
    which are in the tier, and which of those count             when the first one here, the log start or the leader
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

    `segments`: those in the tier (TierUnavailable), listed anew if it is called with True; `known`: what the broker's
    metadata say of them, None without any. `start`: where the log begins, None if that is told nowhere.
    """

    segments: Callable[[bool], Sequence[RemoteSegment]]
    known: Callable[[], Mapping[str, KnownSegment] | None]
    start: Callable[[], int | None]


class TieredLog:
    """A `ReadableLog` with the remote part of another one, whose directory it reads too. Thread-safe."""

    def __init__(self, here: ReadableLog, remote: RemotePart, monotonic: Callable[[], float] = time.monotonic) -> None:
        # Constant after construction.
        self.here = here
        self.tp: TopicPartition = here.tp
        self.path: Path = here.path
        self._remote = remote
        self._monotonic = monotonic
        # Has its own locking.
        self._transactions = Transactions(here.path)
        # Replaced as a whole, under the lock: the snapshot of `here`, and what it became. Read without it.
        self._held: tuple[LogSnapshot, LogSnapshot] | None = None
        self._look_at: float | None = None  # when the tier is looked at again
        # Guarded by the lock.
        self._lock = Lock()
        self._front: tuple[Segment, ...] = ()  # the remote segments
        # From which offset to which, in which generation and lineage.
        self._found: tuple[int, int, int, LeaderEpochs] | None = None
        # Of segments whose layout does not tell, by name. Threads that whoever has the lock waits for set items.
        self._ends: dict[str, int] = {}

    def snapshot(self) -> LogSnapshot:
        here, held = self.here.snapshot(), self._held
        if held is not None and held[0] is here and not self._is_due():
            return held[1]
        with self._lock:
            here, held = self.here.snapshot(), self._held
            if held is None or held[0] is not here or self._is_due():
                snapshot = self._build_locked(here, None if held is None else held[1])
                self._held = here, snapshot
                return snapshot
            return held[1]

    def _is_due(self) -> bool:
        return self._look_at is not None and self._monotonic() >= self._look_at

    def _look_later(self) -> None:
        if self._look_at is None:
            self._look_at = self._monotonic() + _AGAIN_S

    def _build_locked(self, here: LogSnapshot, before: LogSnapshot | None) -> LogSnapshot:
        """The snapshot for one of the log that is here; `before`, the last one, where they are equal."""
        start, first = self._range(here)
        if start >= first:
            self._front, self._found = (), None
        elif self._found != (start, first, here.generation, here.epochs) or self._is_due():
            self._look_at = None
            self._front = self._find_locked(start, first, here.epochs)
            self._found = start, first, here.generation, here.epochs
        front = self._front
        if front:
            start = max(start, front[0].base_offset)
        segments = (*front, *here.segments)
        if before is not None and before.segments == segments:
            segments = before.segments
        snapshot = replace(
            here, segments=segments, log_start_offset=min(start, first) if front else here.log_start_offset,
            remote_offsets=None, transactions=self._transactions,
        )  # fmt: skip
        return before if before == snapshot and before.epochs == snapshot.epochs else snapshot

    def _range(self, here: LogSnapshot) -> tuple[int, int]:
        """The offsets that only the tier can have: the first, and the first of those here."""
        if not here.segments:
            return here.log_start_offset, here.log_start_offset
        first = here.segments[0].base_offset
        if here.remote_offsets is not None:
            return here.remote_offsets.start, first
        if self._remote.start() is None and not here.epochs.entries:
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
            if not epochs.entries and any(one.epochs for one in candidates) and self._has_epochs_file():
                # A broker makes this replica anew: to guess would be to show what a leader has lost, perhaps.
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
        """Whether the checkpoint of leader epochs is there and is none that is lost for good."""
        path = self.path / names.LEADER_EPOCH_CHECKPOINT
        try:
            leader_epochs.read(path)
            return exists(path)
        except (CorruptCheckpoint, OSError):
            return False

    def _segment(
        self, cut: Slice, *, whole_start: bool, reason: str, known: Mapping[tuple[int, FileIdentity], Segment]
    ) -> Segment:
        """The segment for a slice; `whole_start`: it may begin before it, as the log does. One of the `known` segments
        that has the same bytes stays the same object."""
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
        one = cut.candidate
        if one is None or one.remote is None:
            lost = reason if one is None else f"the tier has no segment {one.segment_id}, whose upload was finished"
            size = one.size_bytes if one is not None and cut.end == one.end_offset else 0
            return RemoteSpan(cut.start, cut.end, 0, max(size, 1), None, is_whole=False, reason=lost)
        base = one.base_offset if whole_start else cut.start
        if base == one.base_offset and cut.end == one.end_offset:
            return RemoteSpan(base, cut.end, 0, one.size_bytes, one.remote)
        try:
            start = 0 if base == one.base_offset else self._position(one, base)
            end = one.size_bytes if cut.end == one.end_offset else self._position(one, cut.end)
        except StorageError as error:
            return RemoteSpan(cut.start, cut.end, 0, 1, None, is_whole=False, reason=str(error))
        return RemoteSpan(base, cut.end, start, max(end, start), one.remote, is_whole=False)

    def _position(self, one: Candidate, offset: int) -> int:
        """Where the first batch begins whose last offset is at or beyond `offset`. TierUnavailable."""
        snapshot, segment = self._alone(one)
        for window in scan_batches(snapshot, segment, segment.floor(offset, segment.size), window=LOOKUP_BYTES):
            if window.damage is not None:
                raise window.damage.error
            row = int(window.table.last_offset[: window.table.rows].searchsorted(offset))
            if row < window.table.rows:
                return int(window.table.position[row])
        return segment.size

    def _alone(self, one: Candidate) -> tuple[LogSnapshot, Segment]:
        """A log of one remote segment."""
        span = RemoteSpan(one.base_offset, one.end_offset, 0, one.size_bytes, one.remote)
        file = TieredFile(self.path / segment_file(one.base_offset, FileKind.LOG), span)
        segment = Segment(self.path, one.base_offset, file, one.size_bytes)
        segment.sealed = True
        return LogSnapshot(
            self.tp, (segment,), one.base_offset, one.end_offset, one.size_bytes, one.size_bytes, 0, self._transactions
        ), segment

    def _candidates_locked(self) -> list[Candidate]:
        there = self._remote.segments(False)
        known = self._remote.known()  # after it: so they can only know more
        if known is None:
            # Side by side: each waits for the tier, at least for a manifest.
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                return [one for one in pool.map(self._unknown, there, count()) if one is not None]
        by_id = {remote.segment_id: remote for remote in there}
        finished = {one.segment_id for one in known.values() if one.state is RemoteState.FINISHED}
        if not finished <= by_id.keys():
            by_id = {remote.segment_id: remote for remote in self._remote.segments(True)}
        return [
            Candidate(
                one.segment_id, one.base_offset, one.end_offset, one.size_bytes, one.epochs, one.order,
                by_id.get(one.segment_id), deleted=one.state is not RemoteState.FINISHED,
            )
            for one in known.values()
            if one.state is not RemoteState.STARTED
        ]  # fmt: skip

    def _unknown(self, remote: RemoteSegment, order: int) -> Candidate | None:
        """A segment that no metadata know, if its objects are complete; what cannot be read of it makes a gap."""
        try:
            size, last, own = remote.log_size, remote.end_offset, remote.segment_epochs
            epochs = None if own is None else ascending_epochs((one.epoch, one.start_offset) for one in own.entries)
            if not remote.is_complete or size is None or (own is not None and epochs is None):
                return None
            end = self._ends.get(remote.name) if last is None else last + 1
            one = Candidate(
                remote.segment_id or remote.name, remote.base_offset, MAX_OFFSET if end is None else end, size,
                epochs or (), order, remote,
            )  # fmt: skip
            if end is None:
                snapshot, segment = self._alone(one)
                found = last_offset_before(snapshot, segment, size)
                if found is None:
                    return None
                self._ends[remote.name] = end = found + 1
            return replace(one, end_offset=end) if end > one.base_offset else None
        except StorageError:
            self._look_later()
            return None


def is_missing(segment: Segment) -> bool:
    """Whether messages of a tiered log's segment are neither here nor in the tier."""
    return isinstance(segment.log, TieredFile) and segment.log.span.remote is None
