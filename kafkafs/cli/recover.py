"""`kafkafs recover` and `kafkafs reindex`: recovery of a log directory after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, say
from kafkafs.cli.passes import WAIT, each, owned_dir, report, when_free
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.progress import Progress
    from storage.recovery.recovery import RecoveryReport
    from storage.staged_writes.pending_writes import PendingWrite

_CLUSTER_METADATA = "__cluster_metadata"


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@click.option(
    "--drop-lost-writes",
    "drop",
    is_flag=True,
    help="Give up writes from Spark that cannot be finished because their staged files are missing.",
)
@WAIT
@AS_JSON
@click.pass_context
def recover(ctx: click.Context, logdir: Path, tp: str | None, dry_run: bool, drop: bool, as_json: bool) -> None:
    """Do what a broker's start after a crash does, to all of LOGDIR or to TP.

    TP is a topic, topic/partition or a glob. Each log is checked from its recovery point on. It is cut at the first
    damaged batch, and everything after the cut is removed: run `kafkafs salvage` first if you may need it. Indexes and
    producer state are rebuilt. If all of LOGDIR was recovered, it is marked as cleanly shut down.

    Pending writes from Spark are finished, and staged files of killed jobs are removed. A write whose staged messages
    are lost stays pending, and its query cannot write, until --drop-lost-writes gives it up.

    \b
    kafkafs recover /var/kafka --dry-run
    kafkafs recover /var/kafka orders/3
    kafkafs recover /var/kafka --drop-lost-writes
    """
    chosen = _chosen(logdir, tp)
    with progress_bar() as progress:
        if dry_run:
            from storage.directory.recovery_plans import rehearse_recovery

            reports, errors = when_free(lambda: rehearse_recovery(open_log_dir(logdir), chosen, progress))
            (writes, staged), clean = _left(logdir, chosen), False
        else:
            reports, errors, writes, clean, staged = _recover(
                logdir, None if tp is None else chosen, progress, drop=drop
            )

    def footer() -> None:
        for write in writes:
            _print_write(write, drop=drop, dry_run=dry_run)
        if staged:
            total = sum(size for _, size in staged)
            echo(
                f"{len(staged)} staged files that belong to no write, {total} bytes: "
                f"{'to be removed' if dry_run else 'removed'}"
            )

    report(
        ctx,
        reports,
        errors,
        _print_report,
        _json if as_json else None,
        footer=footer,
        writes=[_write_json(write, drop=drop) for write in writes],
        staged=[{"file": str(path), "size_bytes": size} for path, size in staged],
        dry_run=dry_run,
        clean_shutdown=clean,
    )


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@WAIT
@AS_JSON
@click.pass_context
def reindex(ctx: click.Context, logdir: Path, tp: str, as_json: bool) -> None:
    """Rebuild the indexes of TP from its log.

    TP is a topic, topic/partition or a glob. If a log is damaged before its end, neither the log nor its indexes are
    changed.

    \b
    kafkafs reindex /var/kafka orders/3
    """
    chosen = _chosen(logdir, tp)
    reports: list[RecoveryReport] = []
    errors: dict[TopicPartition, Exception] = {}
    with owned_dir(logdir, errors, only=()) as owned, progress_bar() as progress:
        errors |= each(chosen, lambda partition: reports.append(owned.reindex(partition, progress)))
    clean = owned.close().clean
    report(ctx, reports, errors, _print_report, _json if as_json else None, clean_shutdown=clean)


def _chosen(logdir: Path, tp: str | None) -> list[TopicPartition]:
    return [partition for partition in expand(open_log_dir(logdir), tp) if partition.topic != _CLUSTER_METADATA]


def _recover(
    logdir: Path, only: Sequence[TopicPartition] | None, progress: Progress, *, drop: bool
) -> tuple[list[RecoveryReport], dict[TopicPartition, Exception], list[PendingWrite], bool, list[tuple[Path, int]]]:
    """Recovers. Returns reports, errors, the writes that are still pending or were given up, whether the directory is
    marked as cleanly shut down, and the staged files that were removed."""
    from storage.staged_writes import staging
    from storage.staged_writes.pending_writes import give_up, pending_writes

    errors: dict[TopicPartition, Exception] = {}
    with owned_dir(logdir, errors, only=only, gentle=False, trust_clean=False, progress=progress) as owned:
        if owned.commits.problem is not None:
            say(owned.commits.problem)
        writes = pending_writes(owned.log_dir, owned.commits.state)
        for write in writes:
            if drop and write.is_stuck:
                give_up(owned, write)
        staged = []
        if owned.commits.problem is None:
            staged_files = staging.unowned(
                owned.path, owned.partitions() if only is None else only, owned.commits.state
            )
            for path, size in _sized(staged_files):
                with suppress(OSError):
                    owned.disk.unlink(path)
                    staged.append((path, size))
    return list(owned.reports().values()), errors, writes, owned.close().clean, staged


def _left(logdir: Path, chosen: Sequence[TopicPartition]) -> tuple[list[PendingWrite], list[tuple[Path, int]]]:
    """The pending writes, read-only, and the staged files that a recovery would remove, with sizes; none if the list of
    writes cannot be read."""
    from storage.errors import CorruptCheckpoint
    from storage.files import commit_ledger
    from storage.staged_writes import staging
    from storage.staged_writes.pending_writes import pending_writes

    try:
        state = commit_ledger.read(logdir)
    except CorruptCheckpoint as error:
        say(error)
        return [], []
    return pending_writes(open_log_dir(logdir), state), _sized(staging.unowned(logdir, chosen, state))


def _sized(files: Sequence[Path]) -> list[tuple[Path, int]]:
    sized = []
    for path in files:
        with suppress(FileNotFoundError):
            sized.append((path, path.lstat().st_size))
    return sized


def _print_report(report: RecoveryReport) -> None:
    segments = f"{len(report.recovered_segments)} segment(s) checked"
    changes = "" if report.changes else ", nothing to repair"
    echo(f"{report.tp}: {report.log_start_offset} to {report.log_end_offset}, {segments}{changes}")
    for change in report.changes:
        echo(f"  {change}")


def _print_write(write: PendingWrite, *, drop: bool, dry_run: bool) -> None:
    if not write.is_stuck:
        state = "to be finished" if dry_run else "still pending"
    elif drop:
        state = "would be given up" if dry_run else "given up"
    else:
        state = "cannot be finished (--drop-lost-writes gives it up)"
    echo(f"{write}: {state}")


def _write_json(write: PendingWrite, *, drop: bool) -> dict[str, Any]:
    return {
        "write": write.commit.write.id,
        "batch": write.commit.write.batch,
        "shares": [{**asdict(part.tp), "state": share.value} for part, share in write.shares],
        "given_up": drop and write.is_stuck,
    }


def _json(report: RecoveryReport) -> dict[str, Any]:
    cut = report.cut
    return {
        **asdict(report.tp),
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
