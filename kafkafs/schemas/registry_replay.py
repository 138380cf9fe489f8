"""The records of `_schemas`, replayed as a registry replays them when it starts (Confluent's KafkaStoreReaderThread).

Keys and values are JSON. The key names the kind of a record in `keytype`: SCHEMA (a version of a subject; a null or
empty value removes it), DELETE_SUBJECT (soft deletion of all versions up to one), CLEAR_SUBJECT (hard deletion of the
soft-deleted ones), CONFIG (compatibility). NOOP, MODE, CONTEXT and other kinds change nothing that decoding needs.
Confluent's registry, Karapace and Redpanda write the same records; fields of a key that only one of them writes are
ignored.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kafkafs.schemas.registry import Registry, State, SubjectVersion, context_of, name_in_context, qualified
from kafkafs.schemas.schema import AVRO, NEWEST, Reference, Schema, guid_of
from storage.errors import CorruptData, StorageError
from storage.format.block import RecordBlock
from storage.format.messages import memory_of
from storage.log.follower import ReplayedState
from storage.log.snapshot import LogSnapshot

MAX_ID: Final = 2**32 - 1
_MAX_VERSION: Final = 2**31 - 1
_SHOWN_CHARS: Final = 80
MOST_RECORD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """The limits of a registry. Records above them are skipped and logged."""

    text_bytes: int = 10 << 20  # of one schema's file; characters of its text in a record
    versions: int = 100_000  # and compatibility levels
    all_bytes: int = 256 << 20  # of memory, for texts, references, metadata and rules


DEFAULT_LIMITS: Final = RegistryLimits()


class RegistryReplay(ReplayedState):
    """The registry that results from the records of one log. Not thread-safe."""

    def __init__(self, limits: RegistryLimits = DEFAULT_LIMITS) -> None:
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
        """Apply one record. Raises CorruptData, without a change, if it does not parse or is above a limit."""
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
        """Return the schema, one object for all subjects that have it. `more`: the bytes of the version's other parts.
        Raises CorruptData above a limit."""
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


def _is_in(subject: str, chosen: str) -> bool:
    """Whether a subject is the chosen one, or in the chosen context (`:.dr:`)."""
    chosen = qualified(chosen, context_of(chosen))
    if chosen.startswith(":.") and not name_in_context(chosen):
        return context_of(subject) == context_of(chosen)
    return subject == chosen


def _object(raw: bytes, what: str) -> dict[str, Any]:
    if len(raw) > MOST_RECORD_BYTES:
        raise CorruptData(
            f"schema registry's {what} is too large", expected=f"up to {MOST_RECORD_BYTES} bytes", found=len(raw)
        )
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"schema registry's {what} is not valid JSON: {error}", found=_shown(raw)) from None
    if not isinstance(value, dict):
        raise CorruptData(f"schema registry's {what} is not a JSON object", found=_shown(raw))
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise CorruptData(f"schema registry's record: {what} is not a string", found=_shown(value))
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can express half a surrogate pair, which neither files nor terminals take
        raise CorruptData(f"schema registry's record: {what} is not valid Unicode", found=_shown(value)) from None
    return value


def _whole(value: object, what: str, most: int, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        what = f"schema registry's record: {what} is not a whole number"
        raise CorruptData(what, expected=f"{least} to {most}", found=_shown(value))
    return value


def _references(value: object) -> tuple[Reference, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(reference, dict) for reference in value):
        raise CorruptData("schema registry's record: references are not a list of objects", found=_shown(value))
    return tuple(
        Reference(
            _text(reference.get("name"), "a reference's name"),
            _text(reference.get("subject"), "a reference's subject"),
            _whole(reference.get("version"), "a reference's version", _MAX_VERSION, NEWEST),
        )
        for reference in value
    )


def _given_guid(value: dict[str, Any]) -> bytes | None:
    try:
        return uuid.UUID(value["guid"]).bytes if isinstance(value.get("guid"), str) else None
    except ValueError:
        return None


def _given_md5(value: dict[str, Any]) -> bytes | None:
    """The digest that Confluent's registry takes for the GUID if a record has it (SchemaValue.getMd5Bytes)."""
    try:
        digest = base64.b64decode(value["md5"], validate=True) if isinstance(value.get("md5"), str) else b""
    except ValueError:
        return None
    return digest if len(digest) == 16 else None


def _shown(value: object) -> str:
    """The beginning of a value, for an error message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
