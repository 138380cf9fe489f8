"""Random pairs of Avro schemas, one of which has evolved from the other, with data of the first; and what a value that
was read as the second (`tests/interop/AvroReferee.java`) is in columns."""

from __future__ import annotations

import base64
import json
import random
import struct
from copy import copy
from dataclasses import dataclass, field
from decimal import Context
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from storage.format.block import encode_varint
from tests.kafkafs.decoding.avro_samples import PRIMITIVES, shown_decimal, shown_time

NAMED = ("record", "enum", "fixed")
LOGICAL = {
    "int": ("date", "time-millis"),
    "long": (
        *("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"),
        *("local-timestamp-millis", "local-timestamp-micros"),
    ),
    "string": ("uuid",),
    "bytes": ("decimal",),
}
PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
SCALE = 2  # of all decimals: other scales do not resolve, which Java ignores
TEXTS = ("", "a", 'quo"ted\\', "tab\tnul\0", "naïve", "日本", "😀", "x" * 40, "6BA7B810-9DAD-11D1-80B4-00C04FD430C8")
CONTEXT = Context(prec=60)


@dataclass
class Field:
    name: str
    type: Type
    default: Any = None
    has_default: bool = False
    aliases: tuple[str, ...] = ()


@dataclass
class Type:
    """`kind` is a primitive, array, map, union, or one of NAMED."""

    kind: str
    name: str = ""
    logical: str | None = None
    precision: int = 0
    size: int = 0
    symbols: list[str] = field(default_factory=list)
    default: str | None = None
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    below: list[Type] = field(default_factory=list)  # branches of a union, or the item

    def schema(self, seen=None):
        """As JSON; a named type is defined where it is first."""
        seen = set() if seen is None else seen
        if self.kind == "union":
            return [one.schema(seen) for one in self.below]
        if self.kind in ("array", "map"):
            key = "items" if self.kind == "array" else "values"
            return {"type": self.kind, key: self.below[0].schema(seen)}
        if self.kind not in NAMED:
            return self.kind if self.logical is None else {"type": self.kind} | self._logical()
        if self.name in seen:
            return self.name
        seen.add(self.name)
        made = {"type": self.kind, "name": self.name, "aliases": list(self.aliases)}
        if self.kind == "enum":
            return made | {"symbols": self.symbols} | ({"default": self.default} if self.default else {})
        if self.kind == "fixed":
            return made | {"size": self.size}
        made["fields"] = [
            {"name": one.name, "type": one.type.schema(seen), "aliases": list(one.aliases)}
            | ({"default": one.default} if one.has_default else {})
            for one in self.fields
        ]
        return made

    def _logical(self):
        named = {"logicalType": self.logical}
        return named | {"precision": self.precision, "scale": SCALE} if self.logical == "decimal" else named


class Evolution:
    """A random writer, the reader that it became, and data."""

    def __init__(self, seed):
        self._dice = random.Random(seed)
        self._names = 0
        self._evolved = {}
        self.writer = self._record(0)
        self.reader = self._evolve(self.writer)

    @property
    def texts(self):
        """The schemas."""
        return json.dumps(self.writer.schema()), json.dumps(self.reader.schema())

    def data(self):
        """A datum of the writer."""
        return self._data(self.writer, 0)

    # Schemas.

    def _name(self, letter):
        self._names += 1
        return f"{letter}{self._names}"

    def _full_name(self, letter):
        return self._dice.choice(("m.", "a.b.")) + self._name(letter)

    def _leaf(self, kind):
        made = Type(kind)
        if kind in LOGICAL and self._dice.random() < 0.5:
            made.logical = self._dice.choice(LOGICAL[kind])
            made.precision = self._dice.choice((9, 30, 38, 50))
        return made

    def _type(self, depth, *, in_union=False):
        dice = self._dice
        kind = dice.randrange(10 if depth < 4 else 6)
        if kind < 4:
            return self._leaf(dice.choice(PRIMITIVES))
        if kind == 4:
            symbols = [self._name("S") for _ in range(dice.randrange(1, 4))]
            return Type("enum", self._full_name("E"), symbols=symbols)
        if kind == 5:
            return Type("fixed", self._full_name("F"), size=dice.choice((0, 1, 16)))
        if kind == 6:
            return Type(dice.choice(("array", "map")), below=[self._type(depth + 1)])
        if kind < 9 and not in_union:
            return self._union(depth)
        return self._record(depth + 1)

    def _union(self, depth):
        branches = {}
        for _ in range(self._dice.randrange(1, 5)):
            made = self._type(depth + 1, in_union=True)
            # Java takes a record for another one that it could be read as, whatever their names.
            branches.setdefault(made.kind, made)
        if self._dice.random() < 0.6:
            branches.setdefault("null", Type("null"))
        below = list(branches.values())
        self._dice.shuffle(below)
        return Type("union", below=below)

    def _record(self, depth):
        dice = self._dice
        made = Type("record", self._full_name("R"))
        count = dice.randrange(7) if depth else dice.randrange(1, 7)
        made.fields = [Field(self._name("f"), self._type(depth)) for _ in range(count)]
        if dice.random() < 0.1:  # within a union of several types, where columns can have it
            below = [Type("null"), Type("string"), made]
            made.fields.append(Field(self._name("f"), Type("union", below=below)))
        return made

    def _evolve(self, old):
        if id(old) in self._evolved:
            return self._evolved[id(old)]
        self._evolved[id(old)] = new = copy(old)
        dice = self._dice
        if old.kind == "record":
            self._evolve_record(old, new)
        elif old.kind == "union":
            new.below = [self._evolve(one) for one in old.below]
            if dice.random() < 0.3:
                dice.shuffle(new.below)
            if dice.random() < 0.2 and len(new.below) > 1:
                new.below.pop()
            if dice.random() < 0.2:
                there = {one.kind for one in new.below}
                new.below += [self._leaf(kind) for kind in dice.sample(PRIMITIVES, 2) if kind not in there]
            new.below = list({one.kind: one for one in new.below}.values())
            if dice.random() < 0.1:
                return self._replaced(old, new.below[0])
        elif old.below:
            new.below = [self._evolve(one) for one in old.below]
        elif old.kind == "enum":
            self._evolve_enum(new)
        elif old.kind == "fixed":
            new.size = new.size if dice.random() < 0.97 else 3
        elif dice.random() < 0.3:
            new = self._replaced(old, self._leaf(dice.choice(PROMOTED.get(old.kind, (old.kind,)))))
        elif dice.random() < 0.3:
            new = self._replaced(old, self._leaf(old.kind))
        elif dice.random() < 0.03:
            new = self._replaced(old, self._leaf(dice.choice(PRIMITIVES)))
        if new.kind in NAMED and new.kind != "record" and dice.random() < 0.1:
            new.aliases, new.name = (new.name,), self._full_name("N")
        return new

    def _replaced(self, old, new):
        self._evolved[id(old)] = new
        return new

    def _evolve_record(self, old, new):
        dice = self._dice
        new.fields = []
        if dice.random() < 0.1:
            new.aliases, new.name = (old.name,), self._full_name("N")
        for one in old.fields:
            if dice.random() < 0.15:
                continue
            kind = self._evolve(one.type)
            if kind.kind != "union" and dice.random() < 0.15:
                others = [self._leaf(other) for other in dice.sample(PRIMITIVES, dice.randrange(1, 3))]
                below = [kind, *(other for other in others if other.kind != kind.kind)]
                dice.shuffle(below)
                kind = Type("union", below=below)
            became = Field(one.name, kind)
            if dice.random() < 0.1:
                became.aliases, became.name = (one.name,), self._name("g")
            new.fields.append(became)
        for _ in range(dice.randrange(3)):
            kind = self._type(3)
            added = Field(self._name("d"), kind, has_default=dice.random() < 0.97)
            added.default = self._default(kind) if added.has_default else None
            new.fields.append(added)
        if dice.random() < 0.4:
            dice.shuffle(new.fields)

    def _evolve_enum(self, new):
        dice = self._dice
        new.symbols = [symbol for symbol in new.symbols if dice.random() < 0.85]
        if dice.random() < 0.3 or not new.symbols:
            new.symbols.append(self._name("S"))
        dice.shuffle(new.symbols)
        new.default = dice.choice(new.symbols) if dice.random() < 0.6 else None

    # Values.

    def _number(self, bits):
        dice = self._dice
        most = (1 << bits) - 1
        return dice.choice((0, 1, -1, most, ~most, dice.randint(~most, most), dice.randrange(-1000, 1000),
                            dice.randrange(86_400_000), 1_700_000_000_000 & most))  # fmt: skip

    def _bytes(self, kind):
        dice = self._dice
        if dice.random() < 0.5:
            return dice.choice(TEXTS).encode()
        return dice.choice((b"", b"\x04\xd2", b"\xff\x85", dice.randbytes(3), dice.randbytes(15)))

    def _default(self, kind):
        dice = self._dice
        if kind.kind == "union":
            return self._default(kind.below[0])
        if kind.kind == "record":
            return {one.name: self._default(one.type) for one in kind.fields}
        if kind.below:
            item = self._default(kind.below[0])
            return [item] * dice.randrange(3) if kind.kind == "array" else dice.choice(({}, {"k": item}))
        match kind.kind:
            case "null":
                return None
            case "boolean":
                return dice.random() < 0.5
            case "int" | "long":
                return self._number(31 if kind.kind == "int" else 63)
            case "float" | "double":
                return dice.choice((0, 1.5, -2, 0.1, 1e30))
            case "string":
                return dice.choice(TEXTS)
            case "enum":
                return dice.choice(kind.symbols)
        return (dice.randbytes(kind.size) if kind.kind == "fixed" else self._bytes(kind)).decode("latin-1")

    def _data(self, kind, depth):
        dice = self._dice
        if kind.kind == "union":
            flat = [at for at, one in enumerate(kind.below) if not one.below and not one.fields]
            at = dice.choice(flat if flat and depth > 8 else range(len(kind.below)))
            return encode_varint(at) + self._data(kind.below[at], depth + 1)
        if kind.kind == "record":
            return b"".join(self._data(one.type, depth + 1) for one in kind.fields)
        if kind.kind == "array":
            items = [self._data(kind.below[0], depth + 1) for _ in range(dice.randrange(4))]
            return self._blocks(items)
        if kind.kind == "map":  # of one entry: Java's have no order
            items = [encode_varint(1) + b"k" + self._data(kind.below[0], depth + 1) for _ in range(dice.randrange(2))]
            return self._blocks(items)
        match kind.kind:
            case "null":
                return b""
            case "boolean":
                return dice.choice((b"\0", b"\1"))
            case "int" | "long":
                return encode_varint(self._number(31 if kind.kind == "int" else 63))
            case "float":
                return dice.choice((struct.pack("<f", dice.choice((0.0, -0.0, 1.5, 0.1, float("nan"), float("inf")))),
                                    dice.randbytes(4)))  # fmt: skip
            case "double":
                return dice.choice((struct.pack("<d", dice.choice((0.0, -0.0, 1.5, 0.1, float("nan"), 1e308))),
                                    dice.randbytes(8)))  # fmt: skip
            case "enum":
                return encode_varint(dice.randrange(len(kind.symbols)))
            case "fixed":
                return dice.randbytes(kind.size)
        data = dice.choice(TEXTS).encode() if kind.kind == "string" else self._bytes(kind)
        return encode_varint(len(data)) + data

    def _blocks(self, items):
        out = b""
        while items:
            count = self._dice.randrange(1, len(items) + 1)
            data = b"".join(items[:count])
            out += encode_varint(count) + data if self._dice.random() < 0.5 else (
                encode_varint(-count) + encode_varint(len(data)) + data
            )  # fmt: skip
            items = items[count:]
        return out + b"\0"


class CannotExpress(Exception):
    """A column has no such value."""


def in_columns(kind, value):
    """What the referee read, as `plain` shows a column."""
    if kind.kind == "string":
        return as_json(kind, value)
    if kind.kind == "record" and kind.fields:
        return {name: in_columns(one.type, found) for one, (name, found) in zip(kind.fields, value, strict=True)}
    if kind.kind == "array":
        return [in_columns(kind.below[0], one) for one in value]
    if kind.kind == "map":
        return [(name, in_columns(kind.below[0], one)) for name, one in value]
    if kind.kind == "union":
        branch = kind.below[value["branch"]]
        if branch.kind == "null":
            return None
        if sum(one.kind != "null" for one in kind.below) == 1:
            return in_columns(branch, value["value"])
        return ("json", as_json(branch, value["value"]))
    if kind.kind == "record":
        return ("json", {})
    if kind.kind in ("float", "double"):
        return int(value) if not np.isnan(_float(kind, value)) else "NaN"
    if kind.logical == "decimal":
        unscaled = int.from_bytes(base64.b64decode(value), "big", signed=True)
        if kind.precision <= 38:
            if abs(unscaled) >= 10**kind.precision:
                raise CannotExpress
            return unscaled
        return as_json(kind, value)
    if kind.kind in ("bytes", "fixed"):
        return base64.b64decode(value)
    if kind.kind in ("int", "long"):
        if (kind.logical or "").startswith("time-"):
            return str(as_json(kind, value))
        logical = (kind.logical or "").removeprefix("local-")
        if logical in ("date", "timestamp-millis", "timestamp-micros"):
            if not isinstance(as_json(kind, value), str):  # beyond the years 1 to 9999
                raise CannotExpress
            return int(value) * (1000 if logical == "timestamp-millis" else 1)
        return int(value)
    return value


def as_json(kind, value):
    """The same as decoded.jsonl has it."""
    if kind.kind == "union":
        return as_json(kind.below[value["branch"]], value["value"])
    if kind.kind == "record":
        return {name: as_json(one.type, found) for one, (name, found) in zip(kind.fields, value, strict=True)}
    if kind.kind == "array":
        return [as_json(kind.below[0], one) for one in value]
    if kind.kind == "map":
        return {name: as_json(kind.below[0], one) for name, one in value}
    if kind.kind in ("float", "double"):
        number = _float(kind, value)
        if np.isfinite(number):
            return float(str(number))
        return "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if kind.logical == "decimal":
        return shown_decimal(int.from_bytes(base64.b64decode(value), "big", signed=True), SCALE)
    if kind.kind == "string" and "\ufffd" in value:
        raise CannotExpress  # bytes that are not UTF-8, which Java replaces
    if kind.kind in ("int", "long"):
        return shown_time(int(value), kind.logical)
    return value


def _float(kind, bits):
    return np.uint32(int(bits)).view(np.float32) if kind.kind == "float" else np.uint64(int(bits)).view(np.float64)


def plain(kind, values):
    """A column as Python's values: floats as their bits, times as numbers, decimals unscaled, JSON parsed."""
    there = values.is_valid().to_pylist()
    if kind.kind == "union":
        others = [one for one in kind.below if one.kind != "null"]
        if len(others) == 1:
            return [one if ok else None for one, ok in zip(plain(others[0], values), there, strict=True)]
    if kind.kind == "union" or (kind.kind == "record" and not kind.fields):
        return [None if text is None else ("json", json.loads(text)) for text in values.to_pylist()]
    if kind.kind == "record":
        columns = [plain(one.type, values.field(at)) for at, one in enumerate(kind.fields)]
        names = [one.name for one in kind.fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if kind.kind in ("array", "map"):
        offsets = values.offsets.to_pylist()
        items = plain(kind.below[0], values.values if kind.kind == "array" else values.items)
        if kind.kind == "map":
            items = list(zip(values.keys.to_pylist(), items, strict=True))
        return [items[start:end] for start, end in pairwise(offsets)]
    if kind.kind in ("float", "double"):
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        bits = numbers.view(np.uint32 if kind.kind == "float" else np.uint64).tolist()
        return ["NaN" if np.isnan(one) else bit for one, bit in zip(numbers, bits, strict=True)]
    if pa.types.is_decimal(values.type):
        return [None if one is None else int(one.scaleb(SCALE, CONTEXT)) for one in values.to_pylist()]
    if pa.types.is_timestamp(values.type):
        return list(values.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(values.type):
        return list(values.cast(pa.int32()).to_pylist())
    return list(values.to_pylist())
