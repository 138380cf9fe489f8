"""Reads the fields of Kafka's protocol messages in order, in classic and flexible encodings (KIP-482).

Classic: a string is an int16 length and its bytes, bytes and arrays have an int32 length, -1 is null. Flexible: lengths
are unsigned varints n + 1, 0 is null, and a message ends with its tagged fields. Source: Kafka's ByteBufferAccessor.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from storage.errors import CorruptData

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
UUID_BYTES = 16

_T = TypeVar("_T")


class FieldReader:
    """Reads from `data`, checking every length before it is used. `error` is raised when a field does not parse.

    `what`: for the error's text, for example "metadata record". `flexible`: how the message's version encodes lengths.
    """

    __slots__ = ("_data", "_error", "_flexible", "_position", "_what")

    def __init__(self, data: bytes, what: str, error: type[CorruptData] = CorruptData, *, flexible: bool) -> None:
        self._data = data
        self._what = what
        self._error = error
        self._flexible = flexible
        self._position = 0

    def remaining(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if not 0 <= count <= self.remaining():
            raise self._wrong("is cut off", f"{count} bytes", self.remaining())
        start = self._position
        self._position = start + count
        return self._data[start : self._position]

    def nested(self, data: bytes) -> FieldReader:
        """A reader of a tagged field's bytes."""
        return FieldReader(data, self._what, self._error, flexible=self._flexible)

    def int8(self) -> int:
        return int(_INT8.unpack(self.take(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.take(8))[0])

    def uuid(self) -> bytes:
        return self.take(UUID_BYTES)

    def uvarint(self) -> int:
        """An unsigned 32-bit varint."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise self._wrong("holds an overlong varint")

    def nullable_bytes(self) -> bytes | None:
        """BYTES or COMPACT_BYTES."""
        length = self.uvarint() - 1 if self._flexible else self.int32()
        return None if length < 0 else self.take(length)

    def nullable_string(self) -> str | None:
        """STRING or COMPACT_STRING, strictly UTF-8."""
        length = self.uvarint() - 1 if self._flexible else self.int16()
        if length < 0:
            return None
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._wrong("holds text that is not UTF-8") from None

    def string(self) -> str:
        return self.not_null(self.nullable_string())

    def count(self, *, least_bytes: int) -> int:
        """The length of an array whose elements take at least `least_bytes` each; null is an error."""
        count = self.uvarint() - 1 if self._flexible else self.int32()
        self.not_null(None if count < 0 else count)
        if count * least_bytes > self.remaining():
            raise self._wrong("is cut off", f"{count} elements", f"{self.remaining()} bytes")
        return count

    def nullable_count(self, *, least_bytes: int) -> int:
        """As `count`; 0 for a null array."""
        position = self._position
        if (self.uvarint() - 1 if self._flexible else self.int32()) < 0:
            return 0
        self._position = position
        return self.count(least_bytes=least_bytes)

    def nullable_int32s(self) -> tuple[int, ...] | None:
        """A flexible array of int32."""
        count = self.uvarint() - 1
        if count < 0:
            return None
        data = self.take(count * _INT32.size)
        return struct.unpack(f">{count}i", data)

    def int32s(self) -> tuple[int, ...]:
        return self.not_null(self.nullable_int32s())

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields, undecoded, by tag."""
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

    def not_null(self, value: _T | None) -> _T:
        """The value; an error for None."""
        if value is None:
            raise self._wrong("lacks a field that must not be null")
        return value

    def _wrong(self, what: str, expected: object = None, found: object = None) -> CorruptData:
        return self._error(f"{self._what} {what}", position=self._position, expected=expected, found=found)
