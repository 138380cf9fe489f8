"""Parsing the text of an Avro schema, and of the schemas that it refers to, into types."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafkafs.schemas.schema import AVRO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkafs.schemas.schema import Reference, Schema, SchemaLookup

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
# A larger schema is refused: the text comes from a log, so anybody may have written it.
MAX_TEXT: Final = 4 << 20
MAX_NESTING: Final = 100
MAX_SCALE: Final = 4096
_MAX_REFERENCES: Final = 1000
_LOGICAL: Final = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "uuid": "string",
}


class BadSchema(ValueError):
    """A schema that cannot be used for decoding; the message says what is wrong with it."""


@dataclass(slots=True, eq=False, repr=False)
class AvroType:
    """A type. `kind` is a primitive's name or record, enum, array, map, union, fixed; `logical` the name of a logical
    type that is known and valid for this type, else None. Types can contain themselves."""

    kind: str
    name: str | None = None  # full name of a record, enum or fixed
    logical: str | None = None
    precision: int = 0  # of a decimal
    scale: int = 0
    size: int = 0  # of a fixed, in bytes
    aliases: frozenset[str] = frozenset()  # full names of a named type
    symbols: tuple[str, ...] = ()
    default: str | None = None  # symbol of an enum
    fields: tuple[tuple[str, AvroType], ...] = ()  # of a record, in order
    defaults: dict[str, Any] = field(default_factory=dict)  # by field, as JSON
    field_aliases: dict[str, str] = field(default_factory=dict)  # alias to field
    branches: tuple[AvroType, ...] = ()  # of a union
    item: AvroType | None = None  # of an array; of a map's values

    def __str__(self) -> str:
        return self.name or self.kind

    def children(self) -> Iterator[AvroType]:
        """The types directly within this one."""
        yield from (child for _, child in self.fields)
        yield from self.branches
        if self.item is not None:
            yield self.item


def parse(schema: Schema, schemas: SchemaLookup) -> AvroType:
    """The type that `schema` describes. Raises BadSchema."""
    names: dict[str, AvroType] = {}
    for text in _referenced_texts(schema, schemas):
        _Parser(names).parse(text)
    return _Parser(names).parse(schema.text)


def _referenced_texts(schema: Schema, schemas: SchemaLookup) -> list[str]:
    """The texts of all schemas that this schema refers to, each once, after the texts that it refers to itself."""
    texts: list[str] = []
    seen: set[tuple[str, int]] = set()
    size = 0
    # A reference is popped twice: first to push its own references, then to be listed after them.
    waiting: list[tuple[Reference, Schema | None]] = [(child, None) for child in reversed(schema.references)]
    while waiting:
        reference, referred = waiting.pop()
        if referred is not None:
            texts.append(referred.text)
            continue
        place = (reference.subject, reference.version)
        if place in seen:
            continue
        seen.add(place)
        referred = referred_schema(reference, schemas, AVRO)
        size += len(referred.text)
        if len(seen) > _MAX_REFERENCES or size > MAX_TEXT:
            raise BadSchema(f"refers to more than {_MAX_REFERENCES} schemas or {MAX_TEXT >> 20} MiB of them")
        waiting.append((reference, referred))
        waiting += [(child, None) for child in reversed(referred.references)]
    return texts


def referred_schema(reference: Reference, schemas: SchemaLookup, schema_type: str) -> Schema:
    """Return the schema that `reference` names. Raises BadSchema if it is missing or of another type."""
    referred = schemas.referenced(reference)
    if referred is None:
        raise BadSchema(f"refers to {reference.name} in subject {reference.subject}, version {reference.version},"
                        " which is not among the schemas")  # fmt: skip
    if referred.schema_type != schema_type:
        raise BadSchema(f"refers to {reference.name}, which is of type {referred.schema_type}, not {schema_type}")
    return referred


class _Parser:
    """Parses one text; `names` are the named types by full name, including those of earlier texts."""

    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names

    def parse(self, text: str) -> AvroType:
        if len(text) > MAX_TEXT:
            raise BadSchema(f"its text is longer than {MAX_TEXT >> 20} MiB")
        try:
            node = json.loads(text)
        except RecursionError:
            raise BadSchema("its text is nested too deeply") from None
        except ValueError as error:
            raise BadSchema(f"its text is not JSON: {error}") from None
        return self._type(node, "", 0)

    def _type(self, node: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_NESTING:
            raise BadSchema(f"its types are nested deeper than {MAX_NESTING} levels")
        if isinstance(node, str):
            return AvroType(node) if node in PRIMITIVES else self._named(node, namespace)
        if isinstance(node, list):
            union = AvroType("union")
            union.branches = tuple(self._type(branch, namespace, depth + 1) for branch in node)
            if any(branch.kind == "union" for branch in union.branches):
                raise BadSchema("a union is directly within a union")
            return union
        if not isinstance(node, dict):
            raise BadSchema(f"{_short(node)} is not a type")
        kind = node.get("type")
        if isinstance(kind, (dict, list)):
            return self._type(kind, namespace, depth + 1)
        if kind in ("record", "error"):
            return self._record(node, namespace, depth)
        if kind == "enum":
            return self._enum(node, namespace)
        if kind == "fixed":
            return self._fixed(node, namespace)
        if kind in ("array", "map"):
            container = AvroType(kind)
            if (key := "items" if kind == "array" else "values") not in node:
                raise BadSchema(f"a type {kind} has no {key}")
            container.item = self._type(node[key], namespace, depth + 1)
            return container
        if not isinstance(kind, str):
            raise BadSchema(f"{_short(node)} has no type")
        if kind not in PRIMITIVES:
            return self._named(kind, namespace)
        return _with_logical(AvroType(kind), node)

    def _named(self, name: str, namespace: str) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        known_type = self._names.get(full) or self._names.get(name)
        if known_type is None:
            raise BadSchema(f"the type {_short(full)} is not defined")
        return known_type

    def _define(self, node: dict[str, Any], namespace: str, kind: str) -> tuple[AvroType, str]:
        """Return a new named type, and the namespace of the names in it."""
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise BadSchema(f"a type {kind} has no name")
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            own = node.get("namespace")
            namespace = own if isinstance(own, str) else namespace
            name = f"{namespace}.{name}" if namespace else name
        if name in self._names:
            raise BadSchema(f"the type {_short(name)} is defined twice")
        self._names[name] = new_type = AvroType(kind, name)
        new_type.aliases = frozenset(
            alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in _aliases(node)
        )
        return new_type, namespace

    def _record(self, node: dict[str, Any], namespace: str, depth: int) -> AvroType:
        record, namespace = self._define(node, namespace, "record")
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise BadSchema(f"the record {record} has no list of fields")
        parsed: dict[str, AvroType] = {}
        for member in fields:
            name = member.get("name") if isinstance(member, dict) else None
            if not isinstance(name, str) or "type" not in member:
                raise BadSchema(f"a field of the record {record} has no name or no type")
            if name in parsed:
                raise BadSchema(f"the record {record} has two fields {_short(name)}")
            parsed[_unicode(name)] = self._type(member["type"], namespace, depth + 1)
            if "default" in member:
                record.defaults[name] = member["default"]
            record.field_aliases.update((alias, name) for alias in _aliases(member))
        record.fields = tuple(parsed.items())
        return record

    def _enum(self, node: dict[str, Any], namespace: str) -> AvroType:
        enum, _ = self._define(node, namespace, "enum")
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise BadSchema(f"the enum {enum} has no list of symbols")
        enum.symbols = tuple(map(_unicode, symbols))
        enum.default = node["default"] if node.get("default") in symbols else None
        return enum

    def _fixed(self, node: dict[str, Any], namespace: str) -> AvroType:
        fixed, _ = self._define(node, namespace, "fixed")
        size = node.get("size")
        if type(size) is not int or not 0 <= size < 1 << 31:
            raise BadSchema(f"the fixed {fixed} has no size from 0 to 2147483647")
        fixed.size = size
        return _with_logical(fixed, node)


def _with_logical(type_: AvroType, node: dict[str, Any]) -> AvroType:
    """Set the type's logical type; an unknown or invalid one is ignored, as the specification demands."""
    logical = node.get("logicalType")
    if logical == "decimal" and type_.kind in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0:
            if scale > MAX_SCALE:
                raise BadSchema(f"a decimal has {scale} decimals, more than {MAX_SCALE}")
            if type_.kind == "bytes" or precision <= math.floor((8 * type_.size - 1) * math.log10(2)):
                type_.logical, type_.precision, type_.scale = logical, precision, scale
    elif isinstance(logical, str) and _LOGICAL.get(logical) == type_.kind:
        type_.logical = logical
    return type_


def _aliases(node: dict[str, Any]) -> list[str]:
    aliases = node.get("aliases")
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def _unicode(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadSchema(f"the name {_short(name)} is not Unicode text") from None
    return name


def _short(node: object) -> str:
    """A value as JSON, cut off after 60 characters, for messages."""
    text = json.dumps(node) if not isinstance(node, (dict, list)) else str(node)[:100]
    return text if len(text) <= 60 else f"{text[:60]}…"
