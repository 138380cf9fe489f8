"""Batches written with struct alone, also invalid ones: they share no code with the encoders that the tests judge."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import crc32c


def varint(value: int) -> bytes:
    """A zigzag base-128 integer."""
    raw = ((value << 1) ^ (value >> 64)) & ((1 << 64) - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def sized(data: bytes | None) -> bytes:
    """Varint length and bytes; -1 for None."""
    return varint(-1) if data is None else varint(len(data)) + data


def body(
    delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"value",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    timestamp_delta: int = 0,
) -> bytes:
    """A v2 record without its length."""
    parts = [b"\x00", varint(timestamp_delta), varint(delta), sized(key), sized(value), varint(len(headers))]
    for name, content in headers:
        parts += (sized(name), sized(content))
    return b"".join(parts)


def record(*args: object, **fields: object) -> bytes:
    """A whole v2 record; arguments of `body`."""
    return sized(body(*args, **fields))  # type: ignore[arg-type] # passed through


def batch(
    records: Sequence[bytes] | bytes = (),
    base_offset: int = 0,
    *,
    count: int | None = None,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1000,
    max_timestamp: int = 2000,
    leader_epoch: int = 0,
    crc: int | None = None,
    length: int | None = None,
) -> bytes:
    """A v2 batch around `records`, or around a given payload; numbers that are not given are correct."""
    payload = records if isinstance(records, bytes) else b"".join(records)
    number = len(records) if count is None else count
    delta = max(number - 1, 0) if last_offset_delta is None else last_offset_delta
    fields = struct.pack(">hiqqqhii", attributes, delta, base_timestamp, max_timestamp, 77, 3, 5, number)
    checked = fields + payload
    stored = crc32c.crc32c(checked) if crc is None else crc
    size = 9 + len(checked) if length is None else length
    return struct.pack(">qiibI", base_offset, size, leader_epoch, 2, stored) + checked


def message(
    offset: int,
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 1000,
    crc: int | None = None,
) -> bytes:
    """A v0 or v1 message; a wrapper when `attributes` name a codec."""
    checked = struct.pack(">bb", magic, attributes)
    if magic == 1:
        checked += struct.pack(">q", timestamp)
    for data in (key, value):
        checked += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    stored = zlib.crc32(checked) if crc is None else crc
    return struct.pack(">qiI", offset, 4 + len(checked), stored) + checked
