"""`kafkafs mirror`: copies logs to another directory, byte for byte."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import say
from kafkafs.cli.exit_codes import DATA_ERROR
from kafkafs.cli.progress import progress_bar
from kafkafs.cli.shared_options import AS_JSON
from kafkafs.cli.tables import print_json, print_table
from kafkafs.cli.targets import TopicPartitionPattern, expand, open_log_dir
from storage.errors import UnknownTopicOrPartition
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.client.mirror import Mirror, Mirrored
    from storage.directory.owned_dir import OwnedDir
    from storage.log.log_dir import LogDir

_LOOK_AGAIN_S = 0.1
_FLUSH_S = 5.0


@click.command()
@click.argument("src", type=click.Path(path_type=Path, file_okay=False))
@click.argument("dest", type=click.Path(path_type=Path, file_okay=False))
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option("--follow", is_flag=True, help="Keep copying new messages until interrupted.")
@click.option("--force", is_flag=True, help="Also copy into partitions that have several replicas.")
@AS_JSON
@click.pass_context
def mirror(ctx: click.Context, src: Path, dest: Path, tp: str | None, follow: bool, force: bool, as_json: bool) -> None:
    """Copy the log of TP (topic, topic/partition or a glob; by default everything) from SRC into DEST, batch by batch.

    SRC is only read, and may be a running broker's. Batches that were copied before are not copied again. DEST's own
    topic configuration decides where segments end and how they are indexed. A topic that DEST lacks is created with
    SRC's configuration, but keeps everything. If DEST is a broker's directory, only topics that the broker has created
    are copied.

    \b
    kafkafs mirror /var/kafka /backup/kafka
    kafkafs mirror /var/kafka /backup/kafka 'orders*' --follow
    """
    from storage.client.mirror import Mirror
    from storage.directory.owned_dir import Opening, OwnedDir

    if src.resolve() == dest.resolve():
        raise click.UsageError("SRC and DEST are the same directory")
    source = open_log_dir(src)
    owned = OwnedDir.open(dest, Opening(create=True, gentle=True))
    try:
        with progress_bar() as progress:
            copy = Mirror(source, owned, lambda log_dir: _wanted(log_dir, tp, follow), progress, force)
            copy.run()
        if follow:
            _follow(copy, owned)
    finally:
        closing = owned.close()
    if closing.failure is not None:
        raise closing.failure
    results = [copy.results[found] for found in sorted(copy.results)]
    if as_json:
        print_json({"partitions": [_json(result) for result in results]})
    else:
        rows = [(str(r.tp), r.first_offset, r.log_end_offset, r.size_bytes) for r in results]
        print_table(("PARTITION", "FROM", "END", "BYTES"), rows)
    errors = [result.error for result in results if result.error is not None]
    errors += [error for found, error in closing.errors.items() if found not in copy.results]
    for error in errors:
        say(error)
    if errors:
        ctx.exit(DATA_ERROR)


def _wanted(log_dir: LogDir, tp: str | None, follow: bool) -> list[TopicPartition]:
    try:
        return expand(log_dir, tp)
    except UnknownTopicOrPartition:
        if follow:
            return []  # it may be created later
        raise


def _follow(copy: Mirror, owned: OwnedDir) -> None:
    """Repeats passes until SIGINT or SIGTERM."""
    flushed = time.monotonic()
    with _interrupted() as stop:
        while not stop.wait(_LOOK_AGAIN_S):
            copy.run()
            if time.monotonic() - flushed > _FLUSH_S:
                for log in owned.logs():
                    if log.failure is None and log.recovery_point < log.log_end_offset:
                        log.flush()
                owned.checkpoint()
                flushed = time.monotonic()


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _json(result: Mirrored) -> dict[str, object]:
    return {
        **asdict(result.tp),
        "first_offset": result.first_offset,
        "log_end_offset": result.log_end_offset,
        "bytes": result.size_bytes,
        "error": None if result.error is None else str(result.error),
    }
