"""`kafkafs retain`: one retention pass, now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo
from kafkafs.cli.passes import WAIT, passes, report
from kafkafs.cli.shared_options import AS_JSON, TIER, ParsedText, whole_number
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from kafkafs.cli.terminal import facts, moment
from storage.types import MAX_OFFSET

if TYPE_CHECKING:
    from storage.directory.owned_dir import OwnedDir
    from storage.types import TopicPartition
    from storage.upkeep.kept_segments import KeptSegment
    from storage.upkeep.retention import RetentionResult


def _before(text: str) -> int:
    number = -1 if text == "end" else whole_number(text, MAX_OFFSET)
    if number is None:
        raise ValueError(f"{text!r} is neither an offset nor 'end'")
    return number


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option(
    "--before", type=ParsedText("OFFSET", _before), help="First delete the records below OFFSET ('end': all records)."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed, and why the rest stays.")
@WAIT
@AS_JSON
@TIER
@click.pass_context
def retain(ctx: click.Context, logdir: Path, tp: str | None, before: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove the oldest segments that exceed the limits of retention, from all of LOGDIR or from TP.

    Use it when a disk is full and the broker is stopped. TP is a topic, topic/partition or a glob. Only limits that
    were set count (retention.ms, retention.bytes, retention.free.bytes of the topic or the broker), never Kafka's
    defaults. Whole segments are removed, the oldest first; records below --before are no longer read even if their
    segment stays.

    With --dry-run, each segment that stays is listed with the reason, its largest timestamp, which retention.ms is
    compared with, and when it will be removed. kafkafs leaves tiered topics alone, and shows what their broker would
    remove.

    \b
    kafkafs retain ./logs --dry-run
    kafkafs retain ./logs orders/3 --before 120000
    """
    if before is not None and tp is None:
        raise click.UsageError("--before needs a TP")
    from storage.upkeep.partition_retention import preview_partition, retain_partition
    from storage.upkeep.retention import disk_free_bytes

    log_dir = open_log_dir(logdir)

    def preview(tp: TopicPartition) -> RetentionResult | None:
        return preview_partition(log_dir, tp, free_bytes=disk_free_bytes(logdir), before=before)

    def run(owned: OwnedDir, tp: TopicPartition) -> Iterable[RetentionResult]:
        result = retain_partition(owned, tp, free_bytes=disk_free_bytes(logdir), before=before)
        return () if result is None else (result,)

    results, errors = passes(logdir, expand(log_dir, tp), preview, run, dry_run=dry_run)

    def footer() -> None:
        if not results and not errors:
            echo("nothing to remove; --dry-run says why each segment stays")

    report(ctx, results, errors, _print_result, _json if as_json else None, footer=footer, dry_run=dry_run)


def _print_result(result: RetentionResult) -> None:
    if not result.segments and not result.dry_run:
        echo(f"{result.tp}: {result.log_start_offset} to {result.log_end_offset}, nothing to remove")
        return
    verb = "would be removed" if result.dry_run else "removed"
    count, size = len(result.segments), result.size_bytes
    echo(f"{result.tp}: {result.log_start_offset} to {result.log_end_offset}, {count} segment(s) {verb}, {size} bytes")
    for segment in result.segments:
        offsets = f"{segment.base_offset}-{segment.next_offset - 1}"
        echo(f"  offsets {offsets}, {segment.size_bytes} bytes: {segment.reason}")
    for kept in result.kept:
        last = kept.next_offset - 1
        offsets = f"offsets {kept.base_offset}-{last}" if last >= kept.base_offset else f"offset {kept.base_offset}"
        echo(f"  {offsets}, {kept.size_bytes} bytes stay: {_why(kept)}")
    _print_brokers(result)


def _print_brokers(result: RetentionResult) -> None:
    """Print what the broker would remove of a tiered log."""
    brokers = result.brokers
    if brokers is None:
        return
    for what, segments in (("from the whole log", brokers.total), ("from this directory, once copied", brokers.local)):
        size = sum(segment.size_bytes for segment in segments)
        echo(f"  the broker would remove {what}: {len(segments)} segment(s), {size} bytes")
        for segment in segments:
            offsets = f"{segment.base_offset}-{segment.next_offset - 1}"
            echo(f"    offsets {offsets}, {segment.size_bytes} bytes: {segment.reason}")


def _why(kept: KeptSegment) -> str:
    """Which rule keeps a segment, its largest timestamp, and when it will go."""
    parts = [" and ".join(kept.kept_by)]
    if kept.size_bytes:
        largest = f"largest timestamp {moment(kept.largest_timestamp)}"
        if kept.future_offset is not None:
            largest += f" lies in the future, of the message at offset {kept.future_offset}"
        parts.append(largest)
    if kept.goes_at is not None:
        parts.append(f"goes after {moment(kept.goes_at)}")
    if kept.goes_after_bytes is not None:
        parts.append(f"goes once {kept.goes_after_bytes} bytes more are appended")
    return "; ".join(parts)


def _json(result: RetentionResult) -> dict[str, Any]:
    shown: dict[str, Any] = {
        **asdict(result.tp),
        "log_start_offset": result.log_start_offset,
        "log_end_offset": result.log_end_offset,
        "removed_bytes": result.size_bytes,
        "segments": facts(result.segments),
    }
    if result.brokers is not None:
        shown["broker"] = facts(result.brokers)
    if result.dry_run:
        shown["kept"] = facts(result.kept)
    return shown
