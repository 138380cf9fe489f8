from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import encoder_kernel
from storage.format.block import Record, RecordColumns, encode_varint
from storage.format.record_batch import encode_batch
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
    columns = np.array(list(zip(*rows, strict=True)), np.int64)
    outcomes = []
    for kernel in (encoder_kernel, plain):
        out = bytearray(b"\xaa" * (position + room))
        result = column([0, 0, 0])
        status = kernel.encode_records(data, columns, consecutive, 0, len(rows), base_timestamp, out, position, result)
        outcomes.append((status, bytes(out), result.tolist()))
    assert outcomes[0] == outcomes[1]
    status, out, (done, end, _) = outcomes[0]
    assert (status == encoder_kernel.DONE) == (done == len(rows))
    assert out[:position] == b"\xaa" * position
    assert out[end:] == b"\xaa" * (len(out) - end)


@FORMS
def test_short_columns_and_odd_spans_are_refused(kernel: ModuleType) -> None:
    good = np.zeros((9, 1), np.int64)
    for short in (good, np.zeros((8, 2), np.int64)):
        with pytest.raises(ValueError, match="shorter"):
            kernel.encode_records(b"", short, True, 0, 2, 0, bytearray(100), 0, column([0, 0, 0]))
    for first, last, position, result in ((-1, 1, 0, 3), (1, 0, 0, 3), (0, 1, -1, 3), (0, 1, 101, 3), (0, 1, 0, 2)):
        with pytest.raises(ValueError, match="out of range"):
            kernel.encode_records(b"", good, True, first, last, 0, bytearray(100), position, np.zeros(result, np.int64))


def test_columns_of_one_element_hold_for_all_rows() -> None:
    constant = [column([0]), column([2]), column([9]), column([0]), column([3]), column([0]), column([0]), column([0])]
    start, *rest = (np.repeat(values, 4) for values in constant)
    full = RecordColumns(b"abc", start, *rest)
    short = RecordColumns(b"abc", start, *constant[1:])
    assert encode_batch(short) == encode_batch(full)
    assert len(encode_batch(full)) == 61 + 4 * 12


def test_rows_taken_and_timestamps_replaced() -> None:
    columns = RecordColumns.from_records(
        [Record(b"a", b"1", [(b"h", b"x")], 5), Record(None, None), Record(b"c", b"3")]
    )
    taken = columns.take(np.array([2, 0])).with_timestamps(7)
    assert [(taken.key(row), taken.value(row), int(taken.timestamp[row])) for row in range(2)] == [
        (b"c", b"3", 7), (b"a", b"1", 7),
    ]  # fmt: skip
    assert encode_batch(taken) == encode_batch([Record(b"c", b"3", (), 7), Record(b"a", b"1", [(b"h", b"x")], 7)])
    assert columns.timestamp.tolist() == [5, -1, -1]


@pytest.mark.parametrize("value", [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_varints_by_kafkas_rule(value: int) -> None:
    """ByteUtilsTest: zigzag, seven bits a byte, least significant first."""
    known = {0: "00", -1: "01", 1: "02", 63: "7e", 64: "8001", -64: "7f", -65: "8101"}
    encoded = encode_varint(value)
    raw = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded))
    assert (raw >> 1) ^ -(raw & 1) == value
    assert encoded.hex() == known.get(value, encoded.hex())
    assert len(encoded) == max(1, -(-(raw.bit_length()) // 7))
