"""Choosing the source of schemas: at a path that the user has named, or for a log directory."""

from __future__ import annotations

import os
from pathlib import Path

from kafkafs.schemas.file_schemas import FILE_NAME, IDS_DIRECTORY, IMPORT_FILE, FileSchemas
from kafkafs.schemas.log_schemas import SCHEMAS_LOG, LogSchemas
from kafkafs.schemas.places import SchemaPlaces
from kafkafs.schemas.schema_source import SchemaSource
from kafkafs.schemas.topic_files import read_files
from kafkafs.schemas.with_topic_files import WithTopicFiles
from storage.errors import InvalidConfig
from storage.files.listing import paths_in
from storage.files.opening import is_directory, real_place
from storage.log.log_dir import LogDir


def schemas_at(path: Path) -> SchemaSource:
    """The source at a path that the user has named. Raises InvalidConfig if it has no schemas, and OSError."""
    if os.path.lexists(path / SCHEMAS_LOG.dir_name):
        return LogSchemas(LogDir.open_read_only(path))
    path = real_place(path)
    names = {entry.name for entry in paths_in(path)}
    if is_directory(path / IDS_DIRECTORY):
        names |= {entry.name for entry in paths_in(path / IDS_DIRECTORY)}
    if IMPORT_FILE not in names and not any(FILE_NAME.fullmatch(name) for name in names):
        files = "files like 12.avsc, 13.proto or 14.json, or named by the UUIDs of AWS Glue"
        expected = f"a log directory with {SCHEMAS_LOG.dir_name}, or a directory of {files}"
        raise InvalidConfig("no schemas here", path=path, expected=expected)
    return FileSchemas(path)


def schemas_of(log_dir: LogDir, places: SchemaPlaces) -> SchemaSource:
    """The source of the schemas at these places; the log directory's own if they name no directory. Raises
    InvalidConfig if a place has no schemas or a file is not a schema, and OSError."""
    files = read_files(places.files)
    source = LogSchemas(log_dir) if places.directory is None else schemas_at(places.directory)
    return WithTopicFiles(source, files) if files else source
