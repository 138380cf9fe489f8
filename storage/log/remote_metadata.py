"""What a broker wrote of its remote segments into `__remote_log_metadata`: which there are, and in which state.

Each upload is an event with all that describes the segment, before its objects are written, and one when they are
there; each removal is two events. Of a segment the last event that may follow counts. Keys say nothing, and whoever
wants to know whether a segment is part of the log has to look at its leader epochs too (`tiered_log`). Sources:
Kafka's RemoteLogMetadataCache, RemoteLogSegmentState, TopicBasedRemoteLogMetadataManager.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from storage.errors import StorageError, TooManyKeys
from storage.files import names
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.partition_metadata import id_bytes
from storage.format.hashing import murmur2
from storage.format.messages import Held, messages
from storage.log.reader import read_range
from storage.log.snapshot import Log
from storage.tier.remote_segments import RemoteSegment
from storage.types import MAX_OFFSET

_MAX_INT32: Final = 2**31 - 1
_MAX_UINT32: Final = 2**32 - 1
_PARTITION_DELETED: Final = 2  # RemotePartitionDeleteState


class RemoteState(IntEnum):
    """Kafka's RemoteLogSegmentState. Only the messages of FINISHED segments are read."""

    STARTED = 0
    FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


_FOLLOWING: Final = {
    RemoteState.STARTED: (RemoteState.FINISHED, RemoteState.DELETE_STARTED),
    RemoteState.FINISHED: (RemoteState.DELETE_STARTED,),
    RemoteState.DELETE_STARTED: (RemoteState.DELETE_FINISHED,),
    RemoteState.DELETE_FINISHED: (),
}


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """A remote segment as the events have it. Its offsets go from `base_offset` to `end_offset` (excluded); `epochs`:
    (leader epoch, its first offset here), ascending. `order`: of two that have the same offsets, the one with the
    greater was finished later."""

    segment_id: str
    base_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    state: RemoteState
    order: int


Partition = tuple[str, int]
"""A topic id and a partition number: a topic may have been made again under its name."""


class RemoteMetadata:
    """The events in the partitions of the topic that are in a log directory, followed as they are added. Thread-safe.

    `logs`: returns the logs of these partitions as of now. `count`: how many partitions the topic has, None where that
    is not known for sure: then all are read, and otherwise the one that has the events of what is asked for.
    """

    def __init__(self, logs: Callable[[], list[Log]], count: Callable[[], int | None] = lambda: None) -> None:
        # Constant after construction.
        self._logs = logs
        self._count = count
        # Guarded by the lock.
        self._lock = Lock()
        self._read: dict[Log, tuple[int, int]] = {}  # by log: the generation that was read, and up to which offset
        self._known: dict[Partition, dict[str, KnownSegment]] = {}
        self._events = 0
        self._held = Held(self._known)
        self.problem: StorageError | OSError | None = None

    def segments(self, topic_id: str, partition: int) -> dict[str, KnownSegment] | None:
        """The remote segments of a partition, by id; None where there are no events of it here."""
        with self._lock:
            try:
                self._follow_locked(topic_id, partition)
            except (StorageError, OSError) as error:
                self.problem = error
            known = self._known.get((topic_id, partition))
            return None if known is None else dict(known)

    def _follow_locked(self, topic_id: str, partition: int) -> None:
        logs, partitions = self._logs(), self._count()
        number = None if partitions is None else metadata_partition(topic_id, partition, partitions)
        now = {log: log.snapshot() for log in logs if number in (None, log.tp.partition)}
        for log, (generation, end) in self._read.items():
            if log not in logs or (log in now and (now[log].generation != generation or now[log].log_end_offset < end)):
                self._read = {}
                self._known.clear()
                break
        decoder = messages(names.REMOTE_LOG_METADATA_TOPIC)
        for log, snapshot in now.items():
            start = max(self._read.get(log, (0, 0))[1], snapshot.log_start_offset)
            if start < snapshot.log_end_offset:
                try:
                    for block in read_range(snapshot, start):
                        if block.damage is not None:
                            self.problem = block.damage.error
                        for _, value, _ in decoder.objects(block, held=self._held):
                            if value is not None:
                                self._events += 1
                                self._apply_locked(value["data"])
                except TooManyKeys as error:
                    error.path, self.problem = log.path, error
            self._read[log] = snapshot.generation, snapshot.log_end_offset

    def _apply_locked(self, data: dict[str, Any]) -> None:
        """One event; what cannot be as it is written is left out."""
        entry = data.get("remoteLogSegmentId") or data
        of = entry.get("topicIdPartition")
        if of is None:
            return
        partition = (of["id"], of["partition"])
        if "remotePartitionDeleteState" in data:
            if data["remotePartitionDeleteState"] == _PARTITION_DELETED:
                self._known[partition] = {}
            return
        segments, segment_id = self._known.setdefault(partition, {}), entry["id"]
        before = segments.get(segment_id)
        try:
            state = RemoteState(data["remoteLogSegmentState"])
        except ValueError:
            return
        if before is None:
            if "startOffset" in data and state is RemoteState.STARTED:
                found = _segment(segment_id, data, self._events)
                if found is not None:
                    segments[segment_id] = found
        elif state in _FOLLOWING[before.state]:
            if state is RemoteState.DELETE_FINISHED:
                # Kept, without what nobody asks for: those that were removed are the offsets that the log has lost.
                before = replace(before, epochs=())
            segments[segment_id] = replace(before, state=state, order=self._events)


def metadata_partition(topic_id: str, partition: int, count: int) -> int:
    """The partition, of `count`, that has the events of a topic's partition (RemoteLogMetadataTopicPartitioner)."""
    most, least = struct.unpack(">QQ", id_bytes(topic_id))
    number = 1
    for part in (least ^ least >> 32, most ^ most >> 32, partition):
        number = number * 31 + part & _MAX_UINT32
    return int(murmur2(number.to_bytes(4, "big")) & _MAX_INT32) % count


def _segment(segment_id: str, data: dict[str, Any], order: int) -> KnownSegment | None:
    start, end, size = data["startOffset"], data["endOffset"] + 1, data["segmentSizeInBytes"]
    epochs = ascending_epochs((entry["leaderEpoch"], entry["offset"]) for entry in data["segmentLeaderEpochs"])
    if not (0 <= start < end <= MAX_OFFSET and size >= 0) or epochs is None:
        return None
    return KnownSegment(segment_id, start, end, size, epochs, RemoteState.STARTED, order)


def ascending_epochs(entries: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...] | None:
    """Leader epochs and their first offsets, sorted; None where not both ascend: then nobody knows who wrote what."""
    epochs = tuple(sorted(entries))
    for (epoch, offset), (next_epoch, next_offset) in pairwise(epochs):
        if epoch == next_epoch or offset > next_offset:
            return None
    valid = all(0 <= epoch <= _MAX_INT32 and 0 <= offset <= MAX_OFFSET for epoch, offset in epochs)
    return epochs if valid else None


# Which remote segments make up a log: by lineage, the leader epochs that the log has and from which offset each.
#
# Uploads overlap, after a failover and after retries, and a leader that lost an unclean election may have uploaded
# messages that are no part of the log. Kafka's identity of a message is its leader epoch and its offset. So a segment
# counts with those of its offsets that it has in the epoch that the log has there, and any two that count at an offset
# have the same bytes there, in the same batches. Sources: Kafka's RemoteLogMetadataCache, RemoteLogLeaderEpochState,
# RemoteLogManager.isRemoteSegmentWithinLeaderEpochs; where a broker reads on in a segment beyond the end of an epoch,
# this does not.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A remote segment with offsets from `base_offset` to `end_offset` (excluded) that was uploaded as a whole.

    `epochs`: (leader epoch, first offset), ascending; empty where nothing tells them. `remote`: None where its objects
    are not there. `deleted`: its removal has begun, so that it is not read.
    """

    segment_id: str
    base_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    order: int
    remote: RemoteSegment | None
    deleted: bool = False

    def is_whole(self) -> bool:
        """Whether its .log is there with the size that it should have. May read from the tier."""
        try:
            return self.remote is not None and self.remote.log_size == self.size_bytes
        except StorageError:
            return False


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets from `start` to `end` (excluded), and the segment to read them from; None where no segment has them."""

    start: int
    end: int
    candidate: Candidate | None


def lineage_of(candidates: Iterable[Candidate]) -> LeaderEpochs:
    """The lineage where the log's own is lost: that of the segment that a leader uploaded last."""
    known = [candidate for candidate in candidates if candidate.epochs]
    if not known:
        return LeaderEpochs()
    last = max(known, key=lambda one: (one.epochs[-1][0], one.end_offset, one.order))
    with suppress(StorageError):
        if last.remote is not None and last.remote.epochs is not None:
            return last.remote.epochs
    return LeaderEpochs(tuple(EpochEntry(epoch, start) for epoch, start in last.epochs))


def slices_of(candidate: Candidate, lineage: LeaderEpochs) -> list[Slice]:
    """Those offsets of a segment that are part of the log, ascending; none adjoin."""
    base, end = candidate.base_offset, candidate.end_offset
    if not lineage.entries or not candidate.epochs:
        return [Slice(base, end, candidate)]
    entries = lineage.entries
    found: list[Slice] = []
    for slot, (epoch, first) in enumerate(candidate.epochs):
        at = bisect_right(entries, epoch, key=lambda entry: entry.epoch) - 1
        if at < 0 or entries[at].epoch != epoch:
            continue
        last = candidate.epochs[slot + 1][1] if slot + 1 < len(candidate.epochs) else end
        # The log's first epoch may begin lower than its line says, which is moved up with the log start.
        start = max(base, first, entries[at].start_offset if at else 0)
        stop = min(end, last, entries[at + 1].start_offset if at + 1 < len(entries) else MAX_OFFSET)
        if start >= stop:
            continue
        if found and found[-1].end == start:
            start = found.pop().start
        found.append(Slice(start, stop, candidate))
    return found


def cover(counted: Sequence[Slice], start: int, end: int) -> list[Slice]:
    """The offsets from `start` to `end` (excluded) as slices that adjoin, each from one segment or from none.

    `counted`: by ascending start. Where several have an offset, one whose .log is whole is taken, of these the one that
    begins last, of these the one finished last, and it is read to its end.
    """
    cut: list[Slice] = []
    begun: list[Slice] = []
    at, offset = 0, start
    while offset < end:
        while at < len(counted) and counted[at].start <= offset:
            begun.append(counted[at])
            at += 1
        begun = [one for one in begun if one.end > offset]
        best = begun[0] if len(begun) == 1 else max(begun, key=_preference, default=None)
        stop = end if best is None else min(end, best.end)
        if best is None or best.candidate is None or best.candidate.remote is None:
            # Up to where another begins, which may be there.
            stop = min(stop, counted[at].start if at < len(counted) else end)
        chosen = None if best is None else best.candidate
        if cut and cut[-1].candidate is chosen:
            offset = cut.pop().start
        cut.append(Slice(offset, stop, chosen))
        offset = stop
    return cut


def _preference(one: Slice) -> tuple[bool, bool, int, int]:
    candidate = one.candidate
    assert candidate is not None
    return candidate.is_whole(), candidate.remote is not None, one.start, candidate.order


def counted_slices(candidates: Iterable[Candidate], lineage: LeaderEpochs) -> list[Slice]:
    """The slices of all segments that are not being removed, by ascending start."""
    found = [one for candidate in candidates if not candidate.deleted for one in slices_of(candidate, lineage)]
    return sorted(found, key=attrgetter("start", "end"))


def behind_deleted(cut: list[Slice], candidates: Iterable[Candidate]) -> list[Slice]:
    """`cut` without what is missing at its beginning because retention is removing it: a broker begins the log behind
    that before it writes so into its checkpoint."""
    removed = sorted((one for one in candidates if one.deleted), key=attrgetter("base_offset"))
    while cut and cut[0].candidate is None:
        offset = cut[0].start
        for one in removed:
            if one.base_offset <= offset < one.end_offset:
                offset = min(one.end_offset, cut[0].end)
        if offset == cut[0].start:
            break
        cut = cut[1:] if offset == cut[0].end else [Slice(offset, cut[0].end, None), *cut[1:]]
    return cut
