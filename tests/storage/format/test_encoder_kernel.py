from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import encoder_kernel
from storage.format.record_columns import encode_varint
from tests.support.uncompiled import uncompiled

plain = uncompiled("storage.format.encoder_kernel")
FORMS = pytest.mark.parametrize("kernel", [encoder_kernel, plain], ids=["as-installed", "plain"])

INT64 = st.integers(-(2**63), 2**63 - 1)
# Mostly within a small buffer, at times anywhere.
NEAR = st.integers(-2, 40) | st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]) | INT64


def column(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def test_the_compiled_forms_are_compared_with_the_plain_ones() -> None:
    assert not plain.is_compiled()


@given(
    data=st.binary(max_size=32),
    rows=st.lists(st.tuples(*[NEAR] * 9), min_size=1, max_size=6),
    base_timestamp=INT64,
    consecutive=st.booleans(),
    room=st.integers(0, 120),
    position=st.integers(0, 5),
)
def test_both_forms_encode_any_columns_alike(
    data: bytes,
    rows: list[tuple[int, ...]],
    base_timestamp: int,
    consecutive: bool,
    room: int,
    position: int,
) -> None:
    columns = [column(list(values)) for values in zip(*rows, strict=True)]
    if consecutive:
        columns[8] = column([])
    outcomes = []
    for kernel in (encoder_kernel, plain):
        out = bytearray(b"\xaa" * (position + room))
        result = column([0, 0, 0])
        status = kernel.encode_records(data, *columns, 0, len(rows), base_timestamp, out, position, result)
        outcomes.append((status, bytes(out), result.tolist()))
    assert outcomes[0] == outcomes[1]
    status, out, (done, end, _) = outcomes[0]
    assert (status == encoder_kernel.DONE) == (done == len(rows))
    assert out[:position] == b"\xaa" * position
    assert out[end:] == b"\xaa" * (len(out) - end)


@FORMS
def test_short_columns_and_odd_spans_are_refused(kernel: ModuleType) -> None:
    one, two, none = column([0]), column([0, 0]), column([])
    good = [one, one, one, one, one, one, one, one, none]
    for index in range(9):
        short = [two] * 8 + [none]
        short[index] = column([0]) if index == 8 else none
        with pytest.raises(ValueError, match="shorter"):
            kernel.encode_records(b"", *short, 0, 2, 0, bytearray(100), 0, column([0, 0, 0]))
    for first, last, position, result in ((-1, 1, 0, 3), (1, 0, 0, 3), (0, 1, -1, 3), (0, 1, 101, 3), (0, 1, 0, 2)):
        with pytest.raises(ValueError, match="out of range"):
            kernel.encode_records(b"", *good, first, last, 0, bytearray(100), position, np.zeros(result, np.int64))


@FORMS
def test_columns_of_one_element_hold_for_all_rows(kernel: ModuleType) -> None:
    one = column([3])
    constant = [column([0]), column([2]), column([0]), one, column([9]), column([0]), column([0]), column([0])]
    full = [np.repeat(values, 4) for values in constant]
    outs = []
    for columns in (constant, full):
        out, result = bytearray(200), column([0, 0, 0])
        assert kernel.encode_records(b"abc", *columns, column([]), 0, 4, 0, out, 0, result) == kernel.DONE
        outs.append((bytes(out), result.tolist()))
    assert outs[0] == outs[1]
    assert outs[0][1] == [4, 4 * 12, 9]


@pytest.mark.parametrize("value", [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_varints_by_kafkas_rule(value: int) -> None:
    """ByteUtilsTest: zigzag, seven bits a byte, least significant first."""
    known = {0: "00", -1: "01", 1: "02", 63: "7e", 64: "8001", -64: "7f", -65: "8101"}
    encoded = encode_varint(value)
    raw = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded))
    assert (raw >> 1) ^ -(raw & 1) == value
    assert encoded.hex() == known.get(value, encoded.hex())
    assert len(encoded) == max(1, -(-(raw.bit_length()) // 7))
