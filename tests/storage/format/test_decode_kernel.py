"""Decoding of v2 records and v0/v1 messages at and beyond every limit, built and plain kernels alike."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import CorruptBatch
from storage.format import decode_kernel, decoder
from storage.format.decoder import Decoder
from tests.support.damaged_bytes import with_right_checksums
from tests.support.raw_batches import batch, body, message, record, sized, varint
from tests.support.readers import table_of
from tests.support.uncompiled import plain_kernels, uncompiled

INT64_MAX = 2**63 - 1
HUGE = varint(2**31 - 1)


@pytest.fixture(params=["as installed", "plain"], autouse=True)
def _both_forms(request):
    if request.param == "plain":
        with plain_kernels():
            yield
    else:
        yield


def decode(data):
    table = table_of(data)
    return Decoder().decode(data, table, origin=0, control=True)


def fault(data):
    """(what, expected, found) of data's first batch, which is damaged."""
    block = decode(data)
    assert len(block) == 0
    assert block.damage is not None
    assert type(block.damage.error) is CorruptBatch
    error = block.damage.error
    return error.what, str(error.expected), str(error.found)


# Records of format v2


def test_fields_land_in_their_columns():
    headers = [(b"name", b"content"), (b"", None), ("ключ".encode(), b"")]
    data = batch([record(3, b"key", b"value", headers, timestamp_delta=-7), record(5, None, None)], 100)
    block = decode(data)
    assert block.damage is None
    assert block.offset.tolist() == [103, 105]
    assert block.timestamp.tolist() == [993, 1000]
    assert [block.key(0), block.key(1)] == [b"key", None]
    assert [block.value(0), block.value(1)] == [b"value", None]
    assert [block.headers(0), block.headers(1)] == [headers, []]
    assert block.key_length.tolist() == [3, -1]
    assert block.value_length.tolist() == [5, -1]
    assert block.headers_count.tolist() == [3, 0]
    assert block.batch.tolist() == [0, 0]


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 8190, 8191, 8192, 1_048_575, 1_048_576])
def test_lengths_about_the_steps_of_varints(length):
    block = decode(batch([record(0, b"k" * length, b"v" * length), record(1)]))
    assert (block.key(0), block.value(0), block.value(1)) == (b"k" * length, b"v" * length, b"value")


@pytest.mark.parametrize(
    ("base", "delta"), [(0, 0), (1, -1), (INT64_MAX, 0), (INT64_MAX - 2**31 + 1, 2**31 - 1), (2**31, -(2**31))]
)
def test_offsets_at_their_limits(base, delta):
    assert decode(batch([record(delta)], base)).offset.tolist() == [base + delta]


@pytest.mark.parametrize(("base", "delta"), [(0, -1), (INT64_MAX, 1), (INT64_MAX - 5, 6), (2**31 - 1, -(2**31))])
def test_an_offset_beyond_64_bits_or_below_0_is_corrupt(base, delta):
    what, expected, found = fault(batch([record(delta)], base))
    assert what == "offset delta passes the 64-bit limit (record 0 of the batch)"
    assert expected == f"a sum with {base} of 0 or more"
    assert found == str(delta)


@pytest.mark.parametrize(
    ("base", "delta", "timestamp"),
    [
        (0, INT64_MAX, INT64_MAX),
        (0, -(2**63), -(2**63)),
        (-1, 0, -1),
        (INT64_MAX, 1, -(2**63)),  # as Java adds: how a base of -1 and a timestamp of 2**63 - 1 are stored
        (-1, -(2**63), INT64_MAX),
    ],
)
def test_timestamps_wrap_as_in_java(base, delta, timestamp):
    assert decode(batch([record(timestamp_delta=delta)], base_timestamp=base)).timestamp.tolist() == [timestamp]


def test_log_append_time_is_every_records_timestamp():
    records = [record(0, timestamp_delta=5), record(1, timestamp_delta=-5)]
    assert decode(batch(records, attributes=8, max_timestamp=1234)).timestamp.tolist() == [1234, 1234]


def test_deltas_count_from_the_delete_horizon_where_there_is_one():
    data = batch([record(timestamp_delta=-400)], attributes=0x40, base_timestamp=5000)
    assert decode(data).timestamp.tolist() == [4600]


def test_the_attributes_byte_of_a_record_means_nothing():
    data = sized(b"\xff" + body()[1:])
    assert decode(batch([data])).value(0) == b"value"


def test_long_forms_of_varints_are_read():
    long_zero = b"\x80\x80\x80\x80\x00"
    fields = b"\x00" + b"\x80" * 9 + b"\x00" + long_zero + b"\x81\x80\x80\x80\x00" + long_zero + long_zero
    block = decode(batch([sized(fields)]))
    assert (block.damage, block.key(0), block.value(0), block.headers(0)) == (None, None, b"", [])


@pytest.mark.parametrize("length", [-2, -(2**31)])
def test_any_negative_length_is_null_as_in_kafka(length):
    fields = b"\x00\x00\x00" + varint(length) + varint(length) + varint(1) + sized(b"h") + varint(length)
    block = decode(batch([sized(fields)]))
    assert (block.key(0), block.value(0), block.headers(0)) == (None, None, [(b"h", None)])
    assert (block.key_length[0], block.value_length[0]) == (-1, -1)


def test_an_empty_batch_is_no_damage():
    block = decode(batch([], 5, last_offset_delta=3) + batch([record()], 9))
    assert (block.damage, block.offset.tolist(), block.batch.tolist()) == (None, [9], [1])


NAMED = {
    "count negative": (batch([record()], count=-1), "record count does not fit the batch's size"),
    "count above the bytes": (batch([record()], count=2**31 - 1), "record count does not fit the batch's size"),
    "count above the records": (batch([record(), record()], count=3), "fewer records than the batch declares"),
    "count below the records": (batch([record(), record()], count=1), "bytes are left after the batch's last record"),
    "count 0 with records": (batch([record()], count=0), "bytes are left after the batch's last record"),
    "one byte left": (batch(record() + b"\x00", count=1), "bytes are left after the batch's last record"),
    "base offset negative": (batch([record()], -1), "base offset is negative"),
    "last offset delta negative": (
        batch([record()], 7, last_offset_delta=-1),
        "last offset is no offset from the base offset on",
    ),
    "last offset overflows": (
        batch([record()], INT64_MAX, last_offset_delta=1),
        "last offset is no offset from the base offset on",
    ),
    "length negative": (batch(varint(-1) + body(), count=1), "record length does not fit the batch"),
    "length below the least": (batch(varint(5) + bytes(9), count=1), "record length does not fit the batch"),
    "length past the batch": (batch(varint(99) + body(), count=1), "record length does not fit the batch"),
    "length huge": (batch(HUGE + body(), count=1), "record length does not fit the batch"),
    "length does not end": (batch(b"\x80" * 20, count=1), "a variable-length integer does not end in time"),
    "length cut off": (batch(record() + b"\x80" * 7, count=2), "a variable-length integer does not end in time"),
    "key past the record": (batch([sized(b"\0\0\0" + varint(5) + b"kk\0\0")]), "key length does not fit the record"),
    "key huge": (batch([sized(b"\0\0\0" + HUGE + b"kkkk")]), "key length does not fit the record"),
    "value past the record": (
        batch([sized(b"\0\0\0\x01" + varint(3) + b"v\0")]),
        "value length does not fit the record",
    ),
    "value huge": (batch([sized(b"\0\0\0\x01" + HUGE + b"v")]), "value length does not fit the record"),
    "headers negative": (batch([sized(body()[:-1] + varint(-1))]), "header count does not fit the record"),
    "headers huge": (batch([sized(body()[:-1] + HUGE)]), "header count does not fit the record"),
    "headers one too many": (
        batch([sized(body()[:-1] + b"\x04\x02h\x00")]),
        "a variable-length integer does not end in time",
    ),
    "header key null": (
        batch([sized(body()[:-1] + b"\x02" + varint(-1) + b"\x00")]),
        "header key length does not fit the record",
    ),
    "header key past the record": (
        batch([sized(body()[:-1] + b"\x02" + varint(9) + b"h\x00")]),
        "header key length does not fit the record",
    ),
    "header value past the record": (
        batch([sized(body()[:-1] + b"\x02\x02h" + varint(9) + b"v")]),
        "header value length does not fit the record",
    ),
    "header without a value": (
        batch([sized(body()[:-1] + b"\x02\x02h")]),
        "a variable-length integer does not end in time",
    ),
    "a byte too many in the record": (batch([sized(body() + b"\x00")]), "record fields do not fill the record"),
    "timestamp of 11 bytes": (
        batch([sized(b"\0" + b"\x80" * 10 + b"\x00" + bytes(4))]),
        "a variable-length integer does not end in time",
    ),
    "timestamp above 64 bits": (
        batch([sized(b"\0" + b"\x80" * 9 + b"\x02" + bytes(4))]),
        "a variable-length integer does not end in time",
    ),
    "offset delta of 6 bytes": (
        batch([sized(b"\0\0" + b"\x80" * 5 + b"\x00" + bytes(3))]),
        "a variable-length integer does not end in time",
    ),
    "offset delta above 32 bits": (
        batch([sized(b"\0\0" + b"\x80" * 4 + b"\x10" + bytes(3))]),
        "a variable-length integer does not end in time",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_each_damage_has_its_name(name):
    data, what = NAMED[name]
    assert fault(data)[0].partition(" (record")[0] == what


def test_a_fault_tells_record_and_numbers():
    bad = sized(b"\0\0\0" + varint(40) + b"kk\0\0")
    what, expected, found = fault(batch([record(), record(1), bad]))
    assert what == "key length does not fit the record (record 2 of the batch)"
    assert (expected, found) == ("at most 4", "40")


def test_nothing_of_a_bad_batch_is_kept_and_what_precedes_it_is():
    good, bad = batch([record(), record(1)]), batch([record(), record(1), b"\x0c" + bytes(5) + b"\x02"], 2)
    block = decode(good + bad + batch([record()], 10))
    assert block.offset.tolist() == [0, 1]
    assert block.damage is not None
    assert (block.next_row, block.damage.row, block.damage.position) == (1, 1, len(good))


def test_a_payload_cut_anywhere_is_damage():
    payload = record(0, b"key", b"value" * 4, [(b"h", b"x" * 8)])
    for length in range(len(payload)):
        assert fault(batch(payload[:length], count=1))[0] in DAMAGES
        # The record's own length fits what is left of it, its fields do not.
        assert length < 8 or fault(batch(varint(length - 1) + payload[1:length], count=1))[0] in DAMAGES


DAMAGES = {text + record for text, _ in decode_kernel.FAULTS for record in ("", " (record 0 of the batch)")}


# Messages of formats v0 and v1: what lies in a wrapper is reached by handing it over as decompressed


def decode_wrapper(content, offset, *, magic=1, attributes=2):
    """([offset, timestamp] of each message, what is wrong) of a wrapper message at `offset` with this content."""
    table = table_of(message(offset, b"", magic=magic, attributes=attributes, timestamp=7777))
    columns, fault = np.empty((9, 50), np.int64), np.zeros(4, np.int64)
    spans = np.array([0, len(content)], np.int64)
    _, used = decoder.decode_kernel.decode(  # built or plain
        content, table.data, 0, 1, 0, spans[:1], spans[1:], np.empty(0, np.uint8), False, columns, 0, fault
    )
    return columns[:2, :used].T.tolist(), decode_kernel.FAULTS[fault[0]][0]


def test_plain_messages():
    data = message(5, b"v", b"k", timestamp=99) + message(6, None, None, magic=0) + message(7, b"", b"", attributes=8)
    block = decode(data)
    assert block.damage is None
    assert block.offset.tolist() == [5, 6, 7]
    assert block.timestamp.tolist() == [99, -1, 1000]
    assert [block.key(i) for i in range(3)] == [b"k", None, b""]
    assert [block.value(i) for i in range(3)] == [b"v", None, b""]
    assert block.headers(0) == []


def test_a_negative_offset_is_corrupt():
    assert fault(message(-1, b"v"))[0] == "offset is negative or passes the 64-bit limit"


@pytest.mark.parametrize("field", ["key", "value"])
def test_lengths_past_a_plain_message(field):
    key, value = (b"\0\0\0\x07", b"\0\0\0\x06") if field == "key" else (b"\xff" * 4, b"\0\0\0\x07")
    data = bytearray(message(1, b"")[:26] + key + value + b"v" * 6)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    what = f"{field} length does not fit the message"
    assert fault(with_right_checksums(bytes(data)))[0] == what


def test_v0_wrappers_hold_absolute_offsets():
    content = message(40, b"a", magic=0) + message(42, b"b", magic=0)
    assert decode_wrapper(content, 42, magic=0) == ([[40, -1], [42, -1]], "")
    assert decode_wrapper(content, 7, magic=0) == ([[40, -1], [42, -1]], "")  # the wrapper's does not matter


def test_v1_wrappers_hold_relative_offsets():
    content = message(0, b"a", timestamp=5) + message(1, b"b", timestamp=6) + message(4, b"c", timestamp=3)
    assert decode_wrapper(content, 104) == ([[100, 5], [101, 6], [104, 3]], "")
    assert decode_wrapper(content, 4) == ([[0, 5], [1, 6], [4, 3]], "")


def test_v1_wrapper_offset_0_means_base_0():
    assert decode_wrapper(message(0, b"a") + message(1, b"b"), 0) == ([[0, 1000], [1, 1000]], "")


def test_log_append_time_of_a_v1_wrapper_is_its_messages():
    content = message(0, b"a", timestamp=5) + message(1, b"b", magic=0)
    assert decode_wrapper(content, 1, attributes=2 | 8) == ([[0, 7777], [1, -1]], "")


def test_a_cut_off_message_at_the_end_of_a_wrapper_is_ignored():
    content = message(0, b"a") + message(1, b"b")[:-1]
    assert decode_wrapper(content, 0) == ([[0, 1000]], "")


@pytest.mark.parametrize(
    ("content", "offset", "what"),
    [
        (b"", 5, "compressed wrapper holds no message"),
        (bytes(11), 5, "compressed wrapper holds no message"),
        (message(0, b"a")[:-1], 5, "compressed wrapper holds no message"),
        (bytes(26), 5, "message size is below the least"),
        (bytes(8) + b"\xff" * 30, 5, "message size is below the least"),
        (
            message(0, b"a")[:8] + (21).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(20),
            5,
            "message size is below the least",
        ),
        (message(0, b"a", attributes=1), 5, "message within a wrapper is compressed itself"),
        (
            message(0, b"a", magic=1)[:16] + b"\x02" + message(0, b"a")[17:],
            5,
            "message within a wrapper has an unknown format",
        ),
        (message(0, b"a") + message(6, b"b"), 5, "wrapper offset is below its last message's relative offset"),
        (message(0, b"a") + message(-1, b"b"), 5, "offset is negative or passes the 64-bit limit"),
        (message(-1, b"a") + message(1, b"b"), 5, "offset is negative or passes the 64-bit limit"),
        (message(INT64_MAX, b"a") + message(1, b"b"), 5, "offset is negative or passes the 64-bit limit"),
        (message(0, b"a" * 50)[:-58] + b"\x7f\xff\xff\xff" + b"a" * 54, 5, "key length does not fit the message"),
        (message(0, b"a" * 50)[:-54] + b"\x7f\xff\xff\xff" + b"a" * 50, 5, "value length does not fit the message"),
        (b"".join(message(i, b"") for i in range(51)), 50, "more messages than columns have room for"),
    ],
)
def test_bad_wrappers(content, offset, what):
    assert decode_wrapper(content, offset) == ([], what)


# Arguments that cannot be right are refused, whatever they are meant to be


@pytest.mark.parametrize("data", [batch([record()]), message(0, b"v")])
@pytest.mark.parametrize("plain", [False, True])
def test_rows_spans_and_columns_are_checked(data, plain):
    module = uncompiled("storage.format.decode_kernel") if plain else decode_kernel
    table = table_of(data)
    columns, fault, none = np.empty((9, 1), np.int64), np.zeros(4, np.int64), np.empty(0, np.int64)
    skip = np.empty(0, np.uint8)

    def call(first, last, starts, ends, used=0, origin=0):
        spans = np.array(starts, np.int64), np.array(ends, np.int64)
        return module.decode(data, table.data, first, last, origin, *spans, skip, False, columns, used, fault)

    for arguments in [(-1, 1, [], []), (0, table.capacity + 1, [], []), (1, 0, [], []), (0, 1, [], [], -1)]:
        with pytest.raises(ValueError, match=r"rows|columns"):
            call(*arguments)
    with pytest.raises(ValueError, match="rows"):
        call(0, 1, [], [], origin=-1)
    with pytest.raises(ValueError, match="spans"):
        call(0, 1, [0], [])
    for starts, ends in ([-1], [10]), ([0], [len(data) + 1]), ([10], [9]), ([INT64_MAX], [INT64_MAX]):
        assert call(0, 1, starts, ends) == (0, 0)
        assert fault[0] == len(module.FAULTS) - 1
    assert call(0, 1, [], [], origin=1) == (0, 0)
    assert fault[0] == len(module.FAULTS) - 1
    assert call(0, 1, [], [], used=1) == (0, 1)
    assert "room" in module.FAULTS[fault[0]][0]
    assert call(0, 1, [], []) == (1, 1)
    assert fault[0] == 0
    with pytest.raises(ValueError, match="columns"):
        module.decode(data, table.data, 0, 1, 0, none, none, skip, False, columns[:8], 0, fault)
