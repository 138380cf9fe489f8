"""Decoder and RecordBlock: what is left out, where damage and full arenas stop it, batches decompressed together."""

import random
import threading
import tracemalloc
import zlib
from functools import partial

import numpy as np
import pytest

from storage.append import message_sets
from storage.errors import CorruptBatch, UnsupportedFormat
from storage.format import codec_library, compression, decode_kernel, decoder, inflate_kernel
from storage.format.batches import BatchTable
from storage.format.block import Record, RecordBlock
from storage.format.columns import RecordColumn
from storage.format.compression import Codec, compress
from storage.format.decoder import LARGE_BYTES, LARGE_RECORDS, MOST_HEADERS, MOST_RECORDS, Decoder
from storage.types import is_compiled
from tests.storage.format.outcomes import exact, read_all
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.nightly import rounds
from tests.support.raw_batches import batch, body, message, record, sized, varint
from tests.support.readers import table_of
from tests.support.uncompiled import uncompiled

CODECS = list(Codec)


def packed(codec, base_offset=0, count=1, value=b"v"):
    payload = b"".join(record(i, b"key", value) for i in range(count))
    if codec:
        payload = compress(codec, payload)
    return batch(payload, base_offset, count=count, attributes=codec)


def wrapper(codec, last_offset, count, *, magic=1, value=b"v"):
    base = 0 if magic == 1 else last_offset - count + 1
    content = b"".join(message(base + i, value, b"key", magic=magic) for i in range(count))
    return message(last_offset, compress(codec, content, magic), magic=magic, attributes=codec)


def decode(data, **options):
    return Decoder(**options).decode(data, table_of(data), origin=0)


def all_of(decoder, data, table, **options):
    """Offsets, and the damage of batches stepped over; each block goes further than the last."""
    offsets, errors, row = [], [], 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0, **options)
        offsets += block.offset.tolist()
        assert block.next_row > row or block.damage
        row = block.next_row
        if block.damage:
            errors.append(block.damage.error)
            row += 1
    return offsets, errors


# What is decoded, and where it stops


KINDS = {
    **{codec.config_name: partial(packed, codec) for codec in CODECS},
    "control": lambda offset, _, value: batch([record(0, b"key", value)], offset, attributes=0x30),
    "empty": lambda offset, count, _: batch([], offset, attributes=Codec.ZSTD, last_offset_delta=count - 1),
    "message": lambda offset, _, value: message(offset, value, b"key"),
    "v0": lambda offset, count, value: wrapper(Codec.LZ4, offset + count - 1, count, magic=0, value=value),
    "v1": lambda offset, count, value: wrapper(Codec.GZIP, offset + count - 1, count, value=value),
}


def a_log(dice):
    """Bytes of a few batches of any kinds, and of each batch (kind, offset, records, value)."""
    data, offset, batches = b"", 0, []
    for _ in range(dice.randrange(25)):
        kind, value = dice.choice(sorted(KINDS)), b"v" * dice.choice((1, 1, 100, 10_000))
        count = 1 if kind in ("control", "message") else dice.choice((1, 2, 10))
        data += KINDS[kind](offset, count, value)
        batches.append((kind, offset, count, value))
        offset += count
    return data, batches


@pytest.mark.usefixtures("both_forms")
def test_logs_of_any_batches_in_blocks_of_any_size():
    """Skipped rows and control batches are left out; a block ends where its memory is full, but for its last batch."""
    dice = random.Random(1)
    for _ in range(rounds(100, 5000)):
        (data, batches), control, origin = a_log(dice), dice.random() < 0.5, dice.choice((0, 10_000))
        skip = np.array([dice.random() < 0.3 for _ in batches], np.uint8)
        expected = [
            (offset + i, b"key", value)
            for (kind, offset, count, value), skipped in zip(batches, skip.tolist(), strict=True)
            if not skipped and kind != "empty" and (control or kind != "control")
            for i in range(count)
        ]
        block_bytes = dice.choice((40, 100, 500, 5000, 1 << 20))
        largest = max([count * (len(value) + 40) for _, _, count, value in batches], default=0)
        decoder = Decoder(block_bytes=block_bytes, verify_crc=dice.random() < 0.5)
        table, found, row = table_of(data, origin), [], 0
        while row < table.rows:
            block = decoder.decode(exact(data), table, row, origin=origin, skip=skip, control=control)
            assert block.damage is None
            assert block.buffer.readonly
            assert set(block.batch.tolist()) <= set(range(row, block.next_row))
            assert len(block.buffer) == len(data) or len(block.buffer) < block_bytes + largest
            found += [(int(offset), block.key(i), block.value(i)) for i, offset in enumerate(block.offset)]
            assert block.next_row > row
            row = block.next_row
        assert found == expected


def test_the_checksum_of_a_skipped_batch_is_checked_its_records_are_not():
    data = packed(Codec.NONE) + batch(b"nonsense", 1, count=1)
    table, skip = table_of(data), np.array([0, 1], np.uint8)
    assert Decoder().decode(data, table, origin=0, skip=skip).damage is None
    damage = Decoder().decode(data[:-1] + b"!", table, origin=0, skip=skip).damage
    assert (damage.row, damage.error.what) == (1, "batch checksum differs")


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_outside_of_the_buffer_are_the_callers_mistake(codec):
    data = packed(codec)
    table = table_of(data, 500)
    for buffer, origin in ((data, 0), (data, 501), (data[:-1], 500), (b"", 500)):
        for verify_crc in (True, False):
            with pytest.raises(ValueError, match="outside"):
                Decoder(verify_crc=verify_crc).decode(buffer, table, origin=origin)
    for first, last in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="rows"):
            Decoder().decode(data, table, first, last, origin=500)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_comes_after_the_good_batches(codec):
    data = packed(codec, 0, 3) + packed(codec, 3) + packed(codec, 4)
    table = table_of(data, 700)
    hurt = bytearray(data)
    hurt[int(table.end[1]) - 700 - 1] ^= 0xFF
    block = Decoder().decode(hurt, table, origin=700)
    assert block.offset.tolist() == [0, 1, 2]
    assert (block.next_row, block.damage.row, block.damage.position) == (1, 1, table.position[1])
    error = block.damage.error
    assert type(error) is CorruptBatch
    assert (error.position, error.offset, error.expected) == (table.position[1], 3, f"{table.crc[1]:#010x}")
    assert Decoder().decode(hurt, table, 2, origin=700).offset.tolist() == [4]


def test_records_are_checked_before_the_checksum_of_a_later_batch_is_blamed():
    damage = decode(packed(Codec.NONE) + batch(b"nonsense", 1, count=1) + packed(Codec.NONE, 2)[:-1] + b"!").damage
    assert damage.row == 1
    assert "record" in damage.error.what


def test_codecs_that_a_format_does_not_have():
    for codec, magic in ((5, 2), (6, 2), (7, 2), (4, 1), (4, 0), (7, 1)):
        bad = batch(b"xyz", 1, attributes=codec, count=1)
        if magic < 2:
            bad = message(1, b"x", magic=magic, attributes=codec)
        data = packed(Codec.NONE) + bad + packed(Codec.GZIP, 2)
        offsets, errors = all_of(Decoder(), data, table_of(data))
        assert offsets == [0, 2]
        assert [(type(error), error.found) for error in errors] == [(UnsupportedFormat, codec)]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_counts_hold_for_compressed_batches_too(codec):
    payload = compress(codec, b"".join(record(i) for i in range(3)))
    for count in (2, 3, 4, -1, 2**31 - 1):
        data = batch(payload, attributes=codec, count=count, last_offset_delta=2)
        offsets, errors = all_of(Decoder(), data, table_of(data))
        expected = ([0, 1, 2], []) if count == 3 else ([], [CorruptBatch])
        assert (offsets, [type(error) for error in errors]) == expected


def test_the_memory_of_an_older_block_stays():
    """A larger arena takes the place of the old one, whose bytes mean nothing by then but are there."""
    decoder = Decoder(block_bytes=1000)
    small, large = packed(Codec.LZ4), packed(Codec.LZ4, value=b"x" * 100_000)
    block = decoder.decode(small, table_of(small), origin=0)
    view = block.buffer
    decoder.decode(large, table_of(large), origin=0)
    assert len(bytes(view)) == len(record(0, b"key", b"v"))


def test_decoders_in_threads_do_not_disturb_each_other():
    data = b"".join(packed(CODECS[i % 5], 20 * i, 20, value=b"%d" % i * 50) for i in range(40))
    table = table_of(data)
    expected = all_of(Decoder(), data, table)
    results = []

    def work():
        decoder = Decoder(block_bytes=2000)
        results.extend(all_of(decoder, data, table) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 40


# The most records and headers that are read of one batch: what compresses to almost nothing takes no memory for it.

RECORD = sized(body(value=None))
HEADERS = sized(body(value=None)[:-1] + varint(MOST_HEADERS) + b"\0\1" * MOST_HEADERS)
TOO_MANY_RECORDS = "more records than are read of one batch"
takes_minutes_in_plain_python = pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")


def fault(data):
    """(what, expected, found) to a reader and to an audit alike."""
    damages = decode(data).damage, Decoder().audit(data, table_of(data), origin=0).damage
    assert None not in damages
    told = [(damage.error.what, damage.error.expected, damage.error.found) for damage in damages]
    assert told[0] == told[1]
    return told[0]


@takes_minutes_in_plain_python
def test_the_most_records_and_headers_are_read():
    block = decode(batch(RECORD * (MOST_RECORDS - 1) + sized(body(MOST_RECORDS - 1)), count=MOST_RECORDS))
    assert (block.damage, len(block), int(block.offset[-1])) == (None, MOST_RECORDS, MOST_RECORDS - 1)
    block = decode(batch([HEADERS]))
    assert (block.damage, block.headers_count.tolist()) == (None, [MOST_HEADERS])
    assert block.headers_spans().shape == (4, MOST_HEADERS)


@takes_minutes_in_plain_python
@pytest.mark.parametrize("value", [None, b"value"])  # an audit has a shorter way for records like the second
def test_a_batch_of_more_records_is_damage(value):
    number = MOST_RECORDS + 1
    found = fault(batch(sized(body(value=value)) * number, count=number))
    assert found == (TOO_MANY_RECORDS, f"at most {MOST_RECORDS}", number)


@takes_minutes_in_plain_python
def test_a_batch_of_more_headers_is_damage():
    found = fault(batch([HEADERS, sized(body(1, headers=[(b"", None)]))]))
    what = "more headers than are read of one batch (record 1 of the batch)"
    assert found == (what, f"at most {MOST_HEADERS}", MOST_HEADERS + 1)


@takes_minutes_in_plain_python
def test_a_wrapper_of_more_messages_is_damage():
    single = message_sets.encode([Record(None, None, (), 0)], 0)

    def wrapped(number):
        return message(0, zlib.compress(single * number, 1, 31), magic=0, attributes=Codec.GZIP)

    assert len(decode(wrapped(MOST_RECORDS))) == MOST_RECORDS
    assert fault(wrapped(MOST_RECORDS + 1))[0].startswith(TOO_MANY_RECORDS)


def large_records(number=LARGE_RECORDS + 1):
    data = batch(RECORD * number, count=number)
    return data, table_of(data)


@takes_minutes_in_plain_python
def test_memory_of_a_large_batch_is_given_back():
    payload = compress(Codec.ZSTD, sized(body(value=bytes(LARGE_BYTES))))
    large = batch(payload, count=1, attributes=Codec.ZSTD)
    wrong = batch(payload, count=2, attributes=Codec.ZSTD)
    small, decoder = batch([sized(body())]), Decoder()

    def held_after(use):
        """What the decoder holds after it, in megabytes."""
        before = tracemalloc.get_traced_memory()[0]
        use()
        return (tracemalloc.get_traced_memory()[0] - before) >> 20

    def decode_small():
        assert decoder.decode(small, table_of(small), origin=0).damage is None

    def audit_large():
        assert decoder.audit(large, table_of(large), origin=0).damage is None

    def decode_wrong():
        assert decoder.decode(wrong, table_of(wrong), origin=0).damage is not None

    decode_small()
    many = large_records(MOST_RECORDS)
    tracemalloc.start()
    try:
        assert held_after(lambda: decoder.decode(large, table_of(large), origin=0)) >= LARGE_BYTES >> 20
        assert held_after(decode_small) <= -(LARGE_BYTES >> 20)
        assert held_after(decode_wrong) < 4
        assert held_after(audit_large) < 4
        assert held_after(lambda: decoder.decode(*many, origin=0)) >= 9 * 8 * MOST_RECORDS >> 20
        assert held_after(decode_small) <= -(9 * 8 * MOST_RECORDS >> 20)
    finally:
        tracemalloc.stop()


@takes_minutes_in_plain_python
def test_few_decoders_have_large_memory_at_a_time(monkeypatch):
    """A third one waits for memory of another; in the end it goes on without it."""
    large, small = large_records(), packed(Codec.NONE)
    monkeypatch.setattr(decoder, "PATIENCE_SECONDS", 600)
    first, second, third = Decoder(), Decoder(), Decoder()
    for holder in (first, second):
        assert holder.decode(*large, origin=0).damage is None
    waiting = threading.Thread(target=third.decode, args=large, kwargs={"origin": 0})
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    first.decode(small, table_of(small), origin=0)
    waiting.join()
    del holder, second
    assert first.decode(*large, origin=0).damage is None
    monkeypatch.setattr(decoder, "PATIENCE_SECONDS", 0)
    assert Decoder().decode(*large, origin=0).damage is None
    third.decode(small, table_of(small), origin=0)


# RecordBlock: choosing, gathering, and bytes at API edges.

BLOCK_HEADERS = [(b"a", b"1"), (b"a", None), (b"", b"x" * 200)]
RECORDS = [
    record(0, b"k0", b"v0"),
    record(1, None, b""),
    record(2, b"", None),
    record(3, b"k3", b"v" * 300, BLOCK_HEADERS),
]
KEYS = [b"k0", None, b"", b"k3"]
VALUES = [b"v0", b"", None, b"v" * 300]


def a_block():
    return decode(exact(batch(RECORDS[:3], 10) + batch(RECORDS[3:], 10)))


def test_select():
    block = a_block()
    for rows, offsets in (
        (np.array([True, False, False, True]), [10, 13]),
        (np.array([3, 0, 0]), [13, 10, 10]),
        (np.array([], np.int64), []),
        (slice(1, 3), [11, 12]),
        (slice(None, None, -1), [13, 12, 11, 10]),
    ):
        part = block.select(rows)
        assert part.offset.tolist() == offsets
        assert [part.key(i) for i in range(len(part))] == [KEYS[offset - 10] for offset in offsets]
        assert (part.buffer, part.table, part.next_row, part.damage) == (block.buffer, block.table, 2, None)
        part.columns[:] = -7
        assert block.offset.tolist() == [10, 11, 12, 13]
        assert all(column.flags.c_contiguous for column in part.columns)


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("separator", [None, b"\n", b"", b"\r\n--"])
def test_gather(separator):
    block = a_block()
    gap = separator or b""
    for column, expected in ("key", KEYS), ("value", VALUES):
        data, ends = block.gather(column, separator)
        assert data == b"".join((item or b"") + gap for item in expected)
        starts = [0, *(ends[:-1] + len(gap)).tolist()]
        assert [data[a:b] for a, b in zip(starts, ends.tolist(), strict=True)] == [item or b"" for item in expected]
    assert (block.select(slice(0)).gather("key")[0], len(block.select(slice(0)).gather("key")[1])) == (b"", 0)


@pytest.mark.usefixtures("both_forms")
def test_columns_of_another_buffer_are_refused():
    size = len(a_block().buffer)
    for start, length in ((-1, 3), (size, 1), (size + 5, 1), (size - 1, 2), (2**63 - 1, 3), (-(2**63), 3)):
        block = a_block()
        block.key_start[3], block.key_length[3] = start, length
        with pytest.raises(ValueError, match="outside"):
            block.gather("key")
    block = a_block()
    block.headers_start[3] = size - 1
    with pytest.raises(CorruptBatch):
        block.headers(3)


HEADERS_THAT_DO_NOT_PARSE = [
    *(b"", b"\x80"),  # nothing where a length should be, a varint without its end
    *(b"\x80\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x10"),  # six bytes of varint, a fifth byte of more than four bits
    *(b"\x01\x01", b"\x03\x00", b"\xfe\xff\xff\xff\x0f\x01"),  # a null name, lengths of -2 and 2^31 - 1
    *(b"\x04a", b"\x02a", b"\x02a\x04b"),  # a name cut off, no value, a value cut off
]


@pytest.mark.usefixtures("both_forms")
def test_headers_that_do_not_parse_are_told():
    for headers in HEADERS_THAT_DO_NOT_PARSE:
        for start, count in ((2, 1), (-1, 1), (3 + len(headers), 1), (2**62, 1), (2, 2**62)):
            columns = np.zeros((len(RecordColumn), 2), np.int64)
            columns[RecordColumn.OFFSET] = 7, 8
            columns[RecordColumn.HEADERS_START] = 0, start
            columns[RecordColumn.HEADERS_COUNT] = 1, count
            block = RecordBlock(exact(b"\x00\x00" + headers), BatchTable.empty(1), columns, 1)
            with pytest.raises(CorruptBatch, match="headers do not parse") as refused:
                block.measure_headers()
            assert refused.value.offset == 8


# Batches decompressed many at a time: the same records and errors as one by one, whatever the frames are.

INFLATE_CODECS = [Codec.LZ4, Codec.ZSTD]
CONTENT = b"".join(record(i, b"key", b"value" * 40) for i in range(30))


def frame(payload, codec, base_offset=0):
    """A batch of the 30 records of CONTENT whose stored bytes are `payload`."""
    return batch(payload, base_offset, count=30, last_offset_delta=29, attributes=codec)


def one_by_one(data, patch):
    """What is read without the system's libraries."""
    with patch.context() as inner:
        inner.setattr(decoder, "inflate_kernel", uncompiled("storage.format.inflate_kernel"))
        return read_all(data)


def test_the_libraries_of_this_machine_are_used(monkeypatch):
    if not is_compiled(inflate_kernel) or set(codec_library.versions()) != {"libzstd", "liblz4"}:
        pytest.skip("kernel not built, or libzstd or liblz4 not there")
    called = []

    def decompress_into(codec, *arguments):
        called.append(codec)
        return original(codec, *arguments)

    original = compression.decompress_into
    monkeypatch.setattr(compression, "decompress_into", decompress_into)
    for codec in CODECS[1:]:
        assert len(decode(frame(compress(codec, CONTENT), codec) * 3)) == 90
    assert set(called) == {Codec.GZIP, Codec.SNAPPY}


@pytest.mark.parametrize("codec", INFLATE_CODECS)
def test_damage_behind_a_right_checksum(codec, monkeypatch):
    dice = random.Random(codec)
    payload = compress(codec, CONTENT)
    found = more = 0
    for _ in range(500):
        parts = [frame(payload, codec), frame(damaged(payload, dice), codec, 30), frame(payload, codec, 60)]
        data = with_right_checksums(b"".join(parts))
        outcome, other = read_all(data), one_by_one(data, monkeypatch)
        if outcome != other:
            # cramjam's libzstd is younger than the system's may be, and finds some damage that the older one does not.
            assert [damage[0] for damage in other.damages] == [1]
            assert not outcome.damages
            assert [r for r in outcome.records if r.row != 1] == list(other.records)
            more += 1
        found += bool(outcome.damages)
    assert more <= found // 100
    assert found > 50
