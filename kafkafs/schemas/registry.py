"""The content of a schema registry: versions of subjects, schemas by id and GUID, compatibility levels."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kafkafs.schemas.proto_names import message_types
from kafkafs.schemas.schema import FILE, NEWEST, PROTOBUF, Reference, Schema

if TYPE_CHECKING:
    from hashlib import blake2b

_ID_AND_LENGTH: Final = struct.Struct(">qq")

# Limits of the search for message types, in characters: of the texts together, and of the types' names.
MOST_SEARCHED_TEXT: Final = 64 << 20
MOST_SEARCHED_NAMES: Final = 16 << 20


class State(Enum):
    """The state of a version in a registry. `HARD_DELETED` versions are known because their records are in the log."""

    LIVE = "live"
    SOFT_DELETED = "soft-deleted"
    HARD_DELETED = "hard-deleted"


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject. `subject` is qualified where its context is not the default one (`:.dr:orders-value`).

    `timestamp` (epoch ms, -1 unknown) and `offset` are those of the record that registered it; -1 if there is none.
    `metadata` and `rule_set` are JSON values of Confluent's registry, which decoding ignores.
    """

    subject: str
    version: int
    schema: Schema
    state: State = State.LIVE
    timestamp: int = -1
    offset: int = -1
    guids: tuple[bytes, ...] = ()
    metadata: Any = field(default=None, compare=False)
    rule_set: Any = field(default=None, compare=False)

    @property
    def context(self) -> str:
        """The context of the subject; "" for the default one."""
        return context_of(self.subject)


class Registry:
    """The state of a registry at one moment. Never changes; a SchemaLookup.

    `compatibility`: levels by subject; that of the registry itself is under "", those of a context under `:.dr:`.
    """

    def __init__(
        self,
        versions: Iterable[SubjectVersion] = (),
        compatibility: Mapping[str, str] | None = None,
        replaced: Iterable[SubjectVersion] = (),
        files: Mapping[str, Schema] | None = None,
    ) -> None:
        """`versions` in the order of their registration. `replaced`: earlier records of versions that were registered
        again with another id, whose ids are still in messages. `files`: the schemas of files that the user has named,
        by subject, and the files that these import (`topic_files`)."""
        self.compatibility: Mapping[str, str] = dict(compatibility or {})
        self.versions: dict[tuple[str, int], SubjectVersion] = {}
        self.replaced = tuple(replaced)
        self.files: Mapping[str, Schema] = dict(files or {})
        # By context, then id: the first that registered it.
        self._ids: dict[str, dict[int, SubjectVersion]] = {"": {}}
        self._pairs: set[tuple[str, int]] = set()
        self._guids: dict[bytes, Schema] = {}
        versions = list(versions)
        for entry in sorted([*versions, *self.replaced], key=lambda entry: entry.offset):
            if entry.schema.schema_id >= 0:  # AWS Glue's schemas have only UUIDs
                self._ids.setdefault(entry.context, {}).setdefault(entry.schema.schema_id, entry)
                self._pairs.add((entry.subject, entry.schema.schema_id))
            for guid in entry.guids:
                self._guids.setdefault(guid, entry.schema)
        self.versions |= {(entry.subject, entry.version): entry for entry in versions}

    def __bool__(self) -> bool:
        return self.has_ids or bool(self._guids) or bool(self.files)

    @property
    def has_ids(self) -> bool:
        """Whether some schemas have ids."""
        return any(self._ids.values())

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        """Ids belong to contexts. The schema comes from the context where `subject` has the id, otherwise from the
        default context, otherwise from the other contexts if they agree."""
        if subject is not None and (subject, schema_id) not in self._pairs:
            for context, ids in self._ids.items():
                if context and (f":{context}:{subject}", schema_id) in self._pairs:
                    return ids[schema_id].schema
        entry = self._ids[""].get(schema_id)
        if entry is not None:
            return entry.schema
        candidates = [ids[schema_id].schema for ids in self._ids.values() if schema_id in ids]
        return candidates[0] if candidates and all(schema == candidates[0] for schema in candidates) else None

    def by_guid(self, guid: bytes) -> Schema | None:
        return self._guids.get(guid)

    def referenced(self, reference: Reference) -> Schema | None:
        """A subject that its context lacks is looked up in the default context."""
        if reference.version == FILE:
            return self.files.get(reference.subject)
        for subject in (reference.subject, name_in_context(reference.subject)):
            entry = (
                self.newest(subject) if reference.version == NEWEST else self.versions.get((subject, reference.version))
            )
            if entry is not None:
                return entry.schema
        return None

    def by_message_type(self, name: str) -> Schema | None:
        """Each subject offers the newest version that declares the type, a deleted version only if no other does. Of
        these, live versions come first, then those of the default context, then the greatest id."""
        entry = self._message_types.get(name)
        return None if entry is None else entry.schema

    def of_file(self, subject: str) -> Schema | None:
        return self.files.get(subject)

    def newest(self, subject: str) -> SubjectVersion | None:
        """The newest version of a subject that is not deleted, or None."""
        live = [entry for entry in self.of_subject(subject) if entry.state is State.LIVE]
        return live[-1] if live else None

    def of_subject(self, subject: str) -> tuple[SubjectVersion, ...]:
        """All versions of a subject that are in the log, ascending."""
        return self._subjects.get(subject, ())

    def subjects(self) -> tuple[str, ...]:
        """All subjects that have a version in the log, in order of their names."""
        return tuple(self._subjects)

    def entries(self) -> list[SubjectVersion]:
        """The first version of each id, of all contexts."""
        return [entry for ids in self._ids.values() for entry in ids.values()]

    def has_id(self, entry: SubjectVersion) -> bool:
        """Whether the id of a version is known in its context."""
        return entry.schema.schema_id in self._ids.get(entry.context, {})

    def ids(self, context: str = "") -> dict[int, SubjectVersion]:
        """By id, ascending: the first version that was registered with it, in one context."""
        return dict(sorted(self._ids.get(context, {}).items()))

    @cached_property
    def _subjects(self) -> dict[str, tuple[SubjectVersion, ...]]:
        by_subject: dict[str, list[SubjectVersion]] = {}
        for key in sorted(self.versions):
            by_subject.setdefault(key[0], []).append(self.versions[key])
        return {subject: tuple(entries) for subject, entries in by_subject.items()}

    @cached_property
    def _message_types(self) -> dict[str, SubjectVersion]:
        loose = [(entry,) for entry in self.replaced if not entry.subject]  # files of their own
        waiting = []
        for versions in [*self._subjects.values(), *loose]:
            newest_first = sorted(versions, key=lambda entry: (entry.state is State.LIVE, entry.version), reverse=True)
            waiting += [(place, -entry.schema.schema_id, entry) for place, entry in enumerate(newest_first)]
        types: dict[str, SubjectVersion] = {}
        seen: set[tuple[str, str]] = set()
        text_left, names_left = MOST_SEARCHED_TEXT, MOST_SEARCHED_NAMES
        # The newest versions of all subjects first, because the limits may end the search.
        for _, _, entry in sorted(waiting, key=lambda ranked: (*ranked[:2], ranked[2].subject)):
            text = entry.schema.text if entry.schema.schema_type == PROTOBUF else ""
            text_left -= len(text)
            if text_left < 0:
                break
            for name in message_types(text):
                names_left -= len(name)
                if names_left < 0:
                    return types
                newer = entry.subject and (entry.subject, name) in seen
                if not newer and (name not in types or _precedence(entry) > _precedence(types[name])):
                    types[name] = entry
                seen.add((entry.subject, name))
        return types

    @cached_property
    def fingerprint(self) -> str:
        """Equal for registries that give the same answers to a decoder."""
        from hashlib import blake2b

        digest = blake2b(digest_size=16)
        for context in sorted(self._ids):
            for schema_id, entry in self.ids(context).items():
                _digest_schema(digest, context, schema_id, entry.schema)
        for subject, schema_id in sorted(self._pairs):
            _digest_texts(digest, schema_id, subject)
        for entry in self.versions.values():
            _digest_schema(digest, entry.subject, entry.version, entry.schema)
        for guid in sorted(self._guids):
            _digest_schema(digest, guid.hex(), 0, self._guids[guid])
        for name in sorted(self.files):
            _digest_schema(digest, name, FILE, self.files[name])
            _digest_texts(digest, FILE, self.files[name].file, self.files[name].message)
        return digest.hexdigest()


def _precedence(entry: SubjectVersion) -> tuple[bool, bool, int, str]:
    """The order of the schemas that declare a message type: an Any has the type of the greatest."""
    return entry.state is State.LIVE, not entry.context, entry.schema.schema_id, entry.subject


def context_of(subject: str) -> str:
    """The context of a qualified subject: `.dr` of `:.dr:orders-value`; "" for the default one (`:.:orders` too).

    Confluent's QualifiedSubject.
    """
    context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
    return context if colon and context != "." else ""


def name_in_context(subject: str) -> str:
    """A qualified subject without its context."""
    return subject[1:].partition(":")[2] if subject.startswith(":.") and ":" in subject[1:] else subject


def qualified(subject: str, context: str) -> str:
    """The subject in a context, unless it names one itself. The default context has no prefix."""
    if subject.startswith(":."):
        own = context_of(subject)
        return subject if own else name_in_context(subject)
    return f":{context}:{subject}" if context else subject


def _digest_schema(digest: blake2b, place: str, number: int, schema: Schema) -> None:
    _digest_texts(digest, number, place, schema.schema_type, schema.text)
    _digest_texts(digest, schema.schema_id)
    for reference in schema.references:
        _digest_texts(digest, reference.version, reference.name, reference.subject)


def _digest_texts(digest: blake2b, number: int, *texts: str) -> None:
    digest.update(_ID_AND_LENGTH.pack(number, len(texts)))
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(_ID_AND_LENGTH.pack(0, len(data)))
        digest.update(data)
