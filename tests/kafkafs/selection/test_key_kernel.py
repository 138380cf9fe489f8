"""The kernel of keys: both forms give the same, what a plain loop gives, and no key that is in a filter is denied."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.selection import key_kernel
from tests.support.uncompiled import uncompiled

FORMS = [
    pytest.param(uncompiled("kafkafs.selection.key_kernel"), id="plain"),
    pytest.param(key_kernel, id="built"),
]
PLAIN = uncompiled("kafkafs.selection.key_kernel")
uint64s = st.integers(0, 2**64 - 1) | st.integers(0, 5)


def pairs(hashes: list[int]) -> np.ndarray:
    return np.array([(value, 7) for value in hashes], np.uint64).reshape(-1, 2)


def set_of(form: ModuleType, hashes: list[int], lengths: list[int], slots: int = 256) -> list[list[int]]:
    table, found = np.zeros(slots, np.uint64), np.zeros((100, 2), np.uint64)
    half = len(hashes) // 2
    count = form.distinct(pairs(hashes), np.array(lengths, np.int64), 0, half, table, found, 0)
    count = form.distinct(pairs(hashes), np.array(lengths, np.int64), half, len(hashes), table, found, count)
    return found[:count].tolist()


@given(st.lists(st.tuples(uint64s, st.integers(-1, 3)), max_size=50))
def test_different_hashes(rows: list[tuple[int, int]]) -> None:
    hashes, lengths = [value for value, _ in rows], [length for _, length in rows]
    first: dict[int, int] = {}
    for row, (value, length) in enumerate(rows):
        if length >= 0:
            first.setdefault(value or 1, row)
    expected = [list(item) for item in first.items()]
    for form in (key_kernel, PLAIN):
        assert set_of(form, hashes, lengths) == expected


@given(st.lists(uint64s, max_size=40), st.lists(uint64s, max_size=40), st.integers(1, 9))
def test_a_filter_denies_none_of_its_keys(inside: list[int], others: list[int], words: int) -> None:
    found = pairs([value or 1 for value in inside])
    made = []
    for form in (key_kernel, PLAIN):
        words_of = np.zeros(words, np.uint64)
        form.fill(found, len(inside), words_of)
        made.append(words_of.tolist())
    assert made[0] == made[1]
    both = np.array([*made[0], *[0] * words], np.uint64)  # a filter, and one that is empty
    firsts, sizes = np.array([0, words], np.int64), np.array([words, words], np.int64)
    for value in (*inside, *others):
        answers = []
        for form in (key_kernel, PLAIN):
            marks = np.full(2, 9, np.uint8)
            form.probe(both, firsts, sizes, value, marks)
            answers.append(marks.tolist())
        assert answers[0] == answers[1]
        assert answers[0][1] == 0
        if value in inside:
            assert answers[0][0] == 1


def test_how_many_other_keys_pass() -> None:
    rng = np.random.default_rng(3)
    count = 5000
    hashes = rng.integers(1, 2**64 - 1, 5 * count, np.uint64)
    words = np.zeros(count * 10 // 64, np.uint64)
    key_kernel.fill(np.ascontiguousarray(np.stack([hashes[:count]] * 2, axis=1)), count, words)
    marks = np.empty(1, np.uint8)
    firsts, sizes = np.zeros(1, np.int64), np.array([len(words)], np.int64)
    passed = 0
    for value in hashes[count:].tolist():
        key_kernel.probe(words, firsts, sizes, value, marks)
        passed += int(marks[0])
    assert 0.004 < passed / (4 * count) < 0.014  # in theory 0.0082


@pytest.mark.parametrize("form", FORMS)
def test_filters_that_are_not_there(form: ModuleType) -> None:
    """No words: no keys. A size that is negative or beyond the words: any key."""
    firsts = np.array([0, 0, 0, 5, -1], np.int64)
    sizes = np.array([0, -1, 5, 1, 1], np.int64)
    marks = np.full(5, 9, np.uint8)
    form.probe(np.zeros(4, np.uint64), firsts, sizes, 17, marks)
    assert marks.tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_too_little_room_is_refused(form: ModuleType) -> None:
    hashes, lengths = pairs([1, 2, 3]), np.zeros(3, np.int64)
    table, found = np.zeros(8, np.uint64), np.zeros((3, 2), np.uint64)
    with pytest.raises(IndexError, match="room"):
        form.distinct(hashes, lengths, 0, 3, table, found, 1)
    with pytest.raises(IndexError, match="table"):
        form.distinct(hashes, lengths, 0, 3, np.zeros(4, np.uint64), found, 0)
    with pytest.raises(IndexError, match="table"):
        form.distinct(hashes, lengths, 0, 3, np.zeros(9, np.uint64), found, 0)
    with pytest.raises(IndexError, match="rows"):
        form.distinct(hashes, lengths, 0, 4, table, found, 0)
    with pytest.raises(IndexError, match="filter"):
        form.fill(found, 1, np.zeros(0, np.uint64))
    with pytest.raises(IndexError, match="hashes"):
        form.fill(found, 4, np.zeros(1, np.uint64))
    with pytest.raises(IndexError, match="marks"):
        form.probe(table, lengths, lengths, 1, np.zeros(2, np.uint8))
    with pytest.raises(IndexError, match="rows"):
        form.rows_with_key(b"abc", lengths, lengths, b"a", np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="outside"):
        form.rows_with_key(b"abc", lengths + 3, lengths + 1, b"a", np.zeros(3, np.int64))


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_a_key(form: ModuleType) -> None:
    data = b"abcabcab"
    starts, lengths = np.array([0, 3, 0, 1, 6, 8], np.int64), np.array([3, 3, -1, 3, 2, 0], np.int64)
    rows = np.empty(6, np.int64)
    for key, expected in ((b"abc", [0, 1]), (b"bca", [3]), (b"ab", [4]), (b"", [5]), (b"xyz", [])):
        assert rows[: form.rows_with_key(data, starts, lengths, key, rows)].tolist() == expected
