"""What a tier holds of the partitions of a log directory, and what it should hold and does not.

local      segments in the log directory
remote     segments whose upload was finished, as the broker's metadata say; without any, those that are complete
both       remote ones whose messages the log directory has too
gaps       offsets of the log that neither has
missing    of remote segments: objects that are not there
unfinished, deleting      uploads that were not finished, segments whose removal has begun: a broker tidies them up
orphans    objects that the metadata do not name: nothing will ever remove them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.remote_metadata import KnownSegment, RemoteState
from storage.log.tiered_log import is_missing
from storage.log.tiering import is_tiered
from storage.tier.remote_segments import RemoteSegment, TopicIdPartition
from storage.tier.tier import Tier
from storage.types import OffsetRange, TopicPartition

_STATES: Final = {RemoteState.STARTED: "unfinished", RemoteState.DELETE_STARTED: "deleting"}


@dataclass(frozen=True, slots=True)
class MissingParts:
    """A remote segment's objects that are not there, by suffix. `name`: the segment's, without a suffix."""

    segment_id: str
    base_offset: int
    suffixes: tuple[str, ...]


@dataclass(slots=True)
class PartitionTier:
    """One partition: see the module. `known`: whether the broker's metadata of its remote segments are here. The
    offsets are None for a partition that is not in the log directory."""

    of: TopicIdPartition
    known: bool
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None
    log_end_offset: int | None = None
    local: int = 0
    local_bytes: int = 0
    both: int = 0
    remote: list[RemoteSegment] = field(default_factory=list)
    gaps: list[OffsetRange] = field(default_factory=list)
    missing: list[MissingParts] = field(default_factory=list)
    unfinished: list[RemoteSegment] = field(default_factory=list)
    deleting: list[RemoteSegment] = field(default_factory=list)
    orphans: list[RemoteSegment] = field(default_factory=list)


def contents(log_dir: LogDir, tier: Tier, wanted: Iterable[TopicPartition]) -> Iterator[PartitionTier]:
    """The partitions of these that are tiered, or of which something is in the tier. StorageError, OSError."""
    for tp in wanted:
        topic = log_dir.topic_info(tp.topic)
        there = tier.segments(tp.topic, tp.partition, topic.topic_id)
        of = TopicIdPartition(tp.topic, topic.topic_id, tp.partition)
        events = _events(log_dir, of)
        if tp.topic in names.KAFKAS_OWN_TOPICS or not (there or events or is_tiered(topic.overrides)):
            continue
        yield _contents_of(log_dir, of, there, events)


def elsewhere(log_dir: LogDir, tier: Tier) -> Iterator[PartitionTier]:
    """The partitions in the tier that are not in the log directory: those of other brokers, and those of topics that
    were deleted, all of which is orphaned. TierUnavailable."""
    here = {log_dir.topic_info(topic).topic_id: log_dir.partitions(topic) for topic in log_dir.topics()}
    cluster = log_dir.cluster_metadata()
    ids = None if cluster is None else {topic.topic_id for topic in cluster.topics.values()}
    for of in tier.partitions():
        if of.topic_id is None or of.partition in here.get(of.topic_id, ()):
            continue
        there, events = tier.segments(of.topic, of.partition, of.topic_id), _events(log_dir, of)
        found = PartitionTier(of, known=events is not None)
        if ids is not None and of.topic_id not in ids:
            found.orphans = there
        else:
            _sort(found, there, events)
        yield found


def _events(log_dir: LogDir, of: TopicIdPartition) -> Mapping[str, KnownSegment] | None:
    return None if of.topic_id is None else log_dir.remote_metadata.segments(of.topic_id, of.partition)


def _contents_of(
    log_dir: LogDir, of: TopicIdPartition, there: Sequence[RemoteSegment], events: Mapping[str, KnownSegment] | None
) -> PartitionTier:
    snapshot = log_dir.log(TopicPartition(of.topic, of.partition)).snapshot()
    local = snapshot.segments[len(snapshot.remote) :]
    first = local[0].base_offset if local else snapshot.log_end_offset
    found = PartitionTier(
        of, events is not None, snapshot.log_start_offset, first, snapshot.log_end_offset,
        len(local), sum(segment.size for segment in local),
    )  # fmt: skip
    _sort(found, there, events)
    found.both = sum(segment.base_offset >= first for segment in found.remote)
    for segment, after in zip(snapshot.segments, (*snapshot.segments[1:], None), strict=True):
        if is_missing(segment):
            start = max(segment.base_offset, snapshot.log_start_offset)
            end = snapshot.log_end_offset if after is None else after.base_offset
            if found.gaps and found.gaps[-1].end == start:
                start = found.gaps.pop().start
            found.gaps.append(OffsetRange(start, end))
    return found


def _sort(found: PartitionTier, there: Sequence[RemoteSegment], events: Mapping[str, KnownSegment] | None) -> None:
    """Sorts a partition's segments by what the metadata say of them."""
    for segment in there:
        event = None if events is None else events.get(segment.segment_id or "")
        if event is not None and event.state in _STATES:
            getattr(found, _STATES[event.state]).append(segment)
        elif (
            events is not None
            and segment.segment_id is not None
            and (event is None or event.state is not RemoteState.FINISHED)
        ):
            found.orphans.append(segment)
        elif events is None and not segment.is_complete:
            found.unfinished.append(segment)
        else:
            found.remote.append(segment)
            if segment.missing:
                found.missing.append(MissingParts(segment.segment_id or "", segment.base_offset, segment.missing))
    by_id = {segment.segment_id for segment in there}
    for event in () if events is None else events.values():
        if event.state is RemoteState.FINISHED and event.segment_id not in by_id:
            found.missing.append(MissingParts(event.segment_id, event.base_offset, ("all",)))
