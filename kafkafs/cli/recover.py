"""`kafkafs recover` and `kafkafs reindex`: a log directory put right after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import say
from kafkafs.cli.exit_codes import DATA_ERROR
from kafkafs.cli.progress import progress_bar
from kafkafs.cli.tables import print_json
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.log.recovery import RecoveryReport
    from storage.progress import Progress

_CLUSTER_METADATA = "__cluster_metadata"


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def recover(ctx: click.Context, logdir: Path, tp: str | None, dry_run: bool, as_json: bool) -> None:
    """Do what a broker's start after a crash does, to all of LOGDIR or to TP (topic, topic/partition or a glob).

    From its recovery point on each log is checked. It is cut at the first batch that is not whole, and what comes after
    that is removed: `kafkafs salvage` first, if it may be worth something. Indexes and producer state are rebuilt. When
    all of LOGDIR was recovered it is marked as cleanly shut down.

    \b
    kafkafs recover /var/kafka --dry-run
    kafkafs recover /var/kafka orders/3
    """
    chosen = _chosen(logdir, tp)
    with progress_bar() as progress:
        if dry_run:
            reports, errors = _rehearse(logdir, chosen, progress)
            clean = False
        else:
            reports, errors, clean = _recover(logdir, None if tp is None else chosen, progress)
    _tell(ctx, reports, errors, as_json, {"dry_run": dry_run, "clean_shutdown": clean})


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def reindex(ctx: click.Context, logdir: Path, tp: str, as_json: bool) -> None:
    """Rebuild the indexes of TP (topic, topic/partition or a glob) from its log.

    A log that is damaged before its end stays as it is, and so do its indexes.

    \b
    kafkafs reindex /var/kafka orders/3
    """
    from storage.errors import StorageError
    from storage.log.owned_dir import Opening, OwnedDir

    chosen = _chosen(logdir, tp)
    owned = OwnedDir.open(logdir, Opening(gentle=True, only=()))
    reports: list[RecoveryReport] = []
    errors: dict[TopicPartition, Exception] = {}
    try:
        with progress_bar() as progress:
            for partition in chosen:
                try:
                    reports.append(owned.reindex(partition, progress))
                except StorageError as error:
                    errors[partition] = error
    finally:
        closing = owned.close()
    errors |= {partition: error for partition, error in closing.errors.items() if partition not in errors}
    if closing.failure is not None:
        raise closing.failure
    _tell(ctx, reports, errors, as_json, {"clean_shutdown": closing.clean})


def _chosen(logdir: Path, tp: str | None) -> list[TopicPartition]:
    return [found for found in expand(open_log_dir(logdir), tp) if found.topic != _CLUSTER_METADATA]


def _recover(
    logdir: Path, only: Sequence[TopicPartition] | None, progress: Progress
) -> tuple[list[RecoveryReport], dict[TopicPartition, Exception], bool]:
    from storage.log.owned_dir import Opening, OwnedDir

    owned = OwnedDir.open(logdir, Opening(trust_clean=False, only=only), progress=progress)
    closing = owned.close()
    if closing.failure is not None:
        raise closing.failure
    return list(owned.reports().values()), dict(closing.errors), closing.clean


def _rehearse(
    logdir: Path, chosen: Sequence[TopicPartition], progress: Progress
) -> tuple[list[RecoveryReport], dict[TopicPartition, Exception]]:
    from storage.errors import StorageError
    from storage.files import dir_lock
    from storage.files.disk import RealDisk
    from storage.log.directory_checkpoints import DirectoryCheckpoints
    from storage.log.recovery import RecoveryPlan
    from storage.log.rehearsal import rehearse

    holder = dir_lock.holder(logdir)
    if holder is not None:
        raise dir_lock.locked_error(logdir.resolve() / dir_lock.NAME, holder)
    log_dir = open_log_dir(logdir)
    checkpoints = DirectoryCheckpoints(RealDisk(), logdir)  # read, never written
    reports: list[RecoveryReport] = []
    errors: dict[TopicPartition, Exception] = {}
    for tp in chosen:
        known = checkpoints.of(tp)
        plan = RecoveryPlan(
            tp,
            logdir / tp.dir_name,
            log_dir.topic_info(tp.topic).config,
            clean=False,
            recovery_point=known.recovery_point or 0,
            log_start_offset=known.log_start or 0,
            threads=log_dir.broker_config().recovery_threads,
        )
        try:
            reports.append(rehearse(plan, clock=log_dir.clock, progress=progress))
        except (StorageError, OSError) as error:
            errors[tp] = error
    return reports, errors


def _tell(
    ctx: click.Context,
    reports: Sequence[RecoveryReport],
    errors: dict[TopicPartition, Exception],
    as_json: bool,
    more: dict[str, Any],
) -> None:
    if as_json:
        failed = [{"topic": tp.topic, "partition": tp.partition, "error": str(e)} for tp, e in sorted(errors.items())]
        print_json({"partitions": [_json(report) for report in reports], "failed": failed, **more})
    else:
        for report in reports:
            segments = f"{len(report.recovered_segments)} segment(s) checked"
            changes = "" if report.changes else ", nothing to mend"
            click.echo(f"{report.tp}: {report.log_start_offset} to {report.log_end_offset}, {segments}{changes}")
            for change in report.changes:
                click.echo(f"  {change}")
    for error in errors.values():
        say(error)
    if errors:
        ctx.exit(DATA_ERROR)


def _json(report: RecoveryReport) -> dict[str, Any]:
    cut = report.cut
    return {
        "topic": report.tp.topic,
        "partition": report.tp.partition,
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "recovered_segments": report.recovered_segments,
        "removed_segments": report.removed_segments,
        "cut": None
        if cut is None
        else {
            "segment": cut.base_offset,
            "position": cut.position,
            "offset": cut.next_offset,
            "lost_bytes": cut.lost_bytes,
        },
        "changes": report.changes,
    }
