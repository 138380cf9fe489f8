"""`kafkafs salvage`: copies the intact batches of a damaged log to a new log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, fail_with, text_of
from kafkafs.cli.passes import WAIT, each, owned_dir
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, TIER, check_destination
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir, say_remote
from kafkafs.cli.terminal import facts, print_json

if TYPE_CHECKING:
    from storage.log.batch_choice import LostOffsets
    from storage.types import TopicPartition
    from storage.upkeep.salvage import Salvaged


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The log directory to copy into; created if necessary.",
)
@click.option("--force", is_flag=True, help="Also copy into partitions that have several replicas.")
@WAIT
@AS_JSON
@TIER
@click.pass_context
def salvage(ctx: click.Context, logdir: Path, tp: str, target: Path, force: bool, as_json: bool) -> None:
    """Copy every intact batch of TP around any damage into another log directory, and list the lost offsets.

    Use it before a broker, or `kafkafs recover`, cuts a damaged log. TP is a topic, topic/partition or a glob. LOGDIR
    is only read. The copy keeps offsets, timestamps and bytes, and any broker accepts it. If DIR is a broker's
    directory, only topics that the broker has created and that are empty are copied. With --tier, remote segments are
    copied too.

    \b
    kafkafs salvage /var/kafka orders/3 --to /tmp/rescued
    kafkafs verify /tmp/rescued
    """
    from storage.backup.directory_copy import make_topics
    from storage.log.segment_gaps import is_cleaned
    from storage.upkeep.salvage import salvage as run

    source = open_log_dir(logdir)
    check_destination(target, logdir)
    snapshots = {partition: source.log(partition).snapshot() for partition in expand(source, tp)}
    say_remote(source, snapshots)
    results: list[Salvaged] = []
    errors: dict[TopicPartition, Exception] = {}
    with owned_dir(target, errors, create=True) as owned, progress_bar() as progress:
        make_topics(source, owned, snapshots)

        def copy(partition: TopicPartition) -> None:
            log = owned.appendable(partition, force=force)
            results.append(run(snapshots[partition], log, compacted=is_cleaned(source, partition), progress=progress))

        errors |= each(list(snapshots), copy)
    if as_json:
        failed = [{"partition": str(partition), "error": text_of(error)} for partition, error in errors.items()]
        print_json({"partitions": [_json(result) for result in results], "failed": failed})
    else:
        for result in results:
            _print_result(result)
    fail_with(ctx, errors.values())


def _print_result(result: Salvaged) -> None:
    echo(
        f"{result.tp}: {result.first_offset} to {result.log_end_offset}, {result.batches} batches,"
        f" {result.size_bytes} bytes copied"
        + (f", {result.repaired} with a corrected magic byte" if result.repaired else "")
    )
    for lost in result.lost:
        echo(f"  {_range(lost)}")
        for damage in lost.damages:
            echo(f"    {damage.path}: position {damage.position} to {damage.end}: {damage.reason}")
    if not result.lost:
        echo("  nothing lost")


def _range(lost: LostOffsets) -> str:
    if lost.first_offset is None:
        return "no offset lost"
    if lost.last_offset is None:
        return f"offsets from {lost.first_offset} on are lost, if there were any"
    if lost.first_offset == lost.last_offset:
        return f"offset {lost.first_offset} lost"
    return f"offsets {lost.first_offset} to {lost.last_offset} lost"


def _json(result: Salvaged) -> dict[str, Any]:
    return {name: value for name, value in facts(result).items() if name != "filled"}
