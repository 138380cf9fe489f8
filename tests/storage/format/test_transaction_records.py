"""Records of `__transaction_state`, in both versions, and what does not parse."""

from __future__ import annotations

import struct

import pytest

from storage.errors import CorruptData, UnsupportedFormat
from storage.format.transaction_records import TransactionState, parse_key, parse_value
from storage.types import TopicPartition

PARTITIONS = frozenset({TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("größe", 1)})


def classic(status: int = 1) -> bytes:
    """Version 0: producer 7, epoch 2, timeout, status, the partitions, two times."""
    head = struct.pack(">hqhib", 0, 7, 2, 60_000, status)
    name = "größe".encode()
    topics = struct.pack(">i", 2) + b"\0\1t" + struct.pack(">iii", 2, 0, 3)
    topics += struct.pack(">h", len(name)) + name + struct.pack(">ii", 1, 1)
    return head + topics + struct.pack(">qq", 5, 6)


def flexible(tags: bytes = b"\0") -> bytes:
    """Version 1, with compact arrays and tagged fields."""
    head = struct.pack(">hqhib", 1, 7, 2, 60_000, 1)
    name = "größe".encode()
    topics = b"\x03" + b"\x02t" + b"\x03" + struct.pack(">ii", 0, 3) + b"\0"
    topics += bytes([len(name) + 1]) + name + b"\x02" + struct.pack(">i", 1) + b"\0"
    return head + topics + struct.pack(">qq", 5, 6) + tags


@pytest.mark.parametrize("data", [classic(), flexible()])
def test_values(data: bytes) -> None:
    found = parse_value(data)
    assert (found.producer_id, found.producer_epoch, found.state) == (7, 2, TransactionState.ONGOING)
    assert found.partitions == PARTITIONS
    assert found.greatest_producer_id == 7


def test_other_producer_ids() -> None:
    tags = b"\x02" + b"\x00\x08" + struct.pack(">q", 3) + b"\x01\x08" + struct.pack(">q", 4000)
    found = parse_value(flexible(tags))
    assert found.other_producer_ids == (3, 4000)
    assert found.greatest_producer_id == 4000


def test_no_partitions() -> None:
    data = struct.pack(">hqhibiqq", 0, 7, 2, 60_000, 4, -1, 5, 6)
    assert parse_value(data).partitions == frozenset()
    assert not parse_value(data).state.is_open


def test_keys() -> None:
    assert parse_key(b"\0\0\0\2tx") == "tx"
    assert parse_key(b"\0\1\0\2tx") is None
    with pytest.raises(CorruptData):
        parse_key(b"\0\0\0\3tx")
    with pytest.raises(CorruptData):
        parse_key(b"\0")


def test_what_does_not_parse() -> None:
    for data in (classic(), flexible()):
        for size in range(len(data)):
            with pytest.raises(CorruptData):
                parse_value(data[:size])
    with pytest.raises(UnsupportedFormat, match="state"):
        parse_value(classic(status=9))
    with pytest.raises(UnsupportedFormat, match="version"):
        parse_value(b"\0\x09" + classic()[2:])
