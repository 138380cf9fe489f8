"""Avro's schema resolution: programs that show data of one schema as JSON in the shape of another schema's columns.

A datum becomes a line, in which every column has the same JSON type for all values (`Form`). Fields have numbers as
their names, and come in the order of the writer's schema. A field that the reader's schema lacks has an empty name.
Values within a JSON column look as in `decoded.jsonl`, with these differences: a record's fields have numbers, a map is
as in `Form.MAP`, a union is `{"BRANCH":VALUE}`, and a number that is promoted to a float is an integer, or a float's
bits in base64.

Types that do not resolve make the program fail only when a value of that type occurs: a branch that no value has, or
an array that is empty, does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from kafkafs.decoding import avro_kernel
from kafkafs.decoding.avro_defaults import encode_default
from kafkafs.decoding.avro_program import POWERS, Assembler, Opcode, Programs, quoted
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.error_texts import shortened
from kafkafs.decoding.rooms import Room

MOST_PRECISION: Final = 38  # of 128 bits
MOST_COLUMNS: Final = 20_000
_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_FIXED_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_ROOM: Final = 1 << 12


class Form(Enum):
    """How the text shows a column's values."""

    NOTHING = "null"
    BOOLEAN = "true or false"
    NUMBER = "the number, of a date or timestamp too"
    TIME = "the number, for a column of texts"
    FLOAT = "a string: the bits in base64, or the digits of an integer that is promoted"
    DECIMAL = "a string: the bytes in base64"
    BYTES = "a string: base64"
    TEXT = "a string"
    JSON = 'in {"j":…}'
    RECORD = 'an object with the fields "0", "1", …'
    LIST = "an array"
    MAP = 'an array of {"k":KEY,"v":VALUE}'
    MAYBE = "null, or the value"


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column and the columns within it. `path`: the names of the fields that lead to it."""

    avro: AvroType
    form: Form
    path: tuple[str, ...] = ()
    children: tuple[ValueColumn, ...] = ()

    @classmethod
    def of(cls, reader: AvroType) -> ValueColumn:
        """The columns for values that are read as this type. BadSchema if the type contains itself outside of a union
        of several types, or has too many columns."""
        return _Columns().column(reader, (), ())


def add(programs: Programs, writer: AvroType, column: ValueColumn) -> int:
    """Add the program that shows data of `writer` in the shape of the columns; return its first instruction."""
    return programs.add(lambda assembler: _Resolved(assembler).assemble(writer, column))


class _Columns:
    def __init__(self) -> None:
        self._count = 0

    def column(self, avro: AvroType, within: tuple[AvroType, ...], path: tuple[str, ...]) -> ValueColumn:
        if avro in within:
            raise BadSchema(f"{avro} contains itself")
        self._count += 1
        if self._count > MOST_COLUMNS:
            raise BadSchema(f"it has more than {MOST_COLUMNS} columns")
        form, below = _form(avro)
        if form is Form.MAYBE and not below:
            return ValueColumn(avro, form, path, (ValueColumn(avro, Form.JSON, path),))
        names = [name for name, _ in avro.fields] if form is Form.RECORD else [None] * len(below)
        children = (
            self.column(child, (*within, avro), path if name is None else (*path, name))
            for name, child in zip(names, below, strict=True)
        )
        return ValueColumn(avro, form, path, tuple(children))


def _form(avro: AvroType) -> tuple[Form, list[AvroType]]:
    """The form, and the types of the children; none if a MAYBE holds JSON."""
    kind, logical = avro.kind, avro.logical or ""
    if kind == "record":
        # Parquet has no struct without fields.
        return (Form.RECORD, [field for _, field in avro.fields]) if avro.fields else (Form.JSON, [])
    if avro.item is not None:
        return (Form.LIST if kind == "array" else Form.MAP), [avro.item]
    if kind == "union":
        values = [branch for branch in avro.branches if branch.kind != "null"]
        return Form.MAYBE, values if len(values) == 1 else []
    if logical == "decimal":
        return Form.DECIMAL if avro.precision <= MOST_PRECISION else Form.TEXT, []
    if logical.startswith("time-"):
        return Form.TIME, []
    return _FORMS[kind], []


_FORMS: Final = {
    "null": Form.NOTHING,
    "boolean": Form.BOOLEAN,
    "int": Form.NUMBER,
    "long": Form.NUMBER,
    "float": Form.FLOAT,
    "double": Form.FLOAT,
    "bytes": Form.BYTES,
    "fixed": Form.BYTES,
    "string": Form.TEXT,
    "enum": Form.TEXT,
}


def mismatch(writer: AvroType, reader: AvroType) -> str:
    """The reason why two types, neither of them a union, do not match; "" if they do. Types within them are not
    compared."""
    if writer.kind != reader.kind:
        promoted = reader.kind in _PROMOTIONS.get(writer.kind, ())
        return "" if promoted else f"{writer} cannot be read as {reader}"
    if writer.name is not None and not _same_name(writer, reader):
        return f"{writer} cannot be read as {reader}, which has another name"
    if writer.size != reader.size:
        return f"{writer} has {writer.size} bytes, and {reader} {reader.size}"
    if writer.logical == reader.logical == "decimal" and writer.scale != reader.scale:
        return f"a decimal of scale {writer.scale} cannot be read as a decimal of scale {reader.scale}"
    return ""


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    return str(writer).rpartition(".")[2] == str(reader).rpartition(".")[2] or str(writer) in reader.aliases


def _branch(writer: AvroType, union: AvroType) -> AvroType | None:
    """The branch that a value is read as: the branch of the same type and full name, otherwise of the same type,
    otherwise the first to which the value is promoted."""
    fitting = [branch for branch in union.branches if not mismatch(writer, branch)]
    same = [branch for branch in fitting if branch.kind == writer.kind]
    exact = [branch for branch in same if branch.name == writer.name]
    return next(iter(exact or same or fitting), None)


def _no_branch(writer: AvroType, union: AvroType) -> str:
    branches = [why for branch in union.branches if (why := mismatch(writer, branch)) and branch.kind != "null"]
    return branches[0] if len(branches) == 1 else f"{writer} is none of the types of the union"


def _matched(writer: AvroType, reader: AvroType) -> list[int | None]:
    """For each field of the reader's record, the index of the writer's field that fills it."""
    names = {name: at for at, (name, _) in enumerate(writer.fields)}
    by_alias: dict[str, int] = {}
    for alias, name in reader.field_aliases.items():
        if alias in names and name not in names:
            by_alias.setdefault(name, names.pop(alias))
    return [names.get(name, by_alias.get(name)) for name, _ in reader.fields]


class _Resolved:
    """Makes the program with `assembler`. A column of None means that the value is within a JSON column."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler

    def assemble(self, writer: AvroType, column: ValueColumn) -> None:
        self._value(writer, column.avro, column)
        self._assembler.pending += b"\n"
        self._assembler.finish()

    def assemble_default(self, kind: AvroType, column: ValueColumn | None) -> None:
        """Make the program for a default's data."""
        self._value(kind, kind, column)
        self._assembler.finish()

    def _value(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        assembler = self._assembler
        if column is not None and column.form is Form.JSON:
            assembler.pending += b'{"j":'
            self._value(writer, reader, None)
            assembler.pending += b"}"
        elif writer.kind == "union":
            assembler.union(writer, lambda branch: self._value(branch, reader, column))
        elif reader.kind == "union":
            self._in_union(writer, reader, column)
        elif why := mismatch(writer, reader):
            self._fail(why)
        elif reader.kind == "record" and column is None:
            assembler.call((id(writer), id(reader)), lambda: self._called(writer, reader))
        elif reader.kind == "record":
            self._members(writer, reader, column)
        elif writer.item is not None and reader.item is not None:
            self._items(writer.item, reader.item, column, is_map=reader.kind == "map")
        else:
            self._leaf(writer, reader, column)

    def _in_union(self, writer: AvroType, union: AvroType, column: ValueColumn | None) -> None:
        assembler, branch = self._assembler, _branch(writer, union)
        if branch is None:
            self._fail(_no_branch(writer, union))
        elif column is None:
            assembler.pending += b'{"%d":' % union.branches.index(branch)
            self._value(writer, branch, None)
            assembler.pending += b"}"
        elif branch.kind == "null":
            assembler.pending += b"null"
        else:
            child = column.children[0]
            self._value(writer, child.avro, child)

    def _fail(self, why: str) -> None:
        assembler = self._assembler
        assembler.emit(Opcode.FAIL)
        where = f"field {assembler.paths[-1]}: " if assembler.path else ""
        assembler.paths[-1] = where + shortened(why)

    def _called(self, writer: AvroType, reader: AvroType) -> None:
        assembler, before = self._assembler, self._assembler.path
        assembler.path = [str(reader).rpartition(".")[2]]
        self._members(writer, reader, None)
        assembler.path = before

    def _members(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        """Show a record that writer and reader both have."""
        assembler, matched = self._assembler, _matched(writer, reader)
        if self._lacks(writer, reader, matched):
            return
        places = {at: place for place, at in enumerate(matched) if at is not None}
        children: Sequence[ValueColumn | None] = [None] * len(matched) if column is None else column.children
        separator = b"{"
        for at, (name, field) in enumerate(writer.fields):
            place = places.get(at)
            assembler.pending += separator + (b'"":' if place is None else b'"%d":' % place)
            separator = b","
            assembler.path.append(name)
            if place is None:
                self._skip(field)
            else:
                self._value(field, reader.fields[place][1], children[place])
            assembler.path.pop()
        for place, written in enumerate(matched):
            if written is None:
                assembler.pending += separator + b'"%d":' % place
                separator = b","
                self._default(reader, place, children[place])
        assembler.pending += b"}" if separator == b"," else b"{}"

    def _lacks(self, writer: AvroType, reader: AvroType, matched: list[int | None]) -> bool:
        """Fail at the first field that neither the writer nor a default has; return whether there is one."""
        for (name, _), at in zip(reader.fields, matched, strict=True):
            if at is None and name not in reader.defaults:
                self._fail(f"{writer} lacks the field {name}, which has no default")
                return True
        return False

    def _default(self, reader: AvroType, place: int, column: ValueColumn | None) -> None:
        assembler, (name, kind) = self._assembler, reader.fields[place]
        assembler.path.append(name)
        try:
            assembler.pending += _text_of(kind, encode_default(kind, reader.defaults[name]), column)
        except BadSchema as error:
            self._fail(f"the default {error}")
        assembler.path.pop()

    def _items(self, writer: AvroType, reader: AvroType, column: ValueColumn | None, *, is_map: bool) -> None:
        assembler, child = self._assembler, None if column is None else column.children[0]

        def item() -> None:
            if is_map:
                assembler.pending += b'{"k":'
                assembler.emit(Opcode.STRING)
                assembler.pending += b',"v":'
            self._value(writer, reader, child)
            assembler.pending += b"}" * is_map

        assembler.blocks(False, item)

    def _leaf(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        """Show a value of types that match and contain no other types."""
        assembler, kind, form = self._assembler, reader.kind, None if column is None else column.form
        if kind in ("float", "double") and (column is not None or writer.kind != kind):
            if writer.kind in _FIXED_SIZES:
                assembler.emit(Opcode.FIXED, _FIXED_SIZES[writer.kind])
                return
            quote = b"" if column is None else b'"'
            assembler.pending += quote
            self._integer(writer)
            assembler.pending += quote
        elif form in (Form.DECIMAL, Form.BYTES):
            assembler.emit(Opcode.FIXED if kind == "fixed" else Opcode.BYTES, reader.size)
        elif form in (Form.NUMBER, Form.TIME) or (kind == "long" and reader.logical is None):
            self._integer(writer)
        elif kind == "enum":
            self._enum(writer, reader)
        else:
            assembler.leaf(reader)

    def _integer(self, writer: AvroType) -> None:
        self._assembler.emit(Opcode.INT if writer.kind == "int" else Opcode.LONG)

    def _enum(self, writer: AvroType, reader: AvroType) -> None:
        known = set(reader.symbols)
        chosen = [symbol if symbol in known else reader.default for symbol in writer.symbols]
        self._assembler.enum(None if symbol is None else quoted(symbol) for symbol in chosen)

    # Fields that the reader lacks are written as JSON that nobody reads; only their length is checked.

    def _skip(self, writer: AvroType) -> None:
        assembler, kind = self._assembler, writer.kind
        if kind == "union":
            assembler.union(writer, self._skip)
        elif kind == "record":
            assembler.call(id(writer), lambda: self._skip_fields(writer))
        elif writer.item is not None:
            self._skip_items(writer.item, is_map=kind == "map")
        elif kind == "null":
            assembler.pending += b"null"
        elif kind in ("string", "bytes"):
            assembler.emit(Opcode.BYTES)
        elif kind in ("int", "long", "enum"):
            assembler.emit(Opcode.LONG)
        else:
            assembler.emit(Opcode.FIXED, _FIXED_SIZES.get(kind, writer.size))

    def _skip_items(self, item: AvroType, *, is_map: bool) -> None:
        def skip_item() -> None:
            if is_map:
                self._assembler.emit(Opcode.BYTES)
                self._assembler.pending += b","
            self._skip(item)

        self._assembler.blocks(False, skip_item)

    def _skip_fields(self, writer: AvroType) -> None:
        assembler = self._assembler
        assembler.pending += b"["
        for at, (_, field) in enumerate(writer.fields):
            assembler.pending += b"," * (at > 0)
            self._skip(field)
        assembler.pending += b"]"


def _text_of(kind: AvroType, data: bytes, column: ValueColumn | None) -> bytes:
    """Return the text of a default that was encoded as `data`. BadSchema if the text is too large."""
    programs, room = Programs(), Room(_ROOM)
    entry = programs.add(lambda assembler: _Resolved(assembler).assemble_default(kind, column))
    results = np.empty((5, 1), np.int64)
    columns = np.array([[0], [len(data)], [entry]], np.int64)
    while True:
        rows, end = avro_kernel.run(
            *programs.arrays, POWERS, data, columns, 0, 1, room.texts, 0, results, room.stack, room.scratch
        )
        if rows:
            break
        room.grow()
    if results[2, 0]:
        raise BadSchema("is too large")
    return room.texts[:end].tobytes()
