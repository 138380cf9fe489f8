"""JSON values, in the form that decoded.jsonl shows, to Avro data."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkafs.decoding.does_not_fit import DoesNotFit
from storage.format.record_columns import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkafs.decoding.avro_schema import AvroType

_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_INTS: Final = {"int": 31, "long": 63}
_UNITS: Final = {"millis": 3, "micros": 6, "nanos": 9}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_DECIMAL: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?", re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY: Final = 86400
# A number of more digits is refused before it is converted, which takes quadratic time.
_MOST_DIGITS: Final = 10_000


def encode(root: AvroType, value: object) -> bytes:
    """The datum of this type. Raises DoesNotFit, which names the field."""
    writer = _Writer()
    try:
        if root.kind == "bytes" and root.logical is None:
            return writer.base64(value)  # at the top the clients write no length
        return writer.encode(root, value)
    except RecursionError:
        raise DoesNotFit("the value is nested too deeply") from None


class _Writer:
    """For one value. `path` names the field being written."""

    def __init__(self) -> None:
        self._path: list[str] = []
        # What arrays and objects were encoded to as a branch of a union, None: do not fit, by id() of type and value.
        # Without it unions within unions could be tried more often than anybody can wait for.
        self._tried: dict[tuple[int, int], bytes | None] = {}

    def encode(self, kind: AvroType, value: Any) -> bytes:
        if kind.logical is not None and kind.logical in _LOGICAL:
            return _LOGICAL[kind.logical](self, kind, value)
        return _KINDS[kind.kind](self, kind, value)

    def base64(self, value: object) -> bytes:
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                pass
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
        if isinstance(value, str) and value in _NOT_FINITE:
            value = _NOT_FINITE[value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return struct.pack("<f" if kind.kind == "float" else "<d", value)
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

    def _array(self, kind: AvroType, value: object) -> bytes:
        if not isinstance(value, list):
            raise self._unfit("an array", value)
        assert kind.item is not None
        parts = [self._within(str(i), kind.item, item) for i, item in enumerate(value)]
        return encode_varint(len(parts)) + b"".join(parts) + b"\0" if parts else b"\0"

    def _map(self, kind: AvroType, value: object) -> bytes:
        if not isinstance(value, dict):
            raise self._unfit("an object", value)
        assert kind.item is not None
        parts = [self._string(kind, name) + self._within(name, kind.item, item) for name, item in value.items()]
        return encode_varint(len(parts)) + b"".join(parts) + b"\0" if parts else b"\0"

    def _record(self, kind: AvroType, value: object) -> bytes:
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
            parts.append(self._within(name, child, value[name]))
        return b"".join(parts)

    def _within(self, name: str, kind: AvroType, value: object) -> bytes:
        self._path.append(name)
        data = self.encode(kind, value)
        self._path.pop()
        return data

    def _union(self, kind: AvroType, value: object) -> bytes:
        """The branch is not in the value: see kafkafs/CONTRACT.md, "Decoding in detail"."""
        branches = sorted(enumerate(kind.branches), key=lambda branch: _rank(branch[1], value))
        others = [(i, branch) for i, branch in branches if branch.kind != "null"]
        if value is not None and len(others) == 1:
            return encode_varint(others[0][0]) + self.encode(others[0][1], value)
        for i, branch in branches:
            data = self._try(branch, value)
            if data is not None:
                return encode_varint(i) + data
        raise self._unfit(f"one of {', '.join(map(str, kind.branches))}", value)

    def _try(self, kind: AvroType, value: object) -> bytes | None:
        key = id(kind), id(value)
        remembered = isinstance(value, (dict, list))
        if remembered and key in self._tried:
            return self._tried[key]
        depth = len(self._path)
        try:
            data = self.encode(kind, value)
        except DoesNotFit:
            del self._path[depth:]
            data = None
        if remembered:
            self._tried[key] = data
        return data

    def _decimal(self, kind: AvroType, value: object) -> bytes:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64 else value
        match = _DECIMAL.fullmatch(text) if isinstance(text, str) and len(text) <= _MOST_DIGITS else None
        decimals = (match[3] or "") if match else ""
        if match is None or len(decimals) > kind.scale:
            raise self._unfit(f"a decimal number in a string, with at most {kind.scale} decimals", value)
        digits = match[2] + decimals.ljust(kind.scale, "0")
        if len(digits.lstrip("0")) > kind.precision:
            raise self._unfit(f"a decimal number of at most {kind.precision} digits", value)
        unscaled = _integer(digits) * (-1 if match[1] else 1)
        if kind.kind == "fixed":
            return unscaled.to_bytes(kind.size, "big", signed=True)
        data = unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)
        return encode_varint(len(data)) + data

    def _date(self, kind: AvroType, value: object) -> bytes:
        days = _days(value) if isinstance(value, str) else value
        if not isinstance(days, int):
            raise self._unfit("a date like 2025-10-09", value)
        return self._int(kind, days)

    def _time(self, kind: AvroType, value: object) -> bytes:
        decimals = _UNITS[str(kind.logical).rpartition("-")[2]]
        units = _units(value, decimals) if isinstance(value, str) else value
        if not isinstance(units, int):
            raise self._unfit(f"a time like 23:59:59 with at most {decimals} decimals", value)
        return self._int(kind, units)

    def _timestamp(self, kind: AvroType, value: object) -> bytes:
        name, _, unit = str(kind.logical).rpartition("-")
        decimals, end = _UNITS[unit], "Z" if name == "timestamp" else ""
        units: object = value
        if isinstance(value, str):
            day, separator, time = value.partition("T")
            days, rest = _days(day), _units(time.removesuffix(end), decimals)
            fits = separator and days is not None and rest is not None and time.endswith(end)
            units = days * _DAY * 10**decimals + rest if fits and days is not None and rest is not None else None
        if not isinstance(units, int):
            raise self._unfit(f"a timestamp like 2025-10-09T23:59:59{end} with at most {decimals} decimals", value)
        return self._int(kind, units)


_KINDS: Final[dict[str, Callable[[_Writer, AvroType, Any], bytes]]] = {
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
        return 1 if kind.kind in ("bytes", "fixed") and kind.logical is None else 2 if kind.kind in _FLOATS else 0
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 if kind.kind in _INTS and kind.logical is None else 2 if kind.kind in _FLOATS else 1
    if isinstance(value, float):
        # A float is right only if nothing is lost.
        with np.errstate(over="ignore"):
            lossless = float(str(np.float32(value))) == value
        return 1 if kind.kind == "float" and not lossless else 0
    return 1 if kind.kind == "map" else 0


_FLOATS: Final = ("float", "double")


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


def _units(text: str, decimals: int) -> int | None:
    """Since midnight, in 10 ** -decimals seconds."""
    match = _TIME.fullmatch(text)
    if match is None or len(match[4] or "") > decimals:
        return None
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3])
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    fraction = int((match[4] or "").ljust(decimals, "0"))
    return int((hours * 3600 + minutes * 60 + seconds) * 10**decimals) + fraction
