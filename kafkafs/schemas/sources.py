"""Sources of schemas: the topic `_schemas` of a log directory, or a directory of files.

    <id>.avsc  <id>.proto  <id>.json    one schema each, without references; also in a directory `ids`
    <UUID>.avsc  …                      the same for a schema version of AWS Glue's registry
    import.jsonl                        written by `kafkafs schemas --to`: all versions with their references

A source follows changes. Errors are logged, never raised: a source that cannot be read keeps the schemas that it read
last, and a single schema that cannot be read is skipped.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final
from uuid import UUID

from kafkafs.schemas.places import SchemaPlaces
from kafkafs.schemas.registry import Registry, SubjectVersion
from kafkafs.schemas.registry_replay import DEFAULT_LIMITS, MAX_ID, RegistryReplay
from kafkafs.schemas.schema import AVRO, JSON, PROTOBUF, Reference, Schema, guid_of
from kafkafs.schemas.topic_files import read_files
from storage.errors import CorruptData, InvalidConfig, StorageError, UnknownTopicOrPartition, error_text
from storage.files.file_mark import NEVER, FileMark
from storage.files.listing import paths_in
from storage.files.log_file import open_quietly
from storage.files.opening import exists, is_directory, real_place
from storage.files.small_files import read_existing
from storage.log.follower import Follower
from storage.log.log_dir import LogDir
from storage.log.snapshot import ReadableLog
from storage.types import TopicPartition

_log = logging.getLogger(__name__)

SCHEMAS_LOG: Final = TopicPartition("_schemas", 0)
SUFFIXES: Final = {AVRO: "avsc", PROTOBUF: "proto", JSON: "json"}
IMPORT_FILE: Final = "import.jsonl"
IDS_DIRECTORY: Final = "ids"

_TYPES: Final = {suffix: kind for kind, suffix in SUFFIXES.items()}
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE_NAME: Final = re.compile(rf"(?:(0|[1-9][0-9]{{0,9}})|({_UUID}))\.(avsc|proto|json)")
_MOST_LINES_LOGGED: Final = 20
_MAX_LINE_BYTES: Final = 4 * DEFAULT_LIMITS.text_bytes


class SchemaSource(ABC):
    """Schemas that may change. Thread-safe. Also a SchemaLookup: each call answers from the schemas as of now.

    `problem`: the latest error of reading them; "" if there was none.
    """

    problem: str

    @abstractmethod
    def registry(self) -> Registry:
        """All schemas as of now; the same object until something changes. Never raises."""

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self.registry().by_id(schema_id, subject)

    def by_guid(self, guid: bytes) -> Schema | None:
        return self.registry().by_guid(guid)

    def referenced(self, reference: Reference) -> Schema | None:
        return self.registry().referenced(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self.registry().by_message_type(name)

    def of_file(self, subject: str) -> Schema | None:
        return self.registry().of_file(subject)


class LogSchemas(SchemaSource):
    """The schemas in `_schemas` of a log directory, which a running registry may be writing."""

    def __init__(self, log_dir: LogDir) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        # Guarded by the lock, which is held while records are read: other callers need the same answer.
        self._lock = Lock()
        self._follower = Follower(RegistryReplay)
        self._log: ReadableLog | None = None
        self._read = Registry()
        self._registry = self._read
        self._complaint = ""
        self.problem = ""

    def registry(self) -> Registry:
        with self._lock:
            skipped = _Skipped(str(self._log_dir.path))
            try:
                self._log_dir.refresh()
                log = self._log_dir.log(SCHEMAS_LOG)
                if self._follower.refresh(log, skipped.add):
                    self._take_locked(log, self._follower.replay.registry())
                self._complaint = ""
            except UnknownTopicOrPartition:
                if self._registry:
                    self._log, self._registry = None, Registry()
                place = self._log_dir.path / SCHEMAS_LOG.dir_name
                if os.path.lexists(place):
                    self._complain_locked(CorruptData("is not a partition's directory", path=place))
            except (StorageError, OSError) as error:
                self._complain_locked(error)
            self.problem = skipped.close() or self._complaint or self.problem
            return self._registry

    def _complain_locked(self, error: Exception) -> None:
        if error_text(error) != self._complaint:
            self._complaint = error_text(error)
            _log.warning("schemas cannot be read: %s", self._complaint)

    def _take_locked(self, log: ReadableLog, read: Registry) -> None:
        """Set the registry. An id that compaction has removed from the log stays known to this process, because
        rendered bytes must not change."""
        if read is self._read and log is self._log:
            return
        carried = self._registry.entries() if log is self._log else []
        gone = [entry for entry in carried if not read.has_id(entry)]
        if gone:
            self._registry = Registry(read.versions.values(), read.compatibility, [*read.replaced, *gone])
        else:
            self._registry = read
        self._log, self._read = log, read


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
        skipped = _Skipped(str(self._path))
        replay = RegistryReplay()
        path = self._path / IMPORT_FILE
        if exists(path):
            for number, line in enumerate(_lines(self._within(path), skipped.add), 1):
                try:
                    _apply_import(replay, line, number)
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
                match = _FILE_NAME.fullmatch(path.name)
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


def schemas_at(path: Path) -> SchemaSource:
    """The source at a path that the user has named. Raises InvalidConfig if it has no schemas, and OSError."""
    if os.path.lexists(path / SCHEMAS_LOG.dir_name):
        return LogSchemas(LogDir.open_read_only(path))
    path = real_place(path)
    names = {entry.name for entry in paths_in(path)}
    if is_directory(path / IDS_DIRECTORY):
        names |= {entry.name for entry in paths_in(path / IDS_DIRECTORY)}
    if IMPORT_FILE not in names and not any(_FILE_NAME.fullmatch(name) for name in names):
        files = "files like 12.avsc, 13.proto or 14.json, or named by the UUIDs of AWS Glue"
        expected = f"a log directory with {SCHEMAS_LOG.dir_name}, or a directory of {files}"
        raise InvalidConfig("no schemas here", path=path, expected=expected)
    return FileSchemas(path)


def suffix_of(schema: Schema) -> str:
    """The suffix of a schema's file; `txt` for an unknown type."""
    return SUFFIXES.get(schema.schema_type, "txt")


class WithTopicFiles(SchemaSource):
    """The schemas of another source, and those of files that the user has named for topics."""

    def __init__(self, source: SchemaSource, files: Mapping[str, Schema]) -> None:
        # Constant after construction.
        self._source = source
        self._files = files
        # Guarded by the lock.
        self._lock = Lock()
        self._read: Registry | None = None
        self._registry = Registry()

    @property
    def problem(self) -> str:  # type: ignore[override]  # never assigned
        return self._source.problem

    def registry(self) -> Registry:
        read = self._source.registry()
        with self._lock:
            if read is not self._read:
                self._read = read
                self._registry = Registry(read.versions.values(), read.compatibility, read.replaced, self._files)
            return self._registry


def schemas_of(log_dir: LogDir, places: SchemaPlaces) -> SchemaSource:
    """The source of the schemas at these places; the log directory's own if they name no directory. Raises
    InvalidConfig if a place has no schemas or a file is not a schema, and OSError."""
    files = read_files(places.files)
    source = LogSchemas(log_dir) if places.directory is None else schemas_at(places.directory)
    return WithTopicFiles(source, files) if files else source


def import_line(entry: SubjectVersion) -> dict[str, Any]:
    """A version as a line of the import file. Its `body` is the body of a registry's POST /subjects/SUBJECT/versions in
    the mode IMPORT."""
    schema = entry.schema
    body: dict[str, Any] = {"version": entry.version, "id": schema.schema_id, "schemaType": schema.schema_type}
    if schema.references:
        body["references"] = [
            {"name": reference.name, "subject": reference.subject, "version": reference.version}
            for reference in schema.references
        ]
    if entry.metadata is not None:
        body["metadata"] = entry.metadata
    if entry.rule_set is not None:
        body["ruleSet"] = entry.rule_set
    return {
        "subject": entry.subject,
        "state": entry.state.value,
        "timestamp": entry.timestamp,
        "body": {**body, "schema": schema.text},
    }


def _mark(path: Path) -> FileMark:
    try:
        return FileMark.of(path.lstat())
    except FileNotFoundError:
        return NEVER


def _apply_import(replay: RegistryReplay, line: bytes, number: int) -> None:
    try:
        entry = json.loads(line)
        body, state = entry["body"], entry.get("state", "live")
        key = json.dumps({"keytype": "SCHEMA", "subject": entry["subject"], "version": body["version"]}).encode()
        value = json.dumps({**body, "deleted": state == "soft-deleted"}).encode()
        timestamp = int(entry.get("timestamp", -1))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptData(f"line {number} is not a schema: {type(error).__name__}: {error}") from None
    replay.apply(key, value, number - 1, timestamp)
    if state == "hard-deleted":
        replay.apply(key, None, number - 1, timestamp)


def _lines(path: Path, skipped: Callable[[StorageError], None]) -> Iterator[bytes]:
    with open(path, "rb", opener=open_quietly) as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES:
                skipped(CorruptData("line is too long", path=path, expected=f"less than {_MAX_LINE_BYTES} bytes"))
                return
            yield line


class _Skipped:
    """Logs the errors of skipped schemas, up to a number of lines."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._count = 0
        self._first = ""

    def add(self, error: StorageError) -> None:
        self._count += 1
        self._first = self._first or str(error)
        if self._count <= _MOST_LINES_LOGGED:
            _log.warning("skipped among the schemas: %s", error)

    def close(self) -> str:
        """Log how many more errors there were; return the first error, "" if there was none."""
        if self._count > _MOST_LINES_LOGGED:
            _log.warning("%s: %d more were skipped among the schemas", self._place, self._count - _MOST_LINES_LOGGED)
        return self._first
