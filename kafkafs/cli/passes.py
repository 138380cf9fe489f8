"""Shared by commands that run a pass over several partitions: opening, continuing after errors, reporting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kafkafs.cli import fail_with, text_of
from kafkafs.cli.terminal import print_json
from storage.errors import StorageError
from storage.progress import NoProgress
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.compaction.compaction import CompactionResult
    from storage.directory.owned_dir import Opening, OwnedDir
    from storage.progress import Progress
    from storage.upkeep.retention import RetentionResult


_Result = TypeVar("_Result")
Errors = Mapping[TopicPartition, Exception]


def each(chosen: Sequence[TopicPartition], run: Callable[[TopicPartition], None]) -> dict[TopicPartition, Exception]:
    """Runs a pass over each partition; returns the errors of those that failed."""

    errors: dict[TopicPartition, Exception] = {}
    for tp in chosen:
        try:
            run(tp)
        except (StorageError, OSError) as error:
            errors[tp] = error
    return errors


def _wait(ctx: click.Context, _param: click.Parameter, seconds: float) -> None:
    ctx.meta["kafkafs.wait"] = seconds


WAIT: Final = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    expose_value=False,
    callback=_wait,
    help="How long to wait for the lock of the log directory that is written to (default: 0).",
)


def when_free(act: Callable[[], _Result]) -> _Result:
    """Call `act` and return its result. While another process holds the lock, wait as long as `--wait` says (`WAIT`),
    then raise LogLocked."""
    from storage.files import dir_lock

    seconds: float = click.get_current_context().meta.get("kafkafs.wait", 0)
    return dir_lock.when_free(act, seconds)


def open_owned(logdir: Path, opening: Opening, progress: Progress | None = None) -> OwnedDir:
    """A log directory opened for writing, which the caller closes. Waits as `when_free`."""
    from storage.directory.owned_dir import OwnedDir

    return when_free(lambda: OwnedDir.open(logdir, opening, progress=progress or NoProgress()))


@contextmanager
def owned_dir(
    logdir: Path,
    errors: dict[TopicPartition, Exception],
    *,
    only: Sequence[TopicPartition] | None = None,
    create: bool = False,
    gentle: bool = True,
    trust_clean: bool = True,
    progress: Progress | None = None,
) -> Iterator[OwnedDir]:
    """A directory that is opened for writing (see `Opening`) and closed. `errors` gets the errors of partitions that
    did not close, unless they have an error already. Raises what kept the directory's own files from being written."""
    from storage.directory.owned_dir import Opening

    owned = open_owned(logdir, Opening(create, gentle, trust_clean, only), progress)
    try:
        yield owned
    finally:
        closing = owned.close()
        errors |= {tp: error for tp, error in closing.errors.items() if tp not in errors}
    if closing.failure is not None:
        raise closing.failure


_Pass = TypeVar("_Pass", "CompactionResult", "RetentionResult")


def passes(
    logdir: Path,
    chosen: Sequence[TopicPartition],
    preview: Callable[[TopicPartition], _Pass | None],
    run: Callable[[OwnedDir, TopicPartition], Iterable[_Pass]],
    *,
    dry_run: bool,
) -> tuple[list[_Pass], Errors]:
    """Runs passes over each partition, and removes the files that they replace; with `dry_run`, only previews them.
    Returns the results and errors."""
    results: list[_Pass] = []
    errors: dict[TopicPartition, Exception] = {}

    def changed(owned: OwnedDir, tp: TopicPartition) -> None:
        for result in run(owned, tp):
            results.append(result)
            for path in result.files:
                owned.disk.unlink(path)

    if dry_run:
        errors = each(chosen, lambda tp: results.extend(filter(None, [preview(tp)])))
    else:
        with owned_dir(logdir, errors, only=chosen) as owned:
            errors |= each(chosen, lambda tp: changed(owned, tp))
    return results, errors


def report(
    ctx: click.Context,
    results: Sequence[_Result],
    errors: Errors,
    print_result: Callable[[_Result], None],
    as_object: Callable[[_Result], dict[str, Any]] | None,
    *,
    footer: Callable[[], None] = lambda: None,
    **more: object,
) -> None:
    """Prints results and then `footer`, or with `as_object` one JSON object that has `more` in it; and errors. Exits
    with code 4 if there are errors."""
    if as_object is not None:
        failed = [{**asdict(tp), "error": text_of(error)} for tp, error in sorted(errors.items())]
        print_json({"partitions": [as_object(result) for result in results], "failed": failed, **more})
    else:
        for result in results:
            print_result(result)
        footer()
    fail_with(ctx, errors.values())
