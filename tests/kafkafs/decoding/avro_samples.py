"""Random Avro schemas with data that fastavro writes, and how the data read according to the conventions."""

import base64
import io
import json
import random
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import fastavro
import numpy as np

from tests.support.schema_logs import framed

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "timestamp-nanos"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
    ("string", "uuid"),
    ("int", "no-such-type"),
    ("string", "date"),  # not valid there: ignored
)
TEXTS = (
    *("", "a", "seven77", "eight888", "nine 9999", '"quo\\ted"', "tab\tnul\0", "naïve café", "日本語", "😀" * 9),
    *("x" * 100, "x" * 31 + '"' + "y" * 40, "\x7f\u2028"),
)
UNITS = {"millis": 3, "micros": 6, "nanos": 9}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Samples:
    """A random schema, `text`, and data of it."""

    def __init__(self, seed):
        self._dice = random.Random(seed)
        self._named = {}
        self.schema = self._schema(0)
        self.text = json.dumps(self.schema)
        self._parsed = fastavro.parse_schema(_without_logical(self.schema))

    def sample(self):
        """(data, JSON value)."""
        datum, shown = self._value(self.schema, 0)
        data = avro_data(self._parsed, datum)
        if self.schema == "bytes":
            data = datum  # the clients write it without a length
        return data, shown

    def _schema(self, depth):
        dice = self._dice
        kind = dice.randrange(12 if depth < 4 else 5)
        if kind == 0:
            return dice.choice(PRIMITIVES)
        if kind == 1:
            base, logical = dice.choice(LOGICAL)
            return {"type": base, "logicalType": logical}
        if kind == 2:
            precision = dice.choice((1, 9, 60))
            scale = dice.choice((0, 1, precision))
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        if kind == 3:
            return self._new_name()
        if kind == 4:
            return ["null", dice.choice(list(self._named))] if self._named else "long"
        if kind in (5, 6):
            return {"type": "array", "items": self._schema(depth + 1)}
        if kind == 7:
            return {"type": "map", "values": self._schema(depth + 1)}
        if kind in (8, 9):
            branches = dice.sample(PRIMITIVES, dice.randrange(1, 5))
            return branches + [self._new_name() for _ in range(dice.randrange(2))]
        name = f"R{len(self._named)}"
        made = {"type": "record", "name": name, "fields": []}
        self._named[name] = made
        for i in range(dice.randrange(6)):
            made["fields"].append({"name": f"f{i}", "type": self._schema(depth + 1)})
        return made

    def _new_name(self):
        dice, name = self._dice, f"N{len(self._named)}"
        if dice.random() < 0.4:
            made = {"type": "enum", "name": name, "symbols": ["A", "Bb", "C_3"][: dice.randrange(1, 4)]}
        else:
            made = {"type": "fixed", "name": name, "size": dice.choice((0, 1, 3, 12, 40))}
            if dice.random() < 0.5:
                made |= {"logicalType": "decimal", "precision": 2, "scale": dice.randrange(3)}
        self._named[name] = made
        return made

    def _value(self, schema, depth):
        """(what fastavro writes, what is shown)."""
        dice = self._dice
        if isinstance(schema, list):
            # A type that contains itself must end.
            branch = schema[0] if depth > 12 and "null" in schema[:1] else dice.choice(schema)
            datum, shown = self._value(branch, depth + 1)
            return (None if datum is None else (_name(branch), datum)), shown
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            pairs = {field["name"]: self._value(field["type"], depth + 1) for field in schema["fields"]}
            return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}
        if kind in ("array", "map"):
            count = 0 if depth > 12 else dice.choice((0, 1, 2, 5))
            items = [self._value(schema["items" if kind == "array" else "values"], depth + 1) for _ in range(count)]
            if kind == "array":
                return [pair[0] for pair in items], [pair[1] for pair in items]
            names = dice.sample(TEXTS, count)
            return (
                {name: pair[0] for name, pair in zip(names, items, strict=True)},
                {name: pair[1] for name, pair in zip(names, items, strict=True)},
            )
        return self._leaf(kind, schema if isinstance(schema, dict) else {})

    def _leaf(self, kind, schema):
        dice = self._dice
        logical = schema.get("logicalType")
        if kind == "null":
            return None, None
        if kind == "boolean":
            value = dice.random() < 0.5
            return value, value
        if kind in ("int", "long"):
            bits = 31 if kind == "int" else 63
            value = dice.choice((0, -1, 1, 2**bits - 1, -(2**bits), dice.randrange(-(2**bits), 2**bits)))
            if dice.random() < 0.5:
                value = dice.randrange(-(2 ** dice.randrange(1, bits)), 2 ** dice.randrange(1, bits))
            return value, shown_time(value, logical)
        if kind == "float":
            value = struct.unpack("<f", dice.randbytes(4))[0]
            return value, _finite(value, float(str(np.float32(value))))
        if kind == "double":
            value = dice.choice((struct.unpack("<d", dice.randbytes(8))[0], dice.randrange(10**9) / 100, 0.0, -1e300))
            return value, _finite(value, value)
        if kind == "string":
            value = dice.choice(TEXTS)
            return value, value
        if kind == "enum":
            value = dice.choice(schema["symbols"])
            return value, value
        value = dice.randbytes(schema["size"] if kind == "fixed" else dice.choice((0, 1, 2, 8, 9, 50)))
        precision = schema.get("precision", 0)
        if logical == "decimal" and (kind == "bytes" or 10**precision - 1 <= 2 ** max(8 * len(value) - 1, 0) - 1):
            unscaled = int.from_bytes(value, "big", signed=True)
            return value, shown_decimal(unscaled, schema.get("scale", 0))
        return value, base64.b64encode(value).decode()


def avro_data(schema, datum):
    """A datum as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    return out.getvalue()


def encoded(schema_id, schema, value):
    """A value in the wire format of registries."""
    return framed(schema_id, avro_data(fastavro.parse_schema(schema), value))


def shown_decimal(unscaled, scale):
    digits = Decimal(unscaled).as_tuple()
    return f"{Decimal((digits.sign, digits.digits, -scale)):f}"


def shown_time(value, logical):
    """An int or long as it is shown, by the calendar of Python's datetime."""
    name, _, unit = (logical or "").rpartition("-")
    if logical == "date":
        try:
            return (EPOCH + timedelta(days=value)).strftime("%Y-%m-%d").rjust(10, "0")
        except OverflowError:
            return value
    if unit not in UNITS:
        return value
    second = 10 ** UNITS[unit]
    if name == "time":
        if not 0 <= value < 86400 * second:
            return value
        moment = EPOCH + timedelta(seconds=value // second)
        return f"{moment:%H:%M:%S}.{value % second:0{UNITS[unit]}d}"
    try:
        moment = EPOCH + timedelta(seconds=value // second)
    except OverflowError:
        return value
    shown = f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0")
    return f"{shown}.{value % second:0{UNITS[unit]}d}{'Z' if name == 'timestamp' else ''}"


def _finite(value, shown):
    if value != value:
        return "NaN"
    return ("Infinity" if value > 0 else "-Infinity") if value in (float("inf"), float("-inf")) else shown


def _name(schema):
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def _without_logical(schema):
    if isinstance(schema, list):
        return [_without_logical(branch) for branch in schema]
    if isinstance(schema, dict):
        return {key: _without_logical(value) for key, value in schema.items() if key not in ("logicalType", "scale")}
    return schema
