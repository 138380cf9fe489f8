"""`kafkafs tier`: what tiered storage holds of a log directory's topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from kafkafs.cli import echo, fail_with, text_of
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.shared_options import AS_JSON, LOGDIR, TIER, TopicPartitionPattern, each, expand, open_log_dir
from kafkafs.cli.shared_options import tier as given_tier
from kafkafs.cli.terminal import print_json, print_table
from storage.errors import StorageError
from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.remote_metadata import KnownSegment, RemoteState
from storage.log.tiered_log import is_missing
from storage.log.tiering import is_tiered
from storage.tier.remote_segments import RemoteSegment, TopicIdPartition
from storage.tier.tier import Tier
from storage.types import OffsetRange, TopicPartition
from storage.verify.findings import FaultKind, Finding, Repair

# What a tier holds of the partitions of a log directory, and what it should hold and does not.
#
# local      segments in the log directory
# remote     segments whose upload was finished, as the broker's metadata say; without any, those that are complete
# both       remote ones whose messages the log directory has too
# gaps       offsets of the log that neither has
# missing    of remote segments: objects that are not there
# unfinished, deleting      uploads that were not finished, segments whose removal has begun: a broker tidies them up
# orphans    objects that the metadata do not name: nothing will ever remove them

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


_PUT_BACK: Final = Repair(None, "put the objects back, from a copy of the tier")
_ORPHANED: Final = Repair(None, "remove them, if no other broker's __remote_log_metadata names them", note=True)


def findings(
    log_dir: LogDir, tier: Tier, wanted: Iterable[TopicPartition], *, others: bool = False
) -> Iterator[Finding]:
    """Gaps, missing parts and orphans of these partitions; `others`: orphans of those that are not here too. A place
    that cannot be reached is a finding of its own, once."""
    unreachable: set[Path] = set()

    def looked(path: Path, look: Callable[[], Iterable[PartitionTier]]) -> Iterator[Finding]:
        try:
            for found in look():
                for gap in found.gaps:
                    what = f"offsets {gap.start} to {gap.end - 1} are neither here nor in the tier"
                    yield Finding(FaultKind.REMOTE_SEGMENT, path, _PUT_BACK, what, offset=gap.start)
                for part in found.missing if found.log_end_offset is not None else ():
                    lacking = ", ".join(part.suffixes).replace("all", "all its objects")
                    what = f"remote segment {part.base_offset}-{part.segment_id} lacks {lacking}"
                    yield Finding(FaultKind.REMOTE_PARTS, path, _PUT_BACK, what, offset=part.base_offset)
                if found.orphans:
                    what = f"{_place(found)}: orphaned: {_listed(found.orphans)}"
                    yield Finding(FaultKind.REMOTE_ORPHANS, path, _ORPHANED, what)
        except (StorageError, OSError) as error:
            finding = Finding.of_error(FaultKind.REMOTE_SEGMENT, error, path)
            if finding.path not in unreachable:
                unreachable.add(finding.path)
                yield finding

    for tp in wanted:
        yield from looked(log_dir.path / tp.dir_name, partial(contents, log_dir, tier, [tp]))
    if others:
        yield from looked(log_dir.path, partial(elsewhere, log_dir, tier))


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


_SHOWN = 10


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@AS_JSON
@TIER
@click.pass_context
def tier(ctx: click.Context, logdir: Path, tp: str | None, as_json: bool) -> None:
    """Show what a tier has of the topics of LOGDIR, or of TP.

    TP is a topic, topic/partition or a glob. LOCAL are the segments in LOGDIR, REMOTE those in the tier whose upload
    was finished, BOTH the remote ones whose messages are in LOGDIR too. Then follow, for each partition: offsets that
    neither has; parts of remote segments that are missing; uploads that were not finished and segments whose removal
    has begun, both of which a broker removes; and orphans, objects that __remote_log_metadata does not name and nothing
    will remove.

    With --json: `local`, `remote`; `gaps`, first and last offset of each; `missing_parts`, `all` if no part is there;
    `unfinished`, `deleting` and `orphans`, with bytes; `metadata`: whether __remote_log_metadata says anything of the
    partition here; if not, every complete segment counts.

    Without TP also what is in the tier of partitions that are not in LOGDIR (`elsewhere`); all of a topic that the
    cluster no longer has is orphaned. The tier is only listed and read.

    \b
    kafkafs tier /var/kafka --tier /mnt/tier
    kafkafs tier /var/kafka 'orders*' --tier s3://bucket/prefix --json
    """
    use_default_signals(ctx)
    places = given_tier()
    if places is None:
        raise click.UsageError("name the tier: --tier PATH")
    log_dir = open_log_dir(logdir)
    found: list[PartitionTier] = []
    others: list[PartitionTier] = []
    errors = each(expand(log_dir, tp), lambda one: found.extend(contents(log_dir, places, [one])))
    if tp is None and not errors:
        others += elsewhere(log_dir, places)
    if as_json:
        print_json({"partitions": [_json(one) for one in found], "elsewhere": [_json(one) for one in others]})
    else:
        _print(found, others)
    fail_with(ctx, (f"{one}: {text_of(error)}" for one, error in errors.items()))


def _print(found: Sequence[PartitionTier], others: Sequence[PartitionTier]) -> None:
    by_topic: dict[str, list[PartitionTier]] = {}
    for one in found:
        by_topic.setdefault(one.of.topic, []).append(one)
    rows = [
        (
            topic, len(parts), sum(one.local for one in parts), sum(len(one.remote) for one in parts),
            sum(one.both for one in parts), sum(one.local_bytes for one in parts),
            sum(_bytes(one.remote) for one in parts), sum(len(one.gaps) for one in parts),
            sum(len(one.missing) for one in parts), sum(len(one.orphans) for one in parts),
        )
        for topic, parts in sorted(by_topic.items())
    ]  # fmt: skip
    columns = (
        "TOPIC",
        "PARTITIONS",
        "LOCAL",
        "REMOTE",
        "BOTH",
        "LOCAL BYTES",
        "REMOTE BYTES",
        "GAPS",
        "MISSING",
        "ORPHANS",
    )
    print_table(columns, rows)
    for one in found:
        name = _place(one)
        if not one.known and one.remote:
            echo(f"{name}: __remote_log_metadata has nothing of it here, so every complete segment counts")
        for gap in one.gaps:
            echo(f"{name}: offsets {gap.start} to {gap.end - 1} are neither here nor in the tier")
        for part in _first(one.missing):
            echo(f"{name}: segment {part.base_offset}-{part.segment_id}: missing {', '.join(part.suffixes)}")
        _print_lists(name, one)
    for one in others:
        name = _place(one)
        if one.remote:
            echo(f"{name}: not in this directory; {_counted(one.remote)} in the tier")
        _print_lists(name, one)


def _print_lists(name: str, one: PartitionTier) -> None:
    for what, segments in (
        ("uploads that were not finished", one.unfinished),
        ("being removed", one.deleting),
        ("orphaned", one.orphans),
    ):
        if segments:
            echo(f"{name}: {what}: {_listed(segments)}")


def _place(one: PartitionTier) -> str:
    name = f"{one.of.topic}/{one.of.partition}"
    return name if one.log_end_offset is not None else f"{name} ({one.of.topic_id})"


def _listed(segments: Sequence[RemoteSegment]) -> str:
    return f"{_counted(segments)}: {', '.join(_first(_name(segment) for segment in segments))}"


def _counted(segments: Sequence[RemoteSegment]) -> str:
    plural = "" if len(segments) == 1 else "s"
    return f"{len(segments)} segment{plural} with {_bytes(segments)} bytes"


def _first(items: Iterable[Any]) -> list[Any]:
    listed = list(items)
    return listed if len(listed) <= _SHOWN else [*listed[:_SHOWN], "…"]


def _name(segment: RemoteSegment) -> str:
    return f"{segment.base_offset}-{segment.segment_id}"


def _bytes(segments: Iterable[RemoteSegment]) -> int:
    return sum(segment.stored_bytes for segment in segments)


def _json(one: PartitionTier) -> dict[str, Any]:
    return {
        "topic": one.of.topic,
        "topic_id": one.of.topic_id,
        "partition": one.of.partition,
        "log_start_offset": one.log_start_offset,
        "local_log_start_offset": one.local_log_start_offset,
        "log_end_offset": one.log_end_offset,
        "metadata": one.known,
        "local": {"segments": one.local, "bytes": one.local_bytes},
        "remote": {"segments": len(one.remote), "bytes": _bytes(one.remote)},
        "both": one.both,
        "gaps": [[gap.start, gap.end - 1] for gap in one.gaps],
        "missing_parts": [
            {"segment_id": part.segment_id, "base_offset": part.base_offset, "parts": list(part.suffixes)}
            for part in one.missing
        ],
        **{
            name: [
                {
                    "segment_id": segment.segment_id,
                    "base_offset": segment.base_offset,
                    "bytes": segment.stored_bytes,
                    "name": segment.name,
                }
                for segment in segments
            ]
            for name, segments in (("unfinished", one.unfinished), ("deleting", one.deleting), ("orphans", one.orphans))
        },
    }
