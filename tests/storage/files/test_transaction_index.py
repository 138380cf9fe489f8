"""The transaction index: what is trusted, what is noticed, and Kafka's collection rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import transaction_index
from storage.files.transaction_index import ENTRY_SIZE, AbortedTxn

BASE = 100
TXNS = [
    AbortedTxn(5, 90, 110, 95),
    AbortedTxn(6, 95, 120, 121),
    AbortedTxn(5, 130, 140, 126),
    AbortedTxn(7, 126, 150, 151),
]
DATA = transaction_index.encode(TXNS)


def test_entries() -> None:
    index = transaction_index.parse(DATA, BASE)
    assert index.entries() == TXNS
    assert (index.problem, index.missing, len(index)) == (None, False, 4)
    assert index.producer_id.tolist() == [5, 6, 5, 7]
    assert index.first_offset.tolist() == [90, 95, 130, 126]


def test_missing_and_unreadable(tmp_path: Path) -> None:
    missing = transaction_index.load(tmp_path / "no.txnindex", BASE)
    assert (len(missing), missing.missing, missing.problem) == (0, True, None)
    (tmp_path / "dir.txnindex").mkdir()
    unreadable = transaction_index.load(tmp_path / "dir.txnindex", BASE)
    assert unreadable.problem is not None
    path = tmp_path / "x.txnindex"
    path.write_bytes(DATA)
    assert transaction_index.load(path, BASE).entries() == TXNS


@pytest.mark.parametrize("cut", range(1, len(DATA)))
def test_cut_anywhere(cut: int) -> None:
    index = transaction_index.parse(DATA[:cut], BASE)
    assert index.entries() == TXNS[: cut // ENTRY_SIZE]
    assert (index.problem is None) == (cut % ENTRY_SIZE == 0)
    assert transaction_index.parse(DATA[:cut], BASE, growing=True).problem is None


@pytest.mark.parametrize(
    ("slot", "position", "value"),
    [
        (0, 0, b"\x01"),  # version
        (0, 1, b"\x01"),
        (1, 2, b"\x80"),  # producer id below 0
        (2, 10, b"\x80"),  # first offset below 0
        (1, 17, b"\x79"),  # first offset above the last
        (0, 25, b"\x63"),  # last offset below the segment's base
        (2, 25, b"\x77"),  # last offsets not ascending
        (3, 25, b"\x8c"),  # the same last offset twice
        (0, 33, b"\x70"),  # stable beyond the abort marker
        (3, 26, b"\xff"),  # stable below 0
    ],
)
def test_first_broken_entry_ends_the_trust(slot: int, position: int, value: bytes) -> None:
    data = bytearray(DATA)
    data[slot * ENTRY_SIZE + position : slot * ENTRY_SIZE + position + 1] = value
    index = transaction_index.parse(bytes(data), BASE)
    assert index.entries() == TXNS[:slot]
    assert index.problem is not None
    assert index.problem.what == "transaction index entry is impossible"
    assert index.problem.position == slot * ENTRY_SIZE


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_byte_damaged(position: int) -> None:
    data = bytearray(DATA)
    data[position] ^= 0x80
    index = transaction_index.parse(bytes(data), BASE)
    slot = position // ENTRY_SIZE
    assert index.entries()[:slot] == TXNS[: min(slot, len(index))]
    if len(index) < len(TXNS):
        assert index.problem is not None


@pytest.mark.parametrize(
    ("start", "end", "slots", "complete"),
    [
        (0, 95, [0], True),  # the first entry's last stable offset says that nothing earlier is undecided
        (0, 96, [0, 1], True),
        (111, 121, [1], True),
        (111, 122, [1], True),  # entry 3: first 126
        (141, 152, [3], False),
        (151, 200, [], False),
    ],
)
def test_collect(start: int, end: int, slots: list[int], complete: bool) -> None:
    found, whole = transaction_index.parse(DATA, BASE).collect(start, end)
    assert (found.tolist(), whole) == (slots, complete)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 30)), max_size=12))
def test_collect_is_kafkas_loop(steps: list[tuple[int, int, int, int]]) -> None:
    txns = []
    last = BASE
    for producer, back, forward, stable_back in steps:
        last += forward
        txns.append(AbortedTxn(producer, last - back, last, last + 1 - stable_back))
    index = transaction_index.parse(transaction_index.encode(txns), BASE)
    assert index.entries() == txns
    for start in range(BASE - 2, last + 3, 3):
        for end in range(start + 1, last + 5, 4):
            expected: list[AbortedTxn] = []
            complete = False
            for txn in txns:
                if txn.last_offset >= start and txn.first_offset < end:
                    expected.append(txn)
                if txn.last_stable_offset >= end:
                    complete = True
                    break
            slots, whole = index.collect(start, end)
            assert ([index.entry(slot) for slot in slots.tolist()], whole) == (expected, complete)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    index = transaction_index.parse(data, 0)
    assert index.last_offset.tolist() == sorted(set(index.last_offset.tolist()))


def test_encode_refuses_disorder() -> None:
    with pytest.raises(ValueError, match="ascending"):
        transaction_index.encode([TXNS[1], TXNS[0]])
