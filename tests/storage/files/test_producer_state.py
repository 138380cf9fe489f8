"""Producer snapshots: round trip, and every way in which Kafka refuses one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.files import producer_state
from storage.files.producer_state import ENTRY_SIZE, ProducerEntry

ENTRIES = [
    ProducerEntry(1, 0, 9, 100, 4, 1_700_000_000_000, 3, 96),
    ProducerEntry(2, 7, -1, -1, 0, -1),
    ProducerEntry(0, 1, 0, 50, 0, 5, 0),
]
DATA = producer_state.encode(ENTRIES)


def int64(low: int = -(2**63), high: int = 2**63 - 1) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def int32() -> st.SearchStrategy[int]:
    return st.integers(-(2**31), 2**31 - 1)


any_entry = st.builds(
    ProducerEntry, int64(), st.integers(-(2**15), 2**15 - 1), int32(), int64(), int32(), int64(), int32(), int64()
)


@given(st.lists(any_entry, max_size=20))
def test_round_trip(entries: list[ProducerEntry]) -> None:
    data = producer_state.encode(entries)
    assert len(data) == 10 + ENTRY_SIZE * len(entries)
    snapshot = producer_state.parse(data)
    assert snapshot.entries() == entries
    assert len(snapshot) == len(entries)


def test_empty_snapshot_is_kafkas() -> None:
    assert producer_state.encode([]).hex() == "000148674bc700000000"


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_byte_damaged(position: int) -> None:
    for mask in (0x01, 0x80):
        data = bytearray(DATA)
        data[position] ^= mask
        with pytest.raises(CorruptCheckpoint) as refused:
            producer_state.parse(bytes(data))
        expected = (
            {"snapshot has an unknown version"}
            if position < 2
            else {"snapshot fails its CRC", "snapshot's count does not fit its size"}
        )
        assert refused.value.what in expected


@pytest.mark.parametrize("cut", range(len(DATA)))
def test_cut_anywhere(cut: int) -> None:
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.parse(DATA[:cut])
    assert refused.value.what == ("snapshot is cut off" if cut < 10 else "snapshot's count does not fit its size")


def test_stale_bytes_at_the_end_break_the_crc() -> None:
    with pytest.raises(CorruptCheckpoint, match="fails its CRC"):
        producer_state.parse(DATA + b"\0")


def test_negative_count() -> None:
    data = bytearray(DATA)
    data[6:10] = struct.pack(">i", -1)
    with pytest.raises(CorruptCheckpoint, match="count"):
        producer_state.parse(bytes(data))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    try:
        producer_state.parse(data)
    except CorruptCheckpoint:
        return
    assert data.startswith(b"\0\1")


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "x.snapshot"
    assert producer_state.read(path) is None
    path.write_bytes(DATA)
    snapshot = producer_state.read(path)
    assert snapshot is not None
    assert snapshot.entries() == ENTRIES
    path.write_bytes(DATA[:-1])
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.read(path)
    assert refused.value.path == path
