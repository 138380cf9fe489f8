"""The time index: what is trusted, what is noticed, and lookups against a plain list."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import time_index
from storage.files.time_index import ENTRY_SIZE, TimeIndex
from storage.types import TimestampOffset

BASE = 1000
ENTRIES = [(50, 1004), (60, 1004), (61, 1011), (90, 2000)]
DATA = b"".join(struct.pack(">qi", timestamp, offset - BASE) for timestamp, offset in ENTRIES)


def entries_of(index: TimeIndex) -> list[tuple[int, int]]:
    return list(zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True))


def test_entries() -> None:
    index = time_index.parse(DATA, BASE)
    assert entries_of(index) == ENTRIES
    assert (index.problem, index.missing, index.memory_bytes) == (None, False, 48)
    assert index.last == TimestampOffset(90, 2000)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-(2**63), (-1, BASE)),
        (49, (-1, BASE)),
        (50, (50, 1004)),
        (60, (60, 1004)),
        (89, (61, 1011)),
        (2**63 - 1, (90, 2000)),
    ],
)
def test_floor(timestamp: int, expected: tuple[int, int]) -> None:
    assert time_index.parse(DATA, BASE).floor(timestamp) == TimestampOffset(*expected)


def test_empty() -> None:
    index = time_index.parse(b"", BASE)
    assert index.last == TimestampOffset(-1, BASE)
    assert index.floor(5) == TimestampOffset(-1, BASE)


@pytest.mark.parametrize("zeros", [12, 120, 12 * 8192, 12 * 20_000])
def test_preallocated_tail_is_no_problem(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "x.timeindex"
    path.write_bytes(DATA + bytes(zeros))
    index = time_index.load(path, BASE)
    assert (entries_of(index), index.problem) == (ENTRIES, None)


def test_timestamp_zero_at_the_base_looks_like_preallocation() -> None:
    # A trimmed index with one entry has it; with zeros behind it, it may be none and tells nothing anyway.
    assert entries_of(time_index.parse(bytes(12), BASE)) == [(0, BASE)]
    assert entries_of(time_index.parse(bytes(24), BASE)) == []
    assert entries_of(time_index.parse(bytes(12) + DATA, BASE)) == [(0, BASE), *ENTRIES]
    twice = time_index.parse(bytes(24) + DATA, BASE)
    assert entries_of(twice) == [(0, BASE)]
    assert twice.problem is not None


def test_missing_and_unreadable(tmp_path: Path) -> None:
    missing = time_index.load(tmp_path / "no.timeindex", BASE)
    assert (missing.entries, missing.missing, missing.problem) == (0, True, None)
    (tmp_path / "dir.timeindex").mkdir()
    assert time_index.load(tmp_path / "dir.timeindex", BASE).problem is not None


@pytest.mark.parametrize("cut", range(1, ENTRY_SIZE))
def test_odd_size_is_noticed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.timeindex"
    path.write_bytes(DATA[:-cut])
    index = time_index.load(path, BASE)
    assert entries_of(index) == ENTRIES[:-1]
    assert index.problem is not None
    assert index.problem.what == "index file ends within an entry"


@pytest.mark.parametrize(
    ("slot", "entry", "trusted"),
    [
        (0, (-1, 4), 0),
        (0, (50, -1), 0),
        (1, (50, 4), 1),  # timestamp not ascending
        (1, (60, 3), 1),  # offset descending
        (2, (59, 11), 2),
        (2, (0, 0), 2),  # zeros with entries behind them
        (3, (90, 10), 3),
    ],
)
def test_first_broken_entry_ends_the_trust(slot: int, entry: tuple[int, int], trusted: int) -> None:
    data = bytearray(DATA)
    data[slot * ENTRY_SIZE : (slot + 1) * ENTRY_SIZE] = struct.pack(">qi", *entry)
    index = time_index.parse(bytes(data), BASE)
    assert entries_of(index) == ENTRIES[:trusted]
    assert index.problem is not None
    assert index.problem.what == "time index entries are not ascending"
    assert index.problem.position == slot * ENTRY_SIZE


@pytest.mark.parametrize(("end_offset", "trusted"), [(0, 0), (1004, 0), (1005, 2), (2000, 3), (2001, 4)])
def test_entries_beyond_the_segment(end_offset: int, trusted: int) -> None:
    sealed = time_index.parse(DATA, BASE, end_offset)
    assert entries_of(sealed) == ENTRIES[:trusted]
    assert (sealed.problem is None) == (trusted == len(ENTRIES))
    growing = time_index.parse(DATA, BASE, end_offset, growing=True)
    assert (entries_of(growing), growing.problem) == (ENTRIES[:trusted], None)


def test_half_written_last_entry_of_a_growing_log_is_no_problem() -> None:
    torn = DATA + struct.pack(">qi", 95, 0) + bytes(1200)
    assert time_index.parse(torn, BASE).problem is not None
    growing = time_index.parse(torn, BASE, growing=True)
    assert (entries_of(growing), growing.problem) == (ENTRIES, None)


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_byte_damaged(position: int) -> None:
    for mask in (0x01, 0x80, 0xFF):
        data = bytearray(DATA)
        data[position] ^= mask
        index = time_index.parse(bytes(data), BASE, 3000)
        slot = position // ENTRY_SIZE
        assert entries_of(index)[:slot] == ENTRIES[: min(slot, index.entries)]
        assert index.timestamps.tolist() == sorted(set(index.timestamps.tolist()))
        assert index.offsets.tolist() == sorted(index.offsets.tolist())
        assert all(BASE <= offset < 3000 for offset in index.offsets.tolist())
        if index.entries < len(ENTRIES):
            assert index.problem is not None


ascending = st.lists(st.tuples(st.integers(1, 2**40), st.integers(0, 50_000_000)), max_size=40).map(
    lambda steps: [(sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1])) for n in range(len(steps))]
)


@given(ascending, st.integers(0, 2**62), st.integers(-5, 2**45), st.integers(0, 100))
def test_round_trip_and_lookup(table: list[tuple[int, int]], base: int, wanted: int, zeros: int) -> None:
    timestamps = [timestamp for timestamp, _ in table]
    offsets = [base + relative for _, relative in table]
    data = time_index.encode(timestamps, offsets, base)
    index = time_index.parse(data + bytes(zeros * ENTRY_SIZE) if table else data, base)
    assert (index.timestamps.tolist(), index.offsets.tolist(), index.problem) == (timestamps, offsets, None)
    entries = [TimestampOffset(*pair) for pair in zip(timestamps, offsets, strict=True)]
    before = [entry for entry in entries if entry.timestamp <= wanted]
    assert index.floor(wanted) == (before[-1] if before else TimestampOffset(-1, base))


@given(st.binary(max_size=240), st.integers(0, 2**62), st.integers(0, 2**63 - 1), st.booleans())
def test_any_bytes_give_an_ascending_index(data: bytes, base: int, end_offset: int, growing: bool) -> None:
    index = time_index.parse(data, base, end_offset, growing=growing)
    assert index.timestamps.tolist() == sorted(set(index.timestamps.tolist()))
    assert index.offsets.tolist() == sorted(index.offsets.tolist())
    assert all(base <= offset < end_offset for offset in index.offsets.tolist())


@pytest.mark.parametrize(
    ("timestamps", "offsets"),
    [([-1], [BASE]), ([5, 5], [BASE, BASE]), ([5, 6], [BASE + 1, BASE]), ([5], [BASE - 1]), ([5], [BASE + 2**31])],
)
def test_encode_refuses_what_kafka_never_writes(timestamps: list[int], offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        time_index.encode(timestamps, offsets, BASE)
