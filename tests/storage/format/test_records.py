"""Decoding of v2 records and of v0/v1 messages at and beyond every limit."""

import gzip

import pytest

from storage.errors import CorruptBatch
from storage.format.decoder import Decoder
from tests.storage.format.outcomes import exact
from tests.support.damaged_bytes import with_right_checksums
from tests.support.raw_batches import batch, body, message, record, sized, varint
from tests.support.readers import table_of

INT64_MAX = 2**63 - 1
HUGE = varint(2**31 - 1)
pytestmark = pytest.mark.usefixtures("both_forms")


def decode(data, **options):
    return Decoder(**options).decode(exact(data), table_of(data), origin=0, control=True)


def fault(data, **options):
    """(what, expected, found) of data's first batch, which is damaged to a reader and to an audit alike."""
    block = decode(data, **options)
    assert len(block) == 0
    told = []
    for damage in (block.damage, Decoder(**options).audit(exact(data), table_of(data), origin=0).damage):
        assert type(damage.error) is CorruptBatch
        told.append((damage.error.what, str(damage.error.expected), str(damage.error.found)))
    assert told[0] == told[1]
    return told[0]


# Records of format v2


def test_lengths_about_the_steps_of_varints():
    for length in (0, 1, 62, 63, 64, 8190, 8191, 8192, 1_048_575, 1_048_576):
        block = decode(batch([record(0, b"k" * length, b"v" * length), record(1)]))
        assert (block.key(0), block.value(0), block.value(1)) == (b"k" * length, b"v" * length, b"value")


def test_offsets_at_their_limits():
    for base, delta in ((0, 0), (1, -1), (INT64_MAX, 0), (INT64_MAX - 2**31 + 1, 2**31 - 1), (2**31, -(2**31))):
        assert decode(batch([record(delta)], base)).offset.tolist() == [base + delta]
    what = "offset delta passes the 64-bit limit (record 0 of the batch)"
    for base, delta in ((0, -1), (INT64_MAX, 1), (INT64_MAX - 5, 6), (2**31 - 1, -(2**31))):
        assert fault(batch([record(delta)], base)) == (what, f"a sum with {base} of 0 or more", str(delta))


@pytest.mark.parametrize(
    ("options", "delta", "timestamp"),
    [
        ({"base_timestamp": 0}, INT64_MAX, INT64_MAX),
        ({"base_timestamp": 0}, -(2**63), -(2**63)),
        ({"base_timestamp": -1}, 0, -1),
        # As Java adds: how a base of -1 and a timestamp of 2**63 - 1 are stored.
        ({"base_timestamp": INT64_MAX}, 1, -(2**63)),
        ({"base_timestamp": -1}, -(2**63), INT64_MAX),
        ({"attributes": 0x08, "max_timestamp": 1234}, 5, 1234),  # the time of the append is every record's
        ({"attributes": 0x08, "max_timestamp": 1234}, -5, 1234),
        ({"attributes": 0x40, "base_timestamp": 5000}, -400, 4600),  # from the delete horizon on
    ],
)
def test_timestamps(options, delta, timestamp):
    assert decode(batch([record(timestamp_delta=delta)], **options)).timestamp.tolist() == [timestamp]


def test_numbers_in_forms_that_kafka_does_not_write():
    any_attributes = decode(batch([sized(b"\xff" + body()[1:])]))
    assert any_attributes.value(0) == b"value"
    long_zero = b"\x80\x80\x80\x80\x00"
    fields = b"\x00" + b"\x80" * 9 + b"\x00" + long_zero + b"\x81\x80\x80\x80\x00" + long_zero + long_zero
    block = decode(batch([sized(fields)]))
    assert (block.damage, block.key(0), block.value(0), block.headers(0)) == (None, None, b"", [])
    for length in (-2, -(2**31)):  # any negative length is null, as in Kafka
        fields = b"\x00\x00\x00" + varint(length) + varint(length) + varint(1) + sized(b"h") + varint(length)
        block = decode(batch([sized(fields)]))
        assert (block.key(0), block.value(0), block.headers(0)) == (None, None, [(b"h", None)])
        assert (block.key_length[0], block.value_length[0]) == (-1, -1)


def fields(data):
    """A batch of one record with these bytes after its length."""
    return batch([sized(data)])


def headers(data):
    """A batch of one record with these bytes in place of the header count 0."""
    return fields(body()[:-1] + data)


def payload(data):
    """A batch that claims one record, with these bytes."""
    return batch(data, count=1)


DAMAGES = {
    "record count does not fit the batch's size": [batch([record()], count=-1), batch([record()], count=2**31 - 1)],
    "fewer records than the batch declares": [batch([record(), record()], count=3)],
    "bytes are left after the batch's last record": [
        batch([record(), record()], count=1),
        batch([record()], count=0),
        payload(record() + b"\x00"),
    ],
    "base offset is negative": [batch([record()], -1)],
    "last offset is no offset from the base offset on": [
        batch([record()], 7, last_offset_delta=-1),
        batch([record()], INT64_MAX, last_offset_delta=1),
    ],
    "record length does not fit the batch": [
        payload(varint(-1) + body()),
        payload(varint(5) + bytes(9)),  # below the least
        payload(varint(99) + body()),
        payload(HUGE + body()),
    ],
    "a variable-length integer does not end in time": [
        payload(b"\x80" * 20),
        batch(record() + b"\x80" * 7, count=2),
        headers(b"\x04\x02h\x00"),  # a header too few
        headers(b"\x02\x02h"),  # a header without a value
        fields(b"\0" + b"\x80" * 10 + b"\x00" + bytes(4)),  # a timestamp of 11 bytes
        fields(b"\0" + b"\x80" * 9 + b"\x02" + bytes(4)),  # above 64 bits
        fields(b"\0\0" + b"\x80" * 5 + b"\x00" + bytes(3)),  # an offset delta of 6 bytes
        fields(b"\0\0" + b"\x80" * 4 + b"\x10" + bytes(3)),  # above 32 bits
    ],
    "key length does not fit the record": [
        fields(b"\0\0\0" + varint(5) + b"kk\0\0"),
        fields(b"\0\0\0" + HUGE + b"kkkk"),
    ],
    "value length does not fit the record": [
        fields(b"\0\0\0\x01" + varint(3) + b"v\0"),
        fields(b"\0\0\0\x01" + HUGE + b"v"),
    ],
    "header count does not fit the record": [headers(varint(-1)), headers(HUGE)],
    "header key length does not fit the record": [
        headers(b"\x02" + varint(-1) + b"\x00"),
        headers(b"\x02" + varint(9) + b"h\x00"),
    ],
    "header value length does not fit the record": [headers(b"\x02\x02h" + varint(9) + b"v")],
    "record fields do not fill the record": [fields(body() + b"\x00")],
}


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_has_its_name(what):
    for data in DAMAGES[what]:
        assert fault(data)[0].partition(" (record")[0] == what
    third = fault(batch([record(), record(1), sized(b"\0\0\0" + varint(40) + b"kk\0\0")]))
    assert third == ("key length does not fit the record (record 2 of the batch)", "at most 4", "40")


def test_a_payload_cut_anywhere_is_damage():
    whole = record(0, b"key", b"value" * 4, [(b"h", b"x" * 8)])
    for length in range(len(whole)):
        assert fault(payload(whole[:length]))
        # The record's own length fits what is left of it, its fields do not.
        assert length < 8 or fault(payload(varint(length - 1) + whole[1:length]))


# Messages of formats v0 and v1


def test_bad_plain_messages():
    assert fault(message(-1, b"v"))[0] == "offset is negative or passes the 64-bit limit"
    for field, key, value in (("key", b"\0\0\0\x07", b"\0\0\0\x06"), ("value", b"\xff" * 4, b"\0\0\0\x07")):
        data = bytearray(message(1, b"")[:26] + key + value + b"v" * 6)
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        assert fault(with_right_checksums(bytes(data)))[0] == f"{field} length does not fit the message"


def wrapper(content, offset, magic=1, attributes=1):
    return message(offset, gzip.compress(content), magic=magic, attributes=attributes, timestamp=7777)


V0 = message(40, b"a", magic=0) + message(42, b"b", magic=0)
V1 = message(0, b"a", timestamp=5) + message(1, b"b", timestamp=6) + message(4, b"c", timestamp=3)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (wrapper(V0, 42, magic=0), [[40, -1], [42, -1]]),  # absolute offsets: the wrapper's does not matter
        (wrapper(V0, 7, magic=0), [[40, -1], [42, -1]]),
        (wrapper(V1, 104), [[100, 5], [101, 6], [104, 3]]),  # relative offsets
        (wrapper(V1, 4), [[0, 5], [1, 6], [4, 3]]),
        (wrapper(message(0, b"a") + message(1, b"b"), 0), [[0, 1000], [1, 1000]]),  # 0 means base 0
        (wrapper(message(0, b"a") + message(1, b"b", magic=0), 1, attributes=9), [[0, 7777], [1, -1]]),  # append time
        (wrapper(message(0, b"a") + message(1, b"b")[:-1], 0), [[0, 1000]]),  # what is cut off at the end is ignored
    ],
    ids=["offsets of v0", "a later offset", "relative offsets", "below", "base 0", "append time", "cut off"],
)
def test_wrappers(data, expected):
    block = decode(data)
    assert block.damage is None
    assert block.columns[:2].T.tolist() == expected


A, LONG = message(0, b"a"), message(0, b"a" * 50)
BELOW_THE_LEAST = "message size is below the least"
NO_OFFSET = "offset is negative or passes the 64-bit limit"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "compressed wrapper holds no message"),
        (bytes(11), "compressed wrapper holds no message"),
        (A[:-1], "compressed wrapper holds no message"),
        (bytes(26), BELOW_THE_LEAST),
        (bytes(8) + b"\xff" * 30, BELOW_THE_LEAST),
        (A[:8] + (21).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(20), BELOW_THE_LEAST),
        (message(0, b"a", attributes=1), "message within a wrapper is compressed itself"),
        (A[:16] + b"\x02" + A[17:], "message within a wrapper has an unknown format"),
        (A + message(6, b"b"), "wrapper offset is below its last message's relative offset"),
        (A + message(-1, b"b"), NO_OFFSET),
        (message(-1, b"a") + message(1, b"b"), NO_OFFSET),
        (message(INT64_MAX, b"a") + message(1, b"b"), NO_OFFSET),
        (LONG[:-58] + b"\x7f\xff\xff\xff" + b"a" * 54, "key length does not fit the message"),
        (LONG[:-54] + b"\x7f\xff\xff\xff" + b"a" * 50, "value length does not fit the message"),
    ],
)
def test_bad_wrappers(content, what):
    assert fault(wrapper(content, 5), verify_inner_crc=False)[0].partition(" (record")[0] == what


@pytest.mark.parametrize("magic", [0, 1])
def test_the_checksum_of_a_wrapped_message_is_checked(magic):
    content = b"".join(message(i, b"v", b"key", magic=magic, crc=123) for i in range(3))
    what, expected, _ = fault(wrapper(content, 2, magic=magic))
    assert (what, expected) == ("checksum of a message within a wrapper differs (record 0 of the batch)", "123")
    assert len(decode(wrapper(content, 2, magic=magic), verify_inner_crc=False)) == 3


def test_wrappers_without_a_value_or_with_wrong_lengths():
    assert fault(message(1, None, attributes=1))[0] == "compressed wrapper has no value"
    for field, at in (("key", 26), ("value", 30)):
        data = bytearray(wrapper(A, 4))
        data[at : at + 4] = b"\x7f\xff\xff\xff"
        assert fault(bytes(data), verify_crc=False)[0] == f"{field} length does not fit the wrapper"
