"""`kafkafs revive`: builds a log directory that a broker can start from, out of the remains of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, shown
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, MOMENT, TIER, ParsedText, check_destination, tier, whole_number
from kafkafs.cli.targets import is_named, opened_url, without_slash
from kafkafs.cli.terminal import print_json, print_table
from storage.types import MAX_OFFSET, TopicPartition

if TYPE_CHECKING:
    from storage.revival.revive import PlannedPartition, Request, Revival
    from storage.revival.topics import ConfigRequest


def _setting(text: str) -> tuple[str, str, str]:
    """`K=V`, or `TOPIC:K=V`, as (topic or "", key, value)."""
    key, equals, value = text.partition("=")
    topic, colon, name = key.rpartition(":")
    if not equals or not name or (colon and not topic):
        raise ValueError(f"{text!r} is not in the form K=V or TOPIC:K=V")
    return topic.strip(), name.strip(), value.strip()


def _count(text: str) -> tuple[str, int]:
    topic, _, count = text.partition("=")
    number = whole_number(count, 2**31 - 1)
    if not topic or not number:
        raise ValueError(f"{text!r} is not in the form TOPIC=N")
    return topic, number


def _listener(text: str) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    port = whole_number(number, 65534)
    if not host or not port:
        raise ValueError(f"{text!r} is not in the form HOST:PORT")
    return host, port


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SRC... [TP...]")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DEST",
    type=click.Path(path_type=Path),
    help="The new log directory: a path that does not exist, or an empty directory.",
)
@click.option("--until", type=MOMENT, help="Cut each partition after its last batch with a message at or before TIME.")
@click.option(
    "--offsets",
    "offsets_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Cut partitions at these offsets: lines of topic, partition, offset.",
)
@click.option(
    "--config",
    "config",
    multiple=True,
    type=ParsedText("[TOPIC:]K=V", _setting),
    help="A topic configuration; may be repeated.",
)
@click.option(
    "--partitions",
    "counts",
    multiple=True,
    type=ParsedText("TOPIC=N", _count),
    help="The number of partitions that a topic had, if it is unknown.",
)
@click.option(
    "--without-transactions",
    is_flag=True,
    help="Leave out __transaction_state, and abort the transactions that are open.",
)
@click.option(
    "--without-security", is_flag=True, help="Leave out the cluster's ACLs, SCRAM credentials and delegation tokens."
)
@click.option(
    "--release",
    type=click.Choice(["3.9", "4.0", "4.1", "4.2", "4.3", "4.4"]),
    help="Give the cluster the features that are this Kafka release's defaults, instead of those it had.",
)
@click.option("--salvage", is_flag=True, help="Copy the intact batches of damaged logs.")
@click.option("--link", is_flag=True, help="Share unchanged segments with the sources, by hard links.")
@click.option(
    "--listener",
    type=ParsedText("HOST:PORT", _listener),
    default="localhost:9092",
    show_default=True,
    help="Where the broker will listen; its controller on the next port.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@AS_JSON
@TIER
def revive(
    names: tuple[str, ...],
    target: Path,
    until: int | None,
    offsets_file: Path | None,
    config: tuple[tuple[str, str, str], ...],
    counts: tuple[tuple[str, int], ...],
    without_transactions: bool,
    without_security: bool,
    release: str | None,
    salvage: bool,
    link: bool,
    listener: tuple[str, int],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build a directory that an unmodified broker (KRaft, one node) can start from, out of the remains of others.

    SRC are log directories, or single partitions' directories such as orders-3, of one or several dead brokers, or the
    URL of a backup in an object store; they are only read. What a broker has set aside in them (-stray, -delete) is
    taken only if it is named. TP (topic, topic/partition or a glob) limits what is taken.
    Of several replicas of a partition the one with the highest leader epoch counts first; the others fill what it
    lacks. Missing messages are listed. Without --salvage, a damaged log is refused (exit code 4).

    Messages keep their offsets, timestamps and bytes, groups their offsets, topics their names, ids and known
    configurations, and the cluster its features, ACLs, credentials and quotas, as far as a source has them. A topic
    whose retention is unknown keeps everything. The notes say what was carried over and what was not. DEST appears when
    everything is complete, with a server.properties to start the broker.

    --without-transactions aborts open transactions, and commits those whose commit was acknowledged. --until and
    --offsets cut after a whole batch. --link shares sealed segments with SRC, unread.

    \b
    kafkafs revive /mnt/broker-1 --to /var/kafka
    kafkafs revive /mnt/broker-1 /mnt/broker-2 --to /var/kafka 'orders*' --until 2026-11-20T10:15
    kafkafs revive s3://bucket/prefix --to /var/kafka
    kafka-server-start.sh /var/kafka/server.properties
    """
    from storage.revival.revive import Request, rehearse, run

    sources, patterns = _divided(names)
    check_destination(target)
    request = Request(
        sources=sources,
        target=target,
        wanted=lambda tp: not patterns or any(is_named(tp, pattern) for pattern in patterns),
        until_ms=until,
        offsets={} if offsets_file is None else _offsets(offsets_file),
        config=_config(config),
        partition_counts=dict(counts),
        without_transactions=without_transactions,
        without_security=without_security,
        release=release,
        link=link,
        salvage=salvage,
        tier=tier(),
        host=listener[0],
        port=listener[1],
    )
    if dry_run:
        revival = rehearse(request)
    else:
        with progress_bar() as progress:
            revival = run(request, progress=progress)
    if as_json:
        print_json(_json(request, revival, dry_run=dry_run))
    else:
        _print(request, revival, dry_run=dry_run)


def _divided(names: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The sources, which are directories or URLs, and the patterns after them."""
    sources: list[Path] = []
    patterns: list[str] = []
    for name in names:
        if not patterns and "://" in name:
            sources.append(opened_url(name, anew=True))
        elif not patterns and Path(name).is_dir():
            sources.append(Path(name))
        elif not sources or name.startswith((".", "/")) or name.count("/") > 1:
            raise click.UsageError(f"no such directory: {name}")
        else:
            patterns.append(without_slash(name))
    return sources, patterns


def _offsets(path: Path) -> dict[TopicPartition, int]:
    """Lines of `topic partition offset`; a checkpoint of Kafka's has two more lines before them."""
    offsets = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fields = line.split()
        if not fields or line.startswith("#") or (number <= 2 and len(fields) == 1 and fields[0].isdigit()):
            continue
        values = [whole_number(text, MAX_OFFSET) for text in fields[1:]]
        if len(fields) != 3 or values[0] is None or values[1] is None:
            raise click.UsageError(
                f"{path}, line {number}: expected a topic, a partition and an offset, found {line!r}"
            )
        offsets[TopicPartition(fields[0], values[0])] = values[1]
    return offsets


def _config(settings: Sequence[tuple[str, str, str]]) -> ConfigRequest:
    from storage.revival.topics import ConfigRequest

    by_topic: dict[str, dict[str, str]] = {}
    for topic, key, value in settings:
        by_topic.setdefault(topic, {})[key] = value
    return ConfigRequest(by_topic.pop("", {}), by_topic)


def _print(request: Request, revival: Revival, *, dry_run: bool) -> None:
    if revival.began_anew:
        echo(f"an earlier run to {request.target} had not finished: begun anew")
    rows = [
        (str(planned.tp), planned.replica.log_start_offset, _end(revival, planned), shown(str(planned.replica.path)))
        for planned in revival.partitions
    ]
    print_table(("PARTITION", "FROM", "END", "SOURCE"), rows)
    for note in revival.notes:
        echo(f"note: {note}")
    if dry_run:
        echo(f"{request.target} would hold {len(revival.topics)} topics; nothing was done")
    else:
        echo(f"{request.target} is complete: kafka-server-start.sh {request.target}/server.properties")


def _end(revival: Revival, planned: PlannedPartition) -> int:
    return revival.built[planned.tp].log_end_offset if planned.tp in revival.built else planned.end_offset


def _json(request: Request, revival: Revival, *, dry_run: bool) -> dict[str, Any]:
    return {
        "directory": str(request.target),
        "dry_run": dry_run,
        "began_anew": revival.began_anew,
        "cluster_id": revival.node.cluster_id,
        "node_id": revival.node.node_id,
        "features": dict(revival.cluster.features),
        "topics": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": topic.partition_count,
                "missing": topic.missing,
                "config": dict(topic.configs),
                "assumed": list(topic.assumed),
                "left_out": list(topic.left_out),
            }
            for topic in revival.topics
        ],
        "partitions": [_partition_json(revival, planned) for planned in revival.partitions],
        "notes": revival.notes,
    }


def _partition_json(revival: Revival, planned: PlannedPartition) -> dict[str, Any]:
    built = revival.built.get(planned.tp)
    return {
        **asdict(planned.tp),
        "source": shown(str(planned.replica.path)),
        "log_start_offset": planned.replica.log_start_offset,
        "log_end_offset": _end(revival, planned),
        "cut": planned.is_cut,
        "holds_later_messages": planned.is_cut and planned.cut.straddles,
        "beyond": [
            {
                "source": shown(str(other.path)),
                "first_offset": other.offsets.start,
                "last_offset": other.offsets.end - 1,
                "reason": other.reason,
            }
            for other in planned.choice.beyond
        ],
        "bytes": planned.replica.snapshot.size_bytes if built is None else built.size_bytes,
        "linked_bytes": 0 if built is None else built.linked_bytes,
        "salvaged": planned.chosen is not None,
        "lost": [
            {"first_offset": lost.first_offset, "last_offset": lost.last_offset, "reason": lost.reason}
            for lost in (() if planned.chosen is None else planned.chosen.lost)
            if lost.first_offset is not None
        ],
        "filled": [
            {
                "source": str(filled.directory),
                "first_offset": filled.offsets.start,
                "last_offset": filled.offsets.end - 1,
            }
            for filled in (() if planned.chosen is None else planned.chosen.filled)
        ],
        "open_transactions": 0 if built is None else len(built.open_transactions),
        "aborted_transactions": 0 if built is None else len(built.aborted),
        "committed_transactions": 0 if built is None else len(built.committed),
    }
