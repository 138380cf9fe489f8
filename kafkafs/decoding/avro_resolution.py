"""Avro's schema resolution: programs that read what one schema wrote into the columns of another.

What a program puts onto the tape for each column (`Form`) comes in the order of the data. Fields of a record come in
the order of the schema that wrote them: that does not matter, for each has columns of its own. Only in the JSON text of
a union the program goes back and forth, so that the text has the order of the schema that reads.

Where the types do not resolve, the program fails when it comes to such a value, and not before: a branch that no value
has, or an array that is empty, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkafs.decoding.avro_program import Assembler, Code, quoted
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.framing import shortened

if TYPE_CHECKING:
    from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_defaults import encode_default

MOST_PRECISION: Final = 38  # of 128 bits
MOST_COLUMNS: Final = 20_000
_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
# What readers take for dates and timestamps: the years 1 to 9999. In a day, and a column's units in one of these.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_DAYS: Final = {"date": (1, 1), "timestamp-millis": (86_400_000, 1000), "timestamp-micros": (86_400_000_000, 1)}
_FIXED_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Form(Enum):
    """What a column has on the tape for each of its values."""

    NOTHING = "nothing"  # the type null
    CELL = "cell"  # the number, or the float's bits; timestamps in milliseconds times 1000
    DECIMAL = "decimal"  # the lower 64 bits; in the next column the upper ones
    TEXT = "text"  # where its text ends; it begins where the last text on the tape ended
    JSON = "json"  # the same
    RECORD = "record"  # nothing
    LIST = "list"  # the number of items
    MAP = "map"  # the number of items; the next column has the keys' texts
    MAYBE = "maybe"  # 1, and the value is in the child; 0: null


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column, whose number on the tape is `number`, and those within it."""

    avro: AvroType
    form: Form
    number: int
    children: tuple[ValueColumn, ...] = ()

    @classmethod
    def of(cls, reader: AvroType) -> ValueColumn:
        """The columns for values that are read as this type. BadSchema if it contains itself outside of a union of
        several types, or has too many columns."""
        return _Columns().column(reader, ())

    def end(self) -> int:
        """The number after its last column."""
        own = 2 if self.form in (Form.DECIMAL, Form.MAP) else 1
        return max([self.number + own, *(child.end() for child in self.children[-1:])])


def add(programs: Programs, writer: AvroType, column: ValueColumn) -> int:
    """Adds the program that reads what `writer` wrote into the columns; its first instruction."""
    return programs.add(lambda made: _Resolved(made, writer, column).assemble())


class _Columns:
    def __init__(self) -> None:
        self._next = 0

    def column(self, avro: AvroType, within: tuple[AvroType, ...]) -> ValueColumn:
        if avro in within:
            raise BadSchema(f"{avro} contains itself")
        if self._next > MOST_COLUMNS:
            raise BadSchema(f"it has more than {MOST_COLUMNS} columns")
        form, below = _form(avro)
        number = self._next
        self._next += 2 if form in (Form.DECIMAL, Form.MAP) else 1
        if form is Form.MAYBE and not below:
            return ValueColumn(avro, form, number, (ValueColumn(avro, Form.JSON, self._number()),))
        return ValueColumn(avro, form, number, tuple(self.column(child, (*within, avro)) for child in below))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _form(avro: AvroType) -> tuple[Form, list[AvroType]]:
    """The form, and the types of the children; none of MAYBE: one that is JSON."""
    kind = avro.kind
    if kind == "null":
        return Form.NOTHING, []
    if kind == "record":
        # Parquet has no struct without fields.
        return (Form.RECORD, [field for _, field in avro.fields]) if avro.fields else (Form.JSON, [])
    if avro.item is not None:
        return (Form.LIST if kind == "array" else Form.MAP), [avro.item]
    if kind == "union":
        values = [branch for branch in avro.branches if branch.kind != "null"]
        return Form.MAYBE, values if len(values) == 1 else []
    if avro.logical == "decimal" and avro.precision <= MOST_PRECISION:
        return Form.DECIMAL, []
    if kind in ("string", "bytes", "fixed", "enum") or (avro.logical or "").startswith("time-"):
        return Form.TEXT, []
    return Form.CELL, []


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


def _matched(writer: AvroType, reader: AvroType) -> list[int | None]:
    """For each field of the reader's record the index of the writer's that is read as it."""
    names = {name: at for at, (name, _) in enumerate(writer.fields)}
    found: dict[str, int] = {}
    for alias, name in reader.field_aliases.items():
        if alias in names and name not in names:
            found.setdefault(name, names.pop(alias))
    return [names.get(name, found.get(name)) for name, _ in reader.fields]


class _Resolved:
    """Makes the program with `made`. A place for values is a ValueColumn, None where they are skipped, or _JSON."""

    def __init__(self, made: Assembler, writer: AvroType, column: ValueColumn) -> None:
        self._made, self._writer, self._column = made, writer, column

    def assemble(self) -> None:
        self._value(self._writer, self._column.avro, self._column)
        self._made.finish()

    def _value(self, writer: AvroType, reader: AvroType, column: ValueColumn) -> None:
        """Into a column."""
        if column.form is Form.JSON:
            self._json(writer, reader)
            self._made.emit(Code.TEXT, column.number)
        elif writer.kind == "union":
            self._made.union(writer, lambda branch: self._value(branch, reader, column))
        elif column.form is Form.MAYBE:
            branch = _branch(writer, reader)
            if branch is None:
                self._fail(_no_branch(writer, reader))
                return
            self._made.emit(Code.SET, column.number, int(branch.kind != "null"))
            if branch.kind != "null":
                self._value(writer, branch, column.children[0])
        elif why := mismatch(writer, reader):
            self._fail(why)
        elif column.form is Form.RECORD:
            self._columns(writer, reader, column)
        elif column.form in (Form.LIST, Form.MAP):
            assert writer.item is not None
            self._blocks(writer.item, column)
        elif column.form is not Form.NOTHING:
            self._leaf(writer, reader, column)

    def _fail(self, why: str) -> None:
        made = self._made
        made.emit(Code.FAIL)
        where = f"field {made.paths[-1]}: " if made.path else ""
        made.paths[-1] = where + shortened(why)

    def _columns(self, writer: AvroType, reader: AvroType, column: ValueColumn) -> None:
        matched = _matched(writer, reader)
        if self._lacks(writer, reader, matched):
            return
        places = {at: place for place, at in enumerate(matched) if at is not None}
        for at, (name, field) in enumerate(writer.fields):
            if at not in places:
                self._skip(field)
                continue
            self._made.path.append(name)
            self._value(field, reader.fields[places[at]][1], column.children[places[at]])
            self._made.path.pop()
        for place, there in enumerate(matched):
            if there is None:
                child = column.children[place]
                name, kind = reader.fields[place]
                self._default(reader, name, kind, partial(self._value, kind, kind, child))

    def _lacks(self, writer: AvroType, reader: AvroType, matched: list[int | None]) -> bool:
        """Fails at the first field that neither the writer nor a default has."""
        for (name, _), at in zip(reader.fields, matched, strict=True):
            if at is None and name not in reader.defaults:
                self._fail(f"{writer} lacks the field {name}, which has no default")
                return True
        return False

    def _default(self, reader: AvroType, name: str, kind: AvroType, show: Callable[[], None]) -> None:
        made = self._made
        made.path.append(name)
        try:
            data = encode_default(kind, reader.defaults[name])
        except BadSchema as error:
            self._fail(f"the default {error}")
        else:
            made.emit(Code.DEFAULT, *made.literal(data))
            show()
            made.emit(Code.RESUME)
        made.path.pop()

    def _blocks(self, item: AvroType, column: ValueColumn) -> None:
        made, child = self._made, column.children[0]

        def key() -> None:
            if column.form is Form.MAP:
                made.emit(Code.RAW, 1)
                made.emit(Code.TEXT, column.number + 1)

        made.blocks(column.form is Form.MAP, lambda: self._value(item, child.avro, child), key)
        made.emit(Code.CELL, column.number, 1)

    def _leaf(self, writer: AvroType, reader: AvroType, column: ValueColumn) -> None:
        made, kind = self._made, reader.kind
        if column.form is Form.CELL:
            self._load(writer, reader)
            per_day, factor = _DAYS.get((reader.logical or "").removeprefix("local-"), (0, 1))
            if per_day:
                made.emit(Code.BETWEEN, _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1)
            made.emit(Code.CELL, column.number, factor)
        elif column.form is Form.DECIMAL:
            limit = 10**reader.precision
            code = Code.DECIMAL128 if kind == "bytes" else Code.DECIMAL128_FIXED
            lower = limit & 0xFFFFFFFFFFFFFFFF
            table = [limit >> 64, lower - (lower >> 63 << 64), reader.size]
            made.table(made.emit(code, column.number) + 4, table)
        elif reader.logical not in (None, "uuid"):  # times, and decimals of many digits
            self._shown(writer, reader)
            made.emit(Code.TEXT, column.number, 1)
        else:
            if kind == "enum":
                self._enum(writer, reader, str.encode)
            elif kind == "fixed":
                made.emit(Code.RAW_FIXED, reader.size)
            else:
                made.emit(Code.RAW, int(kind == "string"))
            made.emit(Code.TEXT, column.number)

    def _load(self, writer: AvroType, reader: AvroType) -> None:
        """Loads a boolean or a number as the reader has it."""
        codes = {"int": Code.READ_INT, "long": Code.READ_LONG, "float": Code.READ_FLOAT, "double": Code.READ_DOUBLE}
        self._made.emit(codes.get(writer.kind, Code.READ_BOOLEAN))
        if writer.kind == reader.kind:
            return
        if writer.kind == "float":
            self._made.emit(Code.FLOAT_TO_DOUBLE)
        elif reader.kind in ("float", "double"):
            self._made.emit(Code.LONG_TO_FLOAT if reader.kind == "float" else Code.LONG_TO_DOUBLE)

    def _shown(self, writer: AvroType, reader: AvroType) -> None:
        """JSON texts, of types that match and contain no others."""
        if reader.kind == "enum":
            self._enum(writer, reader, quoted)
        elif reader.kind in ("float", "double"):
            self._load(writer, reader)
            self._made.leaf(reader, Code.LOADED)
        elif writer.kind == "int" and reader.kind == "long":
            # The data must be an int; a long with a logical type is a time or timestamp.
            if reader.logical:
                self._made.emit(Code.READ_INT)
                self._made.leaf(reader, Code.LOADED)
            else:
                self._made.emit(Code.INT)
        else:
            self._made.leaf(reader)

    def _enum(self, writer: AvroType, reader: AvroType, text: Callable[[str], bytes]) -> None:
        there = set(reader.symbols)
        chosen = [symbol if symbol in there else reader.default for symbol in writer.symbols]
        self._made.enum(None if symbol is None else text(symbol) for symbol in chosen)

    def _json(self, writer: AvroType, reader: AvroType) -> None:
        made = self._made
        if writer.kind == "union":
            made.union(writer, lambda branch: self._json(branch, reader))
            return
        if reader.kind == "union":
            branch = _branch(writer, reader)
            if branch is None:
                self._fail(_no_branch(writer, reader))
                return
            reader = branch
        if why := mismatch(writer, reader):
            self._fail(why)
        elif reader.kind == "record":
            made.call((id(writer), id(reader)), lambda: self._members(writer, reader))
        elif writer.item is not None and reader.item is not None:
            items = writer.item, reader.item
            made.blocks(reader.kind == "map", lambda: self._json(*items))
        else:
            self._shown(writer, reader)

    def _members(self, writer: AvroType, reader: AvroType) -> None:
        made, before = self._made, self._made.path
        made.path = [str(reader).rpartition(".")[2]]
        matched = _matched(writer, reader)
        if not self._lacks(writer, reader, matched):
            read = [at for at in matched if at is not None]
            in_order = read == sorted(read)
            if not in_order:
                for _, field in writer.fields:
                    made.emit(Code.NOTE)
                    self._skip(field)
                made.emit(Code.NOTE)
            made.pending += b"{"
            done, count = 0, len(writer.fields)
            for place, ((name, field), at) in enumerate(zip(reader.fields, matched, strict=True)):
                if at is not None and in_order:
                    self._skip_fields(writer, done, at)
                    done = at + 1
                made.pending += (b"," if place else b"") + quoted(name) + b":"
                if at is None:
                    self._default(reader, name, field, partial(self._json, field, field))
                    continue
                if not in_order:
                    made.emit(Code.SEEK, count - at)
                made.path.append(name)
                self._json(writer.fields[at][1], field)
                made.path.pop()
            made.pending += b"}"
            if in_order:
                self._skip_fields(writer, done, count)
            else:
                made.emit(Code.SEEK, 0)
                made.emit(Code.DROP, count + 1)
        made.path = before

    def _skip_fields(self, writer: AvroType, start: int, end: int) -> None:
        for _, field in writer.fields[start:end]:
            self._skip(field)

    def _skip(self, writer: AvroType) -> None:
        """Nothing is shown; what is pending comes before it."""
        made = self._made
        kind = writer.kind
        if kind == "union":
            made.union(writer, self._skip)
        elif kind == "record":
            made.call(id(writer), lambda: self._skip_fields(writer, 0, len(writer.fields)))
        elif writer.item is not None:
            item = writer.item
            made.blocks(kind == "map", lambda: self._skip(item), self._skip_key if kind == "map" else lambda: None)
        elif kind in ("string", "bytes"):
            made.emit(Code.SKIP_BYTES)
        elif kind in ("int", "long", "enum"):
            made.emit(Code.READ_LONG)
        elif size := _FIXED_SIZES.get(kind, writer.size):
            made.emit(Code.SKIP, size)

    def _skip_key(self) -> None:
        self._made.emit(Code.SKIP_BYTES)


def _no_branch(writer: AvroType, union: AvroType) -> str:
    branches = [why for branch in union.branches if (why := mismatch(writer, branch)) and branch.kind != "null"]
    return branches[0] if len(branches) == 1 else f"{writer} is none of the types of the union"
