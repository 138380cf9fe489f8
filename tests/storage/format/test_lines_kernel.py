from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import encoder_kernel
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.block import Record
from storage.format.checksum import CRC32C_TABLES
from storage.format.record_batch import BatchFields, encode_batch, set_crc
from tests.storage.format.test_encoder_kernel import column
from tests.support.uncompiled import uncompiled

plain = uncompiled("storage.format.encoder_kernel")
FORMS = pytest.mark.parametrize("kernel", [encoder_kernel, plain], ids=["as-installed", "plain"])


def test_the_compiled_forms_are_compared_with_the_plain_ones() -> None:
    assert not plain.is_compiled()


@given(
    st.lists(st.binary(max_size=30), max_size=30),
    st.binary(max_size=10),
    st.integers(0, 40),
    st.sampled_from([10, 0, 44]),
)
def test_lines_are_split_as_bytes_split_does(lines: list[bytes], rest: bytes, capacity: int, separator: int) -> None:
    byte = bytes([separator])
    data = b"".join(line + byte for line in lines) + rest
    expected = data.split(byte)[:-1]
    for kernel in (encoder_kernel, plain):
        starts, lengths = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        rows = kernel.split_lines(data, 0, len(data), separator, starts, lengths)
        assert rows == min(capacity, len(expected))
        found = [data[s : s + n] for s, n in zip(starts[:rows].tolist(), lengths[:rows].tolist(), strict=True)]
        assert found == expected[:rows]


@given(
    lines=st.lists(st.binary(max_size=70).filter(lambda line: b"\n" not in line), min_size=1, max_size=80)
    | st.lists(st.sampled_from([b"", b"x" * 3000]), min_size=1, max_size=9),
    rest=st.binary(max_size=10).filter(lambda line: b"\n" not in line),
    begun=st.binary(max_size=20).filter(lambda part: b"\n" not in part),
    timestamp=st.sampled_from([0, 1, 1700000000000, 2**63 - 1]),
    append_time=st.booleans(),
    lacking=st.integers(-2, 2),
)
def test_lines_become_the_batch_of_their_values(
    lines: list[bytes], rest: bytes, begun: bytes, timestamp: int, append_time: bool, lacking: int
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    values = [begun + lines[0], *lines[1:]]
    fields = BatchFields(log_append_time_ms=timestamp if append_time else None)
    expected = encode_batch([Record(None, value, timestamp=timestamp) for value in values], fields=fields)
    for kernel in (encoder_kernel, plain):
        out = bytearray(len(expected) - lacking)
        arguments = (10, timestamp, 8 if append_time else 0, out, CRC32C_TABLES)
        done = kernel.encode_lines(bytearray(begun), memoryview(data + rest), *arguments)
        if lacking > 0:
            assert done[0] == 0
            continue
        assert done == (len(lines), len(expected), len(data))
        if not kernel.SEALS:
            set_crc(out, 0, len(expected))
        assert out[: len(expected)] == expected


@FORMS
def test_no_line_is_no_batch(kernel: ModuleType) -> None:
    out = bytearray(200)
    assert kernel.encode_lines(b"begun", b"no end", 10, 0, 0, out, CRC32C_TABLES)[0] == 0
    assert kernel.encode_lines(b"", b"", 10, 0, 0, out, CRC32C_TABLES)[0] == 0
    assert out == bytes(200)


@FORMS
def test_without_room_for_a_header_there_is_no_batch(kernel: ModuleType) -> None:
    for room in (0, BATCH_HEADER_SIZE - 1, BATCH_HEADER_SIZE):
        assert kernel.encode_lines(b"", b"\n", 10, 0, 0, bytearray(room), CRC32C_TABLES)[0] == 0


@FORMS
def test_all_tables_are_asked_for(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="tables"):
        kernel.encode_lines(b"", b"a\n", 10, 0, 0, bytearray(200), CRC32C_TABLES[:-1])


@FORMS
def test_lines_are_split_within_their_span(kernel: ModuleType) -> None:
    starts, lengths = column([0] * 4), column([0] * 4)
    assert kernel.split_lines(b"a\nbb\nccc\nd", 2, 8, 10, starts, lengths) == 1
    assert (starts[0], lengths[0]) == (2, 2)
    assert kernel.split_lines(b"", 0, 0, 10, starts, lengths) == 0
    for start, end in ((-1, 0), (1, 0), (0, 2)):
        with pytest.raises(ValueError, match="span"):
            kernel.split_lines(b"a", start, end, 10, starts, lengths)
    with pytest.raises(ValueError, match="span"):
        kernel.split_lines(b"a", 0, 1, 10, starts, lengths[:1])
