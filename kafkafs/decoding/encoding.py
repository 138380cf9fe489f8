"""JSON values to bytes in the wire format, by any kind of schema."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from kafkafs.decoding import avro_schema, protobuf
from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.framing import DoesNotFit
from kafkafs.schemas.registry import AVRO, JSON, PROTOBUF
from storage.format.block import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    from kafkafs.schemas.registry import Schema, SchemaLookup

    Steps = Generator[tuple[AvroType, Any], bytes | None, bytes]


# JSON values, in the form that decoded.jsonl shows, to Avro data.

_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_INTS: Final = {"int": 31, "long": 63}
_UNITS: Final = {"millis": 3, "micros": 6, "nanos": 9}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_DECIMAL: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?", re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
# Others are shown as numbers.
_SHOWN_DAYS: Final = range(date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH + 1)
_DAY: Final = 86400
# A number of more digits is refused before it is converted, which takes quadratic time.
_MOST_DIGITS: Final = 10_000


def encode(root: AvroType, value: object) -> bytes:
    """The datum of this type. Raises DoesNotFit, which names the field."""
    writer = _Writer()
    if root.kind == "bytes" and root.logical is None:
        return writer.base64(value)  # at the top the clients write no length
    return writer.encode(root, value)


class _Writer:
    """For one value."""

    def __init__(self) -> None:
        self._path: list[str] = []  # names the field being written
        self._exact = False  # only what decoded.jsonl would show as the same JSON value fits
        # What arrays and objects were encoded to as a branch of a union, None: do not fit; by id() of type and value,
        # and `_exact`. Without it unions within unions could be tried more often than anybody can wait for.
        self._tried: dict[tuple[int, int, bool], bytes | None] = {}

    def encode(self, root: AvroType, value: object) -> bytes:
        """What is within each other waits in a list: no value exhausts the thread's stack."""
        waiting: list[Steps] = []
        found = self._begin(waiting, root, value)
        while waiting:
            try:
                within = waiting[-1].throw(found) if isinstance(found, DoesNotFit) else waiting[-1].send(found)
            except StopIteration as done:
                waiting.pop()
                found = done.value
            except DoesNotFit as failure:
                waiting.pop()
                found = failure
            else:
                found = self._begin(waiting, *within)
        if isinstance(found, DoesNotFit):
            raise found
        assert found is not None
        return found

    def _begin(self, waiting: list[Steps], kind: AvroType, value: object) -> bytes | DoesNotFit | None:
        """The data of a simple type, or why the value does not fit; others begin to wait."""
        if kind.kind in _NESTED:
            waiting.append(_NESTED[kind.kind](self, kind, value))
            return None
        try:
            return self._simple(kind, value)
        except DoesNotFit as failure:
            return failure

    def _simple(self, kind: AvroType, value: object) -> bytes:
        return (_LOGICAL.get(kind.logical or "") or _SIMPLE[kind.kind])(self, kind, value)

    def base64(self, value: object) -> bytes:
        if isinstance(value, str):
            try:
                data = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                pass
            else:
                if not self._exact or base64.b64encode(data).decode() == value:
                    return data
        raise self._unfit("bytes in base64", value)

    def _unfit(self, expected: str, found: object) -> DoesNotFit:
        return DoesNotFit.at(self._path, expected, found)

    def _null(self, kind: AvroType, value: object) -> bytes:
        if value is not None:
            raise self._unfit("null", value)
        return b""

    def _boolean(self, kind: AvroType, value: object) -> bytes:
        if not isinstance(value, bool):
            raise self._unfit("true or false", value)
        return b"\1" if value else b"\0"

    def _int(self, kind: AvroType, value: object) -> bytes:
        bits = _INTS[kind.kind]
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits) <= value < 1 << bits:
            raise self._unfit(f"an integer of {bits + 1} bits", value)
        return encode_varint(value)

    def _float(self, kind: AvroType, value: object) -> bytes:
        number = _NOT_FINITE.get(value) if isinstance(value, str) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            try:
                data = struct.pack("<f" if kind.kind == "float" else "<d", number)
                if value is not number or (math.isfinite(number) and (not self._exact or _is_shown(kind, number))):
                    return data
            except (OverflowError, struct.error):
                pass
        raise self._unfit(f"a number that a {kind.kind} can hold", value)

    def _string(self, kind: AvroType, value: object) -> bytes:
        if not isinstance(value, str):
            raise self._unfit("a string", value)
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise self._unfit("a string of Unicode text", value) from None
        return encode_varint(len(data)) + data

    def _bytes(self, kind: AvroType, value: object) -> bytes:
        data = self.base64(value)
        return encode_varint(len(data)) + data

    def _fixed(self, kind: AvroType, value: object) -> bytes:
        data = self.base64(value)
        if len(data) != kind.size:
            raise self._unfit(f"{kind.size} bytes in base64", value)
        return data

    def _enum(self, kind: AvroType, value: object) -> bytes:
        if not isinstance(value, str) or value not in kind.symbols:
            raise self._unfit(f"a symbol of the enum {kind}", value)
        return encode_varint(kind.symbols.index(value))

    def _array(self, kind: AvroType, value: object) -> Steps:
        if not isinstance(value, list):
            raise self._unfit("an array", value)
        assert kind.item is not None
        parts = [encode_varint(len(value))]
        for i, item in enumerate(value):
            parts.append((yield from self._within(str(i), kind.item, item)))
        return b"".join(parts) + b"\0" if value else b"\0"

    def _map(self, kind: AvroType, value: object) -> Steps:
        if not isinstance(value, dict):
            raise self._unfit("an object", value)
        assert kind.item is not None
        parts = [encode_varint(len(value))]
        for name, item in value.items():
            parts.append(self._string(kind, name))
            parts.append((yield from self._within(name, kind.item, item)))
        return b"".join(parts) + b"\0" if value else b"\0"

    def _record(self, kind: AvroType, value: object) -> Steps:
        if not isinstance(value, dict):
            raise self._unfit(f"an object for the record {kind}", value)
        names = {name for name, _ in kind.fields}
        for name in value:
            if name not in names:
                raise DoesNotFit.named([*self._path, name], f"the record {kind} has no such field")
        parts = []
        for name, child in kind.fields:
            if name not in value:
                raise DoesNotFit.named([*self._path, name], f"the record {kind} has this field, the value has not")
            parts.append((yield from self._within(name, child, value[name])))
        return b"".join(parts)

    def _within(self, name: str, kind: AvroType, value: object) -> Steps:
        self._path.append(name)
        data = self._simple(kind, value) if kind.kind in _SIMPLE else (yield kind, value)
        self._path.pop()
        assert data is not None
        return data

    def _union(self, kind: AvroType, value: object) -> Steps:
        """The branch is not in the value: see kafkafs/CONTRACT.md, "Decoding in detail"."""
        branches = sorted(enumerate(kind.branches), key=lambda branch: _rank(branch[1], value))
        others = [(i, branch) for i, branch in branches if branch.kind != "null"]
        if value is not None and len(others) == 1:
            data = yield others[0][1], value
            assert data is not None
            return encode_varint(others[0][0]) + data
        for exact in (True,) if self._exact else (True, False):
            for i, branch in branches:
                data = yield from self._try(branch, value, exact)
                if data is not None:
                    return encode_varint(i) + data
        raise self._unfit(f"one of {', '.join(map(str, kind.branches))}", value)

    def _try(
        self, kind: AvroType, value: object, exact: bool
    ) -> Generator[tuple[AvroType, Any], bytes | None, bytes | None]:
        key = id(kind), id(value), exact
        remembered = isinstance(value, (dict, list))
        if remembered and key in self._tried:
            return self._tried[key]
        depth, was_exact, self._exact = len(self._path), self._exact, exact
        try:
            data = self._simple(kind, value) if kind.kind in _SIMPLE else (yield kind, value)
        except DoesNotFit:
            del self._path[depth:]
            data = None
        self._exact = was_exact
        if remembered:
            self._tried[key] = data
        return data

    def _decimal(self, kind: AvroType, value: object) -> bytes:
        is_number = isinstance(value, int) and not isinstance(value, bool) and not self._exact and abs(value) < 1 << 64
        text = str(value) if is_number else value
        match = _DECIMAL.fullmatch(text) if isinstance(text, str) and len(text) <= _MOST_DIGITS else None
        decimals = (match[3] or "") if match else ""
        if match is None or len(decimals) > kind.scale:
            raise self._unfit(f"a decimal number in a string, with at most {kind.scale} decimals", value)
        digits = match[2] + decimals.ljust(kind.scale, "0")
        if len(digits.lstrip("0")) > kind.precision:
            raise self._unfit(f"a decimal number of at most {kind.precision} digits", value)
        unscaled = _integer(digits) * (-1 if match[1] else 1)
        extra_zero = match[2].startswith("0") and match[2] != "0"
        if self._exact and (len(decimals) < kind.scale or extra_zero or (match[1] and not unscaled)):
            raise self._unfit(f"a decimal number as it is shown, with {kind.scale} decimals", value)
        if kind.kind == "fixed":
            return unscaled.to_bytes(kind.size, "big", signed=True)
        data = unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)
        return encode_varint(len(data)) + data

    def _date(self, kind: AvroType, value: object) -> bytes:
        days = _days(value) if isinstance(value, str) else value
        if not isinstance(days, int) or (self._exact and days is value and days in _SHOWN_DAYS):
            raise self._unfit("a date like 2025-10-09", value)
        return self._int(kind, days)

    def _time(self, kind: AvroType, value: object) -> bytes:
        decimals = _UNITS[str(kind.logical).rpartition("-")[2]]
        units = _units(value, decimals, self._exact) if isinstance(value, str) else value
        if not isinstance(units, int) or (self._exact and units is value and 0 <= units < _DAY * 10**decimals):
            raise self._unfit(f"a time like 23:59:59 with at most {decimals} decimals", value)
        return self._int(kind, units)

    def _timestamp(self, kind: AvroType, value: object) -> bytes:
        name, _, unit = str(kind.logical).rpartition("-")
        decimals, end = _UNITS[unit], "Z" if name == "timestamp" else ""
        units: object = value
        if isinstance(value, str):
            day, separator, time = value.partition("T")
            days, rest = _days(day), _units(time.removesuffix(end), decimals, self._exact)
            fits = separator and days is not None and rest is not None and time.endswith(end)
            units = days * _DAY * 10**decimals + rest if fits and days is not None and rest is not None else None
        is_shown_as_text = isinstance(units, int) and units // (_DAY * 10**decimals) in _SHOWN_DAYS
        if not isinstance(units, int) or (self._exact and units is value and is_shown_as_text):
            raise self._unfit(f"a timestamp like 2025-10-09T23:59:59{end} with at most {decimals} decimals", value)
        return self._int(kind, units)


_SIMPLE: Final[dict[str, Callable[[_Writer, AvroType, Any], bytes]]] = {
    "null": _Writer._null,
    "boolean": _Writer._boolean,
    "int": _Writer._int,
    "long": _Writer._int,
    "float": _Writer._float,
    "double": _Writer._float,
    "string": _Writer._string,
    "bytes": _Writer._bytes,
    "fixed": _Writer._fixed,
    "enum": _Writer._enum,
}
_NESTED: Final[dict[str, Callable[[_Writer, AvroType, Any], Steps]]] = {
    "array": _Writer._array,
    "map": _Writer._map,
    "record": _Writer._record,
    "union": _Writer._union,
}
_LOGICAL: Final[dict[str, Callable[[_Writer, AvroType, Any], bytes]]] = {
    "decimal": _Writer._decimal,
    "date": _Writer._date,
    **{f"time-{unit}": _Writer._time for unit in _UNITS},
    **{f"{name}-{unit}": _Writer._timestamp for unit in _UNITS for name in ("timestamp", "local-timestamp")},
}


def _rank(kind: AvroType, value: object) -> int:
    """The place of a branch in the order of trying: branches of one rank are tried as the schema has them."""
    if isinstance(value, str):
        # Many a text is base64 too.
        return 1 if kind.kind in _FLOATS else 2 if kind.kind in ("bytes", "fixed") and kind.logical is None else 0
    if isinstance(value, int) and not isinstance(value, bool):
        if kind.kind in _INTS:
            return 0 if kind.logical is None else 1
        return 3 if kind.logical == "decimal" else 2
    return 1 if kind.kind == "map" else 0


_FLOATS: Final = ("float", "double")


def _is_shown(kind: AvroType, number: float) -> bool:
    """Whether decoded.jsonl shows this number of what it is written to: with a point, and no digit lost."""
    return isinstance(number, float) and (kind.kind == "double" or float(str(np.float32(number))) == number)


def _integer(digits: str) -> int:
    """int() of any length: Python's own limit is 4,300 digits."""
    whole = 0
    for start in range(0, len(digits), 4000):
        part = digits[start : start + 4000]
        whole = whole * 10 ** len(part) + int(part)
    return whole


def _days(text: str) -> int | None:
    """Since 1970-01-01."""
    if _DATE.fullmatch(text) is None:
        return None
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def _units(text: str, decimals: int, exact: bool) -> int | None:
    """Since midnight, in 10 ** -decimals seconds. `exact`: only with all decimals."""
    match = _TIME.fullmatch(text)
    if match is None or len(match[4] or "") > decimals or (exact and len(match[4] or "") < decimals):
        return None
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3])
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    fraction = int((match[4] or "").ljust(decimals, "0"))
    return int((hours * 3600 + minutes * 60 + seconds) * 10**decimals) + fraction


def encode_json(
    schema: Schema, schemas: SchemaLookup, value: object, written: Callable[[], str] | None = None
) -> bytes:
    """The bytes of `value`, which has the form that decoded.jsonl shows: a zero byte, the schema's id, the data.

    Avro: a union's branch is the first that the value fits (kafkafs/CONTRACT.md, "Decoding in detail"). Protobuf: the
    message type is the first of the schema that has all the fields. JSON: the text that `written` gives, which is valid
    JSON, without it a new one; it is not compared with the schema.
    Raises DoesNotFit, which names the field, and BadSchema if the schema cannot be used. Threads can call it.
    """
    header = b"\0" + schema.schema_id.to_bytes(4, "big")
    if schema.schema_type == AVRO:
        return header + encode(_avro_type(schema, cast("Hashable", schemas)), value)
    if schema.schema_type == PROTOBUF:
        return header + protobuf.decoder(schema, schemas).encode(value)
    if schema.schema_type == JSON and written is not None:
        return header + written().encode()
    if schema.schema_type == JSON:
        try:
            return header + json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise DoesNotFit(f"the value is not JSON: {error}") from None
    raise BadSchema(f"schema {schema.schema_id} is of the unknown type {schema.schema_type}")


@lru_cache(maxsize=64)
def _avro_type(schema: Schema, schemas: Any) -> AvroType:
    """Parsed once for each SchemaLookup: an id never changes its schema, nor a reference what it names."""
    try:
        return avro_schema.parse(schema, schemas)
    except RecursionError:
        raise BadSchema("its types are nested too deeply") from None
