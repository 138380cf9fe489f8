"""The kernel of the view index: both forms give the same, and what a plain loop gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.reading import measure_kernel
from kafkafs.reading.pieces import COLUMNS, NO_GREATEST, NO_LEAST, Piece
from tests.support.uncompiled import uncompiled

FORMS = [
    pytest.param(uncompiled("kafkafs.reading.measure_kernel"), id="plain"),
    pytest.param(measure_kernel, id="built"),
]


def totals_of(rows):
    return np.full((4, rows), 77, dtype=np.int64)


def make_table(rows):
    table = np.zeros((14, rows), dtype=np.int64)
    table[0] = np.arange(rows) * 100
    table[1] = 100
    table[2] = np.arange(rows) * 10
    table[13] = np.arange(rows) + 5
    return table


@pytest.mark.parametrize("form", FORMS)
def test_records_are_added_to_their_batches(form):
    totals = totals_of(3)
    form.clear_totals(totals, 3)
    batch = np.array([0, 0, 2], dtype=np.int64)
    sizes = np.array([5, 6, 7], dtype=np.int64)
    times = np.array([30, 10, -1], dtype=np.int64)
    everything = np.empty(0, dtype=np.uint8)
    assert form.add_records(batch, sizes, times, everything, totals, 3) == 11
    assert totals.tolist() == [[11, 0, 7], [2, 0, 1], [10, NO_LEAST, -1], [30, NO_GREATEST, -1]]
    assert form.add_records(batch, sizes, times, np.array([0, 1, 0], dtype=np.uint8), totals, 3) == 17
    assert totals[0].tolist() == [17, 0, 7]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_outside_of_the_columns_is_touched(form):
    one, none = np.array([0], dtype=np.int64), np.empty(0, dtype=np.uint8)
    for bad in (-1, 2, 2**62):
        with pytest.raises(IndexError):
            form.add_records(np.array([bad], dtype=np.int64), one, one, none, totals_of(2), 2)
    with pytest.raises(IndexError):
        form.add_records(one, one[:0], one, none, totals_of(2), 2)
    with pytest.raises(IndexError):
        form.add_records(one, one, one, none, totals_of(2), 3)
    with pytest.raises(IndexError):
        form.clear_totals(totals_of(2), 3)
    lines = np.zeros((4, COLUMNS), dtype=np.int64)
    with pytest.raises(IndexError):
        form.cut(make_table(2), totals_of(2), 0, 3, 100, lines)
    with pytest.raises(IndexError):
        form.cut(make_table(4), totals_of(4), 0, 4, 10, lines[:1])


@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=40), piece_bytes=st.integers(1, 1000))
def test_pieces_hold_every_batch_once(sizes, piece_bytes):
    rows = len(sizes)
    table = make_table(rows)
    totals = totals_of(rows)
    measure_kernel.clear_totals(totals, rows)
    totals[0] = sizes
    totals[1] = [size // 3 for size in sizes]
    totals[2] = [size * 2 for size in sizes]
    totals[3] = [size * 3 for size in sizes]
    results = []
    for form in (uncompiled("kafkafs.reading.measure_kernel"), measure_kernel):
        lines = np.zeros((sum(sizes) // piece_bytes + 2, COLUMNS), dtype=np.int64)
        count = form.cut(table, totals, 0, rows, piece_bytes, lines)
        results.append([Piece._make(line) for line in lines[:count].tolist()])
    pieces = results[0]
    assert pieces == results[1]
    assert sum(piece.size for piece in pieces) == sum(sizes)
    at = 0
    for piece in pieces:
        first, last = piece.position // 100, piece.file_end // 100
        assert sum(sizes[at:first]) == 0
        assert piece.size == sum(sizes[first:last]) > 0
        assert piece.size < piece_bytes + max(sizes)
        assert piece.records == sum(size // 3 for size in sizes[first:last])
        assert piece.base_offset == first * 10
        assert piece.crc == first + 5
        inside = [size for size in sizes[first:last] if size]
        assert (piece.least, piece.greatest) == (min(inside) * 2, max(inside) * 3)
        at = last
    assert sum(sizes[at:]) == 0
