"""`kafkafs tier`: what tiered storage holds of a log directory's topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, say, text_of
from kafkafs.cli.exit_codes import DATA_ERROR
from kafkafs.cli.shared_options import AS_JSON, TIER
from kafkafs.cli.shared_options import tier as given_tier
from kafkafs.cli.signals import use_default_signals
from kafkafs.cli.tables import print_json, print_table
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir

if TYPE_CHECKING:
    from storage.log.tier_contents import PartitionTier
    from storage.tier.remote_segments import RemoteSegment

_SHOWN = 10


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@AS_JSON
@TIER
@click.pass_context
def tier(ctx: click.Context, logdir: Path, tp: str | None, as_json: bool) -> None:
    """Show what a tier holds of the topics of LOGDIR, or of TP (topic, topic/partition or a glob).

    LOCAL are the segments in LOGDIR, REMOTE those in the tier whose upload was finished, BOTH the remote ones whose
    messages are in LOGDIR too. Then follow, for each partition: offsets that neither has; parts of remote segments that
    are missing; uploads that were not finished and segments whose removal has begun, both of which a broker tidies up;
    and orphans, objects that __remote_log_metadata does not name and nothing will remove.

    Without TP also what is in the tier of partitions that are not in LOGDIR. The tier is only listed and read.

    \b
    kafkafs tier /var/kafka --tier /mnt/tier
    kafkafs tier /var/kafka 'orders*' --tier s3://bucket/prefix --json
    """
    from storage.errors import StorageError
    from storage.log.tier_contents import contents, elsewhere

    use_default_signals(ctx)
    places = given_tier()
    if places is None:
        raise click.UsageError("name the tier: --tier PATH")
    log_dir = open_log_dir(logdir)
    found: list[PartitionTier] = []
    others: list[PartitionTier] = []
    errors: list[str] = []
    for one in expand(log_dir, tp):
        try:
            found += contents(log_dir, places, [one])
        except (StorageError, OSError) as error:
            errors.append(f"{one}: {text_of(error)}")
    if tp is None and not errors:
        others += elsewhere(log_dir, places)
    if as_json:
        print_json({"partitions": [_json(one) for one in found], "elsewhere": [_json(one) for one in others]})
    else:
        _print(found, others)
    for text in errors:
        say(text)
    if errors:
        ctx.exit(DATA_ERROR)


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
        name = f"{one.of.topic}/{one.of.partition}"
        if not one.known and one.remote:
            echo(f"{name}: __remote_log_metadata has nothing of it here, so every complete segment counts")
        for gap in one.gaps:
            echo(f"{name}: offsets {gap.start} to {gap.end - 1} are neither here nor in the tier")
        for part in _first(one.missing):
            echo(f"{name}: segment {part.base_offset}-{part.segment_id}: missing {', '.join(part.suffixes)}")
        _print_lists(name, one)
    for one in others:
        name = f"{one.of.topic}/{one.of.partition} ({one.of.topic_id})"
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
            echo(f"{name}: {what}: {_counted(segments)}: {', '.join(_first(_name(segment) for segment in segments))}")


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
