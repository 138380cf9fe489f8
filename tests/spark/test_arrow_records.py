"""Arrow batches as records to be encoded: every type, slice and null that Spark may pass."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from kafkafs.spark.arrow_columns import record_columns  # noqa: E402
from storage.errors import InvalidRecord  # noqa: E402
from storage.format.batches import BatchTable, scan  # noqa: E402
from storage.format.decoder import Decoder  # noqa: E402
from storage.format.record_batch import encode_batch  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUES = ["", "a", None, "grüße", "x" * 300, None, "end"]
KEYS = [None, b"k", b"", b"\xff\x00", None, b"kk", b"z" * 9000]
LISTS = [
    None,
    [],
    [{"key": "a", "value": b"1"}],
    [{"key": "", "value": None}, {"key": "ö" * 40, "value": b""}],
    [{"key": "n" * 70, "value": b"v" * 9000}],
    None,
    [{"key": "last", "value": b"\x00" * 64}],
]


def decoded(columns):
    data = encode_batch(columns)
    table = BatchTable.empty(4)
    scan(data, 0, table)
    block = Decoder().decode(memoryview(data), table, origin=0)
    assert block.damage is None
    return [(block.key(row), block.value(row), block.headers(row)) for row in range(len(block))]


def expected(first, last):
    return [
        (
            KEYS[row],
            None if VALUES[row] is None else str(VALUES[row]).encode(),
            [(header["key"].encode(), header["value"]) for header in LISTS[row] or []],
        )
        for row in range(first, last)
    ]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize(("first", "last"), [(0, 7), (1, 5), (3, 4), (6, 7), (0, 2)])
def test_every_type_and_slice(text, binary, first, last):
    size = last - first
    key = pa.array(KEYS, binary).slice(first, size)
    value = pa.array(VALUES, text).slice(first, size)
    headers = pa.array(LISTS, pa.list_(pa.struct([("key", text), ("value", binary)]))).slice(first, size)
    assert decoded(record_columns(key, value, headers)) == expected(first, last)


def test_bytes_under_a_null_are_left_out():
    mask = pa.array([True, False, True]).buffers()[1]
    bounds = pa.array([0, 2, 5, 6], pa.int32()).buffers()[1]
    value = pa.Array.from_buffers(pa.binary(), 3, [mask, bounds, pa.py_buffer(b"aaXXXb")])
    assert decoded(record_columns(None, value, None)) == [(None, b"aa", []), (None, None, []), (None, b"b", [])]
    structs = pa.StructArray.from_arrays([pa.array(["x", "y", "z"]), value], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), structs)
    columns = record_columns(None, pa.array([b"v"]), headers)
    assert decoded(columns) == [(None, b"v", [(b"x", b"aa"), (b"y", None), (b"z", b"b")])]


def test_values_alone_are_not_copied():
    value = pa.array(VALUES).slice(1, 5)
    buffer = record_columns(None, value, None).buffer
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), np.frombuffer(value.buffers()[2], np.uint8))


def test_rows_are_chosen():
    columns = record_columns(pa.array(KEYS, pa.binary()), pa.array(VALUES), pa.array(LISTS, HEADERS))
    chosen = [5, 3, 3, 0]
    assert decoded(columns.take(np.array(chosen))) == [expected(row, row + 1)[0] for row in chosen]


def test_a_header_needs_a_key():
    with pytest.raises(InvalidRecord, match="no key"):
        record_columns(None, pa.array([b"v"]), pa.array([[{"key": None, "value": b"x"}]], HEADERS))
