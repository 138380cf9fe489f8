"""`kafkafs groups`: committed offsets and lag, and resetting a group to other offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, fail_with, say
from kafkafs.cli.passes import WAIT, owned_dir
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.shared_options import AS_JSON, AT, TIER, ParsedText, today, whole_number
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from kafkafs.cli.terminal import moment, print_json, print_table
from storage.types import MAX_OFFSET, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from kafkafs.reading.range_names import TimeSpec
    from storage.coordinators.groups import ConsumerGroup
    from storage.log.log_dir import LogDir


def _target(text: str) -> str | int | TimeSpec:
    """`earliest`, `latest`, an offset, or a time as in the range names."""
    from kafkafs.reading.range_names import ENDS, MalformedRange, is_epoch_ms, parse_time_spec, parse_times

    if text in ENDS:
        return ENDS[text]
    if text.isascii() and text.isdigit() and not is_epoch_ms(text):
        number = whole_number(text, MAX_OFFSET)
        if number is None:
            raise ValueError(f"{text!r} is above 2^63-1")
        return number
    try:
        return parse_time_spec(text) if text.startswith("last-") else parse_times(f"{text}--", today())
    except MalformedRange:
        raise ValueError(f"{text!r} is neither earliest, latest, an offset nor a time (2026-11-20T10:15)") from None


@click.command()
@LOGDIR
@click.argument("group", required=False)
@AT
@click.option(
    "--reset-to", "target", type=ParsedText("WHERE", _target), metavar="WHERE", help="Commit these offsets for GROUP."
)
@click.option(
    "--topic", "topics", multiple=True, type=TopicPartitionPattern(), help="The partitions to reset; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="With --reset-to: only print what would be committed, without the lock.")
@click.option("--force", is_flag=True, help="Also if __consumer_offsets has several replicas.")
@WAIT
@AS_JSON
@TIER
@click.pass_context
def groups(
    ctx: click.Context,
    logdir: Path,
    group: str | None,
    at_ms: int | None,
    target: str | int | TimeSpec | None,
    topics: tuple[str, ...],
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Show the consumer groups of LOGDIR, or what GROUP has committed and how many messages it lags behind.

    The lag counts what the group can still read, with --at up to the end of the logs at that time. Members and their
    assignments are as recorded, for the classic protocol at the last rebalance.

    With --reset-to, GROUP continues at another place in the partitions that --topic names (a topic, topic/partition or
    a glob): at the earliest or latest message, at an offset, or at the first message at or after a time such as
    2026-11-20T10:15, last-2h or 1795132800000 (13 digits: epoch milliseconds). If the log does not have an offset, its
    start or end is committed. The broker must be stopped; when it runs again, the group continues there.

    \b
    kafkafs groups /var/kafka
    kafkafs groups /var/kafka billing --at 2026-11-20T10:15
    kafkafs groups /var/kafka billing --reset-to earliest --topic orders
    kafkafs groups /var/kafka billing --reset-to 2026-11-20T10:15 --topic 'orders/*' --dry-run
    """
    use_default_signals(ctx)
    if target is None:
        for option, given in (("--topic", topics), ("--dry-run", dry_run)):
            if given:
                raise click.UsageError(f"{option} needs --reset-to")
    elif at_ms is not None:
        raise click.UsageError("--at shows groups; --reset-to 2026-11-20T10:15 commits the offsets of a time")
    elif group is None or not topics:
        raise click.UsageError("--reset-to needs a GROUP and a --topic")
    else:
        _reset(logdir, group, target, topics, dry_run=dry_run, force=force, as_json=as_json)
        return
    fail_with(ctx, _show_all(logdir, as_json, at_ms) if group is None else _show_one(logdir, group, as_json, at_ms))


def _show_all(logdir: Path, as_json: bool, at_ms: int | None) -> list[str]:
    from storage.coordinators.groups import GroupOffsets

    log_dir = open_log_dir(logdir)
    offsets = GroupOffsets(log_dir, at_ms)
    _note_missing(log_dir, offsets.partitions(), at_ms)
    logs = logs_in(log_dir, at_ms)
    topics_by_id = cache(log_dir.topics_by_id)
    summaries = [summary_of(group, logs, topics_by_id) for _, group in sorted(offsets.groups().items())]
    if as_json:
        print_json({"groups": summaries})
    else:
        before, behind = ("group", "type", "state"), ("topics", "partitions", "lag", "last_commit")
        rows = [
            [*(row[name] for name in before), len(row["members"]), *(row[name] for name in behind)] for row in summaries
        ]
        print_table(("GROUP", "TYPE", "STATE", "MEMBERS", "TOPICS", "PARTITIONS", "LAG", "LAST COMMIT"), rows)
    return offsets.problems()


def _show_one(logdir: Path, name: str, as_json: bool, at_ms: int | None) -> list[str]:
    from storage.coordinators.groups import GroupOffsets
    from storage.errors import UnknownTopicOrPartition

    log_dir = open_log_dir(logdir)
    offsets = GroupOffsets(log_dir, at_ms)
    group = offsets.group(name)
    place = offsets.place(name)
    _note_missing(log_dir, offsets.partitions() if place is None else [place], at_ms)
    if group is None:
        then = "" if at_ms is None else f" at {moment(at_ms)}"
        raise UnknownTopicOrPartition(f"there is no group {name!r} here{then}", path=logdir)
    logs = logs_in(log_dir, at_ms)
    rows = list(_rows(group, logs))
    summary = summary_of(group, logs, log_dir.topics_by_id)
    if as_json:
        print_json({**summary, "offsets": rows})
    else:
        columns = ("topic", "partition", "offset", "log_end_offset", "lag", "committed", "metadata")
        headings = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "COMMITTED", "METADATA")
        print_table(headings, [[row[name] for name in columns] for row in rows])
        if summary["members"]:
            echo()
            names = ("member_id", "group_instance_id", "client_id", "client_host", "member_epoch")
            members = [
                [*(member.get(name) for name in names), *_assigned(member["assignment"])]
                for member in summary["members"]
            ]
            print_table(("MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "PARTITIONS", "ASSIGNMENT"), members)
    return offsets.problems()


def _note_missing(log_dir: LogDir, partitions: Iterable[int], at_ms: int | None) -> None:
    """Says what compaction has removed of the committed offsets at a time."""
    from storage.errors import StorageError
    from storage.files.names import CONSUMER_OFFSETS_TOPIC
    from storage.log.earlier import completeness

    if at_ms is None:
        return
    known = []
    for partition in partitions:
        tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, partition)
        with suppress(StorageError, OSError):  # reading the offsets reports it
            known.append((completeness(log_dir, log_dir.log(tp).snapshot(), at_ms), tp))
    # The state of all is complete when that of the last one is.
    worst = max(known, key=lambda pair: (pair[0].from_ms or 0, pair[0].start_offset), default=None)
    problem = None if worst is None else worst[0].problem(worst[1], moment(worst[0].from_ms or 0))
    if problem is not None:
        say(f"note: {problem}")


def _assigned(assignment: Any) -> tuple[int | None, str | None]:
    """How many partitions, and which; None for what another protocol than the consumers' has assigned."""
    if isinstance(assignment, str):
        return None, None
    topics = assignment if isinstance(assignment, list) else [topic for tasks in assignment.values() for topic in tasks]
    named = [
        f"{part.get('topic') or part.get('topic_id') or part['subtopology']}({','.join(map(str, part['partitions']))})"
        for part in topics
    ]
    return sum(len(topic["partitions"]) for topic in topics), " ".join(named)


_Logs = Callable[[TopicPartition], OffsetRange | None]
"""The offsets of a partition's log, in tiered storage too; None for a partition that is not here or cannot be read."""


def logs_in(log_dir: LogDir, at_ms: int | None) -> _Logs:
    from storage.errors import StorageError
    from storage.log.earlier import end_at

    @cache
    def offsets_of(tp: TopicPartition) -> OffsetRange | None:
        try:
            snapshot = log_dir.log(tp).snapshot()
            end = snapshot.log_end_offset if at_ms is None else end_at(snapshot, at_ms)
        except (StorageError, OSError):
            return None
        return OffsetRange(snapshot.whole_start_offset, end)

    return offsets_of


def _rows(group: ConsumerGroup, logs: _Logs) -> Iterator[dict[str, Any]]:
    """The offsets that the group has committed, by topic and partition. The lag counts the offsets that the group can
    still read: from the committed one, or from the log start if that is later, to the log end."""
    for topic, partitions in sorted(group.offsets.items()):
        for partition, committed in sorted(partitions.items()):
            log = logs(TopicPartition(topic, partition))
            yield {
                "topic": topic,
                "partition": partition,
                "offset": committed.offset,
                "log_end_offset": None if log is None else log.end,
                "lag": None if log is None else max(log.end - max(committed.offset, log.start), 0),
                "leader_epoch": None if committed.leader_epoch < 0 else committed.leader_epoch,
                "metadata": committed.metadata,
                "commit_timestamp": committed.commit_timestamp,
                "committed": moment(committed.commit_timestamp),
            }


def summary_of(group: ConsumerGroup, logs: _Logs, topics_by_id: Callable[[], Mapping[str, str]]) -> dict[str, Any]:
    from storage.coordinators.group_state import state_of

    rows = list(_rows(group, logs))
    return {
        "protocol_type": None,
        "protocol": None,
        **state_of(group, topics_by_id),
        "topics": len(group.offsets),
        "partitions": len(rows),
        "lag": None if any(row["lag"] is None for row in rows) else sum(row["lag"] for row in rows),
        "last_commit": moment(group.commit_timestamp),
    }


def _reset(
    logdir: Path,
    group: str,
    target: str | int | TimeSpec,
    topics: tuple[str, ...],
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    from storage.coordinators.group_commits import GroupCommitter, check_commit
    from storage.coordinators.groups import GroupOffsets
    from storage.files.names import CONSUMER_OFFSETS_TOPIC

    log_dir = open_log_dir(logdir)
    chosen = list(dict.fromkeys(tp for pattern in topics for tp in expand(log_dir, pattern)))
    if dry_run:
        offsets = GroupOffsets(log_dir)
        check_commit(log_dir, offsets, group, chosen, force=force)
        _print_offsets(
            group, offsets.group(group), {tp: _resolved(log_dir, tp, target) for tp in chosen}, as_json, dry_run=True
        )
        return
    place = GroupOffsets(log_dir).place(group)
    # Only the log that is written to is recovered, if it exists yet.
    only = () if place is None else (TopicPartition(CONSUMER_OFFSETS_TOPIC, place),)
    with owned_dir(logdir, {}, only=only) as owned:
        offsets = GroupOffsets(owned.log_dir)
        committer = GroupCommitter(owned, offsets, force=force)
        before = offsets.group(group)
        new_offsets = {tp: _resolved(log_dir, tp, target) for tp in chosen}
        committer.check(group, chosen)
        committer.commit(group, new_offsets)
        committer.sync(group)
    _print_offsets(group, before, new_offsets, as_json, dry_run=False)


def _print_offsets(
    group: str, before: ConsumerGroup | None, offsets: Mapping[TopicPartition, int], as_json: bool, *, dry_run: bool
) -> None:
    rows = []
    for tp, offset in sorted(offsets.items()):
        known = None if before is None else before.offsets.get(tp.topic, {}).get(tp.partition)
        rows.append((tp.topic, tp.partition, None if known is None else known.offset, offset))
    if as_json:
        names = ("topic", "partition", "before", "offset")
        rows_json = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"group": group, "offsets": rows_json, "dry_run": dry_run})
    else:
        print_table(("TOPIC", "PARTITION", "BEFORE", "OFFSET"), rows)


def _resolved(log_dir: LogDir, tp: TopicPartition, target: str | int | TimeSpec) -> int:
    """The offset at which the group continues in a partition (the rules of ConsumerGroupCommand)."""
    from kafkafs.reading.range_names import LastDuration
    from storage.log.offset_lookup import offset_for_timestamp

    snapshot = log_dir.log(tp).snapshot()
    first, end = snapshot.whole_start_offset, snapshot.log_end_offset
    if isinstance(target, str):
        return first if target == "earliest" else end
    if isinstance(target, int):
        if not first <= target <= end:
            say(f"{tp} has no offset {target}: {first if target < first else end} is used instead")
        return min(max(target, first), end)
    if snapshot.remote_note is not None:
        say(f"note: {snapshot.remote_note}: no earlier message than {snapshot.log_start_offset} is found by time")
    start_ms = log_dir.clock.now_ms() - target.duration_ms if isinstance(target, LastDuration) else target.start_ms
    place = offset_for_timestamp(snapshot, start_ms or 0)
    return end if place is None else place.offset
