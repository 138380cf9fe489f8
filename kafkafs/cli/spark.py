"""`kafkafs spark`: jobs over whole logs, in parallel, on Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import psutil

from kafkafs.cli import passes, say
from kafkafs.cli.exit_codes import DATA_ERROR
from kafkafs.cli.signals import end_without_a_trace, unlogged
from kafkafs.cli.tables import print_json, print_table
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, absent, expand, open_log_dir
from storage.types import Isolation

if TYPE_CHECKING:
    from kafkafs.spark.jobs.export import Exported
    from kafkafs.spark.jobs.stats import HourStats
    from storage.compaction.compaction import CompactionResult
    from storage.directory.owned_dir import OwnedDir
    from storage.types import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])

_EXTRA = "Spark is not installed: pip install 'kafkafs[spark]'"


@click.group()
def spark() -> None:
    """Export, check, count and compact whole logs in parallel, on Spark.

    Without --master all cores of this machine work; under spark-submit, or with --master, a cluster that sees the
    directories under the same names.
    """


def _job_options(command: F) -> F:
    """The options that all jobs have."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object."),
        click.option("--allow-uncompiled", is_flag=True, help="Even where hot loops are not compiled (very slow)."),
        click.option("--conf", "settings", multiple=True, metavar="K=V", help="A setting of Spark."),
        click.option("--master", metavar="URL", help="Spark's master  [default: local[*]]"),
    ):
        command = option(command)
    return command


_ISOLATION = click.option(
    "--isolation",
    type=click.Choice([isolation.value for isolation in Isolation]),
    default=Isolation.READ_UNCOMMITTED.value,
    show_default=True,
    help="read_committed leaves out aborted messages and stops at open transactions.",
)
_TP = click.argument("tp", type=TopicPartitionPattern(), required=False)


@spark.command()
@LOGDIR
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@_TP
@click.option(
    "--damage",
    type=click.Choice(["fail", "quarantine"]),
    default="fail",
    show_default=True,
    help="What to do with batches that fail their checks: nothing is exported, or they go to DIRECTORY/_quarantine.",
)
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Go on behind messages that went before they were exported, and without partitions that lie elsewhere.",
)
@click.option("--headers", is_flag=True, help="With a column of headers.")
@click.option(
    "--compression",
    type=click.Choice(["snappy", "zstd", "lz4", "gzip", "none"]),
    default="snappy",
    show_default=True,
    help="Of the Parquet files.",
)
@_ISOLATION
@_job_options
@click.pass_context
def export(
    ctx: click.Context,
    logdir: Path,
    directory: Path,
    tp: str | None,
    damage: str,
    allow_data_loss: bool,
    headers: bool,
    compression: str,
    isolation: str,
    master: str | None,
    settings: tuple[str, ...],
    allow_uncompiled: bool,
    as_json: bool,
) -> None:
    """Export messages to Parquet files in DIRECTORY, by topic and day.

    TP is a topic, topic/partition or a glob; without it, all of LOGDIR but internal topics. Each run exports what has
    come since the last one. Files are those of a table with the columns of Spark's Kafka source, and `day` (UTC): any
    reader of Hive's layout takes the directory as it is. Readers guess the type of `topic` from its directories' names:
    where all topics are numbers, tell them that it is a string (by a schema, or in Spark by
    spark.sql.sources.partitionColumnTypeInference.enabled=false). A timestamp that microseconds cannot express, 292,000
    years away, is null, and so is its day.

    \b
    kafkafs spark export /var/kafka ./lake orders
    kafkafs spark export /var/kafka ./lake 'orders*' --damage quarantine --json
    """
    log_dir = open_log_dir(logdir)
    chosen = None if tp is None else expand(log_dir, tp)
    with _session(ctx, "export", master, settings) as session:
        from kafkafs.spark.jobs.export import ExportOptions
        from kafkafs.spark.jobs.export import export as run

        options = ExportOptions(
            isolation=Isolation(isolation),
            keep_damage=damage == "quarantine",
            allow_loss=allow_data_loss,
            headers=headers,
            compression=compression,
            allow_uncompiled=allow_uncompiled,
        )
        done = run(session, logdir, directory, chosen, options, absent=absent(log_dir, tp))
    if as_json:
        print_json(_exported(done))
    else:
        click.echo(f"{done.messages} messages in {done.files} files, {done.size_bytes} bytes, {done.seconds:.1f} s")
    for bad in done.quarantined:
        say(f"{bad.path}: quarantined position {bad.position} to {bad.end}, offsets {bad.first_offset} to "
            f"{bad.last_offset}")  # fmt: skip
    for lost in done.lost:
        say(f"{lost.tp}: offsets {lost.offsets.start} to {lost.offsets.end - 1} went before they were exported")
    _tell_absent(done.absent)
    for partition, count in sorted(done.undated.items()):
        say(f"{partition}: {count} messages have a timestamp beyond all dates: it is null in the table")


@spark.command()
@LOGDIR
@_TP
@click.option("--png", type=click.Path(path_type=Path, dir_okay=False), help="Also draw them over time into this file.")
@click.option(
    "--damage",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with batches that fail their checks.",
)
@_ISOLATION
@_job_options
@click.pass_context
def stats(
    ctx: click.Context,
    logdir: Path,
    tp: str | None,
    png: Path | None,
    damage: str,
    isolation: str,
    master: str | None,
    settings: tuple[str, ...],
    allow_uncompiled: bool,
    as_json: bool,
) -> None:
    """Messages, bytes, sizes, keys and compression by topic and hour (UTC).

    Sizes are of keys and values, in bytes; quantiles are right within 9 %, distinct keys within a few percent.

    \b
    kafkafs spark stats /var/kafka 'orders*'
    kafkafs spark stats /var/kafka --png traffic.png
    """
    draw = None if png is None else _drawing(ctx)
    log_dir = open_log_dir(logdir)
    # Before Spark starts, which takes seconds.
    chosen, missing = expand(log_dir, tp), absent(log_dir, tp)
    with _session(ctx, "stats", master, settings) as session:
        from kafkafs.spark.jobs.stats import stats as run

        found = run(
            session,
            logdir,
            chosen,
            isolation=Isolation(isolation),
            keep_damage=damage == "skip",
            allow_uncompiled=allow_uncompiled,
        )
    if draw is not None:
        draw(found.hours, png)
    if as_json:
        hours = [{**asdict(hour), "compression_ratio": round(hour.compression_ratio, 3)} for hour in found.hours]
        print_json({"hours": hours, "damaged": found.damaged, "absent": _partitions(missing)})
    else:
        print_table(_STATS_COLUMNS, [_stats_row(hour) for hour in found.hours])
    _tell_absent(missing)
    if found.damaged:
        say(f"{found.damaged} damaged places are not counted (kafkafs verify tells more)")


def _tell_absent(missing: Iterable[TopicPartition]) -> None:
    for tp in missing:
        say(f"{tp} is known to the cluster and not in this directory")


def _partitions(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


_STATS_COLUMNS = (
    "TOPIC", "HOUR", "MESSAGES", "LOG BYTES", "KEY BYTES", "VALUE BYTES", "SIZE MIN", "P50", "P90", "P99", "MAX",
    "KEYS", "NO KEY", "NULL VALUES", "RATIO",
)  # fmt: skip


def _stats_row(hour: HourStats) -> tuple[object, ...]:
    start = "-" if hour.hour_ms is None else _hour_name(hour.hour_ms)
    return (
        hour.topic, start, hour.messages, hour.log_bytes, hour.key_bytes, hour.value_bytes, hour.least_size,
        hour.median_size, hour.p90_size, hour.p99_size, hour.greatest_size, hour.distinct_keys, hour.without_key,
        hour.tombstones, f"{hour.compression_ratio:.2f}",
    )  # fmt: skip


def _hour_name(milliseconds: int) -> str:
    """As in the names of `time/`; a year of more than four digits has none of those."""
    from kafkafs.spark.jobs.stats import CALENDAR_MS

    if milliseconds not in CALENDAR_MS:
        return f"{milliseconds} ms"
    return (datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%dT%H")


def _drawing(ctx: click.Context) -> Callable[..., None]:
    try:
        from kafkafs.spark.jobs.stats_plot import draw
    except ImportError:
        say("matplotlib is not installed: pip install 'kafkafs[plot]'")
        ctx.exit(DATA_ERROR)
    return draw


@spark.command()
@LOGDIR
@_TP
@click.option("--notes", is_flag=True, help="List notes, too: what the next start mends. They are only counted else.")
@_job_options
@click.pass_context
def verify(
    ctx: click.Context,
    logdir: Path,
    tp: str | None,
    notes: bool,
    master: str | None,
    settings: tuple[str, ...],
    allow_uncompiled: bool,
    as_json: bool,
) -> None:
    """Check all of LOGDIR, or TP, as `kafkafs verify` does, with the segments spread over Spark's workers.

    \b
    kafkafs spark verify /var/kafka
    kafkafs spark verify /var/kafka 'orders*' --json

    Exit code 1 when something is found that is more than a note.
    """
    from kafkafs.cli.verify import tell_findings

    chosen = None if tp is None else expand(open_log_dir(logdir), tp)
    with _session(ctx, "verify", master, settings) as session:
        from kafkafs.spark.jobs.verify import verify as run

        found = run(session, logdir, chosen, allow_uncompiled=allow_uncompiled)
    tell_findings(ctx, found, notes=notes, as_json=as_json)


@spark.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@_job_options
@click.pass_context
def compact(
    ctx: click.Context,
    logdir: Path,
    tp: str,
    dry_run: bool,
    master: str | None,
    settings: tuple[str, ...],
    allow_uncompiled: bool,
    as_json: bool,
) -> None:
    """Compact TP as `kafkafs compact` does, in one pass however many keys there are.

    The latest record of each key is found by a shuffle, segments are rewritten in parallel beside the old ones, and put
    in their place all at once, at the end. LOGDIR is held for as long as it takes: no broker and no mount may have it.

    \b
    kafkafs spark compact /var/kafka accounts --dry-run
    kafkafs spark compact /var/kafka accounts/0
    """
    from kafkafs.cli.compact import as_object, tell

    log_dir = open_log_dir(logdir)
    chosen = expand(log_dir, tp)
    results: list[CompactionResult] = []
    with ExitStack() as stack:

        @cache
        def session() -> Any:
            # Not before it is known that the directory can be had: it takes seconds to start.
            return stack.enter_context(_session(ctx, "compact", master, settings))

        def rehearsed(tp: TopicPartition) -> None:
            running = session()
            from kafkafs.spark.jobs.compact import CompactOptions, preview

            results.append(preview(running, log_dir, tp, CompactOptions(allow_uncompiled=allow_uncompiled)))

        def compacted(owned: OwnedDir, tp: TopicPartition) -> None:
            running = session()
            from kafkafs.spark.jobs.compact import CompactOptions
            from kafkafs.spark.jobs.compact import compact as run

            results.append(run(running, owned, tp, CompactOptions(allow_uncompiled=allow_uncompiled)))
            for path in results[-1].files:
                owned.disk.unlink(path)

        errors = passes.each(chosen, rehearsed) if dry_run else passes.each_owned(logdir, chosen, compacted)
    passes.report(ctx, results, errors, tell, as_object if as_json else None, dry_run=dry_run)


def _exported(done: Exported) -> dict[str, Any]:
    return {
        "sets": done.sets,
        "files": done.files,
        "messages": done.messages,
        "bytes": done.size_bytes,
        "seconds": round(done.seconds, 3),
        "positions": [
            {"topic": tp.topic, "partition": tp.partition, "next_offset": offset}
            for tp, offset in sorted(done.positions.items())
        ],
        "undated": [
            {"topic": tp.topic, "partition": tp.partition, "messages": count}
            for tp, count in sorted(done.undated.items())
        ],
        "quarantined": [
            {
                "topic": bad.tp.topic,
                "partition": bad.tp.partition,
                "file": bad.path,
                "position": bad.position,
                "end": bad.end,
                "first_offset": bad.first_offset,
                "last_offset": bad.last_offset,
                "error": bad.error,
            }
            for bad in done.quarantined
        ],
        "absent": _partitions(done.absent),
        "lost": [
            {"topic": tp.topic, "partition": tp.partition, "first_offset": gone.start, "last_offset": gone.end - 1}
            for tp, gone in done.lost
        ],
    }


@contextmanager
def _session(ctx: click.Context, name: str, master: str | None, settings: tuple[str, ...]) -> Iterator[Any]:
    """A Spark session; what is missing for one is said in a line, with exit code 4."""
    pairs = [setting.partition("=") for setting in settings]
    if wrong := next((key for key, sign, _ in pairs if not sign or not key), None):
        raise click.UsageError(f"--conf wants K=V, not {wrong!r}")
    try:
        from kafkafs.spark.jobs.session import spark_session
    except ImportError:
        say(_EXTRA)
        ctx.exit(DATA_ERROR)
    from kafkafs.spark.kernels import UncompiledKernels

    starting = spark_session(
        f"kafkafs spark {name}",
        master=master,
        settings={key: value for key, _, value in pairs},
        show_progress=sys.stderr.isatty(),
    )
    try:
        with ExitStack() as stack:
            with unlogged(), _leaving_no_process():
                session = stack.enter_context(starting)
            end_without_a_trace(ctx)  # in place of Spark's handler, which cancels jobs in the midst of another call
            yield session
    except UncompiledKernels as error:
        say(f"{error} (--allow-uncompiled)")
        ctx.exit(DATA_ERROR)


@contextmanager
def _leaving_no_process() -> Iterator[None]:
    """^C while Spark starts would leave its JVM behind for good."""
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    except KeyboardInterrupt:
        for child in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        raise
