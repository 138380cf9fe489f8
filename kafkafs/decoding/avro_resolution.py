"""Avro's schema resolution: programs that show what one schema wrote as JSON in the shape of another schema's columns.

A datum becomes a line, in which every column has the same JSON type for all values (`Form`). Fields have numbers as
their names, and come in the order of the schema that wrote them; what the reading schema lacks comes under an empty
name. Within a JSON column values are as `decoded.jsonl` shows them, with these differences: a record's fields have
numbers, a map is as in `Form.MAP`, a union is `{"BRANCH":VALUE}`, and a number that is promoted to a float is an
integer, or a float's bits in base64.

Where the types do not resolve, the program fails when it comes to such a value, and not before: a branch that no value
has, or an array that is empty, does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkafs.decoding import avro_kernel
from kafkafs.decoding.avro_defaults import encode_default
from kafkafs.decoding.avro_program import POWERS, Assembler, Opcode, Programs, quoted
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.framing import shortened
from kafkafs.decoding.rooms import Room

if TYPE_CHECKING:
    pass

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
    """What a column's values are in the text."""

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
    """A column and those within it. `path`: the names of the fields that lead to it."""

    avro: AvroType
    form: Form
    path: tuple[str, ...] = ()
    children: tuple[ValueColumn, ...] = ()

    @classmethod
    def of(cls, reader: AvroType) -> ValueColumn:
        """The columns for values that are read as this type. BadSchema if it contains itself outside of a union of
        several types, or has too many columns."""
        return _Columns().column(reader, (), ())


def add(programs: Programs, writer: AvroType, column: ValueColumn) -> int:
    """Adds the program that shows what `writer` wrote in the shape of the columns; its first instruction."""
    return programs.add(lambda made: _Resolved(made).assemble(writer, column))


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
    """The form, and the types of the children; none of MAYBE: one that is JSON."""
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
    """Why two types that are no unions do not match, what is within them aside; "" if they do."""
    if writer.kind != reader.kind:
        promoted = reader.kind in _PROMOTIONS.get(writer.kind, ())
        return "" if promoted else f"{writer} is not read as {reader}"
    if writer.name is not None and not _same_name(writer, reader):
        return f"{writer} is not read as {reader}, which has another name"
    if writer.size != reader.size:
        return f"{writer} has {writer.size} bytes, and {reader} {reader.size}"
    if writer.logical == reader.logical == "decimal" and writer.scale != reader.scale:
        return f"a decimal of scale {writer.scale} is not read as one of scale {reader.scale}"
    return ""


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    return str(writer).rpartition(".")[2] == str(reader).rpartition(".")[2] or str(writer) in reader.aliases


def _branch(writer: AvroType, union: AvroType) -> AvroType | None:
    """The branch that a value is read as: of the same type and full name, of the same type, or the first to which it is
    promoted."""
    fitting = [branch for branch in union.branches if not mismatch(writer, branch)]
    same = [branch for branch in fitting if branch.kind == writer.kind]
    exact = [branch for branch in same if branch.name == writer.name]
    return next(iter(exact or same or fitting), None)


def _no_branch(writer: AvroType, union: AvroType) -> str:
    branches = [why for branch in union.branches if (why := mismatch(writer, branch)) and branch.kind != "null"]
    return branches[0] if len(branches) == 1 else f"{writer} is none of the types of the union"


def _matched(writer: AvroType, reader: AvroType) -> list[int | None]:
    """For each field of the reader's record the index of the writer's that is read as it."""
    names = {name: at for at, (name, _) in enumerate(writer.fields)}
    found: dict[str, int] = {}
    for alias, name in reader.field_aliases.items():
        if alias in names and name not in names:
            found.setdefault(name, names.pop(alias))
    return [names.get(name, found.get(name)) for name, _ in reader.fields]


class _Resolved:
    """Makes the program with `made`. Where a column is expected, None means that the value is within a JSON column."""

    def __init__(self, made: Assembler) -> None:
        self._made = made

    def assemble(self, writer: AvroType, column: ValueColumn) -> None:
        self._value(writer, column.avro, column)
        self._made.pending += b"\n"
        self._made.finish()

    def assemble_default(self, kind: AvroType, column: ValueColumn | None) -> None:
        """The program for a default's data."""
        self._value(kind, kind, column)
        self._made.finish()

    def _value(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        made = self._made
        if column is not None and column.form is Form.JSON:
            made.pending += b'{"j":'
            self._value(writer, reader, None)
            made.pending += b"}"
        elif writer.kind == "union":
            made.union(writer, lambda branch: self._value(branch, reader, column))
        elif reader.kind == "union":
            self._in_union(writer, reader, column)
        elif why := mismatch(writer, reader):
            self._fail(why)
        elif reader.kind == "record" and column is None:
            made.call((id(writer), id(reader)), lambda: self._called(writer, reader))
        elif reader.kind == "record":
            self._members(writer, reader, column)
        elif writer.item is not None and reader.item is not None:
            self._items(writer.item, reader.item, column, is_map=reader.kind == "map")
        else:
            self._leaf(writer, reader, column)

    def _in_union(self, writer: AvroType, union: AvroType, column: ValueColumn | None) -> None:
        made, branch = self._made, _branch(writer, union)
        if branch is None:
            self._fail(_no_branch(writer, union))
        elif column is None:
            made.pending += b'{"%d":' % union.branches.index(branch)
            self._value(writer, branch, None)
            made.pending += b"}"
        elif branch.kind == "null":
            made.pending += b"null"
        else:
            child = column.children[0]
            self._value(writer, child.avro, child)

    def _fail(self, why: str) -> None:
        made = self._made
        made.emit(Opcode.FAIL)
        where = f"field {made.paths[-1]}: " if made.path else ""
        made.paths[-1] = where + shortened(why)

    def _called(self, writer: AvroType, reader: AvroType) -> None:
        made, before = self._made, self._made.path
        made.path = [str(reader).rpartition(".")[2]]
        self._members(writer, reader, None)
        made.path = before

    def _members(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        """A record that both have."""
        made, matched = self._made, _matched(writer, reader)
        if self._lacks(writer, reader, matched):
            return
        places = {at: place for place, at in enumerate(matched) if at is not None}
        children: Sequence[ValueColumn | None] = [None] * len(matched) if column is None else column.children
        separator = b"{"
        for at, (name, field) in enumerate(writer.fields):
            place = places.get(at)
            made.pending += separator + (b'"":' if place is None else b'"%d":' % place)
            separator = b","
            made.path.append(name)
            if place is None:
                self._skip(field)
            else:
                self._value(field, reader.fields[place][1], children[place])
            made.path.pop()
        for place, there in enumerate(matched):
            if there is None:
                made.pending += separator + b'"%d":' % place
                separator = b","
                self._default(reader, place, children[place])
        made.pending += b"}" if separator == b"," else b"{}"

    def _lacks(self, writer: AvroType, reader: AvroType, matched: list[int | None]) -> bool:
        """Fails at the first field that neither the writer nor a default has."""
        for (name, _), at in zip(reader.fields, matched, strict=True):
            if at is None and name not in reader.defaults:
                self._fail(f"{writer} lacks the field {name}, which has no default")
                return True
        return False

    def _default(self, reader: AvroType, place: int, column: ValueColumn | None) -> None:
        made, (name, kind) = self._made, reader.fields[place]
        made.path.append(name)
        try:
            made.pending += _text_of(kind, encode_default(kind, reader.defaults[name]), column)
        except BadSchema as error:
            self._fail(f"the default {error}")
        made.path.pop()

    def _items(self, writer: AvroType, reader: AvroType, column: ValueColumn | None, *, is_map: bool) -> None:
        made, child = self._made, None if column is None else column.children[0]

        def item() -> None:
            if is_map:
                made.pending += b'{"k":'
                made.emit(Opcode.STRING)
                made.pending += b',"v":'
            self._value(writer, reader, child)
            made.pending += b"}" * is_map

        made.blocks(False, item)

    def _leaf(self, writer: AvroType, reader: AvroType, column: ValueColumn | None) -> None:
        """A value of types that match and contain no others."""
        made, kind, form = self._made, reader.kind, None if column is None else column.form
        if kind in ("float", "double") and (column is not None or writer.kind != kind):
            if writer.kind in _FIXED_SIZES:
                made.emit(Opcode.FIXED, _FIXED_SIZES[writer.kind])
                return
            quote = b"" if column is None else b'"'
            made.pending += quote
            self._integer(writer)
            made.pending += quote
        elif form in (Form.DECIMAL, Form.BYTES):
            made.emit(Opcode.FIXED if kind == "fixed" else Opcode.BYTES, reader.size)
        elif form in (Form.NUMBER, Form.TIME) or (kind == "long" and reader.logical is None):
            self._integer(writer)
        elif kind == "enum":
            self._enum(writer, reader)
        else:
            made.leaf(reader)

    def _integer(self, writer: AvroType) -> None:
        self._made.emit(Opcode.INT if writer.kind == "int" else Opcode.LONG)

    def _enum(self, writer: AvroType, reader: AvroType) -> None:
        there = set(reader.symbols)
        chosen = [symbol if symbol in there else reader.default for symbol in writer.symbols]
        self._made.enum(None if symbol is None else quoted(symbol) for symbol in chosen)

    # What the reader lacks: any JSON, and no more is checked of it than its length.

    def _skip(self, writer: AvroType) -> None:
        made, kind = self._made, writer.kind
        if kind == "union":
            made.union(writer, self._skip)
        elif kind == "record":
            made.call(id(writer), lambda: self._skip_fields(writer))
        elif writer.item is not None:
            self._skip_items(writer.item, is_map=kind == "map")
        elif kind == "null":
            made.pending += b"null"
        elif kind in ("string", "bytes"):
            made.emit(Opcode.BYTES)
        elif kind in ("int", "long", "enum"):
            made.emit(Opcode.LONG)
        else:
            made.emit(Opcode.FIXED, _FIXED_SIZES.get(kind, writer.size))

    def _skip_items(self, item: AvroType, *, is_map: bool) -> None:
        def skip_item() -> None:
            if is_map:
                self._made.emit(Opcode.BYTES)
                self._made.pending += b","
            self._skip(item)

        self._made.blocks(False, skip_item)

    def _skip_fields(self, writer: AvroType) -> None:
        made = self._made
        made.pending += b"["
        for at, (_, field) in enumerate(writer.fields):
            made.pending += b"," * (at > 0)
            self._skip(field)
        made.pending += b"]"


def _text_of(kind: AvroType, data: bytes, column: ValueColumn | None) -> bytes:
    """The text of a default, whose data these are. BadSchema if it is too large."""
    programs, room = Programs(), Room(_ROOM)
    entry = programs.add(lambda made: _Resolved(made).assemble_default(kind, column))
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
