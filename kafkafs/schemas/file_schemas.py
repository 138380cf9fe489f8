"""The schemas in a directory of files.

    <id>.avsc  <id>.proto  <id>.json    one schema each, without references; also in a directory `ids`
    <UUID>.avsc  …                      the same for a schema version of AWS Glue's registry
    import.jsonl                        written by `kafkafs schemas --to`: all versions with their references

A schema in a file of its own belongs to no subject.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

from kafkafs.schemas.import_lines import apply_import
from kafkafs.schemas.registry import Registry, SubjectVersion
from kafkafs.schemas.registry_replay import DEFAULT_LIMITS, MAX_ID, RegistryReplay
from kafkafs.schemas.schema import AVRO, JSON, PROTOBUF, Schema, guid_of
from kafkafs.schemas.schema_source import SchemaSource, SkippedSchemas
from storage.errors import CorruptData, StorageError, error_text
from storage.files.file_mark import NEVER, FileMark
from storage.files.listing import paths_in
from storage.files.log_file import open_quietly
from storage.files.opening import exists, is_directory
from storage.files.small_files import read_existing

_log = logging.getLogger(__name__)

SUFFIXES: Final = {AVRO: "avsc", PROTOBUF: "proto", JSON: "json"}
IMPORT_FILE: Final = "import.jsonl"
IDS_DIRECTORY: Final = "ids"

_TYPES: Final = {suffix: kind for kind, suffix in SUFFIXES.items()}
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
FILE_NAME: Final = re.compile(rf"(?:(0|[1-9][0-9]{{0,9}})|({_UUID}))\.(avsc|proto|json)")
_MAX_LINE_BYTES: Final = 4 * DEFAULT_LIMITS.text_bytes


class FileSchemas(SchemaSource):
    """The schemas in the files of a directory; read again when a file was added, removed or renamed."""

    def __init__(self, path: Path) -> None:
        # Constant after construction.
        self._path = path
        # Guarded by the lock.
        self._lock = Lock()
        self._marks: tuple[FileMark, ...] = ()
        self._registry = Registry()
        self.problem = ""

    def registry(self) -> Registry:
        with self._lock:
            try:
                marks = tuple(map(_mark, (self._path, self._path / IDS_DIRECTORY, self._path / IMPORT_FILE)))
                if marks != self._marks or not all(mark.settled or mark is NEVER for mark in self._marks):
                    self._registry = self._read()
                    self._marks = marks
            except OSError as error:
                self.problem = error_text(error)
                _log.warning("schemas cannot be read: %s", self.problem)
            return self._registry

    def _read(self) -> Registry:
        skipped = SkippedSchemas(str(self._path))
        replay = RegistryReplay()
        path = self._path / IMPORT_FILE
        if exists(path):
            for number, line in enumerate(_lines(self._within(path), skipped.add), 1):
                try:
                    apply_import(replay, line, number)
                except StorageError as error:
                    error.path = path
                    skipped.add(error)
        known = replay.registry()
        loose = list(self._loose(skipped.add))
        self.problem = skipped.close()
        return Registry(known.versions.values(), known.compatibility, [*known.replaced, *loose])

    def _within(self, path: Path) -> Path:
        """The target of a link that stays in this directory; otherwise the path itself, whose link is not followed.
        Files of a Kubernetes ConfigMap are such links: 12.avsc to ..data/12.avsc, and ..data to another directory
        here."""
        if not path.is_symlink():
            return path
        target, directory = Path(os.path.realpath(path)), Path(os.path.realpath(self._path))
        # No deeper: opening a path refuses a new link only in its last two names.
        return target if directory in (target.parent, target.parent.parent) else path

    def _loose(self, skipped: Callable[[StorageError], None]) -> Iterator[SubjectVersion]:
        """The schemas in files of their own: they belong to no subject."""
        for directory in (self._path, self._path / IDS_DIRECTORY):
            paths = paths_in(directory) if is_directory(directory) else []
            for path in paths[: DEFAULT_LIMITS.versions]:
                match = FILE_NAME.fullmatch(path.name)
                if match is None or int(match[1] or 0) > MAX_ID:
                    continue
                path = self._within(path)
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    skipped(CorruptData("schema is not a regular file", path=path))
                    continue
                if status.st_size > DEFAULT_LIMITS.text_bytes:
                    limit = f"up to {DEFAULT_LIMITS.text_bytes} bytes"
                    skipped(CorruptData("schema is too large", path=path, expected=limit, found=status.st_size))
                    continue
                try:
                    text = read_existing(path).decode()
                except UnicodeDecodeError as error:
                    skipped(CorruptData(f"schema is not UTF-8: {error}", path=path))
                    continue
                schema = Schema(int(match[1] or -1), _TYPES[match[3]], text)
                guids = (UUID(match[2]).bytes if match[2] else guid_of(text, ()),)
                yield SubjectVersion("", 0, schema, timestamp=status.st_mtime_ns // 1_000_000, guids=guids)


def suffix_of(schema: Schema) -> str:
    """The suffix of a schema's file; `txt` for an unknown type."""
    return SUFFIXES.get(schema.schema_type, "txt")


def _mark(path: Path) -> FileMark:
    try:
        return FileMark.of(path.lstat())
    except FileNotFoundError:
        return NEVER


def _lines(path: Path, skipped: Callable[[StorageError], None]) -> Iterator[bytes]:
    with open(path, "rb", opener=open_quietly) as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES:
                skipped(CorruptData("line is too long", path=path, expected=f"less than {_MAX_LINE_BYTES} bytes"))
                return
            yield line
