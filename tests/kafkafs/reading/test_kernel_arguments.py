"""The kernels of the indexes check no bounds in their loops: what does not fit is refused before, in both forms."""

import numpy as np
import pytest

from kafkafs.reading import key_kernel, measure_kernel
from kafkafs.reading.pieces import COLUMNS
from tests.support.uncompiled import uncompiled

FORMS = {
    "plain": (uncompiled("kafkafs.reading.key_kernel"), uncompiled("kafkafs.reading.measure_kernel")),
    "built": (key_kernel, measure_kernel),
}
STARTS, LENGTHS = np.array([0, 3, 6]), np.array([3, 3, 5])
HASHES, TABLE = np.array([5, 6, 7], np.uint64), np.zeros((14, 1), np.int64)
TABLE[1] = 100


def longs(*shape):
    return np.zeros(shape, np.int64)


def words(count):
    return np.zeros(count, np.uint64)


def arguments():
    """Of each function: arguments that fit exactly, and the places of those that must not be shorter."""
    keys = [b"onetwothree", STARTS, LENGTHS]
    batch, state, blocks = longs(3), longs(key_kernel.STATE_CELLS), longs(1, 7)
    collected = [TABLE, 0, 1, batch, HASHES, 50, 20, state, words(3), words(1), blocks, words(1)]
    totals = np.ones((4, 2), np.int64)
    return {
        "rows_with_key": ([*keys, b"three", longs(3)], [0, 2, 4]),
        "hash_keys": ([*keys, 1, 2, words(3)], [0, 2, 5]),
        "add_names": ([*keys, HASHES, 8, np.zeros(24, np.uint8), longs(3), longs(4), 0], [0, 2, 3, 5, 7]),
        "collect": (collected, [4, 7, 8, 9, 10, 11]),
        "probe": ([words(1), longs(3), longs(3), 1, np.zeros(3, np.uint8)], [2, 4]),
        "clear_totals": ([totals, 2], [0]),
        "add_records": ([batch, longs(3), longs(3), np.ones(3, np.uint8), totals, 2], [1, 2, 3, 4]),
        "cut": ([np.zeros((14, 2), np.int64), totals, 0, 2, 1, longs(2, COLUMNS)], [0, 1, 5]),
    }


def call(form, function, given):
    key, measure = FORMS[form]
    return getattr(key if hasattr(key, function) else measure, function)(*given)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", arguments())
def test_what_is_too_short_is_refused(form, function):
    call(form, function, arguments()[function][0])
    for place in arguments()[function][1]:
        given, _ = arguments()[function]
        is_table = function == "cut" and place < 2
        given[place] = np.ascontiguousarray(given[place][:, :-1]) if is_table else given[place][:-1]
        with pytest.raises((IndexError, ValueError)):
            call(form, function, given)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("function", "place", "value"),
    [
        *((function, 1, STARTS + 3) for function in ("rows_with_key", "hash_keys", "add_names")),
        *((function, 1, STARTS - 10) for function in ("rows_with_key", "hash_keys", "add_names")),
        *(
            ("add_names", place, value)
            for place, value in ((4, 9), (4, -1), (7, longs(3)), (7, longs(5)), (8, -1), (8, 4))
        ),
        *(("collect", 3, np.array(batch)) for batch in ([1, 1, 1], [0, 0, 1], [-1, 0, 0])),
        *(("add_records", 0, np.array(batch)) for batch in ([0, 0, 2], [-1, 0, 0], [0, 2**62, 0])),
        *(("clear_totals", 1, 3), ("add_records", 5, 3), ("cut", 3, 3)),
    ],
)
def test_what_lies_outside_is_refused(form, function, place, value):
    given, _ = arguments()[function]
    given[place] = value
    with pytest.raises((IndexError, ValueError)):
        call(form, function, given)


@pytest.mark.parametrize("form", FORMS)
def test_filters_that_are_not_there(form):
    """No words: no keys. A size that is negative or beyond the words: any key."""
    marks = np.full(5, 9, np.uint8)
    call(form, "probe", [words(4), np.array([0, 0, 0, 5, -1]), np.array([0, -1, 5, 1, 1]), 17, marks])
    assert marks.tolist() == [0, 1, 1, 1, 1]
