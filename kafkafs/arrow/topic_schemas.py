"""The source of schemas for the topics of log directories that are read as one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.schemas.log_schemas import SCHEMAS_LOG, LogSchemas
from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema_source import SchemaSource
from kafkafs.schemas.sources import schemas_at
from kafkafs.schemas.topic_files import read_files
from kafkafs.schemas.with_topic_files import WithTopicFiles
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS

if TYPE_CHECKING:
    from kafkafs.schemas.places import SchemaPlaces
    from kafkafs.schemas.schema import SchemaLookup


def schemas_of_topic(topic: str, paths: tuple[Path, ...], schemas: SchemaPlaces) -> SchemaLookup:
    """The schemas of a topic (see `schemas_for`); none for Kafka's own topics, which are decoded without schemas."""
    return Registry() if topic in KAFKAS_OWN_TOPICS else schemas_for(paths, schemas)


@lru_cache(maxsize=4)
def schemas_for(paths: tuple[Path, ...], schemas: SchemaPlaces) -> SchemaSource:
    """The source of schemas for log directories that are read as one: the directory and the files that `schemas` names.
    If it names no directory, the topic `_schemas` of one of the log directories. The process keeps the source.
    InvalidOption if there are no schemas; StorageError, OSError."""
    if schemas.directory is not None:
        source: SchemaSource = schemas_at(schemas.directory)
    else:
        log_dirs = open_log_dirs(paths)
        try:
            place = log_dirs.place(SCHEMAS_LOG)
        except UnknownTopicOrPartition:
            exists = (os.path.lexists(path / SCHEMAS_LOG.dir_name) for path in paths)
            # An entry that is not a partition is reported.
            place = next((number for number, has_entry in enumerate(exists) if has_entry), 0)
        source = LogSchemas(log_dirs.directories[place])
    if files := read_files(schemas.files):
        source = WithTopicFiles(source, files)
    if not source.registry() and source.problem:
        raise StorageError(f"the schemas cannot be read: {source.problem}")
    if not source.registry():
        where = schemas.directory or ", ".join(map(str, paths))
        raise InvalidOption(
            f"there are no schemas in {where}: decode needs the topic _schemas there, or the option schemas with "
            "another log directory that has it, with a directory of files like 12.avsc, or with TOPIC=FILE"
        )
    return source
