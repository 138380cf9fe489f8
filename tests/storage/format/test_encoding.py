"""Batches and message sets as brokers, producers and cleaners wrote them; and decoded blocks encoded again."""

import mmap
import struct
import zlib
from dataclasses import replace
from itertools import islice

import cramjam
import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from storage.append import message_sets
from storage.append.batch_encoder import BatchEncoder
from storage.config import LogConfig
from storage.errors import CorruptBatch, InvalidRecord, RecordTooLarge, UnsupportedFormat
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.block import Record, RecordColumns
from storage.format.columns import RecordColumn
from storage.format.compression import Codec
from storage.format.control_records import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    control_records,
    control_type,
    parse_marker,
)
from storage.format.decoder import Decoder
from storage.format.record_batch import (
    BatchFields,
    Encoded,
    empty_batch,
    encode_batch,
    encode_into,
    move_batch,
)
from tests.storage.format.outcomes import exact, in_both_forms, read_all
from tests.support.control_batches import marker_batch
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures
from tests.support.readers import table_of
from tests.support.record_headers import batches, v2_header

CODECS = list(Codec)
SOME = [
    Record(b"k", b"value", [(b"h", b"1"), (b"h", None), (b"", b"")], 1000),
    Record(None, None, [], 990),
    Record(b"", b"", [("größe".encode(), b"x" * 200)], 2**62),
    Record(b"key" * 50, b"v" * 70_000, [], 0),
]


def read_back(batch):
    """(offset, timestamp, key, value, headers) by aiokafka's reader, its CRC check included."""
    reader = DefaultRecordBatch(bytearray(batch))
    assert reader.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, [(n.encode(), v) for n, v in r.headers]) for r in reader]


def fields_of(data):
    """The settable fields that a stored batch has."""
    header = v2_header(data)
    append_time = header.attributes & 8
    return BatchFields(
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=bool(header.attributes & 16),
        control=bool(header.attributes & 32),
        log_append_time_ms=header.max_timestamp if append_time else None,
        delete_horizon_ms=header.base_timestamp if header.attributes & 64 else None,
    )


@requires_fixtures
def test_bytes_equal_the_java_producers():
    """Partition 0 of c-none was written by Kafka's Java producer, with and without producer ids."""
    golden = iter(read_golden(FIXTURES / "codecs" / "golden" / "c-none-0.jsonl.gz"))
    seen = idempotent = 0
    for log in sorted((FIXTURES / "codecs" / "log" / "c-none-0").glob("*.log")):
        for stored in batches(log.read_bytes()):
            header = v2_header(stored)
            records = [Record(g.key, g.value, g.headers, g.timestamp) for g in islice(golden, header.records_count)]
            assert encode_batch(records, base_offset=header.base_offset, fields=fields_of(stored)) == stored
            seen += 1
            idempotent += header.producer_id >= 0
    assert next(golden, None) is None
    assert seen > 50
    assert idempotent > 10


@requires_fixtures
def test_bytes_equal_the_cleaners_empty_batches():
    """The 61-byte batches that Kafka's cleaner left."""
    seen = 0
    for log in sorted((FIXTURES / "compaction-after" / "log").glob("cmp-*/*.log")):
        for stored in batches(log.read_bytes()):
            if stored[16] != 2 or len(stored) != 61:
                continue
            header = v2_header(stored)
            rebuilt = empty_batch(
                base_offset=header.base_offset,
                last_offset=header.base_offset + header.last_offset_delta,
                max_timestamp=header.max_timestamp,
                fields=fields_of(stored),
            )
            assert rebuilt == stored
            seen += 1
    assert seen > 0


@pytest.mark.parametrize("codec", CODECS)
def test_another_reader_reads_what_was_encoded(codec):
    batch = encode_batch(SOME, base_offset=2**40, codec=codec, fields=BatchFields(leader_epoch=7))
    header = v2_header(batch)
    assert (header.attributes, header.records_count, header.last_offset_delta) == (int(codec), 4, 3)
    assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (1000, 2**62, 7)
    assert read_back(batch) == [(2**40 + i, r.timestamp, r.key, r.value, list(r.headers)) for i, r in enumerate(SOME)]


def test_times_and_deltas_that_are_given_take_the_place_of_the_records():
    fields = BatchFields(log_append_time_ms=77, delete_horizon_ms=500, last_offset_delta=9)
    header = v2_header(encode_batch(SOME[:2], fields=fields))
    assert (header.base_timestamp, header.max_timestamp, header.last_offset_delta) == (500, 77, 9)
    header = v2_header(encode_batch(SOME[:2], fields=BatchFields(base_timestamp=3, max_timestamp=4)))
    assert (header.base_timestamp, header.max_timestamp) == (3, 4)


def test_timestamps_wrap_as_javas_longs_do():
    data = encode_batch([Record(None, b"", (), timestamp) for timestamp in (-1, 2**63 - 1, -(2**63))])
    # 2^63 - 1 - (-1) wraps to -2^63, whose zigzag is all ones: nine 0xff and 0x01.
    assert data[61 + 9 : 61 + 19] == b"\xff" * 9 + b"\x01"
    assert v2_header(data).max_timestamp == 2**63 - 1


# Columns


def test_columns_that_share_one_value_equal_tuples():
    lines = b"first\nsecond\n\n"
    columns = RecordColumns(lines, np.array([0, 6, 13]), np.array([5, 6, 0]), timestamp=np.array([42]))
    records = [Record(None, line, (), 42) for line in (b"first", b"second", b"")]
    assert encode_batch(columns, base_offset=3) == encode_batch(records, base_offset=3)
    constant = [np.array([number]) for number in (2, 9, 0, 3, 0, 0, 0)]
    short = RecordColumns(b"abc", np.zeros(4, np.int64), *constant)
    full = RecordColumns(b"abc", np.zeros(4, np.int64), *(np.repeat(column, 4) for column in constant))
    assert encode_batch(short) == encode_batch(full)
    assert len(encode_batch(full)) == 61 + 4 * 12


def test_rows_taken_and_timestamps_replaced():
    records = [Record(b"a", b"1", [(b"h", b"x")], 5), Record(None, None), Record(b"c", b"3")]
    columns = RecordColumns.from_records(records)
    taken = columns.take(np.array([2, 0])).with_timestamps(7)
    assert [(taken.key(row), taken.value(row)) for row in range(2)] == [(b"c", b"3"), (b"a", b"1")]
    assert encode_batch(taken) == encode_batch([records[2]._replace(timestamp=7), records[0]._replace(timestamp=7)])
    assert columns.timestamp.tolist() == [5, -1, -1]


def test_rows_that_fit_are_encoded_and_the_rest_left():
    columns = RecordColumns.from_records(Record(None, b"x" * 100, (), i) for i in range(10))
    whole = encode_batch(columns)
    record_size = (len(whole) - 61) // 10
    out = bytearray(20 + 61 + 4 * record_size + 1)
    assert encode_into(out, 20, columns, 3, base_offset=3) == Encoded(7, len(out) - 1, 6)
    assert [r[:2] for r in read_back(bytes(out[20:-1]))] == [(i, i) for i in range(3, 7)]
    assert out[:20] == bytes(20)
    # One byte less and the fourth does not fit; no room for one record, none for the header.
    assert encode_into(bytearray(len(out) - 2), 20, columns, 3).next_row == 6
    for size in (0, 61, 61 + record_size - 1):
        small = bytearray(size)
        assert encode_into(small, 0, columns) == Encoded(0, 0)
        assert small == bytes(size)


def test_offset_deltas_of_a_compacted_batch_are_kept():
    starts, ones = np.array([0, 2]), np.array([1, 1])
    columns = RecordColumns(
        b"a1b2", starts + 1, ones, np.array([5, 6]), key_start=starts, key_length=ones, offset_delta=np.array([2, 9])
    )
    batch = encode_batch(columns, base_offset=100, fields=BatchFields(last_offset_delta=20))
    assert [r[0] for r in read_back(batch)] == [102, 109]
    assert v2_header(batch).last_offset_delta == 20
    assert v2_header(encode_batch(columns, base_offset=100)).last_offset_delta == 9


@pytest.mark.usefixtures("both_forms")
def test_columns_are_checked_against_the_buffer():
    good = {"value_start": np.array([0]), "value_length": np.array([7]), "timestamp": np.array([0])}
    encode_batch(RecordColumns(b"0123456789", **good))
    for column, values in {
        "value_start": (-1, 4, 2**63 - 1),
        "value_length": (11, -2, 2**63 - 1),
        "key_length": (-(2**63),),
        "headers_length": (-1, 11),
        "headers_count": (-1, 2**31),
        "offset_delta": (2**31, -(2**31) - 1),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match="row 0"):
                encode_batch(RecordColumns(b"0123456789", **(good | {column: np.array([value])})))


INT64 = st.integers(-(2**63), 2**63 - 1)
# Mostly within a small buffer, at times anywhere.
NEAR = st.integers(-2, 40) | st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]) | INT64


def matrix(rows):
    return np.array(rows, np.int64).reshape(-1, len(RecordColumn)).T.copy()


@given(
    data=st.binary(max_size=32),
    rows=st.lists(st.tuples(*[NEAR] * len(RecordColumn)), min_size=1, max_size=6),
    base_timestamp=INT64,
    consecutive=st.booleans(),
    room=st.integers(-70, 120),
    position=st.integers(0, 5),
)
def test_any_columns_are_encoded_or_refused(data, rows, base_timestamp, consecutive, room, position):
    offset, timestamp, key, key_size, value, value_size, headers, count, headers_size = matrix(rows)
    columns = RecordColumns(
        exact(data), value, value_size, timestamp, key, key_size, headers, headers_size, count,
        None if consecutive else offset,
    )  # fmt: skip

    def encoded():
        out = exact(b"\xaa" * (position + max(0, BATCH_HEADER_SIZE + room)))
        done = encode_into(out, position, columns, fields=BatchFields(base_timestamp=base_timestamp))
        assert out[:position] == b"\xaa" * position
        assert out[done.end :] == b"\xaa" * (len(out) - done.end) or not done.next_row
        return done, bytes(out)

    in_both_forms(encoded)


@pytest.mark.usefixtures("both_forms")
@given(st.lists(st.lists(st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=200)), max_size=4)))
def test_spans_of_headers(rows):
    block = decoded(encode_batch([Record(None, b"", headers) for headers in [*rows, []]]))
    data = bytes(block.buffer)
    assert [
        (data[name : name + size], None if length < 0 else data[value : value + length])
        for name, size, value, length in block.headers_spans().T.tolist()
    ] == [header for headers in rows for header in headers]
    assert [block.headers(row) for row in range(len(rows))] == rows


# Lines

LINE = st.binary(max_size=70).filter(lambda line: b"\n" not in line)


@given(
    lines=st.lists(LINE, min_size=1, max_size=80)
    | st.lists(st.sampled_from([b"", b"x" * 3000]), min_size=1, max_size=9),
    rest=LINE,
    begun=LINE,
    timestamp=st.sampled_from([0, 1, 1700000000000, 2**63 - 1]),
    append_time=st.booleans(),
    lacking=st.integers(-2, 2),
)
def test_lines_become_the_batch_of_their_values(lines, rest, begun, timestamp, append_time, lacking):
    data = b"".join(line + b"\n" for line in lines)
    values = [begun + lines[0], *lines[1:]]
    fields = BatchFields(log_append_time_ms=timestamp if append_time else None)
    expected = encode_batch([Record(None, value, timestamp=timestamp) for value in values], fields=fields)
    config = LogConfig.from_overrides(
        LogConfig(),
        {
            "message.timestamp.type": "LogAppendTime" if append_time else "CreateTime",
            "max.message.bytes": str(len(expected) - lacking),
        },
    )

    def encoded():
        done = BatchEncoder().encode_lines(exact(begun), exact(data + rest), config, timestamp)
        return done and (done[0], bytes(done[1].data), done[1].offsets, done[1].max_timestamp)

    assert in_both_forms(encoded) == (None if lacking > 0 else (len(data), expected, len(lines), timestamp))
    # Where no line ends, or not even the header fits, there is no batch.
    assert in_both_forms(lambda: BatchEncoder().encode_lines(exact(begun), exact(rest), LogConfig(), 0)) is None
    few = LogConfig.from_overrides(LogConfig(), {"max.message.bytes": str(len(rest))})
    assert in_both_forms(lambda: BatchEncoder().encode_lines(b"", exact(data), few, 0)) is None


# What is refused, and what is changed in place


def test_rows_and_fields_out_of_range_are_refused():
    columns = RecordColumns.from_records([Record(None, b"x")])
    for first, last in ((0, 0), (0, 2), (-1, 1), (1, 1)):
        with pytest.raises(ValueError, match="rows"):
            encode_into(bytearray(200), 0, columns, first, last)
    with pytest.raises(ValueError, match="rows"):
        encode_batch([])
    with pytest.raises(ValueError, match="out of range"):
        encode_batch([Record(None, b"")], fields=BatchFields(producer_epoch=2**15))
    with pytest.raises(ValueError, match="shorter"):
        encode_batch(RecordColumns(b"", np.zeros(3, np.int64), np.zeros(2, np.int64), timestamp=np.zeros(1, np.int64)))


def test_one_record_above_two_gib_is_refused_without_reading_it():
    """One value column entry of 2^31 - 1 bytes over a sparse mapping: the body would pass the limit."""
    with mmap.mmap(-1, 2**31) as memory:
        columns = RecordColumns(memory, np.array([0]), np.array([2**31 - 1]), timestamp=np.array([0]))
        with pytest.raises(RecordTooLarge):
            encode_into(bytearray(100), 0, columns)
        del columns


def test_base_offset_and_epoch_lie_outside_the_crc():
    log = bytearray(encode_batch(SOME) + encode_batch(SOME, codec=Codec.LZ4))
    second = len(encode_batch(SOME))
    before = bytes(log)
    move_batch(memoryview(log)[second:], 2**50, 12)
    assert log[:second] == before[:second]
    header = v2_header(bytes(log), second)
    assert (header.base_offset, header.leader_epoch) == (2**50, 12)
    assert [r[0] for r in read_back(bytes(log[second:]))] == [2**50 + i for i in range(4)]


# Control records


def test_control_keys_and_markers_by_kafkas_rules():
    assert [control_type(struct.pack(">hh", 0, number)) for number in range(7)] == list(ControlType)[1:]
    assert control_type(b"\x00\x00\x00\x07") is ControlType.UNKNOWN
    assert control_type(b"\x00\x05\x00\x01more") is ControlType.COMMIT  # later versions may only add fields
    for key in (None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"):
        with pytest.raises(CorruptBatch):
            control_type(key)
    commit = b"\x00\x00\x00\x01"
    assert parse_marker(commit, b"\x00\x00\x00\x00\x00\x1f") == EndTransactionMarker(ControlType.COMMIT, 31)
    assert parse_marker(b"\x00\x00\x00\x02", b"") is None
    for value in (None, b"\x00\x00\x00\x00\x00", b"\x80\x00\x00\x00\x00\x01"):
        with pytest.raises(CorruptBatch):
            parse_marker(commit, value)


def decoded(data, *, control=True):
    table = table_of(data)
    block = Decoder().decode(data, table, origin=0, control=control)
    assert block.damage is None
    assert block.next_row == table.rows
    return block


def test_control_records_of_a_block():
    data = encode_batch([Record(None, b"data")] * 10)
    for at, kind in enumerate((ControlType.COMMIT, ControlType.ABORT)):
        where = {"base_offset": 10 + at, "timestamp": 100 + at}
        data += marker_batch(kind, 70 + at, **where, producer_epoch=at, coordinator_epoch=4 + at)
    assert control_records(decoded(data)) == [
        ControlRecord(10, 100, 1, ControlType.COMMIT, 70, 0, 4),
        ControlRecord(11, 101, 2, ControlType.ABORT, 71, 1, 5),
    ]
    assert control_records(decoded(data, control=False)) == []
    fields = BatchFields(producer_id=1, producer_epoch=0, transactional=True, control=True)
    broken = Record(b"\x00\x00\x00\x00", b"12345")
    with pytest.raises(CorruptBatch) as raised:
        control_records(decoded(data + encode_batch([broken], base_offset=12, fields=fields)))
    assert raised.value.offset == 12
    data = encode_batch([Record(b"\x00\x00\x00\x02", None)], base_offset=3, fields=replace(fields, transactional=False))
    found = [(control.type, control.coordinator_epoch) for control in control_records(decoded(data))]
    assert found == [(ControlType.LEADER_CHANGE, None)]


# Message sets, formats v0 and v1

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
MESSAGES = [
    Record(b"k", b"value", (), 1000),
    Record(None, None, (), 3000),
    Record(b"", b"", (), 2000),
    Record(b"key" * 50, b"v" * 100_000, (), 0),
]


def messages_read_back(data, magic):
    """(offset, timestamp, key, value) by aiokafka's reader, its CRC check included."""
    found = []
    if magic == 0 and data[17] == Codec.LZ4:  # which it does not read: v0's wrong header checksum
        assert zlib.crc32(data[16:]) == struct.unpack_from(">I", data, 12)[0]
        frame = bytearray(data[26:])
        assert frame[6] == 0x1A
        frame[6] = 0x82
        data = bytes(cramjam.lz4.decompress(frame))
    for batch in batches(data):
        reader = LegacyRecordBatch(bytearray(batch), magic)
        assert reader.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in reader]
    return found


@requires_fixtures
@pytest.mark.parametrize("magic", [0, 1])
def test_bytes_equal_the_brokers(magic):
    """Plain messages as Kafka 3.9.1 wrote them, converting down (partition 0) and from an old client (partition 1)."""
    seen = 0
    for name in (f"v{magic}-none-0", f"v{magic}-none-1"):
        fixture = FIXTURES / f"v{magic}"
        logs = sorted((fixture / "log" / name).glob("*.log"))
        stored = [batch for log in logs for batch in batches(log.read_bytes())]
        for golden, batch in zip(read_golden(fixture / "golden" / f"{name}.jsonl.gz"), stored, strict=True):
            record = Record(golden.key, golden.value, (), golden.timestamp)
            assert message_sets.encode([record], magic, base_offset=golden.offset) == batch
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
def test_another_reader_reads_message_sets(magic, codec):
    expected = [(r.timestamp if magic else None, r.key, r.value) for r in MESSAGES]
    data = message_sets.encode(MESSAGES, magic, base_offset=1 << 40, codec=codec)
    assert len(list(batches(data))) == (len(MESSAGES) if codec == Codec.NONE else 1)
    assert messages_read_back(data, magic) == [((1 << 40) + i, *fields) for i, fields in enumerate(expected)]
    offsets = [100, 103, 104, 110]  # gaps are kept
    data = message_sets.encode(MESSAGES, magic, base_offset=100, offsets=offsets, codec=codec)
    assert messages_read_back(data, magic) == [
        (offset, *fields) for offset, fields in zip(offsets, expected, strict=True)
    ]
    if magic:
        data = message_sets.encode(MESSAGES, magic, codec=codec, log_append_time_ms=777)
        assert all(batch[17] == codec | 8 for batch in batches(data))
        assert [r[1] for r in messages_read_back(data, magic)] == [777] * len(MESSAGES)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_wrapper_has_its_last_messages_offset_and_the_greatest_timestamp(codec):
    for magic in (0, 1):
        data = message_sets.encode(MESSAGES, magic, base_offset=50, codec=codec)
        offset, size, crc, stored_magic, attributes = struct.unpack_from(">qiIbb", data)
        assert (offset, size, stored_magic, attributes) == (53, len(data) - 12, magic, codec)
        assert crc == zlib.crc32(data[16:])
        if magic:
            assert struct.unpack_from(">q", data, 18) == (3000,)
        key_at = 26 if magic else 18
        assert struct.unpack_from(">i", data, key_at) == (-1,)
        if codec is Codec.GZIP:  # offsets within it are relative in v1
            inner = zlib.decompress(data[key_at + 8 :], 31)
            assert [struct.unpack_from(">q", m)[0] for m in batches(inner)] == [
                i + (0 if magic else 50) for i in range(4)
            ]


def test_what_the_old_formats_lack_is_refused(monkeypatch):
    for error, records, magic, options in (
        (InvalidRecord, [Record(None, b"", ((b"h", b""),))], 1, {}),
        (UnsupportedFormat, MESSAGES, 1, {"codec": Codec.ZSTD}),
        (UnsupportedFormat, MESSAGES, 2, {}),
        (UnsupportedFormat, MESSAGES, 0, {"log_append_time_ms": 1}),
        (ValueError, [], 1, {}),
    ):
        with pytest.raises(error):
            message_sets.encode(records, magic, **options)
    assert message_sets.MOST_MESSAGE_BYTES == 2**31 - 1  # the size of a message is an int32
    monkeypatch.setattr(message_sets, "MOST_MESSAGE_BYTES", 14 + 5)
    assert len(message_sets.encode([Record(b"key", b"va")], 0)) == 12 + 14 + 5
    with pytest.raises(RecordTooLarge) as refused:
        message_sets.encode([Record(b"key", b"val")], 0)
    assert (refused.value.expected, refused.value.found) == ("at most 31 bytes", 32)


# Decoded blocks encoded again: the way that compaction and conversions go.

# The broker accepted these as they are; they do not decode (fixtures/README.md).
DAMAGED = {"rec-c4-flip-magic-0", "rec-m-flip-below-recovery-point-0"}


@requires_fixtures
@pytest.mark.parametrize("log_dir", [*FIXTURES.glob("*/log"), *FIXTURES.glob("*/after")], ids=lambda it: it.parent.name)
def test_uncompressed_batches_come_out_as_they_were(log_dir):
    """Byte for byte, of every producer, coordinator and cleaner, where timestamps are the records' own."""
    for log in sorted(log_dir.glob("*/*.log")):
        if log.parent.name in DAMAGED:
            continue
        data = log.read_bytes()
        table = table_of(data)
        decoder = Decoder()
        for row in range(table.rows):
            attributes = int(table.attributes[row])
            if table.magic[row] != 2 or attributes & 0x0F or table.count[row] == 0:
                continue
            block = decoder.decode(data, table, row, row + 1, origin=0, control=True)
            stored = data[int(table.position[row]) : int(table.end[row])]
            header = v2_header(stored)
            fields = replace(fields_of(stored), last_offset_delta=header.last_offset_delta)
            columns = RecordColumns.from_block(block, block.offset - header.base_offset)
            assert encode_batch(columns, base_offset=header.base_offset, fields=fields) == stored, log


def test_kept_records_of_a_compressed_batch():
    """A selection of a block's rows, with their offsets, into another codec."""
    records = [Record(b"k%d" % i, b"v" * i, ((b"h", b"%d" % i), (b"n", None))[: i % 3], 1000 - i) for i in range(20)]
    block = decoded(encode_batch(records, base_offset=500, codec=Codec.ZSTD))
    kept = block.select(np.arange(20) % 3 == 2)
    fields = BatchFields(delete_horizon_ms=77, last_offset_delta=19)

    def encoded(codec):
        columns = RecordColumns.from_block(kept, kept.offset - 500)
        return read_all(encode_batch(columns, base_offset=500, codec=codec, fields=fields))

    outcome = encoded(Codec.LZ4)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in outcome.records] == [
        (500 + i, r.timestamp, r.key, r.value, tuple(r.headers)) for i, r in enumerate(records) if i % 3 == 2
    ]
    assert outcome.batches[0][3] == 519
    assert in_both_forms(encoded, Codec.NONE).records == outcome.records
    block.headers_start[1] = len(block.buffer) - 1
    with pytest.raises(CorruptBatch, match="headers") as raised:
        RecordColumns.from_block(block)
    assert raised.value.offset == 501
