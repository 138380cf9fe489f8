"""Keys and values of `__consumer_offsets`: every version, and whatever bytes come."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.errors import CorruptData, InvalidRecord, StorageError, UnsupportedFormat
from storage.format.group_records import (
    CommittedOffset,
    CoordinatorKey,
    GroupKey,
    GroupMetadata,
    Member,
    OffsetKey,
    encode_commit,
    encode_group_key,
    encode_offset_key,
    parse_commit,
    parse_group,
    parse_key,
)

OFFSET = struct.pack(">q", 2**40 + 5)
STAMPS = struct.pack(">q", 1_763_700_000_123)
EXPIRES = struct.pack(">q", 1_763_700_999_123)
TOPIC_ID = bytes([1, 0, 16]) + bytes(range(16))  # one tagged field: tag 0, 16 bytes
META = "mé".encode()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
int64s = st.integers(-(2**63), 2**63 - 1)


def classic(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


@pytest.mark.parametrize(
    ("data", "epoch", "expires"),
    [
        (b"\0\0" + OFFSET + classic(META) + STAMPS, -1, -1),
        (b"\0\1" + OFFSET + classic(META) + STAMPS + EXPIRES, -1, 1_763_700_999_123),
        (b"\0\2" + OFFSET + classic(META) + STAMPS, -1, -1),
        (b"\0\3" + OFFSET + b"\0\0\0\7" + classic(META) + STAMPS, 7, -1),
        (b"\0\4" + OFFSET + b"\0\0\0\7" + bytes([len(META) + 1]) + META + STAMPS + b"\0", 7, -1),
        (b"\0\4" + OFFSET + b"\0\0\0\7" + bytes([len(META) + 1]) + META + STAMPS + TOPIC_ID, 7, -1),
    ],
)
def test_every_version_of_a_committed_offset(data: bytes, epoch: int, expires: int) -> None:
    assert parse_commit(data) == CommittedOffset(2**40 + 5, epoch, "mé", 1_763_700_000_123, expires)
    for size in range(len(data) - len(TOPIC_ID) if data[1] == 4 else len(data)):
        with pytest.raises(CorruptData):
            parse_commit(data[:size])


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 300, 20_000])
def test_metadata_of_any_length_in_version_4(length: int) -> None:
    varint = bytes([length + 1]) if length < 127 else None
    if varint is None:
        rest, parts = length + 1, []
        while rest > 0x7F:
            parts.append(rest & 0x7F | 0x80)
            rest >>= 7
        varint = bytes([*parts, rest])
    data = b"\0\4" + OFFSET + b"\0\0\0\7" + varint + b"x" * length + STAMPS + b"\0"
    assert parse_commit(data).metadata == "x" * length


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_versions_that_nobody_has_defined(version: int) -> None:
    head = struct.pack(">h", version)
    with pytest.raises(UnsupportedFormat):
        parse_commit(head + OFFSET + b"\0\0\0\7" + classic(b"") + STAMPS)
    with pytest.raises(UnsupportedFormat):
        parse_group(head + bytes(50))


def member_bytes(version: int) -> bytes:
    instance = classic(b"i-1") if version >= 3 else b""
    rebalance = b"\0\0\0\1" if version >= 1 else b""
    rest = b"\0\0\0\2" + b"\0\0\0\3sub" + b"\0\0\0\0"
    return classic(b"m-1") + instance + classic(b"c") + classic(b"/host") + rebalance + rest


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_classic_version_of_a_groups_metadata(version: int) -> None:
    since = STAMPS if version >= 2 else b""
    head = struct.pack(">h", version) + classic(b"consumer") + b"\0\0\0\5" + classic(b"range") + classic(b"m-1")
    data = head + since + b"\0\0\0\1" + member_bytes(version)
    member = Member("m-1", "i-1" if version >= 3 else None, "c", "/host")
    assert parse_group(data) == GroupMetadata("consumer", 5, "range", "m-1", (member,))
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            parse_group(data[:size])
    empty = struct.pack(">h", version) + classic(b"") + b"\0\0\0\0" + b"\xff\xff" * 2 + since + b"\0\0\0\0"
    assert parse_group(empty) == GroupMetadata("", 0, None, None, ())


def test_the_flexible_version_of_a_groups_metadata() -> None:
    member = b"\4m-1" + b"\0" + b"\2c" + b"\6/host" + b"\0\0\0\1" + b"\0\0\0\2" + b"\4sub" + b"\1" + b"\0"
    data = b"\0\4" + b"\tconsumer" + b"\0\0\0\5" + b"\6range" + b"\0" + STAMPS + b"\2" + member + b"\0"
    assert parse_group(data) == GroupMetadata("consumer", 5, "range", None, (Member("m-1", None, "c", "/host"),))


def test_keys() -> None:
    old = b"\0\0" + classic(b"g") + classic(b"t") + b"\0\0\0\2"
    assert parse_key(old) == OffsetKey("g", "t", 2) == parse_key(b"\0\1" + old[2:])
    assert parse_key(encode_offset_key(OffsetKey("gé", "t", 3))) == OffsetKey("gé", "t", 3)
    assert encode_offset_key(OffsetKey("g", "t", 2)) == b"\0\1" + old[2:]
    assert parse_key(encode_group_key("")) == GroupKey("")
    ranks = []
    for version in (8, 7, 6, 5, 4, 16, 3, 22, 21, 20, 19, 23, 17):
        known = parse_key(struct.pack(">h", version) + classic(b"g") + classic(b"a member"))
        assert isinstance(known, CoordinatorKey)
        assert known.group == "g"
        ranks.append(known.rank)
    assert ranks == sorted(set(ranks))
    for version in (9, 10, 15, 18, 24, 1000, -1):
        assert parse_key(struct.pack(">h", version) + b"whatever") is None
    for size in range(len(old)):
        with pytest.raises(CorruptData):
            parse_key(old[:size])


@given(texts, texts, st.integers(-(2**31), 2**31 - 1))
def test_keys_come_back(group: str, topic: str, partition: int) -> None:
    assert parse_key(encode_offset_key(OffsetKey(group, topic, partition))) == OffsetKey(group, topic, partition)
    assert parse_key(encode_group_key(group)) == GroupKey(group)


@given(int64s, st.integers(-(2**31), 2**31 - 1), texts, int64s)
def test_commits_come_back(offset: int, epoch: int, metadata: str, stamp: int) -> None:
    committed = CommittedOffset(offset, epoch, metadata, stamp)
    assert parse_commit(encode_commit(committed)) == committed


@given(st.integers(-2, 6), st.binary(max_size=80))
@example(4, OFFSET + b"\0\0\0\7" + b"\xff\xff\xff\xff\x7f" + STAMPS)
@example(3, OFFSET + b"\0\0\0\7" + b"\x80\x00" + STAMPS)
@example(3, OFFSET + b"\0\0\0\7" + b"\0\1\xff" + STAMPS)
@example(3, classic(b"") + b"\0\0\0\5" + b"\xff\xff" * 2 + STAMPS + b"\x7f\xff\xff\xff")
def test_any_bytes_parse_or_are_refused(version: int, rest: bytes) -> None:
    data = struct.pack(">h", version) + rest
    for parse in (parse_key, parse_commit, parse_group):
        for some in (data, rest):
            try:
                found = parse(some)  # type: ignore[operator]
            except StorageError:
                continue
            assert found is None or isinstance(found, tuple)


def test_what_a_record_cannot_hold() -> None:
    for name in ("x" * 2**15, "\ud800"):
        with pytest.raises(InvalidRecord):
            encode_group_key(name)
        with pytest.raises(InvalidRecord):
            encode_commit(CommittedOffset(1, metadata=name))
