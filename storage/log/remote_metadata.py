"""A broker's events about its remote segments, in `__remote_log_metadata`: which segments there are, in which state.

Each upload is an event that describes the segment, before its objects are written, and another when they are written;
each removal is two events. A segment's state is its last valid event. Keys say nothing, and only leader epochs say
whether a segment is part of the log (`tiered_log`). Sources: Kafka's RemoteLogMetadataCache, RemoteLogSegmentState,
TopicBasedRemoteLogMetadataManager.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from threading import Lock
from typing import Any, Final

from storage.errors import StorageError, TooManyKeys
from storage.files import names
from storage.files.partition_metadata import id_bytes
from storage.format.hashing import murmur2
from storage.format.messages import Held, messages
from storage.log.reader import read_range
from storage.log.snapshot import ReadableLog
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
    """A remote segment as the events describe it. Its offsets go from `base_offset` to `end_offset` (excluded);
    `epochs`: (leader epoch, its first offset in the segment), ascending. `order`: greater for a segment that was
    finished later."""

    segment_id: str
    base_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    state: RemoteState
    order: int


Partition = tuple[str, int]
"""A topic id and a partition number: another topic may have been created under the same name."""


class RemoteMetadata:
    """The events in the topic's partitions in a log directory, followed as they are added. Thread-safe.

    `logs`: returns the present logs of these partitions. `count`: how many partitions the topic has. With it, only the
    partition with the requested events is read; if it is None, the number is uncertain, and all are read.
    """

    def __init__(self, logs: Callable[[], list[ReadableLog]], count: Callable[[], int | None] = lambda: None) -> None:
        # Constant after construction.
        self._logs = logs
        self._count = count
        # Guarded by the lock.
        self._lock = Lock()
        self._read: dict[
            ReadableLog, tuple[int, int]
        ] = {}  # by log: the generation that was read, and up to which offset
        self._known: dict[Partition, dict[str, KnownSegment]] = {}
        self._events = 0
        self._held = Held(self._known)
        self.problem: StorageError | OSError | None = None

    def segments(self, topic_id: str, partition: int) -> dict[str, KnownSegment] | None:
        """The remote segments of a partition, by id; None if the log directory has no events of it."""
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
        """Apply one event; impossible events are ignored."""
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
                segment = _segment(segment_id, data, self._events)
                if segment is not None:
                    segments[segment_id] = segment
        elif state in _FOLLOWING[before.state]:
            if state is RemoteState.DELETE_FINISHED:
                # Keep removed segments, without their epochs: they are the offsets that the log has lost.
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
    """Leader epochs and their first offsets, sorted; None unless both ascend: otherwise nobody knows who wrote what."""
    epochs = tuple(sorted(entries))
    for (epoch, offset), (next_epoch, next_offset) in pairwise(epochs):
        if epoch == next_epoch or offset > next_offset:
            return None
    valid = all(0 <= epoch <= _MAX_INT32 and 0 <= offset <= MAX_OFFSET for epoch, offset in epochs)
    return epochs if valid else None
