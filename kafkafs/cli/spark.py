"""`kafkafs spark`: jobs over whole logs, in parallel, on Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import psutil

from kafkafs.cli import echo, say
from kafkafs.cli.process import DATA_ERROR, FOUND, interrupt_quietly, interrupts_kept, logging_disabled
from kafkafs.cli.shared_options import AS_JSON, ISOLATION, SCHEMAS, TIER, check_destination, tier
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, absent, expand, open_log_dir
from kafkafs.cli.terminal import facts, print_json
from storage.types import Isolation

if TYPE_CHECKING:
    from kafkafs.schemas.places import SchemaPlaces
    from kafkafs.spark.jobs.export import Exported
    from storage.types import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])

_EXTRA = "Spark is not installed: pip install 'kafkafs[spark]'"


@click.group()
def spark() -> None:
    """Export whole logs in parallel, on Spark.

    Without --master, jobs run on all cores of this machine; under spark-submit or with --master, on a cluster whose
    machines see the directories under the same names.
    """


def _job_options(command: F) -> F:
    """Adds the options that all jobs have."""
    for option in (
        AS_JSON,
        click.option("--allow-uncompiled", is_flag=True, help="Run even if hot loops are not compiled (very slow)."),
        click.option("--conf", "settings", multiple=True, metavar="K=V", help="A setting of Spark."),
        click.option("--master", metavar="URL", help="Spark's master  [default: local[*]]"),
    ):
        command = option(command)
    return command


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
    help="For batches that fail their checks: export nothing, or put them into DIRECTORY/_quarantine.",
)
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Continue after messages that were deleted before they were exported, and without absent partitions.",
)
@click.option("--headers", is_flag=True, help="Add a column of headers.")
@click.option(
    "--decode",
    is_flag=True,
    help="Write the fields of Avro records or Protobuf messages as typed columns; TP is one topic.",
)
@click.option("--strict", is_flag=True, help="With --decode: exit code 1 if there are values that cannot be decoded.")
@SCHEMAS
@click.option(
    "--compression",
    type=click.Choice(["snappy", "zstd", "lz4", "gzip", "none"]),
    default="snappy",
    show_default=True,
    help="The codec of the Parquet files.",
)
@ISOLATION
@_job_options
@TIER
@click.pass_context
def export(
    ctx: click.Context,
    logdir: Path,
    directory: Path,
    tp: str | None,
    damage: str,
    allow_data_loss: bool,
    headers: bool,
    decode: bool,
    strict: bool,
    schemas: SchemaPlaces,
    compression: str,
    isolation: str,
    master: str | None,
    settings: tuple[str, ...],
    allow_uncompiled: bool,
    as_json: bool,
) -> None:
    """Export messages to Parquet files in DIRECTORY, by topic and day.

    Each run exports what was added since the previous run. TP is a topic, topic/partition or a glob; without it, all of
    LOGDIR except internal topics. The files form a table with the columns of Spark's Kafka source and `day` (UTC), in
    Hive's layout. If all topics are numbers, give readers a schema with `topic` as a string.

    With --decode, `value` is a struct with the fields of the newest version of the topic's schema at the first run into
    DIRECTORY; the schema must be an Avro record or Protobuf. Values that cannot be decoded are null; their bytes are in
    `value_bytes`, `decode_error` says why, and stderr has their number.

    \b
    kafkafs spark export /var/kafka ./lake orders
    kafkafs spark export /var/kafka ./lake 'orders*' --damage quarantine --json
    """
    if schemas and not decode:
        raise click.UsageError("--schemas is for --decode")
    if strict and not decode:
        raise click.UsageError("--strict is for --decode")
    log_dir = open_log_dir(logdir)
    check_destination(directory, logdir)
    chosen = None if tp is None else expand(log_dir, tp)
    with _session(ctx, "export", master, settings) as session:
        from kafkafs.spark.jobs.export import ExportOptions
        from kafkafs.spark.jobs.export import export as run

        options = ExportOptions(
            isolation=Isolation(isolation),
            keep_damage=damage == "quarantine",
            allow_loss=allow_data_loss,
            headers=headers,
            decode=decode,
            schemas=schemas.absolute(),
            compression=compression,
            allow_uncompiled=allow_uncompiled,
            tier=tier(),
        )
        done = run(session, logdir, directory, chosen, options, absent=absent(log_dir, tp))
    if as_json:
        print_json(_exported(done))
    else:
        echo(f"{done.messages} messages in {done.files} files, {done.size_bytes} bytes, {done.seconds:.1f} s")
    for bad in done.quarantined:
        say(f"{bad.path}: quarantined position {bad.position} to {bad.end}, offsets {bad.first_offset} to "
            f"{bad.last_offset}")  # fmt: skip
    for lost in done.lost:
        say(f"{lost.tp}: offsets {lost.offsets.start} to {lost.offsets.end - 1} went before they were exported")
    _report_absent(done.absent)
    for partition, count in sorted(done.undated.items()):
        say(f"{partition}: {count} messages have a timestamp outside the range of dates; it is null in the table")
    for partition, count in sorted(done.undecoded.items()):
        say(f"{partition}: {count} values cannot be decoded; they are in value_bytes, and decode_error says why")
    if strict and done.undecoded:
        ctx.exit(FOUND)


def _report_absent(missing: Iterable[TopicPartition]) -> None:
    for tp in missing:
        say(f"{tp} is known to the cluster and not in this directory")


def _exported(done: Exported) -> dict[str, Any]:
    return {
        "sets": done.sets,
        "files": done.files,
        "messages": done.messages,
        "bytes": done.size_bytes,
        "seconds": round(done.seconds, 3),
        "positions": [{**asdict(tp), "next_offset": offset} for tp, offset in sorted(done.positions.items())],
        "undated": [{**asdict(tp), "messages": count} for tp, count in sorted(done.undated.items())],
        "undecoded": [{**asdict(tp), "messages": count} for tp, count in sorted(done.undecoded.items())],
        "quarantined": facts(done.quarantined),
        "absent": [asdict(tp) for tp in done.absent],
        "lost": [{**asdict(tp), "first_offset": gone.start, "last_offset": gone.end - 1} for tp, gone in done.lost],
    }


@contextmanager
def _session(ctx: click.Context, name: str, master: str | None, settings: tuple[str, ...]) -> Iterator[Any]:
    """A Spark session. If something it needs is missing, prints one line and exits with code 4."""
    pairs = [setting.partition("=") for setting in settings]
    if wrong := next((key for key, sign, _ in pairs if not sign or not key), None):
        raise click.UsageError(f"--conf must be in the form K=V, not {wrong!r}")
    try:
        from kafkafs.spark.jobs.session import spark_session
    except ImportError:
        say(_EXTRA)
        ctx.exit(DATA_ERROR)
    from kafkafs.spark.kernels_check import UncompiledKernels

    starting = spark_session(
        f"kafkafs spark {name}",
        master=master,
        settings={key: value for key, _, value in pairs},
        show_progress=sys.stderr.isatty(),
    )
    try:
        with ExitStack() as stack:
            with interrupts_kept(ctx), logging_disabled(), _killing_children_on_interrupt():
                session = stack.enter_context(starting)
            interrupt_quietly(ctx)  # replaces Spark's handler, which cancels jobs in the middle of another call
            yield session
    except UncompiledKernels as error:
        say(f"{error} (--allow-uncompiled)")
        ctx.exit(DATA_ERROR)


@contextmanager
def _killing_children_on_interrupt() -> Iterator[None]:
    """If ^C ends the block, kills the child processes that it has started: Spark's JVM would go on running."""
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    except KeyboardInterrupt:
        for child in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        raise
