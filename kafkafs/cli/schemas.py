"""`kafkafs schemas`: the schemas of a log directory, listed or written out."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.shared_options import AS_JSON, LOGDIR, check_destination
from kafkafs.cli.terminal import facts, moment, print_json, print_table
from kafkafs.file_names import encoded_name
from kafkafs.schemas.registry import Registry
from kafkafs.schemas.sources import IDS_DIRECTORY, IMPORT_FILE, import_line, suffix_of
from storage.errors import StorageError
from storage.files.disk import RealDisk
from storage.files.opening import make_directory, open_file, real_place

if TYPE_CHECKING:
    from kafkafs.schemas.registry import SubjectVersion


# Writes schemas out as files: those of `@schemas`, and what a registry imports.
#
#     DIR/ids/12.avsc                     by id
#     DIR/subjects/orders-value/3.avsc    by subject and version
#     DIR/import.jsonl                    a line for each version, in the order of registration
#
# | step | on disk after a crash |
# |---|---|
# | 1. a directory `.DIR.…` is made beside DIR, and all files in it, with the times of their records | it, incomplete |
# | 2. files and directories are synced | it, complete |
# | 3. it is renamed to DIR, which does not exist or is empty | DIR, complete |
# | 4. the directory of DIR is synced | |
#
# Nothing that exists is changed or removed. What a crash leaves may be deleted.

_MAX_NAME_BYTES = 255


def export_schemas(registry: Registry, target: Path) -> list[str]:
    """Writes all schemas into `target`. Returns the subjects whose names are too long for a file system: they are in
    the import file alone. FileExistsError if `target` is there and not an empty directory; OSError."""
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, "is there already; name a new or an empty directory", str(target))
    target, disk = real_place(target), RealDisk()
    partial = target.with_name(f".{target.name}.{uuid4().hex}")
    make_directory(partial)
    try:
        long = _write(registry, partial, disk)
        disk.sync_dir(partial)
        disk.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    disk.sync_dir(target.parent)
    return long


def _write(registry: Registry, directory: Path, disk: RealDisk) -> list[str]:
    ids = directory / IDS_DIRECTORY
    make_directory(ids)
    for schema_id, entry in registry.ids().items():
        _write_file(ids / f"{schema_id}.{suffix_of(entry.schema)}", entry.schema.text, entry.timestamp)
    disk.sync_dir(ids)
    subjects = directory / "subjects"
    make_directory(subjects)
    long = []
    for subject in registry.subjects():
        name = encoded_name(subject)
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            long.append(subject)
            continue
        make_directory(subjects / name)
        for entry in registry.of_subject(subject):
            path = subjects / name / f"{entry.version}.{suffix_of(entry.schema)}"
            _write_file(path, entry.schema.text, entry.timestamp)
        disk.sync_dir(subjects / name)
    disk.sync_dir(subjects)
    entries = sorted(registry.versions.values(), key=lambda entry: entry.offset)
    _write_file(directory / IMPORT_FILE, "".join(json.dumps(import_line(entry)) + "\n" for entry in entries), -1)
    return long


def _write_file(path: Path, text: str, timestamp: int) -> None:
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        if timestamp >= 0:
            os.utime(file.fileno(), ns=(timestamp * 1_000_000,) * 2)
        os.fsync(file.fileno())


@click.command()
@LOGDIR
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write them into DIR, which must not exist or be empty.",
)
@AS_JSON
@click.pass_context
def schemas(ctx: click.Context, logdir: Path, target: Path | None, as_json: bool) -> None:
    """List the schemas of LOGDIR, which has the topic _schemas of a schema registry.

    Deleted versions are listed too, as long as their records are in the log: messages may need them.

    With --to, they are written into DIR: ids/ID.avsc (.proto, .json), subjects/SUBJECT/VERSION.avsc, with the times of
    their registration, and import.jsonl. Each line of that file is a version: its `subject`, its `state`, and as `body`
    what a registry in the mode IMPORT takes at POST /subjects/SUBJECT/versions. Other commands take DIR as --schemas,
    and this one takes it as LOGDIR.

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
