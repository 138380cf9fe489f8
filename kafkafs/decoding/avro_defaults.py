"""Encoding the default of a field, which the schema states in JSON, as Avro data."""

from __future__ import annotations

import struct
from typing import Any, Final

from kafkafs.decoding.avro_schema import MAX_NESTING, AvroType, BadSchema
from storage.format.block import encode_varint

_MOST_BYTES: Final = 1 << 20
_FLOATS: Final = {"float": "<f", "double": "<d"}
_BITS: Final = {"int": 31, "long": 63}
# Texts that libraries write for numbers that JSON lacks. Avro's specification does not mention them.
_NOT_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "INF": "inf", "-INF": "-inf"}


def encode_default(kind: AvroType, value: Any) -> bytes:
    """Encode a default as a value of this type; for a union, of the first branch that fits. BadSchema if none fits."""
    out = bytearray()
    _Defaults(out).put(kind, value, 0)
    return bytes(out)


class _Defaults:
    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._put = 0

    def put(self, kind: AvroType, value: Any, depth: int) -> None:
        self._put += 1
        if depth > MAX_NESTING or self._put + len(self._out) > _MOST_BYTES:
            raise BadSchema("is too large")
        out, name = self._out, kind.kind
        if name == "null" and value is None:
            return
        if name == "boolean" and isinstance(value, bool):
            out.append(value)
        elif name in _BITS and type(value) is int and -(1 << _BITS[name]) <= value < 1 << _BITS[name]:
            out += encode_varint(value)
        elif name in _FLOATS:
            out += _float(kind, value)
        elif name == "string" and isinstance(value, str):
            self._bytes(value.encode(errors="replace"))
        elif name in ("bytes", "fixed") and isinstance(value, str) and all(ord(letter) < 256 for letter in value):
            if name == "bytes":
                self._bytes(value.encode("latin-1"))
            elif len(value) == kind.size:
                out += value.encode("latin-1")
            else:
                raise BadSchema(f"has {len(value)} bytes, not {kind.size}")
        elif name == "enum" and value in kind.symbols:
            out += encode_varint(kind.symbols.index(value))
        elif name == "union":
            self._union(kind, value, depth)
        elif name == "array" and isinstance(value, list):
            self._items(kind, [(None, item) for item in value], depth)
        elif name == "map" and isinstance(value, dict):
            self._items(kind, list(value.items()), depth)
        elif name == "record" and isinstance(value, dict):
            for field, below in kind.fields:
                if field not in value and field not in kind.defaults:
                    raise BadSchema(f"lacks the field {field}")
                self.put(below, value[field] if field in value else kind.defaults[field], depth + 1)
        else:
            raise BadSchema(f"is not a valid {kind}")

    def _bytes(self, data: bytes) -> None:
        self._out += encode_varint(len(data)) + data

    def _union(self, union: AvroType, value: Any, depth: int) -> None:
        length = len(self._out)
        for at, branch in enumerate(union.branches):
            self._out += encode_varint(at)
            try:
                self.put(branch, value, depth + 1)
            except BadSchema:
                del self._out[length:]
                continue
            return
        raise BadSchema("fits no type of the union")

    def _items(self, kind: AvroType, items: list[tuple[str | None, Any]], depth: int) -> None:
        assert kind.item is not None
        if items:
            self._out += encode_varint(len(items))
        for name, item in items:
            if name is not None:
                self._bytes(name.encode(errors="replace"))
            self.put(kind.item, item, depth + 1)
        self._out.append(0)


def _float(kind: AvroType, value: Any) -> bytes:
    if isinstance(value, str) and value in _NOT_FINITE:
        value = float(_NOT_FINITE[value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSchema(f"is not a valid {kind}")
    try:
        return struct.pack(_FLOATS[kind.kind], value)
    except OverflowError:
        raise BadSchema(f"is not a valid {kind}: too large") from None
