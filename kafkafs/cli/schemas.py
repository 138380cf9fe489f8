"""`kafkafs schemas`: the schemas of a log directory, listed or written out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.schema_files import export_schemas
from kafkafs.cli.shared_options import AS_JSON, check_destination
from kafkafs.cli.targets import LOGDIR
from kafkafs.cli.terminal import facts, moment, print_json, print_table
from kafkafs.schemas.registry import Registry
from storage.errors import StorageError

if TYPE_CHECKING:
    from kafkafs.schemas.registry import SubjectVersion


@click.command()
@LOGDIR
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write them into DIR: a path that does not exist, or an empty directory.",
)
@AS_JSON
@click.pass_context
def schemas(ctx: click.Context, logdir: Path, target: Path | None, as_json: bool) -> None:
    """List the schemas of LOGDIR, which has the topic _schemas of a schema registry.

    Deleted versions are listed too, as long as their records are in the log: messages may need them.

    With --to, they are written into DIR: ids/ID.avsc (.proto, .json), subjects/SUBJECT/VERSION.avsc, and import.jsonl
    for another registry. Other commands take DIR as --schemas, and this command takes it as LOGDIR.

    \b
    kafkafs schemas /var/kafka
    kafkafs schemas /var/kafka --to ./schemas
    kafkafs cat /backup orders --format decoded --schemas ./schemas
    """
    from kafkafs.schemas.sources import schemas_at

    use_default_signals(ctx)
    source = schemas_at(logdir)
    registry = source.registry()
    if not registry and source.problem:
        raise StorageError(f"the schemas cannot be read: {source.problem}")
    if registry and not registry.has_ids:
        say("note: schemas of AWS Glue's registry have neither subjects nor ids here: the names of their files say all")
    if target is not None:
        _export(registry, logdir, target, as_json)
    elif as_json:
        print_json(
            {"schemas": [_entry(entry) for entry in _entries(registry)], "compatibility": registry.compatibility}
        )
    else:
        rows = [
            (entry.subject, entry.version or None, entry.schema.schema_id, entry.schema.schema_type,
             entry.state.value, moment(entry.timestamp))
            for entry in _entries(registry)
        ]  # fmt: skip
        print_table(("SUBJECT", "VERSION", "ID", "TYPE", "STATE", "REGISTERED"), rows)


def _entries(registry: Registry) -> list[SubjectVersion]:
    """All versions by subject, then the schemas that belong to none."""
    loose = [entry for entry in registry.ids().values() if not entry.version]
    return [*(entry for subject in registry.subjects() for entry in registry.of_subject(subject)), *loose]


def _entry(entry: SubjectVersion) -> dict[str, Any]:
    schema = entry.schema
    return {
        "subject": entry.subject if entry.version else None,
        "version": entry.version or None,
        "id": schema.schema_id,
        "type": schema.schema_type,
        "state": entry.state.value,
        "timestamp": entry.timestamp if entry.timestamp >= 0 else None,
        "references": facts(schema.references),
        "schema": schema.text,
    }


def _export(registry: Registry, logdir: Path, target: Path, as_json: bool) -> None:
    check_destination(target, logdir)
    long = export_schemas(registry, target)
    for subject in long:
        say(f"the name of the subject {subject[:40]}… is too long for a directory: it is only in import.jsonl")
    counts = {"ids": len(registry.ids()), "subjects": len(registry.subjects()), "versions": len(registry.versions)}
    if as_json:
        print_json({"directory": str(target), **counts})
    else:
        echo(f"{target}: subjects {counts['subjects']}, versions {counts['versions']}, ids {counts['ids']}")
