"""The kernels of encoding, of lines and of record headers: both forms of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import decode_kernel, encoder_kernel
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.block import Record, RecordColumns, encode_headers, encode_varint
from storage.format.checksum import CRC32C_TABLES
from storage.format.record_batch import BatchFields, encode_batch, set_crc
from storage.types import is_compiled
from tests.support.uncompiled import uncompiled

plain = uncompiled("storage.format.encoder_kernel")
FORMS = pytest.mark.parametrize("kernel", [encoder_kernel, plain], ids=["as-installed", "plain"])

INT64 = st.integers(-(2**63), 2**63 - 1)
# Mostly within a small buffer, at times anywhere.
NEAR = st.integers(-2, 40) | st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]) | INT64


def column(values):
    return np.array(values, np.int64)


def test_the_compiled_forms_are_compared_with_the_plain_ones():
    assert not is_compiled(plain)


@given(
    data=st.binary(max_size=32),
    rows=st.lists(st.tuples(*[NEAR] * 9), min_size=1, max_size=6),
    base_timestamp=INT64,
    consecutive=st.booleans(),
    room=st.integers(0, 120),
    position=st.integers(0, 5),
)
def test_both_forms_encode_any_columns_alike(data, rows, base_timestamp, consecutive, room, position):
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


def test_columns_of_one_element_hold_for_all_rows():
    constant = [column([0]), column([2]), column([9]), column([0]), column([3]), column([0]), column([0]), column([0])]
    start, *rest = (np.repeat(values, 4) for values in constant)
    full = RecordColumns(b"abc", start, *rest)
    short = RecordColumns(b"abc", start, *constant[1:])
    assert encode_batch(short) == encode_batch(full)
    assert len(encode_batch(full)) == 61 + 4 * 12


def test_rows_taken_and_timestamps_replaced():
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
def test_varints_by_kafkas_rule(value):
    """ByteUtilsTest: zigzag, seven bits a byte, least significant first."""
    known = {0: "00", -1: "01", 1: "02", 63: "7e", 64: "8001", -64: "7f", -65: "8101"}
    encoded = encode_varint(value)
    raw = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded))
    assert (raw >> 1) ^ -(raw & 1) == value
    assert encoded.hex() == known.get(value, encoded.hex())
    assert len(encoded) == max(1, -(-(raw.bit_length()) // 7))


@given(
    st.lists(st.binary(max_size=30), max_size=30),
    st.binary(max_size=10),
    st.integers(0, 40),
    st.sampled_from([10, 0, 44]),
)
def test_lines_are_split_as_bytes_split_does(lines, rest, capacity, separator):
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
def test_lines_become_the_batch_of_their_values(lines, rest, begun, timestamp, append_time, lacking):
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
def test_no_line_is_no_batch(kernel):
    out = bytearray(200)
    assert kernel.encode_lines(b"begun", b"no end", 10, 0, 0, out, CRC32C_TABLES)[0] == 0
    assert kernel.encode_lines(b"", b"", 10, 0, 0, out, CRC32C_TABLES)[0] == 0
    assert out == bytes(200)


@FORMS
def test_without_room_for_a_header_there_is_no_batch(kernel):
    for room in (0, BATCH_HEADER_SIZE - 1, BATCH_HEADER_SIZE):
        assert kernel.encode_lines(b"", b"\n", 10, 0, 0, bytearray(room), CRC32C_TABLES)[0] == 0


# The walk over encoded record headers: both forms of the kernel.

headers_plain = uncompiled("storage.format.decode_kernel")
HEADERS_FORMS = pytest.mark.parametrize("kernel", [decode_kernel, headers_plain], ids=["as-installed", "plain"])


def spans(count):
    return np.full((4, count), -9, np.int64)


def unused():
    """What measuring does not fill: a fault, and spans."""
    return column([0] * 4), spans(0)


HEADERS = st.lists(st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=200)), max_size=4)


@given(st.lists(HEADERS, max_size=5))
def test_headers_are_measured(rows):
    encoded = [encode_headers(headers) for headers in rows]
    lengths = column([len(part) for part in encoded])
    starts = np.cumsum(lengths) - lengths
    counts = column([len(headers) for headers in rows])
    for kernel in (decode_kernel, headers_plain):
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


@HEADERS_FORMS
def test_a_negative_value_length_is_null_and_room_is_checked(kernel):
    """DefaultRecord.readHeaders: any negative length is null, as for the decoder."""
    for room, done in ((1, 1), (2, 2), (3, 2)):
        found, fault = spans(room), column([0] * 4)
        rows = column([0, 2]), column([1, 1]), column([0, 0])
        assert kernel.find_headers(b"\x00\x01\x00\x03", *rows, fault, found) == done
        assert found[3, :done].tolist() == [-1] * done
    with pytest.raises(ValueError, match="shorter"):
        kernel.find_headers(b"", column([0]), column([0]), column([0]), column([0] * 4), spans(1)[:3])


@given(st.binary(max_size=40), st.lists(st.tuples(NEAR, NEAR), max_size=4))
def test_both_forms_measure_any_bytes_alike(data, rows):
    starts, counts = column([row[0] for row in rows]), column([row[1] for row in rows])
    outcomes = []
    for kernel in (decode_kernel, headers_plain):
        measured = np.zeros(len(rows), np.int64)
        outcomes.append((kernel.find_headers(data, starts, counts, measured, *unused()), measured.tolist()))
    assert outcomes[0] == outcomes[1]
    done, measured = outcomes[0]
    assert all(0 <= length <= len(data) for length in measured[:done])


@HEADERS_FORMS
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
def test_headers_that_do_not_parse_are_told(kernel, headers):
    data = b"\x00\x00" + headers
    assert kernel.find_headers(data, column([0, 2]), column([1, 1]), column([0, 0]), *unused()) == 1
    assert kernel.find_headers(data, column([0, 2]), column([1, 1]), column([0, 0]), column([0] * 4), spans(2)) == 1


@FORMS
def test_short_columns_and_odd_spans_are_refused(kernel):
    good = np.zeros((9, 1), np.int64)
    for short in (good, np.zeros((8, 2), np.int64)):
        with pytest.raises(ValueError, match="shorter"):
            kernel.encode_records(b"", short, True, 0, 2, 0, bytearray(100), 0, column([0, 0, 0]))
    for first, last, position, result in ((-1, 1, 0, 3), (1, 0, 0, 3), (0, 1, -1, 3), (0, 1, 101, 3), (0, 1, 0, 2)):
        with pytest.raises(ValueError, match="out of range"):
            kernel.encode_records(b"", good, True, first, last, 0, bytearray(100), position, np.zeros(result, np.int64))


@FORMS
def test_all_tables_are_asked_for(kernel):
    with pytest.raises(ValueError, match="tables"):
        kernel.encode_lines(b"", b"a\n", 10, 0, 0, bytearray(200), CRC32C_TABLES[:-1])


@FORMS
def test_lines_are_split_within_their_span(kernel):
    starts, lengths = column([0] * 4), column([0] * 4)
    assert kernel.split_lines(b"a\nbb\nccc\nd", 2, 8, 10, starts, lengths) == 1
    assert (starts[0], lengths[0]) == (2, 2)
    assert kernel.split_lines(b"", 0, 0, 10, starts, lengths) == 0
    for start, end in ((-1, 0), (1, 0), (0, 2)):
        with pytest.raises(ValueError, match="span"):
            kernel.split_lines(b"a", start, end, 10, starts, lengths)
    with pytest.raises(ValueError, match="span"):
        kernel.split_lines(b"a", 0, 1, 10, starts, lengths[:1])
