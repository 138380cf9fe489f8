"""The offset index: what is trusted, what is noticed, and lookups against a plain list."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import offset_index
from storage.files.offset_index import ENTRY_SIZE, OffsetIndex
from storage.types import MAX_OFFSET, OffsetPosition

BASE = 1000
ENTRIES = [(1004, 500), (1010, 900), (1011, 5000), (2000, 5001)]
DATA = b"".join(struct.pack(">ii", offset - BASE, position) for offset, position in ENTRIES)


def entries_of(index: OffsetIndex) -> list[tuple[int, int]]:
    return list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True))


def test_entries() -> None:
    index = offset_index.parse(DATA, BASE, 6000)
    assert entries_of(index) == ENTRIES
    assert (index.problem, index.missing, len(index), index.memory_bytes) == (None, False, 4, 32)
    assert index.entry(-1) == OffsetPosition(2000, 5001)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (BASE, 0)),
        (1003, (BASE, 0)),
        (1004, (1004, 500)),
        (1009, (1004, 500)),
        (1011, (1011, 5000)),
        (1999, (1011, 5000)),
        (2000, (2000, 5001)),
        (MAX_OFFSET, (2000, 5001)),
    ],
)
def test_floor(offset: int, expected: tuple[int, int]) -> None:
    assert offset_index.parse(DATA, BASE).floor(offset) == OffsetPosition(*expected)


@pytest.mark.parametrize(
    ("position", "expected"),
    [(-1, (1004, 500)), (500, (1004, 500)), (501, (1010, 900)), (5001, (2000, 5001)), (5002, None), (2**40, None)],
)
def test_first_from_position(position: int, expected: tuple[int, int] | None) -> None:
    found = offset_index.parse(DATA, BASE).first_from_position(position)
    assert found == (None if expected is None else OffsetPosition(*expected))


@pytest.mark.parametrize("zeros", [1, 7, 8, 64, 8 * 8192, 8 * 20_000])
def test_preallocated_tail_is_no_problem(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(DATA + bytes(zeros))
    index = offset_index.load(path, BASE, 6000)
    assert entries_of(index) == ENTRIES
    assert (index.problem is None) == (zeros % ENTRY_SIZE == 0)


def test_preallocated_and_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    with path.open("wb") as file:
        file.truncate(10 * 1024 * 1024)
    index = offset_index.load(path, BASE, 0)
    assert (index.entries, index.problem) == (0, None)
    assert index.floor(BASE + 5) == OffsetPosition(BASE, 0)
    assert index.first_from_position(0) is None


def test_many_entries_and_a_preallocated_tail(tmp_path: Path) -> None:
    count = 3 * 8192
    offsets = [BASE + 10 * n for n in range(1, count + 1)]
    positions = [4200 * n for n in range(1, count + 1)]
    path = tmp_path / "x.index"
    path.write_bytes(offset_index.encode(offsets, positions, BASE) + bytes(1024 * 1024))
    index = offset_index.load(path, BASE, 4200 * (count + 1))
    assert (index.offsets.tolist(), index.positions.tolist(), index.problem) == (offsets, positions, None)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    missing = offset_index.load(tmp_path / "no.index", BASE, 6000)
    assert (missing.entries, missing.missing, missing.problem) == (0, True, None)
    (tmp_path / "dir.index").mkdir()
    unreadable = offset_index.load(tmp_path / "dir.index", BASE, 6000)
    assert (unreadable.entries, unreadable.missing) == (0, False)
    assert unreadable.problem is not None
    assert unreadable.problem.path == tmp_path / "dir.index"


@pytest.mark.parametrize("cut", range(len(DATA)))
def test_cut_anywhere(cut: int) -> None:
    assert entries_of(offset_index.parse(DATA[:cut], BASE, 6000)) == ENTRIES[: cut // ENTRY_SIZE]


@pytest.mark.parametrize("cut", range(1, ENTRY_SIZE))
def test_odd_size_is_noticed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(DATA[:-cut])
    index = offset_index.load(path, BASE, 6000)
    assert entries_of(index) == ENTRIES[:-1]
    assert index.problem is not None
    assert index.problem.what == "index file ends within an entry"
    assert index.problem.position == len(DATA) - ENTRY_SIZE


@pytest.mark.parametrize(
    ("slot", "entry", "trusted"),
    [
        (0, (0, 500), 0),  # no batch of one record at the base has an entry
        (0, (4, 0), 0),  # nor has the first batch
        (0, (-4, 500), 0),
        (0, (4, -500), 0),
        (1, (4, 900), 1),  # offset not ascending
        (1, (10, 500), 1),  # position not ascending
        (2, (9, 5000), 2),
        (2, (0, 0), 2),  # zeros with entries behind them
        (3, (1000, 4999), 3),
    ],
)
def test_first_broken_entry_ends_the_trust(slot: int, entry: tuple[int, int], trusted: int) -> None:
    data = bytearray(DATA)
    data[slot * ENTRY_SIZE : (slot + 1) * ENTRY_SIZE] = struct.pack(">ii", *entry)
    index = offset_index.parse(bytes(data), BASE, 6000)
    assert entries_of(index) == ENTRIES[:trusted]
    assert index.problem is not None
    assert index.problem.what == "index entries are not strictly ascending"
    assert index.problem.position == slot * ENTRY_SIZE


@pytest.mark.parametrize(("log_size", "trusted"), [(0, 0), (500, 0), (501, 1), (5000, 2), (5001, 3), (5002, 4)])
def test_entries_beyond_the_log(log_size: int, trusted: int) -> None:
    sealed = offset_index.parse(DATA, BASE, log_size)
    assert entries_of(sealed) == ENTRIES[:trusted]
    if trusted == len(ENTRIES):
        assert sealed.problem is None
    else:
        assert sealed.problem is not None
        assert sealed.problem.what == "index entry points beyond the end of the log"
        assert sealed.problem.position == trusted * ENTRY_SIZE
    growing = offset_index.parse(DATA, BASE, log_size, growing=True)
    assert (entries_of(growing), growing.problem) == (ENTRIES[:trusted], None)


def test_half_written_last_entry_of_a_growing_log_is_no_problem() -> None:
    torn = DATA + struct.pack(">ii", 1500, 0) + bytes(800)
    assert offset_index.parse(torn, BASE, 6000).problem is not None
    growing = offset_index.parse(torn, BASE, 6000, growing=True)
    assert (entries_of(growing), growing.problem) == (ENTRIES, None)


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_byte_damaged(position: int) -> None:
    for mask in (0x01, 0x80, 0xFF):
        data = bytearray(DATA)
        data[position] ^= mask
        index = offset_index.parse(bytes(data), BASE, 6000)
        # Never more than the sound prefix and the damaged entry is believed, and what is believed is ascending.
        slot = position // ENTRY_SIZE
        assert entries_of(index)[:slot] == ENTRIES[: min(slot, index.entries)]
        assert all(BASE < offset < BASE + 2**31 for offset in index.offsets.tolist())
        assert (index.positions < 6000).all()
        assert index.offsets.tolist() == sorted(set(index.offsets.tolist()))
        assert index.positions.tolist() == sorted(set(index.positions.tolist()))
        if index.entries < len(ENTRIES):
            assert index.problem is not None


ascending = st.lists(st.tuples(st.integers(1, 3_000_000), st.integers(1, 2_000_000)), max_size=40).map(
    lambda steps: [(sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1])) for n in range(len(steps))]
)


@given(ascending, st.integers(0, 2**62), st.integers(0, 200_000_000), st.integers(0, 100))
def test_round_trip_and_lookup(table: list[tuple[int, int]], base: int, wanted: int, zeros: int) -> None:
    offsets = [base + relative for relative, _ in table]
    positions = [position for _, position in table]
    data = offset_index.encode(offsets, positions, base)
    index = offset_index.parse(data + bytes(zeros * ENTRY_SIZE), base)
    assert (index.offsets.tolist(), index.positions.tolist(), index.problem) == (offsets, positions, None)
    before = [OffsetPosition(base, 0)] + [OffsetPosition(*pair) for pair in zip(offsets, positions, strict=True)]
    assert index.floor(base + wanted) == [entry for entry in before if entry.offset <= base + wanted][-1]
    after = [entry for entry in before[1:] if entry.position >= wanted]
    assert index.first_from_position(wanted) == (after[0] if after else None)


@given(st.binary(max_size=200), st.integers(0, 2**62), st.integers(0, 2**31), st.booleans())
def test_any_bytes_give_an_ascending_index(data: bytes, base: int, log_size: int, growing: bool) -> None:
    index = offset_index.parse(data, base, log_size, growing=growing)
    assert index.offsets.tolist() == sorted(set(index.offsets.tolist()))
    assert all(0 < position < log_size for position in index.positions.tolist())


@pytest.mark.parametrize(
    ("offsets", "positions"), [([BASE], [5]), ([BASE + 1], [0]), ([BASE + 1, BASE + 1], [1, 2]), ([BASE + 2**31], [1])]
)
def test_encode_refuses_what_kafka_never_writes(offsets: list[int], positions: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        offset_index.encode(offsets, positions, BASE)
