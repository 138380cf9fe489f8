"""The groups of `__consumer_offsets`: their records and present state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from storage.coordinators.offset_records import (
    METADATA_KIND,
    OFFSET_KINDS,
    CommittedOffset,
    GroupType,
    OffsetKey,
    group_type,
)
from storage.errors import StorageError, UnknownTopicOrPartition, error_text
from storage.files.names import CONSUMER_OFFSETS_TOPIC
from storage.format.block import RecordBlock
from storage.format.control_records import ControlType, parse_marker
from storage.format.hashing import group_partition
from storage.format.messages import Held, UnknownRecordType, messages
from storage.log.earlier import EarlierLog
from storage.log.follower import Follower, ReplayedState
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.types import TopicPartition

# What consumer groups have committed: `__consumer_offsets` read as a group coordinator reads it.
#
# The latest record of a key counts, a null value deletes it, offsets committed in a transaction count once it commits
# (OffsetMetadataManager.replay, replayEndTransactionMarker). What was read is kept, and new records are read from where
# the last read ended. Where segments that were read have been removed (compaction, retention) or truncated, everything
# is read again: a tombstone that was never read may have been removed with them.
_NO_PRODUCER: Final = -1
_ROWS: Final = 4096  # converted to Python objects at once: a batch may have millions
_PROBLEMS_KEPT: Final = 20

Offsets = Mapping[str, Mapping[int, CommittedOffset]]
_NO_OFFSETS: Final[Offsets] = MappingProxyType({})


class GroupRecord(NamedTuple):
    """A record that a coordinator stores for a group besides its offsets: type, key's bytes, data of key and value."""

    kind: int
    raw_key: bytes
    key: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group at one moment. `offsets`: by topic, then partition. Share groups have none here.

    `log`: the partition of `__consumer_offsets` that has it. `records`: by type and key.
    """

    name: str
    log: int
    offsets: Offsets = field(default_factory=lambda: _NO_OFFSETS)
    records: tuple[GroupRecord, ...] = ()

    @property
    def type(self) -> GroupType:
        """The group's type; classic if the group has only committed offsets."""
        return group_type(max((record.kind for record in self.records), default=METADATA_KIND))

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """A GroupMetadataValue's data; None for groups without classic members, and if it cannot be read."""
        return next((record.data for record in self.records if record.kind == METADATA_KIND), None) or None

    @property
    def commit_timestamp(self) -> int:
        """When an offset was last committed, epoch ms; -1 if never."""
        stamps = (known.commit_timestamp for topic in self.offsets.values() for known in topic.values())
        return max(stamps, default=-1)


class GroupOffsets:
    """The groups of a log directory, as of each call; its partitions as of its last refresh. `at_ms`: the groups as
    they were at this time. Thread-safe."""

    def __init__(self, log_dir: LogDir, at_ms: int | None = None) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        self._at_ms = at_ms
        # Guarded by the lock.
        self._lock = Lock()
        self._followers: dict[int, _Follower] = {}
        self._count: tuple[list[int], int | None] = ([], None)

    def groups(self) -> dict[str, ConsumerGroup]:
        """All groups by name. Those in a partition that cannot be read are left out; see `problems`."""
        by_name: dict[str, ConsumerGroup] = {}
        for partition in self.partitions():
            follower = self._follower(partition)
            try:
                by_name |= follower.refreshed()
            except (StorageError, OSError) as error:
                follower.add_problem(error)
        return by_name

    def group(self, name: str) -> ConsumerGroup | None:
        """The group; None if it does not exist. StorageError or OSError when its partition cannot be read."""
        for partition in self._places(name):
            group = self._follower(partition).refreshed().get(name)
            if group is not None:
                return group
        return None

    def place(self, name: str) -> int | None:
        """The partition of `__consumer_offsets` for a group; None when it is not known here: only the broker knows the
        number of partitions, and the group is in none of those that are here."""
        if self._partition_count() is not None:
            return self._places(name)[0]
        group = self.group(name)
        return None if group is None else group.log

    def partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` that are here."""
        try:
            return self._log_dir.partitions(CONSUMER_OFFSETS_TOPIC)
        except UnknownTopicOrPartition:
            return []

    def problems(self) -> list[str]:
        """The latest errors of records and partitions that were left out."""
        with self._lock:
            followers = list(self._followers.values())
        return [problem for follower in followers for problem in follower.problems]

    def _places(self, name: str) -> list[int]:
        """The partitions where a group may be."""
        count = self._partition_count()
        if count is None:
            return self.partitions()
        return [group_partition(name, count)]

    def _partition_count(self) -> int | None:
        existing = self.partitions()
        with self._lock:
            if self._count[0] != existing or self._count[1] is None:  # a broker may add it later
                count = self._log_dir.topic_info(CONSUMER_OFFSETS_TOPIC).partition_count if existing else None
                self._count = existing, count
            return self._count[1]

    def _follower(self, partition: int) -> _Follower:
        with self._lock:
            follower = self._followers.get(partition)
            if follower is None:
                follower = self._followers[partition] = _Follower(self._log_dir, partition, self._at_ms)
            return follower


class _Follower:
    """A partition of `__consumer_offsets`: its groups as of the last read."""

    def __init__(self, log_dir: LogDir, partition: int, at_ms: int | None) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        self._partition = partition
        self._at_ms = at_ms
        # Guarded by the lock, which is held while records are read: other callers need the same answer.
        self._lock = Lock()
        self._groups: Mapping[str, ConsumerGroup] = {}
        self._follower = Follower(self._made)
        self.problems: list[str] = []

    def refreshed(self) -> Mapping[str, ConsumerGroup]:
        """The groups as of now; the mapping never changes. StorageError, OSError."""
        log: ReadableLog = self._log_dir.log(TopicPartition(CONSUMER_OFFSETS_TOPIC, self._partition))
        if self._at_ms is not None:
            log = EarlierLog(log, self._at_ms)
        with self._lock:
            if self._follower.refresh(log, self.add_problem):
                self._groups = self._follower.replay.groups(self._groups)
            return self._groups

    def _made(self) -> GroupReplay:
        self._groups = {}
        return GroupReplay(self._partition)

    def add_problem(self, error: object) -> None:
        """Adds an error to `problems`."""
        text = error_text(error)
        if text not in self.problems:
            self.problems = [*self.problems, text][-_PROBLEMS_KEPT:]


class GroupReplay(ReplayedState):
    """The state that results from the records of one partition. Not thread-safe."""

    control = True

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._offsets: dict[str, dict[OffsetKey, tuple[int, CommittedOffset]]] = {}
        # Offsets committed in transactions that have not ended, by producer.
        self._pending: dict[int, dict[OffsetKey, tuple[int, CommittedOffset]]] = {}
        self._records: dict[str, dict[bytes, GroupRecord]] = {}
        self._touched: set[str] = set()
        self._held = Held(self._offsets, self._pending, self._records)

    def groups(self, before: Mapping[str, ConsumerGroup]) -> Mapping[str, ConsumerGroup]:
        """All groups as of now; `before` is the result of the last call."""
        if not self._touched:
            return before
        groups = {name: group for name, group in before.items() if name not in self._touched}
        for name in self._touched:
            if name in self._offsets or name in self._records:
                known = self._records.get(name, {}).values()
                records = tuple(sorted(known, key=lambda record: (record.kind, record.raw_key)))
                groups[name] = ConsumerGroup(name, self._partition, self._by_topic(name), records)
        self._touched.clear()
        return groups

    def _by_topic(self, name: str) -> Offsets:
        topics: dict[str, dict[int, CommittedOffset]] = {}
        for key, (_, committed) in self._offsets.get(name, {}).items():
            topics.setdefault(key.topic, {})[key.partition] = committed
        return topics

    def apply_block(self, block: RecordBlock, snapshot: LogSnapshot) -> Iterator[StorageError]:
        table = block.table
        data = bytes(block.buffer)  # slices of bytes are bytes; of a memoryview they cost twice as much
        transactional, control = table.is_transactional, table.is_control
        plain = not (transactional | control).any()
        batches = None if plain else block.batch.tolist()
        columns = np.stack((block.offset, block.key_start, block.key_length, block.value_start, block.value_length), 1)
        rows = (row for first in range(0, len(block), _ROWS) for row in columns[first : first + _ROWS].tolist())
        read = messages(CONSUMER_OFFSETS_TOPIC).objects(block, held=self._held)
        for row, ((offset, key_start, key_length, start, length), (key, value, error)) in enumerate(
            zip(rows, read, strict=True)
        ):
            raw = data[key_start : key_start + key_length]
            producer = _NO_PRODUCER
            try:
                if batches is not None:
                    batch = batches[row]
                    if transactional[batch]:
                        producer = int(table.producer_id[batch])
                    if control[batch]:
                        self._end_transaction(producer, raw, data[start : start + length])
                        continue
                if isinstance(error, UnknownRecordType):
                    continue  # a type that a coordinator passes over, too
                if key is not None and (error is None or key["type"] not in OFFSET_KINDS):
                    # A record counts even if its value cannot be read: it is deleted with its group.
                    self._apply_one(offset, producer, raw, key, value if error is None else {"data": {}})
                if error is not None:
                    raise error
            except StorageError as error:
                error.path, error.offset = error.path or snapshot.segments[-1].directory, offset
                yield error

    def _apply_one(self, offset: int, producer: int, raw: bytes, key: Any, value: Any) -> None:
        kind, named = key["type"], key["data"]
        if kind in OFFSET_KINDS:
            place = OffsetKey(**named)
            if value is None:
                self._forget(place)
                return
            committed = offset, CommittedOffset.of(value["data"])
            if producer != _NO_PRODUCER:
                self._pending.setdefault(producer, {})[place] = committed
                return
            self._offsets.setdefault(place.group, {})[place] = committed
            self._touched.add(place.group)
            return
        group = named["group" if kind == METADATA_KIND else "groupId"]
        if value is not None:
            self._records.setdefault(group, {})[raw] = GroupRecord(kind, raw, named, value["data"])
        elif group in self._records:
            self._records[group].pop(raw, None)
            if not self._records[group]:
                del self._records[group]
        self._touched.add(group)

    def _forget(self, key: OffsetKey) -> None:
        committed = self._offsets.get(key.group)
        if committed is not None:
            committed.pop(key, None)
            if not committed:
                del self._offsets[key.group]
        for pending in self._pending.values():
            pending.pop(key, None)
        self._touched.add(key.group)

    def _end_transaction(self, producer: int, raw: bytes, value: bytes) -> None:
        marker = parse_marker(raw, value)
        if marker is None:
            return
        pending = self._pending.pop(producer, {})
        if marker.type is not ControlType.COMMIT:
            return
        for key, (offset, committed) in pending.items():
            known = self._offsets.setdefault(key.group, {})
            if key not in known or known[key][0] < offset:
                known[key] = offset, committed
                self._touched.add(key.group)
