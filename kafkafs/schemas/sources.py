"""Where schemas come from: the topic `_schemas` of a log directory, or a directory of files.

    <id>.avsc  <id>.proto  <id>.json    one schema each, without references; also in a directory `ids`
    import.jsonl                        what `kafkafs schemas --to` writes: all versions with their references

A source follows what changes there. Its errors are logged, never raised: what was known stays known.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from kafkafs.schemas.registry import (
    AVRO,
    JSON,
    NEWEST,
    PROTOBUF,
    Reference,
    Registry,
    Schema,
    State,
    SubjectVersion,
    context_of,
    guid_of,
    name_in_context,
    qualified,
)
from storage.errors import CorruptData, InvalidConfig, StorageError, UnknownTopicOrPartition
from storage.files.file_mark import NEVER, FileMark
from storage.files.log_file import open_quietly, paths_in, read_existing
from storage.files.opening import exists, is_directory, real_place
from storage.format.block import RecordBlock
from storage.format.messages import memory_of
from storage.log.log_dir import LogDir
from storage.log.reader import Follower, Replay
from storage.log.snapshot import Log, LogSnapshot
from storage.types import TopicPartition

# The records of `_schemas`, replayed as a registry replays them when it starts (Confluent's KafkaStoreReaderThread).
#
# Keys and values are JSON. The key names the kind of a record in `keytype`: SCHEMA (a version of a subject; a null or
# empty value removes it), DELETE_SUBJECT (soft deletion of all versions up to one), CLEAR_SUBJECT (hard deletion of the
# soft-deleted ones), CONFIG (compatibility). NOOP, MODE, CONTEXT and other kinds change nothing that decoding needs.
# Confluent's registry, Karapace and Redpanda write the same records; fields of a key that only one of them knows do not
# identify it.

MAX_ID: Final = 2**32 - 1
_MAX_VERSION: Final = 2**31 - 1
_SHOWN_CHARS: Final = 80
MOST_RECORD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a registry may hold. What is above it is skipped, and said so."""

    text_bytes: int = 10 << 20  # of one schema
    versions: int = 100_000  # and compatibility levels
    all_bytes: int = 256 << 20  # of memory, for texts, references, metadata and rules


DEFAULT_LIMITS: Final = Limits()


class RegistryReplay(Replay):
    """The registry that results from the records of one log. Not thread-safe."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._versions: dict[tuple[str, int], SubjectVersion] = {}
        self._replaced: list[SubjectVersion] = []
        self._compatibility: dict[str, str] = {}
        # One object for each schema, however many subjects have it.
        self._schemas: dict[tuple[str, int], Schema] = {}
        self._held_bytes = 0
        self._registry: Registry | None = None

    def registry(self) -> Registry:
        """The registry as of the last record; the same object until a record changes it."""
        if self._registry is None:
            self._registry = Registry(self._versions.values(), self._compatibility, self._replaced)
        return self._registry

    def apply_block(self, block: RecordBlock, snapshot: LogSnapshot) -> Iterator[StorageError]:
        timestamps = block.timestamp
        for row in range(len(block)):
            offset = int(block.offset[row])
            try:
                self.apply(block.key(row), block.value(row), offset, int(timestamps[row]))
            except StorageError as error:
                error.path, error.offset = error.path or snapshot.segments[-1].directory, offset
                yield error

    def apply(self, raw_key: bytes | None, raw_value: bytes | None, offset: int, timestamp: int) -> None:
        """Applies one record. CorruptData for one that does not parse or is above a limit; it changes nothing."""
        if raw_key is None:
            raise CorruptData("schema registry's record has no key", advice="It is skipped")
        key = _object(raw_key, "key")
        kind, subject = key.get("keytype"), key.get("subject")
        # Karapace writes an empty value for a deletion, Confluent's registry null.
        value = _object(raw_value, "value") if raw_value else None
        match kind:
            case "SCHEMA":
                place = _text(subject, "subject"), _whole(key.get("version"), "version", _MAX_VERSION)
                if value is None:
                    self._change(place, State.HARD_DELETED)
                else:
                    self._register(place, value, offset, timestamp)
            case "DELETE_SUBJECT" if value is not None:
                last = value.get("version")
                self._delete_subject(
                    _text(subject, "subject"), _MAX_VERSION if last is None else _whole(last, "version", _MAX_VERSION)
                )
            case "CLEAR_SUBJECT" if value is not None:
                self._clear_subject(_text(subject, "subject"))
            case "CONFIG":
                level = None if value is None else value.get("compatibilityLevel", value.get("compatibility"))
                self._configure("" if subject is None else _text(subject, "subject"), level)
            case None:
                raise CorruptData("schema registry's record has no keytype", found=_shown(raw_key))

    def _register(self, place: tuple[str, int], value: dict[str, Any], offset: int, timestamp: int) -> None:
        subject, version = place
        canonical = qualified(subject, context_of(subject)), version
        schema_id = _whole(value.get("id"), "id", MAX_ID)
        text = _text(value.get("schema"), "schema")
        references = _references(value.get("references"))
        metadata, rule_set = value.get("metadata"), value.get("ruleSet")
        context = context_of(subject)
        schema = Schema(
            schema_id,
            _text(value.get("schemaType") or AVRO, "schemaType").upper(),
            text,
            tuple(replace(reference, subject=qualified(reference.subject, context)) for reference in references),
        )
        before = self._versions.get(canonical)
        more = [*schema.references, metadata, rule_set]
        if before is None or before.schema != schema or before.metadata != metadata or before.rule_set != rule_set:
            schema = self._hold((context, schema_id), schema, memory_of(more))
        guids = {guid for guid in (_given_guid(value), _given_md5(value)) if guid is not None}
        if metadata is None and rule_set is None:
            guids.add(guid_of(text, references))
        if before is not None and before.schema == schema:
            # A soft deletion, or its reversal: the version is as old as its first record.
            schema, offset, timestamp = before.schema, before.offset, before.timestamp
        elif before is not None:
            self._replaced.append(before)
        self._versions[canonical] = SubjectVersion(
            canonical[0],
            version,
            schema,
            State.SOFT_DELETED if value.get("deleted") is True else State.LIVE,
            timestamp,
            offset,
            tuple(sorted(guids)),
            metadata,
            rule_set,
        )
        self._registry = None

    def _hold(self, place: tuple[str, int], schema: Schema, more: int) -> Schema:
        """The schema, as one object for all subjects that have it; `more`: bytes that the version takes besides.
        CorruptData where it is above a limit."""
        limits, characters = self._limits, len(schema.text)
        if characters > limits.text_bytes:
            raise CorruptData("schema is too large", expected=f"up to {limits.text_bytes} characters", found=characters)
        if len(self._versions) + len(self._replaced) >= limits.versions:
            raise CorruptData("too many schemas", expected=f"up to {limits.versions}", found="one more")
        known = self._schemas.get(place)
        size = self._held_bytes + more + (0 if known == schema else memory_of([schema.text]))
        if size > limits.all_bytes:
            raise CorruptData(
                "schemas are too large together", expected=f"up to {limits.all_bytes} bytes of memory", found="more"
            )
        self._held_bytes = size
        held = known if known == schema else schema
        self._schemas.setdefault(place, held)
        return held

    def _change(self, place: tuple[str, int], state: State) -> None:
        canonical = qualified(place[0], context_of(place[0])), place[1]
        entry = self._versions.get(canonical)
        if entry is not None and entry.state is not state:
            self._versions[canonical] = replace(entry, state=state)
            self._registry = None

    def _delete_subject(self, subject: str, last_version: int) -> None:
        for place, entry in list(self._versions.items()):
            if entry.state is State.LIVE and place[1] <= last_version and _is_in(place[0], subject):
                self._change(place, State.SOFT_DELETED)

    def _clear_subject(self, subject: str) -> None:
        for place, entry in list(self._versions.items()):
            if entry.state is State.SOFT_DELETED and _is_in(place[0], subject):
                self._change(place, State.HARD_DELETED)

    def _configure(self, subject: str, level: object) -> None:
        place = qualified(subject, context_of(subject))
        if level is None:
            self._compatibility.pop(place, None)
        else:
            if place not in self._compatibility and len(self._compatibility) >= self._limits.versions:
                raise CorruptData("too many compatibility levels", expected=f"up to {self._limits.versions}")
            self._compatibility[place] = _text(level, "compatibility level")
        self._registry = None


def _is_in(subject: str, wanted: str) -> bool:
    """Whether a subject is the wanted one, or in the context that `:.dr:` stands for."""
    wanted = qualified(wanted, context_of(wanted))
    if wanted.startswith(":.") and not name_in_context(wanted):
        return context_of(subject) == context_of(wanted)
    return subject == wanted


def _object(raw: bytes, what: str) -> dict[str, Any]:
    if len(raw) > MOST_RECORD_BYTES:
        raise CorruptData(
            f"schema registry's {what} is too large", expected=f"up to {MOST_RECORD_BYTES} bytes", found=len(raw)
        )
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"schema registry's {what} is not valid JSON: {error}", found=_shown(raw)) from None
    if not isinstance(found, dict):
        raise CorruptData(f"schema registry's {what} is not a JSON object", found=_shown(raw))
    return found


def _text(found: object, what: str) -> str:
    if not isinstance(found, str):
        raise CorruptData(f"schema registry's record: {what} is not a string", found=_shown(found))
    try:
        found.encode()
    except UnicodeEncodeError:  # JSON can express half a surrogate pair, which neither files nor terminals take
        raise CorruptData(f"schema registry's record: {what} is not valid Unicode", found=_shown(found)) from None
    return found


def _whole(found: object, what: str, most: int, least: int = 0) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        what = f"schema registry's record: {what} is not a whole number"
        raise CorruptData(what, expected=f"{least} to {most}", found=_shown(found))
    return found


def _references(found: object) -> tuple[Reference, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise CorruptData("schema registry's record: references are not a list of objects", found=_shown(found))
    return tuple(
        Reference(
            _text(one.get("name"), "a reference's name"),
            _text(one.get("subject"), "a reference's subject"),
            _whole(one.get("version"), "a reference's version", _MAX_VERSION, NEWEST),
        )
        for one in found
    )


def _given_guid(value: dict[str, Any]) -> bytes | None:
    try:
        return uuid.UUID(value["guid"]).bytes if isinstance(value.get("guid"), str) else None
    except ValueError:
        return None


def _given_md5(value: dict[str, Any]) -> bytes | None:
    """What Confluent's registry takes for the GUID if a record has it (SchemaValue.getMd5Bytes)."""
    try:
        digest = base64.b64decode(value["md5"], validate=True) if isinstance(value.get("md5"), str) else b""
    except ValueError:
        return None
    return digest if len(digest) == 16 else None


def _shown(found: object) -> str:
    """The beginning of a value, for an error message."""
    text = repr(found)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


_log = logging.getLogger(__name__)

SCHEMAS_LOG: Final = TopicPartition("_schemas", 0)
SUFFIXES: Final = {AVRO: "avsc", PROTOBUF: "proto", JSON: "json"}
IMPORT_FILE: Final = "import.jsonl"
IDS_DIRECTORY: Final = "ids"

_TYPES: Final = {suffix: kind for kind, suffix in SUFFIXES.items()}
_FILE_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.(avsc|proto|json)")
_MOST_LINES_LOGGED: Final = 20
_MAX_LINE_BYTES: Final = 4 * DEFAULT_LIMITS.text_bytes


class SchemaSource(ABC):
    """A place of schemas that may change. Thread-safe. Also a SchemaLookup, as of each call.

    `problem`: the last thing that could not be read; "" if there was none.
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


class LogSchemas(SchemaSource):
    """The schemas in `_schemas` of a log directory, which a running registry may be writing."""

    def __init__(self, log_dir: LogDir) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        # Guarded by the lock, which is held while records are read: other callers need the same answer.
        self._lock = Lock()
        self._follower = Follower(RegistryReplay)
        self._log: Log | None = None
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
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.warning("schemas cannot be read: %s", error)

    def _take_locked(self, log: Log, read: Registry) -> None:
        """Makes the registry of what was read. An id that compaction has removed meanwhile stays known to this process:
        what was rendered by it must not change."""
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
                self.problem = str(error)
                _log.warning("schemas cannot be read: %s", error)
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
        """Where a link leads that stays in this directory, otherwise the path, at which no link is followed. Files of a
        Kubernetes ConfigMap are such links: 12.avsc to ..data/12.avsc, and ..data to another directory here."""
        if not path.is_symlink():
            return path
        target, here = Path(os.path.realpath(path)), Path(os.path.realpath(self._path))
        # No deeper: of a path that is opened, only the last two names are sure not to have become links meanwhile.
        return target if here in (target.parent, target.parent.parent) else path

    def _loose(self, skipped: Callable[[StorageError], None]) -> Iterator[SubjectVersion]:
        """The schemas in files of their own: they belong to no subject."""
        for directory in (self._path, self._path / IDS_DIRECTORY):
            paths = paths_in(directory) if is_directory(directory) else []
            for path in paths[: DEFAULT_LIMITS.versions]:
                match = _FILE_NAME.fullmatch(path.name)
                if match is None or int(match[1]) > MAX_ID:
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
                schema = Schema(int(match[1]), _TYPES[match[2]], text)
                guids = (guid_of(text, ()),)
                yield SubjectVersion("", 0, schema, timestamp=status.st_mtime_ns // 1_000_000, guids=guids)


def schemas_at(path: Path) -> SchemaSource:
    """The source at a path that a person gave. InvalidConfig where there are no schemas; OSError."""
    if os.path.lexists(path / SCHEMAS_LOG.dir_name):
        return LogSchemas(LogDir.open_read_only(path))
    path = real_place(path)
    names = {entry.name for entry in paths_in(path)}
    if is_directory(path / IDS_DIRECTORY):
        names |= {entry.name for entry in paths_in(path / IDS_DIRECTORY)}
    if IMPORT_FILE not in names and not any(_FILE_NAME.fullmatch(name) for name in names):
        files = "files like 12.avsc, 13.proto or 14.json"
        expected = f"a log directory with {SCHEMAS_LOG.dir_name}, or a directory of {files}"
        raise InvalidConfig("no schemas here", path=path, expected=expected)
    return FileSchemas(path)


def suffix_of(schema: Schema) -> str:
    """The suffix of a schema's file; `txt` for a type that nobody has defined."""
    return SUFFIXES.get(schema.schema_type, "txt")


def schemas_of(log_dir: LogDir, path: Path | None = None) -> SchemaSource:
    """The schemas of a log directory: those at `path` if one is given, otherwise its own. As `schemas_at`."""
    return LogSchemas(log_dir) if path is None else schemas_at(path)


def import_line(entry: SubjectVersion) -> dict[str, Any]:
    """A version as a line of the import file. `body` is that of a registry's POST /subjects/SUBJECT/versions in the
    mode IMPORT."""
    schema = entry.schema
    body: dict[str, Any] = {"version": entry.version, "id": schema.schema_id, "schemaType": schema.schema_type}
    if schema.references:
        body["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
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
        found = json.loads(line)
        body, state = found["body"], found.get("state", "live")
        key = json.dumps({"keytype": "SCHEMA", "subject": found["subject"], "version": body["version"]}).encode()
        value = json.dumps({**body, "deleted": state == "soft-deleted"}).encode()
        timestamp = int(found.get("timestamp", -1))
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
    """Logs what could not be read, at most so many lines."""

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
        """Returns the first, "" if there was none."""
        if self._count > _MOST_LINES_LOGGED:
            _log.warning("%s: %d more were skipped among the schemas", self._place, self._count - _MOST_LINES_LOGGED)
        return self._first


# Schemas as one rendering of a view sees them: an answer, once given, stays.
#
# Schemas are registered while a view is open. What was rendered with an unknown id must not change its size under an
# open file, so that id stays unknown for as long as the rendering is used. An id that was not asked for before is
# looked up when it is needed: a `tail -f` decodes messages of a schema that was registered after it was opened.

MOST_ANSWERS: Final = 10_000

_Question = tuple[int, str | None] | bytes | Reference | str


class SteadySchemas:
    """A SchemaLookup whose answers never change, over a source whose answers may. Thread-safe.

    It remembers the answers. When there are too many, it goes on with the registry as it is then.
    """

    def __init__(self, source: SchemaSource) -> None:
        # constant after construction
        self._source = source
        # guarded by the lock
        self._lock = Lock()
        self._answers: dict[_Question, Schema | None] = {}
        self._frozen: Registry | None = None
        self._compared: tuple[Registry | None, bool, bool] = None, False, False

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self._answer((schema_id, subject))

    def by_guid(self, guid: bytes) -> Schema | None:
        return self._answer(bytes(guid))

    def referenced(self, reference: Reference) -> Schema | None:
        return self._answer(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self._answer(name)

    def is_outdated(self) -> bool:
        """Whether the source knows now what it did not know when it was asked, or knows it otherwise."""
        return self._compare(self._source.registry())[1]

    def fingerprint(self) -> str | None:
        """What identifies all answers, for what outlives this process: the source's registry, if it would give all of
        them and all questions had one. None otherwise, and where Protobuf is among them: whether and how that is
        decoded also depends on what is installed."""
        registry = self._source.registry()
        _, outdated, complete = self._compare(registry)
        return registry.fingerprint if complete and not outdated else None

    def _answer(self, question: _Question) -> Schema | None:
        with self._lock:
            if question in self._answers:
                return self._answers[question]
            if self._frozen is not None:
                return _ask(self._frozen, question)
            registry = self._source.registry()
            answer = self._answers[question] = _ask(registry, question)
            self._compared = None, False, False
            if len(self._answers) >= MOST_ANSWERS:
                self._frozen = registry
            return answer

    def _compare(self, registry: Registry) -> tuple[Registry | None, bool, bool]:
        """The registry that the answers were compared with; whether it gives better ones; whether it gives the same
        ones and none is missing."""
        with self._lock:
            if self._compared[0] is not registry:
                outdated = self._frozen is not None and self._frozen is not registry
                complete = self._frozen is None
                for question, answer in self._answers.items():
                    now = _ask(registry, question)
                    outdated = outdated or (now is not None and now != answer)
                    lasting = answer is not None and answer.schema_type != PROTOBUF
                    complete = complete and lasting and now == answer
                self._compared = registry, outdated, complete
            return self._compared


def _ask(registry: Registry, question: _Question) -> Schema | None:
    if isinstance(question, bytes):
        return registry.by_guid(question)
    if isinstance(question, Reference):
        return registry.referenced(question)
    if isinstance(question, str):
        return registry.by_message_type(question)
    return registry.by_id(*question)
