"""`@schemas`: the schemas that are known here, by id and by subject, as the text that was registered.

    ids/12.avsc                    the schema with the id 12 of the default context
    subjects/orders-value/3.avsc   a version of a subject; names are percent-encoded as in `@groups`

All versions whose records are in the log are listed, deleted versions too, because messages may need them. `kafkafs
schemas` shows which are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kafkafs.file_names import encoded_name
from kafkafs.reading.handle import BytesHandle, Handle
from kafkafs.schemas.file_schemas import suffix_of
from kafkafs.schemas.registry import Registry, SubjectVersion
from kafkafs.schemas.schema_source import SchemaSource
from kafkafs.tree.node import DIRECTORY_MODE, FILE_MODE, Attributes, Directory, Entry, File, NodeKind, View
from kafkafs.tree.paths import (
    MAX_NAME_BYTES,
    NoSuchPath,
    SchemaFile,
    Schemas,
    SchemaSubject,
)
from storage.log.log_dir import LogDir

SCHEMAS: Final = "@schemas"
_PARTS: Final = ("ids", "subjects")

SchemaNode = Schemas | SchemaSubject | SchemaFile


def schema_view(log_dir: LogDir, source: SchemaSource, node: SchemaNode) -> View:
    """The view of `@schemas` or of a node below it. NoSuchPath if there are no schemas, or not this one."""
    registry = source.registry()
    if not registry.has_ids:
        raise NoSuchPath(SCHEMAS)
    if isinstance(node, SchemaFile):
        return SchemaText(_find(registry, node), log_dir.mtime_ns)
    if isinstance(node, SchemaSubject) and not registry.of_subject(node.subject):
        raise NoSuchPath(node.subject)
    return SchemaDirectory(registry, node, log_dir.mtime_ns)


class SchemaDirectory(Directory):
    """`@schemas`, `ids`, `subjects` or a subject."""

    def __init__(self, registry: Registry, node: Schemas | SchemaSubject, mtime_ns: int) -> None:
        self._registry = registry
        self._node = node
        self._mtime_ns = mtime_ns  # if no record has a time

    def attributes(self) -> Attributes:
        stamp = max((entry.timestamp for entry in self._entries()), default=-1)
        below = 0
        if isinstance(self._node, Schemas):
            below = len(_PARTS) if self._node.part is None else len(self._subjects())
        mtime_ns = stamp * 1_000_000 if stamp >= 0 else self._mtime_ns
        return Attributes(NodeKind.DIRECTORY, 0, mtime_ns, DIRECTORY_MODE, 2 + below)

    def list(self) -> Iterable[Entry]:
        match self._node:
            case Schemas(None):
                yield from (Entry(part, NodeKind.DIRECTORY) for part in _PARTS)
            case Schemas("ids"):
                for schema_id, entry in self._registry.ids().items():
                    yield Entry(f"{schema_id}.{suffix_of(entry.schema)}", NodeKind.FILE)
            case Schemas():
                yield from (Entry(name, NodeKind.DIRECTORY) for name in self._subjects())
            case SchemaSubject(subject):
                for entry in self._registry.of_subject(subject):
                    yield Entry(f"{entry.version}.{suffix_of(entry.schema)}", NodeKind.FILE)

    def _entries(self) -> Iterator[SubjectVersion]:
        match self._node:
            case Schemas("ids"):
                yield from self._registry.ids().values()
            case SchemaSubject(subject):
                yield from self._registry.of_subject(subject)
            case _:
                yield from self._registry.versions.values()

    def _subjects(self) -> tuple[str, ...]:
        if self._node != Schemas("subjects"):
            return ()
        names = map(encoded_name, self._registry.subjects())
        return tuple(name for name in names if len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES)


class SchemaText(File):
    """A schema."""

    def __init__(self, entry: SubjectVersion, mtime_ns: int) -> None:
        self._entry = entry
        self._content = entry.schema.text.encode("utf-8", "surrogatepass")
        self._mtime_ns = entry.timestamp * 1_000_000 if entry.timestamp >= 0 else mtime_ns

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, len(self._content), self._mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return BytesHandle(self._content)


def _find(registry: Registry, node: SchemaFile) -> SubjectVersion:
    version = (
        registry.ids().get(node.number) if node.subject is None else registry.versions.get((node.subject, node.number))
    )
    if version is None or suffix_of(version.schema) != node.suffix:
        raise NoSuchPath(str(node))
    return version
