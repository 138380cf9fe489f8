"""`kafkafs count`: the number of messages that a consumer would see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, fail_with, say, text_of
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.shared_options import AS_JSON, ISOLATION, TIER
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from storage.progress import working
from storage.types import MAX_OFFSET, Isolation

if TYPE_CHECKING:
    from storage.log.log_dir import LogDir
    from storage.progress import Progress
    from storage.types import TopicPartition


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern(), required=False)
@ISOLATION
@AS_JSON
@TIER
@click.pass_context
def count(ctx: click.Context, logdir: Path, tp: str | None, isolation: str, as_json: bool) -> None:
    """Count the messages that a consumer would see.

    Only batch headers are read, so the messages of a damaged batch count too.

    TP is a topic, topic/partition or a glob; without it, all of LOGDIR is counted. For one partition one number is
    printed; for several, one line each and the total. With --json, `remote_offsets` has the first and the last offset
    that are in tiered storage alone.

    \b
    kafkafs count /var/kafka orders/0
    kafkafs count /var/kafka 'orders*' --isolation read_committed
    """
    from kafkafs.cli.progress_bar import progress_bar
    from kafkafs.cli.terminal import print_json, print_table

    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    targets = expand(log_dir, tp)
    with progress_bar() as progress:
        rows = [_counted(log_dir, target, Isolation(isolation), progress) for target in targets]
    failed = [row for row in rows if row["count"] is None]
    total = None if failed else sum(row["count"] for row in rows)
    if as_json:
        print_json({"partitions": rows, "total": total})
    elif len(rows) == 1:
        if not failed:
            echo(total)
    else:
        lines = [(f"{row['topic']}/{row['partition']}", row["count"]) for row in rows]
        print_table(("PARTITION", "MESSAGES"), [*lines, ("total", total)])
    for row in rows:
        if "remote_offsets" in row and not as_json:
            first, last = row["remote_offsets"]
            place = f"{row['topic']}/{row['partition']}"
            say(f"note: {place}: messages {first} to {last} are in tiered storage, and not counted (--tier PATH)")
    fail_with(ctx, (row["error"] for row in failed))


def _counted(log_dir: LogDir, tp: TopicPartition, isolation: Isolation, progress: Progress) -> dict[str, Any]:
    from storage.errors import StorageError
    from storage.log.counting import count_messages

    row: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition, "count": None}
    try:
        snapshot = log_dir.log(tp).snapshot()
        remote = snapshot.remote_offsets
        if remote is not None:
            row["remote_offsets"] = [remote.start, remote.end - 1]
        most = snapshot.log_end_offset - snapshot.log_start_offset
        with working(progress, f"{tp}: at most {most:,} messages", snapshot.size_bytes):
            row["count"] = count_messages(
                snapshot, snapshot.log_start_offset, MAX_OFFSET, isolation, on_bytes=progress.advance
            )
    except (StorageError, OSError) as error:
        row["error"] = text_of(error)
    return row
