"""`kafkafs compact`: cleaning passes, now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo
from kafkafs.cli.passes import WAIT, passes, report
from kafkafs.cli.shared_options import AS_JSON
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir

if TYPE_CHECKING:
    from storage.compaction.compaction import CompactionResult
    from storage.directory.owned_dir import OwnedDir
    from storage.types import TopicPartition


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@WAIT
@AS_JSON
@click.pass_context
def compact(ctx: click.Context, logdir: Path, tp: str, dry_run: bool, as_json: bool) -> None:
    """Compact TP, whatever its dirty ratio.

    TP is a topic, topic/partition or a glob. Below the active segment, the latest record of each key is kept, as the
    topic's configuration says (cleanup.policy must name compact; delete.retention.ms, min.compaction.lag.ms). If the
    offset map (log.cleaner.dedupe.buffer.size) fills up, further passes follow until everything is compacted.

    \b
    kafkafs compact ./logs accounts --dry-run
    kafkafs compact ./logs accounts/0
    """
    from storage.compaction.partition_compaction import compact_partition, preview_partition

    log_dir = open_log_dir(logdir)

    def run(owned: OwnedDir, tp: TopicPartition) -> Iterator[CompactionResult]:
        result = None
        while result is None or not result.is_complete:
            result = compact_partition(owned, tp)
            yield result

    results, errors = passes(
        logdir, expand(log_dir, tp), lambda tp: preview_partition(log_dir, tp), run, dry_run=dry_run
    )
    report(ctx, results, errors, print_result, as_object if as_json else None, dry_run=dry_run)


def print_result(result: CompactionResult) -> None:
    """Prints what a pass did or would do."""
    if not result.segments_before:
        echo(f"{result.tp}: nothing to compact below offset {result.first_uncleanable}")
        return
    counts = result.counts
    verb = "would be removed" if result.dry_run else "removed"
    echo(
        f"{result.tp}: {counts.records_gone} of {counts.records_read} records, {counts.bytes_gone} of "
        f"{counts.bytes_read} bytes and {counts.keys_gone} deleted key(s) {verb}"
    )
    echo(
        f"  compacted up to offset {result.end_offset}, {result.segments_before} segment(s) into "
        f"{result.segments_after}; {result.map_keys} keys, "
        f"{result.map_utilization:.1%} of the offset map"
    )
    if counts.null_keys:
        echo(f"  {counts.null_keys} of the records have no key")
    if not result.is_complete:
        echo(f"  the offset map was full: another pass is needed from {result.end_offset} on")


def as_object(result: CompactionResult) -> dict[str, Any]:
    """The result as an object, for --json."""
    counts = result.counts
    return {
        **asdict(result.tp),
        "first_dirty_offset": result.first_dirty,
        "compacted_to_offset": result.end_offset,
        "first_uncleanable_offset": result.first_uncleanable,
        "segments_before": result.segments_before,
        "segments_after": result.segments_after,
        "records": counts.records_read,
        "bytes": counts.bytes_read,
        "removed_records": counts.records_gone,
        "removed_bytes": counts.bytes_gone,
        "removed_keys": counts.keys_gone,
        "records_without_key": counts.null_keys,
        "mapped_keys": result.map_keys,
    }
