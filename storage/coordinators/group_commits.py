"""Commits offsets for consumer groups: appends records to `__consumer_offsets`, as a group coordinator writes them.

A broker that starts on the directory later uses them, and so do its consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import Final

from storage.append.appender import Appender
from storage.append.partition_log import PartitionLog
from storage.coordinators.groups import ConsumerGroup, GroupOffsets
from storage.coordinators.offset_records import CommittedOffset, GroupType, OffsetKey, encode_commit, encode_offset_key
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, InvalidRecord, NotPermitted, UnknownTopicOrPartition
from storage.files.names import CONSUMER_OFFSETS_TOPIC
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import MAX_OFFSET, TopicPartition

# Kafka's offsets.topic.segment.bytes, and GroupCoordinator.offsetsTopicConfigs.
OFFSETS_CONFIG: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
)


class GroupCommitter:
    """Writes for the groups of a log directory that this process owns. Thread-safe.

    `force`: also where `__consumer_offsets` has several replicas. `partitions`: how many it gets if it is created here;
    by default as many as the broker's configuration says (`offsets.topic.num.partitions`, 50).

    All methods raise: NotPermitted where offsets cannot be committed (guest_rules.check_append; a broker's directory
    without the topic); InvalidConfig when the topic's partition count is not known; UnknownTopicOrPartition when the
    group's partition is not here; InvalidRecord for an offset or a name that cannot be stored; PartitionOffline,
    OSError.
    """

    def __init__(
        self, owned: OwnedDir, groups: GroupOffsets, *, force: bool = False, partitions: int | None = None
    ) -> None:
        # Constant after construction.
        self._owned = owned
        self._groups = groups
        self._force = force
        configured = owned.log_dir.broker_config().offsets_topic_num_partitions
        self._partitions = configured if partitions is None else partitions
        # Guarded by the lock.
        self._making = Lock()

    def check(self, group: str, partitions: Iterable[TopicPartition] = ()) -> None:
        """Raise the errors of check_commit."""
        check_commit(self._owned.log_dir, self._groups, group, partitions, force=self._force)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits these offsets, each the next to be read. They are one batch: all or none (as far as max.message.bytes
        allows)."""
        now_ms = self._owned.clock.now_ms()
        records = []
        for tp, offset in sorted(offsets.items()):
            if not 0 <= offset <= MAX_OFFSET:
                raise InvalidRecord("committed offset", expected=f"0 to {MAX_OFFSET}", found=offset)
            key = encode_offset_key(OffsetKey(group, tp.topic, tp.partition))
            records.append(Record(key, encode_commit(CommittedOffset(offset, commit_timestamp=now_ms))))
        self._append(group, records)

    def sync(self, group: str) -> None:
        """Makes everything that was written for the group durable."""
        if self._groups.partitions():
            self._log(group).flush()

    def _append(self, group: str, records: list[Record]) -> None:
        if not records:
            return
        self._make_topic()
        outcome = Appender(self._log(group), clock=self._owned.clock).append(records)
        if outcome.error is not None:
            raise outcome.error

    def _log(self, group: str) -> PartitionLog:
        tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, _place(self._owned.log_dir, self._groups, group))
        return self._owned.appendable(tp, force=self._force, as_group_coordinator=True)

    def _make_topic(self) -> None:
        """Creates `__consumer_offsets` as Kafka does when it is first needed, except in a broker's directory.

        1. the partitions are created, ascending (OwnedDir.create_topic) → none, some or all of them
        A crash may leave fewer than there should be, and a group's partition depends on their number. But nothing is
        committed before all exist: so if there are fewer, and none has records, they are the first ones of an
        unfinished topic.
        """
        if self._owned.log_dir.is_broker:
            if not self._groups.partitions():
                raise _no_topic(self._owned.log_dir)
            return
        with self._making:
            existing = self._groups.partitions()
            if not existing:
                self._owned.create_topic(CONSUMER_OFFSETS_TOPIC, self._partitions, OFFSETS_CONFIG)
            elif len(existing) < self._partitions and not any(map(self._written_to, existing)):
                self._owned.add_partitions(CONSUMER_OFFSETS_TOPIC, self._partitions)

    def _written_to(self, partition: int) -> bool:
        log = self._owned.log(TopicPartition(CONSUMER_OFFSETS_TOPIC, partition))
        return log.log_end_offset > 0


def check_commit(
    log_dir: LogDir, groups: GroupOffsets, group: str, partitions: Iterable[TopicPartition] = (), *, force: bool = False
) -> None:
    """Raises what prevents the group's offsets from being committed, as far as that is known without writing, with the
    errors of GroupCommitter.

    UnknownTopicOrPartition also for one of `partitions` that does not exist: a committed offset of such a partition
    keeps a broker from describing its groups. NotPermitted also for a share group and a streams group.
    """
    existing = groups.partitions()
    if existing:
        place = _place(log_dir, groups, group)
        if place not in existing:
            where = f"{CONSUMER_OFFSETS_TOPIC}/{place}"
            raise UnknownTopicOrPartition(f"{where}, where {group!r} belongs, is not here", path=log_dir.path)
        info = log_dir.topic_info(CONSUMER_OFFSETS_TOPIC)
        guest_rules.check_append(info, force=force, as_group_coordinator=True)
    elif log_dir.is_broker:
        raise _no_topic(log_dir)
    known = groups.group(group)
    if known is not None and known.type is GroupType.SHARE:
        raise NotPermitted(
            f"{group!r} is a share group: it commits no offsets, and where it reads is in __share_group_state",
            advice="With the broker running, kafka-share-groups.sh changes it",
        )
    if known is not None and known.type is GroupType.STREAMS:
        raise NotPermitted(
            f"{group!r} is a streams group: its offsets belong together with its state stores and internal topics",
            advice="With the broker running, kafka-streams-groups.sh resets them together",
        )
    for tp in partitions:
        if not _exists(log_dir, tp, known):
            raise UnknownTopicOrPartition(
                f"there is no partition {tp} here",
                path=log_dir.path,
                advice="With an offset of it a broker could no longer describe its groups",
            )


def _exists(log_dir: LogDir, tp: TopicPartition, known: ConsumerGroup | None) -> bool:
    """Whether there is such a partition: here or, in a broker's directory, elsewhere in its cluster."""
    if tp.topic in log_dir.topics() and tp.partition in log_dir.partitions(tp.topic):
        return True
    if not log_dir.is_broker:
        return False
    metadata = log_dir.cluster_metadata()
    if metadata is None:  # only brokers know: the only evidence is that a broker let the group commit to it
        return known is not None and tp.partition in known.offsets.get(tp.topic, {})
    return tp.topic in metadata.topics and tp.partition in metadata.topics[tp.topic].partitions


def _place(log_dir: LogDir, groups: GroupOffsets, group: str) -> int:
    """The partition of __consumer_offsets that the group's offsets are in."""
    place = groups.place(group)
    if place is None:
        raise InvalidConfig(
            f"the number of partitions of {CONSUMER_OFFSETS_TOPIC} is not known here",
            path=log_dir.path,
            advice="A group's partition depends on it",
        )
    return place


def _no_topic(log_dir: LogDir) -> NotPermitted:
    return NotPermitted(
        f"there is no {CONSUMER_OFFSETS_TOPIC} here, and only the broker that owns this directory can create it",
        path=log_dir.path,
        advice="Let a consumer of any group join on the broker once, stop it, then commit",
    )
