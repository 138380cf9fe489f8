"""Committed offsets as they are written here, read back by Kafka's definitions; and what kinds of records there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.coordinators.groups import (
    DELETION_ORDER,
    CommittedOffset,
    GroupType,
    OffsetKey,
    encode_commit,
    encode_offset_key,
    group_type,
)
from storage.errors import InvalidRecord, StorageError
from storage.format.messages import messages

KEY = OffsetKey("g", "t", 2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
int64s = st.integers(-(2**63), 2**63 - 1)


def read(key: OffsetKey, value: bytes) -> tuple[OffsetKey, CommittedOffset]:
    named, data = messages("__consumer_offsets").one(encode_offset_key(key), value)
    assert named["name"] == "OffsetCommit"
    return OffsetKey(**named["data"]), CommittedOffset.of(data["data"])


@given(texts, texts, st.integers(-(2**31), 2**31 - 1), int64s, st.integers(-(2**31), 2**31 - 1), texts, int64s)
def test_commits_come_back(group: str, topic: str, partition: int, offset: int, epoch: int, text: str, at: int) -> None:
    key, committed = OffsetKey(group, topic, partition), CommittedOffset(offset, epoch, text, at)
    assert read(key, encode_commit(committed)) == (key, committed)


@pytest.mark.parametrize(
    ("version", "epoch", "expires"), [(0, -1, -1), (1, -1, 9), (2, -1, -1), (3, 7, -1), (4, 7, -1)]
)
def test_every_version_of_a_committed_offset(version: int, epoch: int, expires: int) -> None:
    offset, stamp = (number.to_bytes(8, "big") for number in (5, 6))
    head = b"\0" + bytes([version]) + offset + (b"\0\0\0\7" if version >= 3 else b"")
    metadata = b"\2m" if version == 4 else b"\0\1m"
    tail = {1: (9).to_bytes(8, "big"), 4: b"\1\0\x10" + bytes(range(16))}.get(version, b"")
    assert read(KEY, head + metadata + stamp + tail) == (KEY, CommittedOffset(5, epoch, "m", 6, expires))


def test_what_a_record_cannot_hold() -> None:
    for name in ("x" * 2**15, "\ud800"):
        with pytest.raises(InvalidRecord):
            encode_offset_key(OffsetKey(name, "t", 0))
        with pytest.raises(InvalidRecord):
            encode_commit(CommittedOffset(1, metadata=name))


def test_every_kind_of_record_belongs_to_a_type_of_group_and_has_its_place_in_the_order_of_deletions() -> None:
    names: dict[int, Any] = {}
    for kind in range(64):
        key = b"\0" + bytes([kind]) + b"\0\1g" * 2 + b"\0\0\0\0"
        try:
            names[kind] = messages("__consumer_offsets").one(key, None)[0]["name"]
        except StorageError:
            continue
    assert sorted(DELETION_ORDER) == sorted(set(names) - {0, 1})
    for kind in DELETION_ORDER[1:]:
        assert names[kind].lower().startswith(group_type(kind)), names[kind]
    assert group_type(2) == GroupType.CLASSIC
