"""Writes schemas as files: those of `@schemas`, and import.jsonl for a registry.

    DIR/ids/12.avsc                     by id
    DIR/subjects/orders-value/3.avsc    by subject and version
    DIR/import.jsonl                    a line for each version, in the order of registration

| step | on disk after a crash |
|---|---|
| 1. a directory `.DIR.…` is made beside DIR, and all files in it, with the times of their records | it, incomplete |
| 2. files and directories are synced | it, complete |
| 3. it is renamed to DIR, which does not exist or is empty | DIR, complete |
| 4. the directory of DIR is synced | |

Existing files are never changed or removed. You may delete leftovers of a crash.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from uuid import uuid4

from kafkafs.file_names import encoded_name
from kafkafs.schemas.file_schemas import IDS_DIRECTORY, IMPORT_FILE, suffix_of
from kafkafs.schemas.import_lines import import_line
from kafkafs.schemas.registry import Registry
from storage.files.disk import RealDisk
from storage.files.opening import make_directory, open_file, real_place

_MAX_NAME_BYTES = 255


def export_schemas(registry: Registry, target: Path) -> list[str]:
    """Writes all schemas into `target`. Returns the subjects whose names are too long for a file system: they are in
    the import file alone. FileExistsError if `target` exists and is not an empty directory; OSError."""
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
