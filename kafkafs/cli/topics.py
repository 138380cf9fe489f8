"""`kafkafs topics`: lists, describes and changes topics."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, fail_with, say, text_of
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, TIER
from kafkafs.cli.targets import LOGDIR, TopicName, expand_topics, open_log_dir
from kafkafs.cli.terminal import moment, print_json, print_table
from kafkafs.cli.topic_changes import alter, create, delete
from storage.progress import working
from storage.types import Isolation, TopicPartition

if TYPE_CHECKING:
    from storage.log.log_dir import LogDir
    from storage.log.topic_info import TopicInfo
    from storage.progress import Progress


class _Topics(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in self.commands and Path(args[0]).is_dir():
            ctx.fail(f"No such command {args[0]!r}. Did you mean `kafkafs topics list {args[0]}`?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Topics)
def topics() -> None:
    """List, describe, create, change or remove topics."""


topics.add_command(alter)
topics.add_command(create)
topics.add_command(delete)


@topics.command("list")
@LOGDIR
@AS_JSON
@TIER
@click.pass_context
def list_topics(ctx: click.Context, logdir: Path, as_json: bool) -> None:
    """List the topics of LOGDIR.

    Each topic has the number of its partitions in LOGDIR and their bytes. Directories that are not live partitions are
    listed below, with the reason.

    \b
    kafkafs topics list /var/kafka
    kafkafs topics list /var/kafka --json | jq -r '.topics[].topic'
    """
    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    problems: list[OSError] = []
    rows: list[dict[str, Any]] = []
    for topic in log_dir.topics():
        partitions = log_dir.partitions(topic)
        sizes = [_log_bytes(log_dir.path / TopicPartition(topic, number).dir_name, problems) for number in partitions]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        rows.append({"topic": topic, "partitions": partitions, "bytes": total})
    hidden = [
        {"directory": entry.name, "reason": entry.reason, "bytes": _log_bytes(log_dir.path / entry.name, [])}
        for entry in log_dir.hidden()
    ]
    if as_json:
        print_json({"topics": rows, "hidden": hidden})
    else:
        _print_list(rows, hidden)
    fail_with(ctx, problems)


def _print_list(topics: list[dict[str, Any]], hidden: list[dict[str, Any]]) -> None:
    print_table(("TOPIC", "PARTITIONS", "BYTES"), [(t["topic"], len(t["partitions"]), t["bytes"]) for t in topics])
    if hidden:
        echo()
        rows = [(entry["directory"], entry["bytes"], entry["reason"]) for entry in hidden]
        print_table(("NOT A LIVE PARTITION", "BYTES", "REASON"), rows)


@topics.command()
@LOGDIR
@click.argument("patterns", nargs=-1, type=TopicName(), metavar="[TOPIC]...")
@AS_JSON
@TIER
@click.pass_context
def describe(ctx: click.Context, logdir: Path, patterns: tuple[str, ...], as_json: bool) -> None:
    """Describe TOPICs, by default all: partitions with their offsets, bytes and times, and the configuration.

    TOPIC is a topic or a glob. OLDEST is the largest timestamp in the oldest segment: retention.ms is compared with it.
    GAPS counts the ranges of offsets that are missing between two segments; in compacted topics they are not counted.

    \b
    kafkafs topics describe /var/kafka orders
    kafkafs topics describe /var/kafka 'orders*'
    """
    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    described: list[dict[str, Any]] = []
    problems: list[str] = []
    for topic in expand_topics(log_dir, patterns):
        try:
            facts = _topic(log_dir, topic)
        except OSError as error:
            problems.append(text_of(error))
            continue
        if not as_json:
            if described:
                echo()
            _print_head(facts)
        # The bar has been removed before its topic's partitions are printed.
        with progress_bar() as progress:
            tps = [TopicPartition(topic, number) for number in log_dir.partitions(topic)]
            facts["partitions"] = [_partition(log_dir, tp, progress) for tp in tps]
        if not as_json:
            _print_partitions(facts)
        described.append(facts)
    if as_json:
        print_json({"topics": described})
    problems += [problem for topic in described for problem in topic["problems"]]
    problems += [part["problem"] for topic in described for part in topic["partitions"] if "problem" in part]
    fail_with(ctx, problems)


def _topic(log_dir: LogDir, topic: str) -> dict[str, Any]:
    """A topic's facts that need no look into its partitions; "partitions" has their numbers."""
    info: TopicInfo = log_dir.topic_info(topic)
    return {
        "topic": topic,
        "topic_id": info.topic_id,
        "partition_count": info.partition_count,
        "replicas": info.replicas,
        "config": dict(sorted(info.overrides.items())),
        "config_source": info.source,
        "config_in_force": dict(sorted(info.config.texts().items())),
        "partitions": log_dir.partitions(topic),
        "problems": [str(problem) for problem in info.problems],
    }


def _partition(log_dir: LogDir, tp: TopicPartition, progress: Progress) -> dict[str, Any]:
    """The content of @info.json, the timestamp that retention.ms is compared with in the oldest segment, and the number
    of gaps between segments (None: compaction may have made them); or the problem."""
    from kafkafs.tree.info import InfoTexts
    from storage.errors import StorageError
    from storage.log.greatest_timestamp import retention_timestamp_ms
    from storage.log.isolation import last_stable_offset
    from storage.log.segment_gaps import is_cleaned, segment_gaps

    texts = InfoTexts(log_dir, Isolation.READ_UNCOMMITTED)
    try:
        log = log_dir.log(tp)
        snapshot = log.snapshot()
        for segment in snapshot.segments[len(snapshot.remote) :]:
            # Otherwise the facts would silently lack what lies in this segment.
            if not os.access(segment.log.path, os.R_OK, follow_symlinks=False):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(segment.log.path))
        oldest = retention_timestamp_ms(snapshot, snapshot.segments[0]) if snapshot.size_bytes else None
        # Without indexes and snapshots of producers the log is read twice.
        known = f"{tp}: offsets {snapshot.log_start_offset} to {snapshot.log_end_offset}, {snapshot.size_bytes:,} bytes"
        with working(progress, known, 2 * snapshot.size_bytes):
            last_stable_offset(snapshot, progress.advance)
            gaps = None if is_cleaned(log_dir, tp) else len(segment_gaps(snapshot, progress.advance))
        facts: dict[str, Any] = json.loads(texts.partition_info(log)[0])
    except (StorageError, OSError) as error:
        return {"partition": tp.partition, "problem": text_of(error)}
    del facts["topic"], facts["topic_id"]
    return facts | {"oldest_timestamp": oldest, "gaps": gaps}


def _print_head(topic: dict[str, Any]) -> None:
    local_count, count = len(topic["partitions"]), topic["partition_count"]
    partitions = f"{local_count} partitions" if local_count != 1 else "1 partition"
    if count is not None and count != local_count:
        partitions += f" of {count}"
    topic_id = f", id {topic['topic_id']}" if topic["topic_id"] else ""
    echo(f"{topic['topic']}: {partitions}, {topic['replicas']} replica(s){topic_id}")
    if topic["config"]:
        echo(f"config ({topic['config_source']}): {' '.join(f'{k}={v}' for k, v in topic['config'].items())}")


def _print_partitions(topic: dict[str, Any]) -> None:
    columns = ("partition", "log_start_offset", "log_end_offset", "last_stable_offset", "messages", "segments", "bytes")
    headings = (
        "PARTITION",
        "START",
        "END",
        "STABLE",
        "MESSAGES",
        "SEGMENTS",
        "BYTES",
        "GAPS",
        "FIRST",
        "LAST",
        "OLDEST",
    )
    rows = [
        (
            *(part.get(name) for name in columns),
            part.get("gaps"),
            _seconds(part.get("first_time")),
            _seconds(part.get("last_time")),
            _seconds(moment(-1 if part.get("oldest_timestamp") is None else part["oldest_timestamp"])),
        )
        for part in topic["partitions"]
    ]
    print_table(headings, rows)
    for part in topic["partitions"]:
        first, local = part.get("log_start_offset"), part.get("local_log_start_offset")
        place = f"{topic['topic']}/{part['partition']}"
        if "remote_segments" in part:
            count, size, places = part["remote_segments"], part["remote_bytes"], ", ".join(part["remote_places"])
            echo(f"{place}: {first} to {local - 1} are {count} remote segment(s), {size} bytes in {places}")
        elif first != local:
            say(f"note: {place}: messages {first} to {local - 1} are in tiered storage, not in this directory")


def _seconds(moment: str | None) -> str | None:
    """`2026-11-20T10:15:30.123Z` without the fraction, to save room in a table."""
    return None if moment is None else moment.partition(".")[0] + "Z" * moment.endswith("Z")


def _log_bytes(directory: Path, problems: list[OSError]) -> int | None:
    """Bytes of the .log files in a directory, 0 if it was removed; None, and one more problem, if they are unknown."""
    from storage.files.listing import paths_in
    from storage.files.names import FileKind

    try:
        return sum(path.lstat().st_size for path in paths_in(directory) if path.suffix == FileKind.LOG.value)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        problems.append(error)
        return None
