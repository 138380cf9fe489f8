"""The walk over encoded record headers: both forms of the kernel."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import decode_kernel
from storage.format.block import encode_headers
from tests.storage.format.test_encoder_kernel import NEAR, column
from tests.support.uncompiled import uncompiled

plain = uncompiled("storage.format.decode_kernel")
FORMS = pytest.mark.parametrize("kernel", [decode_kernel, plain], ids=["as-installed", "plain"])


def spans(count: int) -> np.ndarray[Any, Any]:
    return np.full((4, count), -9, np.int64)


def unused() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What measuring does not fill: a fault, and spans."""
    return column([0] * 4), spans(0)


HEADERS = st.lists(st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=200)), max_size=4)


@given(st.lists(HEADERS, max_size=5))
def test_headers_are_measured(rows: list[list[tuple[bytes, bytes | None]]]) -> None:
    encoded = [encode_headers(headers) for headers in rows]
    lengths = column([len(part) for part in encoded])
    starts = np.cumsum(lengths) - lengths
    counts = column([len(headers) for headers in rows])
    for kernel in (decode_kernel, plain):
        measured = np.full(len(rows), -9, np.int64)
        assert kernel.find_headers(b"".join(encoded), starts, counts, measured, *unused()) == len(rows)
        assert measured.tolist() == lengths.tolist()
        found = spans(int(counts.sum()))
        assert kernel.find_headers(b"".join(encoded), starts, counts, measured, column([0] * 4), found) == len(rows)
        data = b"".join(encoded)
        assert [
            (data[name : name + size], None if length < 0 else data[value : value + length])
            for name, size, value, length in found.T.tolist()
        ] == [header for headers in rows for header in headers]


@FORMS
def test_a_negative_value_length_is_null_and_room_is_checked(kernel: ModuleType) -> None:
    """DefaultRecord.readHeaders: any negative length is null, as for the decoder."""
    for room, done in ((1, 1), (2, 2), (3, 2)):
        found, fault = spans(room), column([0] * 4)
        rows = column([0, 2]), column([1, 1]), column([0, 0])
        assert kernel.find_headers(b"\x00\x01\x00\x03", *rows, fault, found) == done
        assert found[3, :done].tolist() == [-1] * done
    with pytest.raises(ValueError, match="shorter"):
        kernel.find_headers(b"", column([0]), column([0]), column([0]), column([0] * 4), spans(1)[:3])


@given(st.binary(max_size=40), st.lists(st.tuples(NEAR, NEAR), max_size=4))
def test_both_forms_measure_any_bytes_alike(data: bytes, rows: list[tuple[int, int]]) -> None:
    starts, counts = column([row[0] for row in rows]), column([row[1] for row in rows])
    outcomes = []
    for kernel in (decode_kernel, plain):
        measured = np.zeros(len(rows), np.int64)
        outcomes.append((kernel.find_headers(data, starts, counts, measured, *unused()), measured.tolist()))
    assert outcomes[0] == outcomes[1]
    done, measured = outcomes[0]
    assert all(0 <= length <= len(data) for length in measured[:done])


@FORMS
@pytest.mark.parametrize(
    "headers",
    [
        b"",  # nothing where a length should be
        b"\x80",  # a varint without its end
        b"\x80\x80\x80\x80\x80\x00",  # six bytes of varint
        b"\x80\x80\x80\x80\x10",  # a fifth byte with more than four bits
        b"\x01\x01",  # a null name
        b"\x03\x00",  # length -2
        b"\x04a",  # the name is cut off
        b"\x02a",  # no value length
        b"\x02a\x04b",  # the value is cut off
        b"\xfe\xff\xff\xff\x0f\x01",  # length 2^31 - 1
    ],
)
def test_headers_that_do_not_parse_are_told(kernel: ModuleType, headers: bytes) -> None:
    data = b"\x00\x00" + headers
    assert kernel.find_headers(data, column([0, 2]), column([1, 1]), column([0, 0]), *unused()) == 1
    assert kernel.find_headers(data, column([0, 2]), column([1, 1]), column([0, 0]), column([0] * 4), spans(2)) == 1
