"""Keys and headers of blocks against looking at each record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkafs.reading.selection import header_rows, key_rows
from tests.support.blocks import Row, block_of

few = st.binary(max_size=2) | st.sampled_from(
    [b"key", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 40 + b"a", b"x" * 40 + b"b"]
)
headers = st.lists(st.tuples(few, st.none() | few), max_size=3).map(tuple)
rows = st.lists(st.builds(Row, key=st.none() | few, value=st.none() | few, headers=headers), max_size=12)


@given(rows, few)
def test_keys(chosen: list[Row], key: bytes) -> None:
    expected = [i for i, row in enumerate(chosen) if row.key == key]
    assert key_rows(block_of(chosen), key).tolist() == expected


@given(rows, few, few)
def test_headers(chosen: list[Row], name: bytes, value: bytes) -> None:
    expected = [i for i, row in enumerate(chosen) if (name, value) in row.headers]
    assert header_rows(block_of(chosen), name, value).tolist() == expected


@given(rows)
def test_headers_that_are_there(chosen: list[Row]) -> None:
    for name, value in {header for row in chosen for header in row.headers}:
        if value is not None:
            expected = [i for i, row in enumerate(chosen) if (name, value) in row.headers]
            assert header_rows(block_of(chosen), name, value).tolist() == expected
