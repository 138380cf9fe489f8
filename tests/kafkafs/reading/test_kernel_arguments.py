"""The kernels of the indexes check no bounds in their loops: what does not fit is refused before, in both forms."""

import numpy as np
import pytest

from kafkafs.reading import block_kernel
from tests.support.uncompiled import uncompiled

FORMS = {"plain": uncompiled("kafkafs.reading.block_kernel"), "built": block_kernel}
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
    batch, state, blocks = longs(3), longs(block_kernel.STATE_CELLS), longs(2, block_kernel.BLOCK_FIELDS)
    state[[block_kernel.HAS_KEYS, block_kernel.IS_OPEN, block_kernel.PENDING]] = 1, 1, 3
    marks = np.ones(3, np.uint8)
    by_record = [batch, longs(3), LENGTHS, LENGTHS, longs(3), marks]
    collected = [
        TABLE, 0, 1, *by_record, marks[:1], HASHES, longs(1), 50, 20, 99, state, words(6), words(1), blocks, words(1)
    ]  # fmt: skip
    return {
        "rows_with_key": ([*keys, b"three", longs(3)], [0, 2, 4]),
        "hash_keys": ([*keys, 1, 2, words(3)], [0, 2, 5]),
        "add_names": ([*keys, HASHES, 8, np.zeros(24, np.uint8), longs(3), longs(4), 0], [0, 2, 3, 5, 7]),
        "collect": (collected, [4, 5, 6, 7, 8, 10, 15, 16, 17, 18, 19]),
        "probe": ([words(1), longs(3), longs(3), 1, np.zeros(3, np.uint8)], [2, 4]),
    }


def call(form, function, given):
    return getattr(FORMS[form], function)(*given)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", arguments())
def test_what_is_too_short_is_refused(form, function):
    call(form, function, arguments()[function][0])
    for place in arguments()[function][1]:
        given, _ = arguments()[function]
        given[place] = given[place][:-1]
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
