"""Shared by commands that run a pass over several partitions: opening, continuing after errors, reporting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkafs.cli import say, text_of
from kafkafs.cli.exit_codes import DATA_ERROR
from kafkafs.cli.tables import print_json
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.directory.owned_dir import OwnedDir

_Result = TypeVar("_Result")
Errors = Mapping[TopicPartition, Exception]


def each(chosen: Sequence[TopicPartition], run: Callable[[TopicPartition], None]) -> dict[TopicPartition, Exception]:
    """Runs a pass over each partition; returns the errors of those that failed."""
    from storage.errors import StorageError

    errors: dict[TopicPartition, Exception] = {}
    for tp in chosen:
        try:
            run(tp)
        except (StorageError, OSError) as error:
            errors[tp] = error
    return errors


def each_owned(
    logdir: Path, chosen: Sequence[TopicPartition], run: Callable[[OwnedDir, TopicPartition], None]
) -> Errors:
    """As `each`, in a directory that is opened for writing and closed. Raises an error of closing it."""
    from storage.directory.owned_dir import Opening, OwnedDir

    owned = OwnedDir.open(logdir, Opening(gentle=True, only=chosen))
    try:
        errors = each(chosen, lambda tp: run(owned, tp))
    finally:
        closing = owned.close()
    if closing.failure is not None:
        raise closing.failure
    return {**closing.errors, **errors}


def report(
    ctx: click.Context,
    results: Sequence[_Result],
    errors: Errors,
    print_result: Callable[[_Result], None],
    as_object: Callable[[_Result], dict[str, Any]] | None,
    *,
    dry_run: bool,
) -> None:
    """Prints results, as one JSON object if `as_object` is given, and errors. Exits with code 4 if there are errors."""
    if as_object is not None:
        failed = [{**asdict(tp), "error": text_of(error)} for tp, error in sorted(errors.items())]
        print_json({"partitions": [as_object(result) for result in results], "failed": failed, "dry_run": dry_run})
    else:
        for result in results:
            print_result(result)
    for error in errors.values():
        say(error)
    if errors:
        ctx.exit(DATA_ERROR)
