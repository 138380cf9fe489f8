"""Batch headers read with struct alone: an oracle that shares no code with the code that it judges."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple


class Header(NamedTuple):
    """Fields of a v2 batch in stored order, without magic; `position` of the batch in its bytes."""

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        return self.length + 12


def v2_header(data: bytes, position: int = 0) -> Header:
    base_offset, length, leader_epoch, magic, crc, *rest = struct.unpack_from(">qiibIhiqqqhii", data, position)
    assert magic == 2
    return Header(position, base_offset, length, leader_epoch, crc, *rest)


def batches(data: bytes) -> Iterator[bytes]:
    """The whole batches of a log's bytes, any magic."""
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        yield data[position : position + 12 + length]
        position += 12 + length
